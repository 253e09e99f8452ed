//! Images from files: OCI layouts, as directories or tar archives, and what `docker save` writes.
//!
//! An archive is unpacked into a directory first, by the same code and under the same rules as a
//! layer; from then on both are the same. Names inside are looked up beneath that directory.

mod docker;
mod oci;

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::{
    compression::decompressed,
    error::{Doing as _, ImageError, Result},
    layer::{Ids, unpack},
    manifest::MAX_DOCUMENT,
    reference::Reference,
    store::{BASE, Inner, Pinned, Store},
};

/// An image that was imported.
#[derive(Debug)]
pub struct Imported {
    /// What it is called now.
    pub names: Vec<Box<str>>,
    /// The image.
    pub image: Pinned,
}

impl Store {
    /// Imports every image of a layout or archive that runs on this host. `name` is what to call
    /// it; without one it is called what the file says.
    ///
    /// # Errors
    /// If there is no image in it, one cannot be used, or has no name.
    pub fn import(&self, path: &Path, name: Option<&str>) -> Result<Vec<Imported>> {
        let inner = self.inner();
        inner.check_open(name.unwrap_or("the file"))?;
        let found = fs::metadata(path).doing(format!("look at {}", path.display()))?;
        if found.is_dir() {
            return self.import_directory(path, name);
        }
        let scratch = inner.scratch("import")?;
        let imported = (|| {
            let file = File::open(path).doing(format!("open {}", path.display()))?;
            let archive = decompressed(file).doing(format!("read {}", path.display()))??;
            unpack(archive, &scratch, &[], Ids::Same, inner.options.limits)?;
            self.import_directory(&scratch, name)
        })();
        inner.discard(&scratch);
        imported
    }

    fn import_directory(&self, path: &Path, name: Option<&str>) -> Result<Vec<Imported>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, path, flags, Mode::empty());
        let source = Source {
            top: top.doing(format!("open {}", path.display()))?,
            inner: self.inner(),
        };
        let found = match source.document("index.json")? {
            Some(index) => source.import_oci(&index)?,
            None => match source.document("manifest.json")? {
                Some(list) => source.import_docker(&list)?,
                None => {
                    return Err(ImageError::Unsupported {
                        what: path.display().to_string().into(),
                        why: "neither an OCI layout (index.json) nor what docker save writes \
                              (manifest.json)"
                            .into(),
                    });
                }
            },
        };
        let only = found.len() == 1;
        let mut imported = Vec::new();
        for (image, names) in found {
            let names = match name {
                Some(name) if only => vec![name.to_owned()],
                Some(name) => {
                    return Err(ImageError::Name {
                        text: name.into(),
                        why: "there are several images in the file, each with its own name",
                    });
                }
                None => names,
            };
            imported.push(self.name_all(image, &names)?);
        }
        Ok(imported)
    }

    pub(crate) fn name_all(&self, image: Pinned, names: &[String]) -> Result<Imported> {
        if names.is_empty() {
            return Err(ImageError::Name {
                text: image.digest().as_str().into(),
                why: "the file does not say what the image is called; give it a name",
            });
        }
        let mut given = Vec::new();
        for name in names {
            let name: Box<str> = match name.as_str() {
                BASE => BASE.into(),
                name => name.parse::<Reference>()?.to_string().into(),
            };
            self.inner().name(&name, &image.share())?;
            given.push(name);
        }
        Ok(Imported {
            names: given,
            image,
        })
    }
}

/// The directory that is imported from.
struct Source<'a> {
    top: OwnedFd,
    inner: &'a Arc<Inner>,
}

/// An image and what the file calls it.
type Found = (Pinned, Vec<String>);

impl Source<'_> {
    /// A file of the directory. Links are followed as if the directory were the root: archives of
    /// old have some.
    fn open(&self, path: &str) -> io::Result<Option<File>> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat2(
            &self.top,
            CString::new(path)?,
            flags,
            Mode::empty(),
            resolve,
        ) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(fd) => {
                let file = File::from(fd);
                match file.metadata()?.is_file() {
                    true => Ok(Some(file)),
                    false => Err(io::Error::other(format!("{path} is not a file"))),
                }
            }
        }
    }

    fn document(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open(path).doing(format!("open {path}"))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
        read.doing(format!("read {path}"))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::TooLarge {
                what: path.into(),
                limit: MAX_DOCUMENT,
            });
        }
        Ok(Some(bytes))
    }

    /// A file that another one speaks of.
    fn needed(&self, path: &str) -> Result<File> {
        let file = self.open(path).doing(format!("open {path}"))?;
        file.ok_or_else(|| ImageError::malformed(path, "it is spoken of and is not there"))
    }
}
