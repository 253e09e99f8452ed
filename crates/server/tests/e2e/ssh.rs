//! SSH into real sandboxes, with OpenSSH's own clients. They need root and openssh-client; without
//! them these tests fail and say so.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    loopback::Own,
    run::agent,
    sandboxes::until,
    server::{Ran, Server, command, run},
    tunnels::{echoed_at, pattern},
};

/// A server that serves SSH, and a key that team `default` knows.
pub(crate) struct Place {
    pub(crate) server: Server,
    port: u16,
}

pub(crate) fn place() -> Place {
    agent();
    let flags = ["--runtime", "local", "--ssh-listen", "127.0.0.1:0"];
    let server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    let line = server.announced.lines();
    let mut line = line.filter_map(|l| l.trim().strip_prefix("ssh SANDBOX_ID@127.0.0.1 -p "));
    let port = line.next().unwrap().parse().unwrap();
    let place = Place { server, port };
    place.key("id");
    place.server.run("key ssh add id.pub --name tester").ok();
    place
}

fn put(path: &Path, content: &[u8]) {
    fs::File::create(path).unwrap().write_all(content).unwrap();
}

impl Place {
    /// A new pair of keys in the home.
    fn key(&self, name: &str) {
        let words = [
            "-q", "-t", "ed25519", "-N", "", "-C", "a tester", "-f", name,
        ];
        run(
            command("ssh-keygen", self.server.home.path()).args(words),
            "",
        )
        .ok();
    }

    /// One of the clients, trusting whatever it finds and nobody's configuration.
    fn client(&self, program: &str, key: &str) -> Command {
        let mut client = command(program, self.server.home.path());
        let flag = if program == "ssh" { "-p" } else { "-P" };
        client.args(["-F", "none", "-i", key, flag, &self.port.to_string()]);
        for option in [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=known_hosts",
            "LogLevel=ERROR",
        ] {
            client.args(["-o", option]);
        }
        client
    }

    pub(crate) fn ssh(&self, id: &str, words: &[&str], stdin: &str) -> Ran {
        let mut client = self.client("ssh", "id");
        run(client.arg(format!("{id}@127.0.0.1")).args(words), stdin)
    }
}

#[test]
fn commands_run_as_the_user_with_input_output_and_their_exit_codes() {
    let place = place();
    let id = place.server.sandbox();
    let ran = place.ssh(&id, &["id -un; pwd; echo err >&2; exit 3"], "");
    assert_eq!(ran.code, Some(3));
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("user\n/home/user\n", "err\n")
    );
    let text = "hello\n".repeat(100_000);
    assert_eq!(
        place.ssh(&id, &["tr a-z A-Z"], &text).ok(),
        text.to_uppercase()
    );
    let ran = place.ssh(&id, &["kill -KILL $$"], "");
    assert_eq!(ran.code, Some(255), "{ran:?}");
    let mut client = place.client("ssh", "id");
    client.args(["-o", "SetEnv=LC_TEST=yes LD_PRELOAD=no"]);
    client
        .arg(format!("{id}@127.0.0.1"))
        .arg("echo $LC_TEST,$LD_PRELOAD");
    assert_eq!(run(&mut client, "").ok(), "yes,\n");
    // Much more than anything on the way holds, both ways at once.
    let home = place.server.home.path();
    let sent = pattern(20 << 20);
    put(&home.join("sent"), &sent);
    let mut client = place.client("ssh", "id");
    client
        .arg(format!("{id}@127.0.0.1"))
        .arg("cat")
        .stdin(fs::File::open(home.join("sent")).unwrap())
        .stdout(fs::File::create(home.join("back")).unwrap());
    assert!(client.status().unwrap().success());
    assert!(fs::read(home.join("back")).unwrap() == sent);
    place.server.end();
}

