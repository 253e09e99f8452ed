//! Transfers under way: pulls, pushes, captured layers that are fetched.
//!
//! A transfer belongs to the store, not to whoever asked for it: everybody who asks for the same
//! meanwhile joins it, whoever leaves cancels nothing, and a failure reaches all. A create that
//! ran out of time and is tried again finds the pull where it is by then.

use std::{collections::BTreeMap, future::Future, str::FromStr as _, sync::Arc};

use kit::Tasks;
use model::template::ImagePullPolicy;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    digest::digest_of,
    error::{ImageError, Result},
    reference::Reference,
    registry::{self, Credentials, Login, Reach},
    store::{BASE, Pinned, Store},
};

/// How far a transfer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of all layers; zero until they are known.
    pub total: u64,
    /// Bytes that have arrived, of each layer or blob.
    pub arrived: Vec<u64>,
    /// The layer that is being unpacked.
    pub unpacking: Option<usize>,
}

impl Progress {
    /// Bytes that have arrived.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.arrived.iter().sum()
    }
}

/// Where a transfer says how far it is.
#[derive(Debug)]
pub(crate) struct Tell(watch::Sender<Progress>);

impl Tell {
    pub(crate) fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.0.send_modify(change);
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

/// The transfers of one kind that are under way, by what is transferred.
#[derive(Debug)]
pub(crate) struct Flights<T>(Arc<Mutex<BTreeMap<Box<str>, Flight<T>>>>);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A transfer that was started or joined.
#[derive(Clone, Debug)]
pub struct Flight<T> {
    name: Box<str>,
    progress: watch::Receiver<Progress>,
    outcome: watch::Receiver<Option<Result<T>>>,
}

impl<T: Clone> Flight<T> {
    /// Waits until it is over. `tell` is called whenever it has got further.
    ///
    /// # Errors
    /// What the transfer failed with.
    pub async fn wait(mut self, mut tell: impl FnMut(&Progress)) -> Result<T> {
        loop {
            // Read in this order, so that the last word about the progress is told.
            let outcome = self.outcome.borrow_and_update().clone();
            tell(&self.progress.borrow_and_update());
            if let Some(outcome) = outcome {
                return outcome;
            }
            let ended = tokio::select! {
                biased;
                ended = self.outcome.changed() => ended,
                changed = self.progress.changed() => match changed {
                    Ok(()) => Ok(()),
                    // Its task is ending: what it said last is still to be read.
                    Err(_) => self.outcome.changed().await,
                },
            };
            if ended.is_err() {
                return Err(ImageError::Stopped(self.name));
            }
        }
    }
}

impl Store {
    /// Starts a transfer, or joins the one of that key that is under way. It goes on whoever leaves.
    pub(crate) fn fly<T, F>(
        &self,
        flights: &Flights<T>,
        key: &str,
        work: impl FnOnce(Tasks, Arc<Tell>) -> F,
    ) -> Flight<T>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let name: Box<str> = key.into();
        let mut under_way = flights.0.lock();
        if let Some(flight) = under_way.get(&name) {
            return flight.clone();
        }
        let (told, progress) = watch::channel(Progress::default());
        let (sender, outcome) = watch::channel(None);
        let flight = Flight {
            name: name.clone(),
            progress,
            outcome,
        };
        under_way.insert(name.clone(), flight.clone());
        drop(under_way);
        let remove = Remove(Arc::clone(&flights.0), name.clone());
        let tasks = &self.inner().tasks;
        let stopping = tasks.stopping().clone();
        let tell = Arc::new(Tell(told));
        // Connections end with the transfer that made them.
        let work = work(tasks.child(), Arc::clone(&tell));
        tasks.spawn(async move {
            let _remove = remove;
            let outcome = tokio::select! {
                biased;
                () = stopping.cancelled() => Err(ImageError::Stopped(name)),
                outcome = work => outcome,
            };
            // Before it is removed: whoever comes late finds the one or the other.
            let _ = sender.send_replace(Some(outcome));
            drop(tell);
        });
        flight
    }

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

    /// What a name leads to now, for somebody who may choose it, and may not have all that is here.
    ///
    /// # Errors
    /// If there is no such image, or it cannot be had.
    pub async fn ensure_chosen(&self, name: &str) -> Result<Arc<Pinned>> {
        let is_fixed = Reference::from_str(name).is_ok_and(|r| r.digest().is_some());
        match self.find_chosen(name)? {
            Some(here) if is_fixed || name == BASE => Ok(Arc::new(here)),
            Some(_) | None => self.pull(name)?.wait(|_| {}).await,
        }
    }

    /// Starts a pull, or joins the one of that name that is under way.
    ///
    /// # Errors
    /// If the text does not name an image.
    pub fn pull(&self, name: &str) -> Result<Flight<Arc<Pinned>>> {
        let reference: Reference = name.parse()?;
        let name = reference.to_string();
        let (store, key) = (self.clone(), name.clone());
        Ok(
            self.fly(&self.inner().flights, &name, |tasks, tell| async move {
                let how = (&Login::Configured, Reach::Anywhere);
                let pulled = registry::pull(&store, &reference, &tasks, how, &tell).await?;
                store.inner().name_served(&key, &pulled.share())?;
                Ok(Arc::new(pulled))
            }),
        )
    }
}

impl Store {
    /// Starts a pull with somebody's own credentials, or as nobody, or joins one with the same. The
    /// image gets no name: who may not pull it must not find it by one.
    ///
    /// # Errors
    /// If the text does not name an image.
    pub fn pull_as(
        &self,
        name: &str,
        who: Option<Credentials>,
        reach: Reach,
    ) -> Result<Flight<Arc<Pinned>>> {
        let reference: Reference = name.parse()?;
        let store = self.clone();
        let (key, login) = match who {
            Some(who) => {
                let proof = digest_of(who.basic().as_bytes());
                (
                    format!("{reference} as {proof}, {reach:?}"),
                    Login::Given(who),
                )
            }
            None => (format!("{reference} as nobody, {reach:?}"), Login::Nobody),
        };
        let flights = &self.inner().flights;
        Ok(self.fly(flights, &key, |tasks, tell| async move {
            let how = (&login, reach);
            let pulled = registry::pull(&store, &reference, &tasks, how, &tell).await?;
            Ok(Arc::new(pulled))
        }))
    }
}

/// Takes a flight off the list, however it ends.
struct Remove<T>(Arc<Mutex<BTreeMap<Box<str>, Flight<T>>>>, Box<str>);

impl<T> Drop for Remove<T> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}
