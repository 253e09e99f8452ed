//! Blobs: files that are named by their content.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::PathBuf,
};

use model::Digest;

use super::{Hold, Inner, files::sync_directory, new_name};
use crate::{
    digest::{Hashing, digest_of, finish, hex, verify},
    error::{Doing as _, ImageError, Result},
};

impl Inner {
    /// Where a blob is or would be.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.layers.join("sha256").join(hex(digest))
    }

    /// Where a blob is while it is downloaded.
    pub(crate) fn partial(&self, digest: &Digest) -> PathBuf {
        self.layers.join("partial").join(hex(digest))
    }

    /// A small blob that is there.
    pub(crate) fn read_blob(&self, digest: &Digest) -> Result<Vec<u8>> {
        let bytes = fs::read(self.blob(digest)).doing(format!("read {digest}"))?;
        verify(digest.as_str(), digest, digest_of(&bytes))?;
        Ok(bytes)
    }

    /// Keeps a small blob, and holds on to it.
    pub(crate) fn put_bytes(&self, bytes: &[u8], hold: &mut Hold) -> Result<Digest> {
        let digest = digest_of(bytes);
        hold.add([digest.clone()]);
        if !self.blob(&digest).exists() {
            self.put_stream(bytes, Some(&digest), u64::MAX, hold)?;
        }
        Ok(digest)
    }

    /// Keeps a blob of any size, which must be what `expected` says if it says so, and holds on to
    /// it.
    pub(crate) fn put_stream(
        &self,
        from: impl Read,
        expected: Option<&Digest>,
        limit: u64,
        hold: &mut Hold,
    ) -> Result<(Digest, u64)> {
        let fill = |to: &mut dyn Write| {
            let copied = io::copy(&mut from.take(limit.saturating_add(1)), to);
            copied.map(drop).doing("copy a blob")
        };
        let check = |digest: &Digest, size| {
            if size > limit {
                return Err(ImageError::TooLarge {
                    what: "a blob".into(),
                    limit,
                });
            }
            match expected {
                Some(expected) => verify("a blob", expected, digest.clone()),
                None => Ok(()),
            }
        };
        self.put(hold, fill, check)
    }

    /// Keeps what `fill` writes, and holds on to it. `check` sees what it is before it gets its
    /// name, and may refuse it.
    pub(crate) fn put(
        &self,
        hold: &mut Hold,
        fill: impl FnOnce(&mut dyn Write) -> Result<()>,
        check: impl FnOnce(&Digest, u64) -> Result<()>,
    ) -> Result<(Digest, u64)> {
        let new = self.layers.join("sha256").join(new_name("blob"));
        let put = || {
            let file = File::create_new(&new).doing("make a blob's file")?;
            let mut hashing = Hashing::new(BufWriter::with_capacity(1 << 18, file));
            fill(&mut hashing)?;
            hashing.flush().doing("copy a blob")?;
            let digest = finish(hashing.hash);
            check(&digest, hashing.size)?;
            let file = hashing.inner.into_inner();
            let file = file.map_err(io::IntoInnerError::into_error);
            let synced = file.and_then(|file| file.sync_all());
            synced.doing("make a blob durable")?;
            hold.add([digest.clone()]);
            self.name_blob(&new, &digest)?;
            Ok((digest, hashing.size))
        };
        put().inspect_err(|_| {
            // The failure says more than a leftover, which the next opening removes.
            let _ = fs::remove_file(&new);
        })
    }

    /// Gives a file, whose content is durable and known, its name.
    pub(crate) fn name_blob(&self, from: &std::path::Path, digest: &Digest) -> Result<()> {
        let rename = || {
            fs::rename(from, self.blob(digest))?;
            sync_directory(&self.layers.join("sha256"))
        };
        rename().doing(format!("name {digest}"))
    }
}
