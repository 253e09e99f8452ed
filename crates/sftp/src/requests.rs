//! From a request to its answer.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use crate::{
    attributes::{self, Attributes, Links},
    codec::{Reader, packet},
    extensions,
    handles::{Directory, Handle, Handles},
    status::{Failure, status},
};

const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRIBUTES: u8 = 105;

/// The most that is read at once.
pub(crate) const MOST_READ: u32 = 255 << 10;

/// One client.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) handles: Handles,
}

/// An answer that is not merely how it went.
pub(crate) enum Answer {
    Done,
    Packet(Vec<u8>),
}

impl Session {
    /// The answer; none to what cannot be answered.
    pub(crate) fn answer(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let mut reader = Reader(request);
        let (kind, id) = (reader.u8().ok()?, reader.u32().ok()?);
        Some(match self.perform(kind, id, &mut reader) {
            Ok(Answer::Done) => status(id, &Ok(())),
            Ok(Answer::Packet(packet)) => packet,
            Err(failure) => status(id, &Err(failure)),
        })
    }

    fn perform(&mut self, kind: u8, id: u32, r: &mut Reader<'_>) -> Result<Answer, Failure> {
        match kind {
            3 => return self.open(id, r),
            4 => self.handles.close(r.string()?)?,
            5 => return self.read(id, r),
            6 => self.write(r)?,
            7 => return Ok(known(id, &fs::symlink_metadata(path(r)?)?)),
            8 => return Ok(known(id, &self.handles.metadata(r.string()?)?)),
            9 => {
                let path = path(r)?;
                Attributes::read(r)?.apply(path, Links::Followed)?;
            }
            10 => {
                let handle = r.string()?;
                let (file, _) = self.handles.file(handle)?;
                Attributes::read(r)?.apply_to(file)?;
            }
            11 => {
                let directory = Directory::open(path(r)?.to_owned())?;
                let name = self.handles.add(Handle::Directory(directory))?;
                return Ok(handle(id, &name));
            }
            12 => return self.list(id, r),
            13 => fs::remove_file(path(r)?)?,
            14 => {
                let path = path(r)?;
                let mode = Attributes::read(r)?.mode(0o777);
                fs::DirBuilder::new().mode(mode).create(path)?;
            }
            15 => fs::remove_dir(path(r)?)?,
            16 => return Ok(named(id, &real_path(path(r)?)?)),
            17 => return Ok(known(id, &fs::metadata(path(r)?)?)),
            18 => rename(path(r)?, path(r)?)?,
            19 => return Ok(named(id, &fs::read_link(path(r)?)?)),
            // The target comes first, as in every implementation and against the draft.
            20 => std::os::unix::fs::symlink(path(r)?, path(r)?)?,
            200 => return extensions::perform(self, id, r),
            _ => return Err(Failure::Unsupported),
        }
        Ok(Answer::Done)
    }

    fn open(&mut self, id: u32, r: &mut Reader<'_>) -> Result<Answer, Failure> {
        const READ: u32 = 1;
        const WRITE: u32 = 2;
        const APPEND: u32 = 4;
        const CREATE: u32 = 8;
        const TRUNCATE: u32 = 16;
        const EXCLUSIVE: u32 = 32;
        let (path, flags) = (path(r)?, r.u32()?);
        let has = |flag| flags & flag != 0;
        let mode = Attributes::read(r)?.mode(0o666);
        let mut options = OpenOptions::new();
        options
            .read(has(READ) || !has(WRITE))
            .write(has(WRITE))
            .append(has(WRITE) && has(APPEND))
            .create(has(WRITE) && has(CREATE))
            .create_new(has(WRITE) && has(CREATE) && has(EXCLUSIVE))
            .mode(mode);
        if has(WRITE) && has(TRUNCATE) && !has(EXCLUSIVE) {
            // With `truncate`, what only appends would be refused.
            let flag = rustix::fs::OFlags::TRUNC.bits();
            options.custom_flags(i32::try_from(flag).unwrap_or_default());
        }
        let file = options.open(path)?;
        let appends = has(APPEND);
        let name = self.handles.add(Handle::File { file, appends })?;
        Ok(handle(id, &name))
    }

    fn read(&mut self, id: u32, r: &mut Reader<'_>) -> Result<Answer, Failure> {
        let (handle, offset, count) = (r.string()?, r.u64()?, r.u32()?);
        let (file, _) = self.handles.file(handle)?;
        let mut data = vec![0; usize::try_from(count.min(MOST_READ)).unwrap_or_default()];
        let read = file.read_at(&mut data, offset)?;
        if read == 0 && count > 0 {
            return Err(Failure::End);
        }
        let mut answer = packet(DATA);
        answer.u32(id).string(&data[..read]);
        Ok(Answer::Packet(answer.finish()))
    }

    fn write(&mut self, r: &mut Reader<'_>) -> Result<(), Failure> {
        let (handle, offset, data) = (r.string()?, r.u64()?, r.string()?);
        let (mut file, appends) = self.handles.file(handle)?;
        if appends {
            io::Write::write_all(&mut file, data)?;
        } else {
            file.write_all_at(data, offset)?;
        }
        Ok(())
    }

    fn list(&mut self, id: u32, r: &mut Reader<'_>) -> Result<Answer, Failure> {
        let names = self.handles.directory(r.string()?)?.next()?;
        let mut answer = packet(NAME);
        answer
            .u32(id)
            .u32(u32::try_from(names.len()).unwrap_or(u32::MAX));
        for (name, metadata) in names {
            answer.string(&name);
            answer.string(&attributes::line(&name, &metadata));
            attributes::write(&mut answer, &metadata);
        }
        Ok(Answer::Packet(answer.finish()))
    }
}

/// A path; the empty one is where it runs.
pub(crate) fn path<'a>(r: &mut Reader<'a>) -> Result<&'a Path, Failure> {
    let bytes = r.string()?;
    Ok(match bytes.is_empty() {
        true => Path::new("."),
        false => Path::new(OsStr::from_bytes(bytes)),
    })
}

fn handle(id: u32, name: &[u8]) -> Answer {
    let mut answer = packet(HANDLE);
    answer.u32(id).string(name);
    Answer::Packet(answer.finish())
}

fn known(id: u32, metadata: &fs::Metadata) -> Answer {
    let mut answer = packet(ATTRIBUTES);
    answer.u32(id);
    attributes::write(&mut answer, metadata);
    Answer::Packet(answer.finish())
}

pub(crate) fn named(id: u32, path: &Path) -> Answer {
    let name = path.as_os_str().as_bytes();
    let mut answer = packet(NAME);
    answer.u32(id).u32(1).string(name).string(name);
    attributes::write_none(&mut answer);
    Answer::Packet(answer.finish())
}

/// A path without links and dots. What it leads to need not be there; the directory must.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    match (fs::canonicalize(path), path.file_name()) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            let above = match path.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                Some(_) | None => Path::new("."),
            };
            Ok(fs::canonicalize(above)?.join(name))
        }
        (real, _) => Ok(real?),
    }
}

/// Gives something another name that nothing has.
fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot promise it.
        Err(Errno::INVAL) if fs::symlink_metadata(to).is_err() => Ok(fs::rename(from, to)?),
        renamed => Ok(renamed?),
    }
}
