//! `dormouse sandbox port-forward`: ports of this machine that lead into a sandbox.
//!
//! Every connection gets a tunnel of its own through the gateway, in an upgrade of HTTP. Until it
//! is there nothing is read here: what a client sends at once waits in the kernel while the sandbox
//! wakes, and is delivered once. A tunnel that breaks resets its client, so that nobody takes a
//! part for the whole.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU16,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use kit::Tasks;
use serde_json::Value;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::OnceCell,
    time::{sleep, timeout},
};

use super::url::TRAFFIC_TOKEN;
use crate::{
    complain,
    e2b::{Access, Api, Found},
    print,
};

/// What the gateway knows the tunnel by.
const PROTOCOL: &str = "dormouse-tcp";
/// How long the gateway may take to wake a sandbox and connect to it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// When this process is out of descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The longest explanation that is read.
const LONGEST: usize = 64 << 10;

/// Which ports.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen on this machine
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// The sandbox
    sandbox: String,
    /// A port inside, or LOCAL:PORT; LOCAL is the port here, 0 or nothing for any free one
    #[arg(required = true, value_name = "[LOCAL:]PORT")]
    ports: Vec<Pair>,
    #[command(flatten)]
    access: Access,
}

/// A port here and one inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u16,
    inside: NonZeroU16,
}

impl FromStr for Pair {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a port, as 8000, 9000:8000 or :8000");
        let (local, inside) = match text.split_once(':') {
            Some((local, inside)) => (Some(local), inside),
            None => (None, text),
        };
        let inside: NonZeroU16 = inside.parse().map_err(|_| wrong())?;
        let local = match local {
            None => inside.get(),
            Some("") => 0,
            Some(local) => local.parse().map_err(|_| wrong())?,
        };
        Ok(Self { local, inside })
    }
}

/// What all connections share.
struct Forward {
    api: Api,
    sandbox: Found,
    /// The token that its ports ask for, once it was needed.
    token: OnceCell<Option<String>>,
}

