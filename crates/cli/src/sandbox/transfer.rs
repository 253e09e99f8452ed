//! Files and directories over the agent: one stream a file, nothing held in memory.
//!
//! What comes out of a sandbox was written by whoever is in there. Names are checked to be names,
//! and links are made last, so that nothing is ever written through one; a link that leads out of
//! what is copied would mean something else here, and is left out.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use agent_client::{Client, StartOptions};
use anyhow::{Context as _, anyhow, bail};
use bytes::BytesMut;
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::{
    connect::Code,
    filesystem::{EntryInfo, FileType},
    process::{ProcessConfig, StartRequest},
};

use super::{
    copy::Tally,
    place::{below, last},
};

/// How much of a file is read at a time.
const PIECE: usize = 64 << 10;
/// Paths that one call of a program inside is given.
const BATCH: usize = 100;

/// Copies through one agent.
pub(super) struct Transfer<'a> {
    pub(super) agent: &'a Client,
    pub(super) tally: &'a Tally,
}

/// What a stream of bytes cannot say, done afterwards.
#[derive(Debug, Default)]
struct Afterwards {
    /// Files that can be run.
    programs: Vec<String>,
    /// Links: what they say, and where they are.
    links: Vec<(String, String)>,
}

impl Transfer<'_> {
    /// Copies into the sandbox.
    pub(super) async fn put(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        let shown = from.display();
        let seen = fs::metadata(from).with_context(|| format!("look at {shown}"))?;
        let name = fs::canonicalize(from)?;
        let name = name.file_name().and_then(|name| name.to_str());
        let is_directory = match self.agent.stat(to).await {
            Ok(entry) => entry.kind == i32::from(FileType::Directory),
            Err(error) if error.code() == Some(Code::NotFound) => to.ends_with('/'),
            Err(error) => return Err(error).with_context(|| format!("look at {to} inside")),
        };
        let to = match (is_directory, name) {
            (true, Some(name)) => below(to, name),
            (true, None) => bail!("{shown} has no name to copy it as: add one to {to}"),
            (false, _) => to.to_owned(),
        };
        let mut afterwards = Afterwards::default();
        if seen.is_dir() {
            self.put_tree(from, &to, &mut afterwards).await?;
        } else {
            self.put_file(from, &to, &seen, &mut afterwards).await?;
        }
        self.finish(&afterwards).await
    }

    async fn put_tree(
        &self,
        from: &Path,
        to: &str,
        afterwards: &mut Afterwards,
    ) -> anyhow::Result<()> {
        let mut open = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = open.pop() {
            match self.agent.make_dir(&to).await {
                Ok(()) => {}
                Err(error) if error.code() == Some(Code::AlreadyExists) => {}
                Err(error) => return Err(error).with_context(|| format!("make {to} inside")),
            }
            let entries =
                fs::read_dir(&from).with_context(|| format!("list {}", from.display()))?;
            for entry in entries {
                let entry = entry?;
                let path = entry.path();
                let shown = path.display();
                let Ok(name) = entry.file_name().into_string() else {
                    bail!("the name of {shown} is not UTF-8, and cannot be sent");
                };
                let to = below(&to, &name);
                let seen = entry
                    .metadata()
                    .with_context(|| format!("look at {shown}"))?;
                if seen.is_dir() {
                    open.push((path, to));
                } else if seen.is_file() {
                    self.put_file(&path, &to, &seen, afterwards).await?;
                } else if seen.is_symlink() {
                    let target = fs::read_link(&path)?.into_os_string().into_string();
                    let target = target.map_err(|_| anyhow!("{shown} leads to no UTF-8 name"))?;
                    afterwards.links.push((target, to));
                } else {
                    eprintln!("left out: {shown} is neither file, directory nor link");
                }
            }
        }
        Ok(())
    }

    async fn put_file(
        &self,
        from: &Path,
        to: &str,
        seen: &fs::Metadata,
        afterwards: &mut Afterwards,
    ) -> anyhow::Result<()> {
        let file = tokio::fs::File::open(from).await;
        let file = file.with_context(|| format!("open {}", from.display()))?;
        // What was read is counted when the next piece is asked for, on whichever thread that is.
        let (count, mut counted) = tokio::sync::mpsc::unbounded_channel();
        let content = stream::try_unfold(file, move |mut file| {
            let count = count.clone();
            async move {
                let mut piece = BytesMut::with_capacity(PIECE);
                if file.read_buf(&mut piece).await? == 0 {
                    return Ok::<_, io::Error>(None);
                }
                // Nobody counts any more when the copy has failed.
                let _ = count.send(piece.len());
                Ok(Some((piece.freeze(), file)))
            }
        });
        let upload = self.agent.upload(to, content.boxed());
        let counting = async {
            while let Some(bytes) = counted.recv().await {
                self.tally.add_bytes(bytes);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = counting => {}
            sent = upload => {
                sent.with_context(|| format!("write {to} inside"))?;
            }
        }
        self.tally.add_file();
        if seen.permissions().mode() & 0o111 != 0 {
            afterwards.programs.push(to.to_owned());
        }
        Ok(())
    }

    /// Modes and links are made by programs inside.
    async fn finish(&self, afterwards: &Afterwards) -> anyhow::Result<()> {
        for some in afterwards.programs.chunks(BATCH) {
            let words = ["+x", "--"]
                .into_iter()
                .chain(some.iter().map(String::as_str));
            self.run("chmod", words).await?;
        }
        for (target, path) in &afterwards.links {
            self.run("ln", ["-sfn", "--", target, path]).await?;
        }
        Ok(())
    }

    async fn run<'w>(
        &self,
        program: &str,
        words: impl IntoIterator<Item = &'w str>,
    ) -> anyhow::Result<()> {
        let request = StartRequest {
            process: Some(ProcessConfig {
                cmd: program.to_owned(),
                args: words.into_iter().map(str::to_owned).collect(),
                ..ProcessConfig::default()
            }),
            stdin: Some(false),
            ..StartRequest::default()
        };
        let process = self.agent.start(&request, StartOptions::default()).await;
        let process = process.with_context(|| format!("start {program} inside"))?;
        let end = process.wait(|_| Ok::<_, agent_client::Error>(())).await?;
        if end.exited && end.exit_code == 0 {
            return Ok(());
        }
        bail!("{program} inside: {}", end.status)
    }

    /// Copies out of the sandbox.
    pub(super) async fn fetch(&self, from: &str, to: &Path) -> anyhow::Result<()> {
        let entry = self.agent.stat(from).await;
        let entry = entry.with_context(|| format!("look at {from} inside"))?;
        let is_directory = fs::metadata(to).is_ok_and(|seen| seen.is_dir());
        let to = match is_directory {
            true => to.join(safe(last(&entry.path))?),
            false => to.to_owned(),
        };
        if entry.kind == i32::from(FileType::Directory) {
            self.fetch_tree(&entry.path, &to).await
        } else {
            self.fetch_file(&entry, &to).await
        }
    }

    async fn fetch_tree(&self, from: &str, to: &Path) -> anyhow::Result<()> {
        let mut links: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut modes: Vec<(PathBuf, u32)> = Vec::new();
        let mut open = vec![(from.to_owned(), to.to_owned())];
        let prefix = below(from, "");
        while let Some((inside, here)) = open.pop() {
            make_directory(&here)?;
            let entries = self.agent.list_dir(&inside).await;
            for entry in entries.with_context(|| format!("list {inside} inside"))? {
                let here = here.join(safe(&entry.name)?);
                if entry.is_symlink || entry.symlink_target.is_some() {
                    let target = entry.symlink_target.as_deref().unwrap_or_default();
                    match target.strip_prefix(&prefix) {
                        Some(rest) if is_below(rest) => links.push((here, to.join(rest))),
                        Some(_) | None => eprintln!(
                            "left out: {} is a link that leads out of {from}",
                            entry.path
                        ),
                    }
                    continue;
                }
                match FileType::try_from(entry.kind) {
                    Ok(FileType::Directory) => {
                        modes.push((here.clone(), entry.mode));
                        open.push((entry.path, here));
                    }
                    Ok(FileType::File) => self.fetch_file(&entry, &here).await?,
                    Ok(FileType::Unspecified | FileType::Symlink) | Err(_) => {
                        eprintln!("left out: {} is neither file nor directory", entry.path);
                    }
                }
            }
        }
        for (link, target) in links {
            make_link(&link, &target).with_context(|| format!("link {}", link.display()))?;
        }
        // Last and innermost first: one that may not be written to could not be filled.
        for (directory, mode) in modes.into_iter().rev() {
            fs::set_permissions(&directory, Permissions::from_mode(mode & 0o777))?;
        }
        Ok(())
    }

    async fn fetch_file(&self, entry: &EntryInfo, to: &Path) -> anyhow::Result<()> {
        let shown = to.display();
        if fs::symlink_metadata(to).is_ok_and(|seen| seen.is_symlink()) {
            bail!("{shown} is a link here: remove it first");
        }
        let download = self.agent.download(&entry.path).await;
        let mut download = download.with_context(|| format!("read {} inside", entry.path))?;
        let file = tokio::fs::File::create(to).await;
        let mut file = file.with_context(|| format!("make {shown}"))?;
        while let Some(piece) = download.next().await? {
            file.write_all(&piece)
                .await
                .with_context(|| format!("write {shown}"))?;
            self.tally.add_bytes(piece.len());
        }
        file.flush()
            .await
            .with_context(|| format!("write {shown}"))?;
        file.set_permissions(Permissions::from_mode(entry.mode & 0o777))
            .await?;
        self.tally.add_file();
        Ok(())
    }
}

