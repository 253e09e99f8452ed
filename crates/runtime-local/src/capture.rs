//! Keeping the writable layer of a frozen sandbox.

use ::runtime::{Captured, Fence, RuntimeError};

use crate::{engine::Engine, error::Result, layer};

impl Engine {
    /// Writes the layer as an archive under its digest; it is durable when this returns.
    pub(crate) fn capture(&self, fence: Fence) -> Result<Captured> {
        self.perform(fence, |_, there| {
            let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            workload.alive(fence.uid)?;
            if !workload.frozen {
                return Err(RuntimeError::WrongState {
                    uid: fence.uid,
                    state: "running",
                    needs: "freeze it",
                }
                .into());
            }
            let place = self.place(fence.uid);
            let layers = self.data.join("layers/sha256");
            let name = format!("{}.new", fence.uid);
            let (digest, size) = layer::capture(
                &place.upper(),
                workload.record.range(),
                &layers,
                &name,
                self.options.max_layer_bytes,
            )?;
            Ok(Captured {
                digest,
                size,
                parent: workload.record.layer,
            })
        })
    }
}
