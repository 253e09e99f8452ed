//! `filesystem.Filesystem`: files and directories by name.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use wire::{
    connect::{Code, Codec, Error},
    filesystem::{
        EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, Nothing,
        PathRequest, WatchDirResponse, WatchRequest, Watcher, WatcherEventsResponse,
    },
    process::Empty,
};

use crate::{
    entry::{self, error},
    fan::Listener,
    paths,
    rpc::{Call, Writer},
    server::Agent,
    users::{Names, User},
    watch,
};

impl Agent {
    fn resolve(&self, call: &Call, path: &str) -> Result<(PathBuf, User), Error> {
        let user = self.user(call.username.as_deref())?;
        let path = paths::resolve(path.as_bytes(), &user, &self.settings.default_workdir())?;
        Ok((path, user))
    }

    /// Work that waits for disks, where nobody waits for it.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|why| Error::new(Code::Internal, format!("file work: {why}")))
    }
}

/// What a client sees of an entry.
fn shown(call: &Call, entry: EntryInfo) -> EntryInfo {
    if call.old_client {
        return EntryInfo {
            name: entry.name,
            kind: entry.kind,
            path: entry.path,
            ..EntryInfo::default()
        };
    }
    entry
}

fn read_entry(path: &Path) -> Result<EntryInfo, Error> {
    entry::read(path, &Names::read()).map_err(|why| error("stat", path, &why))
}

pub(crate) async fn stat(
    agent: Arc<Agent>,
    call: Call,
    request: PathRequest,
) -> Result<EntryResponse, Error> {
    let (path, _) = agent.resolve(&call, &request.path)?;
    let entry = agent.blocking(move || read_entry(&path)).await??;
    Ok(EntryResponse {
        entry: Some(shown(&call, entry)),
    })
}

pub(crate) async fn make_dir(
    agent: Arc<Agent>,
    call: Call,
    request: PathRequest,
) -> Result<EntryResponse, Error> {
    let (path, user) = agent.resolve(&call, &request.path)?;
    let made = agent.blocking(move || {
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => {
                return Err(Error::new(
                    Code::AlreadyExists,
                    format!("directory already exists: {}", path.display()),
                ));
            }
            Ok(_) => {
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!(
                        "path already exists but it is not a directory: {}",
                        path.display()
                    ),
                ));
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => return Err(error("stat", &path, &why)),
        }
        entry::ensure_dirs(&path, &user)?;
        read_entry(&path)
    });
    let entry = made.await??;
    // Who watches must see what comes into it next.
    agent.watchers.catch_up();
    Ok(EntryResponse {
        entry: Some(shown(&call, entry)),
    })
}

pub(crate) async fn move_entry(
    agent: Arc<Agent>,
    call: Call,
    request: MoveRequest,
) -> Result<EntryResponse, Error> {
    let (source, user) = agent.resolve(&call, &request.source)?;
    let (destination, _) = agent.resolve(&call, &request.destination)?;
    let moved = agent.blocking(move || {
        fs::symlink_metadata(&source).map_err(|why| error("move", &source, &why))?;
        if let Some(parent) = destination.parent() {
            entry::ensure_dirs(parent, &user)?;
        }
        fs::rename(&source, &destination).map_err(|why| error("move", &source, &why))?;
        read_entry(&destination)
    });
    let entry = moved.await??;
    agent.watchers.catch_up();
    Ok(EntryResponse {
        entry: Some(shown(&call, entry)),
    })
}

pub(crate) async fn remove(
    agent: Arc<Agent>,
    call: Call,
    request: PathRequest,
) -> Result<Empty, Error> {
    let (path, _) = agent.resolve(&call, &request.path)?;
    if path.parent().is_none() {
        return Err(Error::new(
            Code::InvalidArgument,
            "the root directory cannot be removed",
        ));
    }
    agent
        .blocking(move || {
            let removed = match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(why) => Err(why),
            };
            match removed {
                Err(why)
                    if !matches!(
                        why.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    Err(error("remove", &path, &why))
                }
                // What is not there is removed.
                _ => Ok(Empty {}),
            }
        })
        .await?
}

pub(crate) async fn list_dir(
    agent: Arc<Agent>,
    call: Call,
    request: ListDirRequest,
) -> Result<ListDirResponse, Error> {
    let (path, _) = agent.resolve(&call, &request.path)?;
    let depth = request.depth.max(1);
    let listed = agent.blocking(move || {
        let real = real_dir(&path)?;
        let mut entries = Vec::new();
        walk(&real, &path, depth, &Names::read(), &mut entries)
            .map_err(|why| error("list", &path, &why))?;
        Ok::<_, Error>(entries)
    });
    let entries = listed.await??;
    Ok(ListDirResponse {
        entries: entries
            .into_iter()
            .map(|entry| shown(&call, entry))
            .collect(),
    })
}

