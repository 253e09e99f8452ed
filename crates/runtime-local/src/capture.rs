//! Keeping the writable layer of a frozen sandbox, or of one whose host has restarted.

use std::fs;

use ::runtime::{Captured, Fence, RuntimeError};

use images::{
    ImageError,
    layer::{Ids, capture},
};
use model::Digest;

use crate::{
    engine::Engine,
    error::{Doing as _, Result, impossible, is_full},
};

impl Engine {
    /// Writes the layer as an archive under its digest; it is durable when this returns.
    pub(crate) fn capture(&self, fence: Fence) -> Result<Captured> {
        self.perform(fence, |_, there| {
            let workload = there.ok_or(RuntimeError::Absent(fence.uid))?;
            let cut = workload.observed().is_cut();
            if !cut {
                workload.alive(fence.uid)?;
            }
            if !workload.frozen && !cut {
                return Err(RuntimeError::WrongState {
                    uid: fence.uid,
                    state: "running",
                    needs: "freeze it",
                }
                .into());
            }
            let place = self.place(fence.uid);
            // Its host has crashed before its files were on disk: the layer has them all.
            if cut
                && let Some(layer) = &workload.record.layer
                && place.open_mark().is_some()
            {
                tracing::warn!(uid = %fence.uid, "a sandbox goes back to what it was resumed from");
                let size =
                    fs::metadata(self.layer_file(layer)).doing("find the sandbox's layer")?;
                return Ok(Captured {
                    digest: layer.clone(),
                    size: size.len(),
                    parent: workload.record.layer.clone(),
                    published: None,
                });
            }
            let name = format!("{}.new", fence.uid);
            let ids = Ids::From(workload.record.first_uid);
            let origin = self.origin_now(workload.record.origin.as_ref())?;
            let note = |digest: &Digest| self.images.write_note(digest, origin.as_ref());
            let most = self.options.max_layer_bytes;
            let captured = capture(&place.upper(), ids, &self.images.blobs(), &name, most, note);
            let (digest, size) = captured.map_err(|error| match error {
                ImageError::Uncapturable(reason) => impossible("snapshot", reason),
                ImageError::System { ref source, .. } if is_full(source) => {
                    RuntimeError::NoRoom(error.to_string().into()).into()
                }
                other => other.into(),
            })?;
            Ok(Captured {
                digest,
                size,
                parent: workload.record.layer,
                published: None,
            })
        })
    }
}
