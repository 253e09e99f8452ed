//! `dormouse sandbox` and its neighbours against a real server with real sandboxes. They need root;
//! without it these tests fail and say so.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    run::agent,
    server::{Ran, Server, command, dormouse, run},
};

/// A server with real sandboxes.
pub(crate) fn start() -> Server {
    agent();
    Server::start_with(tempfile::tempdir().unwrap(), &["--runtime", "local"])
}

impl Server {
    /// A command whose arguments are words of their own.
    pub(crate) fn program(&self, words: &[&str]) -> Command {
        let mut command = dormouse(self.home.path());
        command.env("DORMOUSE_DATA_DIR", self.data()).args(words);
        command
    }

    fn words(&self, words: &[&str]) -> Ran {
        run(&mut self.program(words), "")
    }

    /// A new sandbox.
    pub(crate) fn sandbox(&self) -> String {
        self.run("sandbox create").ok().trim().to_owned()
    }

    /// What the server said to export.
    pub(crate) fn exported(&self, name: &str) -> &str {
        let line = format!("export {name}=");
        let mut lines = self.announced.lines();
        lines
            .find_map(|text| text.trim().strip_prefix(&line))
            .unwrap()
    }

    fn ids(&self) -> Vec<String> {
        let text = self.run("sandbox ls -q").ok();
        text.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Asks again until there is an answer, or it takes far too long.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("not in time: {what}");
}

#[test]
fn a_sandbox_is_made_used_put_to_sleep_woken_and_ended() {
    let server = start();
    let id = server.sandbox();
    assert_eq!(server.ids(), [id.as_str()]);
    let listed = json(&server.run("sandbox ls --json").ok());
    assert_eq!(listed[0]["sandboxID"], id);
    assert_eq!(listed[0]["state"], "running");
    assert!(server.run("sandbox ls").ok().contains("ENDS IN"));

    let ran = server.words(&[
        "sandbox",
        "exec",
        &id,
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    ]);
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (Some(3), "out\n", "err\n")
    );
    let start = &id[..8];
    let ran = server.words(&["sandbox", "exec", "--user", "root", start, "id", "-un"]);
    assert_eq!(ran.ok(), "root\n", "the beginning of an id will do");
    let text = "hello\n".repeat(10_000);
    let words = ["sandbox", "exec", "-i", &id, "--", "tr", "a-z", "A-Z"];
    let piped = run(&mut server.program(&words), &text);
    assert_eq!(piped.ok(), text.to_uppercase());

    assert_eq!(
        server.run(&format!("sandbox pause {id}")).ok(),
        format!("{id} paused\n")
    );
    assert!(server.run("sandbox ls").ok().contains("paused"));
    // Whoever uses it wakes it.
    assert_eq!(
        server
            .words(&["sandbox", "exec", &id, "echo", "awake"])
            .ok(),
        "awake\n"
    );
    server.run(&format!("sandbox pause {id}")).ok();
    assert_eq!(
        server.run(&format!("sandbox resume {id}")).ok(),
        format!("{id} running\n")
    );

    let logs = server.run(&format!("sandbox logs {id}")).ok();
    assert!(
        logs.contains("Running") && logs.contains("Paused"),
        "{logs}"
    );
    let lines = server.run(&format!("sandbox logs {id} --json")).ok();
    assert!(
        lines.lines().all(|line| json(line)["level"].is_string()),
        "{lines}"
    );

    assert_eq!(
        server.run(&format!("sandbox kill {id}")).ok(),
        format!("{id} killed\n")
    );
    assert_eq!(server.ids(), [""; 0]);
    server
        .run(&format!("sandbox kill {id}"))
        .failed_saying(&[&id, "sandbox ls"]);

    let audit = server.run("audit").ok();
    assert!(
        audit.contains("sandbox.kill") && audit.contains("administrator"),
        "{audit}"
    );
    let page = server.run("audit --newest-first --limit 1");
    assert!(page.stdout.contains("sandbox.kill"), "{page:?}");
    let (_, place) = page.stderr.trim().rsplit_once(' ').unwrap();
    let older = server
        .run(&format!("audit --limit 1 --before {place}"))
        .ok();
    assert!(!older.contains("sandbox.kill"), "{older}");
    let words = format!("audit --json --sandbox {id} --action sandbox.create");
    let entry = json(&server.run(&words).ok());
    assert_eq!(
        (&entry["team"], &entry["outcome"]),
        (&"default".into(), &"done".into())
    );
    server.stop();
}

