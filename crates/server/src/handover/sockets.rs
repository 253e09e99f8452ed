//! The listeners of a process.
//!
//! Each is known by the setting it is for and what that says: one that was told to listen elsewhere
//! since listens there, and what it no longer wants is closed once it serves.

use std::{collections::BTreeMap, io, net::TcpListener};

use parking_lot::Mutex;

use crate::config::types::Listen;

/// Listeners by what they are for.
type ByKey = BTreeMap<String, Vec<TcpListener>>;

/// The listeners of a process. One that is kept here is open even when nobody accepts.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// Those of before that nobody has asked for yet.
    given: Mutex<ByKey>,
    /// Those in use, once more.
    kept: Mutex<ByKey>,
}

impl Sockets {
    /// With listeners that another one had.
    pub(crate) fn given(given: ByKey) -> Self {
        Self {
            given: Mutex::new(given),
            kept: Mutex::default(),
        }
    }

    /// Listens for a setting.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(crate) async fn listen(
        &self,
        setting: &str,
        at: &Listen,
    ) -> io::Result<tokio::net::TcpListener> {
        let listener = match self.find(setting, at).pop() {
            Some(there) => {
                there.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(there)?
            }
            None => tokio::net::TcpListener::bind((at.host.as_str(), at.port)).await?,
        };
        let once_more = socket_of(&listener)?;
        self.keep(setting, at, vec![once_more]);
        Ok(listener)
    }

    /// Listens for a setting before anybody asks, if nothing does yet.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub(super) async fn prepare(&self, setting: &str, at: &Listen) -> io::Result<()> {
        let key = key(setting, at);
        if self.given.lock().contains_key(&key) {
            return Ok(());
        }
        let listener = tokio::net::TcpListener::bind((at.host.as_str(), at.port)).await?;
        self.given.lock().insert(key, vec![listener.into_std()?]);
        Ok(())
    }

    /// How many there are for a setting that nobody has asked for yet.
    pub(crate) fn waiting(&self, setting: &str, at: &Listen) -> usize {
        self.given.lock().get(&key(setting, at)).map_or(0, Vec::len)
    }

    /// Has listeners for a setting before anybody asks.
    pub(crate) fn give(&self, setting: &str, at: &Listen, listeners: Vec<TcpListener>) {
        self.given.lock().insert(key(setting, at), listeners);
    }

    /// What listens for a setting already.
    pub(crate) fn find(&self, setting: &str, at: &Listen) -> Vec<TcpListener> {
        let found = self.given.lock().remove(&key(setting, at));
        found.unwrap_or_default()
    }

    /// Keeps what listens for a setting.
    pub(crate) fn keep(&self, setting: &str, at: &Listen, listeners: Vec<TcpListener>) {
        self.kept.lock().insert(key(setting, at), listeners);
    }

    /// Closes what nobody has asked for.
    pub(crate) fn close_unused(&self) {
        self.given.lock().clear();
    }

    /// Closes all.
    pub(crate) fn close(&self) {
        self.close_unused();
        self.kept.lock().clear();
    }

    /// The same for another start in this process.
    pub(crate) fn renew(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        self.given.lock().extend(kept);
    }

    /// All that are in use.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub(super) fn share(&self) -> io::Result<Vec<(String, Vec<TcpListener>)>> {
        let kept = self.kept.lock();
        let shared = kept.iter().map(|(key, listeners)| {
            let listeners: io::Result<_> = listeners.iter().map(TcpListener::try_clone).collect();
            Ok((key.clone(), listeners?))
        });
        shared.collect()
    }
}

fn key(setting: &str, at: &Listen) -> String {
    format!("{setting} {at}")
}

fn socket_of(listener: &tokio::net::TcpListener) -> io::Result<TcpListener> {
    use std::os::fd::AsFd as _;
    Ok(listener.as_fd().try_clone_to_owned()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Listen {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_setting_gets_the_listener_that_was_there_for_it_and_no_other() {
        let first = Sockets::default();
        let any = at("127.0.0.1:0");
        let listener = first.listen("listen", &any).await.unwrap();
        let address = listener.local_addr().unwrap();
        let next = Sockets::given(first.share().unwrap().into_iter().collect());
        let other = next.listen("e2b.listen", &any).await.unwrap();
        assert_ne!(other.local_addr().unwrap(), address);
        let moved = next.listen("listen", &at("localhost:0")).await.unwrap();
        assert_ne!(moved.local_addr().unwrap(), address);
        let same = next.listen("listen", &any).await.unwrap();
        assert_eq!(same.local_addr().unwrap(), address);
    }

    #[tokio::test]
    async fn who_comes_while_nobody_accepts_is_served_by_the_next() {
        let sockets = Sockets::default();
        let any = at("127.0.0.1:0");
        let listener = sockets.listen("listen", &any).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = tokio::net::TcpStream::connect(address).await.unwrap();
        sockets.renew();
        let again = sockets.listen("listen", &any).await.unwrap();
        let (_, peer) = again.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        drop(again);
        sockets.close();
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }
}
