//! What the database file lies on: a file system, or in tests one that fails on purpose.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Debug,
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use redb::StorageBackend;
use rustix::fs::Advice;

/// Where the database file is.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Opens the file, which must be there and not be empty.
    fn open(&self) -> io::Result<Medium>;

    /// Opens the file after an error, as the disk has it. The operating system may remember
    /// content that it failed to write; that must not be taken for what is stored.
    fn reopen(&self) -> io::Result<Medium>;

    /// How many more bytes can be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Its name, for messages.
    fn path(&self) -> &Path;
}

/// A file system.
#[derive(Debug)]
pub(crate) struct FileDisk {
    path: PathBuf,
}

impl FileDisk {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Disk for FileDisk {
    fn open(&self) -> io::Result<Medium> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        if file.metadata()?.len() == 0 {
            // The engine would take an empty file for an invitation to start afresh.
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is empty",
            ));
        }
        Ok(Medium(Box::new(PlainFile(file))))
    }

    fn reopen(&self) -> io::Result<Medium> {
        let file = File::open(&self.path)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        self.open()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// An open file. The directory's lock keeps other processes away, so the engine's own locks, which
/// are optional, are not implemented.
#[derive(Debug)]
pub(crate) struct PlainFile(pub(crate) File);

impl StorageBackend for PlainFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// Any backend, as the engine wants it: by value.
#[derive(Debug)]
pub(crate) struct Medium(pub(crate) Box<dyn StorageBackend>);

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

/// A medium that is only read: what is written over it stays in memory and goes with this.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Medium,
    above: Mutex<Above>,
}

#[derive(Debug)]
struct Above {
    len: u64,
    /// What lies below from here on is hidden: the file was made shorter.
    visible: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

const BLOCK: usize = 4096;

impl Overlay {
    pub(crate) fn new(below: Medium) -> Self {
        // A length that cannot be had shows at the first use.
        let len = below.len().unwrap_or(0);
        Self {
            below,
            above: Mutex::new(Above {
                len,
                visible: len,
                blocks: BTreeMap::new(),
            }),
        }
    }

    /// A block of what lies below, with zeros after its end.
    fn below(&self, block: u64, visible: u64) -> io::Result<Box<[u8; BLOCK]>> {
        let mut content = Box::new([0; BLOCK]);
        let at = block * BLOCK as u64;
        let length = visible.saturating_sub(at).min(BLOCK as u64) as usize;
        self.below.read(at, &mut content[..length])?;
        Ok(content)
    }
}

/// The blocks that a range touches: number, start within the block, and range within the buffer.
fn blocks(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % BLOCK as u64) as usize;
        let take = (BLOCK - start).min(length - done);
        let range = done..done + take;
        done += take;
        (take > 0).then_some((at / BLOCK as u64, start, range))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.above.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let above = self.above.lock();
        if offset + out.len() as u64 > above.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let end = offset + out.len() as u64;
        let touched = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        if end <= above.visible && above.blocks.range(touched).next().is_none() {
            return self.below.read(offset, out);
        }
        for (block, start, range) in blocks(offset, out.len()) {
            let end = start + range.len();
            match above.blocks.get(&block) {
                Some(content) => out[range].copy_from_slice(&content[start..end]),
                None => {
                    let content = self.below(block, above.visible)?;
                    out[range].copy_from_slice(&content[start..end]);
                }
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut above = self.above.lock();
        above.len = len;
        above.visible = above.visible.min(len);
        let kept = len.div_ceil(BLOCK as u64);
        above.blocks.retain(|block, _| *block < kept);
        if let Some(content) = above.blocks.get_mut(&(len / BLOCK as u64)) {
            content[(len % BLOCK as u64) as usize..].fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut above = self.above.lock();
        above.len = above.len.max(offset + data.len() as u64);
        for (block, start, range) in blocks(offset, data.len()) {
            let visible = above.visible;
            let content = match above.blocks.entry(block) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(empty) => empty.insert(self.below(block, visible)?),
            };
            content[start..start + range.len()].copy_from_slice(&data[range]);
        }
        Ok(())
    }
}
