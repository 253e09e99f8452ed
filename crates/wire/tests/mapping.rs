//! The JSON mapping of proto3, protobuf itself, and envelopes: as SDKs write and read them.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;
use wire::{
    connect::{self, Code, Codec, Deframer, Error, Kind, Message},
    filesystem::{EntryInfo, FileType, FilesystemEvent, ListDirRequest, WatchRequest},
    process::{
        DataEvent, EndEvent, EventResponse, ProcessConfig, ProcessEvent, ProcessSelector, Pty,
        PtySize, SendInputRequest, SendSignalRequest, Signal, StartEvent, StartRequest,
    },
    time::Timestamp,
};

fn read<M: Message>(value: &serde_json::Value) -> Result<M, Error> {
    Codec::Json.decode(value.to_string().as_bytes())
}

fn written<M: Message>(message: &M) -> serde_json::Value {
    serde_json::from_slice(&Codec::Json.encode(message)).unwrap()
}

#[test]
fn defaults_are_left_out_and_read_as_defaults() {
    assert_eq!(written(&EntryInfo::default()), json!({}));
    assert_eq!(written(&StartRequest::default()), json!({}));
    assert_eq!(
        written(&StartRequest {
            stdin: Some(false),
            ..StartRequest::default()
        }),
        json!({"stdin": false}),
        "what is optional and set is written"
    );
    assert_eq!(
        read::<WatchRequest>(&json!({"path": null, "recursive": null})).unwrap(),
        WatchRequest::default()
    );
    assert_eq!(
        Codec::Json.decode::<EntryInfo>(b"").unwrap(),
        EntryInfo::default()
    );
}

#[test]
fn numbers_enums_bytes_and_moments_have_their_forms() {
    let entry = EntryInfo {
        name: "f".into(),
        kind: FileType::Directory.into(),
        size: 1 << 60,
        mode: 0o755,
        modified_time: Some(Timestamp {
            seconds: 1,
            nanos: 500_000_000,
        }),
        is_symlink: true,
        symlink_target: Some(String::new()),
        ..EntryInfo::default()
    };
    let value = json!({
        "name": "f", "type": "FILE_TYPE_DIRECTORY", "size": "1152921504606846976", "mode": 493,
        "modifiedTime": "1970-01-01T00:00:01.500Z", "isSymlink": true, "symlinkTarget": "",
    });
    assert_eq!(written(&entry), value);
    assert_eq!(read::<EntryInfo>(&value).unwrap(), entry);

    let input = |stdin: &str| read::<SendInputRequest>(&json!({"input": {"stdin": stdin}}));
    for same in ["+/+/", "-_-_"] {
        assert_eq!(
            input(same).unwrap().input.unwrap().stdin.unwrap(),
            &b"\xfb\xff\xbf"[..]
        );
    }
    assert_eq!(input("YQ").unwrap().input.unwrap().stdin.unwrap(), "a");
    assert_eq!(input("YQ==").unwrap().input.unwrap().stdin.unwrap(), "a");
    assert_eq!(input("?").unwrap_err().code, Code::InvalidArgument);

    for depth in [json!(3), json!("3"), json!(3.0)] {
        assert_eq!(
            read::<ListDirRequest>(&json!({"depth": depth}))
                .unwrap()
                .depth,
            3
        );
    }
    for bad in [
        json!(-1),
        json!(1.5),
        json!("x"),
        json!(4_294_967_296_u64),
        json!([]),
    ] {
        assert!(
            read::<ListDirRequest>(&json!({"depth": bad})).is_err(),
            "{bad}"
        );
    }
    for signal in [json!("SIGNAL_SIGKILL"), json!(9)] {
        let message = read::<SendSignalRequest>(&json!({"signal": signal})).unwrap();
        assert_eq!(message.signal, i32::from(Signal::Kill));
    }
    assert!(read::<SendSignalRequest>(&json!({"signal": "SIGKILL"})).is_err());
    let unknown = FilesystemEvent {
        kind: 77,
        ..FilesystemEvent::default()
    };
    assert_eq!(
        written(&unknown),
        json!({"type": 77}),
        "a member of tomorrow is its number"
    );
}

