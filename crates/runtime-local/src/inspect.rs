//! Looking: inspect and list.

use std::{fs::File, io::Read as _};

use ::runtime::Observed;
use model::Uid;

use crate::{
    engine::Engine,
    record::Place,
    workload::{Slot, UNKNOWN_EXIT},
};

impl Engine {
    /// What is under a uid now.
    pub(crate) fn inspect(&self, uid: Uid) -> Observed {
        let slot = self.slot(uid);
        let seen = slot.and_then(|slot| self.look_now(uid, &slot));
        seen.unwrap_or(Observed::Absent)
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
        let workload = seen.as_mut()?;
        if workload.process.is_some() {
            workload.record.oom_kills = self.cgroup(uid).oom_kills();
        }
        Some(workload.observed())
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
