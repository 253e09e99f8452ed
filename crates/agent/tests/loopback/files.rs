use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::{
    connect::{Codec, Error},
    filesystem::{EntryResponse, PathRequest},
};

use crate::client::{Answer, Served, serve};

const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");

fn temp() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    (dir, path)
}

fn url(path: &Path) -> String {
    format!("/files?path={}", path.to_str().unwrap())
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A form; each part is a name, a filename and content.
async fn form(
    agent: &Served,
    query: &str,
    parts: &[(&str, Option<&str>, &str)],
    compressed: bool,
) -> Answer {
    let mut bytes = Vec::new();
    for (name, filename, content) in parts {
        let filename = filename.map_or(String::new(), |name| format!("; filename=\"{name}\""));
        write!(
            bytes,
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\
             Content-Type: application/octet-stream\r\n\r\n{content}\r\n"
        )
        .unwrap();
    }
    bytes.extend_from_slice(b"--edge--\r\n");
    let mut headers = vec![("content-type", "multipart/form-data; boundary=edge")];
    if compressed {
        headers.push(("content-encoding", "gzip"));
        bytes = gzip(&bytes);
    }
    agent.post(&format!("/files{query}"), &headers, bytes).await
}

#[tokio::test]
async fn bare_bytes_become_a_file_of_the_user() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let path = dir.join("new/deep/f.txt");
    let answer = agent
        .post(
            &format!("{}&username=daemon", url(&path)),
            &[OCTETS],
            "content",
        )
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(
        answer.json(),
        json!([{"path": path, "name": "f.txt", "type": "file"}])
    );
    let found = fs::metadata(&path).unwrap();
    assert_eq!(
        (found.uid(), found.gid(), found.permissions().mode() & 0o777),
        (1, 1, 0o644)
    );
    let above = fs::metadata(dir.join("new")).unwrap();
    assert_eq!(
        (above.uid(), above.permissions().mode() & 0o777),
        (1, 0o755)
    );
    assert_eq!(fs::read(&path).unwrap(), b"content");
    agent.post(&url(&path), &[OCTETS], "new").await;
    assert_eq!(fs::read(&path).unwrap(), b"new", "what was longer is cut");
    agent.post(&url(&path), &[OCTETS], "").await;
    assert_eq!(fs::read(&path).unwrap(), b"");
    agent
        .post(
            &url(&path),
            &[OCTETS, ("content-encoding", "gzip")],
            gzip(b"unpacked"),
        )
        .await;
    assert_eq!(fs::read(&path).unwrap(), b"unpacked");
}

#[tokio::test]
async fn uploads_that_cannot_be_are_refused_by_name() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let f = dir.join("f");
    fs::File::create(&f).unwrap();
    let pipe = dir.join("pipe");
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::Mode::from_raw_mode(0o644),
    )
    .unwrap();
    for (path, headers, bytes, status, named) in [
        (
            "/files".to_owned(),
            vec![OCTETS],
            &b"x"[..],
            400,
            "path is required",
        ),
        (url(&dir), vec![OCTETS], b"x", 400, "directory"),
        (url(&f.join("below")), vec![OCTETS], b"x", 400, "is a file"),
        (
            format!("{}&username=nobody-here", url(&f)),
            vec![OCTETS],
            b"x",
            401,
            "invalid username: 'nobody-here'",
        ),
        (
            url(&f),
            vec![("content-type", "text/plain")],
            b"x",
            400,
            "text/plain",
        ),
        (url(&f), vec![], b"x", 400, "Content-Type"),
        (
            url(&f),
            vec![OCTETS, ("content-encoding", "br")],
            b"x",
            400,
            "br",
        ),
        (
            url(&f),
            vec![OCTETS, ("content-encoding", "gzip")],
            b"not gzip",
            400,
            "error reading upload",
        ),
        (
            url(&f),
            vec![("content-type", "multipart/form-data")],
            b"x",
            400,
            "multipart",
        ),
        (url(&pipe), vec![OCTETS], b"x", 500, "open"),
        (
            "/files?path=~other/x".to_owned(),
            vec![OCTETS],
            b"x",
            400,
            "another user",
        ),
        (
            "/files?path=/a%00b".to_owned(),
            vec![OCTETS],
            b"x",
            400,
            "zero byte",
        ),
    ] {
        let answer = agent.post(&path, &headers, bytes).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["code"], status);
        assert!(
            body["message"].as_str().unwrap().contains(named),
            "{path}: {body}"
        );
    }
}