#[test]
fn names_are_read_in_both_spellings_and_unknown_ones_are_passed_over() {
    let message = WatchRequest {
        include_entry: true,
        allow_network_mounts: true,
        ..WatchRequest::default()
    };
    for value in [
        json!({"includeEntry": true, "allowNetworkMounts": true, "newer": {"x": []}}),
        json!({"include_entry": true, "allow_network_mounts": true}),
    ] {
        assert_eq!(read::<WatchRequest>(&value).unwrap(), message);
    }
    assert_eq!(
        read::<WatchRequest>(&json!([])).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn protobuf_has_the_published_numbers() {
    // Written by hand from the field numbers.
    let selector = ProcessSelector {
        pid: Some(300),
        tag: None,
    };
    assert_eq!(Codec::Proto.encode(&selector), &b"\x08\xac\x02"[..]);
    let start = StartRequest {
        process: Some(ProcessConfig {
            cmd: "a".into(),
            args: vec!["b".into()],
            envs: [("k".to_owned(), "v".to_owned())].into(),
            cwd: Some("/".into()),
        }),
        pty: Some(Pty {
            size: Some(PtySize { cols: 80, rows: 24 }),
        }),
        tag: Some("t".into()),
        stdin: Some(true),
    };
    let bytes = b"\x0a\x11\x0a\x01a\x12\x01b\x1a\x06\x0a\x01k\x12\x01v\x22\x01/\x12\x06\x0a\x04\x08\x50\x10\x18\x1a\x01t\x20\x01";
    assert_eq!(Codec::Proto.encode(&start), &bytes[..]);
    assert_eq!(Codec::Proto.decode::<StartRequest>(bytes).unwrap(), start);
    let end = EndEvent {
        exit_code: -1,
        exited: false,
        status: "s".into(),
        error: Some("e".into()),
    };
    assert_eq!(
        Codec::Proto.encode(&end),
        &b"\x08\x01\x1a\x01s\x22\x01e"[..],
        "sint32 is zigzag"
    );
    let entry = EntryInfo {
        metadata: [("k".to_owned(), "v".to_owned())].into(),
        is_symlink: true,
        ..EntryInfo::default()
    };
    assert_eq!(
        Codec::Proto.encode(&entry),
        &b"\x5a\x06\x0a\x01k\x12\x01v\x60\x01"[..]
    );
    assert_eq!(
        Codec::Proto
            .decode::<EntryInfo>(b"\x0a\xff")
            .unwrap_err()
            .code,
        Code::InvalidArgument
    );
}

#[test]
fn a_selector_names_one_process() {
    let both = ProcessSelector {
        pid: Some(1),
        tag: Some("x".into()),
    };
    assert_eq!(both.one().unwrap_err().code, Code::InvalidArgument);
    assert_eq!(
        ProcessSelector::default().one().unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn ends_of_streams_and_errors_are_json() {
    assert_eq!(connect::end_of_stream(None), &b"\x02\0\0\0\x02{}"[..]);
    let error = Error::new(Code::NotFound, "x");
    let end = connect::end_of_stream(Some(&error));
    assert_eq!(
        &end[5..],
        br#"{"error":{"code":"not_found","message":"x"}}"#
    );
    assert_eq!(connect::read_end_of_stream(&end[5..]), Err(error.clone()));
    assert_eq!(
        connect::read_end_of_stream(br#"{"metadata":{"a":["b"]}}"#),
        Ok(())
    );
    assert_eq!(
        error.to_json(),
        &br#"{"code":"not_found","message":"x"}"#[..]
    );
    for (code, name, status) in [
        (Code::Canceled, "canceled", 499),
        (Code::Unknown, "unknown", 500),
        (Code::InvalidArgument, "invalid_argument", 400),
        (Code::DeadlineExceeded, "deadline_exceeded", 504),
        (Code::NotFound, "not_found", 404),
        (Code::AlreadyExists, "already_exists", 409),
        (Code::PermissionDenied, "permission_denied", 403),
        (Code::ResourceExhausted, "resource_exhausted", 429),
        (Code::FailedPrecondition, "failed_precondition", 400),
        (Code::Aborted, "aborted", 409),
        (Code::OutOfRange, "out_of_range", 400),
        (Code::Unimplemented, "unimplemented", 501),
        (Code::Internal, "internal", 500),
        (Code::Unavailable, "unavailable", 503),
        (Code::DataLoss, "data_loss", 500),
        (Code::Unauthenticated, "unauthenticated", 401),
    ] {
        assert_eq!(serde_json::to_value(code).unwrap(), name);
        assert_eq!(code.http_status(), status);
    }
}

#[test]
fn content_types_and_timeouts_are_read() {
    assert_eq!(
        Kind::parse("application/json; charset=utf-8"),
        Some(Kind::Unary(Codec::Json))
    );
    assert_eq!(
        Kind::parse("Application/Proto"),
        Some(Kind::Unary(Codec::Proto))
    );
    assert_eq!(
        Kind::parse("application/connect+proto"),
        Some(Kind::Stream(Codec::Proto))
    );
    assert_eq!(Kind::parse("application/grpc"), None);
    let timeout = |text: &str| connect::parse_timeout(Some(text.as_bytes()));
    assert_eq!(timeout("1500").unwrap().unwrap().as_millis(), 1500);
    assert_eq!(connect::parse_timeout(None).unwrap(), None);
    for bad in ["-1", "1.5", "99999999999", "x", " 1"] {
        assert_eq!(
            timeout(bad).unwrap_err().code,
            Code::InvalidArgument,
            "{bad}"
        );
    }
}

proptest! {
    #[test]
    fn events_survive_both_codecs(
        pid in any::<u32>(),
        exit_code in any::<i32>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in ".*",
        which in 0..3_usize,
    ) {
        let event = match which {
            0 => ProcessEvent { start: Some(StartEvent { pid }), ..ProcessEvent::default() },
            1 => ProcessEvent {
                data: Some(DataEvent { stderr: Some(Bytes::from(bytes)), ..DataEvent::default() }),
                ..ProcessEvent::default()
            },
            _ => ProcessEvent {
                end: Some(EndEvent { exit_code, exited: true, status: text.clone(), error: Some(text) }),
                ..ProcessEvent::default()
            },
        };
        let message = EventResponse { event: Some(event) };
        for codec in [Codec::Json, Codec::Proto] {
            prop_assert_eq!(codec.decode::<EventResponse>(&codec.encode(&message)).unwrap(), message.clone());
        }
    }

    #[test]
    fn envelopes_survive_any_cutting(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10),
        cut in 1..20_usize,
    ) {
        let mut all = Vec::new();
        for message in &messages {
            let mut envelope = vec![0; connect::PREFIX];
            envelope.extend_from_slice(message);
            connect::seal(&mut envelope, 0);
            all.extend(envelope);
        }
        let mut deframer = Deframer::new(40);
        let mut found = Vec::new();
        for piece in all.chunks(cut) {
            deframer.push(piece.to_vec());
            while let Some(envelope) = deframer.next_envelope().unwrap() {
                found.push(envelope.payload.to_vec());
            }
        }
        prop_assert_eq!(found, messages);
        prop_assert!(!deframer.is_mid_message());
    }

    #[test]
    fn anything_can_be_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for codec in [Codec::Json, Codec::Proto] {
            let _ = codec.decode::<StartRequest>(&bytes);
            let _ = codec.decode::<EventResponse>(&bytes);
            let _ = codec.decode::<EntryInfo>(&bytes);
        }
        let mut deframer = Deframer::new(1000);
        deframer.push(bytes);
        while let Ok(Some(_)) = deframer.next_envelope() {}
    }
}
