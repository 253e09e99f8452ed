//! The agent as the first process of a pid namespace of its own, with users of its own.

use std::{fs, net::TcpListener, path::Path, process::Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    client::{Program, Served, eventually},
    first_process::run_as,
    handed::HAND_ON,
};

struct Namespace {
    /// `unshare`, which waits for the agent.
    program: Program,
    agent: Served,
    users: tempfile::TempDir,
}

impl Namespace {
    async fn start() -> Self {
        let users = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let mut file = fs::File::create(users.path().join(name)).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        put(
            "passwd",
            "root:x:0:0::/root:/bin/sh\nmember:x:4242:4242::/tmp:/bin/sh\n",
        );
        put(
            "group",
            "root:x:0:\nmember:x:4242:\none:x:4301:root,member\ntwo:x:4300:member\nnot:x:4302:root\n",
        );
        let script = format!(
            "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/group\" /etc/group && {HAND_ON}"
        );
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "/bin/sh", "-c", &script])
            .arg(users.path())
            .arg(env!("CARGO_BIN_EXE_dormouse-agent"))
            .arg("--pid1");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (program, agent) = Program::serve(&mut command, listener, &[]).await;
        Self {
            program,
            agent,
            users,
        }
    }

    /// The agent as the host sees it.
    fn first_process(&self) -> Pid {
        let unshare = self.program.0.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let number = children.unwrap().trim().parse().unwrap();
        Pid::from_raw(number).unwrap()
    }

    async fn run(&self, script: &str) -> String {
        run_as(&self.agent, script, None).await
    }
}

#[tokio::test]
async fn orphans_of_a_pid_namespace_are_reaped_by_its_first_process() {
    let namespace = Namespace::start().await;
    assert_eq!(namespace.run("echo $PPID").await, "1\n");
    let script = "(sh -c 'echo $$; exec sleep 100 >/dev/null 2>&1' &) | head -1";
    let orphan = namespace.run(script).await;
    let orphan = orphan.trim();
    let parent = namespace
        .run(&format!("cut -d' ' -f4 /proc/{orphan}/stat"))
        .await;
    assert_eq!(parent, "1\n");
    namespace.run(&format!("kill -9 {orphan}")).await;
    let gone = format!("while [ -e /proc/{orphan} ]; do sleep 0.05; done; echo gone");
    assert_eq!(namespace.run(&gone).await, "gone\n");
    // A crowd of them at once: their deaths are told together, and none is left over.
    let crowd = "for i in $(seq 200); do (sh -c true &) ; done; echo made";
    assert_eq!(namespace.run(crowd).await, "made\n");
    let left = "while grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.05; done; echo clear";
    assert_eq!(namespace.run(left).await, "clear\n");
}

#[tokio::test]
async fn a_real_first_process_passes_signals_to_everyone_and_ends_last() {
    let mut namespace = Namespace::start().await;
    let at = |name: &str| namespace.users.path().join(name).display().to_string();
    // One that the agent knows, and one that it does not.
    let trap = |name: &str| {
        format!(
            "sh -c 'trap \"echo usr1 >> {m}\" USR1; trap \"echo term >> {m}; exit\" TERM; \
             echo > {r}; while :; do sleep 0.05; done'",
            m = at(name),
            r = at(&format!("{name}-ready")),
        )
    };
    let script = format!(
        "({} >/dev/null 2>&1 &); {} &",
        trap("orphan"),
        trap("child")
    );
    namespace.run(&format!("({script}) >/dev/null 2>&1")).await;
    let exists = |name: &str| Path::new(&at(name)).exists();
    eventually("the traps are set", || {
        exists("orphan-ready") && exists("child-ready")
    })
    .await;
    let first = namespace.first_process();
    kill_process(first, Signal::USR1).unwrap();
    eventually("the signal arrived", || exists("orphan") && exists("child")).await;
    kill_process(first, Signal::TERM).unwrap();
    let program = &mut namespace.program.0;
    eventually("the agent has ended", || {
        program.try_wait().unwrap().is_some()
    })
    .await;
    assert!(program.wait().unwrap().success());
    for name in ["orphan", "child"] {
        let said = fs::read_to_string(namespace.users.path().join(name)).unwrap();
        assert_eq!(said, "usr1\nterm\n", "{name}");
    }
}

#[tokio::test]
async fn a_process_has_the_supplementary_groups_of_its_user() {
    let namespace = Namespace::start().await;
    // member:
    let member = ("authorization", "Basic bWVtYmVyOg==");
    let said = run_as(&namespace.agent, "id -G; id -u", Some(member)).await;
    assert_eq!(said, "4242 4300 4301\n4242\n");
    let said = run_as(&namespace.agent, "id -G", None).await;
    assert_eq!(said, "0 4301 4302\n", "not those of the agent itself");
}
