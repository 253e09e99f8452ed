//! Listens, and watches over connections.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use kit::Tasks;
use russh::{
    Disconnect, MethodKind, MethodSet, SshId,
    server::{Config, Handle, run_stream},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};

use crate::{
    doors::{Doors, Limits, Place},
    host_key::HostKey,
    sandboxes::Sandboxes,
    spool::Flow,
    visitor::{Arrival, Visitor},
};

/// How often it is looked whether a key still opens what it opened.
const LOOK: Duration = Duration::from_secs(2);
/// How often a silent client is asked whether it is there, and how often it may stay silent.
const ASK: Duration = Duration::from_secs(30);
const SILENCES: usize = 3;
/// When the process is out of file descriptors, some time must pass for one to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long the last words to a client may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until `tasks` is asked to stop; connections have until then.
pub async fn serve(
    listener: TcpListener,
    key: HostKey,
    sandboxes: Arc<dyn Sandboxes>,
    limits: Limits,
    tasks: Tasks,
) {
    let config = Arc::new(Config {
        server_id: SshId::Standard(concat!("SSH-2.0-dormouse_", env!("CARGO_PKG_VERSION")).into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        auth_rejection_time: limits.refusal_time,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key.0],
        max_auth_attempts: limits.tries,
        inactivity_timeout: None,
        keepalive_interval: Some(ASK),
        keepalive_max: SILENCES,
        nodelay: true,
        ..Config::default()
    });
    let doors = Doors::new(limits);
    loop {
        let accepted = tokio::select! {
            biased;
            () = tasks.stopping().cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an SSH connection");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(place) = doors.enter(peer.ip()) else {
            tracing::info!(%peer, "an SSH connection is refused: there are too many");
            continue;
        };
        let connection = Connection {
            config: config.clone(),
            sandboxes: sandboxes.clone(),
            limits,
            peer,
            login_until: Instant::now() + limits.login_time,
            tasks: tasks.clone(),
        };
        let stop = tasks.stopping().clone();
        let serving = connection.serve(stream, Arc::new(place));
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = serving => {}
            }
        });
    }
}

/// One connection.
struct Connection {
    config: Arc<Config>,
    sandboxes: Arc<dyn Sandboxes>,
    limits: Limits,
    peer: SocketAddr,
    /// From the connect on, whatever is said in between.
    login_until: Instant,
    tasks: Tasks,
}

impl Connection {
    async fn serve(self, stream: TcpStream, place: Arc<Place>) {
        let (stream, _cut) = match cuttable(stream) {
            Ok(cuttable) => cuttable,
            Err(error) => return tracing::debug!(%error, "SSH connection ended"),
        };
        let (announce, arrived) = oneshot::channel();
        let flow = Arc::<Flow>::default();
        // However this ends, what waits hears of it.
        let _over = flow.over.clone().drop_guard();
        let visitor = Visitor {
            sandboxes: self.sandboxes.clone(),
            place,
            arrival: None,
            announce: Some(announce),
            flow,
            channels: Arc::default(),
            most_channels: self.limits.channels,
            wishes: HashMap::new(),
            tasks: self.tasks.clone(),
        };
        let peer: IpAddr = self.peer.ip().to_canonical();
        let begun = run_stream(self.config.clone(), stream, visitor);
        let running = match timeout_at(self.login_until, begun).await {
            Ok(Ok(running)) => running,
            Ok(Err(error)) => return tracing::debug!(%error, %peer, "SSH connection ended"),
            Err(_) => return tracing::debug!(%peer, "no SSH was spoken in time"),
        };
        let handle = running.handle();
        let ended = tokio::select! {
            ended = running => Some(ended),
            () = self.watch(arrived, &handle) => None,
        };
        match ended {
            Some(Ok(())) => tracing::debug!(%peer, "SSH connection closed"),
            // The peer's manners are its own affair.
            Some(Err(error)) => tracing::debug!(%error, %peer, "SSH connection ended"),
            None => tracing::debug!(%peer, "SSH connection ended by the server"),
        }
    }

    /// Waits for a client to log in, and then as long as it may stay.
    async fn watch(&self, arrived: oneshot::Receiver<Arrival>, handle: &Handle) {
        let Ok(Ok(arrival)) = timeout_at(self.login_until, arrived).await else {
            return say(handle, "it took too long to log in").await;
        };
        let Arrival { guest, key } = &arrival;
        let (sandbox, team) = (&*guest.sandbox, &*guest.team);
        tracing::info!(sandbox, team, key = &*guest.key, peer = %self.peer.ip(), "SSH login");
        // In use, and awake, from the login on. Why it is not is said where something is run.
        let presence = self.sandboxes.enter(guest).await;
        if let Err(error) = &presence {
            tracing::info!(%error, sandbox, "a sandbox could not be entered");
        }
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if self.sandboxes.admit(&guest.sandbox, key).as_ref() != Some(guest) {
                drop(presence);
                return say(handle, "the sandbox is gone, or the key is").await;
            }
        }
    }
}

/// Ends a connection when it is dropped: the library's own task for it would go on.
struct Cut(std::net::TcpStream);

impl Drop for Cut {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

fn cuttable(stream: TcpStream) -> io::Result<(TcpStream, Cut)> {
    // Without it small answers wait for the peer's acknowledgement.
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let cut = Cut(stream.try_clone()?);
    Ok((TcpStream::from_std(stream)?, cut))
}

async fn say(handle: &Handle, why: &str) {
    let said = handle.disconnect(Disconnect::ByApplication, why.to_owned(), String::new());
    // A peer that does not listen is let go all the same.
    let _ = timeout(FAREWELL, said).await;
    // The words are on their way when the loop of the connection has taken them.
    sleep(Duration::from_millis(100)).await;
}

#[cfg(test)]
mod tests {
    use std::{any::Any, num::NonZeroU16};

    use agent_client::{Client, Io};
    use async_trait::async_trait;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::sandboxes::Guest;

    /// No sandboxes at all.
    #[derive(Debug)]
    struct Nothing;

    #[async_trait]
    impl Sandboxes for Nothing {
        fn admit(&self, _: &str, _: &str) -> Option<Guest> {
            None
        }

        async fn enter(&self, _: &Guest) -> io::Result<Box<dyn Any + Send>> {
            Err(io::ErrorKind::NotFound.into())
        }

        fn agent(&self, _: &Guest) -> io::Result<Client> {
            Err(io::ErrorKind::NotFound.into())
        }

        async fn port(&self, _: &Guest, _: NonZeroU16) -> io::Result<Box<dyn Io>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_to_log_in_does_not_begin_again_with_the_first_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = Tasks::default();
        let limits = Limits::default();
        let key = HostKey::from_seed(&[7; 32]);
        let serving = serve(listener, key, Arc::new(Nothing), limits, tasks.clone());
        tasks.spawn(serving);

        let mut client = TcpStream::connect(address).await.unwrap();
        let begun = Instant::now();
        // The server's words: it has taken the connection.
        client.read_u8().await.unwrap();
        sleep(limits.login_time * 9 / 10).await;
        client.write_all(b"SSH-2.0-silent\r\n").await.unwrap();
        let mut rest = Vec::new();
        // Reset or closed, it has ended.
        let _ = client.read_to_end(&mut rest).await;
        let most = limits.login_time + FAREWELL + Duration::from_secs(1);
        assert!(begun.elapsed() <= most, "after {:?}", begun.elapsed());
        tasks.stopping().cancel();
    }
}