/// A name that is one, and nothing that leads elsewhere.
fn safe(name: &str) -> anyhow::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        bail!("the sandbox names a file {name:?}, which is no name");
    }
    Ok(name)
}

/// Whether a path leads down only.
fn is_below(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|part| safe(part).is_ok())
}

/// A directory that is one: what is put into a link would land elsewhere.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let seen = fs::symlink_metadata(path)?;
            if !seen.is_dir() {
                bail!("{shown} is here already, and is no directory: remove it first");
            }
            Ok(())
        }
        other => other.with_context(|| format!("make {shown}")),
    }
}

/// A link to something below the same root, without naming where that root is.
fn make_link(link: &Path, target: &Path) -> anyhow::Result<()> {
    let from = link.parent().unwrap_or(link);
    let common = from
        .components()
        .zip(target.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = from.components().skip(common).map(|_| Path::new(".."));
    let down = target
        .components()
        .skip(common)
        .map(|part| Path::new(part.as_os_str()));
    let way: PathBuf = up.chain(down).collect();
    match symlink(&way, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !fs::symlink_metadata(link)?.is_symlink() {
                bail!("something else is here already: remove it first");
            }
            fs::remove_file(link)?;
            Ok(symlink(&way, link)?)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_sandbox_lead_nowhere_else() {
        for good in ["a", "a b", "..a", "-rf"] {
            assert!(safe(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "/a", "a\0b"] {
            assert!(safe(bad).is_err(), "{bad:?}");
        }
        assert!(is_below("a/b") && !is_below("a/../b") && !is_below(""));
    }

    #[test]
    fn a_link_names_the_way_and_not_the_place() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let link = root.path().join("a/b/link");
        for _ in 0..2 {
            make_link(&link, &root.path().join("c/file")).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new("../../c/file"));
        }
    }

    #[test]
    fn nothing_is_put_into_a_link() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        symlink("/etc", &link).unwrap();
        assert!(make_directory(&link).is_err());
        make_directory(&root.path().join("new")).unwrap();
        make_directory(&root.path().join("new")).unwrap();
    }
}
