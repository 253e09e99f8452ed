//! Builds as they are remembered: read from disk, changed there, ended and forgotten.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use model::{Name, Namespace, Timestamp, Uid};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    builder::Builder,
    error::{Failure, Result, Stage},
    log::{Level, Line, Log},
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
}

impl Entry {
    pub(crate) fn find(&self) -> Build {
        self.build.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Build)) -> io::Result<()> {
        let text = {
            let mut build = self.build.lock();
            change(&mut build);
            serde_json::to_vec_pretty(&*build)?
        };
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
            };
            if open && entry.find().asked {
                let why = "the server was stopped while it was built: build it again; what its \
                           steps had left is used again";
                self.end(
                    &entry,
                    Err(Failure {
                        stage: None,
                        message: why.into(),
                    }),
                );
            }
            self.builds.lock().insert(id, Arc::new(entry));
        }
        Ok(())
    }

    pub(crate) fn open_builds(&self) -> Vec<Uid> {
        let builds = self.builds.lock();
        let open = builds.iter().filter(|(_, entry)| {
            let build = entry.build.lock();
            build.asked && !build.state.is_over()
        });
        open.map(|(id, _)| *id).collect()
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
        let written = entry.change(|build| {
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
        if let Err(error) = written {
            tracing::warn!(%error, "the end of a build is not on disk");
        }
        entry.log.close();
    }

    /// Drops builds of which nobody said what they are.
    pub(crate) fn forget_unasked(&self, now: Timestamp) {
        self.forget(|build| {
            let stale = now.since(build.created_at) > UNASKED;
            stale && !build.asked && !build.state.is_over()
        });
    }

    /// Drops the oldest of those that are over.
    pub(crate) fn forget_old(&self) {
        let mut over: Vec<(Timestamp, Uid)> = {
            let builds = self.builds.lock();
            let all = builds.values().map(|entry| entry.find());
            all.filter(|build| build.state.is_over())
                .map(|build| (build.created_at, build.id))
                .collect()
        };
        let surplus = over.len().saturating_sub(self.options.keep_builds);
        over.sort();
        over.truncate(surplus);
        self.forget(|build| over.iter().any(|(_, id)| *id == build.id));
    }

    fn forget(&self, which: impl Fn(&Build) -> bool) {
        self.builds.lock().retain(|_, entry| {
            let gone = which(&entry.build.lock());
            if gone {
                fs::remove_dir_all(&entry.directory).ok();
            }
            !gone
        });
    }

    /// Ends the builds of a template, and forgets them.
    pub(crate) fn cancel(&self, team: &Namespace, template: &Name) -> usize {
        let mut ended = 0;
        self.builds.lock().retain(|_, entry| {
            let build = entry.build.lock();
            if build.team() != team || build.template != *template {
                return true;
            }
            ended += 1;
            entry.deleted.cancel();
            if !build.asked || build.state.is_over() {
                fs::remove_dir_all(&entry.directory).ok();
            }
            false
        });
        ended
    }
}
