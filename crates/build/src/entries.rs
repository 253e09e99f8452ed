//! Builds as they are remembered: read from disk, changed there, ended and forgotten.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use model::{Level, Name, Namespace, Timestamp, Uid};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    builder::Builder,
    error::{Doing as _, Failure, Result, Stage},
    log::{Line, Log},
    record::{Build, Reason, State},
};

/// How long a build may wait for being told what it is.
const UNASKED: Duration = Duration::from_secs(3600);

/// One build.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) build: Mutex<Build>,
    pub(crate) log: Log,
    pub(crate) deleted: CancellationToken,
    pub(crate) directory: PathBuf,
    /// Held by whoever writes it to disk: nobody who looks at it waits for that.
    pub(crate) writing: Mutex<()>,
}

impl Entry {
    pub(crate) fn find(&self) -> Build {
        self.build.lock().clone()
    }

    /// Changes it, if `change` does not refuse and the disk takes it; else it is as it was.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Build) -> Result<()>) -> Result<()> {
        let _alone = self.writing.lock();
        let mut next = self.find();
        change(&mut next)?;
        self.write(&next).doing("write a build")?;
        *self.build.lock() = next;
        Ok(())
    }

    /// Changes it, also if that cannot be written: it is so, whatever the disk says.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Build)) {
        let _alone = self.writing.lock();
        let next = {
            let mut build = self.build.lock();
            change(&mut build);
            build.clone()
        };
        if let Err(error) = self.write(&next) {
            tracing::warn!(%error, "the state of a build is not on disk");
        }
    }

    fn write(&self, build: &Build) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(build)?;
        kit::durable::write_file(&self.directory.join("build.json"), &text, 0o600)
    }
}

impl Builder {
    pub(crate) fn load(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let directory = entry?.path();
            let read = fs::read(directory.join("build.json"));
            let read = read.and_then(|text| Ok(serde_json::from_slice::<Build>(&text)?));
            let build = match read {
                Ok(build) => build,
                Err(error) => {
                    let path = directory.display();
                    tracing::warn!(%path, %error, "a build that cannot be read is forgotten");
                    fs::remove_dir_all(&directory)?;
                    continue;
                }
            };
            let log = directory.join("log.jsonl");
            let open = !build.state.is_over();
            let id = build.id;
            let entry = Entry {
                log: match open {
                    true => Log::new(log)?,
                    false => Log::closed(log),
                },
                build: Mutex::new(build),
                deleted: CancellationToken::new(),
                directory,
                writing: Mutex::default(),
            };
            self.builds.lock().insert(id, Arc::new(entry));
        }
        Ok(())
    }

    /// Those that were started and are not over.
    pub(crate) fn open_builds(&self) -> Vec<Arc<Entry>> {
        let builds = self.builds.lock();
        let open = builds.values().filter(|entry| {
            let build = entry.build.lock();
            build.asked && !build.state.is_over()
        });
        open.cloned().collect()
    }

    pub(crate) fn end(&self, entry: &Entry, outcome: Result<(), Failure>) {
        let now = self.now();
        if let Err(failure) = &outcome {
            entry.log.add(Line {
                at: now,
                level: Level::Error,
                message: failure.message.clone(),
                step: failure.stage.as_ref().map(Stage::to_string),
            });
        }
        entry.note(|build| {
            build.finished_at = Some(now);
            match outcome {
                Ok(()) => build.state = State::Ready,
                Err(failure) => {
                    build.state = State::Error;
                    build.reason = Some(Reason {
                        message: failure.message,
                        step: failure.stage.as_ref().map(Stage::to_string),
                    });
                }
            }
        });
        entry.log.close();
    }

    /// Drops builds of which nobody said what they are.
    pub(crate) fn forget_unasked(&self, now: Timestamp) {
        self.forget(|build| {
            let stale = now.since(build.created_at) > UNASKED;
            stale && !build.asked && !build.state.is_over()
        });
    }

    /// Drops what was over first of each team, down to as many as are remembered.
    pub(crate) fn forget_old(&self) {
        let mut over: BTreeMap<Namespace, Vec<(Timestamp, Uid)>> = BTreeMap::new();
        for entry in self.builds.lock().values() {
            let build = entry.build.lock();
            if build.state.is_over() {
                let at = build.finished_at.unwrap_or(build.created_at);
                let team = over.entry(build.team().clone()).or_default();
                team.push((at, build.id));
            }
        }
        let mut old: BTreeSet<Uid> = BTreeSet::new();
        for team in over.values_mut() {
            let surplus = team.len().saturating_sub(self.options.keep_builds);
            team.sort();
            old.extend(team[..surplus].iter().map(|(_, id)| *id));
        }
        self.forget(|build| old.contains(&build.id));
    }

    fn forget(&self, which: impl Fn(&Build) -> bool) {
        let mut gone = Vec::new();
        self.builds.lock().retain(|_, entry| {
            let goes = which(&entry.build.lock());
            if goes {
                gone.push(Arc::clone(entry));
            }
            !goes
        });
        for entry in gone {
            fs::remove_dir_all(&entry.directory).ok();
        }
    }

    /// Ends the builds of a template, and forgets them.
    pub(crate) fn cancel(&self, team: &Namespace, template: &Name) {
        let mut idle = Vec::new();
        self.builds.lock().retain(|_, entry| {
            let build = entry.build.lock();
            if build.team() != team || build.template != *template {
                return true;
            }
            entry.deleted.cancel();
            // Of one that runs, its own end removes it.
            if !build.asked || build.state.is_over() {
                idle.push(Arc::clone(entry));
            }
            false
        });
        for entry in idle {
            fs::remove_dir_all(&entry.directory).ok();
        }
    }
}
