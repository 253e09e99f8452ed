//! What is under way in sandboxes, and goes on between calls.

use std::{collections::BTreeMap, time::Duration};

use ::runtime::RuntimeError;
use kit::Tasks;
use model::{Epoch, Uid};
use parking_lot::Mutex;
use tokio::sync::watch;

/// How long one call waits.
const MOMENT: Duration = Duration::from_secs(1);

type Outcome<T> = Option<Result<T, RuntimeError>>;

/// Something under way in one container for one delivery, or over.
#[derive(Clone, Debug)]
pub struct Flight<T> {
    /// The container: whatever starts over has another.
    pub container_id: Box<str>,
    epoch: Epoch,
    outcome: watch::Receiver<Outcome<T>>,
}

impl<T: Clone> Flight<T> {
    /// Waits a moment for the end; none if it is not over then.
    ///
    /// # Errors
    /// As it ended.
    pub async fn wait(mut self) -> Result<Option<T>, RuntimeError> {
        let waited = tokio::time::timeout(MOMENT, self.outcome.wait_for(Option::is_some)).await;
        match waited {
            Err(_) => Ok(None),
            Ok(Ok(outcome)) => outcome.clone().transpose(),
            Ok(Err(_)) => Err(RuntimeError::Failed("it has ended unseen".into())),
        }
    }

    /// Whether asking again would hear the same.
    fn stands(&self) -> bool {
        let over = self.outcome.has_changed().is_err();
        match &*self.outcome.borrow() {
            None => !over,
            Some(Ok(_)) => true,
            Some(Err(error)) => !error.is_retryable(),
        }
    }
}

/// What is under way, by sandbox.
#[derive(Debug)]
pub struct Flights<T>(Mutex<BTreeMap<Uid, Flight<T>>>);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// Finds what is under way in a container for a delivery, or begins it. It ends with the tasks,
    /// and when it is forgotten or begun anew.
    pub fn join<F>(
        &self,
        tasks: &Tasks,
        uid: Uid,
        container_id: &str,
        epoch: Epoch,
        begin: impl FnOnce() -> F,
    ) -> Flight<T>
    where
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        let mut all = self.0.lock();
        if let Some(there) = standing(&all, uid, container_id, epoch) {
            return there;
        }
        let (tell, outcome) = watch::channel(None);
        let flight = Flight {
            container_id: container_id.into(),
            epoch,
            outcome,
        };
        all.insert(uid, flight.clone());
        let (stop, work) = (tasks.stopping().clone(), begin());
        tasks.spawn(async move {
            let outcome = tokio::select! {
                outcome = work => outcome,
                () = stop.cancelled() => return,
                // Nobody holds it any more: the sandbox is gone, or has started over.
                () = tell.closed() => return,
            };
            tell.send_replace(Some(outcome));
        });
        flight
    }

    /// What is under way in a container for a delivery, or over for good.
    pub fn find(&self, uid: Uid, container_id: &str, epoch: Epoch) -> Option<Flight<T>> {
        standing(&self.0.lock(), uid, container_id, epoch)
    }

    /// Forgets what is no longer there.
    pub fn forget(&self, uid: Uid) {
        self.0.lock().remove(&uid);
    }
}

fn standing<T: Clone>(
    all: &BTreeMap<Uid, Flight<T>>,
    uid: Uid,
    container_id: &str,
    epoch: Epoch,
) -> Option<Flight<T>> {
    let there = all.get(&uid)?;
    let is_it = *there.container_id == *container_id && there.epoch == epoch && there.stands();
    is_it.then(|| there.clone())
}
