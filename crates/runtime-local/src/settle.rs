//! When the files of a resumed sandbox are on disk.
//!
//! A layer is written into a new directory without a sync: the resume would wait for the disk. Until
//! one has been, a crash of the host may leave any of those files empty or missing, though the layer
//! is whole. So what such a sandbox is after that is its layer, and not its directory.
//!
//! ```text
//! an empty mark, durable with the record ─▶ files ─▶ it runs ─▶ one sync for all who wait ─▶ a word in the mark
//! ```
//!
//! The mark is a file of the sandbox's own that is held open: whatever is removed or made anew
//! meanwhile, no other sandbox gets the word.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use model::Uid;
use parking_lot::Mutex;

use crate::{
    engine::Engine,
    error::{Doing as _, Result},
    record::Place,
};

/// A sync is for all of a host's dirty files: one for everybody who resumes meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// Until a disk that failed is asked again.
const AGAIN: Duration = Duration::from_secs(60);

/// Marks that wait for a sync.
#[derive(Debug, Default)]
pub(crate) struct Settling(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    marks: Vec<File>,
    at_work: bool,
}

impl Engine {
    /// Has a sandbox's files synced soon, all of which are written, and its mark set.
    pub(crate) fn settle(&self, uid: Uid, place: &Place, mark: File) -> Result<()> {
        if place.disk().is_symlink() {
            // Another filesystem, which goes with its last sandbox: nobody comes back to it later.
            return sync_now(&place.upper(), mark).doing("sync the sandbox's disk");
        }
        let mut waiting = self.settling.0.lock();
        waiting.marks.push(mark);
        if waiting.at_work {
            return Ok(());
        }
        let (shared, data) = (Arc::clone(&self.settling.0), self.data.clone());
        let thread = thread::Builder::new().name("settle".into());
        match thread.spawn(move || work(&shared, &data)) {
            Ok(_) => waiting.at_work = true,
            // With the next one.
            Err(error) => tracing::warn!(%uid, %error, "resumed files are not synced yet"),
        }
        Ok(())
    }
}

fn sync_now(upper: &Path, mut mark: File) -> io::Result<()> {
    rustix::fs::syncfs(File::open(upper)?)?;
    set(&mut mark)
}

fn set(mark: &mut File) -> io::Result<()> {
    mark.write_all(b"whole")?;
    mark.sync_data()
}

fn work(shared: &Mutex<Waiting>, data: &PathBuf) {
    loop {
        thread::sleep(PAUSE);
        let mut marks = {
            let mut waiting = shared.lock();
            waiting.at_work = !waiting.marks.is_empty();
            std::mem::take(&mut waiting.marks)
        };
        if marks.is_empty() {
            return;
        }
        let synced = File::open(data).and_then(|data| Ok(rustix::fs::syncfs(data)?));
        if let Err(error) = synced.and_then(|()| marks.iter_mut().try_for_each(set)) {
            tracing::warn!(%error, "resumed files could not be synced; tried again");
            shared.lock().marks.append(&mut marks);
            thread::sleep(AGAIN);
        }
    }
}
