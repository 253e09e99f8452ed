//! The `dormouse` binary: the only place where the parts are put together.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`config`] | settings: file, environment, flags |
//! | [`serve`] | `dormouse serve`, start to stop |
//! | [`handover`] | how one server takes the place of another |
//! | [`control_loop`] | what makes intent so, over which runtime |
//! | [`sleep`] | what sleeping and waking need of several parts |
//! | [`ext_proc`] | `dormouse ext-proc`, and the same beside any gateway |
//! | [`forwards`], [`ssh_door`] | other ways into sandboxes: ports of the host, SSH |
//! | [`audit_trail`], [`process_logs`], [`logging`] | who did what, what start commands say, log lines |
//! | [`metrics`] | the page for Prometheus |
//! | [`sampling`] | what sandboxes use, measured |
//! | [`data_plane`], [`announce`] | the E2B API and the gateway, and how to reach them |
//! | [`data_dir`] | one server, private files |
//! | [`tls`], [`token`] | the server's identity, the first user's token |
//! | [`listener`], [`stall`] | connections, and those that do not move |
//! | [`supervisor`] | what an init system is told |
//! | [`doctor`] | `dormouse doctor`: what this host lacks |
//! | [`workshop`] | images for builds of templates |
//! | [`image`], [`known_images`] | `dormouse image` |
//! | [`template`], [`interpreter`] | `dormouse template` |
//! | [`plugins`] | who has a say in what is made |
//! | [`gc`], [`admin`] | what nothing needs any more, and who may ask for that |
//! | [`roles`] | `dormouse control`, `api`, `gateway`: the processes of an installation on Kubernetes |
//! | [`install`] | `dormouse install`: an installation on Kubernetes |
//! | [`run`], [`throwaway`] | `dormouse run`: a throw-away sandbox for one command |
//!
//! The other commands are clients of the API; they live in the `cli` crate.

mod admin;
mod announce;
mod audit_trail;
mod config;
mod control_loop;
mod data_dir;
mod data_plane;
mod doctor;
mod ext_proc;
mod forwards;
mod gc;
mod handover;
mod image;
mod install;
mod interpreter;
mod known_images;
mod listener;
mod logging;
mod metrics;
mod plugins;
mod process_logs;
mod roles;
mod run;
mod sampling;
mod serve;
mod sleep;
mod ssh_door;
mod stall;
mod supervisor;
mod template;
mod throwaway;
mod tls;
mod token;
mod workshop;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use config::{
    flags::Flags,
    load::{Environment, InForce, load, refuse_unknown_variables},
    show::{self, Format},
};

/// Sandboxes for AI agents: ready in milliseconds, asleep when idle, awake on traffic.
#[derive(Debug, Parser)]
#[command(
    name = "dormouse",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  dormouse serve                              run the server
  dormouse serve --data-dir ./data --listen 127.0.0.1:0
  dormouse run python3 -c 'print(1)'          a command in a throw-away sandbox
  dormouse sandbox create                     a sandbox that stays a while, and prints its id
  dormouse sandbox shell ID                   a shell in it
  dormouse top                                what sandboxes use
  dormouse apply -f sandbox.yaml              create or change what a file describes
  dormouse get sandboxes                      list them
  dormouse describe sandbox my-sandbox        everything about one, with its events
  dormouse watch sandboxes                    follow changes
  dormouse delete sandbox my-sandbox
  dormouse key create ci                      a key for programs that use the API
  dormouse image pull python:3.12             an image for sandboxes
  dormouse config                             what is configured, and by whom
  dormouse doctor                             what this host has of what sandboxes need"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    #[command(after_help = "Examples:
  dormouse serve
  dormouse serve --data-dir /srv/dormouse --listen 0.0.0.0:7443
  DORMOUSE_LOG_LEVEL=debug dormouse serve --config dormouse.toml