/// The directory that a path leads to.
fn real_dir(path: &Path) -> Result<PathBuf, Error> {
    let real = fs::canonicalize(path).map_err(|why| error("resolve", path, &why))?;
    let found = fs::metadata(&real).map_err(|why| error("stat", path, &why))?;
    if !found.is_dir() {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("path is not a directory: {}", path.display()),
        ));
    }
    Ok(real)
}

/// Depth first, by name in bytes; links are not followed.
fn walk(
    real: &Path,
    shown: &Path,
    depth: u32,
    names: &Names,
    entries: &mut Vec<EntryInfo>,
) -> io::Result<()> {
    let mut found: Vec<_> = fs::read_dir(real)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    found.sort_unstable();
    for name in found {
        let (real, shown) = (real.join(&name), shown.join(&name));
        // What goes away while we look was never there.
        let Ok(metadata) = fs::symlink_metadata(&real) else {
            continue;
        };
        entries.push(entry::describe(&real, &shown, &metadata, names)?);
        if metadata.is_dir() && depth > 1 {
            match walk(&real, &shown, depth - 1, names, entries) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Filesystems on which the changes of others are not seen.
const REMOTE: [(i64, &str); 5] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x6573_5546, "FUSE"),
];

async fn watch(
    agent: &Arc<Agent>,
    call: &Call,
    request: &WatchRequest,
) -> Result<Arc<watch::Watch>, Error> {
    let (path, _) = agent.resolve(call, &request.path)?;
    let (recursive, include_entry) = (request.recursive, request.include_entry && !call.old_client);
    let allow_remote = request.allow_network_mounts;
    agent
        .blocking(move || {
            let real = real_dir(&path)?;
            if !allow_remote {
                let found =
                    rustix::fs::statfs(&real).map_err(|why| error("statfs", &path, &why.into()))?;
                let kind = i64::from_ne_bytes((found.f_type as i64).to_ne_bytes()) & 0xffff_ffff;
                if let Some((_, name)) = REMOTE.iter().find(|(magic, _)| *magic == kind) {
                    return Err(Error::new(
                        Code::InvalidArgument,
                        format!(
                            "cannot watch path on network filesystem mount ({name}): {}: \
                             set allow_network_mounts to watch what is changed from here",
                            path.display()
                        ),
                    ));
                }
            }
            watch::Watch::new(&real, &path, recursive, include_entry)
        })
        .await?
        .map(Arc::new)
}

pub(crate) async fn watch_dir(
    agent: Arc<Agent>,
    call: Call,
    request: WatchRequest,
) -> Result<Listener<watch::Seen>, Error> {
    let watch = watch(&agent, &call, &request).await?;
    Ok(agent.watchers.stream(&agent, watch))
}

pub(crate) async fn create_watcher(
    agent: Arc<Agent>,
    call: Call,
    request: WatchRequest,
) -> Result<Watcher, Error> {
    let watch = watch(&agent, &call, &request).await?;
    Ok(Watcher {
        watcher_id: agent.watchers.keep(&agent, watch),
    })
}

pub(crate) async fn get_watcher_events(
    agent: Arc<Agent>,
    _: Call,
    request: Watcher,
) -> Result<WatcherEventsResponse, Error> {
    let events = agent.watchers.take_events(&request.watcher_id)?;
    Ok(WatcherEventsResponse { events })
}

pub(crate) async fn remove_watcher(
    agent: Arc<Agent>,
    _: Call,
    request: Watcher,
) -> Result<Empty, Error> {
    agent.watchers.remove(&request.watcher_id)?;
    Ok(Empty {})
}

/// How the events of a watch are written.
pub(crate) static WATCH: Writer<watch::Seen> = Writer {
    event: write_seen,
    keepalive: write_keepalive,
};

fn write_keepalive(codec: Codec) -> Bytes {
    codec.envelope(&WatchDirResponse {
        keepalive: Some(Nothing {}),
        ..WatchDirResponse::default()
    })
}

fn write_seen(codec: Codec, seen: watch::Seen, queue: &mut VecDeque<Bytes>) {
    let message = match seen {
        watch::Seen::Start => WatchDirResponse {
            start: Some(Nothing {}),
            ..WatchDirResponse::default()
        },
        watch::Seen::Change(event) => WatchDirResponse {
            filesystem: Some(*event),
            ..WatchDirResponse::default()
        },
    };
    queue.push_back(codec.envelope(&message));
}
