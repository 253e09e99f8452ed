//! Digests, computed while bytes pass by.

use std::io::{self, Read, Write};

use model::Digest;
use sha2::{Digest as _, Sha256};

use crate::error::{ImageError, Result};

/// The digest of these bytes.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    finish(Sha256::new_with_prefix(bytes))
}

/// The hexadecimal half of a digest: its file name.
#[must_use]
pub fn hex(digest: &Digest) -> &str {
    digest.as_str().trim_start_matches("sha256:")
}

/// The digest that a file name stands for.
pub(crate) fn from_hex(name: &str) -> Option<Digest> {
    Digest::new(format!("sha256:{name}")).ok()
}

pub(crate) fn finish(hash: Sha256) -> Digest {
    Digest::from_sha256(hash.finalize().into())
}

/// Refuses content that is not what its digest says.
pub(crate) fn verify(what: impl Into<Box<str>>, expected: &Digest, actual: Digest) -> Result<()> {
    if *expected == actual {
        return Ok(());
    }
    Err(ImageError::Mismatch {
        what: what.into(),
        expected: expected.clone(),
        actual,
    })
}

/// Hashes and counts what passes.
#[derive(Debug)]
pub(crate) struct Hashing<T> {
    pub(crate) inner: T,
    pub(crate) hash: Sha256,
    pub(crate) size: u64,
}

impl<T> Hashing<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            size: 0,
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.size += read as u64;
        Ok(read)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
