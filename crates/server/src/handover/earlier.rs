//! Who is in use in a server that was replaced, as the one that replaced it knows.
//!
//! Such a server lets nobody in any more. So what it has said is at most too much, and one that is gone
//! has left nobody inside: their use ended when it went.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gateway::activity::Noted;
use kit::{Clock, Tasks};
use model::{Epoch, Uid};
use plan::idle::Activity;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::line::Used;

/// How often use is told.
const EVERY: Duration = Duration::from_millis(250);

/// A server that was replaced. Clones know the same.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    seen: watch::Receiver<Seen>,
    clock: Arc<dyn Clock>,
}

/// What is known of it. Moments are those of the own clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Nothing is known before it has told.
    has_told: bool,
    /// Something of what it told was not understood: what is known is not all.
    is_unclear: bool,
    is_gone: bool,
    used: BTreeMap<Uid, Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    epoch: Epoch,
    open: u32,
    last: Duration,
}

impl Seen {
    /// It told this just now, and more or not.
    pub(super) fn hear(&mut self, used: &[Used], more: bool, now: Duration) {
        let marks = used.iter().map(|one| {
            let mark = Mark {
                epoch: one.epoch,
                open: one.open,
                last: now.saturating_sub(Duration::from_micros(one.ago)),
            };
            (one.uid, mark)
        });
        self.used.extend(marks);
        self.has_told |= !more && !self.is_unclear;
    }

    /// It told what was not understood. Until it is gone, nobody can say who is in use.
    pub(super) fn mishear(&mut self) {
        (self.has_told, self.is_unclear) = (false, true);
    }

    /// It is gone, and with it all that was inside.
    pub(super) fn go(&mut self, now: Duration) {
        self.has_told = true;
        self.is_gone = true;
        for mark in self.used.values_mut().filter(|mark| mark.open > 0) {
            (mark.open, mark.last) = (0, now);
        }
    }
}

impl Earlier {
    /// One that tells by this.
    pub(super) const fn new(seen: watch::Receiver<Seen>, clock: Arc<dyn Clock>) -> Self {
        Self { seen, clock }
    }

    /// What it knows of the use of a delivery.
    pub(crate) fn activity(&self, uid: Uid, epoch: Epoch) -> Activity {
        let seen = self.seen.borrow();
        if !seen.has_told {
            return Activity::Unknown;
        }
        match seen.used.get(&uid).filter(|mark| mark.epoch == epoch) {
            Some(mark) if mark.open > 0 => Activity::InUse,
            mark => Activity::Quiet {
                last: mark.map(|mark| self.clock.monotonic().saturating_sub(mark.last)),
                watched: Duration::MAX,
            },
        }
    }

    /// Waits until nothing is inside a delivery there.
    pub(crate) async fn drained(&self, uid: Uid, epoch: Epoch) {
        let is_inside = |seen: &Seen| {
            let mark = seen.used.get(&uid).filter(|mark| mark.epoch == epoch);
            !seen.has_told || mark.is_some_and(|mark| mark.open > 0)
        };
        // Who tells no more is gone, and has said so.
        let _ = self
            .seen
            .clone()
            .wait_for(|seen| !is_inside(seen))
            .await
            .map(drop);
    }

    /// Waits until it is gone.
    pub(crate) async fn gone(&self) {
        let _ = self.seen.clone().wait_for(|seen| seen.is_gone).await;
    }
}

