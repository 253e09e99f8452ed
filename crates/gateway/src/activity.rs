//! Who is in use, and who was when.
//!
//! A sandbox is in use while a request, stream or socket of it is open, not only when one begins.
//! One small record per delivery that ever had traffic; an open request holds it, so opening and
//! closing are one atomic addition each. Records of deliveries that are gone are swept.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU32, Ordering},
};

use model::{Epoch, SandboxId, Uid};
use routes::{Route, Table};

/// No more can be opened: the record is about to be removed.
const SWEPT: u32 = u32::MAX;

/// The use of all sandboxes.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<papaya::HashMap<Uid, Arc<Record>>>);

#[derive(Debug)]
struct Record {
    id: SandboxId,
    epoch: Epoch,
    open: AtomicU32,
    last: AtomicI64,
}

/// The use of one delivery of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which delivery.
    pub epoch: Epoch,
    /// Requests, streams and sockets that are open now.
    pub open: u32,
    /// When one was last opened or closed: microseconds since 1970, exact to a second.
    pub last_micros: i64,
}

/// Something open. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Held(Arc<Record>);

impl Held {
    /// It ends now.
    pub(crate) fn end(self, wall_micros: i64) {
        self.0.last.fetch_max(wall_micros, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // After the time: who reads zero must not read an old time with it.
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

impl Activity {
    /// What is known of the latest delivery that had traffic here.
    #[must_use]
    pub fn of(&self, uid: Uid) -> Option<Use> {
        let record = self.0.pin().get(&uid).cloned()?;
        let open = record.open.load(Ordering::Acquire);
        Some(Use {
            epoch: record.epoch,
            open: if open == SWEPT { 0 } else { open },
            last_micros: record.last.load(Ordering::Relaxed),
        })
    }

    /// Opens something, unless as many are open as may be.
    pub(crate) fn open(&self, route: &Route, limit: u32, wall_micros: i64) -> Option<Held> {
        let id = route.id.as_ref()?;
        loop {
            let record = self.record(route, id);
            let opened = record
                .open
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                    (open < limit.min(SWEPT - 1)).then_some(open + 1)
                });
            match opened {
                Ok(_) => {
                    record.last.fetch_max(wall_micros, Ordering::Relaxed);
                    return Some(Held(record));
                }
                // It is being removed: the next look makes a new one.
                Err(SWEPT) => std::hint::spin_loop(),
                Err(_) => return None,
            }
        }
    }

    fn record(&self, route: &Route, id: &SandboxId) -> Arc<Record> {
        let records = self.0.pin();
        if let Some(record) = records.get(&route.uid)
            && record.epoch == route.epoch
        {
            return record.clone();
        }
        let new = Arc::new(Record {
            id: id.clone(),
            epoch: route.epoch,
            open: AtomicU32::new(0),
            last: AtomicI64::new(i64::MIN),
        });
        let kept = records.update_or_insert(
            route.uid,
            |old| {
                // A request that is late must not put an old delivery in the place of a new one.
                if old.epoch >= new.epoch {
                    old.clone()
                } else {
                    new.clone()
                }
            },
            new.clone(),
        );
        if kept.epoch == route.epoch {
            kept.clone()
        } else {
            new
        }
    }

    /// Forgets what is not in use and leads nowhere any more.
    pub(crate) fn sweep(&self, routes: &Table) {
        if !routes.synced() {
            return;
        }
        let records = self.0.pin();
        for (uid, record) in &records {
            let is_gone = routes.check(&record.id, *uid, record.epoch).is_err();
            if is_gone
                && record
                    .open
                    .compare_exchange(0, SWEPT, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
            {
                let _ = records.remove_if(uid, |_, there| Arc::ptr_eq(there, record));
            }
        }
    }
}