The first start makes a certificate authority, a token and a kubeconfig in the data directory.
SIGINT or SIGTERM stops it after the requests under way; a second one stops it at once.
With --take-over a new version takes the place of the one that runs, and nobody is refused;\nSIGUSR2 has the one that runs start it: see docs/operations.md.")]
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Take the place of the server that runs in the same data directory, with its listeners
        #[arg(long)]
        take_over: bool,
    },
    /// Run the control loop of an installation on Kubernetes: of several, one acts
    Control(Flags),
    /// Run the E2B API of an installation on Kubernetes
    Api(Flags),
    /// Run a gateway to the sandboxes of an installation on Kubernetes
    Gateway(Flags),
    /// Run a gateway with an external processor, for Envoys before an installation on Kubernetes
    ExtProc(Flags),
    /// Run the daemon of a node: freezes and thaws sandboxes of an installation on Kubernetes
    Node(Flags),
    /// Capture what a sandbox on this node has written, and push it: the Job that a pause is
    #[command(hide = true)]
    Commit(node::commit::CommitArgs),
    /// Show the configuration in force, and where each value comes from
    #[command(after_help = "Examples:
  dormouse config
  dormouse config --output toml > dormouse.toml
  DORMOUSE_LISTEN=127.0.0.1:0 dormouse config --config dormouse.toml")]
    Config {
        #[command(flatten)]
        flags: Flags,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Say what this host has of what sandboxes need, and what to do about the rest
    Doctor(doctor::Doctor),
    /// Run a command in a sandbox that is gone when it ends
    Run(run::Run),
    /// List, pull, push, import, export and remove images of this host
    Image(image::Images),
    /// Build, list and delete what sandboxes are made from
    #[command(subcommand)]
    Template(template::Command),
    Install(install::Install),
    /// Print what a shell needs to complete commands
    #[command(after_help = "Examples:
  dormouse completion bash > /etc/bash_completion.d/dormouse
  dormouse completion zsh > \"${fpath[1]}/_dormouse\"
  dormouse completion fish > ~/.config/fish/completions/dormouse.fish
  source <(dormouse completion bash)                       for this shell only")]
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
    #[command(flatten)]
    Client(cli::Command),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve { flags, take_over } => serve(&flags, take_over),
        Command::Control(flags) => {
            role(&flags, async |settings| roles::control::run(settings).await)
        }
        Command::Api(flags) => role(&flags, async |settings| roles::api::run(settings).await),
        Command::Gateway(flags) => {
            role(&flags, async |settings| roles::gateway::run(settings).await)
        }
        Command::Node(flags) => role(&flags, async |settings| roles::node::run(settings).await),
        Command::Commit(args) => match commit(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::ExtProc(flags) => role(&flags, async |settings| ext_proc::run(settings).await),
        Command::Config { flags, output } => {
            read(&flags).and_then(|in_force| cli::print(&show::show(&in_force, output)))
        }
        Command::Doctor(args) => {
            let report = |in_force: InForce| doctor::run(&args, &in_force.settings.data_dir.0);
            match read(&args.flags).and_then(report) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Run(args) => {
            let is_root = Environment::of_process().is_root;
            match runtime().and_then(|runtime| runtime.block_on(run::run(args, is_root))) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Image(args) => settings_of(&args.at)
            .and_then(|settings| runtime()?.block_on(image::run(args, &settings))),
        Command::Install(args) => install::run(&args),
        Command::Template(command) => {
            let is_root = Environment::of_process().is_root;
            let done = template::run(command, is_root, settings_of);
            match runtime().and_then(|runtime| runtime.block_on(done)) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Version => cli::print(&format!("dormouse {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completion { shell } => completion(shell),
        Command::Client(command) => match client(command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
    };
    cli::exit_code(outcome)
}

fn read(flags: &Flags) -> anyhow::Result<InForce> {
    let environment = Environment::of_process();
    Ok(load(&environment, flags.file.as_deref(), &flags.given)?)
}

/// What is configured, with the data directory that a flag names.
fn settings_of(at: &image::At) -> anyhow::Result<config::Settings> {
    let named = at.data_dir.as_ref().map(|path| path.display().to_string());
    let flags = Flags {
        file: None,
        given: named.map(|path| ("data_dir", path)).into_iter().collect(),
    };
    Ok(read(&flags)?.settings)
}

fn serve(flags: &Flags, take_over: bool) -> anyhow::Result<()> {
    let settings = read(flags)?.settings;
    logging::start(&settings);
    runtime()?.block_on(serve::run(&settings, take_over))
}

fn role(
    flags: &Flags,
    run: impl AsyncFnOnce(&config::Settings) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = read(flags)?.settings;
    logging::start(&settings);
    runtime()?.block_on(run(&settings))
}

fn commit(args: node::commit::CommitArgs) -> anyhow::Result<ExitCode> {
    logging::start(&read(&Flags::default())?.settings);
    Ok(runtime()?.block_on(args.run())?)
}

fn completion(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "dormouse", &mut text);
    cli::print(&String::from_utf8(text)?)
}

fn client(command: cli::Command) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    refuse_unknown_variables(&environment)?;
    runtime()?.block_on(cli::run(command, environment.is_root))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}
