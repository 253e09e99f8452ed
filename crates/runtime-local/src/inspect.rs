//! Looking: inspect and list.

use std::{fs::File, io::Read as _};

use ::runtime::Observed;
use model::Uid;

use crate::{
    engine::Engine,
    record::Place,
    workload::{Process, Slot, UNKNOWN_EXIT, Workload},
};

impl Engine {
    /// What is under a uid now.
    pub(crate) fn inspect(&self, uid: Uid) -> Observed {
        let slot = self.slot(uid);
        let seen = slot.and_then(|slot| self.look_now(uid, &slot));
        seen.unwrap_or(Observed::Absent)
    }

    /// The same, unless it had to wait or to note that the sandbox has ended.
    pub(crate) fn inspect_at_once(&self, uid: Uid) -> Option<Observed> {
        let Some(slot) = self.slot(uid) else {
            return Some(Observed::Absent);
        };
        let mut seen = slot.seen.try_lock()?;
        let Some(workload) = seen.as_mut() else {
            return Some(Observed::Absent);
        };
        if workload.process.as_ref().is_some_and(Process::has_ended) {
            return None;
        }
        Some(self.observe(uid, workload))
    }

    /// Everything that is there.
    pub(crate) fn list(&self) -> Vec<(Uid, Observed)> {
        let all = self.all_slots().into_iter();
        all.filter_map(|(uid, slot)| Some((uid, self.look_now(uid, &slot)?)))
            .collect()
    }

    fn look_now(&self, uid: Uid, slot: &Slot) -> Option<Observed> {
        self.refresh(uid, slot);
        let mut seen = slot.seen.lock();
        Some(self.observe(uid, seen.as_mut()?))
    }

    fn observe(&self, uid: Uid, workload: &mut Workload) -> Observed {
        if workload.process.is_some() {
            workload.record.oom_kills = self.cgroup(uid).oom_kills();
        }
        workload.observed()
    }
}

/// The exit code that is shown: what the kernel said, else what the first process has left. The
/// file is the sandbox's to write, so it is read as little as possible and believed only where
/// nothing better is known.
pub(crate) fn exit_code(place: &Place, known: i32) -> i32 {
    if known != UNKNOWN_EXIT {
        return known;
    }
    let mut text = String::new();
    let read = File::open(place.exit_file()).map(|file| file.take(16).read_to_string(&mut text));
    match read {
        Ok(Ok(_)) => text.trim().parse().unwrap_or(UNKNOWN_EXIT),
        Ok(Err(_)) | Err(_) => UNKNOWN_EXIT,
    }
}
