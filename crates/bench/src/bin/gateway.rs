//! Small requests through the gateway and through nginx, in turns: one thread each, the same
//! upstream, the same clients (`wrk`, keep-alive connections).
//!
//! The gateway holds 100,000 routes and checks a token on every request; nginx has one static
//! upstream and checks nothing. Both keep their connections to the upstream and set the same
//! forwarding headers. The machine is shared with the load itself, so besides requests a second
//! there is the processor time that each spends on a request, which neighbours disturb less.

use std::{
    error::Error,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use bench::{Target, verdict};
use gateway::{Gateway, Listen, NoWake, Options, Ports};
use kit::{Entropy, SystemClock};
use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use routes::{Address, Gate, Message, Route, Snapshot, State, Table, TokenHash, Writer};
use runtime::{Family, Inside, RuntimeError};
use sha2::{Digest as _, Sha256};

const ROUTES: u64 = 100_000;
const ROUNDS: usize = 7;
const SECONDS: u64 = 4;
const CONNECTIONS: &str = "64";
const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";

/// Never asked: the routes here name addresses.
#[derive(Debug)]
struct NoInside;

impl Inside for NoInside {
    fn socket(&self, uid: Uid, _: Family) -> Result<OwnedFd, RuntimeError> {
        Err(RuntimeError::Absent(uid))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let upstream = upstream()?;
    let directory = tempfile::tempdir()?;
    let nginx = Nginx::start(directory.path(), upstream)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let (gateway, id) = gateway(upstream)?;
    let gateway_url = format!("http://{}/", gateway.addresses()[0]);
    let nginx_url = format!("http://127.0.0.1:{}/", nginx.port);
    let headers = [
        format!("Host: {}-{id}.sbx.test", upstream.port()),
        format!("e2b-traffic-access-token: {TOKEN}"),
    ];
    let gateway_cpu = || thread_cpu("gateway-0");
    let nginx_cpu = || nginx.cpu();
    let direct_url = format!("http://{upstream}/");
    // A thread gives itself its name.
    while gateway_cpu().is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    // Warm.
    measure(&gateway_url, &headers, 1, &gateway_cpu)?;
    measure(&nginx_url, &headers, 1, &nginx_cpu)?;

    println!(
        "{:<10} {:>12} {:>10} {:>10} {:>16}",
        "", "requests/s", "p50 us", "p99 us", "CPU us/request"
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let one = measure(&gateway_url, &headers, SECONDS, &gateway_cpu)?;
        one.print("gateway");
        ours.push(one);
        let one = measure(&nginx_url, &headers, SECONDS, &nginx_cpu)?;
        one.print("nginx");
        theirs.push(one);
    }
    measure(&direct_url, &headers, SECONDS, &|| Ok(0.0))?.print("direct");

    let ratio = |of: fn(&Run) -> f64| {
        let mut ratios: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(a, b)| of(a) / of(b))
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    verdict(
        "requests/s, gateway over nginx",
        ratio(|run| run.rate),
        Target::AtLeast(0.95),
    );
    verdict(
        "p99, gateway over nginx",
        ratio(|run| run.p99),
        Target::AtMost(1.1),
    );
    verdict(
        "CPU of a request, gateway over nginx",
        ratio(|run| run.cpu),
        Target::AtMost(1.05),
    );
    Ok(())
}

#[derive(Debug)]
struct Run {
    rate: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
}

impl Run {
    fn print(&self, name: &str) {
        println!(
            "{name:<10} {:>12.0} {:>10.0} {:>10.0} {:>16.2}",
            self.rate, self.p50, self.p99, self.cpu
        );
    }
}

type Cpu<'a> = dyn Fn() -> Result<f64, Box<dyn Error>> + 'a;

fn measure(
    url: &str,
    headers: &[String],
    seconds: u64,
    cpu: &Cpu<'_>,
) -> Result<Run, Box<dyn Error>> {
    let before = cpu()?;
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "-c", CONNECTIONS, "--latency", "-d"])
        .arg(format!("{seconds}s"));
    for header in headers {
        wrk.args(["-H", header]);
    }
    let output = wrk
        .arg(url)
        .output()
        .map_err(|e| format!("wrk: {e}; install the package wrk"))?;
    let spent = cpu()? - before;
    let text = String::from_utf8(output.stdout)?;
    if let Some(line) = text
        .lines()
        .find(|l| l.contains("Non-2xx") || l.contains("Socket errors"))
    {
        return Err(format!("{url}: {line}").into());
    }
    let word = |line: &str, at: usize| -> Result<String, Box<dyn Error>> {
        let found = text.lines().find(|l| l.trim_start().starts_with(line));
        let word = found.and_then(|l| l.split_whitespace().nth(at));
        Ok(word
            .ok_or_else(|| format!("wrk printed no {line}"))?
            .to_owned())
    };
    let count: f64 = text
        .lines()
        .find(|l| l.contains("requests in"))
        .and_then(|l| l.split_whitespace().next())
        .ok_or("wrk counted nothing")?
        .parse()?;
    Ok(Run {
        rate: word("Requests/sec:", 1)?.parse()?,
        p50: micros(&word("50%", 1)?)?,
        p99: micros(&word("99%", 1)?)?,
        cpu: spent * 1e6 / count,
    })
}

