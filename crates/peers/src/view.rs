//! What is known of one gateway, and of those that are gone: pure.

use std::{collections::HashMap, time::Duration};

use model::{Epoch, Uid};

use crate::frame::{Frame, Seen, Used};

/// What is known of a delivery's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is in use.
    InUse,
    /// It is not.
    Quiet {
        /// How long ago use ended, if any was seen.
        last: Option<Duration>,
        /// For how long it was watched.
        watched: Duration,
    },
    /// Some gateway cannot be asked.
    Unknown,
}

/// One gateway, as of its last frame.
#[derive(Debug, Default)]
pub(crate) struct View {
    process: Option<u64>,
    now: Duration,
    watched: Duration,
    used: HashMap<Uid, Used>,
    /// Frames of a step that is not complete.
    pending: Vec<Frame>,
    /// Whether the next step tells everything.
    is_new: bool,
    /// When the last complete step came, on the clock of whoever keeps this.
    heard: Option<Duration>,
}

impl View {
    /// Takes a frame that came at `at`. If another process speaks from now on, what the last one had
    /// seen goes to `past`.
    pub(crate) fn take(&mut self, frame: Frame, at: Duration, past: &mut Past) {
        if self.process != Some(frame.process) {
            past.take(self, at);
            *self = Self {
                process: Some(frame.process),
                ..Self::default()
            };
        }
        let more = frame.more;
        self.pending.push(frame);
        if more {
            return;
        }
        if std::mem::take(&mut self.is_new) {
            self.used.clear();
        }
        for frame in std::mem::take(&mut self.pending) {
            self.now = Duration::from_micros(frame.now);
            self.watched = Duration::from_micros(frame.watched);
            for uid in frame.gone {
                self.used.remove(&uid);
            }
            for used in frame.used {
                self.note(used);
            }
        }
        self.heard = Some(at);
    }

    /// The stream has ended: until another one has brought everything, nothing is known.
    pub(crate) fn cut(&mut self) {
        self.pending.clear();
        self.heard = None;
    }

    /// A stream begins. Its first step tells everything.
    pub(crate) fn begin(&mut self) {
        self.pending.clear();
        self.is_new = true;
    }

    /// Takes what a gateway said of one sandbox after it had heard of a version.
    pub(crate) fn take_seen(&mut self, seen: &Seen) {
        let Some(used) = seen.used else { return };
        if self.note(used) {
            self.now = self.now.max(Duration::from_micros(seen.now));
        }
    }

    /// Frames and answers come by ways of their own: the older of two is dropped, whichever comes last.
    fn note(&mut self, used: Used) -> bool {
        let newer = |known: &Used| (known.epoch, known.last) <= (used.epoch, used.last);
        let is_newer = self.used.get(&used.uid).is_none_or(newer);
        if is_newer {
            self.used.insert(used.uid, used);
        }
        is_newer
    }

    /// What is known at `at`, if it was heard of within `patience`.
    pub(crate) fn of(&self, uid: Uid, epoch: Epoch, at: Duration, patience: Duration) -> Known {
        let recent = |heard: Duration| at.saturating_sub(heard) <= patience;
        if !self.heard.is_some_and(recent) {
            return Known::Unknown;
        }
        let used = self.used.get(&uid).filter(|used| used.epoch == epoch);
        match used {
            Some(used) if used.open > 0 => Known::InUse,
            // As of the last frame: nobody vouches for the moment since.
            used => Known::Quiet {
                last: used.map(|used| self.now.saturating_sub(Duration::from_micros(used.last))),
                watched: self.watched,
            },
        }
    }
}

/// How long it is remembered what gateways that are gone have seen.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// What gateways that are gone have seen.
#[derive(Debug, Default)]
pub(crate) struct Past(HashMap<Uid, (Epoch, Duration)>);

impl Past {
    /// A gateway is gone at `at`: what was open there has ended.
    pub(crate) fn take(&mut self, view: &View, at: Duration) {
        let heard = view.heard.unwrap_or(at);
        for used in view.used.values() {
            let ago = view.now.saturating_sub(Duration::from_micros(used.last));
            let ended = match used.open {
                0 => heard.saturating_sub(ago),
                _ => at,
            };
            let entry = self.0.entry(used.uid).or_insert((used.epoch, ended));
            *entry = (*entry).max((used.epoch, ended));
        }
        self.0
            .retain(|_, (_, ended)| at.saturating_sub(*ended) < REMEMBERED);
    }

