//! `dormouse-agent`: see the library.

use std::process::ExitCode;

use agent::Args;

/// The C library's (musl's) gives every large buffer back to the kernel and gets it anew: a
/// gigabyte of output would be a gigabyte of page faults.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
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
    match agent::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("dormouse-agent: {why}");
            ExitCode::FAILURE
        }
    }
}
