//! The client against a real agent. Needs root, as the agent does.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod closed;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent::{Agent, Args};
use agent_client::{Client, Error, Event, StartOptions, by_pid, by_tag};
use bytes::Bytes;
use futures_util::stream;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use wire::{
    Secret,
    connect::Code,
    envd::InitRequest,
    process::{EndEvent, ProcessConfig, ProcessInput, Pty, PtySize, Signal, StartRequest},
};

struct Served {
    address: SocketAddr,
    dials: Arc<AtomicUsize>,
    tasks: kit::Tasks,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

impl Served {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = kit::Tasks::default();
        let stop = tasks.stopping().clone();
        let agent = Agent::new(&Args::default());
        tasks.spawn(async move {
            tokio::select! {
                served = agent.serve(listener) => served.unwrap(),
                () = stop.cancelled() => {}
            }
        });
        Self {
            address,
            dials: Arc::default(),
            tasks,
        }
    }

    fn client(&self) -> Client {
        let (address, dials) = (self.address, Arc::clone(&self.dials));
        Client::new(move || {
            dials.fetch_add(1, Ordering::SeqCst);
            TcpStream::connect(address)
        })
    }
}

fn shell(script: &str) -> StartRequest {
    StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ..ProcessConfig::default()
        }),
        stdin: Some(false),
        ..StartRequest::default()
    }
}

fn stdin(bytes: &'static str) -> ProcessInput {
    ProcessInput {
        stdin: Some(Bytes::from_static(bytes.as_bytes())),
        pty: None,
    }
}

async fn run(client: &Client, request: &StartRequest) -> (String, String, EndEvent) {
    let process = client
        .start(request, StartOptions::default())
        .await
        .unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let end = process
        .wait(|event| -> Result<(), Error> {
            match event {
                Event::Stdout(bytes) | Event::Pty(bytes) => out.extend_from_slice(&bytes),
                Event::Stderr(bytes) => err.extend_from_slice(&bytes),
                Event::End(_) => {}
            }
            Ok(())
        })
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(out), text(err), end)
}

#[tokio::test]
async fn a_command_is_run_and_its_end_is_told() {
    let served = Served::start();
    let client = served.client();
    client.health().await.unwrap();
    let (out, err, end) = run(&client, &shell("echo out; echo err >&2; exit 3")).await;
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    assert_eq!((end.exit_code, end.exited), (3, true));
}

#[tokio::test]
async fn one_connection_serves_one_call_after_the_other() {
    let served = Served::start();
    let client = served.client();
    for _ in 0..5 {
        client.health().await.unwrap();
        run(&client, &shell("true")).await;
        client.processes().await.unwrap();
    }
    assert_eq!(served.dials.load(Ordering::SeqCst), 1);
    let over = Client::over(TcpStream::connect(served.address).await.unwrap());
    over.health().await.unwrap();
    let held = over
        .start(&shell("sleep 10"), StartOptions::default())
        .await
        .unwrap();
    let why = over.health().await.unwrap_err();
    assert!(matches!(why, Error::Unreachable(_)), "{why:?}");
    client
        .signal(by_pid(held.pid()), Signal::Kill)
        .await
        .unwrap();
}

#[tokio::test]
async fn once_a_token_is_set_only_its_holder_is_served() {
    let served = Served::start();
    let open = served.client();
    let token = Secret::from("token-of-this-test");
    let settings = InitRequest {
        access_token: Some(token.clone()),
        env_vars: Some([("A".to_owned(), "b".to_owned())].into()),
        default_workdir: Some("/tmp".to_owned()),
        ..InitRequest::default()
    };
    let hello = open.init(&settings).await.unwrap();
    assert_eq!(hello.envd_version.unwrap(), wire::envd::ENVD_VERSION);
    let refused = open.start(&shell("true"), StartOptions::default()).await;
    assert_eq!(refused.unwrap_err().code(), Some(Code::Unauthenticated));
    let refused = open.download("/etc/passwd").await;
    assert_eq!(refused.unwrap_err().code(), Some(Code::Unauthenticated));
    let holder = open.with_token(&token).unwrap();
    let (out, _, _) = run(&holder, &shell("echo $A; pwd")).await;
    assert_eq!(out, "b\n/tmp\n");
    // The same again changes nothing and is not refused.
    holder.init(&settings).await.unwrap();
    let printed = format!("{holder:?} {settings:?} {token:?}");
    assert!(!printed.contains("token-of-this-test"), "{printed}");
}

