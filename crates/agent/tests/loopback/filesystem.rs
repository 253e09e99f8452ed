use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
};

use wire::{
    connect::{Code, Codec, Error},
    filesystem::{
        EntryInfo, EntryResponse, FileType, ListDirRequest, ListDirResponse, MoveRequest,
        PathRequest,
    },
    process::Empty,
};

use crate::client::{BOTH, Served, code, serve};

fn at(path: impl AsRef<Path>) -> PathRequest {
    PathRequest {
        path: path.as_ref().to_str().unwrap().to_owned(),
    }
}

async fn stat(agent: &Served, codec: Codec, path: impl AsRef<Path>) -> Result<EntryInfo, Error> {
    let answer: EntryResponse = agent
        .call(codec, "/filesystem.Filesystem/Stat", &at(path), &[])
        .await?;
    Ok(answer.entry.unwrap())
}

async fn list(agent: &Served, path: impl AsRef<Path>, depth: u32) -> Result<Vec<EntryInfo>, Error> {
    let message = ListDirRequest {
        path: at(path).path,
        depth,
    };
    let answer: ListDirResponse = agent
        .call(
            Codec::Proto,
            "/filesystem.Filesystem/ListDir",
            &message,
            &[],
        )
        .await?;
    Ok(answer.entries)
}

fn touch(path: impl AsRef<Path>, content: &[u8]) {
    use std::io::Write as _;
    fs::File::create(path).unwrap().write_all(content).unwrap();
}

fn temp() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    (dir, path)
}

#[tokio::test]
async fn entries_are_described_in_both_codecs() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    touch(dir.join("f"), b"12345");
    fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o4750)).unwrap();
    symlink("f", dir.join("link")).unwrap();
    symlink("nowhere", dir.join("broken")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    for codec in BOTH {
        let file = stat(&agent, codec, dir.join("f")).await.unwrap();
        assert_eq!((file.name.as_str(), file.size, file.mode), ("f", 5, 0o750));
        assert_eq!(file.kind, i32::from(FileType::File));
        assert_eq!(file.permissions, "urwxr-x---");
        assert_eq!((file.owner.as_str(), file.group.as_str()), ("root", "root"));
        assert!(file.modified_time.unwrap().seconds > 1_600_000_000);
        let link = stat(&agent, codec, dir.join("link")).await.unwrap();
        assert_eq!((link.kind, link.mode), (i32::from(FileType::File), 0o750));
        assert_eq!(link.permissions, "Lrwxrwxrwx");
        assert_eq!(link.symlink_target.as_deref(), dir.join("f").to_str());
        assert!(link.is_symlink && !file.is_symlink);
        for broken in ["broken", "loop"] {
            let entry = stat(&agent, codec, dir.join(broken)).await.unwrap();
            assert_eq!(entry.kind, i32::from(FileType::Unspecified));
        }
        assert_eq!(stat(&agent, codec, "/").await.unwrap().name, "/");
        let why = stat(&agent, codec, dir.join("none")).await.unwrap_err();
        assert_eq!(why.code, Code::NotFound);
        assert!(why.message.contains("does not exist"));
        assert_eq!(
            code(stat(&agent, codec, dir.join("f/below")).await),
            Code::InvalidArgument
        );
    }
    assert_eq!(
        stat(&agent, Codec::Json, "/dev/null")
            .await
            .unwrap()
            .permissions,
        "Dcrw-rw-rw-"
    );
    assert_eq!(
        stat(&agent, Codec::Json, "/tmp").await.unwrap().permissions,
        "dtrwxrwxrwx"
    );
}

#[tokio::test]
async fn json_of_an_entry_is_what_the_sdks_read() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    touch(dir.join("f"), b"12345");
    fs::File::options()
        .write(true)
        .open(dir.join("f"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_500))
        .unwrap();
    let path = dir.join("f");
    let message = format!(r#"{{"path":{:?}}}"#, path.to_str().unwrap());
    let json = ("content-type", "application/json");
    let answer = agent
        .post("/filesystem.Filesystem/Stat", &[json], message.clone())
        .await;
    assert_eq!(
        answer.json(),
        serde_json::json!({"entry": {
            "name": "f", "type": "FILE_TYPE_FILE", "path": path, "size": "5", "mode": 0o644,
            "permissions": "-rw-r--r--", "owner": "root", "group": "root",
            "modifiedTime": "1970-01-01T00:00:01.500Z",
        }})
    );
    let old = ("user-agent", "connect-python");
    let answer = agent
        .post("/filesystem.Filesystem/Stat", &[json, old], message)
        .await;
    assert_eq!(
        answer.json(),
        serde_json::json!({"entry": {"name": "f", "type": "FILE_TYPE_FILE", "path": path}})
    );
}

