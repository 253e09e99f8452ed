//! Listens, and watches over connections.

use std::{
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
    time::{MissedTickBehavior, interval, sleep, timeout},
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
            tasks: self.tasks.clone(),
        };
        let peer: IpAddr = self.peer.ip().to_canonical();
        let begun = run_stream(self.config.clone(), stream, visitor);
        let running = match timeout(self.limits.login_time, begun).await {
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
        let Ok(Ok(arrival)) = timeout(self.limits.login_time, arrived).await else {
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
