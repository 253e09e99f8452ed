//! The agent beside what it stands in for: a command beside fork, exec and wait; a stream of output
//! beside a pipe; an upload and a download beside `cp`. Both sides run outside of a sandbox, in
//! turns.
//!
//! Needs root, 3 GB of memory in /dev/shm, and the agent as it is handed out:
//! `cargo build --profile agent -p dormouse-agent --target x86_64-unknown-linux-musl`.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    error::Error,
    io::{self, Read as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use agent_client::{Client, Event, StartOptions};
use bench::{Samples, Target, verdict};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use wire::{
    connect::Codec,
    process::{ProcessConfig, StartRequest},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const COMMANDS: usize = 2000;
const ROUNDS: usize = 5;
const GIGABYTE: u64 = 1 << 30;
const PROGRAM: &str = "/bin/true";

/// An agent that ends with this.
struct Agent {
    child: Child,
    address: SocketAddr,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Agent {
    fn start() -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).unwrap_or(Path::new("."));
        let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        let path = target.join(&triple).join("agent/dormouse-agent");
        if !path.is_file() {
            return Err(format!(
                "{} is missing: cargo build --profile agent -p dormouse-agent --target {triple}",
                path.display()
            )
            .into());
        }
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(path)
            .args(["--listen", &address.to_string()])
            .spawn()?;
        Ok(Self { child, address })
    }

    fn client(&self) -> Client {
        let address = self.address;
        Client::new(move || async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    /// Processor time it has used so far.
    fn used(&self) -> Outcome<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
        // A hundred a second, whatever the kernel counts in.
        Ok(Duration::from_millis(ticks * 10))
    }

    /// The most memory it ever had, in KiB.
    fn peak(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number
            .ok_or("the kernel does not tell the agent's peak")?
            .parse()?)
    }
}

fn main() -> Outcome<()> {
    let threads = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let agent = Agent::start()?;
    let client = agent.client();
    threads.block_on(async {
        while client.health().await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        commands(&agent, &client).await?;
        output(&agent, &client).await?;
        files(&agent, &client).await
    })
}

fn start(cmd: &str, args: &[&str]) -> StartRequest {
    StartRequest {
        process: Some(ProcessConfig {
            cmd: cmd.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: Some("/".to_owned()),
            ..ProcessConfig::default()
        }),
        stdin: Some(false),
        ..StartRequest::default()
    }
}

/// Runs a command through the agent. Answers how many bytes it printed.
async fn run(client: &Client, request: &StartRequest) -> Outcome<u64> {
    let process = client.start(request, StartOptions::default()).await?;
    let mut length = 0;
    let end = process
        .wait(|event| {
            if let Event::Stdout(bytes) = event {
                length += bytes.len() as u64;
            }
            Ok::<(), agent_client::Error>(())
        })
        .await?;
    if end.exit_code != 0 {
        return Err(format!("the command ended with {}", end.status).into());
    }
    Ok(length)
}

async fn commands(agent: &Agent, client: &Client) -> Outcome<()> {
    let request = start(PROGRAM, &[]);
    let (mut bare, mut through) = (Samples::default(), Samples::default());
    for round in 0..COMMANDS + 50 {
        let began = Instant::now();
        Command::new(PROGRAM).stdin(Stdio::null()).spawn()?.wait()?;
        let middle = Instant::now();
        run(client, &request).await?;
        // First times fill caches.
        if round >= 50 {
            bare.record(middle - began);
            through.record(middle.elapsed());
        }
    }
    bare.print("fork, exec and wait");
    through.print("a command through the agent");
    for (name, q) in [("command, p50", 0.5), ("command, p99", 0.99)] {
        let ratio = through.quantile(q).as_secs_f64() / bare.quantile(q).as_secs_f64();
        verdict(name, ratio, Target::AtMost(2.0));
    }
    costs(agent, "commands")
}

async fn output(agent: &Agent, client: &Client) -> Outcome<()> {
    // A producer that is never the slow one.
    let count = format!("count={}", GIGABYTE / (64 << 10));
    let (cmd, args) = ("/bin/dd", ["if=/dev/zero", "bs=64k", &count, "status=none"]);
    let request = start(cmd, &args);
    let (mut pipe, mut proto, mut json) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut used_by_proto, mut used_by_json) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        pipe.record(timed(async { read_pipe(cmd, &args) }).await?);
        let before = agent.used()?;
        proto.record(timed(run(client, &request)).await?);
        let between = agent.used()?;
        json.record(timed(read_json(agent.address, &request)).await?);
        used_by_proto.record(between - before);
        used_by_json.record(agent.used()? - between);
    }
    pipe.print("1 GiB through a pipe");
    proto.print("1 GiB of output, protobuf");
    json.print("1 GiB of output, JSON");
    compare("output, protobuf", &pipe, &proto, 0.4);
    compare("output, JSON", &pipe, &json, 0.15);
    used_by_proto.print("agent's processor time, protobuf");
    used_by_json.print("agent's processor time, JSON");
    costs(agent, "output")
}