    /// How long before `at` they last saw use.
    pub(crate) fn of(&self, uid: Uid, epoch: Epoch, at: Duration) -> Option<Duration> {
        let (of, ended) = self.0.get(&uid)?;
        (*of == epoch).then(|| at.saturating_sub(*ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);
    const ONE: Uid = Uid::from_random(1);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn used(open: u32, last: u64) -> Used {
        Used {
            uid: ONE,
            epoch: Epoch(1),
            open,
            last: last * 1_000_000,
        }
    }

    fn frame(process: u64, now: u64, used: Vec<Used>) -> Frame {
        Frame {
            process,
            now: now * 1_000_000,
            watched: now * 1_000_000,
            used,
            ..Frame::default()
        }
    }

    fn quiet(last: Option<u64>, watched: u64) -> Known {
        Known::Quiet {
            last: last.map(secs),
            watched: secs(watched),
        }
    }

    #[test]
    fn a_gateway_is_known_as_of_its_last_frame_and_not_at_all_once_that_is_old() {
        let (mut view, mut past) = (View::default(), Past::default());
        assert_eq!(view.of(ONE, Epoch(1), secs(0), PATIENCE), Known::Unknown);
        view.take(frame(7, 50, vec![used(1, 49)]), secs(1000), &mut past);
        assert_eq!(view.of(ONE, Epoch(1), secs(1001), PATIENCE), Known::InUse);
        // Of another delivery nothing was seen.
        assert_eq!(
            view.of(ONE, Epoch(2), secs(1001), PATIENCE),
            quiet(None, 50)
        );
        view.take(frame(7, 60, vec![used(0, 55)]), secs(1010), &mut past);
        assert_eq!(
            view.of(ONE, Epoch(1), secs(1012), PATIENCE),
            quiet(Some(5), 60)
        );
        assert_eq!(view.of(ONE, Epoch(1), secs(1014), PATIENCE), Known::Unknown);
    }

    #[test]
    fn a_step_counts_once_it_is_complete() {
        let (mut view, mut past) = (View::default(), Past::default());
        let first = Frame {
            more: true,
            ..frame(7, 50, vec![])
        };
        view.take(first.clone(), secs(10), &mut past);
        assert_eq!(view.of(ONE, Epoch(1), secs(10), PATIENCE), Known::Unknown);
        view.take(frame(7, 50, vec![used(2, 50)]), secs(10), &mut past);
        assert_eq!(view.of(ONE, Epoch(1), secs(10), PATIENCE), Known::InUse);
        // What was cut off in the middle is no part of what comes next, and that tells everything.
        view.take(first, secs(11), &mut past);
        view.cut();
        assert_eq!(view.of(ONE, Epoch(1), secs(11), PATIENCE), Known::Unknown);
        view.begin();
        view.take(frame(7, 52, vec![]), secs(12), &mut past);
        assert_eq!(view.of(ONE, Epoch(1), secs(12), PATIENCE), quiet(None, 52));
    }

    #[test]
    fn what_a_gateway_saw_outlives_it_and_what_was_open_ended_with_it() {
        let (mut view, mut past) = (View::default(), Past::default());
        view.take(frame(7, 50, vec![used(0, 45)]), secs(100), &mut past);
        // Another process at the same place knows nothing of that.
        view.take(frame(8, 1, vec![]), secs(110), &mut past);
        assert_eq!(view.of(ONE, Epoch(1), secs(110), PATIENCE), quiet(None, 1));
        assert_eq!(past.of(ONE, Epoch(1), secs(110)), Some(secs(15)));
        view.take(frame(8, 2, vec![used(3, 2)]), secs(111), &mut past);
        past.take(&view, secs(120));
        assert_eq!(past.of(ONE, Epoch(1), secs(121)), Some(secs(1)));
        assert_eq!(past.of(ONE, Epoch(2), secs(121)), None);
    }

    #[test]
    fn who_has_heard_of_a_closing_says_who_is_inside_after_it() {
        let (mut view, mut past) = (View::default(), Past::default());
        view.take(frame(7, 50, vec![]), secs(100), &mut past);
        let seen = Seen {
            seen: true,
            now: 51_000_000,
            used: Some(used(1, 51)),
        };
        view.take_seen(&seen);
        assert_eq!(view.of(ONE, Epoch(1), secs(100), PATIENCE), Known::InUse);
    }
}
