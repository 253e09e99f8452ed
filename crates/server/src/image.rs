//! `dormouse image` and `dormouse template`: the images of a data directory that no
//! server has open.

use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use images::{
    Commit, Debian, Flight, Format, ImageError, InUse, Kept, Login, Options, Origin, Progress,
    Store, Sweep, Swept,
};
use kit::{Clock, Entropy, SystemClock};
use model::Digest;
use serde_json::json;
use store_redb::RedbStore;

use crate::{config::Settings, data_dir::DataDir, gc, interpreter};

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

They work on the data directory itself, which no server may have open: a server that runs pulls
what its sandboxes ask for. Credentials are those of registry.users, or else of `docker login`.")]
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
#[derive(Debug, Args)]
struct Reach {
    /// A registry, as host:port, that may be reached without TLS; those on loopback may
    #[arg(long, value_name = "REGISTRY")]
    insecure: Vec<String>,
    /// Certificates in PEM that are trusted besides the host's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl Reach {
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

/// What sandboxes are made from.
#[derive(Debug, Args)]
pub(crate) struct Templates {
    #[command(flatten)]
    pub(crate) at: At,
    #[command(subcommand)]
    command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
enum TemplateCommand {
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
    },
    /// Build the image of `code-interpreter-v1`, for E2B's code interpreter clients
    #[command(after_help = "Examples:
  dormouse template build-code-interpreter
  dormouse template build-code-interpreter --plots
  dormouse template build-code-interpreter --base python:3.13 --package numpy

The packages come from where the host's pip finds them. The template is made by the next server that
starts, or stays as it is.")]
    BuildCodeInterpreter(interpreter::Build),
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
fn open(data_dir: &DataDir, options: Options) -> anyhow::Result<Store> {
    Store::open(data_dir.path(), options).context("open the images")
}

/// Does what was asked.
///
/// # Errors
/// If a server has the data directory, or it does not work.
pub(crate) async fn run(args: Images, settings: &Settings) -> anyhow::Result<()> {
    let data_dir = DataDir::take(&settings.data_dir.0)?;
    let mut options = options(settings);
    match args.command {
        Command::Ls { json } => list(&open(&data_dir, options)?, json),
        Command::Pull { name, reach } => {
            reach.add_to(&mut options);
            let store = open(&data_dir, options)?;
            let image = follow(store.pull(&name)?).await;
            let image = image.with_context(|| format!("pull {name}"))?;
            cli::print(&format!("{name} {}\n", image.digest()))
        }
        Command::Push { name, to, reach } => {
            reach.add_to(&mut options);
            let store = open(&data_dir, options)?;
            let to = to.as_deref().unwrap_or(&name);
            let pushed = follow(store.push(&name, to, Login::Configured)?).await;
            let pushed = pushed.with_context(|| format!("push {name} to {to}"))?;
            cli::print(&format!("{}\n", pushed.reference))
        }
        Command::Import { path, name } => {
            let store = open(&data_dir, options)?;
            for imported in store.import(&path, name.as_deref())? {
                for name in imported.names {
                    cli::print(&format!("{name} {}\n", imported.image.digest()))?;
                }
            }
            Ok(())
        }
        Command::Export { name, path, format } => {
            open(&data_dir, options)?.export(&name, &path, format.format())?;
            cli::print(&format!("{}\n", path.display()))
        }
        Command::Commit { layer, name } => {
            let compression = options.compression;
            let store = open(&data_dir, options)?;
            let committed = store.commit(&Commit {
                layer,
                parent: None,
                compression,
            })?;
            let kept = store.keep(committed, &name)?;
            cli::print(&format!("{name} {}\n", kept.image.digest()))
        }
        Command::Rm { names } => {
            let store = open(&data_dir, options)?;
            for name in names {
                refuse_used(&data_dir, &store, &name).await?;
                if !store.remove(&name)? {
                    bail!("there is no image {name}: `dormouse image ls` lists them");
                }
            }
            Ok(())
        }
        Command::Gc { dry_run, json } => {
            let store = open(&data_dir, options)?;
            let used = match records(&data_dir)? {
                Some(records) => gc::used(&records).await?,
                None => InUse::from(Kept::All),
            };
            let how = Sweep {
                dry_run,
                ..Sweep::default()
            };
            let swept = store.gc(how, || runtime_local::in_use(data_dir.path(), used))?;
            match json {
                true => cli::print(&format!("{}\n", gc::shown(&swept))),
                false => cli::print(&show(&swept, dry_run)),
            }
        }
    }
}

/// The records of a data directory, if a server has ever written some.
fn records(data_dir: &DataDir) -> anyhow::Result<Option<RedbStore>> {
    if !data_dir.join("store").exists() {
        return Ok(None);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let entropy = Arc::new(Entropy::from_os());
    let options = store_redb::Options::default();
    let opened = RedbStore::open(data_dir.path(), clock, entropy, options);
    Ok(Some(opened.context("read the records")?))
}

/// Refuses to take the name of an image away that somebody asks for by it, or lies on.
async fn refuse_used(data_dir: &DataDir, store: &Store, name: &str) -> anyhow::Result<()> {
    let mut users = match records(data_dir)? {
        Some(records) => gc::users_of(&records, name).await?,
        None => Vec::new(),
    };
    if let Some(image) = store.find(name)? {
        let used = runtime_local::in_use(data_dir.path(), InUse::default())?;
        let lies = used
            .origins
            .iter()
            .any(|origin| matches!(origin, Origin::Image { digest } if digest == image.digest()));
        if lies {
            let by = used.users.get(image.digest()).into_iter().flatten();
            users.extend(by.map(ToString::to_string));
        }
    }
    if users.is_empty() {
        return Ok(());
    }
    Err(ImageError::Used {
        name: name.into(),
        users: users.join(", ").into(),
    }
    .into())
}

/// Waits for a transfer, and says how far it is.
async fn follow<T: Clone>(flight: Flight<T>) -> Result<T, ImageError> {
    let mut line = Line::default();
    let done = flight.wait(|progress| line.show(progress)).await;
    line.end();
    done
}

/// Builds what was asked for.
///
/// # Errors
/// If a server has the data directory, or the build fails.
pub(crate) fn run_template(args: Templates, settings: &Settings) -> anyhow::Result<()> {
    let data_dir = DataDir::take(&settings.data_dir.0)?;
    let store = open(&data_dir, options(settings))?;
    let (suite, packages) = match args.command {
        TemplateCommand::BuildBase { suite, packages } => (suite, packages),
        TemplateCommand::BuildCodeInterpreter(what) => return interpreter::build(&store, &what),
    };
    let mut what = Debian {
        suite,
        ..Debian::default()
    };
    what.packages.extend(packages);
    let built = store.build_base(&what, |line| eprintln!("{line}"))?;
    cli::print(&format!("base {}\n", built.image.digest()))
}

fn list(store: &Store, json: bool) -> anyhow::Result<()> {
    if json {
        let one = |(name, image): (Box<str>, Arc<images::Image>)| json!({"name": name, "digest": image.digest(), "size": image.size()});
        let all: Vec<_> = store.list().into_iter().map(one).collect();
        return cli::print(&format!("{}\n", json!(all)));
    }
    let images = store.list();
    let width = images
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut text = format!("{:width$}  {:71}  {:>9}\n", "NAME", "DIGEST", "SIZE");
    for (name, image) in images {
        let (digest, size) = (image.digest(), bytes(image.size()));
        text.push_str(&format!("{name:width$}  {digest}  {size:>9}\n"));
    }
    cli::print(&text)
}

/// One line that says how far a transfer is, on a terminal only.
#[derive(Debug, Default)]
struct Line {
    last: String,
}

impl Line {
    fn show(&mut self, progress: &Progress) {
        let mut stderr = std::io::stderr();
        if progress.total == 0 || !stderr.is_terminal() {
            return;
        }
        let (done, total) = (progress.done(), progress.total);
        let percent = done.saturating_mul(100) / total;
        let mut text = format!("{percent:3} %  {} of {}", bytes(done), bytes(total));
        if let Some(layer) = progress.unpacking {
            let layers = progress.arrived.len();
            text.push_str(&format!("  unpacking layer {} of {layers}", layer + 1));
        }
        if text != self.last {
            // A terminal that is gone is no reason to stop.
            let _ = write!(stderr, "\r\x1b[K{text}");
            self.last = text;
        }
    }

    fn end(&self) {
        if !self.last.is_empty() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn show(swept: &Swept, dry_run: bool) -> String {
    let mut text = String::new();
    for (what, digests) in [
        ("image", &swept.images),
        ("layer", &swept.layers),
        ("blob", &swept.blobs),
        ("download", &swept.partial),
    ] {
        for digest in digests {
            text.push_str(&format!("{what:8}  {digest}\n"));
        }
    }
    let verb = if dry_run { "would free" } else { "freed" };
    text.push_str(&format!(
        "{verb} {} and what is unpacked of it\n",
        bytes(swept.bytes)
    ));
    text
}

fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    match unit {
        "B" => format!("{count} B"),
        unit => format!("{value:.1} {unit}"),
    }
}
