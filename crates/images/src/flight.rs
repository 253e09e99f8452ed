//! Pulls under way.
//!
//! A pull belongs to the store, not to whoever asked for it: everybody who asks for the same name
//! meanwhile joins it, whoever leaves cancels nothing, and a failure reaches all. A create that
//! ran out of time and is tried again finds the pull where it is by then.

use std::{collections::BTreeMap, str::FromStr as _, sync::Arc};

use model::template::ImagePullPolicy;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    error::{ImageError, Result},
    reference::Reference,
    registry,
    store::{BASE, Pinned, Store},
};

/// How far a pull is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of all layers; zero until they are known.
    pub total: u64,
    /// Bytes that are here, of each layer.
    pub arrived: Vec<u64>,
    /// The layer that is being unpacked.
    pub unpacking: Option<usize>,
}

impl Progress {
    /// Bytes that are here.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.arrived.iter().sum()
    }
}

type Outcome = Result<Arc<Pinned>>;

#[derive(Debug, Default)]
struct Status {
    progress: Progress,
    outcome: Option<Outcome>,
}

/// Where a pull says how far it is.
#[derive(Debug)]
pub(crate) struct Tell(watch::Sender<Status>);

impl Tell {
    pub(crate) fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.0.send_modify(|status| change(&mut status.progress));
    }

    pub(crate) fn begin(&self, layers: impl Iterator<Item = u64>) {
        let sizes: Vec<u64> = layers.collect();
        self.change(|progress| {
            progress.total = sizes.iter().sum();
            progress.arrived = vec![0; sizes.len()];
        });
    }

    pub(crate) fn arrived(&self, layer: usize, bytes: u64) {
        self.change(|progress| {
            if let Some(arrived) = progress.arrived.get_mut(layer) {
                *arrived = bytes;
            }
        });
    }
}

/// The pulls under way, by the full name of what is pulled.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<BTreeMap<Box<str>, watch::Receiver<Status>>>);

/// A pull that was started or joined.
#[derive(Debug)]
pub struct Flight {
    name: Box<str>,
    status: watch::Receiver<Status>,
}

impl Flight {
    /// Waits until it is over. `tell` is called whenever it has got further.
    ///
    /// # Errors
    /// What the pull failed with.
    pub async fn wait(mut self, mut tell: impl FnMut(&Progress)) -> Outcome {
        loop {
            let outcome = {
                let status = self.status.borrow_and_update();
                tell(&status.progress);
                status.outcome.clone()
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            if self.status.changed().await.is_err() {
                return Err(ImageError::Stopped(self.name));
            }
        }
    }
}

impl Store {
    /// The image of a name, pulled if the policy says so. It stays on disk while the answer is
    /// held.
    ///
    /// # Errors
    /// If there is no such image, or it cannot be had.
    pub async fn ensure(&self, name: &str, policy: ImagePullPolicy) -> Result<Arc<Pinned>> {
        let here = self.find(name)?.map(Arc::new);
        let is_fixed = Reference::from_str(name).is_ok_and(|r| r.digest().is_some());
        match (policy, here) {
            (ImagePullPolicy::Never, None) => Err(ImageError::NotPresent(name.into())),
            (ImagePullPolicy::Never | ImagePullPolicy::IfNotPresent, Some(here)) => Ok(here),
            // What is named by its digest cannot have changed.
            (ImagePullPolicy::Always, Some(here)) if is_fixed || name == BASE => Ok(here),
            (ImagePullPolicy::IfNotPresent | ImagePullPolicy::Always, _) => {
                self.pull(name)?.wait(|_| {}).await
            }
        }
    }

    /// Starts a pull, or joins the one of that name that is under way.
    ///
    /// # Errors
    /// If the text does not name an image.
    pub fn pull(&self, name: &str) -> Result<Flight> {
        let reference: Reference = name.parse()?;
        let name: Box<str> = reference.to_string().into();
        let mut flights = self.inner().flights.0.lock();
        if let Some(status) = flights.get(&name) {
            let status = status.clone();
            return Ok(Flight { name, status });
        }
        let (sender, status) = watch::channel(Status::default());
        flights.insert(name.clone(), status.clone());
        drop(flights);
        let (store, key) = (self.clone(), name.clone());
        let tasks = self.inner().tasks.clone();
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            let _remove = Remove(store.clone(), key.clone());
            let tell = Tell(sender);
            let outcome = tokio::select! {
                biased;
                () = stopping.cancelled() => Err(ImageError::Stopped(key.clone())),
                outcome = store.perform(&reference, &key, &tell) => outcome,
            };
            // Before it is removed: whoever comes late finds the one or the other.
            tell.0.send_modify(|status| status.outcome = Some(outcome));
        });
        Ok(Flight { name, status })
    }

    async fn perform(&self, reference: &Reference, name: &str, tell: &Tell) -> Outcome {
        // Connections end with the pull that made them.
        let tasks = self.inner().tasks.child();
        let pulled = registry::pull(self, reference, &tasks, tell).await?;
        self.inner().name(name, &pulled.share())?;
        Ok(Arc::new(pulled))
    }
}

/// Takes a flight off the list, however it ends.
struct Remove(Store, Box<str>);

impl Drop for Remove {
    fn drop(&mut self) {
        self.0.inner().flights.0.lock().remove(&self.1);
    }
}
