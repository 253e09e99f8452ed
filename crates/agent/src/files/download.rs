//! `GET /files`: whole, in part, or compressed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc;

use super::{CHUNK, Query, refusal, resolve};
use crate::{
    entry,
    http::{Refusal, shown},
    paths::name_of,
    rpc::{Body, full},
    server::Agent,
};

/// Pieces of a file on their way to a client.
const QUEUE: usize = 2;

pub(crate) async fn download(agent: Arc<Agent>, request: Request<Incoming>) -> Response<Body> {
    match answer(&agent, &request).await {
        Ok(response) => response,
        Err(refused) => refused.into_response(),
    }
}

async fn answer(
    agent: &Arc<Agent>,
    request: &Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let query = Query::parse(request.uri());
    let shown = shown(request.headers(), request.extensions());
    query.authorize(agent, &Method::GET, shown)?;
    let user = query.user(agent)?;
    let path = resolve(agent, query.path.as_deref().unwrap_or_default(), &user)?;
    let encoding = choose_encoding(request.headers().get(header::ACCEPT_ENCODING))?;
    let headers = request.headers().clone();
    let opened = agent
        .blocking(move || open(&path, &headers, encoding))
        .await;
    let (mut response, content) = opened.map_err(|why| refusal(&why))??;
    let Some(content) = content else {
        return Ok(response);
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    agent.tasks.spawn(async move {
        match encoding {
            Encoding::Identity => send_plain(content, sender).await,
            Encoding::Gzip => send_gzip(content, sender).await,
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    *response.body_mut() = StreamBody::new(stream).boxed_unsync();
    Ok(response)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

/// Plain, unless plain is refused or gzip is all that is named: compressing costs the sandbox more
/// than its network does.
fn choose_encoding(accept: Option<&HeaderValue>) -> Result<Encoding, Refusal> {
    let Some(accept) = accept.and_then(|value| value.to_str().ok()) else {
        return Ok(Encoding::Identity);
    };
    let (mut gzip, mut identity, mut any) = (None, None, None);
    let mut named = 0;
    for part in accept.split(',') {
        let mut words = part.split(';').map(str::trim);
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        if name.is_empty() {
            continue;
        }
        named += 1;
        let quality: f32 = words
            .find_map(|word| word.strip_prefix("q=")?.trim().parse().ok())
            .unwrap_or(1.0);
        match name.as_str() {
            "gzip" | "x-gzip" => gzip = Some(quality),
            "identity" => identity = Some(quality),
            "*" => any = Some(quality),
            _ => {}
        }
    }
    let gzip_quality = gzip.or(any).unwrap_or(0.0);
    let identity_ok = identity.or(any).is_none_or(|quality| quality > 0.0);
    let prefers_gzip = match identity {
        Some(identity) => gzip.is_some_and(|gzip| gzip > identity),
        None => gzip.is_some_and(|gzip| gzip > 0.0) && named == 1,
    };
    if identity_ok && !prefers_gzip {
        Ok(Encoding::Identity)
    } else if gzip_quality > 0.0 {
        Ok(Encoding::Gzip)
    } else {
        Err(Refusal::new(
            StatusCode::NOT_ACCEPTABLE,
            format!("no acceptable encoding found in '{accept}': supported are identity and gzip"),
        ))
    }
}

/// What is to be sent: from where on, and how much if that is known.
struct Content {
    file: File,
    /// Read already, because a size of zero had to be checked.
    first: Bytes,
    length: Option<u64>,
}

fn open(
    path: &Path,
    headers: &HeaderMap,
    encoding: Encoding,
) -> Result<(Response<Body>, Option<Content>), Refusal> {
    let failed = |why: &io::Error| refusal(&entry::error("read", path, why));
    let metadata = fs::metadata(path).map_err(|why| failed(&why))?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("path '{}' is {what}", path.display()),
        ));
    }
    let mut file = File::open(path).map_err(|why| failed(&why))?;
    let size = metadata.size();
    let mut response = Response::new(full(Bytes::new()));
    let out = response.headers_mut();
    out.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    out.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    out.insert(header::CONTENT_DISPOSITION, disposition(&name_of(path)));
    let modified = u64::try_from(metadata.mtime())
        .map(|s| UNIX_EPOCH + Duration::from_secs(s))
        .ok();
    if let Some(modified) = modified
        && let Ok(value) = HeaderValue::try_from(httpdate::fmt_http_date(modified))
    {
        out.insert(header::LAST_MODIFIED, value);
    }
    if is_unmodified(headers, modified) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok((response, None));
    }
    if size == 0 {
        // Files of the kernel have content and no size.
        let first = read_piece(&mut file, CHUNK).map_err(|why| failed(&why))?;
        if first.is_empty() {
            out.insert(header::CONTENT_LENGTH, HeaderValue::from(0));
            return Ok((response, None));
        }
        if encoding == Encoding::Gzip {
            out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        return Ok((
            response,
            Some(Content {
                file,
                first,
                length: None,
            }),
        ));
    }
    if encoding == Encoding::Gzip {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return Ok((
            response,
            Some(Content {
                file,
                first: Bytes::new(),
                length: Some(size),
            }),
        ));
    }
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let (from, length) = match wanted_range(headers, modified, size) {
        Wanted::All => (0, size),
        Wanted::Part { from, length } => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {from}-{}/{size}", from + length - 1);
            if let Ok(range) = HeaderValue::try_from(range) {
                response.headers_mut().insert(header::CONTENT_RANGE, range);
            }
            (from, length)
        }
        Wanted::Beyond => {
            let mut refused =
                Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range").into_response();
            if let Ok(range) = HeaderValue::try_from(format!("bytes */{size}")) {
                refused.headers_mut().insert(header::CONTENT_RANGE, range);
            }
            return Ok((refused, None));
        }
    };
    file.seek(SeekFrom::Start(from))
        .map_err(|why| failed(&why))?;
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok((
        response,
        Some(Content {
            file,
            first: Bytes::new(),
            length: Some(length),
        }),
    ))
}

fn http_date(headers: &HeaderMap, name: header::HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

fn is_unmodified(headers: &HeaderMap, modified: Option<SystemTime>) -> bool {
    let since = http_date(headers, header::IF_MODIFIED_SINCE);
    matches!((since, modified), (Some(since), Some(modified)) if modified <= since)
        && !headers.contains_key(header::IF_NONE_MATCH)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part { from: u64, length: u64 },
    Beyond,
}

/// Which part is wanted. More than one at once is not served in parts but whole, as is allowed.
fn wanted_range(headers: &HeaderMap, modified: Option<SystemTime>, size: u64) -> Wanted {
    let Some(range) = headers
        .get(header::RANGE)
        .and_then(|value| value.to_str().ok())
    else {
        return Wanted::All;
    };
    if headers.contains_key(header::IF_RANGE) && http_date(headers, header::IF_RANGE) != modified {
        return Wanted::All;
    }
    let Some(spec) = range
        .strip_prefix("bytes=")
        .map(str::trim)
        .filter(|spec| !spec.contains(','))
    else {
        return Wanted::All;
    };
    let Some((from, to)) = spec.split_once('-') else {
        return Wanted::Beyond;
    };
    match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
        (Ok(from), _) if from >= size => Wanted::Beyond,
        (Ok(from), Ok(to)) if to >= from => Wanted::Part {
            from,
            length: to.min(size - 1) - from + 1,
        },
        (Ok(from), Err(_)) if to.trim().is_empty() => Wanted::Part {
            from,
            length: size - from,
        },
        (Err(_), Ok(last)) if from.trim().is_empty() && last > 0 => {
            let length = last.min(size);
            Wanted::Part {
                from: size - length,
                length,
            }
        }
        _ => Wanted::Beyond,
    }
}

/// `inline; filename=`, in the way of Go: bare, quoted, or in percent signs.
fn disposition(name: &str) -> HeaderValue {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let value = if name.bytes().all(is_token) {
        format!("inline; filename={name}")
    } else if name.bytes().all(|b| (b' '..0x7f).contains(&b)) {
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("inline; filename=\"{quoted}\"")
    } else {
        let mut out = String::from("inline; filename*=utf-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    };
    HeaderValue::try_from(value).unwrap_or_else(|_| HeaderValue::from_static("inline"))
}

fn read_piece(file: &mut File, most: usize) -> io::Result<Bytes> {
    let mut piece = BytesMut::zeroed(most);
    loop {
        match file.read(&mut piece) {
            Ok(read) => {
                piece.truncate(read);
                return Ok(piece.freeze());
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}

type Pieces = mpsc::Sender<io::Result<Bytes>>;

async fn send_plain(content: Content, sender: Pieces) {
    let Content {
        mut file,
        first,
        mut length,
    } = content;
    if !first.is_empty() && sender.send(Ok(first)).await.is_err() {
        return;
    }
    while length != Some(0) {
        let most = length.map_or(CHUNK, |left| {
            usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK))
        });
        let read = tokio::task::spawn_blocking(move || {
            let piece = read_piece(&mut file, most);
            (file, piece)
        });
        let Ok((back, piece)) = read.await else {
            return;
        };
        file = back;
        let piece = match piece {
            Ok(piece) if piece.is_empty() && length.is_none() => return,
            // Shorter than was promised: the client must notice.
            Ok(piece) if piece.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other,
        };
        if let (Some(left), Ok(piece)) = (&mut length, &piece) {
            *left -= piece.len() as u64;
        }
        let failed = piece.is_err();
        if sender.send(piece).await.is_err() || failed {
            return;
        }
    }
}

async fn send_gzip(content: Content, sender: Pieces) {
    let work = move || {
        let Content {
            mut file, first, ..
        } = content;
        let mut encoder = GzEncoder::new(Vec::with_capacity(CHUNK), Compression::fast());
        let mut piece = first;
        loop {
            if piece.is_empty() {
                piece = read_piece(&mut file, CHUNK)?;
                if piece.is_empty() {
                    let rest = encoder.finish()?;
                    sender.blocking_send(Ok(rest.into())).ok();
                    return Ok(());
                }
            }
            encoder.write_all(&piece)?;
            piece.clear();
            if encoder.get_ref().len() >= CHUNK / 2 {
                let ready = std::mem::take(encoder.get_mut());
                if sender.blocking_send(Ok(ready.into())).is_err() {
                    return Ok(());
                }
            }
        }
    };
    // A failure drops the sender in the middle of the stream: gzip's own end is then missing.
    let _: Result<io::Result<()>, _> = tokio::task::spawn_blocking(work).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(accept: &str) -> Option<Encoding> {
        choose_encoding(Some(&accept.parse().unwrap())).ok()
    }

    #[test]
    fn plain_unless_gzip_is_what_is_wanted() {
        for (accept, chosen) in [
            ("", Some(Encoding::Identity)),
            ("gzip, deflate", Some(Encoding::Identity)),
            ("gzip", Some(Encoding::Gzip)),
            ("gzip;q=0.5", Some(Encoding::Gzip)),
            ("gzip;q=0", Some(Encoding::Identity)),
            ("gzip, identity;q=0.5", Some(Encoding::Gzip)),
            ("gzip;q=0.5, identity", Some(Encoding::Identity)),
            ("gzip, deflate, identity;q=0", Some(Encoding::Gzip)),
            ("*", Some(Encoding::Identity)),
            ("gzip, *;q=0", Some(Encoding::Gzip)),
            ("br", Some(Encoding::Identity)),
            ("br, *;q=0", None),
            ("identity;q=0", None),
        ] {
            assert_eq!(encoding(accept), chosen, "{accept:?}");
        }
        assert_eq!(choose_encoding(None).unwrap(), Encoding::Identity);
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        let wanted = |range: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, range.parse().unwrap());
            wanted_range(&headers, None, 10)
        };
        for (range, part) in [
            ("bytes=0-0", Wanted::Part { from: 0, length: 1 }),
            ("bytes=2-5", Wanted::Part { from: 2, length: 4 }),
            ("bytes=8-99", Wanted::Part { from: 8, length: 2 }),
            ("bytes=4-", Wanted::Part { from: 4, length: 6 }),
            ("bytes=-3", Wanted::Part { from: 7, length: 3 }),
            (
                "bytes=-99",
                Wanted::Part {
                    from: 0,
                    length: 10,
                },
            ),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=5-2", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=x", Wanted::Beyond),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=1-2", Wanted::All),
        ] {
            assert_eq!(wanted(range), part, "{range}");
        }
    }

    #[test]
    fn names_are_written_as_go_does() {
        assert_eq!(disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(disposition("a b\".txt"), "inline; filename=\"a b\\\".txt\"");
        assert_eq!(disposition("ä"), "inline; filename*=utf-8''%C3%A4");
    }
}
