//! `dormouse template`: what sandboxes are made from. `build`, `ls` and `rm` ask a server; the images
//! that an installation begins with are built in a data directory that no server has open.

use std::process::ExitCode;

use clap::Subcommand;
use images::Debian;

use crate::{
    config::Settings,
    data_dir::DataDir,
    image::{self, At},
    interpreter,
};

/// What to do with templates.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a template from a Dockerfile, on a server
    #[command(after_help = "Examples:
  dormouse template build my-app .
  dormouse template build my-app:v2 . --tag stable --start 'python3 server.py' \\
      --ready 'curl -sf localhost:8000'
  dormouse template build my-app . --from-template base
  dormouse sandbox create my-app

Steps run in a sandbox of the team's, and what each leaves is kept: the next build goes on from the
last step that is still the same. One stage of FROM, RUN, COPY, ENV, ARG, WORKDIR, USER, CMD and
ENTRYPOINT is understood. Sandboxes run as `user` in /home/user unless USER and WORKDIR say otherwise.")]
    Build(cli::template::Build),
    /// List the templates that sandboxes can be made from
    #[command(visible_alias = "list")]
    Ls(cli::template::List),
    /// Delete templates that were built, and end their builds
    Rm(cli::template::Remove),
    /// Build a Debian root with mmdebstrap, which is `base` for new sandboxes from then on
    #[command(after_help = "Examples:
  dormouse template build-base
  dormouse template build-base --suite bookworm --package nodejs

The packages come from this host's own sources. Until this is done, `base` is a small root over
the programs that the host has in /usr.")]
    BuildBase {
        /// Which release of Debian; the host's own if none is named
        #[arg(long)]
        suite: Option<String>,
        /// A package besides the usual ones; can be given several times
        #[arg(long = "package", value_name = "NAME")]
        packages: Vec<String>,
        #[command(flatten)]
        at: At,
    },
    /// Build the image of `code-interpreter-v1`, for E2B's code interpreter clients
    #[command(after_help = "Examples:
  dormouse template build-code-interpreter
  dormouse template build-code-interpreter --plots
  dormouse template build-code-interpreter --base python:3.13 --package numpy

The packages come from where the host's pip finds them. The template is made by the next server that
starts, or stays as it is.")]
    BuildCodeInterpreter {
        #[command(flatten)]
        what: interpreter::Build,
        #[command(flatten)]
        at: At,
    },
}

/// Does what was asked. `settings` reads those of a data directory.
///
/// # Errors
/// If it does not work.
pub(crate) async fn run(
    command: Command,
    is_root: bool,
    settings: impl FnOnce(&At) -> anyhow::Result<Settings>,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Build(arguments) => cli::template::build(&arguments, is_root).await?,
        Command::Ls(arguments) => cli::template::list(&arguments, is_root).await?,
        Command::Rm(arguments) => cli::template::remove(&arguments, is_root).await?,
        Command::BuildBase {
            suite,
            packages,
            at,
        } => {
            let mut what = Debian {
                suite,
                ..Debian::default()
            };
            what.packages.extend(packages);
            let settings = settings(&at)?;
            let data_dir = DataDir::take(&settings.data_dir.0)?;
            let store = image::open(&data_dir, image::options(&settings))?;
            let built = store.build_base(&what, |line| eprintln!("{line}"))?;
            cli::print(&format!("base {}\n", built.image.digest()))?;
        }
        Command::BuildCodeInterpreter { what, at } => {
            let settings = settings(&at)?;
            let data_dir = DataDir::take(&settings.data_dir.0)?;
            let store = image::open(&data_dir, image::options(&settings))?;
            interpreter::build(&store, &what)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
