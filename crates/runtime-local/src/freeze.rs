//! Stopping every process where it is, and letting them go on.

use ::runtime::{Fence, RuntimeError};

use crate::{engine::Engine, error::Result};

impl Engine {
    /// Stops every process.
    pub(crate) fn freeze(&self, fence: Fence) -> Result<()> {
        self.set_frozen(fence, true)
    }

    /// Lets them go on.
    pub(crate) fn thaw(&self, fence: Fence) -> Result<()> {
        self.set_frozen(fence, false)
    }

    fn set_frozen(&self, fence: Fence, frozen: bool) -> Result<()> {
        self.perform(fence, |slot, there| {
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
        })
    }
}