#[test]
fn files_and_directories_go_in_and_come_out_as_they_were() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let server = start();
    let id = server.sandbox();
    let tree = server.home.path().join("tree");
    std::fs::create_dir_all(tree.join("deep/er")).unwrap();
    let put = |name: &str, content: &[u8]| {
        let mut file = std::fs::File::create(tree.join(name)).unwrap();
        file.write_all(content).unwrap();
    };
    put("text", b"hello\n");
    put("with space", b"");
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    put("deep/er/large", &large);
    put("deep/run", b"#!/bin/sh\necho ran\n");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(
        tree.join("deep/run"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    symlink("deep/run", tree.join("link")).unwrap();

    let inside = format!("{id}:/home/user/tree");
    server.words(&["sandbox", "cp", "tree", &inside]).ok();
    let ran = server.words(&[
        "sandbox",
        "exec",
        &id,
        "sh",
        "-c",
        "cd tree && ./link && wc -c <deep/er/large",
    ]);
    assert_eq!(ran.ok(), "ran\n3000000\n");

    server.words(&["sandbox", "cp", &inside, "copy"]).ok();
    let copy = server.home.path().join("copy");
    for name in ["text", "with space", "deep/er/large", "deep/run"] {
        let read = |root: &Path| std::fs::read(root.join(name)).unwrap();
        assert_eq!(read(&tree), read(&copy), "{name}");
    }
    assert_eq!(mode(&copy.join("deep/run")), 0o755);
    assert_eq!(
        std::fs::read_link(copy.join("link")).unwrap(),
        Path::new("deep/run")
    );

    // Into a directory that is there, under its own name; one file likewise.
    server
        .words(&["sandbox", "cp", "tree/text", &format!("{id}:/tmp")])
        .ok();
    server
        .words(&["sandbox", "cp", &format!("{id}:/tmp/text"), "copy/deep"])
        .ok();
    assert_eq!(std::fs::read(copy.join("deep/text")).unwrap(), b"hello\n");

    server
        .words(&["sandbox", "cp", "a", "b"])
        .failed_saying(&["SANDBOX:PATH"]);
    server
        .words(&["sandbox", "cp", &format!("{id}:/nowhere"), "x"])
        .failed_saying(&["/nowhere"]);
    // A link that leads out would mean something else here.
    server
        .words(&[
            "sandbox",
            "exec",
            &id,
            "sh",
            "-c",
            "mkdir l && ln -s /etc l/out",
        ])
        .ok();
    let ran = server.words(&["sandbox", "cp", &format!("{id}:l"), "l"]);
    assert!(ran.stderr.contains("left out"), "{ran:?}");
    assert!(!server.home.path().join("l/out").exists());
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}

#[test]
fn a_port_has_a_url_that_curl_can_use() {
    let server = start();
    let id = server.sandbox();
    let serve = "cd /tmp && echo here >page && exec python3 -m http.server 8000";
    let mut http = server
        .program(&["sandbox", "exec", &id, "sh", "-c", serve])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let url = server.run(&format!("sandbox url {id} 8000")).ok();
    let shown = json(&server.run(&format!("sandbox url {id} 8000 --json")).ok());
    assert_eq!(shown["url"], url.trim());
    let page = format!("{}page", url.trim());
    let curl = || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", &page]);
        let ran = run(&mut curl, "");
        (ran.code == Some(0)).then_some(ran.stdout)
    };
    assert_eq!(until("a page", curl), "here\n");
    server.run(&format!("sandbox kill {id}")).ok();
    // The sandbox ended under it.
    assert_ne!(http.wait().unwrap().code(), Some(0));
    server.stop();
}

