//! `dormouse sandbox`: sandboxes for people, over the E2B API and the agents inside.

mod copy;
mod create;
mod exec;
mod fork;
mod forward;
mod life;
mod list;
mod logs;
mod place;
mod transfer;
mod url;

use std::process::ExitCode;

use clap::Subcommand;

pub(crate) use create::{pair, seconds};

/// What to do with sandboxes.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a sandbox, and print its id
    #[command(after_help = "Examples:
  dormouse sandbox create                                  of the template `base`, for 5 minutes
  dormouse sandbox create --timeout 1h --env NAME=world
  dormouse sandbox create --auto-resume --timeout 2m       sleeps when idle, wakes on traffic
  id=$(dormouse sandbox create) && dormouse sandbox shell $id
  dormouse sandbox create --json                           the whole answer, with its tokens")]
    Create(create::Arguments),
    /// List sandboxes
    #[command(after_help = "Examples:
  dormouse sandbox ls
  dormouse sandbox ls --state paused
  dormouse sandbox ls --metadata user=ada --json
  dormouse sandbox kill $(dormouse sandbox ls -q)          all of them")]
    Ls(list::Arguments),
    /// Run a command in a sandbox
    #[command(after_help = "Examples:
  dormouse sandbox exec ID -- ls -l /home
  dormouse sandbox exec ID -- sh -c 'exit 3'; echo $?      3
  echo hello | dormouse sandbox exec -i ID -- tr a-z A-Z
  dormouse sandbox exec -it --user root ID -- bash

One that sleeps is woken. An id may be shortened to what only it begins with. The exit code is the
command's; 128 and the number of the signal where one ended it, 1 if it could not be started.")]
    Exec(exec::Arguments),
    /// Open a shell in a sandbox
    #[command(after_help = "Examples:
  dormouse sandbox shell ID
  dormouse sandbox shell ID --user root")]
    Shell(exec::Shell),
    /// Copy files and directories into a sandbox, and out of it
    #[command(after_help = "Examples:
  dormouse sandbox cp data.csv ID:/home/user/
  dormouse sandbox cp ./project ID:/srv/project
  dormouse sandbox cp ID:/home/user/result.json .
  dormouse sandbox cp ID:/srv/project ./copy

A directory is copied with all that is in it: into the target if that is a directory, else as the
target. A path without a slash at its start is below the home of the user inside. A file here whose
name has a colon is written with ./ before it.")]
    Cp(copy::Arguments),
    /// Show what happened to a sandbox
    #[command(after_help = "Examples:
  dormouse sandbox logs ID
  dormouse sandbox logs ID -f
  dormouse sandbox logs ID --level warn --json")]
    Logs(logs::Arguments),
    /// Put sandboxes to sleep
    #[command(after_help = "Examples:
  dormouse sandbox pause ID
  dormouse sandbox pause ID --no-memory                    keeps files only; it boots when it wakes")]
    Pause(life::Pause),
    /// Wake sandboxes
    #[command(after_help = "Examples:
  dormouse sandbox resume ID
  dormouse sandbox resume ID --timeout 1h")]
    Resume(life::Resume),
    /// Make sandboxes that start from the files of one that runs, and print their ids
    #[command(after_help = "Examples:
  dormouse sandbox fork ID
  dormouse sandbox fork ID --count 20 --timeout 1h

Its files are kept once, whatever the count. It goes on running; the others start their processes anew.")]
    Fork(fork::Arguments),
    /// Keep the files of a sandbox: the same as `dormouse snapshot create`
    #[command(after_help = "Examples:
  dormouse sandbox snapshot ID --name my-app:v2")]
    Snapshot(crate::snapshot::Create),
    /// End sandboxes
    #[command(after_help = "Examples:
  dormouse sandbox kill ID
  dormouse sandbox kill $(dormouse sandbox ls -q)          all of them")]
    Kill(life::Kill),
    /// Print the URL of a port of a sandbox
    #[command(after_help = "Examples:
  dormouse sandbox url ID 8000
  curl $(dormouse sandbox url ID 8000)
  dormouse sandbox url ID 8000 --json                      with the headers that it needs")]
    Url(url::Arguments),
    /// Let ports of this machine lead into a sandbox, until interrupted
    #[command(after_help = "Examples:
  dormouse sandbox port-forward ID 8000                    port 8000 here is port 8000 inside
  dormouse sandbox port-forward ID 15432:5432 :8080        two of them, the second at any free port
  dormouse sandbox port-forward ID 5432 --address 0.0.0.0  for other machines too

Any protocol over TCP passes. A sandbox that sleeps is woken by the first connection, which waits.")]
    PortForward(forward::Arguments),
}

/// Runs one.
pub(crate) async fn run(command: Command, is_root: bool) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Exec(arguments) => return exec::run(arguments, is_root).await,
        Command::Shell(arguments) => return exec::shell(arguments, is_root).await,
        Command::Create(arguments) => create::run(arguments, is_root).await,
        Command::Ls(arguments) => list::run(&arguments, is_root).await,
        Command::Cp(arguments) => copy::run(&arguments, is_root).await,
        Command::Logs(arguments) => logs::run(&arguments, is_root).await,
        Command::Pause(arguments) => life::pause(&arguments, is_root).await,
        Command::Resume(arguments) => life::resume(&arguments, is_root).await,
        Command::Fork(arguments) => fork::run(&arguments, is_root).await,
        Command::Snapshot(arguments) => crate::snapshot::create(&arguments, is_root).await,
        Command::Kill(arguments) => life::kill(&arguments, is_root).await,
        Command::Url(arguments) => url::run(&arguments, is_root).await,
        Command::PortForward(arguments) => forward::run(arguments, is_root).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}