/// How long something took that moves a gigabyte.
async fn timed(work: impl Future<Output = Outcome<u64>>) -> Outcome<Duration> {
    let began = Instant::now();
    let moved = work.await?;
    if moved < GIGABYTE {
        return Err(format!("only {moved} bytes of {GIGABYTE} arrived").into());
    }
    Ok(began.elapsed())
}

fn compare(name: &str, baseline: &Samples, ours: &Samples, bound: f64) {
    let ratio = baseline.quantile(0.5).as_secs_f64() / ours.quantile(0.5).as_secs_f64();
    verdict(name, ratio, Target::AtLeast(bound));
}

fn read_pipe(cmd: &str, args: &[&str]) -> Outcome<u64> {
    let mut child = Command::new(cmd)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = child.stdout.take().ok_or("no pipe")?;
    let mut room = vec![0; 64 << 10];
    let mut length = 0;
    loop {
        match out.read(&mut room)? {
            0 => break,
            read => length += read as u64,
        }
    }
    child.wait()?;
    Ok(length)
}

/// Reads a stream of JSON without looking into it: what that costs is the client's own.
async fn read_json(address: SocketAddr, request: &StartRequest) -> Outcome<u64> {
    let mut stream = TcpStream::connect(address).await?;
    let message = Codec::Json.envelope(request);
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\
         content-type: {}\r\nconnect-protocol-version: 1\r\ncontent-length: {}\r\n\r\n",
        Codec::Json.stream_type(),
        message.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&message).await?;
    let mut room = vec![0; 256 << 10];
    let mut length = 0;
    loop {
        match stream.read(&mut room).await? {
            0 => break,
            read => length += read as u64,
        }
    }
    // Four characters for every three bytes.
    Ok(length * 3 / 4)
}

async fn files(agent: &Agent, client: &Client) -> Outcome<()> {
    // In memory: a disk would measure how it writes back.
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let at = |name: &str| directory.path().join(name);
    let piece = Bytes::from(vec![7; 256 << 10]);
    let (source, copy, uploaded) = (at("source"), at("copy"), at("uploaded"));
    let write = async |path: &PathBuf| -> Outcome<u64> {
        let piece = piece.clone();
        let count = GIGABYTE / piece.len() as u64;
        let pieces = (0..count).map(move |_| Ok::<_, io::Error>(piece.clone()));
        let path = path.to_str().ok_or("a path that is not text")?;
        client.upload(path, stream::iter(pieces)).await?;
        Ok(GIGABYTE)
    };
    write(&source).await?;
    let (mut cp, mut up, mut down) = (Samples::default(), Samples::default(), Samples::default());
    let (mut used_up, mut used_down) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        cp.record(timed(async { copy_file(&source, &copy) }).await?);
        std::fs::remove_file(&copy)?;
        let before = agent.used()?;
        up.record(timed(write(&uploaded)).await?);
        let between = agent.used()?;
        std::fs::remove_file(&uploaded)?;
        down.record(timed(read_file(client, &source)).await?);
        used_up.record(between - before);
        used_down.record(agent.used()? - between);
    }
    cp.print("cp of 1 GiB");
    up.print("upload of 1 GiB");
    down.print("download of 1 GiB");
    compare("upload", &cp, &up, 0.5);
    compare("download", &cp, &down, 0.5);
    used_up.print("agent's processor time, upload");
    used_down.print("agent's processor time, download");
    costs(agent, "files")
}

fn costs(agent: &Agent, after: &str) -> Outcome<()> {
    println!(
        "{:<44} {} KiB",
        format!("agent's peak of memory, {after}"),
        agent.peak()?
    );
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Outcome<u64> {
    let status = Command::new("cp").arg(from).arg(to).status()?;
    if !status.success() {
        return Err(format!("cp ended with {status}").into());
    }
    Ok(std::fs::metadata(to)?.len())
}

async fn read_file(client: &Client, path: &Path) -> Outcome<u64> {
    let path = path.to_str().ok_or("a path that is not text")?;
    let mut download = client.download(path).await?;
    let mut length = 0;
    while let Some(piece) = download.next().await? {
        length += piece.len() as u64;
    }
    Ok(length)
}
