use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use wire::{
    connect::{Code, Codec, Error},
    filesystem::{
        EventType, FilesystemEvent, PathRequest, WatchDirResponse, WatchRequest, Watcher,
        WatcherEventsResponse,
    },
    process::Empty,
};

use crate::client::{BOTH, Served, Stream, code, serve};

fn temp() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    (dir, path)
}

/// A file with one byte.
fn put(path: impl AsRef<Path>) {
    fs::File::create(path).unwrap().write_all(b"x").unwrap();
}

fn on(path: &Path, recursive: bool) -> WatchRequest {
    WatchRequest {
        path: path.to_str().unwrap().to_owned(),
        recursive,
        ..WatchRequest::default()
    }
}

async fn watch(agent: &Served, codec: Codec, message: &WatchRequest) -> Result<Watcher, Error> {
    agent
        .call(codec, "/filesystem.Filesystem/CreateWatcher", message, &[])
        .await
}

async fn events(
    agent: &Served,
    codec: Codec,
    watcher: &Watcher,
) -> Result<Vec<FilesystemEvent>, Error> {
    let answer: WatcherEventsResponse = agent
        .call(
            codec,
            "/filesystem.Filesystem/GetWatcherEvents",
            watcher,
            &[],
        )
        .await?;
    Ok(answer.events)
}

fn short(events: &[FilesystemEvent]) -> Vec<(&str, EventType)> {
    events
        .iter()
        .map(|event| {
            (
                event.name.as_str(),
                EventType::try_from(event.kind).unwrap(),
            )
        })
        .collect()
}

async fn upload(agent: &Served, path: &Path, content: &str) {
    let path = format!("/files?path={}", path.to_str().unwrap());
    let answer = agent
        .post(
            &path,
            &[("content-type", "application/octet-stream")],
            content.to_owned(),
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

const NEW_FILE: [EventType; 3] = [EventType::Create, EventType::Chmod, EventType::Write];

#[tokio::test]
async fn an_upload_is_three_events_and_no_more() {
    let agent = serve().await;
    for codec in BOTH {
        let (_guard, dir) = temp();
        let watcher = watch(&agent, codec, &on(&dir, false)).await.unwrap();
        upload(&agent, &dir.join("f"), "content").await;
        let seen = events(&agent, codec, &watcher).await.unwrap();
        assert_eq!(short(&seen), NEW_FILE.map(|kind| ("f", kind)));
        assert!(seen.iter().all(|event| event.entry.is_none()));
        assert!(
            events(&agent, codec, &watcher).await.unwrap().is_empty(),
            "they are taken once"
        );
        agent
            .call::<_, Empty>(codec, "/filesystem.Filesystem/RemoveWatcher", &watcher, &[])
            .await
            .unwrap();
        assert_eq!(code(events(&agent, codec, &watcher).await), Code::NotFound);
        let again: Result<Empty, _> = agent
            .call(codec, "/filesystem.Filesystem/RemoveWatcher", &watcher, &[])
            .await;
        assert_eq!(code(again), Code::NotFound);
    }
}

#[tokio::test]
async fn what_happens_to_entries_is_told_in_order() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let watcher = watch(&agent, Codec::Json, &on(&dir, false)).await.unwrap();
    let mut file = fs::File::create(dir.join("f")).unwrap();
    file.write_all(b"x").unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .unwrap();
    drop(file);
    fs::rename(dir.join("f"), dir.join("g")).unwrap();
    fs::remove_file(dir.join("g")).unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    put(dir.join("d/inside"));
    fs::remove_dir_all(dir.join("d")).unwrap();
    let seen = events(&agent, Codec::Json, &watcher).await.unwrap();
    assert_eq!(
        short(&seen),
        [
            ("f", EventType::Create),
            ("f", EventType::Write),
            ("f", EventType::Chmod),
            ("f", EventType::Rename),
            ("g", EventType::Create),
            ("g", EventType::Remove),
            ("d", EventType::Create),
            ("d", EventType::Remove),
        ]
    );
    fs::remove_dir(&dir).unwrap();
    let seen = events(&agent, Codec::Json, &watcher).await.unwrap();
    assert_eq!(short(&seen), [(".", EventType::Remove)]);
    fs::create_dir(&dir).unwrap();
}

#[tokio::test]
async fn a_recursive_watch_misses_nothing_in_new_directories() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    fs::create_dir_all(dir.join("old/deep")).unwrap();
    let watcher = watch(&agent, Codec::Json, &on(&dir, true)).await.unwrap();
    upload(&agent, &dir.join("old/deep/f"), "x").await;
    upload(&agent, &dir.join("a/b/f"), "x").await;
    let message = PathRequest {
        path: dir.join("c").to_str().unwrap().to_owned(),
    };
    agent
        .call::<_, wire::filesystem::EntryResponse>(
            Codec::Json,
            "/filesystem.Filesystem/MakeDir",
            &message,
            &[],
        )
        .await
        .unwrap();
    upload(&agent, &dir.join("c/f"), "x").await;
    let seen = events(&agent, Codec::Json, &watcher).await.unwrap();
    for name in ["old/deep/f", "a/b/f", "c/f"] {
        let mine: Vec<_> = short(&seen)
            .into_iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, k)| k)
            .collect();
        assert_eq!(mine, NEW_FILE, "{name} in {seen:?}");
    }
    for name in ["a", "a/b", "c"] {
        let created = short(&seen)
            .iter()
            .filter(|e| **e == (name, EventType::Create))
            .count();
        assert_eq!(created, 1, "{name} in {seen:?}");
    }
}

