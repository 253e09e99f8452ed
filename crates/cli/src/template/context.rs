//! The files that COPY copies: found in the context, hashed and packed.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

/// A directory, and what of it is left out.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    ignored: Vec<Pattern>,
}

/// A line of `.dockerignore`.
#[derive(Debug)]
struct Pattern {
    text: String,
    back: bool,
}

impl Files {
    pub(super) fn open(root: &Path) -> anyhow::Result<Self> {
        let root = fs::canonicalize(root).with_context(|| format!("open {}", root.display()))?;
        let ignored = match fs::read_to_string(root.join(".dockerignore")) {
            Ok(text) => patterns(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).context("read .dockerignore"),
        };
        Ok(Self { root, ignored })
    }

    /// What a source means: paths within the context, directories before what is in them.
    pub(super) fn find(&self, source: &str) -> anyhow::Result<Vec<PathBuf>> {
        let wanted = within(Path::new(source))
            .with_context(|| format!("{source:?} leaves the context: use a path within it"))?;
        let mut found = BTreeSet::new();
        let pattern = wanted.to_string_lossy().into_owned();
        if pattern.contains(['*', '?']) {
            let mut all = BTreeSet::new();
            self.walk(Path::new(""), &mut all)?;
            let matching = |path: &&PathBuf| matches(&pattern, &path.to_string_lossy());
            for path in all.iter().filter(matching) {
                found.extend(all.iter().filter(|below| below.starts_with(path)).cloned());
            }
        } else if self.root.join(&wanted).symlink_metadata().is_ok() {
            self.add(&wanted, &mut found)?;
        }
        if found.is_empty() {
            bail!("there is no file {source} in {}", self.root.display());
        }
        Ok(found.into_iter().collect())
    }

    fn add(&self, path: &Path, found: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
        let about = self.root.join(path).symlink_metadata()?;
        if !path.as_os_str().is_empty() && !self.is_ignored(path) {
            found.insert(path.to_owned());
        }
        if about.is_dir() {
            self.walk(path, found)?;
        }
        Ok(())
    }

    fn walk(&self, directory: &Path, found: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
        let path = self.root.join(directory);
        let listed = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
        for entry in listed {
            self.add(&directory.join(entry?.file_name()), found)?;
        }
        Ok(())
    }

    fn is_ignored(&self, path: &Path) -> bool {
        let mut ignored = false;
        for pattern in &self.ignored {
            // What is below a directory goes with it.
            let hit = path
                .ancestors()
                .filter(|above| !above.as_os_str().is_empty())
                .any(|above| matches(&pattern.text, &above.to_string_lossy()));
            if hit {
                ignored = !pattern.back;
            }
        }
        ignored
    }

    /// What some files are known by: their paths, modes and content.
    pub(super) fn hash(
        &self,
        found: &[PathBuf],
        source: &str,
        target: &str,
    ) -> anyhow::Result<String> {
        let mut sum = Sha256::new();
        sum.update(format!("{source}\0{target}\0"));
        for path in found {
            let full = self.root.join(path);
            let about = full.symlink_metadata()?;
            sum.update(path.as_os_str().as_encoded_bytes());
            sum.update([0]);
            sum.update(about.mode().to_be_bytes());
            if about.is_symlink() {
                sum.update(fs::read_link(&full)?.as_os_str().as_encoded_bytes());
            } else if about.is_file() {
                sum.update(about.len().to_be_bytes());
                let mut file =
                    File::open(&full).with_context(|| format!("read {}", full.display()))?;
                let mut buffer = vec![0; 64 << 10];
                loop {
                    match file.read(&mut buffer)? {
                        0 => break,
                        read => sum.update(&buffer[..read]),
                    }
                }
            }
        }
        Ok(sum.finalize().iter().map(|b| format!("{b:02x}")).collect())
    }

