use std::{collections::BTreeMap, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode};
use wire::{
    connect::{self, Code, Codec, Error},
    process::{
        Empty, EndEvent, EventResponse, ListRequest, ListResponse, ProcessConfig, ProcessRequest,
        ProcessSelector, SendInputRequest, SendSignalRequest, Signal, StartRequest,
    },
};

use crate::{
    client::{BOTH, Served, Stream, code, eventually, failure, request, serve},
    input::stdin,
};

pub(crate) fn sh(script: &str) -> StartRequest {
    StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ..ProcessConfig::default()
        }),
        ..StartRequest::default()
    }
}

pub(crate) fn by_pid(pid: u32) -> Option<ProcessSelector> {
    Some(ProcessSelector {
        pid: Some(pid),
        tag: None,
    })
}

fn by_tag(tag: &str) -> Option<ProcessSelector> {
    Some(ProcessSelector {
        pid: None,
        tag: Some(tag.to_owned()),
    })
}

pub(crate) async fn start(
    agent: &Served,
    codec: Codec,
    message: &StartRequest,
    headers: &[(&str, &str)],
) -> (Stream, u32) {
    let mut stream = agent
        .stream(codec, "/process.Process/Start", message, headers)
        .await;
    let pid = started(&mut stream).await;
    (stream, pid)
}

async fn started(stream: &mut Stream) -> u32 {
    let first: EventResponse = stream.next().await.expect("an event");
    first.event.unwrap().start.expect("start comes first").pid
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    keepalives: usize,
    pub(crate) end: Option<EndEvent>,
    error: Option<Error>,
}