#[tokio::test]
async fn trees_made_at_once_by_programs_are_seen_exactly_once() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let watcher = watch(&agent, Codec::Json, &on(&dir, true)).await.unwrap();
    for round in 0..50 {
        let deep = dir.join(format!("{round}/b/c"));
        fs::create_dir_all(&deep).unwrap();
        put(deep.join("f"));
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.extend(events(&agent, Codec::Json, &watcher).await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for round in 0..50 {
        for name in [
            format!("{round}"),
            format!("{round}/b"),
            format!("{round}/b/c"),
            format!("{round}/b/c/f"),
        ] {
            let count = |kind| {
                short(&seen)
                    .iter()
                    .filter(|e| **e == (name.as_str(), kind))
                    .count()
            };
            assert_eq!(count(EventType::Create), 1, "{name}");
            if name.ends_with('f') {
                assert!(count(EventType::Write) >= 1, "{name}");
            }
        }
    }
    // A directory that is moved away is no longer told of; one that is moved in is.
    let (_other_guard, other) = temp();
    fs::rename(dir.join("0"), other.join("0")).unwrap();
    events(&agent, Codec::Json, &watcher).await.unwrap();
    put(other.join("0/unseen"));
    assert!(
        events(&agent, Codec::Json, &watcher)
            .await
            .unwrap()
            .is_empty()
    );
    fs::rename(other.join("0"), dir.join("back")).unwrap();
    events(&agent, Codec::Json, &watcher).await.unwrap();
    put(dir.join("back/b/seen"));
    let seen = events(&agent, Codec::Json, &watcher).await.unwrap();
    assert_eq!(
        short(&seen),
        [
            ("back/b/seen", EventType::Create),
            ("back/b/seen", EventType::Write)
        ]
    );
}

#[tokio::test]
async fn entries_travel_with_events_when_asked() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let message = WatchRequest {
        include_entry: true,
        ..on(&dir, false)
    };
    let watcher = watch(&agent, Codec::Proto, &message).await.unwrap();
    upload(&agent, &dir.join("f"), "12345").await;
    let seen = events(&agent, Codec::Proto, &watcher).await.unwrap();
    assert_eq!(seen.len(), 3);
    for event in &seen {
        assert_eq!(
            event.entry.as_ref().unwrap().path,
            dir.join("f").to_str().unwrap()
        );
    }
    fs::rename(dir.join("f"), dir.join("g")).unwrap();
    fs::remove_file(dir.join("g")).unwrap();
    let seen = events(&agent, Codec::Proto, &watcher).await.unwrap();
    assert!(
        seen.iter().all(|event| event.entry.is_none()),
        "rename, gone already, remove"
    );
}

async fn next(stream: &mut Stream) -> WatchDirResponse {
    stream.next().await.expect("an event")
}

#[tokio::test]
async fn a_stream_of_changes_starts_tells_and_keeps_alive() {
    let agent = serve().await;
    for codec in BOTH {
        let (_guard, dir) = temp();
        let mut stream = agent
            .stream(
                codec,
                "/filesystem.Filesystem/WatchDir",
                &on(&dir, false),
                &[("keepalive-ping-interval", "1")],
            )
            .await;
        assert!(next(&mut stream).await.start.is_some());
        upload(&agent, &dir.join("f"), "x").await;
        for kind in NEW_FILE {
            let mut told = next(&mut stream).await;
            while told.keepalive.is_some() {
                told = next(&mut stream).await;
            }
            let event = told.filesystem.unwrap();
            assert_eq!((event.name.as_str(), event.kind), ("f", kind.into()));
        }
        assert!(next(&mut stream).await.keepalive.is_some());
    }
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    put(dir.join("f"));
    for (path, expected) in [("f", Code::InvalidArgument), ("none", Code::NotFound)] {
        let message = on(&dir.join(path), false);
        assert_eq!(code(watch(&agent, Codec::Json, &message).await), expected);
        let stream = agent
            .stream(
                Codec::Json,
                "/filesystem.Filesystem/WatchDir",
                &message,
                &[],
            )
            .await;
        assert_eq!(crate::client::failure(stream).await.code, expected);
    }
    let unknown = Watcher {
        watcher_id: "w99".to_owned(),
    };
    assert_eq!(
        code(events(&agent, Codec::Json, &unknown).await),
        Code::NotFound
    );
}

#[tokio::test]
async fn changes_that_the_kernel_dropped_are_not_hidden() {
    let agent = serve().await;
    let (_dir, dir) = temp();
    let polled = watch(&agent, Codec::Json, &on(&dir, false)).await.unwrap();
    let mut stream = agent
        .stream(
            Codec::Json,
            "/filesystem.Filesystem/WatchDir",
            &on(&dir, false),
            &[],
        )
        .await;
    assert!(next(&mut stream).await.start.is_some());
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    // The agent shares this thread: it reads nothing before this is over.
    for number in 0..limit / 2 {
        let path = dir.join((number % 100).to_string());
        put(&path);
        std::fs::remove_file(&path).unwrap();
        put(&path);
    }
    let heard = loop {
        match events(&agent, Codec::Json, &polled).await {
            Ok(events) => assert!(!events.is_empty()),
            Err(why) => break why,
        }
    };
    assert_eq!(heard.code, Code::ResourceExhausted, "{heard:?}");
    let heard = loop {
        match stream.next::<WatchDirResponse>().await {
            Ok(message) => assert!(message.filesystem.is_some() || message.keepalive.is_some()),
            Err(why) => break why,
        }
    };
    assert!(
        matches!(&heard, Err(why) if why.code == Code::ResourceExhausted),
        "{heard:?}"
    );
}
