//! What a node keeps of an image.

use std::{io, path::Path};

use futures_util::future::BoxFuture;
use images::Blobs;
use model::Digest;

use crate::containerd::Containerd;

/// The content that containerd has.
#[derive(Debug)]
pub(super) struct OfNode(pub(super) Containerd);

impl Blobs for OfNode {
    fn copy<'a>(&'a self, blob: &'a Digest, to: &'a Path) -> BoxFuture<'a, io::Result<bool>> {
        Box::pin(async move { self.0.copy(blob, to).await.map_err(io::Error::other) })
    }
}
