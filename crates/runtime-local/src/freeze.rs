//! Stopping every process where it is, and letting them go on.

use ::runtime::{Fence, RuntimeError};

use crate::{
    engine::Engine,
    error::Result,
    workload::{Slot, Workload},
};

impl Engine {
    /// Stops every process.
    pub(crate) fn freeze(&self, fence: Fence) -> Result<()> {
        self.perform(fence, |slot, there| {
            self.set_frozen(fence, slot, there, true)
        })
    }

    /// Lets them go on.
    pub(crate) fn thaw(&self, fence: Fence) -> Result<()> {
        self.perform(fence, |slot, there| {
            self.set_frozen(fence, slot, there, false)
        })
    }

    /// Lets them go on, unless that had to wait for another call. It never blocks.
    pub(crate) fn thaw_at_once(&self, fence: Fence) -> Option<Result<()>> {
        self.perform_at_once(fence, |slot, there| {
            self.set_frozen(fence, slot, there, false)
        })
    }

    fn set_frozen(
        &self,
        fence: Fence,
        slot: &Slot,
        there: Option<Workload>,
        frozen: bool,
    ) -> Result<()> {
        let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
        workload.alive(fence.uid)?;
        let cgroup = self.cgroup(fence.uid);
        if frozen {
            cgroup.freeze()?;
            failpoints::reached(failpoints::Step::Frozen);
        } else {
            cgroup.thaw()?;
            failpoints::reached(failpoints::Step::Thawed);
        }
        if let Some(workload) = slot.seen.lock().as_mut() {
            workload.frozen = frozen && workload.process.is_some();
        }
        Ok(())
    }
}
