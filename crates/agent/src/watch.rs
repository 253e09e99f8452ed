//! Watching directories, by inotify.
//!
//! A watch has an inotify descriptor of its own. Its task reads it as events come; so does every
//! call that must not be early: the one that takes a watcher's events, and those that make
//! directories, which a recursive watch must see before anything is put into them.
//!
//! A directory that appears is watched and then looked into: what was put into it before the watch
//! was in place has no events of its own, so they are made up. What was put there after it has
//! both, and the second is dropped.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::{OsStr, OsString},
    fs,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, mpsc},
};
use tokio_util::sync::CancellationToken;
use wire::{
    connect::{Code, Error},
    filesystem::{EventType, FilesystemEvent},
};

use crate::{entry, fan::Listener, poll, server::Agent, users::Names};

/// What a watcher remembers for a client that does not ask.
const MAX_KEPT: usize = 65_536;
/// Events on their way to a client.
const QUEUE: usize = 64;

/// One thing that a client of a stream is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Start,
    Change(Box<FilesystemEvent>),
}

/// A watch on a directory.
#[derive(Debug)]
pub(crate) struct Watch {
    state: Mutex<State>,
    fd: AsyncFd<OwnedFd>,
    more: Notify,
    stop: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// Where the directory really is.
    root: PathBuf,
    /// What its client calls it.
    shown: PathBuf,
    recursive: bool,
    include_entry: bool,
    /// Watched directories, relative to the root.
    dirs: HashMap<i32, PathBuf>,
    events: VecDeque<FilesystemEvent>,
    /// What was made up and may still come for real.
    made_up: HashSet<(i32, OsString)>,
    failed: Option<Error>,
}

fn mask() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVE_SELF
        | WatchFlags::ATTRIB
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::ONLYDIR
}

fn watch_error(path: &Path, why: Errno) -> Error {
    match why {
        Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::NOMEM => Error::new(
            Code::ResourceExhausted,
            format!(
                "watch '{}': the kernel's limit for inotify is reached: {why}",
                path.display()
            ),
        ),
        _ => entry::error("watch", path, &why.into()),
    }
}

impl Watch {
    /// Watches the directory `root`, which its client calls `shown`.
    pub(crate) fn new(
        root: &Path,
        shown: &Path,
        recursive: bool,
        include_entry: bool,
    ) -> Result<Self, Error> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|why| watch_error(shown, why))?;
        let mut state = State {
            root: root.to_owned(),
            shown: shown.to_owned(),
            recursive,
            include_entry,
            dirs: HashMap::new(),
            events: VecDeque::new(),
            made_up: HashSet::new(),
            failed: None,
        };
        state.add(&fd, Path::new(""), false)?;
        let fd =
            poll::watched(fd).map_err(|why| Error::new(Code::Internal, format!("watch: {why}")))?;
        Ok(Self {
            state: Mutex::new(state),
            fd,
            more: Notify::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Reads everything the kernel has for us.
    fn catch_up(&self) {
        let mut state = self.state.lock();
        let before = state.events.len();
        state.drain(self.fd.get_ref());
        if state.events.len() != before || state.failed.is_some() {
            self.more.notify_one();
        }
    }

    async fn follow(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                ready = self.fd.readable() => match ready {
                    Ok(mut ready) => {
                        ready.clear_ready();
                        self.catch_up();
                    }
                    Err(_) => return,
                },
            }
        }
    }
}

