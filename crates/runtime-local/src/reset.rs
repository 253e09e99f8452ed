//! Starting over: reset, and the swap of an image.

use ::runtime::{Facts, Fence, RuntimeError};
use model::{Epoch, StringMap};

use crate::{
    engine::Engine,
    error::{Doing as _, Result},
    record::Stage,
    rootfs::Image,
    workload::{Slot, Workload},
};

impl Engine {
    /// Brings a sandbox back to how it was before its first delivery: other processes, another
    /// writable layer, other namespaces and cgroups; only its user ids stay.
    pub(crate) fn reset(&self, fence: Fence) -> Result<()> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            let image = self.find_image_of(&workload.record)?;
            workload.record.layer = None;
            workload.record.network = None;
            workload.ledger.epoch = Epoch::default();
            self.restart(fence, slot, workload, &image)?;
            let renewed = slot.seen.lock().clone();
            let renewed = renewed.ok_or(RuntimeError::Absent(fence.uid))?;
            match self.unlike_fresh(fence.uid, &renewed)? {
                None => Ok(()),
                Some(difference) => Err(RuntimeError::NotClean(difference.into()).into()),
            }
        })
    }

    /// Starts over with another image, armed for the same delivery.
    pub(crate) fn swap_images(&self, fence: Fence, images: &StringMap) -> Result<Facts> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            let image = self.find_image(images)?;
            workload.record.images = images.clone();
            workload.record.layer = None;
            self.restart(fence, slot, workload, &image)
        })
    }

    fn restart(
        &self,
        fence: Fence,
        slot: &Slot,
        mut workload: Workload,
        image: &Image,
    ) -> Result<Facts> {
        let uid = fence.uid;
        let place = self.place(uid);
        workload.record.stage = Stage::Restarting;
        place.write_record(&workload.record, false)?;
        if let Some(seen) = slot.seen.lock().as_mut() {
            seen.record.stage = Stage::Restarting;
        }
        // Frozen or not: nothing of it runs on between here and its end.
        let arming = place.inside().join("arming.json");
        let arming = (workload.ledger.epoch != Epoch::default())
            .then(|| std::fs::read(&arming).ok())
            .flatten();
        let renewed = self.clear(uid, workload.process.as_ref()).and_then(|()| {
            if place.upper().exists() || self.cgroup(uid).is_populated()? {
                let left = RuntimeError::NotClean("its files or processes are still there".into());
                return Err(left.into());
            }
            workload.record.container_id = self.new_container_id();
            place.write_ledger(workload.ledger)?;
            let next = self.launch(uid, &place, workload.record.clone(), workload.ledger, image)?;
            if let Some(arming) = arming {
                let path = place.inside().join("arming.json");
                crate::record::replace(&path, &arming, 0o600).doing("keep the sandbox's arming")?;
            }
            if workload.ledger.epoch == Epoch::default() {
                self.disarm(uid)?;
            } else {
                self.arm_again(uid, &next)?;
            }
            Ok(next)
        });
        match renewed {
            Ok(next) => {
                let facts = next.facts();
                *slot.seen.lock() = Some(next);
                Ok(facts)
            }
            Err(error) => {
                // It can only be removed now.
                if let Some(seen) = slot.seen.lock().as_mut() {
                    seen.record.stage = Stage::Removing;
                    seen.process = None;
                }
                Err(error)
            }
        }
    }
}
