//! Who is in use, and since when no more.
//!
//! A sandbox is in use while a request, stream or socket of it is open, not only when one begins; a
//! command runs in the stream that started it and counts by it. What the platform itself asks of a
//! sandbox does not come through a gateway and does not count; nor does a browser's question before
//! its request, which anybody may ask. That is inside all the same, and a sandbox that falls asleep
//! waits for it.
//!
//! One small record per delivery that ever had traffic. An open request holds it, so opening and
//! closing are a few atomic operations each. Who waits to be woken is *parked*: that is use too, but
//! nothing of it is inside. The record is also where what is inside hears that its sandbox may have
//! fallen asleep, and where whoever wants to put it to sleep hears that nothing is inside any more.
//!
//! Times are elapsed ones: a jump of the wall clock is no use, and takes none away. Records of
//! deliveries that are gone are swept.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use kit::Clock;
use model::{Epoch, SandboxId, Uid};
use routes::{Ear, Route, State, Table};
use tokio::sync::{Notify, futures::Notified};

/// No more can be opened: the record is about to be removed.
const SWEPT: u32 = u32::MAX;
/// The time of last use of what had none.
const NEVER: u64 = 0;

/// The use of all sandboxes. Clones share it.
#[derive(Clone, Debug)]
pub struct Activity(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    began: Duration,
    records: papaya::HashMap<Uid, Arc<Record>>,
}

#[derive(Debug)]
struct Record {
    id: SandboxId,
    epoch: Epoch,
    open: AtomicU32,
    parked: AtomicU32,
    /// Open, and no use; not among those above.
    unnoticed: AtomicU32,
    /// Elapsed microseconds at which one was last opened or closed.
    last: AtomicU64,
    /// Who waits for what is inside to end.
    draining: AtomicU32,
    drained: Notify,
    /// Rung when the route leads to nothing awake.
    closed: Notify,
}

/// The use of one delivery of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which delivery.
    pub epoch: Epoch,
    /// Requests, streams and sockets that are open now, with those that wait for it to wake.
    pub open: u32,
    /// How long ago one was last opened or closed.
    pub last: Duration,
}

/// The use of all deliveries at one moment of the gateway's clock.
#[derive(Clone, Debug)]
pub struct Noted {
    /// That moment.
    pub now: Duration,
    /// All that was used, as far as it is not forgotten.
    pub marks: Vec<Mark>,
}

/// The use of one delivery, in moments of the gateway's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Of which sandbox,
    pub uid: Uid,
    /// which delivery.
    pub epoch: Epoch,
    /// What is open now, with what waits for it to wake.
    pub open: u32,
    /// When one was last opened or closed.
    pub last: Duration,
}

/// Why something is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIn {
    /// As many are open as may be.
    TooMany,
    /// The sandbox was closed since its route was looked at. Look again.
    Closed,
}

/// Something open. Dropping it closes it.
#[derive(Debug)]
pub struct Held {
    record: Arc<Record>,
    shared: Arc<Shared>,
    kind: Kind,
}

/// How something open counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It is inside, and use.
    Inside,
    /// It is use, and waits outside.
    Parked,
    /// It is inside, and no use.
    Unnoticed,
}

