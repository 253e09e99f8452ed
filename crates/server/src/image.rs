//! `dormouse image` and `dormouse template build-base`: the images of a data directory that no
//! server has open.

use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use images::{Debian, InUse, Kept, Options, Progress, Store, Swept};

use crate::data_dir::DataDir;

/// Images on this host.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dormouse image pull python:3.12
  dormouse image pull registry.example.com/team/app@sha256:...
  dormouse image import ./saved.tar --name app:1
  dormouse image ls
  dormouse image rm app:1
  dormouse image gc --dry-run

They work on the data directory itself, which no server may have open: a server that runs pulls
what its sandboxes ask for. Credentials are those of `docker login`.")]
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

#[derive(Debug, Subcommand)]
enum Command {
    /// List images
    #[command(visible_alias = "list")]
    Ls,
    /// Bring an image here, or bring it up to date
    Pull {
        /// Its name, as for `docker pull`
        name: String,
        /// A registry, as host:port, that may be reached without TLS; those on loopback may
        #[arg(long, value_name = "REGISTRY")]
        insecure: Vec<String>,
        /// Certificates in PEM that are trusted besides the host's
        #[arg(long, value_name = "FILE")]
        ca_file: Option<PathBuf>,
    },
    /// Take images from an OCI layout (directory or archive) or from what `docker save` wrote
    Import {
        /// The directory or file
        path: PathBuf,
        /// What to call it; without, what the file says
        #[arg(long)]
        name: Option<String>,
    },
    /// Take a name away; the image goes with the next `gc`, if nothing else leads to it
    Rm {
        /// Names of images
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove what no name and no sandbox leads to; captured layers stay
    Gc {
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
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
}

/// How images are had where nothing else is said: with the credentials of `docker login`.
pub(crate) fn options() -> Options {
    let mut options = Options::default();
    let home = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".docker"))
        });
    options.registry.docker_config = home.map(|home| home.join("config.json"));
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
pub(crate) async fn run(args: Images, data_dir: &std::path::Path) -> anyhow::Result<()> {
    let data_dir = DataDir::take(data_dir)?;
    match args.command {
        Command::Ls => list(&open(&data_dir, options())?),
        Command::Pull {
            name,
            insecure,
            ca_file,
        } => {
            let mut options = self::options();
            options.registry.insecure = insecure.into_iter().collect();
            options.registry.ca_file = ca_file;
            pull(&open(&data_dir, options)?, &name).await
        }
        Command::Import { path, name } => {
            let store = open(&data_dir, options())?;
            for imported in store.import(&path, name.as_deref())? {
                for name in imported.names {
                    cli::print(&format!("{name} {}\n", imported.image.digest()))?;
                }
            }
            Ok(())
        }
        Command::Rm { names } => {
            let store = open(&data_dir, options())?;
            for name in names {
                if !store.remove(&name)? {
                    anyhow::bail!("there is no image {name}: `dormouse image ls` lists them");
                }
            }
            Ok(())
        }
        Command::Gc { dry_run } => {
            let store = open(&data_dir, options())?;
            // Who needs a captured layer is in the records of the server.
            let in_use =
                || -> images::Result<InUse> { runtime_local::in_use(data_dir.path(), Kept::All) };
            cli::print(&show(&store.gc(dry_run, in_use)?, dry_run))
        }
    }
}

/// Builds what was asked for.
///
/// # Errors
/// If a server has the data directory, or the build fails.
pub(crate) fn run_template(args: Templates, data_dir: &std::path::Path) -> anyhow::Result<()> {
    let TemplateCommand::BuildBase { suite, packages } = args.command;
    let data_dir = DataDir::take(data_dir)?;
    let store = open(&data_dir, options())?;
    let mut what = Debian {
        suite,
        ..Debian::default()
    };
    what.packages.extend(packages);
    let built = store.build_base(&what, |line| eprintln!("{line}"))?;
    cli::print(&format!("base {}\n", built.image.digest()))
}

fn list(store: &Store) -> anyhow::Result<()> {
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

async fn pull(store: &Store, name: &str) -> anyhow::Result<()> {
    let mut line = Line::default();
    let pulled = store.pull(name)?.wait(|progress| line.show(progress)).await;
    line.end();
    let image = pulled.with_context(|| format!("pull {name}"))?;
    cli::print(&format!("{name} {}\n", image.digest()))
}

/// One line that says how far a pull is, on a terminal only.
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