impl Said {
    pub(crate) fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

pub(crate) async fn listen(mut stream: Stream) -> Said {
    let mut said = Said::default();
    loop {
        match stream.next::<EventResponse>().await {
            Ok(message) => {
                let event = message.event.unwrap();
                assert!(said.end.is_none(), "nothing comes after the end");
                if let Some(data) = event.data {
                    said.stdout.extend(data.stdout.unwrap_or_default());
                    said.stderr.extend(data.stderr.unwrap_or_default());
                    said.pty.extend(data.pty.unwrap_or_default());
                }
                said.keepalives += usize::from(event.keepalive.is_some());
                said.end = event.end;
            }
            Err(end) => {
                said.error = end.err();
                return said;
            }
        }
    }
}

/// Waits for the first of what a program says on its terminal.
pub(crate) async fn first_words(stream: &mut Stream) -> Vec<u8> {
    loop {
        let message: EventResponse = stream.next().await.expect("an event");
        if let Some(words) = message.event.unwrap().data.and_then(|data| data.pty) {
            return words.into();
        }
    }
}

async fn run(agent: &Served, message: &StartRequest, headers: &[(&str, &str)]) -> Said {
    let (stream, _) = start(agent, Codec::Proto, message, headers).await;
    listen(stream).await
}

pub(crate) fn ended(code: i32) -> Option<EndEvent> {
    let status = format!("exit status {code}");
    Some(EndEvent {
        exit_code: code,
        exited: true,
        error: (code != 0).then(|| status.clone()),
        status,
    })
}

fn killed_by(name: &str) -> Option<EndEvent> {
    Some(EndEvent {
        exit_code: -1,
        exited: false,
        status: format!("signal: {name}"),
        error: Some(format!("signal: {name}")),
    })
}

async fn list(agent: &Served) -> ListResponse {
    agent
        .call(Codec::Json, "/process.Process/List", &ListRequest {}, &[])
        .await
        .unwrap()
}

pub(crate) async fn signal(
    agent: &Served,
    codec: Codec,
    pid: u32,
    signal: Signal,
) -> Result<Empty, Error> {
    let message = SendSignalRequest {
        process: by_pid(pid),
        signal: signal.into(),
    };
    agent
        .call(codec, "/process.Process/SendSignal", &message, &[])
        .await
}

#[tokio::test]
async fn a_process_starts_speaks_and_ends_in_both_codecs() {
    let agent = serve().await;
    for codec in BOTH {
        let (stream, pid) = start(&agent, codec, &sh("echo out; echo err >&2; exit 3"), &[]).await;
        assert!(pid > 0);
        let said = listen(stream).await;
        assert_eq!(said.stdout(), "out\n");
        assert_eq!(said.stderr, b"err\n");
        assert_eq!(said.end, ended(3));
        assert_eq!(said.error, None);
    }
    assert_eq!(run(&agent, &sh("true"), &[]).await.end, ended(0));
}

#[tokio::test]
async fn json_on_the_wire_is_what_the_sdks_read() {
    let agent = serve().await;
    let message = r#"{"process":{"cmd":"/bin/sh","args":["-c","printf hi"],"envs":{}},"stdin":false,"unknown":[1]}"#;
    let mut bytes = vec![0; connect::PREFIX];
    bytes.extend_from_slice(message.as_bytes());
    connect::seal(&mut bytes, 0);
    let answer = agent
        .post(
            "/process.Process/Start",
            &[("content-type", "application/connect+json")],
            bytes,
        )
        .await;
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains(r#"{"event":{"start":{"pid":"#), "{text}");
    assert!(
        text.contains(r#"{"event":{"data":{"stdout":"aGk="}}}"#),
        "{text}"
    );
    assert!(
        text.contains(r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#),
        "{text}"
    );
    assert!(text.ends_with("\u{2}\0\0\0\u{2}{}"), "{text}");
    assert_eq!(answer.header("x-accel-buffering"), "no");
}

#[tokio::test]
async fn the_environment_is_layered() {
    let agent = serve().await;
    let init = r#"{"envVars":{"G":"global","HOME":"/g","R":"global"}}"#;
    assert_eq!(
        agent.post("/init", &[], init).await.status,
        StatusCode::NO_CONTENT
    );
    let mut message =
        sh("echo $HOME $USER $LOGNAME $E2B_SANDBOX $G $R; test -n \"$PATH\" && env | wc -l");
    message.process.as_mut().unwrap().envs =
        BTreeMap::from([("R".to_owned(), "request".to_owned())]);
    let said = run(&agent, &message, &[]).await;
    let lines: Vec<_> = said.stdout().lines().collect();
    assert_eq!(lines[0], "/g root root true global request");
    // PATH, HOME, USER, LOGNAME, E2B_SANDBOX, G, R, and sh's own PWD: nothing of the agent's.
    assert_eq!(lines[1], "8");
    for bad in ["", "A=B"] {
        message.process.as_mut().unwrap().envs = BTreeMap::from([(bad.to_owned(), String::new())]);
        let stream = agent
            .stream(Codec::Json, "/process.Process/Start", &message, &[])
            .await;
        assert_eq!(failure(stream).await.code, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_process_runs_where_it_is_told() {
    let agent = serve().await;
    let dir = tempfile::tempdir().unwrap();
    let real = std::fs::canonicalize(dir.path()).unwrap();
    let mut message = sh("pwd");
    let cwd = |message: &mut StartRequest, path: &Path| {
        message.process.as_mut().unwrap().cwd = Some(path.to_str().unwrap().to_owned());
    };
    cwd(&mut message, &real);
    assert_eq!(
        run(&agent, &message, &[]).await.stdout().trim(),
        real.to_str().unwrap()
    );
    cwd(&mut message, Path::new("/etc/passwd"));
    let stream = agent
        .stream(Codec::Json, "/process.Process/Start", &message, &[])
        .await;
    assert_eq!(
        failure(stream).await.message,
        "cwd '/etc/passwd' is not a directory"
    );
    cwd(&mut message, Path::new("/no/where"));
    let stream = agent
        .stream(Codec::Proto, "/process.Process/Start", &message, &[])
        .await;
    let why = failure(stream).await;
    assert_eq!(
        (why.code, why.message.as_str()),
        (Code::InvalidArgument, "cwd '/no/where' does not exist")
    );
    let init = format!(r#"{{"defaultWorkdir":{:?}}}"#, real.to_str().unwrap());
    agent.post("/init", &[], init).await;
    assert_eq!(
        run(&agent, &sh("pwd"), &[]).await.stdout().trim(),
        real.to_str().unwrap()
    );
}

#[tokio::test]
async fn a_process_is_its_users_with_all_groups_and_a_session_of_its_own() {
    let agent = serve().await;
    let daemon = ("authorization", "Basic ZGFlbW9uOg==");
    let mut message =
        sh("id -u; id -g; id -G; cat /proc/self/oom_score_adj; umask; ps -o sid= -p $$; echo $$");
    message.process.as_mut().unwrap().cwd = Some("/".to_owned());
    let said = run(&agent, &message, &[daemon]).await;
    let lines: Vec<_> = said.stdout().lines().map(str::trim).collect();
    assert_eq!(lines[..4], ["1", "1", "1", "100"]);
    assert_eq!(lines[5], lines[6], "leads its own session");
    let nobody = ("authorization", "Basic bm9ib2R5LWhlcmU6");
    let stream = agent
        .stream(Codec::Json, "/process.Process/Start", &message, &[nobody])
        .await;
    let why = failure(stream).await;
    assert_eq!(
        (why.code, why.message.as_str()),
        (Code::Unauthenticated, "invalid username: 'nobody-here'")
    );
    // A directory that the user may not enter is a refusal, not a process elsewhere.
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    message.process.as_mut().unwrap().cwd = Some(dir.path().to_str().unwrap().to_owned());
    let stream = agent
        .stream(Codec::Json, "/process.Process/Start", &message, &[daemon])
        .await;
    assert_eq!(failure(stream).await.code, Code::InvalidArgument);
}

#[tokio::test]
async fn what_cannot_be_started_is_an_error_of_the_stream() {
    let agent = serve().await;
    for codec in BOTH {
        for cmd in ["/no/such/program", "no-such-program", "/etc/passwd", ""] {
            let message = StartRequest {
                process: Some(ProcessConfig {
                    cmd: cmd.to_owned(),
                    ..ProcessConfig::default()
                }),
                ..StartRequest::default()
            };
            let stream = agent
                .stream(codec, "/process.Process/Start", &message, &[])
                .await;
            assert_eq!(failure(stream).await.code, Code::InvalidArgument, "{cmd}");
        }
    }
    assert!(list(&agent).await.processes.is_empty());
}

#[tokio::test]
async fn a_signal_ends_a_process_and_its_stream() {
    let agent = serve().await;
    for (codec, sent, name) in [
        (Codec::Json, Signal::Kill, "killed"),
        (Codec::Proto, Signal::Term, "terminated"),
    ] {
        let (stream, pid) = start(&agent, codec, &sh("exec sleep 60"), &[]).await;
        signal(&agent, codec, pid, sent).await.unwrap();
        assert_eq!(listen(stream).await.end, killed_by(name));
        assert_eq!(code(signal(&agent, codec, pid, sent).await), Code::NotFound);
    }
    let why = signal(&agent, Codec::Json, 1, Signal::Kill)
        .await
        .unwrap_err();
    assert_eq!(
        why.message, "process with pid 1 not found",
        "only what was started here"
    );
    let (stream, pid) = start(&agent, Codec::Json, &sh("sleep 60"), &[]).await;
    assert_eq!(
        code(signal(&agent, Codec::Json, pid, Signal::Unspecified).await),
        Code::Unimplemented
    );
    signal(&agent, Codec::Json, pid, Signal::Kill)
        .await
        .unwrap();
    // The sleep under sh holds the pipe: a signal ends the waiting all the same.
    assert_eq!(listen(stream).await.end, killed_by("killed"));
}

#[tokio::test]
async fn a_program_that_kills_itself_says_by_what() {
    let agent = serve().await;
    assert_eq!(
        run(&agent, &sh("kill -SEGV $$"), &[])
            .await
            .end
            .unwrap()
            .exit_code,
        -1
    );
    assert_eq!(
        run(&agent, &sh("kill -HUP $$"), &[]).await.end,
        killed_by("hangup")
    );
    // `kill 0` reaches its own session, not the agent.
    run(&agent, &sh("kill -TERM 0"), &[]).await;
    assert_eq!(run(&agent, &sh("true"), &[]).await.end, ended(0));
}

#[tokio::test]
async fn the_end_waits_for_output_that_others_hold_open() {
    let agent = serve().await;
    let said = run(&agent, &sh("(sleep 0.3; echo late) & echo early"), &[]).await;
    assert_eq!(said.stdout(), "early\nlate\n");
    let (stream, pid) = start(&agent, Codec::Json, &sh("sleep 60 & echo here"), &[]).await;
    // It has exited; its child holds the pipe. A signal ends the waiting, and hits nobody else.
    let gone = format!("/proc/{pid}");
    eventually("the shell is gone", || !Path::new(&gone).exists()).await;
    signal(&agent, Codec::Json, pid, Signal::Term)
        .await
        .unwrap();
    let said = listen(stream).await;
    assert_eq!((said.stdout(), said.end.clone()), ("here\n", ended(0)));
}

#[tokio::test]
async fn a_timeout_kills_and_the_stream_says_so() {
    let agent = serve().await;
    let timeout = ("connect-timeout-ms", "5000");
    let mut started = Vec::new();
    for codec in BOTH {
        started.push(start(&agent, codec, &sh("echo here; exec sleep 100"), &[timeout]).await);
    }
    for (stream, pid) in started {
        let said = listen(stream).await;
        assert_eq!(said.stdout(), "here\n");
        assert_eq!(said.end, None);
        assert_eq!(said.error.unwrap().code, Code::DeadlineExceeded);
        let gone = format!("/proc/{pid}");
        eventually("the process is gone", || !Path::new(&gone).exists()).await;
    }
    for bad in ["-1", "12345678901", "1s"] {
        let stream = agent
            .stream(
                Codec::Json,
                "/process.Process/Start",
                &sh("true"),
                &[("connect-timeout-ms", bad)],
            )
            .await;
        assert_eq!(failure(stream).await.code, Code::InvalidArgument, "{bad}");
    }
}

#[tokio::test]
async fn a_timeout_kills_even_when_its_client_is_gone() {
    let agent = serve().await;
    let (stream, pid) = start(
        &agent,
        Codec::Json,
        &sh("exec sleep 100"),
        &[("connect-timeout-ms", "5000")],
    )
    .await;
    drop(stream);
    let gone = format!("/proc/{pid}");
    eventually("the process is gone", || !Path::new(&gone).exists()).await;
}

#[tokio::test]
async fn a_timeout_of_connect_only_ends_the_stream() {
    let agent = serve().await;
    let (first, pid) = start(&agent, Codec::Json, &sh("read x; echo got $x"), &[]).await;
    let message = ProcessRequest {
        process: by_pid(pid),
    };
    let mut second = agent
        .stream(
            Codec::Json,
            "/process.Process/Connect",
            &message,
            &[("connect-timeout-ms", "5000")],
        )
        .await;
    assert_eq!(started(&mut second).await, pid);
    assert_eq!(
        listen(second).await.error.unwrap().code,
        Code::DeadlineExceeded
    );
    let input = SendInputRequest {
        process: by_pid(pid),
        input: stdin("it\n"),
    };
    agent
        .call::<_, Empty>(Codec::Json, "/process.Process/SendInput", &input, &[])
        .await
        .unwrap();
    assert_eq!(listen(first).await.stdout(), "got it\n");
}

#[tokio::test]
async fn many_listen_and_the_late_hear_the_end() {
    let agent = serve().await;
    let mut message = sh("read x; echo $x; exit 5");
    message.tag = Some("mine".to_owned());
    let (first, pid) = start(&agent, Codec::Json, &message, &[]).await;
    let listed = list(&agent).await.processes;
    assert_eq!(
        (listed.len(), listed[0].pid, listed[0].tag.as_deref()),
        (1, pid, Some("mine"))
    );
    assert_eq!(listed[0].config, message.process);
    let tagged = ProcessRequest {
        process: by_tag("mine"),
    };
    let mut second = agent
        .stream(Codec::Proto, "/process.Process/Connect", &tagged, &[])
        .await;
    assert_eq!(started(&mut second).await, pid);
    let input = SendInputRequest {
        process: by_tag("mine"),
        input: stdin("word\n"),
    };
    agent
        .call::<_, Empty>(Codec::Proto, "/process.Process/SendInput", &input, &[])
        .await
        .unwrap();
    for stream in [first, second] {
        let said = listen(stream).await;
        assert_eq!((said.stdout(), said.end.clone()), ("word\n", ended(5)));
    }
    assert!(list(&agent).await.processes.is_empty());
    let mut late = agent
        .stream(
            Codec::Json,
            "/process.Process/Connect",
            &ProcessRequest {
                process: by_pid(pid),
            },
            &[],
        )
        .await;
    assert_eq!(started(&mut late).await, pid);
    let said = listen(late).await;
    assert_eq!(
        (said.stdout(), said.end.clone()),
        ("", ended(5)),
        "the end is replayed, the output is not"
    );
    let unknown = ProcessRequest {
        process: by_pid(4_000_000),
    };
    let why = failure(
        agent
            .stream(Codec::Json, "/process.Process/Connect", &unknown, &[])
            .await,
    )
    .await;
    assert_eq!(
        (why.code, why.message.as_str()),
        (Code::NotFound, "process with pid 4000000 not found")
    );
}

#[tokio::test]
async fn who_comes_half_a_minute_after_the_end_hears_of_no_such_process() {
    let agent = serve().await;
    let (stream, pid) = start(&agent, Codec::Json, &sh("exit 4"), &[]).await;
    assert_eq!(listen(stream).await.end, ended(4));
    let connect = async || {
        let message = ProcessRequest {
            process: by_pid(pid),
        };
        agent
            .stream(Codec::Json, "/process.Process/Connect", &message, &[])
            .await
    };
    assert_eq!(listen(connect().await).await.end, ended(4));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    let why = failure(connect().await).await;
    assert_eq!(why.code, Code::NotFound);
    assert_eq!(why.message, format!("process with pid {pid} not found"));
}

#[tokio::test]
async fn a_process_outlives_its_client() {
    let agent = serve().await;
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let script = format!(
        "sleep 0.2; yes | head -c 1000000; echo > {}",
        mark.display()
    );
    let (stream, _) = start(&agent, Codec::Json, &sh(&script), &[]).await;
    drop(stream);
    eventually("its work is done", || mark.exists()).await;
}

#[tokio::test]
async fn selectors_must_name_one_process() {
    let agent = serve().await;
    for selector in [
        None,
        Some(ProcessSelector::default()),
        Some(ProcessSelector {
            pid: Some(1),
            tag: Some("x".into()),
        }),
    ] {
        let message = ProcessRequest { process: selector };
        let answer: Result<Empty, _> = agent
            .call(Codec::Json, "/process.Process/CloseStdin", &message, &[])
            .await;
        assert_eq!(code(answer), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn silence_is_broken_by_keepalives() {
    let agent = serve().await;
    let often = ("keepalive-ping-interval", "1");
    let began = tokio::time::Instant::now();
    let (mut stream, pid) = start(&agent, Codec::Proto, &sh("read x"), &[often]).await;
    for _ in 0..2 {
        let message: EventResponse = stream.next().await.expect("an event");
        assert!(message.event.unwrap().keepalive.is_some());
    }
    // Later on a busy machine, but never sooner.
    assert!(began.elapsed() >= Duration::from_secs(2));
    let input = SendInputRequest {
        process: by_pid(pid),
        input: stdin("go\n"),
    };
    agent
        .call::<_, Empty>(Codec::Json, "/process.Process/SendInput", &input, &[])
        .await
        .unwrap();
    assert_eq!(listen(stream).await.end, ended(0));
    for bad in ["0", "-5", "x"] {
        let said = run(
            &agent,
            &sh("sleep 0.1"),
            &[("keepalive-ping-interval", bad)],
        )
        .await;
        assert_eq!(said.keepalives, 0);
    }
}

#[tokio::test]
async fn a_gigabyte_of_output_flows_through_little_memory() {
    // The real program, so that its memory is its own.
    let (program, agent) = crate::first_process::start(&[]).await;
    let status = format!("/proc/{}/status", program.0.id());
    let resident = || -> u64 {
        let text = std::fs::read_to_string(&status).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("VmHWM:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    for (codec, bytes) in [
        (Codec::Proto, 1_000_000_000_u64),
        (Codec::Json, 200_000_000),
    ] {
        let (mut stream, _) = start(
            &agent,
            codec,
            &sh(&format!("head -c {bytes} /dev/zero")),
            &[],
        )
        .await;
        let mut seen = 0;
        while let Ok(message) = stream.next::<EventResponse>().await {
            if let Some(data) = message.event.unwrap().data {
                seen += data.stdout.unwrap().len() as u64;
            }
        }
        assert_eq!(seen, bytes);
    }
    assert!(
        resident() < 16 * 1024,
        "at most {} kB were resident",
        resident()
    );
    // A client that does not read makes the process wait, not the agent grow.
    let (stream, pid) = start(&agent, Codec::Json, &sh("exec yes"), &[]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        resident() < 16 * 1024,
        "at most {} kB were resident",
        resident()
    );
    signal(&agent, Codec::Json, pid, Signal::Kill)
        .await
        .unwrap();
    drop(stream);
}

#[tokio::test]
async fn protocol_mistakes_are_named() {
    let agent = serve().await;
    let start = "/process.Process/Start";
    let json = [("content-type", "application/connect+json")];
    // Not a codec, or the wrong kind of call.
    for (path, kind) in [
        ("/process.Process/List", "text/plain"),
        ("/process.Process/List", "application/connect+json"),
        ("/process.Process/List", "application/grpc"),
        (start, "application/json"),
        ("/process.Process/StreamInput", "application/json"),
    ] {
        let answer = agent.post(path, &[("content-type", kind)], "").await;
        assert_eq!(
            answer.status,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{path} {kind}"
        );
        assert!(!answer.header("accept-post").is_empty());
    }
    let end = |body: &Bytes| {
        connect::read_end_of_stream(&body[connect::PREFIX..])
            .unwrap_err()
            .code
    };
    // No envelope, half of one, two of them, one that is too long, one that is not JSON.
    let one = Codec::Json.envelope(&sh("true")).to_vec();
    for (bytes, expected) in [
        (Vec::new(), Code::Unimplemented),
        (one[..one.len() - 1].to_vec(), Code::InvalidArgument),
        ([one.clone(), one.clone()].concat(), Code::Unimplemented),
        (vec![0, 0xff, 0xff, 0xff, 0xff], Code::ResourceExhausted),
        (vec![0, 0, 0, 0, 1, b'{'], Code::InvalidArgument),
        (vec![1, 0, 0, 0, 2, b'{', b'}'], Code::Internal),
    ] {
        let answer = agent.post(start, &json, bytes).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(end(&answer.body), expected);
    }
    let gzip = [json[0], ("connect-content-encoding", "gzip")];
    assert_eq!(
        end(&agent.post(start, &gzip, one).await.body),
        Code::Unimplemented
    );
    let unary = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
    ];
    let answer = agent.post("/process.Process/List", &unary, "x").await;
    assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED);
    assert_eq!(answer.json()["code"], "unimplemented");
    let answer = agent
        .post(
            "/process.Process/List",
            &[("content-type", "application/json; charset=utf-8")],
            "",
        )
        .await;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (StatusCode::OK, "{}")
    );
    for bad in ["[", "[]", "null", "{", "1"] {
        let json = [("content-type", "application/json")];
        let answer = agent.post("/process.Process/List", &json, bad).await;
        assert_eq!(answer.json()["code"], "invalid_argument", "{bad}");
    }
    for path in [
        "/process.Process/Nothing",
        "/other.Service/List",
        "/process.Process",
        "/",
    ] {
        let answer = agent
            .post(path, &[("content-type", "application/json")], "{}")
            .await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(answer.json()["message"].as_str().unwrap().contains(path));
    }
    let answer = agent
        .send(request(Method::PUT, "/process.Process/List", &[], ""))
        .await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
}
