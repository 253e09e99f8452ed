//! Starting over: reset, and the swap of an image.

use ::runtime::{Facts, Fence, Outfit, RuntimeError};
use model::{Epoch, StringMap, Uid};

use crate::{
    engine::Engine,
    error::{Doing as _, Result},
    record::Stage,
    rootfs::Image,
    workload::{Slot, Workload},
};

impl Engine {
    /// Brings a sandbox back to how it was before its first delivery: other processes, another
    /// writable layer, other namespaces and cgroups; only its user ids stay. Its image is the one
    /// that it idles on, if that is said: the proof is by how a fresh one on that image looks.
    pub(crate) fn reset(&self, fence: Fence, to: Option<&Outfit>) -> Result<()> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            let image = match to {
                Some(to) if to.images != workload.record.images => self.find_image(&to.images)?,
                Some(_) | None => self.find_image_of(&workload.record)?,
            };
            if let Some(to) = to {
                workload.dress(to);
            }
            workload.record.layer = None;
            workload.record.network = None;
            self.restart(fence, slot, workload, &image, For::Nobody)
                .map(drop)
        })
    }

    /// Starts over with another image, armed for the same delivery.
    pub(crate) fn swap_images(&self, fence: Fence, to: &Outfit) -> Result<Facts> {
        self.perform(fence, |slot, there| {
            let mut workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            let image = self.find_image(&to.images)?;
            workload.dress(to);
            workload.record.layer = None;
            self.restart(fence, slot, workload, &image, For::TheSame)
        })
    }

    /// Whether a sandbox has these images.
    pub(crate) fn wears(&self, uid: Uid, images: &StringMap) -> bool {
        let slot = self.slot(uid);
        slot.is_some_and(|slot| {
            let seen = slot.seen.lock();
            seen.as_ref().is_some_and(|it| it.record.images == *images)
        })
    }

    fn restart(
        &self,
        fence: Fence,
        slot: &Slot,
        mut workload: Workload,
        image: &Image,
        whom: For,
    ) -> Result<Facts> {
        let uid = fence.uid;
        let place = self.place(uid);
        // What still runs for the old container must not go on in the new one.
        self.hooks.forget(uid);
        self.boots.forget(uid);
        workload.record.stage = Stage::Restarting;
        place.write_record(&workload.record, false)?;
        if let Some(seen) = slot.seen.lock().as_mut() {
            seen.record.stage = Stage::Restarting;
        }
        let stays = whom == For::TheSame && workload.ledger.epoch != Epoch::default();
        // Frozen or not: nothing of it runs on between here and its end.
        let arming = place.inside().join("arming.json");
        let arming = stays.then(|| std::fs::read(&arming).ok()).flatten();
        let mut launched = None;
        let renewed = self.clear(uid, workload.process.as_ref()).and_then(|()| {
            if place.upper().exists() || self.cgroup(uid).is_populated()? {
                let left = RuntimeError::NotClean("its files or processes are still there".into());
                return Err(left.into());
            }
            // Before anything runs again: who dies after this must not go on with the settings of
            // an owner who is gone.
            if !stays {
                self.disarm(uid)?;
            }
            workload.record.container_id = self.new_container_id();
            // Of the last delivery, until it is proven that nothing of that is left.
            let next = self.launch(uid, &place, workload.record.clone(), workload.ledger, image)?;
            let next = launched.insert(next);
            if let Some(arming) = arming {
                let path = place.inside().join("arming.json");
                crate::record::replace(&path, &arming, 0o600).doing("keep the sandbox's arming")?;
            }
            match whom {
                For::TheSame if stays => self.arm_again(uid, next)?,
                For::TheSame => {}
                For::Nobody => {
                    if let Some(difference) = self.unlike_fresh(uid, next)? {
                        return Err(RuntimeError::NotClean(difference.into()).into());
                    }
                    next.ledger.epoch = Epoch::default();
                    place.write_ledger(next.ledger)?;
                }
            }
            Ok(next.facts())
        });
        let mut seen = slot.seen.lock();
        match (&renewed, launched) {
            (Ok(_), Some(next)) => *seen = Some(next),
            // It can only be removed now.
            (_, launched) => {
                if let Some(seen) = seen.as_mut() {
                    seen.record.stage = Stage::Removing;
                    seen.process = launched.and_then(|next| next.process);
                }
            }
        }
        renewed
    }
}

impl Workload {
    fn dress(&mut self, outfit: &Outfit) {
        self.record.images = outfit.images.clone();
        self.record.boot = outfit.boot.clone();
    }
}

/// For whom a sandbox starts over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// For who has it.
    TheSame,
    /// For nobody yet: only if nothing of who had it is left.
    Nobody,
}