impl State {
    /// Watches a directory, and in a recursive watch those below it.
    fn add(&mut self, fd: &OwnedFd, dir: &Path, appeared: bool) -> Result<(), Error> {
        let path = self.root.join(dir);
        let wd = match inotify::add_watch(fd, &path, mask()) {
            Ok(wd) => wd,
            // Gone again, or replaced by something else; its events tell.
            Err(Errno::NOENT | Errno::NOTDIR) if !dir.as_os_str().is_empty() => return Ok(()),
            Err(why) => return Err(watch_error(&path, why)),
        };
        self.dirs.insert(wd, dir.to_owned());
        if !self.recursive {
            return Ok(());
        }
        let Ok(found) = fs::read_dir(&path) else {
            return Ok(());
        };
        for found in found.flatten() {
            let (name, kind) = (found.file_name(), found.file_type());
            let inner = dir.join(&name);
            if appeared {
                self.made_up.insert((wd, name));
                self.push(&inner, EventType::Create);
                let has_content = found.metadata().is_ok_and(|m| m.is_file() && m.len() > 0);
                if has_content {
                    self.push(&inner, EventType::Write);
                }
            }
            if kind.is_ok_and(|kind| kind.is_dir()) {
                self.add(fd, &inner, appeared)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, name: &Path, kind: EventType) {
        if self.events.len() >= MAX_KEPT {
            self.fail("more changes than are kept: ask for events more often");
            return;
        }
        let described = matches!(
            kind,
            EventType::Create | EventType::Write | EventType::Chmod
        );
        let entry = (self.include_entry && described)
            .then(|| {
                let (path, shown) = (self.root.join(name), self.shown.join(name));
                let metadata = fs::symlink_metadata(&path).ok()?;
                entry::describe(&path, &shown, &metadata, &Names::read()).ok()
            })
            .flatten();
        let name = if name.as_os_str().is_empty() {
            Path::new(".")
        } else {
            name
        };
        self.events.push_back(FilesystemEvent {
            name: name.to_string_lossy().into_owned(),
            kind: kind.into(),
            entry,
        });
    }

    fn fail(&mut self, why: &str) {
        self.failed
            .get_or_insert_with(|| Error::new(Code::ResourceExhausted, format!("watch: {why}")));
    }

    fn drain(&mut self, fd: &OwnedFd) {
        let mut room = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(fd, &mut room);
        while self.failed.is_none() {
            match reader.next() {
                Ok(event) => {
                    let name = event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.take(fd, event.wd(), name, event.events());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Whatever was made up has now come, or never will.
                    self.made_up.clear();
                    return;
                }
                Err(why) => {
                    self.failed = Some(watch_error(&self.shown, why));
                }
            }
        }
    }

    fn take(&mut self, fd: &OwnedFd, wd: i32, name: Option<&OsStr>, flags: ReadFlags) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.fail("the kernel dropped changes: there were too many at once");
            return;
        }
        let Some(dir) = self.dirs.get(&wd).cloned() else {
            return;
        };
        if flags.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&wd);
            return;
        }
        let is_root = dir.as_os_str().is_empty();
        let path = match name {
            Some(name) => dir.join(name),
            // About the directory itself: of one below, the one above has told already.
            None if is_root => dir,
            None => return,
        };
        let appeared = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        if let Some(name) = name
            && appeared
            && self.made_up.remove(&(wd, name.to_owned()))
        {
            return;
        }
        for (set, kind) in [
            (ReadFlags::CREATE | ReadFlags::MOVED_TO, EventType::Create),
            (
                ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF,
                EventType::Rename,
            ),
            (ReadFlags::ATTRIB, EventType::Chmod),
            (ReadFlags::MODIFY, EventType::Write),
            (
                ReadFlags::DELETE | ReadFlags::DELETE_SELF,
                EventType::Remove,
            ),
        ] {
            if flags.intersects(set) {
                self.push(&path, kind);
            }
        }
        if self.recursive && flags.contains(ReadFlags::ISDIR) && name.is_some() {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.forget(fd, &path);
            }
            if appeared && let Err(why) = self.add(fd, &path, true) {
                self.failed.get_or_insert(why);
            }
        }
    }

    /// A directory went elsewhere: what happens there is no longer ours to tell.
    fn forget(&mut self, fd: &OwnedFd, dir: &Path) {
        self.dirs.retain(|wd, watched| {
            let below = watched.starts_with(dir);
            if below {
                inotify::remove_watch(fd, *wd).ok();
            }
            !below
        });
    }
}

/// The watches.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    all: HashMap<u64, Arc<Watch>>,
}

impl Watchers {
    fn insert(&self, agent: &Arc<Agent>, watch: Arc<Watch>) -> u64 {
        agent.tasks.spawn(Arc::clone(&watch).follow());
        let mut table = self.0.lock();
        table.last += 1;
        let id = table.last;
        table.all.insert(id, watch);
        id
    }

    fn drop_watch(&self, id: u64) -> bool {
        let removed = self.0.lock().all.remove(&id);
        if let Some(watch) = &removed {
            watch.stop.cancel();
        }
        removed.is_some()
    }

    /// Makes every watch see what has happened so far.
    pub(crate) fn catch_up(&self) {
        let all: Vec<_> = self.0.lock().all.values().cloned().collect();
        for watch in all {
            watch.catch_up();
        }
    }

    /// Keeps a watch for a client that asks from time to time.
    pub(crate) fn keep(&self, agent: &Arc<Agent>, watch: Arc<Watch>) -> String {
        format!("w{}", self.insert(agent, watch))
    }

    fn find(&self, id: &str) -> Result<(u64, Arc<Watch>), Error> {
        let number = id.strip_prefix('w').and_then(|number| number.parse().ok());
        let table = self.0.lock();
        number
            .and_then(|number| Some((number, table.all.get(&number)?.clone())))
            .ok_or_else(|| Error::new(Code::NotFound, format!("watcher with id {id} not found")))
    }

    pub(crate) fn take_events(&self, id: &str) -> Result<Vec<FilesystemEvent>, Error> {
        let (_, watch) = self.find(id)?;
        let mut state = watch.state.lock();
        state.drain(watch.fd.get_ref());
        let events: Vec<_> = state.events.drain(..).collect();
        match &state.failed {
            Some(why) if events.is_empty() => Err(why.clone()),
            _ => Ok(events),
        }
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), Error> {
        let (number, _) = self.find(id)?;
        self.drop_watch(number);
        Ok(())
    }

    /// Sends what a watch sees to a client, for as long as it listens.
    pub(crate) fn stream(&self, agent: &Arc<Agent>, watch: Arc<Watch>) -> Listener<Seen> {
        let (sender, listener) = mpsc::channel(QUEUE);
        let id = self.insert(agent, Arc::clone(&watch));
        let owner = Arc::clone(agent);
        agent.tasks.spawn(async move {
            tokio::select! {
                () = send_events(&watch, &sender) => {}
                () = sender.closed() => {}
            }
            owner.watchers.drop_watch(id);
        });
        listener
    }
}

async fn send_events(watch: &Watch, sender: &mpsc::Sender<Result<Seen, Error>>) {
    if sender.send(Ok(Seen::Start)).await.is_err() {
        return;
    }
    loop {
        let (event, failed) = {
            let mut state = watch.state.lock();
            (state.events.pop_front(), state.failed.clone())
        };
        let message = match (event, failed) {
            (Some(event), _) => Ok(Seen::Change(Box::new(event))),
            (None, Some(why)) => Err(why),
            (None, None) => {
                watch.more.notified().await;
                continue;
            }
        };
        let last = message.is_err();
        if sender.send(message).await.is_err() || last {
            return;
        }
    }
}
