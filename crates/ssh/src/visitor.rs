//! One client: which key it has, and what it opens.

use std::{
    collections::HashMap,
    num::NonZeroU16,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use kit::Tasks;
use parking_lot::Mutex;
use russh::{
    Channel, ChannelId, ChannelOpenFailure, Pty,
    keys::PublicKey,
    server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey},
};
use tokio::sync::oneshot;

use crate::{
    doors::Place,
    forward,
    sandboxes::{Guest, Sandboxes},
    session,
    spool::Flow,
    wish::Wish,
};

/// A guest, and with which key it came.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) guest: Guest,
    pub(crate) key: Arc<str>,
}

/// A client's side of a connection.
pub(crate) struct Visitor {
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) place: Arc<Place>,
    pub(crate) arrival: Option<Arrival>,
    /// Tells whoever watches over the connection who has come.
    pub(crate) announce: Option<oneshot::Sender<Arrival>>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) channels: Arc<AtomicUsize>,
    pub(crate) most_channels: usize,
    /// Of the sessions that have not said yet what to run.
    pub(crate) wishes: HashMap<ChannelId, Weak<Mutex<Wish>>>,
    /// What runs for the client: it hears of the connection's end by its channel, and ends what it
    /// started inside.
    pub(crate) tasks: Tasks,
}

/// One open channel; dropping it makes room for another.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A key as a file `.pub` has it, without a comment.
fn text(key: &PublicKey) -> Option<String> {
    let text = key.to_openssh().ok()?;
    let mut words = text.split(' ');
    Some(format!("{} {}", words.next()?, words.next()?))
}

impl Visitor {
    fn admit(&self, user: &str, key: &PublicKey) -> Option<Arrival> {
        let key = text(key)?;
        let guest = self.sandboxes.admit(user, &key)?;
        Some(Arrival {
            guest,
            key: key.into(),
        })
    }

    fn count(&self) -> Option<Counted> {
        let counted = self
            .channels
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                (open < self.most_channels).then_some(open + 1)
            });
        counted.ok().map(|_| Counted(self.channels.clone()))
    }

    fn find_wish(&self, channel: ChannelId) -> Option<Arc<Mutex<Wish>>> {
        self.wishes.get(&channel)?.upgrade()
    }
}

impl Handler for Visitor {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(match self.admit(user, offer.public_key) {
            Some(_) => Auth::Accept,
            None => Auth::reject(),
        })
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        self.arrival = self.admit(user, key.public_key);
        Ok(match self.arrival {
            Some(_) => Auth::Accept,
            None => Auth::reject(),
        })
    }

    async fn auth_succeeded(&mut self, _: &mut Session) -> Result<(), Self::Error> {
        self.place.is_known();
        if let (Some(arrival), Some(announce)) = (&self.arrival, self.announce.take()) {
            // Nobody watches any more only if the connection is over.
            let _ = announce.send(arrival.clone());
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let (Some(arrival), Some(counted)) = (&self.arrival, self.count()) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let serving = session::Session {
            guest: arrival.guest.clone(),
            sandboxes: self.sandboxes.clone(),
            flow: self.flow.clone(),
            handle: session.handle(),
        };
        let wish = Arc::<Mutex<Wish>>::default();
        self.wishes.retain(|_, wish| wish.strong_count() > 0);
        self.wishes.insert(channel.id(), Arc::downgrade(&wish));
        reply.accept().await;
        self.tasks.spawn(async move {
            let _counted = counted;
            serving.serve(channel, wish).await;
        });
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host_to_connect: &str,
        port_to_connect: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        let port = u16::try_from(port_to_connect)
            .ok()
            .and_then(NonZeroU16::new);
        let (Some(arrival), Some(port)) = (&self.arrival, port) else {
            reply.reject(ChannelOpenFailure::ConnectFailed).await;
            return Ok(());
        };
        let guest = arrival.guest.clone();
        if !forward::is_inside(host_to_connect, &guest.sandbox) {
            reply
                .reject(ChannelOpenFailure::AdministrativelyProhibited)
                .await;
            return Ok(());
        }
        let Some(counted) = self.count() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (sandboxes, flow) = (self.sandboxes.clone(), self.flow.clone());
        // Not here: it may have to be woken, and nothing else would move meanwhile.
        self.tasks.spawn(async move {
            let _counted = counted;
            match sandboxes.port(&guest, port).await {
                Ok(stream) => {
                    reply.accept().await;
                    forward::join(channel, stream, flow).await;
                }
                Err(error) => {
                    tracing::debug!(%error, sandbox = %guest.sandbox, port, "no such port");
                    reply.reject(ChannelOpenFailure::ConnectFailed).await;
                }
            }
        });
        Ok(())
    }

    // What follows is answered at once and in order, as clients count on. What a session is to be
    // started with is kept; everything else is done where the channel is served.

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        term: &str,
        columns: u32,
        rows: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let wish = self.find_wish(channel);
        match wish.is_some_and(|wish| wish.lock().set_terminal(term, columns, rows)) {
            true => session.channel_success(channel),
            false => session.channel_failure(channel),
        }
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let wish = self.find_wish(channel);
        match wish.is_some_and(|wish| wish.lock().set_variable(name, value)) {
            true => session.channel_success(channel),
            false => session.channel_failure(channel),
        }
    }

    async fn shell_request(
        &mut self,
        channel: ChannelId,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match session::is_subsystem(name) {
            true => session.channel_success(channel),
            false => session.channel_failure(channel),
        }
    }

    async fn window_change_request(
        &mut self,
        channel: ChannelId,
        columns: u32,
        rows: u32,
        _: u32,
        _: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if let Some(wish) = self.find_wish(channel) {
            wish.lock().resize(columns, rows);
        }
        session.channel_success(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _: bool,
        _: &str,
        _: &str,
        _: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }
}
