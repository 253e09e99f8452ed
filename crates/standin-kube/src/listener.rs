//! The server's port: it can be closed and opened again with everything behind it as it was.
//!
//! It speaks TLS, for kubectl sends no token without it.

use std::{
    io::{Error, Result},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use kit::Tasks;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// Who the server is.
#[derive(Clone)]
pub(crate) struct Identity {
    acceptor: TlsAcceptor,
    /// Its certificate, which is its own authority.
    pub(crate) pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// A new one.
    pub(crate) fn new(address: IpAddr) -> Result<Self> {
        let made =
            rcgen::generate_simple_self_signed([address.to_string()]).map_err(Error::other)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .map_err(Error::other)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            pem: made.cert.pem(),
        })
    }
}

/// A port, and who serves it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    tasks: Tasks,
}

impl Listener {
    /// Serves a router on an address.
    pub(crate) fn open(address: SocketAddr, router: Router, identity: &Identity) -> Result<Self> {
        let socket = bind(address)?;
        let acceptor = identity.acceptor.clone();
        let address = socket.local_addr()?;
        let tasks = Tasks::default();
        let connections = tasks.clone();
        tasks.spawn(async move {
            let stopping = connections.stopping().clone();
            loop {
                let accepted = tokio::select! {
                    () = stopping.cancelled() => return,
                    accepted = socket.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else { continue };
                // A client that waits for an answer should not wait for more to send with it.
                let _ = stream.set_nodelay(true);
                let router = router.clone();
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    router.clone().oneshot(request.map(Body::new))
                });
                let (stop, acceptor) = (stopping.clone(), acceptor.clone());
                connections.spawn(async move {
                    let serving = async {
                        // A client that does not trust us is the client's to mend.
                        let Ok(stream) = acceptor.accept(stream).await else {
                            return;
                        };
                        let http = Builder::new(TokioExecutor::new());
                        // A client that leaves is no error.
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    };
                    // Dropped in the middle of whatever it does: that is what a crash looks like.
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = serving => {}
                    }
                });
            }
        });
        Ok(Self { address, tasks })
    }

    /// Closes the port and every connection.
    pub(crate) async fn close(self) {
        // All of them end at once, each at its next breath.
        let _ = self.tasks.drain(Duration::from_secs(5)).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

/// Binds, even where connections of the last listener linger.
fn bind(address: SocketAddr) -> Result<TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}