#[tokio::test]
async fn who_is_refused_while_still_sending_gets_the_answer() {
    let agent = serve().await;
    let (_dir, dir) = temp();
    let mut stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n\
         content-length: 40000000\r\n\r\n",
        url(&dir)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    for _ in 0..4 {
        stream.write_all(&[7; 1_000_000]).await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("path is a directory"), "{answer}");
}

#[tokio::test]
async fn a_full_disk_is_its_own_answer() {
    let agent = serve().await;
    let answer = agent.post("/files?path=/dev/full", &[OCTETS], "x").await;
    assert_eq!(
        answer.status,
        StatusCode::INSUFFICIENT_STORAGE,
        "{}",
        answer.text()
    );
    assert_eq!(answer.json()["code"], 507);
}

#[tokio::test]
async fn forms_carry_one_file_or_many() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let (a, b) = (dir.join("x/ä b.txt"), dir.join("y"));
    for compressed in [false, true] {
        let parts = [
            ("note", None, "ignored"),
            ("file", a.to_str(), "A"),
            ("file", b.to_str(), "B\r\n--edg is not the edge\r\n"),
        ];
        let answer = form(&agent, "", &parts, compressed).await;
        assert_eq!(
            answer.json(),
            json!([
                {"path": a, "name": "ä b.txt", "type": "file"},
                {"path": b, "name": "y", "type": "file"},
            ])
        );
        assert_eq!(fs::read_to_string(&a).unwrap(), "A");
        assert_eq!(
            fs::read_to_string(&b).unwrap(),
            "B\r\n--edg is not the edge\r\n"
        );
        fs::remove_file(&a).unwrap();
    }
    let query = format!("?path={}", b.to_str().unwrap());
    let answer = form(&agent, &query, &[("file", Some("other"), "C")], false).await;
    assert_eq!(answer.json()[0]["path"], b.to_str().unwrap());
    let twice = [("file", b.to_str(), "1"), ("file", b.to_str(), "2")];
    let answer = form(&agent, "", &twice, false).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text().contains("multiple files to the same path"));
    let answer = form(&agent, "", &[("file", None, "1")], false).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(form(&agent, "", &[], false).await.text(), "[]");
}

