//! SSH into sandboxes: the listener, the server's own key, and the sandboxes as SSH asks for them.
//!
//! A key opens the sandboxes of the teams that hold it, and for it there are no others.

use std::{any::Any, io, net::SocketAddr, num::NonZeroU16, path::Path, sync::Arc};

use agent_client::{Client, Io};
use anyhow::Context as _;
use async_trait::async_trait;
use auth::{
    Audit, Keys, Seal,
    audit::{Action, Actor, Entry},
};
use gateway::{OpenError, Proof, Streams, To, address::Port};
use kit::{Clock, Entropy, Tasks};
use model::{Namespace, SandboxId, Timestamp};
use routes::Table;
use ssh::{Guest, HostKey, Limits, Sandboxes};
use tokio::task::AbortHandle;

use crate::{
    config::{Settings, types::Listen},
    data_dir::{read_secret, write_secret},
    handover::sockets::Sockets,
};

/// Somebody logged in.
const LOGIN: Action = Action::new("sandbox.ssh");

/// The key in the file, made if there is none.
///
/// # Errors
/// If others could have read it, or it is no key.
pub(crate) fn ensure_host_key(path: &Path, entropy: &Entropy) -> anyhow::Result<HostKey> {
    if let Some(text) = read_secret(path)? {
        return HostKey::parse(&text)
            .with_context(|| format!("read {}: delete it to have a new one made", path.display()));
    }
    let mut seed = [0; 32];
    entropy.fill(&mut seed);
    let key = HostKey::from_seed(&seed);
    write_secret(path, &key.to_text()?)?;
    Ok(key)
}

/// What it stands on.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) streams: Streams,
    pub(crate) routes: Arc<Table>,
    pub(crate) keys: Keys,
    pub(crate) seal: Seal,
    pub(crate) audit: Audit,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Where it listens, and how clients know it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: String,
    /// What lets clients in.
    pub(crate) accepting: AbortHandle,
}

impl Door {
    /// Listens.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(crate) async fn open(
        self,
        listen: &Listen,
        sockets: &Sockets,
        key: HostKey,
        settings: &Settings,
        tasks: &Tasks,
    ) -> anyhow::Result<Opened> {
        let listener = sockets
            .listen("ssh.listen", listen)
            .await
            .with_context(|| {
                format!("listen for SSH on {listen} (choose another with --ssh-listen)")
            })?;
        let address = listener.local_addr().context("read the bound address")?;
        let fingerprint = key.fingerprint();
        let limits = Limits {
            connections: settings.ssh_max_connections.0,
            ..Limits::default()
        };
        let serving = ssh::serve(listener, key, Arc::new(self), limits, tasks.clone());
        Ok(Opened {
            address,
            fingerprint,
            accepting: tasks.spawn(serving).abort_handle(),
        })
    }
}

#[async_trait]
impl Sandboxes for Door {
    fn admit(&self, sandbox: &str, key: &str) -> Option<Guest> {
        // A cache that stopped would let in who was shut out since.
        if !self.keys.is_ready() {
            return None;
        }
        let route = self.routes.lookup(sandbox)?;
        let team = self.keys.find_team(route.owner.as_ref()?)?;
        let found = team.spec.ssh_keys.iter().find(|known| *known.key == *key)?;
        Some(Guest {
            sandbox: sandbox.into(),
            team: team.metadata.name.as_str().into(),
            key: (*found.name).into(),
        })
    }

    async fn enter(&self, guest: &Guest) -> io::Result<Box<dyn Any + Send>> {
        let (id, team) = names(guest)?;
        let actor = Actor {
            team: Some(team.clone()),
            key: None,
            user: Some((*guest.key).into()),
        };
        let now = Timestamp::from_micros(self.clock.wall_micros());
        let entry = Entry::new(now, actor, LOGIN).on(id);
        // Use of the sandbox as long as it is held, whatever the agent does with it.
        let held = self.streams.open_agent(&guest.sandbox, &team).await;
        let entry = match &held {
            Ok(_) => entry,
            Err(error) => entry.failed(word(*error)),
        };
        self.audit.record(entry).await;
        Ok(Box::new(held.map_err(io::Error::other)?))
    }

    fn agent(&self, guest: &Guest) -> io::Result<Client> {
        let (id, team) = names(guest)?;
        let token = self.seal.agent_token(&id);
        let (streams, sandbox) = (self.streams.clone(), guest.sandbox.clone());
        let client = Client::new(move || {
            let (streams, sandbox, team) = (streams.clone(), sandbox.clone(), team.clone());
            async move {
                let opened = streams.open_agent(&sandbox, &team).await;
                opened.map_err(io::Error::other)
            }
        });
        let token = wire::Secret::from(token.reveal().to_owned());
        client.with_token(&token).map_err(io::Error::other)
    }

    async fn port(&self, guest: &Guest, port: NonZeroU16) -> io::Result<Box<dyn Io>> {
        let (_, team) = names(guest)?;
        let (to, proof) = (To::Id(&guest.sandbox), Proof::Team(&team));
        let opened = self.streams.open(to, Port::from(port), proof).await;
        Ok(Box::new(opened.map_err(io::Error::other)?))
    }
}

fn names(guest: &Guest) -> io::Result<(SandboxId, Namespace)> {
    let id = SandboxId::new(&*guest.sandbox).map_err(io::Error::other)?;
    let team = Namespace::new(&*guest.team).map_err(io::Error::other)?;
    Ok((id, team))
}

/// Why somebody who logged in found nothing, in a word.
const fn word(error: OpenError) -> &'static str {
    match error {
        OpenError::NotFound => "not_found",
        OpenError::Denied => "denied",
        OpenError::PortClosed | OpenError::NoAnswer => "no_answer",
        OpenError::NotWoken => "not_woken",
        OpenError::TeamLimit => "team_limit",
        OpenError::TooMany => "too_many",
        OpenError::Busy => "busy",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_host_key_is_made_once_and_for_its_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ssh_host_ed25519_key");
        let entropy = Entropy::from_os();
        let first = ensure_host_key(&path, &entropy).unwrap();
        let again = ensure_host_key(&path, &entropy).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        write_secret(&path, "nonsense").unwrap();
        let refusal = ensure_host_key(&path, &entropy).unwrap_err();
        assert!(format!("{refusal:#}").contains("delete it"), "{refusal:#}");
    }
}