#[test]
fn a_shell_on_a_terminal_has_its_size_and_says_how_it_ended() {
    let place = place();
    let id = place.server.sandbox();
    let ran = place.ssh(
        &id,
        &["-tt", "stty size; tty >/dev/null && echo $TERM; exit 5"],
        "",
    );
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stdout.contains("24 80"), "{ran:?}");
    let ran = place.ssh(&id, &["-tt"], "echo in-$((40 + 2)); exit 7\n");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.stdout.contains("in-42"), "{ran:?}");
    // A client that goes takes its shell along.
    let mut client = place.client("ssh", "id");
    let mut child = client
        .arg("-tt")
        .arg(format!("{id}@127.0.0.1"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"echo on; exec sleep 1000\n")
        .unwrap();
    let mut seen = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("on\r\n") {
        seen.read_line(&mut line).unwrap();
    }
    until("it sleeps", || {
        (place.server.inside(&id, "pgrep -c -x sleep || true").trim() == "1").then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until("it is gone", || {
        (place.server.inside(&id, "pgrep -c -x sleep || true").trim() == "0").then_some(())
    });
    place.server.end();
}

#[test]
fn files_are_copied_both_ways_by_scp_and_sftp() {
    let place = place();
    let id = place.server.sandbox();
    let home = place.server.home.path();
    let large = pattern(3_000_001);
    fs::create_dir(home.join("tree")).unwrap();
    put(&home.join("tree/large"), &large);
    put(&home.join("tree/small"), b"text");
    let there = format!("{id}@127.0.0.1");
    let mut up = place.client("scp", "id");
    run(up.args(["-r", "tree", &format!("{there}:copied")]), "").ok();
    assert_eq!(
        place
            .server
            .inside(&id, "cat copied/small; wc -c <copied/large"),
        "text3000001\n"
    );
    let mut down = place.client("scp", "id");
    run(down.args(["-r", &format!("{there}:copied"), "back"]), "").ok();
    assert!(fs::read(home.join("back/large")).unwrap() == large);
    // The older way runs scp inside.
    let mut old = place.client("scp", "id");
    run(
        old.args(["-O", &format!("{there}:copied/small"), "small"]),
        "",
    )
    .ok();
    assert_eq!(fs::read(home.join("small")).unwrap(), b"text");
    let mut sftp = place.client("sftp", "id");
    let lines =
        "mkdir made\nput tree/small made/it\nchmod 600 made/it\nls -l made\nget made/it got\n";
    let said = run(sftp.args(["-b", "-", &there]), lines).ok();
    assert!(said.contains("-rw-------"), "{said}");
    assert_eq!(fs::read(home.join("got")).unwrap(), b"text");
    assert_eq!(place.server.inside(&id, "stat -c %U made/it"), "user\n");
    place.server.end();
}

#[test]
fn ports_of_the_sandbox_are_forwarded_and_no_others() {
    let place = place();
    let id = place.server.echoing("--auto-resume");
    // Every port of it is free.
    let own = Own::new();
    let (here, there) = ((own.ip, 7001), (own.ip, 7002));
    let mut client = place.client("ssh", "id");
    let mut child = client
        .args(["-N", "-o", "ExitOnForwardFailure=yes"])
        .args(["-L", &format!("{}:7001:localhost:7000", own.ip)])
        // The server's own port, by an address that is not the sandbox's.
        .args(["-L", &format!("{}:7002:127.0.0.2:{}", own.ip, place.port)])
        .arg(format!("{id}@127.0.0.1"))
        .spawn()
        .unwrap();
    until("it listens", || TcpStream::connect(here).ok());
    let sent = pattern(1 << 20);
    assert!(echoed_at(here, &sent).unwrap() == sent);
    let refused = echoed_at(there, b"x").unwrap_or_default();
    assert!(refused.is_empty(), "{refused:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    place.server.end();
}

#[test]
fn strangers_foreign_and_unknown_sandboxes_are_refused_alike() {
    let place = place();
    let id = place.server.sandbox();
    place.key("stranger");
    let team =
        "apiVersion: dormouse.dev/v1alpha1\nkind: Team\nmetadata:\n  name: other\nspec: {}\n";
    place.server.write("team.yaml", team);
    place.server.run("apply -f team.yaml").ok();
    place.server.run("key ssh add stranger.pub -n other").ok();
    let ask = |key: &str, id: &str| {
        let mut client = place.client("ssh", key);
        let ran = run(client.arg(format!("{id}@127.0.0.1")).arg("true"), "");
        assert_eq!(ran.code, Some(255), "{ran:?}");
        ran.stderr.replace(id, "ID")
    };
    place.key("nobody");
    let refusal = ask("nobody", &id);
    assert!(
        refusal.contains("Permission denied (publickey)"),
        "{refusal}"
    );
    assert_eq!(ask("stranger", &id), refusal, "another team's key");
    assert_eq!(ask("id", "nosuchsandbox"), refusal, "an unknown sandbox");
    // A key that is shut out ends what it opened.
    let mut client = place.client("ssh", "id");
    let mut child = client
        .arg(format!("{id}@127.0.0.1"))
        .arg("echo on; sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 3]).unwrap();
    assert!(place.server.run("key ssh ls").ok().contains("tester"));
    place.server.run("key ssh rm tester").ok();
    assert!(!child.wait().unwrap().success());
    assert_eq!(ask("id", &id), refusal);
    place.server.end();
}

#[test]
fn a_login_wakes_the_sandbox_and_its_end_ends_the_session() {
    let place = place();
    let id = place.server.run("sandbox create --auto-resume").ok();
    let id = id.trim();
    place.server.inside(id, "echo kept >note");
    for _ in 0..2 {
        place.server.run(&format!("sandbox pause {id}")).ok();
        assert_eq!(place.ssh(id, &["cat note"], "").ok(), "kept\n");
    }
    let mut client = place.client("ssh", "id");
    let mut child = client
        .arg(format!("{id}@127.0.0.1"))
        .arg("echo on; sleep 1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 3]).unwrap();
    place.server.run(&format!("sandbox kill {id}")).ok();
    assert!(!child.wait().unwrap().success());
    let audit = place.server.run("audit --action sandbox.ssh").ok();
    assert!(audit.contains(id), "{audit}");
    // One that is not woken by traffic says so to its own team.
    let shut = place.server.run("sandbox create --auto-pause").ok();
    let shut = shut.trim();
    place.server.run(&format!("sandbox pause {shut}")).ok();
    let ran = place.ssh(shut, &["true"], "");
    assert_eq!(ran.code, Some(255));
    assert!(ran.stderr.contains("was not found"), "{ran:?}");
    place.server.end();
}