    /// An archive of some files, in a file without a name.
    pub(super) fn archive(&self, found: &[PathBuf]) -> anyhow::Result<File> {
        let file = tempfile::tempfile().context("make a file for the archive")?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
        archive.follow_symlinks(false);
        for path in found {
            let full = self.root.join(path);
            let about = full.symlink_metadata()?;
            if !about.is_file() && !about.is_dir() && !about.is_symlink() {
                bail!(
                    "{} is neither a file nor a directory nor a link",
                    full.display()
                );
            }
            let packed = if about.is_file() {
                let mut header = tar::Header::new_gnu();
                header.set_size(about.len());
                header.set_mode(about.permissions().mode() & 0o7777);
                header.set_cksum();
                archive.append_data(&mut header, path, File::open(&full)?)
            } else {
                archive.append_path_with_name(&full, path)
            };
            packed.with_context(|| format!("pack {}", full.display()))?;
        }
        let mut file = archive.into_inner()?.finish()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

fn patterns(text: &str) -> Vec<Pattern> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (back, line) = match line.strip_prefix('!') {
                Some(line) => (true, line),
                None => (false, line),
            };
            let plain = line.trim_start_matches("./").trim_matches('/');
            Pattern {
                text: plain.to_owned(),
                back,
            }
        })
        .collect()
}

/// A path without its detours, within the directory it starts in.
fn within(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// Whether a path fits a pattern: `*` and `?` stop at a slash, `**` does not.
fn matches(pattern: &str, path: &str) -> bool {
    let Some(first) = pattern.chars().next() else {
        return path.is_empty();
    };
    let rest = &pattern[first.len_utf8()..];
    if let Some(after) = pattern.strip_prefix("**") {
        let after = after.strip_prefix('/').unwrap_or(after);
        let tails = path.char_indices().map(|(at, _)| &path[at..]);
        return tails.chain([""]).any(|tail| matches(after, tail));
    }
    match first {
        '*' => {
            let stop = path.find('/').unwrap_or(path.len());
            let cuts = path[..stop].char_indices().map(|(at, _)| at);
            cuts.chain([stop]).any(|at| matches(rest, &path[at..]))
        }
        letter => {
            let Some(next) = path.chars().next() else {
                return false;
            };
            (next == letter || (letter == '?' && next != '/'))
                && matches(rest, &path[next.len_utf8()..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_dockerignore() {
        for (pattern, path, fits) in [
            ("*.py", "a.py", true),
            ("*.py", "b/a.py", false),
            ("**/*.py", "b/c/a.py", true),
            ("**/*.py", "a.py", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("b/*", "b/c", true),
            ("b/*", "b/c/d", false),
        ] {
            assert_eq!(matches(pattern, path), fits, "{pattern} {path}");
        }
    }

    #[test]
    fn files_are_found_without_what_is_ignored_and_known_by_their_content() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            kit::durable::write_file(&path, text.as_bytes(), 0o644).unwrap();
        };
        for name in [
            "app/a.py",
            "app/node_modules/x/y.js",
            "app/keep.log",
            "app/b.log",
        ] {
            write(name, "text");
        }
        write(
            ".dockerignore",
            "**/node_modules\n# no\n**/*.log\n!app/keep.log\n",
        );
        let files = Files::open(root.path()).unwrap();
        let names = |source: &str| -> Vec<String> {
            let found = files.find(source).unwrap().into_iter();
            found.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(names("app"), ["app", "app/a.py", "app/keep.log"]);
        assert_eq!(names("app/*.py"), ["app/a.py"]);
        assert!(files.find("../x").is_err() && files.find("/etc").is_err());
        assert!(files.find("none").is_err());
        let found = files.find("app").unwrap();
        let before = files.hash(&found, "app", "/").unwrap();
        assert_eq!(before, files.hash(&found, "app", "/").unwrap());
        write("app/a.py", "else");
        assert_ne!(before, files.hash(&found, "app", "/").unwrap());
        let archive = files.archive(&found).unwrap();
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        assert_eq!(read.entries().unwrap().count(), 3);
    }
}
