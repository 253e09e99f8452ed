//! Names for sandboxes: a small forwarder that knows who asks.
//!
//! A question comes from an address that cannot be forged, so it is the sandbox's own. Where a
//! policy opens nothing but what it names, only its names are answered for; and the addresses in
//! the answer are open before the answer is sent. Everything is bounded: how often a sandbox may
//! ask, how much may wait, how long, and how large anything is.

mod message;
mod upstream;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

use kit::Tasks;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{Instant, timeout},
};

use self::{
    message::{Question, refusal},
    upstream::{Upstreams, Way},
};
use crate::{
    network::{Network, Shared},
    options::NameLimits,
};

/// The largest question; an honest one is a fraction of it.
const LARGEST_QUESTION: usize = 1024;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// Sandboxes whose rate is remembered; beyond it those that have been quiet are forgotten.
const REMEMBERED: usize = 4096;

impl Network {
    /// Answers questions for names from now on, until this is dropped; only the first call has an
    /// effect.
    ///
    /// # Errors
    /// If there is no asynchronous runtime to serve from.
    pub fn serve_names(&self) -> io::Result<()> {
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let (shared, tasks) = (self.shared(), self.tasks());
        let Some(listening) = shared.take_listening() else {
            return Ok(());
        };
        let server = Arc::new(Server {
            network: Arc::downgrade(shared),
            upstreams: Upstreams::new(shared.options.upstreams.clone()),
            limits: shared.options.names,
            askers: Mutex::default(),
            datagrams: UdpSocket::from_std(listening.datagrams)?,
            tasks: tasks.clone(),
        });
        let connections = TcpListener::from_std(listening.connections)?;
        tasks.spawn(Arc::clone(&server).serve_datagrams());
        tasks.spawn(server.serve_connections(connections));
        Ok(())
    }
}

#[derive(Debug)]
struct Server {
    network: Weak<Shared>,
    upstreams: Upstreams,
    limits: NameLimits,
    askers: Mutex<Askers>,
    datagrams: UdpSocket,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct Askers {
    all: HashMap<Ipv4Addr, Asker>,
    waiting: usize,
}

#[derive(Debug)]
struct Asker {
    waiting: usize,
    connections: usize,
    /// Questions that may still be asked now.
    left: f64,
    counted_at: Instant,
}

impl Server {
    async fn serve_datagrams(self: Arc<Self>) {
        let mut buffer = [0; LARGEST_QUESTION];
        loop {
            let received = tokio::select! {
                biased;
                () = self.tasks.stopping().cancelled() => return,
                received = self.datagrams.recv_from(&mut buffer) => received,
            };
            // What a sender's kernel says about an earlier answer is an error too.
            let Ok((length, from)) = received else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            if self.network.strong_count() == 0 {
                return;
            }
            let Some(permit) = Permit::take(&self, from.ip()) else {
                continue;
            };
            let question = buffer[..length].to_vec();
            self.tasks.spawn(async move {
                let server = Arc::clone(&permit.server);
                let answer = server.answer(permit.asker, &question, Way::Datagram).await;
                if let Some(answer) = answer {
                    // An asker that is gone needs no answer.
                    let _ = server.datagrams.send_to(&answer, from).await;
                }
                drop(permit);
            });
        }
    }

    async fn serve_connections(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.tasks.stopping().cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                // Too many open files: others will close theirs.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if self.network.strong_count() == 0 {
                return;
            }
            let Some(connection) = Connection::take(&self, from.ip()) else {
                continue;
            };
            self.tasks.spawn(async move {
                // Its end, however it comes, is nobody's concern but the asker's.
                let _ = connection.serve(stream, from).await;
            });
        }
    }

    /// The answer to a question; none if it is not one, or nobody may ask it.
    async fn answer(&self, asker: Ipv4Addr, bytes: &[u8], way: Way) -> Option<Vec<u8>> {
        let question = Question::read(bytes)?;
        let policy = self.network.upgrade()?.policy_of(asker)?;
        let named = question.name.as_ref();
        let answered = named.map_or(!policy.names_only, |name| policy.answers(name));
        if !answered {
            return Some(refusal(&question, message::NO_SUCH_NAME));
        }
        if question.wants_version_6() {
            // There is no way to such an address: an empty answer saves the attempt.
            return Some(refusal(&question, message::FINE));
        }
        let Some(answer) = self.upstreams.ask(&question, way).await else {
            return Some(refusal(&question, message::FAILED));
        };
        if let Some(name) = named.filter(|name| !policy.open && policy.names(name)) {
            let addresses = message::addresses(&answer, &question);
            let (network, name) = (self.network.upgrade()?, name.clone());
            let admit = move || network.admit_answer(asker, &name, &addresses);
            let admitted = tokio::task::spawn_blocking(admit).await;
            if !matches!(admitted, Ok(Ok(()))) {
                tracing::warn!(%asker, ?admitted, "the addresses of a name could not be opened");
                return Some(refusal(&question, message::FAILED));
            }
        }
        Some(answer)
    }
}