/// What a server that is being replaced tells of itself, and of one that it replaced.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) activity: gateway::Activity,
    pub(crate) earlier: Option<Earlier>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Teller {
    /// Tells whoever wants to know, until `over`.
    pub(crate) fn tell(self, over: CancellationToken, tasks: &Tasks) -> Earlier {
        let (sender, seen) = watch::channel(Seen::default());
        let earlier = Earlier::new(seen, Arc::clone(&self.clock));
        tasks.spawn(async move {
            loop {
                if let Some(seen) = self.look() {
                    sender.send_replace(seen);
                }
                tokio::select! {
                    biased;
                    () = over.cancelled() => break,
                    () = sleep(EVERY) => {}
                }
            }
            if let Some(earlier) = &self.earlier {
                earlier.gone().await;
                // It knows by now who was in use there, if it did not before.
                if let Some(seen) = self.look() {
                    sender.send_replace(seen);
                }
            }
            let now = self.clock.monotonic();
            sender.send_modify(|seen| seen.go(now));
        });
        earlier
    }

    /// Nothing as long as the one before has not told.
    fn look(&self) -> Option<Seen> {
        let Noted { marks, .. } = self.activity.noted();
        let own = marks.into_iter().map(|mark| {
            let known = Mark {
                epoch: mark.epoch,
                open: mark.open,
                last: mark.last,
            };
            (mark.uid, known)
        });
        let mut used: BTreeMap<Uid, Mark> = own.collect();
        if let Some(earlier) = &self.earlier {
            let before = earlier.seen.borrow();
            if !before.has_told {
                return None;
            }
            for (uid, mark) in &before.used {
                let known = used.entry(*uid).or_insert(*mark);
                if known.epoch < mark.epoch {
                    *known = *mark;
                } else if known.epoch == mark.epoch {
                    known.open = known.open.saturating_add(mark.open);
                    known.last = known.last.max(mark.last);
                }
            }
        }
        Some(Seen {
            has_told: true,
            used,
            ..Seen::default()
        })
    }
}

impl Earlier {
    /// Waits for news of it: what to tell another who was told this, and whether that is the last of it.
    pub(super) async fn news(&mut self, told: &mut BTreeMap<Uid, Mark>) -> (Vec<Used>, bool) {
        // Who tells no more is gone, and has said so.
        let _ = self.seen.changed().await;
        let now = self.clock.monotonic();
        let seen = self.seen.borrow_and_update();
        let mut news = Vec::new();
        let mut tell = |uid: Uid, mark: &Mark| {
            let ago = now.saturating_sub(mark.last).as_micros();
            news.push(Used {
                uid,
                epoch: mark.epoch,
                open: mark.open,
                ago: u64::try_from(ago).unwrap_or(u64::MAX),
            });
        };
        for (uid, mark) in &seen.used {
            if told.insert(*uid, *mark) != Some(*mark) {
                tell(*uid, mark);
            }
        }
        // What is forgotten is not in use.
        for (uid, mark) in told.extract_if(.., |uid, _| !seen.used.contains_key(uid)) {
            tell(
                uid,
                &Mark {
                    open: 0,
                    last: now,
                    ..mark
                },
            );
        }
        (news, seen.is_gone)
    }
}

#[cfg(test)]
mod tests {
    use kit::SystemClock;

    use super::*;

    const EPOCH: Epoch = Epoch(3);

    fn one(open: u32) -> Used {
        Used {
            uid: Uid::from_random(7),
            epoch: EPOCH,
            open,
            ago: 1_000_000,
        }
    }

    #[tokio::test]
    async fn until_it_has_told_everything_is_in_use_and_once_it_is_gone_nothing_is() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (sender, seen) = watch::channel(Seen::default());
        let earlier = Earlier::new(seen, Arc::clone(&clock));
        let uid = one(1).uid;
        assert_eq!(earlier.activity(uid, EPOCH), Activity::Unknown);
        sender.send_modify(|seen| seen.hear(&[one(2)], true, clock.monotonic()));
        assert_eq!(earlier.activity(uid, EPOCH), Activity::Unknown);
        sender.send_modify(|seen| seen.hear(&[], false, clock.monotonic()));
        assert_eq!(earlier.activity(uid, EPOCH), Activity::InUse);
        let other = earlier.activity(uid, Epoch(4));
        assert!(matches!(other, Activity::Quiet { last: None, .. }));
        let waiting = earlier.clone();
        let waits = async move { waiting.drained(uid, EPOCH).await };
        let goes = async {
            tokio::task::yield_now().await;
            sender.send_modify(|seen| seen.go(clock.monotonic()));
        };
        tokio::join!(waits, goes);
        let after = earlier.activity(uid, EPOCH);
        assert!(
            matches!(after, Activity::Quiet { last: Some(last), .. } if last < Duration::from_secs(1)),
            "its use ended when it went: {after:?}"
        );
    }
}
