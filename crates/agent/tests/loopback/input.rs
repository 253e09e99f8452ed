//! What is typed or piped into a process, and the size of its terminal.

use bytes::Bytes;
use http::StatusCode;
use wire::{
    connect::{self, Code, Codec, Error},
    process::{
        Empty, ProcessInput, ProcessRequest, Pty, PtySize, SendInputRequest, Signal,
        StreamInputData, StreamInputRequest, StreamInputStart, UpdateRequest,
    },
};

use crate::{
    client::{Answer, BOTH, Served, code, serve},
    process::{by_pid, ended, first_words, listen, sh, signal, start},
};

pub(crate) fn stdin(text: &str) -> Option<ProcessInput> {
    Some(ProcessInput {
        stdin: Some(Bytes::copy_from_slice(text.as_bytes())),
        pty: None,
    })
}

fn pty(text: &str) -> Option<ProcessInput> {
    Some(ProcessInput {
        stdin: None,
        pty: Some(Bytes::copy_from_slice(text.as_bytes())),
    })
}

async fn stream_input(agent: &Served, codec: Codec, messages: &[StreamInputRequest]) -> Answer {
    let envelopes = messages.iter().flat_map(|message| codec.envelope(message));
    let headers = [("content-type", codec.stream_type())];
    let body: Vec<u8> = envelopes.collect();
    agent
        .post("/process.Process/StreamInput", &headers, body)
        .await
}

#[tokio::test]
async fn input_goes_where_it_is_meant() {
    let agent = serve().await;
    let send = async |pid, input| -> Result<Empty, Error> {
        let message = SendInputRequest {
            process: by_pid(pid),
            input,
        };
        agent
            .call(Codec::Json, "/process.Process/SendInput", &message, &[])
            .await
    };
    let close = async |pid| -> Result<Empty, Error> {
        let message = ProcessRequest {
            process: by_pid(pid),
        };
        agent
            .call(Codec::Proto, "/process.Process/CloseStdin", &message, &[])
            .await
    };
    let (stream, pid) = start(&agent, Codec::Json, &sh("cat"), &[]).await;
    send(pid, stdin("a")).await.unwrap();
    send(pid, stdin("b")).await.unwrap();
    assert_eq!(code(send(pid, pty("x")).await), Code::Internal);
    assert_eq!(code(send(pid, None).await), Code::InvalidArgument);
    let both = ProcessInput {
        stdin: Some("a".into()),
        pty: Some("b".into()),
    };
    assert_eq!(code(send(pid, Some(both)).await), Code::InvalidArgument);
    close(pid).await.unwrap();
    assert_eq!(listen(stream).await.stdout(), "ab");

    let end = async |pid| {
        let killed = signal(&agent, Codec::Json, pid, Signal::Kill).await;
        killed.unwrap();
    };
    let (stream, pid) = start(&agent, Codec::Json, &sh("exec <&-; exec sleep 100"), &[]).await;
    close(pid).await.unwrap();
    close(pid).await.unwrap();
    assert_eq!(code(send(pid, stdin("x")).await), Code::Internal);
    end(pid).await;
    drop(stream);

    let mut without = sh("cat; exec sleep 100");
    without.stdin = Some(false);
    let (stream, pid) = start(&agent, Codec::Json, &without, &[]).await;
    assert_eq!(code(send(pid, stdin("x")).await), Code::Internal);
    end(pid).await;
    drop(stream);
}

#[tokio::test]
async fn input_is_streamed() {
    let agent = serve().await;
    for codec in BOTH {
        let (stream, pid) = start(&agent, codec, &sh("head -c 300000 | wc -c"), &[]).await;
        let mut messages = vec![StreamInputRequest {
            start: Some(StreamInputStart {
                process: by_pid(pid),
            }),
            ..StreamInputRequest::default()
        }];
        messages.extend((0..3).map(|_| StreamInputRequest {
            data: Some(StreamInputData {
                input: stdin(&"x".repeat(100_000)),
            }),
            ..StreamInputRequest::default()
        }));
        let answer = stream_input(&agent, codec, &messages).await;
        assert_eq!(answer.status, StatusCode::OK);
        let mut expected = codec.envelope(&Empty {}).to_vec();
        expected.extend_from_slice(&connect::end_of_stream(None));
        assert_eq!(answer.body, expected);
        assert_eq!(listen(stream).await.stdout().trim(), "300000");

        for (messages, expected) in [
            (&messages[1..], Code::InvalidArgument),
            (&messages[..], Code::NotFound),
            (&[StreamInputRequest::default()], Code::InvalidArgument),
        ] {
            let answer = stream_input(&agent, codec, messages).await;
            assert_eq!(
                connect::read_end_of_stream(&answer.body[5..])
                    .unwrap_err()
                    .code,
                expected
            );
        }
    }
}

#[tokio::test]
async fn a_terminal_has_a_size_and_speaks() {
    let agent = serve().await;
    let mut message = sh("stty size; read x; stty size; echo $x; tty; exec cat");
    message.pty = Some(Pty {
        size: Some(PtySize {
            cols: 100,
            rows: 30,
        }),
    });
    let (mut stream, pid) = start(&agent, Codec::Json, &message, &[]).await;
    let update = UpdateRequest {
        process: by_pid(pid),
        pty: Some(Pty {
            size: Some(PtySize {
                cols: 120,
                rows: 40,
            }),
        }),
    };
    // It has looked at its size.
    let mut text = first_words(&mut stream).await;
    agent
        .call::<_, Empty>(Codec::Json, "/process.Process/Update", &update, &[])
        .await
        .unwrap();
    let send = async |input| -> Result<Empty, Error> {
        let message = SendInputRequest {
            process: by_pid(pid),
            input,
        };
        agent
            .call(Codec::Proto, "/process.Process/SendInput", &message, &[])
            .await
    };
    send(pty("word\n")).await.unwrap();
    assert_eq!(code(send(stdin("x")).await), Code::Internal);
    let close: Result<Empty, _> = agent
        .call(
            Codec::Json,
            "/process.Process/CloseStdin",
            &ProcessRequest {
                process: by_pid(pid),
            },
            &[],
        )
        .await;
    assert_eq!(code(close), Code::FailedPrecondition);
    send(pty("\u{4}")).await.unwrap();
    let said = listen(stream).await;
    text.extend(said.pty);
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("30 100\r\n"), "{text}");
    assert!(text.contains("40 120\r\nword\r\n/dev/pts/"), "{text}");
    assert_eq!((said.stdout.len(), said.end), (0, ended(0)));
    // A process without one has no size.
    let (_stream, pid) = start(&agent, Codec::Json, &sh("exec sleep 100"), &[]).await;
    let update = UpdateRequest {
        process: by_pid(pid),
        ..update
    };
    let answer: Result<Empty, _> = agent
        .call(Codec::Json, "/process.Process/Update", &update, &[])
        .await;
    assert_eq!(code(answer), Code::Internal);
    signal(&agent, Codec::Json, pid, Signal::Kill)
        .await
        .unwrap();
}
