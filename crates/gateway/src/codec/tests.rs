//! What is taken, what is left to others, and noise.

use proptest::{collection::vec, prelude::*};

use super::{chunks::ChunkError, *};

fn kind(head: &str) -> &'static str {
    match Request::read(head.as_bytes(), &mut room()) {
        Begun::Part => "part",
        Begun::Plain(_) => "plain",
        Begun::Other => "other",
    }
}

#[test]
fn only_plain_requests_are_taken() {
    for head in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /a/b?c=%20&d=[1] HTTP/1.1\r\ncontent-length: 5\r\n\r\n",
        "DELETE / HTTP/1.1\r\nConnection: keep-alive\r\nTE: trailers\r\n\r\n",
        "GET / HTTP/1.1\r\nconnection: Close\r\n\r\n",
    ] {
        assert_eq!(kind(head), "plain", "{head}");
    }
    for head in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET http://x/ HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\n\r\n",
        "GET /a#b HTTP/1.1\r\n\r\n",
        "GET /a\\b HTTP/1.1\r\n\r\n",
        "GET /\u{e9} HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n",
        "GET / HTTP/1.1\r\nConnection: keep-alive, x\r\n\r\n",
        "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
        "GET / HTTP/1.1\r\nX : y\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n z\r\n\r\n",
        "GET / HTTP/1.1\r\nX: a\0b\r\n\r\n",
    ] {
        assert_eq!(kind(head), "other", "{head}");
    }
    for head in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\n"] {
        assert_eq!(kind(head), "part", "{head}");
    }
}

fn length(head: &str, to_head: bool) -> Result<Option<(Length, bool)>, HeadError> {
    let mut room = room();
    let read = Response::read(head.as_bytes(), &mut room, to_head)?;
    Ok(read.map(|head| (head.length, head.can_stay)))
}

#[test]
fn an_answer_ends_where_its_head_says_or_is_none() {
    let ok = |head, to_head, expected| {
        assert_eq!(length(head, to_head), Ok(Some(expected)), "{head}");
    };
    ok(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        false,
        (Length::Exact(5), true),
    );
    ok(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        true,
        (Length::None, true),
    );
    ok(
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        false,
        (Length::None, true),
    );
    ok(
        "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
        false,
        (Length::None, true),
    );
    // A body that was announced may come, whatever the status says.
    for head in [
        "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        ok(head, false, (Length::None, false));
        ok(head, true, (Length::None, true));
    }
    ok(
        "\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
        false,
        (Length::None, true),
    );
    ok(
        "HTTP/1.1 200\r\nTransfer-Encoding: CHUNKED\r\nConnection: x, Close\r\n\r\n",
        false,
        (Length::Chunked, false),
    );
    ok("HTTP/1.1 200 OK\r\n\r\n", false, (Length::UntilEnd, false));
    ok(
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n",
        false,
        (Length::Exact(1), false),
    );
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert_eq!(length(head, false), Err(HeadError::Length), "{head}");
    }
    for head in [
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "\n\n\n\n\nHTTP/1.1 200 OK\r\n\r\n",
        "\n\n\n\n\n",
        "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    ] {
        assert_eq!(length(head, false), Err(HeadError::Syntax), "{head}");
    }
    assert_eq!(length("HTTP/1.1 200 OK\r\nA: b\r\n", false), Ok(None));
}

#[test]
fn the_end_of_a_head_is_seen_wherever_it_is_cut() {
    for head in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost: x\n\r\n",
        "GET / HTTP/1.1\nHost: x\r\n\n",
    ] {
        assert_eq!(kind(head), "plain", "{head:?}");
        for looked in 0..head.len() {
            assert!(may_end(head.as_bytes(), looked), "{head:?} {looked}");
        }
        for end in 0..head.len() {
            assert!(!may_end(&head.as_bytes()[..end], 0), "{head:?} {end}");
        }
    }
    assert_eq!(skip_empty_lines(b"\r\n\n\r\nGET"), b"GET");
    assert_eq!(skip_empty_lines(b"\n\r"), b"\r");
    assert_eq!(skip_empty_lines(b"\r\rGET"), b"\r\rGET");
}

/// Reads a body given in parts of `step` bytes. Answers it, its trailers and what was left.
fn unchunk(mut bytes: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize, usize)>, ChunkError> {
    let mut chunks = Chunks::default();
    let mut body = Vec::new();
    while !bytes.is_empty() {
        let (mut part, rest) = bytes.split_at(step.min(bytes.len()));
        loop {
            match chunks.next(&mut part)? {
                Some(Piece::Data(data)) => body.extend_from_slice(data),
                Some(Piece::End) => {
                    let trailers = chunks.trailers().map_or(0, |map| map.len());
                    return Ok(Some((body, trailers, part.len() + rest.len())));
                }
                None => break,
            }
        }
        bytes = rest;
    }
    Ok(None)
}

#[test]
fn chunks_are_read_in_any_parts_and_only_as_they_must_be() {
    let good = b"4\r\nsome\r\n05;a=\"b\" ;c\r\n text\r\n0\r\nx-a: 1\r\nX-B: 2\r\n\r\nrest";
    for step in 1..good.len() {
        let read = unchunk(good, step).unwrap();
        assert_eq!(read, Some((b"some text".to_vec(), 2, 4)), "{step}");
    }
    for bad in [
        &b"\r\n"[..],
        b"x\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"1\n",
        b"1\r1",
        b"1 \n",
        b"00000000000000001\r\n",
        b"fffffffffffffffff\r\n",
        b"1;\x01\r\n",
        b"1;\n\r\n",
    ] {
        assert_eq!(unchunk(bad, 3), Err(ChunkError::Size), "{bad:?}");
    }
    for bad in [&b"1\r\nab"[..], b"1\r\na\n", b"1\r\na\r\r"] {
        assert_eq!(unchunk(bad, 3), Err(ChunkError::End), "{bad:?}");
    }
    for bad in [
        &b"0\r\n\n"[..],
        b"0\r\nx: y\n\r\n\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\nx y\r\n\r\n",
        b"0\r\nx: y\r\n z\r\n\r\n",
    ] {
        assert_eq!(unchunk(bad, 3), Err(ChunkError::Trailers), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn what_was_chunked_is_read_back(parts in vec(vec(any::<u8>(), 1..40), 0..8), step in 1usize..64) {
        let mut bytes = Vec::new();
        for part in &parts {
            bytes.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
            bytes.extend_from_slice(part);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\nnext");
        let read = unchunk(&bytes, step).unwrap().unwrap();
        prop_assert_eq!(read, (parts.concat(), 0, 4));
    }

    #[test]
    fn how_bytes_are_cut_does_not_matter(bytes in vec(prop_oneof![
        Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b'2'), Just(b';'), Just(b':'), any::<u8>(),
    ], 0..60), step in 1usize..8) {
        // An error may come earlier or later in the parts, but is the same one.
        prop_assert_eq!(unchunk(&bytes, step), unchunk(&bytes, 64));
    }

    #[test]
    fn noise_is_never_a_head_that_ends_beyond_it(bytes in vec(prop_oneof![
        Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':'), any::<u8>(),
    ], 0..200)) {
        for start in [&b"GET / HTTP/1.1\r\n"[..], b"HTTP/1.1 200 OK\r\n", b""] {
            let text = [start, &bytes].concat();
            if let Begun::Plain(head) = Request::read(&text, &mut room()) {
                prop_assert!(head.end <= text.len());
            }
            if let Ok(Some(head)) = Response::read(&text, &mut room(), false) {
                prop_assert!(head.end <= text.len());
            }
        }
    }
}