pub(super) async fn run(arguments: Arguments, is_root: bool) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("wait for signals")?;
    let api = arguments.access.api(is_root)?;
    let sandbox = api.find(&arguments.sandbox).await?;
    // All are had before the first is used.
    let mut listeners = Vec::new();
    for pair in &arguments.ports {
        let at = SocketAddr::new(arguments.address, pair.local);
        let listener = TcpListener::bind(at).await;
        let listener = listener.with_context(|| {
            format!(
                "listen on {at}: choose another port with LOCAL:{}",
                pair.inside
            )
        })?;
        listeners.push((listener, pair.inside));
    }
    let forward = Arc::new(Forward {
        api,
        sandbox,
        token: OnceCell::new(),
    });
    let tasks = Tasks::default();
    for (listener, port) in listeners {
        let at = listener.local_addr().context("read the bound address")?;
        print(&format!(
            "{at} leads to port {port} of {}\n",
            forward.sandbox.id
        ))?;
        tasks.spawn(accept(forward.clone(), listener, port, tasks.clone()));
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn accept(forward: Arc<Forward>, listener: TcpListener, port: NonZeroU16, tasks: Tasks) {
    loop {
        match listener.accept().await {
            Ok((mut client, _)) => {
                let forward = forward.clone();
                tasks.spawn(async move {
                    if let Err(error) = forward.serve(&mut client, port).await {
                        complain(&error.context(format!("port {port}")));
                        // Closing now sends a reset.
                        let _ = client.set_zero_linger();
                    }
                });
            }
            Err(error) => {
                complain(&anyhow!(error).context("accept a connection"));
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Why there is no tunnel.
#[derive(Debug)]
struct NoTunnel {
    status: StatusCode,
    why: anyhow::Error,
}

impl Forward {
    async fn serve(&self, client: &mut TcpStream, port: NonZeroU16) -> anyhow::Result<()> {
        client.set_nodelay(true).context("set up a connection")?;
        let opened = timeout(ANSWER_TIMEOUT, self.open(port)).await;
        let mut tunnel =
            opened.unwrap_or_else(|_| Err(anyhow!("the server did not answer in time")))?;
        let moved = copy_bidirectional(client, &mut tunnel).await;
        moved.context("the connection was cut")?;
        Ok(())
    }

    /// A tunnel. One that sleeps and is not woken by traffic is woken by whoever runs this.
    async fn open(&self, port: NonZeroU16) -> anyhow::Result<TokioIo<hyper::upgrade::Upgraded>> {
        match self.ask(port).await? {
            Ok(tunnel) => return Ok(tunnel),
            Err(refused) if refused.status != StatusCode::BAD_GATEWAY => return Err(refused.why),
            Err(refused) => {
                let now = self.api.find(&self.sandbox.id).await;
                if !now.is_ok_and(|found| found.is_asleep()) {
                    return Err(refused.why);
                }
            }
        }
        self.api.awake(&self.sandbox.id).await?;
        self.ask(port).await?.map_err(|refused| refused.why)
    }

    async fn ask(
        &self,
        port: NonZeroU16,
    ) -> anyhow::Result<Result<TokioIo<hyper::upgrade::Upgraded>, NoTunnel>> {
        let way = self.api.way(&self.sandbox, port.get())?;
        let mut request = Request::get(format!("{}/", way.prefix))
            .header(header::HOST, way.endpoint.authority())
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, PROTOCOL);
        if let Some(token) = self.token().await? {
            request = request.header(TRAFFIC_TOKEN, token);
        }
        // What is wrong with a header could be a part of a token.
        let request = request.body(Empty::<bytes::Bytes>::new());
        let request = request.map_err(|_| anyhow!("the sandbox's token cannot be sent"))?;
        let url = way.endpoint.url();
        let stream = way.endpoint.dial().await;
        let stream = stream.with_context(|| format!("no server answers at {url}"))?;
        let talk = || format!("talk to the server at {url}");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(talk)?;
        let connection = connection.with_upgrades();
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Ok(hyper::upgrade::on(answer).await?));
            }
            let body = Limited::new(answer.into_body(), LONGEST).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            anyhow::Ok(Err((status, body)))
        };
        // The connection is driven until it is handed over; its failure is the exchange's.
        let drive = async {
            let _ = connection.await;
            std::future::pending().await
        };
        let answer = tokio::select! {
            answer = exchange => answer.with_context(talk)?,
            never = drive => match never {},
        };
        Ok(match answer {
            Ok(upgraded) => Ok(TokioIo::new(upgraded)),
            Err((status, body)) => Err(NoTunnel {
                status,
                why: refusal(status, &body),
            }),
        })
    }

    async fn token(&self) -> anyhow::Result<Option<&str>> {
        if !self.sandbox.is_closed() {
            return Ok(None);
        }
        let token = self.token.get_or_try_init(async || {
            let found = self.api.connect(&self.sandbox).await?;
            anyhow::Ok(found.traffic_access_token)
        });
        match token.await?.as_deref() {
            Some(token) => Ok(Some(token)),
            None => bail!(
                "the server gave no token for the ports of {}",
                self.sandbox.id
            ),
        }
    }
}

/// What the gateway said.
fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["message"].as_str() {
        Some(message) => anyhow!("{message}"),
        None => anyhow!("the server answered {status} without saying why"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_one_port_or_two_and_the_first_may_be_any() {
        let read = |text: &str| text.parse::<Pair>().map(|p| (p.local, p.inside.get()));
        assert_eq!(read("80"), Ok((80, 80)));
        assert_eq!(read("8000:80"), Ok((8000, 80)));
        assert_eq!(read(":80"), Ok((0, 80)));
        assert_eq!(read("0:80"), Ok((0, 80)));
        for bad in [
            "", ":", "80:", "x", "80:x", "70000", "80:0", "0", "1:2:3", "-1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