#[tokio::test]
async fn files_are_read_whole_in_part_and_compressed() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let path = dir.join("f");
    let content: Vec<u8> = (0..1_000_003_u32).map(|i| (i % 251) as u8).collect();
    fs::File::create(&path)
        .unwrap()
        .write_all(&content)
        .unwrap();
    let whole = agent
        .get(&url(&path), &[("accept-encoding", "gzip, deflate")])
        .await;
    assert_eq!(whole.status, StatusCode::OK);
    assert!(whole.body == content);
    assert_eq!(whole.header("content-length"), "1000003");
    assert_eq!(whole.header("content-disposition"), "inline; filename=f");
    assert_eq!(whole.header("vary"), "Accept-Encoding");
    assert_eq!(whole.header("accept-ranges"), "bytes");

    let part = agent
        .get(&url(&path), &[("range", "bytes=300000-700000")])
        .await;
    assert_eq!(part.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.header("content-range"), "bytes 300000-700000/1000003");
    assert!(part.body == content[300_000..=700_000]);
    let last = agent.get(&url(&path), &[("range", "bytes=-3")]).await;
    assert_eq!(last.body, content[1_000_000..]);
    let beyond = agent.get(&url(&path), &[("range", "bytes=1000003-")]).await;
    assert_eq!(beyond.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(beyond.header("content-range"), "bytes */1000003");

    let packed = agent.get(&url(&path), &[("accept-encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(unpacked == content);
    let refused = agent
        .get(&url(&path), &[("accept-encoding", "br, identity;q=0")])
        .await;
    assert_eq!(refused.status, StatusCode::NOT_ACCEPTABLE);

    let date = whole.header("last-modified").to_owned();
    let same = agent
        .get(&url(&path), &[("if-modified-since", &date)])
        .await;
    assert_eq!(
        (same.status, same.body.len()),
        (StatusCode::NOT_MODIFIED, 0)
    );
    let part = agent
        .get(&url(&path), &[("range", "bytes=0-0"), ("if-range", &date)])
        .await;
    assert_eq!(part.status, StatusCode::PARTIAL_CONTENT);
    let old = "Thu, 01 Jan 1970 00:00:00 GMT";
    let all = agent
        .get(&url(&path), &[("range", "bytes=0-0"), ("if-range", old)])
        .await;
    assert_eq!(all.status, StatusCode::OK);
}

#[tokio::test]
async fn odd_files_are_read_too() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    fs::File::create(dir.join("empty")).unwrap();
    let empty = agent.get(&url(&dir.join("empty")), &[]).await;
    assert_eq!(
        (
            empty.status,
            empty.body.len(),
            empty.header("content-length")
        ),
        (StatusCode::OK, 0, "0")
    );
    let boot_id = agent
        .get("/files?path=/proc/sys/kernel/random/boot_id", &[])
        .await;
    assert_eq!(boot_id.text().trim().len(), 36);
    std::os::unix::fs::symlink("/proc/self/status", dir.join("link")).unwrap();
    assert!(
        agent
            .get(&url(&dir.join("link")), &[])
            .await
            .text()
            .contains("VmRSS")
    );
    for (path, status, message) in [
        (
            dir.clone(),
            400,
            format!("path '{}' is a directory", dir.display()),
        ),
        (
            dir.join("none"),
            404,
            format!("path '{}' does not exist", dir.join("none").display()),
        ),
        (
            "/dev/zero".into(),
            400,
            "path '/dev/zero' is not a regular file".to_owned(),
        ),
    ] {
        let answer = agent.get(&url(&path), &[]).await;
        assert_eq!(answer.json(), json!({"code": status, "message": message}));
        assert_eq!(answer.status.as_u16(), status);
    }
    let answer = agent.get("/files?path=x&username=nobody-here", &[]).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn metadata_is_kept_with_the_file_and_replaced_as_a_whole() {
    let agent = serve().await;
    let (_guard, dir) = temp();
    let path = dir.join("f");
    let put = async |headers: &[(&str, &str)]| {
        let mut all = vec![OCTETS];
        all.extend_from_slice(headers);
        agent.post(&url(&path), &all, "x").await
    };
    let kept = async || {
        let message = PathRequest {
            path: path.to_str().unwrap().to_owned(),
        };
        let answer: Result<EntryResponse, Error> = agent
            .call(Codec::Json, "/filesystem.Filesystem/Stat", &message, &[])
            .await;
        serde_json::to_value(answer.unwrap().entry.unwrap().metadata).unwrap()
    };
    let answer = put(&[("X-Metadata-Author", "Ada L."), ("x-metadata-b", "2")]).await;
    assert_eq!(
        answer.json()[0]["metadata"],
        json!({"author": "Ada L.", "b": "2"})
    );
    assert_eq!(kept().await, json!({"author": "Ada L.", "b": "2"}));
    put(&[("x-metadata-b", "3")]).await;
    assert_eq!(kept().await, json!({"b": "3"}));
    put(&[]).await;
    assert_eq!(kept().await, json!({}));
    let long = "k".repeat(247);
    for (key, value) in [
        (format!("x-metadata-{long}"), "v".to_owned()),
        ("x-metadata-".to_owned(), "v".to_owned()),
        ("x-metadata-k".to_owned(), "v".repeat(4097)),
    ] {
        let answer = put(&[(&key, &value)]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.text().contains("metadata"));
    }
}

#[tokio::test]
async fn parts_become_one_file_and_go() {
    let agent = serve().await;
    let (_dir, dir) = temp();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for (name, content) in [("1", "one "), ("2", "two "), ("3", "three")] {
        fs::File::create(at(name))
            .unwrap()
            .write_all(content.as_bytes())
            .unwrap();
    }
    let compose = async |parts: &[&str], to: &str, user: &str| {
        let parts: Vec<String> = parts.iter().map(|name| at(name)).collect();
        let message = json!({"source_paths": parts, "destination": at(to), "username": user});
        agent.post("/files/compose", &[], message.to_string()).await
    };
    for (parts, to, user, status) in [
        (&[][..], "all", "", 400),
        (&["1", "1"], "all", "", 400),
        (&["1", "2"], "1", "", 400),
        (&["1", "none"], "all", "", 404),
        (&["1"], ".", "", 400),
        (&["."], "all", "", 400),
        (&["1"], "all", "nobody-of-that-name", 401),
    ] {
        let answer = compose(parts, to, user).await;
        assert_eq!(answer.status, status, "{parts:?} {to} {}", answer.text());
    }
    let answer = compose(&["1", "2", "3"], "new/all", "daemon").await;
    assert_eq!(
        answer.json(),
        json!({"path": at("new/all"), "name": "all", "type": "file"})
    );
    assert_eq!(fs::read_to_string(at("new/all")).unwrap(), "one two three");
    assert_eq!(fs::metadata(at("new/all")).unwrap().uid(), 1);
    let left: Vec<_> = fs::read_dir(&dir).unwrap().collect();
    assert_eq!(left.len(), 1, "only the whole is left: {left:?}");
}