impl Askers {
    fn get(&mut self, asker: Ipv4Addr, limits: NameLimits) -> &mut Asker {
        let now = Instant::now();
        if self.all.len() >= REMEMBERED && !self.all.contains_key(&asker) {
            self.all.retain(|_, one| {
                let quiet = now.duration_since(one.counted_at) > Duration::from_secs(2);
                one.waiting > 0 || one.connections > 0 || !quiet
            });
        }
        let one = self.all.entry(asker).or_insert(Asker {
            waiting: 0,
            connections: 0,
            left: f64::from(limits.rate),
            counted_at: now,
        });
        let since = now.duration_since(one.counted_at).as_secs_f64();
        let rate = f64::from(limits.rate);
        one.left = since.mul_add(rate, one.left).min(rate);
        one.counted_at = now;
        one
    }
}

/// The right to have one question answered.
struct Permit {
    server: Arc<Server>,
    asker: Ipv4Addr,
}

impl Permit {
    fn take(server: &Arc<Server>, from: IpAddr) -> Option<Self> {
        let IpAddr::V4(asker) = from else { return None };
        let limits = server.limits;
        let mut askers = server.askers.lock();
        if askers.waiting >= limits.waiting_in_all {
            return None;
        }
        let one = askers.get(asker, limits);
        if one.waiting >= limits.waiting || one.left < 1.0 {
            return None;
        }
        one.left -= 1.0;
        one.waiting += 1;
        askers.waiting += 1;
        Some(Self {
            server: Arc::clone(server),
            asker,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut askers = self.server.askers.lock();
        askers.waiting -= 1;
        if let Some(one) = askers.all.get_mut(&self.asker) {
            one.waiting -= 1;
        }
    }
}

/// One of the few connections that a sandbox may have.
struct Connection {
    server: Arc<Server>,
    asker: Ipv4Addr,
}

impl Connection {
    fn take(server: &Arc<Server>, from: IpAddr) -> Option<Self> {
        let IpAddr::V4(asker) = from else { return None };
        let mut askers = server.askers.lock();
        let limits = server.limits;
        let one = askers.get(asker, limits);
        if one.connections >= limits.connections {
            return None;
        }
        one.connections += 1;
        Some(Self {
            server: Arc::clone(server),
            asker,
        })
    }

    async fn serve(&self, mut stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        let stopping = self.server.tasks.stopping().clone();
        loop {
            let read = async {
                let length = usize::from(stream.read_u16().await?);
                if length > LARGEST_QUESTION {
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
                let mut question = vec![0; length];
                stream.read_exact(&mut question).await?;
                Ok(question)
            };
            let question = tokio::select! {
                biased;
                () = stopping.cancelled() => return Ok(()),
                read = timeout(SILENCE, read) => read??,
            };
            let Some(permit) = Permit::take(&self.server, from.ip()) else {
                return Ok(());
            };
            let answer = self
                .server
                .answer(self.asker, &question, Way::Connection)
                .await;
            drop(permit);
            let Some(answer) = answer else {
                return Ok(());
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let mut whole = length.to_be_bytes().to_vec();
            whole.extend_from_slice(&answer);
            timeout(SILENCE, stream.write_all(&whole)).await??;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(one) = self.server.askers.lock().all.get_mut(&self.asker) {
            one.connections -= 1;
        }
    }
}
