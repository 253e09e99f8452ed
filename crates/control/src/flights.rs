//! Calls that last as long as somebody else likes: a sandbox's own commands, a registry that does
//! not answer.
//!
//! ```text
//!  turn: begins it ──a moment──▶ leaves …                    next turn: takes the outcome
//!                      flight ···················▶ over ──asks for a turn──┘
//! ```
//!
//! There are few workers, and all teams share them: a turn that waited for such a call would keep
//! everybody else's from being taken. So the call goes on by itself. It belongs to the loop and ends
//! with it; it is about one thing, and whoever wants another thing of the same key drops it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kit::Tasks;
use model::Key;
use parking_lot::Mutex;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{control::Work, queue::WorkQueue};

/// How long a turn waits for what it begins: most is over by then.
const PATIENCE: Duration = Duration::from_millis(5);

/// What flights of a loop need.
#[derive(Clone, Debug)]
pub(crate) struct Crew {
    pub(crate) tasks: Tasks,
    pub(crate) queue: Arc<WorkQueue<Work, Key>>,
    /// Cancelled when everything is dropped where it is.
    pub(crate) kill: CancellationToken,
}

/// Calls under way, at most one for each key: what each is about (`A`), and what comes of it (`T`).
#[derive(Debug)]
pub(crate) struct Flights<A, T> {
    crew: Crew,
    work: fn(Key) -> Work,
    under_way: Mutex<BTreeMap<Key, Flight<A, T>>>,
}

#[derive(Debug)]
struct Flight<A, T> {
    about: A,
    outcome: oneshot::Receiver<T>,
    /// Nobody waits for what was dropped.
    _wanted: DropGuard,
}

impl<A: PartialEq, T: Send + 'static> Flights<A, T> {
    /// `work` is the turn that an end asks for.
    pub(crate) fn new(crew: Crew, work: fn(Key) -> Work) -> Self {
        Self {
            crew,
            work,
            under_way: Mutex::default(),
        }
    }

    /// What came of the call about this; none while it is under way. It is made if it was not.
    pub(crate) async fn outcome(
        &self,
        key: &Key,
        about: A,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        {
            let mut under_way = self.under_way.lock();
            let mut flight = under_way.remove(key).filter(|flight| flight.about == about);
            match flight.as_mut().map(|flight| flight.outcome.try_recv()) {
                Some(Ok(outcome)) => return Some(outcome),
                Some(Err(TryRecvError::Empty)) => {
                    under_way.extend(flight.map(|flight| (key.clone(), flight)));
                    return None;
                }
                // It never began, or its task is gone.
                Some(Err(TryRecvError::Closed)) | None => {}
            }
        }
        let mut call = Box::pin(call);
        if let Ok(outcome) = timeout(PATIENCE, &mut call).await {
            return Some(outcome);
        }
        let (tell, outcome) = oneshot::channel();
        let unwanted = CancellationToken::new();
        let flight = Flight {
            about,
            outcome,
            _wanted: unwanted.clone().drop_guard(),
        };
        self.under_way.lock().insert(key.clone(), flight);
        let Crew { tasks, queue, kill } = self.crew.clone();
        let (stop, work) = (tasks.stopping().clone(), (self.work)(key.clone()));
        tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                () = kill.cancelled() => return,
                () = stop.cancelled() => return,
                () = unwanted.cancelled() => return,
                outcome = call => outcome,
            };
            // Told before the turn that takes it; if nobody wants it any more, that turn finds out.
            let _ = tell.send(outcome);
            queue.add(work, Instant::now());
        });
        None
    }

    /// Drops what is under way for a key.
    pub(crate) fn forget(&self, key: &Key) {
        self.under_way.lock().remove(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.lock().is_empty()
    }
}