/// wrk's way to write a time.
fn micros(text: &str) -> Result<f64, Box<dyn Error>> {
    let (number, unit) =
        text.split_at(text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len()));
    let number: f64 = number.parse()?;
    Ok(match unit {
        "us" => number,
        "ms" => number * 1e3,
        _ => number * 1e6,
    })
}

/// A server that answers everything at once: far faster than what stands before it.
fn upstream() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name("upstream".into())
        .spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                let tasks = kit::Tasks::default();
                while let Ok((stream, _)) = listener.accept().await {
                    tasks.spawn(answer(stream));
                }
            });
        })?;
    Ok(address)
}

async fn answer(mut stream: tokio::net::TcpStream) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let _ = stream.set_nodelay(true);
    let mut read = Vec::with_capacity(8192);
    while stream.read_buf(&mut read).await.is_ok_and(|n| n > 0) {
        while let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
            read.drain(..end + 4);
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
    }
}

fn gateway(upstream: SocketAddr) -> Result<(Gateway, SandboxId), Box<dyn Error>> {
    let table = Arc::new(Table::default());
    let empty = Snapshot {
        version: Version::from_u64(1),
        routes: Vec::new(),
    };
    table.replace_all(empty, Duration::ZERO);
    let sandbox_id = |n: u64| {
        let bits = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        SandboxId::from_random(bits)
    };
    let token = TokenHash(Sha256::digest(TOKEN).into());
    for n in 0..ROUTES {
        let team = Namespace::new(format!("team-{}", n % 100))?;
        let route = Route {
            version: Version::from_u64(2 + n),
            epoch: Epoch(1),
            uid: Uid::from_random(u128::from(n) + 1),
            owner: Some(team.clone()),
            namespace: team,
            name: Name::new(format!("sandbox-{n}"))?,
            id: Some(sandbox_id(n)),
            state: State::Running,
            address: Some(Address::Pod(upstream.ip())),
            wake_on_traffic: true,
            agent: Gate::Token(token),
            traffic: Gate::Token(token),
            mask_host: None,
        };
        table.apply(Writer::Watch, Message::from(route), Duration::ZERO);
    }
    let ports = Ports {
        routes: table,
        inside: Arc::new(NoInside),
        wake: Arc::new(NoWake),
        seal: None,
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(Entropy::from_os()),
    };
    let options = Options {
        threads: 1,
        domain: Some("sbx.test".into()),
        ..Options::default()
    };
    let listen = Listen {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls: None,
    };
    let gateway = Gateway::start(ports, options, vec![listen], None)?;
    Ok((gateway, sandbox_id(ROUTES / 2)))
}

struct Nginx {
    child: Child,
    port: u16,
}

impl Nginx {
    fn start(directory: &Path, upstream: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let root = directory.display();
        let configuration = format!(
            "daemon off; worker_processes 1; pid {root}/pid; error_log stderr crit;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n\
               access_log off;\n\
               client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n\
               uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
               upstream box {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n\
               server {{\n\
                 listen 127.0.0.1:{port}; keepalive_requests 1000000000;\n\
                 location / {{\n\
                   proxy_pass http://box; proxy_http_version 1.1; proxy_buffering off;\n\
                   proxy_set_header Connection \"\"; proxy_set_header Host $http_host;\n\
                   proxy_set_header X-Forwarded-For $remote_addr;\n\
                   proxy_set_header X-Forwarded-Host $http_host;\n\
                   proxy_set_header X-Forwarded-Proto $scheme;\n\
                 }}\n\
               }}\n\
             }}\n"
        );
        let file = directory.join("nginx.conf");
        kit::durable::write_file(&file, configuration.as_bytes(), 0o600)?;
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("nginx: {e}; install the package nginx-light"))?;
        let nginx = Self { child, port };
        for _ in 0..200 {
            if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                stream.write_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                if answer.starts_with("HTTP/1.1 200") {
                    return Ok(nginx);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("nginx does not answer".into())
    }

    /// Processor seconds of its one worker.
    fn cpu(&self) -> Result<f64, Box<dyn Error>> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let worker = children
            .split_whitespace()
            .next()
            .ok_or("nginx has no worker")?;
        cpu_of(&format!("/proc/{worker}/schedstat"))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It ends its worker with it.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Processor seconds of a thread of this process.
fn thread_cpu(name: &str) -> Result<f64, Box<dyn Error>> {
    for entry in fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        if fs::read_to_string(path.join("comm"))?.trim() == name {
            return cpu_of(&path.join("schedstat").display().to_string());
        }
    }
    Err(format!("there is no thread {name}").into())
}

fn cpu_of(schedstat: &str) -> Result<f64, Box<dyn Error>> {
    let text = fs::read_to_string(schedstat)?;
    let nanos: f64 = text
        .split_whitespace()
        .next()
        .ok_or("an empty schedstat")?
        .parse()?;
    Ok(nanos / 1e9)
}
