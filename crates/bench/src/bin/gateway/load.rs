//! What is asked of a proxy, and what that costs it.

use std::{
    error::Error,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use kit::Clock as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::proxies::Proxy;

/// One run of `wrk`.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Microseconds of the proxy's processor time for a request.
    pub(super) cpu: f64,
}

/// Keep-alive connections that ask without pause.
pub(super) fn wrk(
    proxy: Option<&Proxy>,
    address: SocketAddr,
    path: &str,
    connections: u32,
    seconds: u64,
    headers: &[String],
) -> Result<Run, Box<dyn Error>> {
    let cpu = || proxy.map_or(Ok(0.0), Proxy::cpu);
    let before = cpu()?;
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "--latency", "-c"])
        .arg(connections.to_string())
        .arg("-d")
        .arg(format!("{seconds}s"));
    for header in headers {
        wrk.args(["-H", header]);
    }
    let url = format!("http://{address}{path}");
    let output = wrk
        .arg(&url)
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
    let word = |line: &str| -> Result<&str, Box<dyn Error>> {
        let found = text.lines().find(|l| l.trim_start().starts_with(line));
        let word = found.and_then(|l| l.split_whitespace().nth(1));
        Ok(word.ok_or_else(|| format!("wrk printed no {line}"))?)
    };
    let count: f64 = text
        .lines()
        .find(|l| l.contains("requests in"))
        .and_then(|l| l.split_whitespace().next())
        .ok_or("wrk counted nothing")?
        .parse()?;
    Ok(Run {
        rate: word("Requests/sec:")?.parse()?,
        p50: micros(word("50%")?)?,
        p99: micros(word("99%")?)?,
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

/// Messages there and back through an upgraded connection, on some connections at once, each
/// waiting for its echo. Answers how many a second.
pub(super) fn echoes(
    address: SocketAddr,
    host: &str,
    token: &str,
    connections: usize,
    seconds: u64,
) -> Result<f64, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let clock = kit::SystemClock::default();
    let started = clock.monotonic();
    let until = tokio::time::Duration::from_secs(seconds);
    let asked = format!(
        "GET /w HTTP/1.1\r\nHost: {host}\r\ne2b-traffic-access-token: {token}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let count = runtime.block_on(async {
        let one = || async {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.write_all(asked.as_bytes()).await?;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
            if !head.starts_with(b"HTTP/1.1 101") {
                return Err(std::io::Error::other(String::from_utf8_lossy(&head)));
            }
            // A text message of 64 bytes, as a client masks it.
            let mut message = [0x61; 70];
            message[..6].copy_from_slice(&[0x81, 0xc0, 0, 0, 0, 0]);
            let mut back = [0; 70];
            let mut count = 0u64;
            let end = tokio::time::Instant::now() + until;
            while tokio::time::Instant::now() < end {
                stream.write_all(&message).await?;
                stream.read_exact(&mut back).await?;
                count += 1;
            }
            Ok::<u64, std::io::Error>(count)
        };
        let all = (0..connections).map(|_| one());
        futures_util::future::try_join_all(all).await
    })?;
    let took = clock.monotonic().saturating_sub(started).as_secs_f64();
    Ok(count.iter().sum::<u64>() as f64 / took)
}

/// Connections that have asked once and keep still. Answers bytes of memory for each.
pub(super) fn idle(
    proxy: &Proxy,
    address: SocketAddr,
    headers: &[String],
    connections: usize,
) -> Result<f64, Box<dyn Error>> {
    let before = proxy.memory()?;
    let asked = format!("GET / HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
    let mut open = Vec::with_capacity(connections);
    let mut room = [0; 4096];
    for _ in 0..connections {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(asked.as_bytes())?;
        let count = stream.read(&mut room)?;
        if !room[..count].starts_with(b"HTTP/1.1 200") {
            return Err(format!("answered {:?}", String::from_utf8_lossy(&room[..count])).into());
        }
        open.push(stream);
    }
    let after = proxy.memory()?;
    Ok((after - before) / connections as f64)
}
