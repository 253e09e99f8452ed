//! What a client has open.

use std::{
    collections::BTreeMap,
    fs::{File, Metadata, ReadDir},
    io,
    os::unix::ffi::OsStringExt as _,
    path::PathBuf,
};

use crate::status::Failure;

/// The most that may be open.
const MOST: usize = 512;
/// Names in one answer.
const NAMES: usize = 128;

/// Something open.
pub(crate) enum Handle {
    File { file: File, appends: bool },
    Directory(Directory),
}

/// A directory that is being listed.
pub(crate) struct Directory {
    path: PathBuf,
    rest: ReadDir,
    /// Not yet said, and in no listing of the kernel's that is given here.
    dots: Vec<&'static str>,
}

impl Directory {
    pub(crate) fn open(path: PathBuf) -> Result<Self, Failure> {
        Ok(Self {
            rest: std::fs::read_dir(&path)?,
            path,
            dots: vec!["..", "."],
        })
    }

    /// The next names and what is known of them; none at the end.
    pub(crate) fn next(&mut self) -> Result<Vec<(Vec<u8>, Metadata)>, Failure> {
        let mut names = Vec::new();
        while let Some(dot) = self.dots.pop() {
            if let Ok(metadata) = std::fs::symlink_metadata(self.path.join(dot)) {
                names.push((dot.as_bytes().to_vec(), metadata));
            }
        }
        for entry in self.rest.by_ref() {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) => names.push((entry.file_name().into_vec(), metadata)),
                // Gone since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
            if names.len() >= NAMES {
                break;
            }
        }
        match names.is_empty() {
            true => Err(Failure::End),
            false => Ok(names),
        }
    }
}

/// Everything that is open, by number.
#[derive(Default)]
pub(crate) struct Handles {
    open: BTreeMap<u32, Handle>,
    next: u32,
}

impl Handles {
    pub(crate) fn add(&mut self, handle: Handle) -> Result<[u8; 4], Failure> {
        if self.open.len() >= MOST {
            return Err(Failure::TooMany);
        }
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.open.insert(number, handle);
        Ok(number.to_be_bytes())
    }

    pub(crate) fn file(&self, name: &[u8]) -> Result<(&File, bool), Failure> {
        match self.open.get(&number(name)?) {
            Some(Handle::File { file, appends }) => Ok((file, *appends)),
            Some(Handle::Directory(_)) | None => Err(Failure::NoHandle),
        }
    }

    pub(crate) fn directory(&mut self, name: &[u8]) -> Result<&mut Directory, Failure> {
        match self.open.get_mut(&number(name)?) {
            Some(Handle::Directory(directory)) => Ok(directory),
            Some(Handle::File { .. }) | None => Err(Failure::NoHandle),
        }
    }

    /// What is known of what is open.
    pub(crate) fn metadata(&self, name: &[u8]) -> Result<Metadata, Failure> {
        match self.open.get(&number(name)?) {
            Some(Handle::File { file, .. }) => Ok(file.metadata()?),
            Some(Handle::Directory(directory)) => Ok(std::fs::metadata(&directory.path)?),
            None => Err(Failure::NoHandle),
        }
    }

    pub(crate) fn close(&mut self, name: &[u8]) -> Result<(), Failure> {
        match self.open.remove(&number(name)?) {
            Some(_) => Ok(()),
            None => Err(Failure::NoHandle),
        }
    }
}

fn number(name: &[u8]) -> Result<u32, Failure> {
    let bytes = name.try_into().map_err(|_| Failure::NoHandle)?;
    Ok(u32::from_be_bytes(bytes))
}
