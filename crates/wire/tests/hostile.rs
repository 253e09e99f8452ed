//! What nobody who means well sends: envelopes, messages and headers from noise, and from good ones
//! with some bytes changed. Nothing stops the reader, and what it reads it can write and read again.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use wire::{
    connect::{
        Codec, Deframer, Envelope, Error, Kind, Message, PREFIX, parse_timeout, read_end_of_stream,
    },
    filesystem::{EntryInfo, FilesystemEvent, MoveRequest, WatchRequest},
    process::{EventResponse, ProcessConfig, SendInputRequest, SendSignalRequest, StartRequest},
};

/// Longer messages are refused here.
const LIMIT: usize = 64;

/// Cuts bytes that come in parts of `step` into envelopes. Answers them, and how it ended: with an
/// error, or with some of an envelope left.
fn cut(bytes: &[u8], step: usize) -> (Vec<Envelope>, Result<bool, Error>) {
    let mut deframer = Deframer::new(LIMIT);
    let mut found = Vec::new();
    for part in bytes.chunks(step) {
        deframer.push(Bytes::copy_from_slice(part));
        loop {
            match deframer.next_envelope() {
                Ok(Some(envelope)) => found.push(envelope),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    (found, Ok(deframer.is_mid_message()))
}

fn sealed(flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; PREFIX];
    out.extend_from_slice(payload);
    wire::connect::seal(&mut out, flags);
    out
}

/// Good messages, as bytes of both codecs.
fn corpus() -> Vec<Vec<u8>> {
    let start = StartRequest {
        process: Some(ProcessConfig {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), "echo \u{1F42D}".into()],
            ..ProcessConfig::default()
        }),
        stdin: Some(true),
        ..StartRequest::default()
    };
    let entry = EntryInfo {
        name: "f\u{0}\"".into(),
        size: i64::MAX,
        mode: u32::MAX,
        ..EntryInfo::default()
    };
    let mut all = Vec::new();
    for codec in [Codec::Json, Codec::Proto] {
        all.push(codec.encode(&start).to_vec());
        all.push(codec.encode(&entry).to_vec());
    }
    all.extend([
        br#"{"process":{"selector":{"pid":1}},"input":{"stdin":"aGk="}}"#.to_vec(),
        br#"{"event":{"data":{"stdout":"aGk="}}}"#.to_vec(),
        br#"{"signal":"SIGNAL_SIGKILL"}"#.to_vec(),
        br#"{"error":{"code":"not_found","message":"x"}}"#.to_vec(),
    ]);
    all
}

/// Some of the corpus with a few bytes changed, or noise.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let changed = (
        proptest::sample::select(corpus()),
        vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..4),
    )
        .prop_map(|(mut bytes, changes)| {
            for (at, byte, how) in changes {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            bytes
        });
    prop_oneof![3 => changed, 1 => vec(any::<u8>(), 0..80)]
}

/// What can be read can be written, and is the same when it is read again.
fn survives<M: Message + PartialEq>(bytes: &[u8]) {
    for codec in [Codec::Json, Codec::Proto] {
        let Ok(message) = codec.decode::<M>(bytes) else {
            continue;
        };
        for other in [Codec::Json, Codec::Proto] {
            let again: M = other.decode(&other.encode(&message)).unwrap();
            // Compared as bytes: a number that is none is not itself.
            assert_eq!(codec.encode(&again), codec.encode(&message));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn how_a_stream_is_cut_does_not_matter(bytes in vec(prop_oneof![
        4 => Just(0u8), 1 => 0..=70u8, 1 => any::<u8>(),
    ], 0..300), step in 1usize..20) {
        let (found, end) = cut(&bytes, step);
        prop_assert_eq!(&(found.clone(), end.clone()), &cut(&bytes, bytes.len().max(1)));
        prop_assert!(found.iter().all(|envelope| envelope.payload.len() <= LIMIT));
        // What was found is what came, in its order, and nothing is lost in between.
        let again: Vec<u8> = found.iter().flat_map(|e| sealed(e.flags, &e.payload)).collect();
        prop_assert!(bytes.starts_with(&again));
        if end == Ok(false) {
            prop_assert_eq!(again.len(), bytes.len());
        }
    }

    #[test]
    fn envelopes_come_out_as_they_went_in(
        sent in vec((any::<u8>(), vec(any::<u8>(), 0..=LIMIT)), 0..6), step in 1usize..90,
    ) {
        let bytes: Vec<u8> = sent.iter().flat_map(|(flags, load)| sealed(*flags, load)).collect();
        let (found, end) = cut(&bytes, step);
        prop_assert_eq!(end, Ok(false));
        let found: Vec<_> = found.into_iter().map(|e| (e.flags, e.payload.to_vec())).collect();
        prop_assert_eq!(found, sent);
    }

    #[test]
    fn messages_from_anybody_are_read_or_refused(bytes in messages()) {
        survives::<StartRequest>(&bytes);
        survives::<SendInputRequest>(&bytes);
        survives::<SendSignalRequest>(&bytes);
        survives::<EventResponse>(&bytes);
        survives::<EntryInfo>(&bytes);
        survives::<FilesystemEvent>(&bytes);
        survives::<MoveRequest>(&bytes);
        survives::<WatchRequest>(&bytes);
        let _ = read_end_of_stream(&bytes);
    }

    #[test]
    fn headers_from_anybody_are_read_in_one_way(text in "[ -~\\t]{0,40}", number in any::<u64>()) {
        if let Some(Kind::Unary(codec)) = Kind::parse(&text) {
            prop_assert!(text.to_ascii_lowercase().contains(codec.unary_type()));
        }
        if let Ok(Some(time)) = parse_timeout(Some(text.as_bytes())) {
            prop_assert!(text.len() <= 10 && text.bytes().all(|b| b.is_ascii_digit()));
            prop_assert_eq!(time.as_millis(), text.parse::<u128>().unwrap());
        }
        let number = number.to_string();
        prop_assert_eq!(parse_timeout(Some(number.as_bytes())).is_ok(), number.len() <= 10);
    }
}
