//! The worker as a program of its own, as `dormouse commit` is: for tests that signal and kill it, and
//! for trying a node by hand.

use std::process::ExitCode;

use clap::Parser;
use node::commit::CommitArgs;

/// Captures what a sandbox has written.
#[derive(Debug, Parser)]
struct Arguments {
    /// What `dormouse commit` is called with, the word itself included.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Captures what a sandbox has written, and pushes it.
    Commit(CommitArgs),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Command::Commit(args) = Arguments::parse().command;
    match args.run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