#[tokio::test]
async fn listings_are_depth_first_by_name() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    for path in ["b/2", "b/10", "a/x/deep", "a-b/y"] {
        fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        touch(dir.join(path), b"");
    }
    touch(dir.join("B"), b"");
    symlink("a", dir.join("c")).unwrap();
    symlink(&dir, dir.join("b/up")).unwrap();
    let names = async |path: &Path, depth| -> Vec<String> {
        let entries = list(&agent, path, depth).await.unwrap();
        entries
            .into_iter()
            .map(|entry| {
                Path::new(&entry.path)
                    .strip_prefix(path)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    };
    assert_eq!(names(&dir, 0).await, ["B", "a", "a-b", "b", "c"]);
    assert_eq!(names(&dir, 1).await, names(&dir, 0).await);
    assert_eq!(
        names(&dir, 9).await,
        [
            "B", "a", "a/x", "a/x/deep", "a-b", "a-b/y", "b", "b/10", "b/2", "b/up", "c"
        ]
    );
    // Through a link the names stay as they were asked for.
    assert_eq!(names(&dir.join("c"), 9).await, ["x", "x/deep"]);
    assert_eq!(
        code(list(&agent, dir.join("B"), 1).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(list(&agent, dir.join("none"), 1).await),
        Code::NotFound
    );
    symlink("loop", dir.join("loop")).unwrap();
    assert_eq!(
        code(list(&agent, dir.join("loop"), 1).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn names_that_are_not_text_are_listed_all_the_same() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    touch(dir.join(OsStr::from_bytes(b"bad-\xff-name")), b"x");
    touch(dir.join("good"), b"x");
    let entries = list(&agent, &dir, 1).await.unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["bad-\u{fffd}-name", "good"]);
    // Its bytes can be said where a path is in a query.
    let path = format!("/files?path={}/bad-%FF-name", dir.to_str().unwrap());
    assert_eq!(agent.get(&path, &[]).await.text(), "x");
}

#[tokio::test]
async fn directories_are_made_for_their_user() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let make =
        async |codec, path: &Path, headers: &[(&str, &str)]| -> Result<EntryResponse, Error> {
            agent
                .call(codec, "/filesystem.Filesystem/MakeDir", &at(path), headers)
                .await
        };
    let daemon = [("authorization", "Basic ZGFlbW9uOg==")];
    let made = make(Codec::Json, &dir.join("a/b"), &daemon)
        .await
        .unwrap()
        .entry
        .unwrap();
    assert_eq!(
        (made.owner.as_str(), made.permissions.as_str()),
        ("daemon", "drwxr-xr-x")
    );
    assert_eq!(
        stat(&agent, Codec::Json, dir.join("a"))
            .await
            .unwrap()
            .owner,
        "daemon"
    );
    assert_eq!(
        code(make(Codec::Proto, &dir.join("a/b"), &[]).await),
        Code::AlreadyExists
    );
    touch(dir.join("f"), b"");
    assert_eq!(
        code(make(Codec::Json, &dir.join("f"), &[]).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(make(Codec::Json, &dir.join("f/x"), &[]).await),
        Code::InvalidArgument
    );
    let nobody = [("authorization", "Basic bm9ib2R5LWhlcmU6")];
    assert_eq!(
        code(make(Codec::Json, &dir.join("x"), &nobody).await),
        Code::Unauthenticated
    );
}

#[tokio::test]
async fn entries_are_moved_and_removed() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    fs::create_dir_all(dir.join("a/b")).unwrap();
    touch(dir.join("a/b/f"), b"x");
    let moving = async |codec, from: &Path, to: &Path| -> Result<EntryResponse, Error> {
        let message = MoveRequest {
            source: at(from).path,
            destination: at(to).path,
        };
        agent
            .call(codec, "/filesystem.Filesystem/Move", &message, &[])
            .await
    };
    let moved = moving(Codec::Json, &dir.join("a"), &dir.join("new/place"))
        .await
        .unwrap();
    assert_eq!(
        moved.entry.unwrap().path,
        dir.join("new/place").to_str().unwrap()
    );
    assert!(dir.join("new/place/b/f").exists());
    assert_eq!(
        code(moving(Codec::Proto, &dir.join("a"), &dir.join("c")).await),
        Code::NotFound
    );
    symlink("nowhere", dir.join("broken")).unwrap();
    moving(Codec::Proto, &dir.join("broken"), &dir.join("still-broken"))
        .await
        .unwrap();
    let remove = async |codec, path: &Path| -> Result<Empty, Error> {
        agent
            .call(codec, "/filesystem.Filesystem/Remove", &at(path), &[])
            .await
    };
    symlink(dir.join("new"), dir.join("link")).unwrap();
    remove(Codec::Json, &dir.join("link")).await.unwrap();
    assert!(
        dir.join("new/place/b/f").exists(),
        "a link is removed, not what it leads to"
    );
    remove(Codec::Json, &dir.join("new")).await.unwrap();
    remove(Codec::Proto, &dir.join("new")).await.unwrap();
    assert!(!dir.join("new").exists());
    assert_eq!(
        code(remove(Codec::Json, Path::new("/")).await),
        Code::InvalidArgument
    );
}
