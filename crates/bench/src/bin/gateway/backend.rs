//! The program behind every proxy: answers at once, far faster than what stands before it.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const SMALL: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// The size of what `/large` answers.
pub(super) const LARGE: usize = 1 << 20;

/// Starts it on a thread of its own.
pub(super) fn start() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name("backend".into())
        .spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                let tasks = kit::Tasks::default();
                let mut large =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").into_bytes();
                large.resize(large.len() + LARGE, b'x');
                let large: std::sync::Arc<[u8]> = large.into();
                while let Ok((stream, _)) = listener.accept().await {
                    tasks.spawn(answer(stream, large.clone()));
                }
            });
        })?;
    Ok(address)
}

async fn answer(mut stream: tokio::net::TcpStream, large: std::sync::Arc<[u8]>) {
    let _ = stream.set_nodelay(true);
    let mut read = Vec::with_capacity(8192);
    while stream.read_buf(&mut read).await.is_ok_and(|n| n > 0) {
        while let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
            let (is_large, is_echo) = (read.starts_with(b"GET /l"), read.starts_with(b"GET /w"));
            read.drain(..end + 4);
            let answer = match (is_large, is_echo) {
                (true, _) => &large[..],
                (_, true) => SWITCH,
                _ => SMALL,
            };
            if stream.write_all(answer).await.is_err() {
                return;
            }
            if is_echo {
                return echo(stream).await;
            }
        }
    }
}

async fn echo(mut stream: tokio::net::TcpStream) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        if stream.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
