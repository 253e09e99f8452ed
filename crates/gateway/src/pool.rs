//! Connections to sandboxes that wait for another request: one pool per thread, no locks.
//!
//! A connection is kept under (uid, epoch, port) and given out for nothing else. One that its peer
//! closes wakes the thread's reaper, which lets it go at once: a socket of the gateway's must not
//! hold on to the network namespace of a sandbox that is gone.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    task::{Wake, Waker},
};

use model::{Epoch, SandboxId, Uid};
use routes::{Route, Table};
use tokio::sync::Notify;

use crate::{address::Port, options::Limits, upstream::Upstream};

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) uid: Uid,
    pub(crate) epoch: Epoch,
    pub(crate) port: Port,
}

impl Key {
    pub(crate) fn of(route: &Route, port: Port) -> Self {
        Self {
            uid: route.uid,
            epoch: route.epoch,
            port,
        }
    }
}

/// Folds what it is given. Uids are random and made by the platform: nobody can choose them so that
/// they collide.
#[derive(Debug, Default)]
struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u128(&mut self, n: u128) {
        self.write_u64((n >> 64) as u64 ^ n as u64);
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// The connections of one port.
#[derive(Debug)]
struct Shelf {
    id: SandboxId,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    upstream: Upstream,
    since: u32,
}

#[derive(Debug, Default)]
struct Shelves {
    by_key: HashMap<Key, Shelf, BuildHasherDefault<Folding>>,
    count: usize,
}

/// One thread's kept connections.
#[derive(Debug)]
pub(crate) struct Pool {
    shelves: RefCell<Shelves>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// Rung by the connections that have something to say.
#[derive(Debug, Default)]
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

impl Pool {
    pub(crate) fn new() -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            shelves: RefCell::default(),
            waker: Waker::from(bell.clone()),
            bell,
        }
    }

    /// A kept connection whose peer is still there and has said nothing.
    pub(crate) fn take(&self, key: Key) -> Option<Upstream> {
        loop {
            let kept = {
                let mut shelves = self.shelves.borrow_mut();
                let kept = shelves.by_key.get_mut(&key)?.kept.pop()?;
                shelves.count -= 1;
                kept
            };
            if kept.upstream.is_fresh() {
                return Some(kept.upstream);
            }
        }
    }

    /// Keeps a connection that has done its work; lets any other go.
    pub(crate) fn put(
        &self,
        key: Key,
        id: &SandboxId,
        upstream: Upstream,
        now: u32,
        limits: &Limits,
    ) {
        if !upstream.rests(&self.waker) {
            return;
        }
        let mut shelves = self.shelves.borrow_mut();
        if shelves.count >= limits.kept {
            return;
        }
        let shelf = shelves.by_key.entry(key).or_insert_with(|| Shelf {
            id: id.clone(),
            kept: Vec::new(),
        });
        if shelf.kept.len() < limits.kept_per_port {
            shelf.kept.push(Kept {
                upstream,
                since: now,
            });
            shelves.count += 1;
        }
    }

    /// Waits until some kept connection has something to say.
    pub(crate) async fn rung(&self) {
        self.bell.0.notified().await;
    }

    /// Lets go of connections that have ended or were kept for too long, and of all whose route
    /// leads to another delivery or nowhere.
    pub(crate) fn sweep(&self, routes: &Table, oldest: u32) {
        let mut gone = Vec::new();
        let mut shelves = self.shelves.borrow_mut();
        let mut count = 0;
        shelves.by_key.retain(|key, shelf| {
            let leads = routes.check(&shelf.id, key.uid, key.epoch).is_ok();
            let mut at = 0;
            while let Some(kept) = shelf.kept.get_mut(at) {
                if leads && kept.since >= oldest && kept.upstream.rests(&self.waker) {
                    at += 1;
                } else {
                    gone.push(shelf.kept.remove(at));
                }
            }
            count += shelf.kept.len();
            !shelf.kept.is_empty()
        });
        shelves.count = count;
        drop(shelves);
        // Closed after the shelves are free again.
        drop(gone);
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.shelves.borrow().count
    }
}
