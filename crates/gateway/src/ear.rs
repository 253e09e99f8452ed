//! Who is woken by a connection to a sandbox.
//!
//! A connection has one waker for its whole life, whoever drives it: the reactor and everything
//! inside the connection can keep it, and passing the connection on is one store. It is deaf while
//! its own driver makes a move that would wake it for nothing: waking a task that runs already
//! costs it a whole extra turn.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use parking_lot::Mutex;

/// The waker of a connection.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    whom: Mutex<Option<Waker>>,
    has_heard: AtomicBool,
    is_deaf: AtomicBool,
}

impl Ear {
    /// From here on wakes this one.
    pub(crate) fn listen_for(&self, waker: &Waker) {
        let mut whom = self.whom.lock();
        if !whom.as_ref().is_some_and(|whom| whom.will_wake(waker)) {
            *whom = Some(waker.clone());
        }
        drop(whom);
        self.has_heard.store(false, Ordering::Relaxed);
    }

    /// Whether it was woken since it last listened for somebody.
    pub(crate) fn has_heard(&self) -> bool {
        self.has_heard.load(Ordering::Relaxed)
    }

    /// Does something that wakes nobody.
    pub(crate) fn deaf<T>(&self, act: impl FnOnce() -> T) -> T {
        self.is_deaf.store(true, Ordering::Relaxed);
        let done = act();
        self.is_deaf.store(false, Ordering::Relaxed);
        done
    }
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // All of a connection happens on one thread, so the flag is never another's.
        if self.is_deaf.load(Ordering::Relaxed) {
            return;
        }
        self.has_heard.store(true, Ordering::Relaxed);
        if let Some(waker) = &*self.whom.lock() {
            waker.wake_by_ref();
        }
    }
}