#[tokio::test]
async fn input_is_sent_in_pieces_and_closed() {
    let served = Served::start();
    let client = served.client();
    let mut request = shell("cat");
    request.stdin = Some(true);
    request.tag = Some("cat".to_owned());
    let process = client
        .start(&request, StartOptions::default())
        .await
        .unwrap();
    client
        .send_input(by_tag("cat"), stdin("one "))
        .await
        .unwrap();
    let pieces = stream::iter(["two ", "three"].map(stdin));
    client
        .stream_input(by_pid(process.pid()), pieces)
        .await
        .unwrap();
    let mut other = client.connect(by_tag("cat")).await.unwrap();
    assert_eq!(other.pid(), process.pid());
    client.close_stdin(by_tag("cat")).await.unwrap();
    let mut out = Vec::new();
    let end = process
        .wait(|event| -> Result<(), Error> {
            if let Event::Stdout(bytes) = event {
                out.extend_from_slice(&bytes);
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(out, b"one two three");
    assert_eq!(end.exit_code, 0);
    while let Some(event) = other.next().await.unwrap() {
        if let Event::End(heard) = event {
            assert_eq!(heard, end);
        }
    }
    let gone = client.send_input(by_tag("cat"), stdin("x")).await;
    assert_eq!(gone.unwrap_err().code(), Some(Code::NotFound));
}

#[tokio::test]
async fn a_terminal_is_resized_and_typed_into() {
    let served = Served::start();
    let client = served.client();
    let mut request = shell("read x; stty size");
    request.pty = Some(Pty {
        size: Some(PtySize { cols: 80, rows: 24 }),
    });
    let mut process = client
        .start(&request, StartOptions::default())
        .await
        .unwrap();
    let which = by_pid(process.pid());
    let size = PtySize {
        cols: 123,
        rows: 45,
    };
    client.resize(which.clone(), size).await.unwrap();
    let typed = ProcessInput {
        stdin: None,
        pty: Some(Bytes::from_static(b"\n")),
    };
    client.send_input(which, typed).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = process.next().await.unwrap() {
        if let Event::Pty(bytes) = event {
            seen.extend_from_slice(&bytes);
        }
    }
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.contains("45 123"), "{seen}");
}

#[tokio::test]
async fn a_signal_and_a_timeout_end_a_process() {
    let served = Served::start();
    let client = served.client();
    let process = client
        .start(&shell("exec sleep 60"), StartOptions::default())
        .await
        .unwrap();
    client
        .signal(by_pid(process.pid()), Signal::Term)
        .await
        .unwrap();
    let end = process.wait(|_| Ok::<(), Error>(())).await.unwrap();
    assert_eq!(
        (end.exited, end.status.as_str()),
        (false, "signal: terminated")
    );
    let short = StartOptions {
        timeout: Some(Duration::from_secs(5)),
        ..StartOptions::default()
    };
    let process = client.start(&shell("exec sleep 100"), short).await.unwrap();
    let why = process.wait(|_| Ok::<(), Error>(())).await.unwrap_err();
    assert_eq!(why.code(), Some(Code::DeadlineExceeded));
}

#[tokio::test]
async fn files_go_up_and_come_down() {
    let served = Served::start();
    let client = served.client();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ä b+c&d=e#f%/x");
    let path = path.to_str().unwrap();
    let piece = Bytes::from(vec![7; 100_000]);
    let pieces: Vec<io::Result<Bytes>> = (0..50).map(|_| Ok(piece.clone())).collect();
    let written = client.upload(path, stream::iter(pieces)).await.unwrap();
    assert_eq!(written.path, path);
    assert_eq!(client.stat(path).await.unwrap().size, 5_000_000);
    let mut download = client.download(path).await.unwrap();
    assert_eq!(download.length(), Some(5_000_000));
    let mut length = 0;
    while let Some(piece) = download.next().await.unwrap() {
        assert!(piece.iter().all(|byte| *byte == 7));
        length += piece.len();
    }
    assert_eq!(length, 5_000_000);
    let missing = client.download("/nowhere").await.unwrap_err();
    assert_eq!(missing.code(), Some(Code::NotFound));
    let daemon = client.as_user("daemon");
    let mine = directory.path().join("mine");
    let mine = mine.to_str().unwrap();
    daemon.upload(mine, stream::empty()).await.unwrap();
    assert_eq!(daemon.stat(mine).await.unwrap().owner, "daemon");
    let (out, _, _) = run(
        &daemon,
        &StartRequest {
            process: Some(ProcessConfig {
                cmd: "id".to_owned(),
                args: vec!["-un".to_owned()],
                cwd: Some("/".to_owned()),
                ..ProcessConfig::default()
            }),
            ..StartRequest::default()
        },
    )
    .await;
    assert_eq!(out, "daemon\n");
}

#[tokio::test]
async fn content_that_cannot_be_read_is_the_senders_own_failure() {
    let served = Served::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    let broken = stream::iter([
        Ok(Bytes::from_static(b"x")),
        Err(io::Error::from(io::ErrorKind::InvalidData)),
    ]);
    let why = served
        .client()
        .upload(path.to_str().unwrap(), broken)
        .await
        .unwrap_err();
    assert!(matches!(why, Error::Source(_)), "{why:?}");
}

#[tokio::test]
async fn who_is_not_there_is_unreachable_and_who_is_no_agent_is_not_understood() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = kit::Tasks::default();
    tasks.spawn(async move {
        let answers: [&[u8]; 4] = [
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\nx-dormouse-agent-protocol: 99\r\n\r\n",
            b"SSH-2.0-hello\r\n",
            b"",
        ];
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1024];
            tokio::io::AsyncReadExt::read(&mut stream, &mut asked)
                .await
                .unwrap();
            stream.write_all(answer).await.unwrap();
        }
    });
    let init = async |address: SocketAddr| {
        let client = Client::new(move || TcpStream::connect(address));
        client.init(&InitRequest::default()).await.unwrap_err()
    };
    for _ in 0..3 {
        let why = init(address).await;
        assert!(matches!(why, Error::Protocol(_)), "{why:?}");
        assert!(!why.is_retryable());
    }
    let why = init(address).await;
    assert!(matches!(why, Error::EndedEarly(_)), "{why:?}");
    let (_taken, nobody) = closed::port();
    let why = init(nobody).await;
    assert!(matches!(why, Error::Unreachable(_)), "{why:?}");
    assert!(why.is_retryable());
}
