//! `dormouse image`: the images of a data directory, whether a server has it or not; and
//! `dormouse template`, where none has.
//!
//! | Module | What it holds |
//! |---|---|
//! | `place` | finding out whether a server has the directory |
//! | `store` | what is done with images, by whoever has them |
//! | `remote` | the same, by way of a server |
//! | [`serve`] | what that server answers |
//! | `far` | how far a transfer is |

mod far;
mod place;
mod remote;
pub(crate) mod serve;
pub(crate) mod spool;
mod store;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use far::bytes;
use images::{Format, Options, Store};
use model::Digest;
use place::Place;
use serde_json::{Value, json};
use store::Listed;

use crate::{config::Settings, data_dir::DataDir};

/// Images on this host.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dormouse image pull python:3.12
  dormouse image pull registry.example.com/team/app@sha256:...
  dormouse image push app:1 registry.example.com/team/app:1
  dormouse image import ./saved.tar --name app:1
  dormouse image export app:1 app.tar
  dormouse image commit sha256:... app:2          a captured layer as an image
  dormouse image ls --json
  dormouse image rm app:1

A server that runs on the data directory does it; else this command does, on the directory itself.
Credentials are those of registry.users, or else of `docker login`, of whoever does it.")]
pub(crate) struct Images {
    #[command(flatten)]
    pub(crate) at: At,
    #[command(subcommand)]
    command: Command,
}

/// Which data directory.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// Directory that holds all state [env: DORMOUSE_DATA_DIR]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// How a registry is reached, besides what is configured.
#[derive(Debug, Default, Args)]
struct Reach {
    /// A registry, as host:port, that may be reached without TLS; those on loopback may
    #[arg(long, value_name = "REGISTRY")]
    insecure: Vec<String>,
    /// Certificates in PEM that are trusted besides the host's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl Reach {
    const fn says_something(&self) -> bool {
        !self.insecure.is_empty() || self.ca_file.is_some()
    }

    fn add_to(self, options: &mut Options) {
        options.registry.insecure.extend(self.insecure);
        options.registry.ca_file = self.ca_file.or(options.registry.ca_file.take());
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List images
    #[command(visible_alias = "list")]
    Ls {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring an image here, or bring it up to date
    Pull {
        /// Its name, as for `docker pull`
        name: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Bring an image to a registry
    Push {
        /// Its name here
        name: String,
        /// Its name there; without, the same
        to: Option<String>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Take images from an OCI layout (directory or archive) or from what `docker save` wrote
    Import {
        /// The directory or file
        path: PathBuf,
        /// What to call it; without, what the file says
        #[arg(long)]
        name: Option<String>,
    },
    /// Write an image to a new directory or file
    Export {
        /// Its name
        name: String,
        /// Where to
        path: PathBuf,
        /// What to write
        #[arg(long, value_enum, default_value_t)]
        format: As,
    },
    /// Make an image of a captured layer and the image it was captured on
    Commit {
        /// The layer's digest, as a sandbox's or a snapshot's status has it
        layer: Digest,
        /// What to call the image
        name: String,
    },
    /// Take a name away; the image goes with the next `gc`, if nothing else leads to it
    Rm {
        /// Names of images
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove what no name, no record and no sandbox leads to
    Gc {
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

/// What an image is written as.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum As {
    /// An OCI layout as an archive
    #[default]
    OciArchive,
    /// An OCI layout as a directory
    Oci,
    /// What `docker load` reads
    DockerArchive,
}

impl As {
    const fn format(self) -> Format {
        match self {
            Self::OciArchive => Format::OciArchive,
            Self::Oci => Format::OciDirectory,
            Self::DockerArchive => Format::DockerArchive,
        }
    }
}

/// How images are had: as configured, or else with the credentials of `docker login`.
pub(crate) fn options(settings: &Settings) -> Options {
    let mut options = Options {
        compression: settings.registry_compression.0,
        ..Options::default()
    };
    let home = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".docker"))
        });
    options.registry.docker_config = home.map(|home| home.join("config.json"));
    options.registry.password_files = settings.registry_users.0.clone();
    options.registry.insecure = settings.registry_insecure.0.clone();
    options.registry.ca_file = settings.registry_ca_file.0.clone();
    options
}

/// Opens the images of a data directory that nobody else has.
pub(crate) fn open(data_dir: &DataDir, options: Options) -> anyhow::Result<Store> {
    Store::open(data_dir.path(), options).context("open the images")
}

/// Does what was asked.
///
/// # Errors
/// If the data directory cannot be used, or it does not work.
pub(crate) async fn run(args: Images, settings: &Settings) -> anyhow::Result<()> {
    let place = |reach| Place::find(settings, reach);
    let usual = Reach::default();
    match args.command {
        Command::Ls { json } => print_list(&place(usual)?.list().await?, json),
        Command::Pull { name, reach } => {
            let pulled = place(reach)?.pull(&name).await;
            let digest = pulled.with_context(|| format!("pull {name}"))?;
            cli::print(&format!("{name} {digest}\n"))
        }
        Command::Push { name, to, reach } => {
            let to = to.as_deref().unwrap_or(&name);
            let pushed = place(reach)?.push(&name, to).await;
            let reference = pushed.with_context(|| format!("push {name} to {to}"))?;
            cli::print(&format!("{reference}\n"))
        }
        Command::Import { path, name } => {
            for Listed { name, digest, .. } in place(usual)?.import(&path, name.as_deref()).await? {
                cli::print(&format!("{name} {digest}\n"))?;
            }
            Ok(())
        }
        Command::Export { name, path, format } => {
            let format = format.format();
            place(usual)?.export(&name, &path, format).await?;
            cli::print(&format!("{}\n", path.display()))
        }
        Command::Commit { layer, name } => {
            let digest = place(usual)?.commit(&layer, &name).await?;
            cli::print(&format!("{name} {digest}\n"))
        }
        Command::Rm { names } => {
            let place = place(usual)?;
            for name in names {
                place.remove(&name).await?;
            }
            Ok(())
        }
        Command::Gc { dry_run, json } => {
            let swept = place(usual)?.sweep(dry_run).await?;
            match json {
                true => cli::print(&format!("{swept}\n")),
                false => cli::print(&show(&swept, dry_run)),
            }
        }
    }
}

fn print_list(images: &[Listed], json: bool) -> anyhow::Result<()> {
    if json {
        return cli::print(&format!("{}\n", json!(images)));
    }
    let width = images.iter().map(|image| image.name.len()).max();
    let width = width.unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:71}  {:>9}\n", "NAME", "DIGEST", "SIZE");
    for Listed { name, digest, size } in images {
        let size = bytes(*size);
        text.push_str(&format!("{name:width$}  {digest}  {size:>9}\n"));
    }
    cli::print(&text)
}

fn show(swept: &Value, dry_run: bool) -> String {
    let mut text = String::new();
    for (what, list) in [
        ("image", "images"),
        ("layer", "layers"),
        ("blob", "blobs"),
        ("download", "downloads"),
    ] {
        let digests = swept[list].as_array().into_iter().flatten();
        for digest in digests.filter_map(Value::as_str) {
            text.push_str(&format!("{what:8}  {digest}\n"));
        }
    }
    let verb = if dry_run { "would free" } else { "freed" };
    let freed = bytes(swept["bytes"].as_u64().unwrap_or(0));
    text.push_str(&format!("{verb} {freed} and what is unpacked of it\n"));
    text
}