impl Held {
    /// What was parked goes in.
    pub(crate) fn enter(&mut self) {
        if self.kind == Kind::Parked {
            self.kind = Kind::Inside;
            self.record.parked.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Completes when the route is told to lead to nothing awake, from this call on.
    pub(crate) fn closed(&self) -> Notified<'_> {
        self.record.closed.notified()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let record = &self.record;
        match self.kind {
            Kind::Unnoticed => {
                record.unnoticed.fetch_sub(1, Ordering::AcqRel);
            }
            Kind::Parked | Kind::Inside => {
                if self.kind == Kind::Parked {
                    record.parked.fetch_sub(1, Ordering::AcqRel);
                }
                record.last.fetch_max(self.shared.now(), Ordering::AcqRel);
                // After the time: who reads zero must not read an old time with it.
                record.open.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if record.draining.load(Ordering::Acquire) > 0 {
            record.drained.notify_waiters();
        }
    }
}

/// Counts one who waits for a sandbox to be drained.
struct Draining<'a>(&'a Record);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.draining.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Record {
    fn inside(&self) -> u32 {
        let used = match self.open.load(Ordering::Acquire) {
            SWEPT => 0,
            open => open.saturating_sub(self.parked.load(Ordering::Acquire)),
        };
        used.saturating_add(self.unnoticed.load(Ordering::Acquire))
    }

    /// What is known of it; nothing if it was never used.
    fn mark(&self, uid: Uid) -> Option<Mark> {
        let open = match self.open.load(Ordering::Acquire) {
            SWEPT => 0,
            open => open,
        };
        let last = self.last.load(Ordering::Acquire);
        (open > 0 || last != NEVER).then(|| Mark {
            uid,
            epoch: self.epoch,
            open,
            last: Duration::from_micros(last),
        })
    }
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Activity {
    /// Nothing was used yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let began = clock.monotonic();
        Self(Arc::new(Shared {
            clock,
            began,
            records: papaya::HashMap::new(),
        }))
    }

    /// How long use has been noted here.
    #[must_use]
    pub fn watched(&self) -> Duration {
        self.0.clock.monotonic().saturating_sub(self.0.began)
    }

    /// What is known of the latest delivery that had traffic here.
    #[must_use]
    pub fn of(&self, uid: Uid) -> Option<Use> {
        // After whatever the asker knows to have happened: see `let_in`.
        fence(Ordering::SeqCst);
        let mark = self.find(uid)?.mark(uid)?;
        let now = self.0.clock.monotonic();
        Some(Use {
            epoch: mark.epoch,
            open: mark.open,
            last: now.saturating_sub(mark.last),
        })
    }

    /// All that is known, for whoever is not in this process.
    #[must_use]
    pub fn noted(&self) -> Noted {
        // Before the marks: none of them is from after it but by as long as this takes.
        let now = self.0.clock.monotonic();
        fence(Ordering::SeqCst);
        let records = self.0.records.pin();
        let marks = records.iter().filter_map(|(uid, record)| record.mark(*uid));
        Noted {
            now,
            marks: marks.collect(),
        }
    }

    /// The same of one sandbox: of the latest delivery that had traffic here.
    #[must_use]
    pub fn noted_of(&self, uid: Uid) -> Noted {
        let now = self.0.clock.monotonic();
        // After whatever the asker knows to have happened: see `let_in`.
        fence(Ordering::SeqCst);
        let mark = self.find(uid).and_then(|record| record.mark(uid));
        Noted {
            now,
            marks: mark.into_iter().collect(),
        }
    }

    /// Waits until nothing is inside a delivery. What waits for it to wake is not.
    pub async fn drained(&self, uid: Uid, epoch: Epoch) {
        let Some(record) = self.find(uid).filter(|record| record.epoch == epoch) else {
            return;
        };
        record.draining.fetch_add(1, Ordering::AcqRel);
        let _draining = Draining(&record);
        loop {
            let one_less = record.drained.notified();
            if record.inside() == 0 {
                return;
            }
            one_less.await;
        }
    }

    /// Lets something into a delivery that was found to be open, as use or as none.
    ///
    /// Once it is counted, the route is looked at again. Who wants to end a sandbox that nobody uses
    /// closes its route everywhere and looks at the counts after that: of the two, one sees the other.
    ///
    /// # Errors
    /// If it is not let in.
    pub fn let_in(
        &self,
        routes: &Table,
        route: &Route,
        limit: u32,
        is_use: bool,
    ) -> Result<Held, NotIn> {
        let kind = match is_use {
            true => Kind::Inside,
            false => Kind::Unnoticed,
        };
        let (held, now) = self.count(routes, route, limit, kind)?;
        match now.state {
            State::Running => Ok(held),
            _ => Err(NotIn::Closed),
        }
    }

    /// Counts something as waiting for a delivery, whatever that does. The answer brings its route as
    /// it was seen after that: see [`Self::let_in`].
    ///
    /// # Errors
    /// If as many are open as may be, or there is no such delivery any more.
    pub fn let_wait(
        &self,
        routes: &Table,
        route: &Route,
        limit: u32,
    ) -> Result<(Held, Arc<Route>), NotIn> {
        self.count(routes, route, limit, Kind::Parked)
    }

    /// Counts first and looks then: no other order lets one of two see the other.
    fn count(
        &self,
        routes: &Table,
        route: &Route,
        limit: u32,
        kind: Kind,
    ) -> Result<(Held, Arc<Route>), NotIn> {
        let held = self.hold(route, limit, kind).ok_or(NotIn::TooMany)?;
        fence(Ordering::SeqCst);
        let id = route.id.as_ref().ok_or(NotIn::Closed)?;
        let now = routes.check(id, route.uid, route.epoch);
        Ok((held, now.map_err(|_| NotIn::Closed)?))
    }

    /// Opens something, unless as many are open as may be.
    #[must_use]
    pub fn open(&self, route: &Route, limit: u32) -> Option<Held> {
        self.hold(route, limit, Kind::Inside)
    }

    /// The same for what waits for its sandbox to wake.
    #[must_use]
    pub fn park(&self, route: &Route, limit: u32) -> Option<Held> {
        self.hold(route, limit, Kind::Parked)
    }

    fn hold(&self, route: &Route, limit: u32, kind: Kind) -> Option<Held> {
        let id = route.id.as_ref()?;
        loop {
            let record = self.record(route, id);
            let count = match kind {
                Kind::Inside | Kind::Parked => &record.open,
                Kind::Unnoticed => &record.unnoticed,
            };
            let opened = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                (open < limit.min(SWEPT - 1)).then_some(open + 1)
            });
            match opened {
                Ok(_) => {
                    if kind == Kind::Parked {
                        record.parked.fetch_add(1, Ordering::AcqRel);
                    }
                    if kind != Kind::Unnoticed {
                        record.last.fetch_max(self.0.now(), Ordering::AcqRel);
                    }
                    return Some(Held {
                        record,
                        shared: self.0.clone(),
                        kind,
                    });
                }
                // It is being removed: the next look makes a new one.
                Err(SWEPT) => std::hint::spin_loop(),
                Err(_) => return None,
            }
        }
    }

    fn find(&self, uid: Uid) -> Option<Arc<Record>> {
        self.0.records.pin().get(&uid).cloned()
    }

    fn record(&self, route: &Route, id: &SandboxId) -> Arc<Record> {
        let records = self.0.records.pin();
        if let Some(record) = records.get(&route.uid)
            && record.epoch == route.epoch
        {
            return record.clone();
        }
        let new = Arc::new(Record {
            id: id.clone(),
            epoch: route.epoch,
            open: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            unnoticed: AtomicU32::new(0),
            last: AtomicU64::new(NEVER),
            draining: AtomicU32::new(0),
            drained: Notify::new(),
            closed: Notify::new(),
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
        let records = self.0.records.pin();
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

impl Ear for Activity {
    fn closed(&self, route: &Route) {
        if let Some(record) = self.find(route.uid) {
            record.closed.notify_waiters();
        }
    }

    fn resynced(&self) {
        for record in self.0.records.pin().values() {
            record.closed.notify_waiters();
        }
    }
}
