//! What runs inside in this crate's tests: a first process that runs what it is asked to, and the
//! attempts to break out. On the host it is the server that dies half-way.
#![expect(
    clippy::unwrap_used,
    reason = "a test program: what it does not expect ends it"
)]

mod attempts;
mod die;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{net::UnixListener, process::CommandExt as _},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Request {
    uid: u32,
    argv: Vec<String>,
}

#[derive(Serialize)]
struct Reply {
    code: i32,
    output: String,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => serve(),
        ["attempts"] => attempts::list(),
        ["attempt", name, rest @ ..] => attempts::run(name, rest),
        ["die", verb, data_dir, step, first_uid, class] => {
            die::run(verb, data_dir, step, first_uid, class);
        }
        other => panic!("what is {other:?}?"),
    }
}

/// Runs what is asked for on a socket that only the host's root can reach from outside.
fn serve() {
    // A restored sandbox has none, a restarted one has the old one.
    let _ = std::fs::remove_file("/tmp/control");
    let listener = UnixListener::bind("/tmp/control").unwrap();
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let Ok(request) = serde_json::from_str::<Request>(&line) else {
            continue;
        };
        let reply = perform(&request);
        let text = serde_json::to_string(&reply).unwrap();
        // Whoever asked may have left.
        let _ = (&stream).write_all(text.as_bytes());
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
    }
}

/// Takes memory until there is none.
fn eat() -> ! {
    let mut eaten = Vec::new();
    loop {
        eaten.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
}

fn perform(request: &Request) -> Reply {
    let argv: Vec<&str> = request.argv.iter().map(String::as_str).collect();
    match argv.as_slice() {
        ["exit", code] => std::process::exit(code.parse().unwrap()),
        ["abort"] => std::process::abort(),
        ["eat"] => eat(),
        ["background", program, args @ ..] => {
            let child = Command::new(program).args(args).spawn();
            Reply {
                code: i32::from(child.is_err()),
                output: child.map_or_else(|e| e.to_string(), |c| c.id().to_string()),
            }
        }
        [program, args @ ..] => {
            let output = Command::new(program)
                .args(args)
                .uid(request.uid)
                .gid(request.uid)
                .stdin(Stdio::null())
                .output();
            match output {
                Ok(output) => Reply {
                    code: output.status.code().unwrap_or(-1),
                    output: String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
                        .into(),
                },
                Err(error) => Reply {
                    code: 126,
                    output: error.to_string(),
                },
            }
        }
        [] => Reply {
            code: 126,
            output: "nothing asked".into(),
        },
    }
}
