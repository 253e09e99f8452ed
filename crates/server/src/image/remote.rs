//! Images by way of the server that has them. Files are sent and fetched: a server never reads or
//! writes a path that somebody names.

use std::{
    fs::{self, File, Permissions},
    io::{self, Seek as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::Context as _;
use cli::Admin;
use http::Method;
use images::Format;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::{NamedTempFile, tempdir_in, tempfile};

use super::{
    far::{Far, Line},
    store::Listed,
};
use crate::data_dir::InUse;

/// The server that has a data directory.
pub(super) struct Remote {
    pub(super) admin: Admin,
    pub(super) held: InUse,
}

impl Remote {
    pub(super) async fn list(&self) -> anyhow::Result<Vec<Listed>> {
        let answer = self.admin.ask(Method::GET, &asked("", &[])).await;
        self.heard(answer)
    }

    pub(super) async fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = asked("", &[("name", name)]);
        let Value::Null = self.heard(self.admin.ask(Method::DELETE, &path).await)? else {
            anyhow::bail!("the server answered something else: is it of this version?");
        };
        Ok(())
    }

    pub(super) async fn sweep(&self, dry_run: bool) -> anyhow::Result<Value> {
        let path = format!("/dormouse/gc?dryRun={dry_run}");
        self.heard(self.admin.ask(Method::POST, &path).await)
    }

    /// Asks for something that takes a while, and says how far it is.
    pub(super) async fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<T> {
        let mut line = Line::default();
        let tell = |told: &Value| {
            if let Ok(far) = serde_json::from_value(told.clone()) {
                line.show(far);
            }
        };
        let answer = self.admin.follow(&asked(path, query), tell).await;
        drop(line);
        self.heard(answer)
    }

    pub(super) async fn import(
        &self,
        path: &Path,
        name: Option<&str>,
    ) -> anyhow::Result<Vec<Listed>> {
        let file = archive(path)?;
        let total = file.metadata()?.len();
        let mut line = Line::default();
        // The line goes with the file, once all of it is sent.
        let sent = move |bytes| {
            line.show(Far {
                bytes,
                total,
                ..Far::default()
            });
        };
        let query: Vec<_> = name.map(|name| ("name", name)).into_iter().collect();
        let to = asked("/import", &query);
        let answer = self.admin.send(&to, file, sent, |_| {}).await;
        self.heard(answer)
    }

    pub(super) async fn export(
        &self,
        name: &str,
        path: &Path,
        format: Format,
    ) -> anyhow::Result<()> {
        let doing = || format!("write {}", path.display());
        if path.exists() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists)).with_context(doing);
        }
        let word = match format {
            Format::OciArchive | Format::OciDirectory => "oci-archive",
            Format::DockerArchive => "docker-archive",
        };
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let beside = parent.unwrap_or(Path::new("."));
        let mut new = NamedTempFile::new_in(beside).with_context(doing)?;
        let from = asked("/export", &[("name", name), ("format", word)]);
        self.admin.fetch(&from, new.as_file_mut()).await?;
        if format == Format::OciDirectory {
            new.rewind().with_context(doing)?;
            let directory = tempdir_in(beside).with_context(doing)?;
            let mut archive = tar::Archive::new(new.as_file());
            archive.unpack(directory.path()).with_context(doing)?;
            open_to_all(directory.path(), 0o755).with_context(doing)?;
            return fs::rename(directory.keep(), path).with_context(doing);
        }
        open_to_all(new.path(), 0o644).with_context(doing)?;
        new.as_file().sync_all().with_context(doing)?;
        new.persist_noclobber(path).map(drop).with_context(doing)
    }

    /// Whoever has the directory may be another command, or a server that does not answer yet.
    fn heard<T: DeserializeOwned>(&self, answer: anyhow::Result<Value>) -> anyhow::Result<T> {
        let answer = answer.with_context(|| format!("ask {} for it", self.held.holder))?;
        serde_json::from_value(answer).context("the answer is not as expected")
    }
}

fn open_to_all(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn asked(path: &str, query: &[(&str, &str)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    let text = text.extend_pairs(query).finish();
    format!("/dormouse/images{path}?{text}")
}

/// A file as it is, or a directory as an archive.
fn archive(path: &Path) -> anyhow::Result<File> {
    let doing = || format!("read {}", path.display());
    if !fs::metadata(path).with_context(doing)?.is_dir() {
        return File::open(path).with_context(doing);
    }
    let mut builder = tar::Builder::new(tempfile().context("make a file for the archive")?);
    builder.append_dir_all(".", path).with_context(doing)?;
    let mut file = builder.into_inner().with_context(doing)?;
    file.rewind().with_context(doing)?;
    Ok(file)
}