/// `script` is the terminal; it is part of every Debian (`bsdutils`).
#[test]
fn a_shell_has_a_terminal_and_its_exit_code_comes_back() {
    let server = start();
    let id = server.sandbox();
    let shell = format!("{} sandbox shell {id}", env!("CARGO_BIN_EXE_dormouse"));
    let mut script = command("script", server.home.path());
    script.env("DORMOUSE_DATA_DIR", server.data()).args([
        "--quiet",
        "--return",
        "--command",
        &shell,
        "/dev/null",
    ]);
    let ran = run(&mut script, "tty; exit 7\n");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stdout.contains("/dev/pts/"), "{ran:?}");
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}

#[test]
fn whoever_interrupts_a_command_ends_it_inside() {
    let server = start();
    let id = server.sandbox();
    let script = "trap 'echo asked; exit 9' TERM; echo up; sleep 1000 & wait";
    let mut child = server
        .program(&["sandbox", "exec", &id, "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "asked");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    server.run(&format!("sandbox kill {id}")).ok();
    server.stop();
}

#[test]
fn logs_are_followed_until_the_sandbox_ends() {
    let server = start();
    let id = server.sandbox();
    let mut follow = server
        .program(&["sandbox", "logs", "-f", &id])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("Running"));
    server.run(&format!("sandbox pause {id}")).ok();
    assert!(lines.next().unwrap().unwrap().contains("Paused"));
    server.run(&format!("sandbox kill {id}")).ok();
    assert_eq!(follow.wait().unwrap().code(), Some(0));
    server.stop();
}

#[test]
fn keys_and_teams_decide_what_is_seen() {
    let server = start();
    let mine = server.sandbox();
    let key = server.run("key create ci -n blue --new-team").ok();
    let url = server.exported("E2B_API_URL");
    let with_key = |words: &str| {
        let mut command = dormouse(server.home.path());
        command
            .env("E2B_API_KEY", key.trim())
            .env("E2B_API_URL", url);
        run(command.args(words.split_whitespace()), "")
    };
    assert_eq!(with_key("sandbox ls -q").ok(), "");
    with_key(&format!("sandbox kill {mine}")).failed_saying(&[&mine]);
    let theirs = with_key("sandbox create").ok();
    assert_eq!(server.ids(), [mine.as_str()]);
    assert_eq!(server.run("sandbox ls -q -n blue").ok(), theirs);
    assert!(!with_key("audit").ok().contains(&mine));
    assert!(server.run("audit").ok().contains(theirs.trim()));
    with_key("sandbox ls -n blue").failed_saying(&["--namespace"]);
    server
        .run("sandbox ls -n nobody")
        .failed_saying(&["nobody", "--new-team"]);
    for id in [mine, theirs.trim().to_owned()] {
        server
            .run(&format!("sandbox kill {id} -n default"))
            .code
            .unwrap();
        server
            .run(&format!("sandbox kill {id} -n blue"))
            .code
            .unwrap();
    }
    server.stop();
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let home = tempfile::tempdir().unwrap();
    let run_in = |words: &str| {
        let mut command = dormouse(home.path());
        command.env("DORMOUSE_DATA_DIR", home.path().join("data"));
        run(command.args(words.split_whitespace()), "")
    };
    run_in("sandbox ls").failed_saying(&["dormouse serve"]);
    let mut command = dormouse(home.path());
    command
        .env("E2B_API_KEY", "e2b_00")
        .env("E2B_API_URL", "http://127.0.0.1:1");
    run(command.args(["sandbox", "ls"]), "").failed_saying(&["127.0.0.1:1", "dormouse serve"]);

    let none = Server::start();
    none.run("sandbox ls").failed_saying(&["--runtime local"]);
    let cert = none.run("cert");
    assert!(cert.stderr.contains("SSL_CERT_FILE"), "{cert:?}");
    let ca = std::fs::read_to_string(none.data().join("pki/ca.crt")).unwrap();
    assert_eq!(cert.ok(), ca);
    none.stop();
}

#[test]
fn every_shell_has_completions_of_every_command() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let text = run(dormouse(home.path()).args(["completion", shell]), "").ok();
        for word in ["sandbox", "resume", "audit"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
}
