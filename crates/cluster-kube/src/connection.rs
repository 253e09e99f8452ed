//! Connections to an API server, and how a dead one is told from a slow one.
//!
//! Packets of a connection can get lost for good without a word: a firewall forgets it, a load
//! balancer's machine dies. Whoever waits then waits for an answer that cannot come, and a watch, which
//! is silent by nature, would never know. So the kernel asks for a sign of life: what is sent has to
//! be acknowledged, and on a connection where nothing is sent the other end is probed. A slow API
//! server acknowledges at once, for its kernel does that, so it is not taken for dead as long as that
//! has room for what it is sent; only [`crate::lane`] gives up on it, and much later.
//!
//! Requests go over connections that are kept, by HTTP/1.1: each is on one of its own. When one turns
//! out to be dead, others that were kept beside it may be too. So a request that is sent again
//! ([`Fresh`]) goes over a connection that is opened for it.

use std::time::Duration;

use http::Request;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, Layer as _, util::option_layer};

/// The other end of a connection that was silent for this long is asked for a sign of life.
const ASK_AFTER: Duration = Duration::from_secs(3);
/// And again, until there is one.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A connection on which nothing was acknowledged for this long is dead. TCP has tried four or five
/// times by then.
const DEAD_AFTER: Duration = Duration::from_secs(6);
/// The longest that opening a connection takes, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// Marks a request that must not take a connection that was kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh;

/// A client of an API server.
///
/// # Errors
/// If certificates or credentials cannot be used, or there is a proxy in the way.
pub(crate) fn open(config: &Config) -> Result<Client, kube::Error> {
    if let Some(proxy) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported {
            proxy_url: Box::new(proxy.clone()),
        });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(ASK_AFTER));
    tcp.set_keepalive_interval(Some(ASK_EVERY));
    // It bounds keepalive, too: how often is asked in vain does not count any more.
    tcp.set_tcp_user_timeout(Some(DEAD_AFTER));
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(Some(CONNECT));
    let mut builder = Builder::new(TokioExecutor::new());
    let kept = builder
        .pool_timer(TokioTimer::new())
        .build(connector.clone());
    let fresh = builder.pool_max_idle_per_host(0).build(connector);
    let send = tower::service_fn(move |request: Request<Body>| {
        let client = match request.extensions().get::<Fresh>() {
            Some(Fresh) => &fresh,
            None => &kept,
        };
        let answer = client.request(request);
        async move { answer.await.map_err(BoxError::from) }
    });
    let send = config.extra_headers_layer()?.layer(send);
    let send = option_layer(config.auth_layer()?).layer(send);
    let send = config.base_uri_layer().layer(send);
    Ok(Client::new(send, config.default_namespace.as_str()))
}
