//! Images to files: OCI layouts, as directories or tar archives, and what `docker load` reads.
//!
//! A file gets its name when it is whole. A directory must be new; what was written of one that
//! failed is removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use model::Digest;
use serde_json::json;
use tar::{Builder, Header};

use crate::{
    compression::decompressed,
    digest::hex,
    error::{Doing as _, ImageError, Result},
    manifest::{OCI_INDEX, OCI_MANIFEST, Resolved, parse},
    reference::Reference,
    store::{Image, Store},
};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An OCI layout, as a directory.
    OciDirectory,
    /// An OCI layout, as an archive.
    OciArchive,
    /// What `docker load` reads, and `docker save` writes.
    DockerArchive,
}

/// Where it is written to.
enum Sink {
    Directory(PathBuf),
    Archive(Box<Builder<BufWriter<File>>>),
}

impl Sink {
    fn put(&mut self, name: &str, size: u64, mut content: impl Read) -> io::Result<()> {
        match self {
            Self::Directory(top) => {
                let path = top.join(name);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                let mut file = File::create_new(path)?;
                io::copy(&mut content, &mut file)?;
                file.sync_all()
            }
            Self::Archive(tar) => {
                let mut header = Header::new_gnu();
                header.set_size(size);
                header.set_mode(0o644);
                tar.append_data(&mut header, name, content)
            }
        }
    }

    fn put_json(&mut self, name: &str, value: &serde_json::Value) -> io::Result<()> {
        let bytes = serde_json::to_vec(value)?;
        self.put(name, bytes.len() as u64, bytes.as_slice())
    }

    fn end(self) -> io::Result<()> {
        match self {
            Self::Directory(top) => File::open(top)?.sync_all(),
            Self::Archive(tar) => {
                let file = tar.into_inner()?.into_inner();
                file.map_err(io::IntoInnerError::into_error)?.sync_all()
            }
        }
    }
}

impl Store {
    /// Writes an image to a directory or file that is not there yet.
    ///
    /// # Errors
    /// If there is no such image, something is there already, or the disk fails.
    pub fn export(&self, name: &str, to: &Path, format: Format) -> Result<()> {
        self.inner().check_open(name)?;
        let image = self.find(name)?;
        let image = image.ok_or_else(|| ImageError::NotPresent(name.into()))?;
        if to.exists() {
            let there = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(there).doing(format!("write {}", to.display()));
        }
        let mut partial = to.as_os_str().to_owned();
        partial.push(format!(".{}.new", kit::unique::name()));
        let partial = PathBuf::from(partial);
        let doing = || format!("write {}", to.display());
        let write = || {
            let mut sink = match format {
                Format::OciDirectory => {
                    fs::create_dir(&partial).doing(doing())?;
                    Sink::Directory(partial.clone())
                }
                Format::OciArchive | Format::DockerArchive => {
                    let mut options = OpenOptions::new();
                    let options = options.write(true).create_new(true).mode(0o644);
                    let file = options.open(&partial).doing(doing())?;
                    Sink::Archive(Box::new(Builder::new(BufWriter::new(file))))
                }
            };
            match format {
                Format::OciDirectory | Format::OciArchive => {
                    self.write_oci(&image, name, &mut sink)?;
                }
                Format::DockerArchive => self.write_docker(&image, name, &mut sink)?,
            }
            sink.end().doing(doing())?;
            fs::rename(&partial, to).doing(doing())
        };
        write().inspect_err(|_| {
            // The failure says more than a leftover.
            let _ = match format {
                Format::OciDirectory => fs::remove_dir_all(&partial),
                Format::OciArchive | Format::DockerArchive => fs::remove_file(&partial),
            };
        })
    }

    fn open_blob(&self, digest: &Digest) -> Result<(File, u64)> {
        let open = || {
            let file = File::open(self.inner().blob(digest))?;
            let size = file.metadata()?.len();
            io::Result::Ok((file, size))
        };
        open().doing(format!("open {digest}"))
    }

    fn write_oci(&self, image: &Image, name: &str, sink: &mut Sink) -> Result<()> {
        let version = json!({"imageLayoutVersion": "1.0.0"});
        sink.put_json("oci-layout", &version)
            .doing("write a layout")?;
        let mut done = std::collections::BTreeSet::new();
        for digest in image
            .blobs()
            .filter(|digest| done.insert((*digest).clone()))
        {
            let (file, size) = self.open_blob(digest)?;
            let path = format!("blobs/sha256/{}", hex(digest));
            sink.put(&path, size, file).doing("write a layout")?;
        }
        let manifest = self.inner().read_blob(image.digest())?;
        let Resolved::Image(parsed) = parse(name, &manifest)? else {
            return Err(ImageError::malformed(name, "not an image"));
        };
        let kind = match parsed.media_type.as_str() {
            "" => OCI_MANIFEST,
            kind => kind,
        };
        let mut entry = json!({
            "mediaType": kind, "digest": image.digest(), "size": manifest.len(),
        });
        // Its tag for readers that want no more, its name for those that do.
        let tag = name.parse::<Reference>();
        let tag = tag.as_ref().map_or("latest", |name| match name.digest() {
            None => name.version(),
            Some(_) => "latest",
        });
        entry["annotations"] = json!({
            "io.containerd.image.name": full(name), "org.opencontainers.image.ref.name": tag,
        });
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]});
        sink.put_json("index.json", &index).doing("write a layout")
    }

    fn write_docker(&self, image: &Image, name: &str, sink: &mut Sink) -> Result<()> {
        let config = format!("{}.json", hex(&image.config_digest));
        let (file, size) = self.open_blob(&image.config_digest)?;
        sink.put(&config, size, file).doing("write an archive")?;
        let mut layers = Vec::new();
        for layer in &image.layers {
            let path = format!("{}.tar", hex(&layer.diff_id));
            if !layers.contains(&path) {
                let mut plain = self.plain(&layer.blob)?;
                let size = plain.metadata().doing("unpack a layer")?.len();
                plain.rewind().doing("unpack a layer")?;
                sink.put(&path, size, plain).doing("write an archive")?;
            }
            layers.push(path);
        }
        // A digest is not a name that it could be loaded under.
        let named = name.parse::<Reference>();
        let tags = match named.as_ref().map(|name| name.digest().is_some()) {
            Ok(true) => Vec::new(),
            Ok(false) | Err(_) => vec![full(name)],
        };
        let list = json!([{"Config": config, "RepoTags": tags, "Layers": layers}]);
        sink.put_json("manifest.json", &list)
            .doing("write an archive")
    }

    /// A layer's archive, uncompressed: Docker knows layers by what they hold.
    fn plain(&self, blob: &Digest) -> Result<File> {
        let (file, _) = self.open_blob(blob)?;
        let scratch = self.inner().scratch("export")?;
        let path = scratch.join("layer");
        let mut options = OpenOptions::new();
        let made = options.read(true).write(true).create_new(true).open(&path);
        // It has no name from here on, and goes when it is closed.
        let made = made.and_then(|made| fs::remove_file(&path).map(|()| made));
        self.inner().discard(&scratch);
        let mut made = made.doing("unpack a layer")?;
        let mut from = decompressed(file).doing("unpack a layer")??;
        io::copy(&mut from, &mut made).doing("unpack a layer")?;
        made.flush().doing("unpack a layer")?;
        Ok(made)
    }
}

/// The name as others understand it: `base` is one of ours.
fn full(name: &str) -> String {
    match name.parse::<Reference>() {
        Ok(reference) if name != crate::store::BASE => reference.to_string(),
        Ok(_) | Err(_) => format!("localhost/{name}:latest"),
    }
}
