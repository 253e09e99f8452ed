//! One link as bytes: a reader and a writer, each ending with the other.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use peer::Identity;
use rustls::{ClientConfig, ServerConfig};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client, server};
use tokio_util::sync::CancellationToken;

use crate::{
    core::{Done, LinkId},
    frame::{LENGTH, LONGEST, Numbered},
    why::Why,
};

/// What is asked for in the handshake by who wants to speak this protocol.
pub const ALPN: &[u8] = b"dormouse-mesh";

/// How long a link may take to be made.
const DIAL: Duration = Duration::from_secs(2);
/// How long what was sent before a link is closed may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much is read and written at once, and kept for it while a link is idle.
const BUFFER: usize = 16 << 10;

/// What a link is made of.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What links and jobs tell the driver.
#[derive(Debug)]
pub(crate) enum Event {
    Frame(LinkId, Numbered),
    Down(LinkId, Why),
    Dialled(SocketAddr, Made),
    Unreachable(SocketAddr, Why),
    Done(Done),
}

/// A stream that was made, for who takes it.
pub(crate) struct Made(pub(crate) Box<dyn Stream>);

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Made")
    }
}

/// Bytes of all links.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// What a peer's listener shows: who asks for this protocol gets it, others get HTTP.
#[must_use]
pub(crate) fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(&identity.server_config());
    config.alpn_protocols = vec![ALPN.to_vec(), b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Whether who dialled asked for this protocol.
#[must_use]
pub(crate) fn is_mesh<S>(stream: &server::TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(ALPN)
}

pub(crate) fn client_config(identity: &Identity) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&identity.client_config());
    config.alpn_protocols = vec![ALPN.to_vec()];
    Arc::new(config)
}

/// Whether a handshake failed because of what the other side showed, not because it left.
#[must_use]
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

/// Makes a link.
pub(crate) async fn dial(to: SocketAddr, config: Arc<ClientConfig>) -> Event {
    match timeout(DIAL, connect(to, config)).await {
        Ok(Ok(stream)) => Event::Dialled(to, Made(Box::new(stream))),
        Ok(Err(why)) => Event::Unreachable(to, why),
        Err(_) => Event::Unreachable(to, Why::Unreachable),
    }
}

async fn connect(
    to: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<client::TlsStream<TcpStream>, Why> {
    let stream = TcpStream::connect(to).await;
    let stream = stream.map_err(|_| Why::Unreachable)?;
    stream.set_nodelay(true).map_err(|_| Why::Unreachable)?;
    let name = rustls::pki_types::ServerName::try_from(peer::NAME).map_err(|_| Why::Handshake)?;
    let connected = TlsConnector::from(config).connect(name, stream).await;
    let stream = connected.map_err(|error| {
        if is_refusal(&error) {
            Why::Handshake
        } else {
            Why::Unreachable
        }
    })?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(Why::Protocol);
    }
    Ok(stream)
}

/// Moves the frames of a link until it ends, or `closing` says so and what was sent before is gone.
pub(crate) async fn carry(
    id: LinkId,
    stream: Made,
    frames: mpsc::Receiver<Numbered>,
    closing: CancellationToken,
    events: mpsc::Sender<Event>,
    bytes: Arc<Bytes>,
) {
    let (read, write) = tokio::io::split(stream.0);
    let cut = async {
        closing.cancelled().await;
        sleep(LAST_WORDS).await;
    };
    let why = tokio::select! {
        // What is said first is written before what cannot be read ends the link: so both sides hear why.
        biased;
        why = writing(write, frames, &bytes) => why,
        why = reading(id, read, &events, &bytes) => why,
        () = cut => return,
    };
    if !closing.is_cancelled() {
        // Nobody listens only when all ends.
        let _ = events.send(Event::Down(id, why)).await;
    }
}

async fn reading(
    id: LinkId,
    read: ReadHalf<Box<dyn Stream>>,
    events: &mpsc::Sender<Event>,
    bytes: &Bytes,
) -> Why {
    let mut read = tokio::io::BufReader::with_capacity(BUFFER, read);
    let mut body = Vec::new();
    loop {
        let mut length = [0; LENGTH];
        match read_whole(&mut read, &mut length).await {
            Read::Whole => {}
            Read::Nothing => return Why::Closed,
            Read::Part => return Why::Truncated,
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Why::TooLong;
        }
        body.clear();
        body.resize(length, 0);
        match read_whole(&mut read, &mut body).await {
            Read::Whole => {}
            Read::Nothing | Read::Part => return Why::Truncated,
        }
        let whole = (LENGTH + length) as u64;
        bytes.received.fetch_add(whole, Ordering::Relaxed);
        let numbered = match Numbered::decode(&body) {
            Ok(numbered) => numbered,
            Err(why) => return why,
        };
        if events.send(Event::Frame(id, numbered)).await.is_err() {
            return Why::Leaving;
        }
        // A full snapshot's parts are large, and seldom.
        body.shrink_to(BUFFER);
    }
}

enum Read {
    Whole,
    Nothing,
    Part,
}

async fn read_whole(read: &mut (impl AsyncRead + Unpin), into: &mut [u8]) -> Read {
    let mut filled = 0;
    while filled < into.len() {
        match read.read(&mut into[filled..]).await {
            Ok(0) | Err(_) if filled == 0 => return Read::Nothing,
            Ok(0) | Err(_) => return Read::Part,
            Ok(count) => filled += count,
        }
    }
    Read::Whole
}

async fn writing(
    mut write: WriteHalf<Box<dyn Stream>>,
    mut frames: mpsc::Receiver<Numbered>,
    bytes: &Bytes,
) -> Why {
    let mut buffer = Vec::new();
    while let Some(first) = frames.recv().await {
        buffer.clear();
        let mut next = Some(first);
        while let Some(frame) = next {
            match frame.encode() {
                Ok(encoded) => buffer.extend_from_slice(&encoded),
                Err(error) => {
                    tracing::error!(%error, "a link is closed");
                    return Why::TooLong;
                }
            }
            if buffer.len() >= BUFFER {
                break;
            }
            next = frames.try_recv().ok();
        }
        bytes.sent.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        let written = async {
            write.write_all(&buffer).await?;
            write.flush().await
        };
        if written.await.is_err() {
            return Why::Closed;
        }
        buffer.shrink_to(BUFFER);
    }
    let _ = write.shutdown().await;
    Why::Closed
}
