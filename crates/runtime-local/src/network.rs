//! What a sandbox may reach.

use ::runtime::{Fence, RuntimeError};
use model::sandbox::NetworkPolicy;

use crate::{engine::Engine, error::Result};

impl Engine {
    /// Changes what a sandbox may reach.
    pub(crate) fn set_network(&self, fence: Fence, policy: Option<NetworkPolicy>) -> Result<()> {
        self.perform(fence, |slot, there| {
            let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            let mut record = workload.record;
            record.network = policy.map(Box::new);
            self.place(fence.uid).write_record(&record, true)?;
            if let Some(workload) = slot.seen.lock().as_mut() {
                workload.record = record;
            }
            Ok(())
        })
    }
}
