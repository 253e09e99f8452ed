//! Requests that two readers could understand in two ways. Each is refused, or reaches the sandbox
//! as exactly one request that is beyond doubt.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::{
    client::Client,
    witness::{Seen, Witness},
    world::World,
};

/// What must come of some bytes.
pub(crate) struct Case {
    what: &'static str,
    pub(crate) bytes: String,
    /// The answers' statuses, in order.
    answers: &'static [u16],
    /// The lines and bodies that the sandbox sees.
    seen: &'static [(&'static str, &'static str)],
}

const fn case(
    what: &'static str,
    bytes: String,
    answers: &'static [u16],
    seen: &'static [(&'static str, &'static str)],
) -> Case {
    Case {
        what,
        bytes,
        answers,
        seen,
    }
}

const ONE: &[(&str, &str)] = &[("GET /a HTTP/1.1", "")];
const POSTED: &[(&str, &str)] = &[("POST /a HTTP/1.1", "")];

/// A request within a request: where it is taken for one, it has no host and is refused.
const INNER: &str = "GET /smuggled HTTP/1.1\r\nX: y\r\n\r\n";

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn corpus(host: &str) -> Vec<Case> {
    let post = |headers: &str, body: &str| {
        format!("POST /a HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n{body}")
    };
    let get = |headers: &str| format!("GET /a HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n");
    let line = |line: &str| format!("{line}\r\nHost: {host}\r\n\r\n");
    let chunked = |body: &str| post("Transfer-Encoding: chunked", body);
    vec![
        // Two lengths. What is chunked is read so, framed anew, and the last of its connection.
        case(
            "CL.TE",
            post(
                "Content-Length: 6\r\nTransfer-Encoding: chunked",
                &format!("0\r\n\r\n{INNER}"),
            ),
            &[200],
            POSTED,
        ),
        case(
            "TE.CL",
            post(
                "Transfer-Encoding: chunked\r\nContent-Length: 3",
                &format!("0\r\n\r\n{INNER}"),
            ),
            &[200],
            POSTED,
        ),
        case(
            "TE.TE, the second hidden",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
                "0\r\n\r\n",
            ),
            &[400],
            &[],
        ),
        case(
            "TE.TE, the first hidden",
            post("Transfer-Encoding: x, identity", "0\r\n\r\n"),
            &[400],
            &[],
        ),
        case(
            "TE with a space before the colon",
            post("Transfer-Encoding : chunked", "0\r\n\r\n"),
            &[400],
            &[],
        ),
        case(
            "TE with a vertical tab",
            post("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"),
            &[400],
            &[],
        ),
        case(
            "TE of an old version",
            format!(
                "POST /a HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            &[400],
            &[],
        ),
        case(
            "CL twice, different",
            post("Content-Length: 0\r\nContent-Length: 5", "hello"),
            &[400],
            &[],
        ),
        case(
            "CL twice, the same",
            post("Content-Length: 5\r\nContent-Length: 5", "hello"),
            &[200],
            &[("POST /a HTTP/1.1", "hello")],
        ),
        case(
            "CL as a list",
            post("Content-Length: 5, 5", "hello"),
            &[400],
            &[],
        ),
        case(
            "CL with a sign",
            post("Content-Length: +5", "hello"),
            &[400],
            &[],
        ),
        case("CL below zero", post("Content-Length: -1", ""), &[400], &[]),
        case(
            "CL in hexadecimal",
            post("Content-Length: 0x5", "hello"),
            &[400],
            &[],
        ),
        case(
            "CL beyond numbers",
            post("Content-Length: 18446744073709551616", ""),
            &[400],
            &[],
        ),
        case(
            "CL without a number",
            post("Content-Length:", ""),
            &[400],
            &[],
        ),
        case(
            "CL of a GET",
            format!("GET /a HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nhello"),
            &[200],
            &[("GET /a HTTP/1.1", "hello")],
        ),
        case(
            "more than CL says",
            post("Content-Length: 0", INNER),
            &[200, 400],
            POSTED,
        ),
        // Lines.
        case("obs-fold", get("X: y\r\n z"), &[400], &[]),
        case(
            "obs-fold that hides a length",
            post("X: y\r\n Content-Length: 5", "hello"),
            &[400],
            &[],
        ),
        case(
            "a space before the colon",
            get("Content-Length : 5"),
            &[400],
            &[],
        ),
        case("a name with a space", get("X Y: z"), &[400], &[]),
        case("a name with a NUL", get("X\0: z"), &[400], &[]),
        case("a value with a NUL", get("X: a\0b"), &[400], &[]),
        case("a bare CR in a value", get("X: a\rY: b"), &[400], &[]),
        case("no name", get(": b"), &[400], &[]),
        case("a line without a colon", get("X"), &[400], &[]),
        // Lenient readers take a bare LF for an end of line. So does this one, and writes it anew.
        case(
            "bare LF",
            format!("GET /a HTTP/1.1\nHost: {host}\nX: y\n\n"),
            &[200],
            ONE,
        ),
        case(
            "bare LF before a length",
            format!("GET /a HTTP/1.1\r\nHost: {host}\r\nX: y\nContent-Length: 0\r\n\r\n"),
            &[200],
            ONE,
        ),
        // Chunks.
        case(
            "a chunk's extension",
            chunked("5;a=b\r\nhello\r\n0\r\n\r\n"),
            &[200],
            &[("POST /a HTTP/1.1", "hello")],
        ),
        case(
            "an extension with a bare LF",
            chunked("5;a\nb\r\nhello\r\n0\r\n\r\n"),
            &[],
            &[],
        ),
        case(
            "a chunk beyond numbers",
            chunked("fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
            &[],
            &[],
        ),
        case(
            "a chunk that overflows",
            chunked("ffffffffffffffff\r\nhello"),
            &[],
            &[],
        ),
        case(
            "a chunk in 0x",
            chunked("0x5\r\nhello\r\n0\r\n\r\n"),
            &[],
            &[],
        ),
        case("a chunk below zero", chunked("-5\r\nhello"), &[], &[]),
        case(
            "a chunk that goes on after its end",
            chunked("5\r\nhello world\r\n0\r\n\r\n"),
            &[],
            &[],
        ),
        case(
            "a chunk without a size",
            chunked("\r\nhello\r\n0\r\n\r\n"),
            &[],
            &[],
        ),
        case(
            "more than the chunks say",
            chunked(&format!("0\r\n\r\n{INNER}")),
            &[200, 400],
            POSTED,
        ),
        // First lines.
        case("no version", line("GET /a"), &[400], &[]),
        case("two spaces", line("GET  /a HTTP/1.1"), &[400], &[]),
        case("a tab", line("GET\t/a\tHTTP/1.1"), &[400], &[]),
        case(
            "two versions",
            line("GET /a HTTP/1.1 HTTP/1.1"),
            &[400],
            &[],
        ),
        case("a version of its own", line("GET /a HTTP/1.9"), &[400], &[]),
        case(
            "a bare CR in a path",
            line("GET /a\rb HTTP/1.1"),
            &[400],
            &[],
        ),
        case("a NUL in a path", line("GET /a\0 HTTP/1.1"), &[400], &[]),
        case(
            "a header in a path",
            line("GET /a HTTP/1.1\rX: y HTTP/1.1"),
            &[400],
            &[],
        ),
        case(
            "an encoded header in a path",
            line("GET /a%0d%0aX:%20y HTTP/1.1"),
            &[200],
            &[("GET /a%0d%0aX:%20y HTTP/1.1", "")],
        ),
        case(
            "a method with a colon",
            line("GE:T /a HTTP/1.1"),
            &[400],
            &[],
        ),
        case("a fragment", line("GET /a#b HTTP/1.1"), &[200], ONE),
        // Hosts.
        case(
            "an authority beats the host",
            format!("GET http://{host}/a HTTP/1.1\r\nHost: 1-other.sbx.test\r\n\r\n"),
            &[200],
            ONE,
        ),
        case(
            "the host does not beat an authority",
            format!("GET http://1-other.sbx.test/a HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &[502],
            &[],
        ),
        case(
            "a name before an authority",
            format!("GET http://x@{host}/a HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &[400],
            &[],
        ),
        case("no host", "GET /a HTTP/1.1\r\n\r\n".into(), &[400], &[]),
        case("two hosts", get("Host: 1-other.sbx.test"), &[400], &[]),
        case(
            "a host with a path",
            format!("GET /a HTTP/1.1\r\nHost: {host}/b\r\n\r\n"),
            &[400],
            &[],
        ),
        case(
            "CONNECT",
            format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &[400],
            &[],
        ),
        // Headers that are named as being between neighbours, to have them removed.
        case(
            "Connection names the length",
            post(
                "Connection: close, Content-Length\r\nContent-Length: 5",
                "hello",
            ),
            &[200],
            &[("POST /a HTTP/1.1", "hello")],
        ),
        case(
            "Connection names the host",
            get("Connection: close, Host"),
            &[200],
            ONE,
        ),
        // An upgrade to what the gateway could not see into.
        case(
            "h2c",
            get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"),
            &[200],
            ONE,
        ),
    ]
}

fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    text.match_indices("HTTP/1.1 ")
        .filter_map(|(at, start)| {
            text.get(at + start.len()..at + start.len() + 3)?
                .parse()
                .ok()
        })
        .collect()
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_or_made_plain() {
    let world = World::new();
    let witness = Witness::start(world.ip).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", witness.program.port);
    let mut wrong = String::new();
    for case in corpus(&host) {
        let mut client = Client::connect(world.address()).await;
        client.send(&case.bytes).await;
        let mut read = Vec::new();
        let reading = async {
            // What has no answer ends with the connection, or waits for more that does not come.
            while case.answers.is_empty() || statuses(&read).len() < case.answers.len() {
                match client.read_some().await {
                    Some(more) => read.extend(more),
                    None => break,
                }
            }
        };
        if case.answers.is_empty() {
            let _ = tokio::time::timeout(Duration::from_millis(300), reading).await;
        } else {
            reading.await;
        }
        let _ = client.stream.shutdown().await;
        read.extend(client.read_to_any_end().await.0);
        let seen: Vec<Seen> = witness.take();
        let expected: Vec<Seen> = case
            .seen
            .iter()
            .map(|(line, body)| Seen::Request {
                line: (*line).to_owned(),
                body: (*body).to_owned(),
            })
            .collect();
        // What was cut off may still be told so.
        let answers: Vec<u16> = statuses(&read);
        let is_told = matches!(answers[..], [] | [400 | 502]);
        let is_fine = answers == case.answers || (case.answers.is_empty() && is_told);
        if !is_fine || seen != expected {
            wrong += &format!(
                "{}: {answers:?} {seen:?}, not {:?} {expected:?}\n",
                case.what, case.answers
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Frames of HTTP/2, made by hand: no library would send these.
mod http2 {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// A literal without indexing, never compressed.
    fn field(name: &str, value: &str) -> Vec<u8> {
        let mut bytes = vec![0];
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend(text.bytes());
        }
        bytes
    }

    type Fields = Vec<(&'static str, String)>;
    type Case = (
        &'static str,
        Fields,
        &'static [(&'static str, &'static str)],
    );

    fn usual(host: &str) -> Fields {
        vec![
            (":method", "GET".into()),
            (":scheme", "http".into()),
            (":authority", host.into()),
            (":path", "/a".into()),
        ]
    }

    fn with(host: &str, name: &'static str, value: &str) -> Fields {
        let mut fields = usual(host);
        fields.push((name, value.into()));
        fields
    }

    fn changed(host: &str, name: &str, value: &str) -> Fields {
        let mut fields = usual(host);
        for field in &mut fields {
            if field.0 == name {
                field.1 = value.into();
            }
        }
        fields
    }

    fn without(host: &str, name: &str) -> Fields {
        let mut fields = usual(host);
        fields.retain(|field| field.0 != name);
        fields
    }

    fn corpus(host: &str) -> Vec<Case> {
        let mut late = usual(host);
        late.insert(0, ("x", "y".into()));
        vec![
            ("plain", usual(host), ONE),
            ("a line end in a value", with(host, "x", "a\r\nb: c"), &[]),
            ("a bare LF in a value", with(host, "x", "a\nb"), &[]),
            ("a NUL in a value", with(host, "x", "a\0b"), &[]),
            ("a line end in a name", with(host, "x\r\ny", "z"), &[]),
            ("a colon in a name", with(host, "x:y", "z"), &[]),
            ("capitals in a name", with(host, "X", "y"), &[]),
            ("a space in a name", with(host, "x y", "z"), &[]),
            (
                "transfer-encoding",
                with(host, "transfer-encoding", "chunked"),
                &[],
            ),
            ("connection", with(host, "connection", "close"), &[]),
            ("upgrade", with(host, "upgrade", "websocket"), &[]),
            ("a path twice", with(host, ":path", "/b"), &[]),
            ("an authority twice", with(host, ":authority", "x"), &[]),
            ("a method twice", with(host, ":method", "POST"), &[]),
            ("a pseudo-header nobody knows", with(host, ":x", "y"), &[]),
            ("a status", with(host, ":status", "200"), &[]),
            ("pseudo-headers that come late", late, &[]),
            ("no method", without(host, ":method"), &[]),
            ("no path", without(host, ":path"), &[]),
            ("an empty path", changed(host, ":path", ""), &[]),
            (
                "a request in a path",
                changed(host, ":path", "/a HTTP/1.1\r\nHost: x\r\n\r\n"),
                &[],
            ),
            ("a space in a path", changed(host, ":path", "/a b"), &[]),
            (
                "a request in a method",
                changed(host, ":method", "GET /b HTTP/1.1\r\n"),
                &[],
            ),
            (
                "a line end in an authority",
                changed(host, ":authority", &format!("{host}\r\nx: y")),
                &[],
            ),
            (
                "another host than the authority",
                with(host, "host", "1-other.sbx.test"),
                ONE,
            ),
            (
                "a length that is not kept",
                with(host, "content-length", "5"),
                &[],
            ),
        ]
    }

    #[tokio::test]
    async fn nothing_gets_out_of_a_header_of_http2() {
        let world = World::new();
        let witness = Witness::start(world.ip).await;
        world.apply(world.route("box"));
        let host = format!("{}-box.sbx.test", witness.program.port);
        let mut wrong = String::new();
        for (what, fields, expected) in corpus(&host) {
            let mut client = Client::connect(world.address()).await;
            let mut block = Vec::new();
            for (name, value) in &fields {
                block.extend(field(name, value));
            }
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(frame(4, 0, 0, &[]));
            // The end of headers, and of the stream.
            bytes.extend(frame(1, 0x5, 1, &block));
            // Whatever becomes of it, this is answered after it, or the connection ends.
            bytes.extend(frame(6, 0, 0, b"witness!"));
            client.send(bytes).await;
            let mut read = Vec::new();
            let mut is_over = false;
            while !is_over {
                match client.read_some().await {
                    Some(more) => read.extend(more),
                    None => break,
                }
                // An end of the stream by an answer or a reset, or of the connection.
                let mut rest = &read[..];
                while let Some((head, payload)) = rest.split_at_checked(9) {
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                    let (kind, flags) = (head[3], head[4]);
                    let Some(after) = payload.get(length..) else {
                        break;
                    };
                    is_over |= kind == 7 || kind == 3 || (kind <= 1 && flags & 1 == 1);
                    rest = after;
                }
            }
            let _ = client.stream.shutdown().await;
            let _ = client.read_to_any_end().await;
            let expected: Vec<Seen> = expected
                .iter()
                .map(|(line, body)| Seen::Request {
                    line: (*line).to_owned(),
                    body: (*body).to_owned(),
                })
                .collect();
            let seen = witness.take();
            if seen != expected {
                wrong += &format!("{what}: {seen:?}, not {expected:?}\n");
            }
        }
        assert!(wrong.is_empty(), "\n{wrong}");
    }
}
