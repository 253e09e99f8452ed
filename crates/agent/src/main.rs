//! `dormouse-agent`: see the library.

use std::process::ExitCode;

use agent::Args;

/// The C library's (musl's) gives every large buffer back to the kernel and gets it anew: a
/// gigabyte of output would be a gigabyte of page faults.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        // The same program serves the files of one user, over its own input and output.
        Some(word) if word == "sftp" => {
            return outcome(sftp::serve(
                std::io::stdin().lock(),
                std::io::stdout().lock(),
            ));
        }
        // And it brings itself into a volume that a sandbox has.
        Some(word) if word == "install" => {
            return outcome(agent::install(words));
        }
        Some(_) | None => {}
    }
    let args = match Args::parse(std::env::args_os().skip(1)) {
        Ok(Some(args)) => args,
        Ok(None) => {
            println!("{}", Args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("dormouse-agent: {why}\n\n{}", Args::HELP);
            return ExitCode::from(2);
        }
    };
    outcome(agent::run(args))
}

fn outcome<E: std::fmt::Display>(outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("dormouse-agent: {why}");
            ExitCode::FAILURE
        }
    }
}
