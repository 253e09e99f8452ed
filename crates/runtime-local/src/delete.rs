//! Ending a sandbox and removing everything of it.

use std::{fs, io};

use ::runtime::Fence;
use model::Uid;

use crate::{
    engine::Engine,
    error::{Doing as _, Result},
    options::Step,
    ranges::Range,
    record::{Record, Stage},
    tree,
    workload::Process,
};

impl Engine {
    /// Removes a sandbox, whole or half-made; nothing to do if there is none.
    pub(crate) fn delete(&self, fence: Fence) -> Result<()> {
        self.perform(fence, |slot, there| {
            let Some(workload) = there else {
                return Ok(());
            };
            if let Some(seen) = slot.seen.lock().as_mut() {
                seen.record.stage = Stage::Removing;
            }
            let place = self.place(fence.uid);
            if place.directory().exists() {
                let removing = Record {
                    stage: Stage::Removing,
                    ..workload.record.clone()
                };
                place.write_record(&removing, false)?;
            }
            self.options.reached(Step::Removing);
            let range = workload.record.range();
            self.destroy(fence.uid, workload.process.as_ref(), Some(range))?;
            *slot.seen.lock() = None;
            Ok(())
        })
    }

    /// Kills and removes; the note that something is there goes last, and only then are its user
    /// ids free.
    pub(crate) fn destroy(
        &self,
        uid: Uid,
        process: Option<&Process>,
        range: Option<Range>,
    ) -> Result<()> {
        self.clear(uid, process)?;
        self.options.reached(Step::Emptied);
        let place = self.place(uid);
        match fs::remove_dir_all(place.directory()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).doing("remove the sandbox's directory");
            }
            Ok(()) | Err(_) => {}
        }
        if let Some(range) = range {
            self.ranges.give_back(range);
        }
        Ok(())
    }

    /// Kills every process and removes the cgroups and the writable layer; the record stays.
    pub(crate) fn clear(&self, uid: Uid, process: Option<&Process>) -> Result<()> {
        let cgroup = self.cgroup(uid);
        cgroup.kill()?;
        if let Some(process) = process {
            process.wait()?;
        }
        self.disconnect(uid)?;
        self.options.reached(Step::Killed);
        cgroup.remove()?;
        self.options.reached(Step::Ungrouped);
        let place = self.place(uid);
        place.remove_process()?;
        place.remove_mark()?;
        for path in [place.upper(), place.work(), place.inside(), place.bundle()] {
            tree::remove(&path, &place.parking()).doing(format!("remove {}", path.display()))?;
        }
        self.disks.remove(uid, &place)?;
        match fs::remove_file(place.exit_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing("remove the exit file")
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
