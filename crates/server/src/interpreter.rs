//! `dormouse template build-code-interpreter`: an image in which E2B's code interpreter clients find
//! what they ask for, and the template of it.
//!
//! ```text
//!  base image ──┐
//!  packages ────┼─▶ one layer on top ─▶ image ─▶ template, made by the next server that starts
//!  server.py ───┘
//! ```
//!
//! The packages are fetched and unpacked by the host's own pip for the image's Python, wheels only:
//! nothing of them runs on the host, the user's configuration (index, certificates, find-links)
//! holds as it does everywhere, and none of it is in the image.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Context as _;
use clap::Args;
use images::{BASE, Debian, ImageError, Store};
use model::{
    Metadata, Name, SandboxTemplate,
    template::{ImagePullPolicy, TemplateSpec},
};
use runtime_local::LocalRuntime;
use store::{StoreError, StoreExt as _};

/// What E2B's clients call it.
pub(crate) const NAME: &str = "code-interpreter-v1";
/// Where it is inside.
const HOME: &str = "/opt/code-interpreter";
/// The user that owns it, so that code can install packages.
const USER: u32 = 1000;
const SERVER: &str = include_str!("../../../interpreter/server.py");
const PACKAGES: [&str; 5] = [
    "aiohttp",
    "bash_kernel",
    "ipykernel",
    "jupyter_client",
    "pip",
];
const PLOTS: [&str; 2] = ["matplotlib", "pandas"];
/// Runs the environment's pip, wherever its packages were unpacked.
const PIP: &str = "#!/opt/code-interpreter/bin/python\nimport sys\nfrom pip._internal.cli.main import \
                   main\nsys.exit(main())\n";

/// What to build.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// The image it lies on, which must have Python and a user of number 1000; `base` is built
    /// first where it is not there
    #[arg(long, value_name = "IMAGE", default_value = BASE)]
    base: String,
    /// With matplotlib and pandas
    #[arg(long)]
    plots: bool,
    /// A package besides; can be given several times
    #[arg(long = "package", value_name = "NAME")]
    packages: Vec<String>,
}

/// Builds the image.
///
/// # Errors
/// If the base has no Python, or a package cannot be had; the message says what to do.
pub(crate) fn build(store: &Store, what: &Build) -> anyhow::Result<()> {
    if what.base == BASE && store.find(BASE)?.is_none() {
        eprintln!("building `base` first");
        store.build_base(&Debian::default(), |line| eprintln!("{line}"))?;
    }
    let mut packages: Vec<&str> = PACKAGES.to_vec();
    if what.plots {
        packages.extend(PLOTS);
    }
    packages.extend(what.packages.iter().map(String::as_str));
    let made = store.derive(&what.base, NAME, |root, base| {
        let python = Python::find(&base.directories()).ok_or(ImageError::Tool {
            tool: "python3",
            why: "the image has none in /usr/bin or /usr/local/bin".into(),
            remedy: "Name another one with --base, or build one with `dormouse template build-base`.",
        })?;
        fill(root, &python, &packages)
    })?;
    cli::print(&format!("{NAME} {}\n", made.image.digest()))
}

/// The Python of an image.
#[derive(Debug, PartialEq, Eq)]
struct Python {
    /// Where its programs are.
    directory: &'static str,
    /// Two numbers.
    version: String,
}

impl Python {
    /// Looks for it in the layers of an image, uppermost first. Links of the image are read, and not
    /// followed: they would lead into the host.
    fn find(layers: &[std::path::PathBuf]) -> Option<Self> {
        for directory in ["/usr/local/bin", "/usr/bin"] {
            for layer in layers {
                let path = layer.join(&directory[1..]).join("python3");
                let Ok(target) = fs::read_link(&path) else {
                    continue;
                };
                let name = target.file_name()?.to_str()?;
                let version = name.strip_prefix("python")?;
                if version.strip_prefix("3.")?.parse::<u8>().is_ok() {
                    return Some(Self {
                        directory,
                        version: version.into(),
                    });
                }
            }
        }
        None
    }
}

fn fill(root: &Path, python: &Python, packages: &[&str]) -> images::Result<()> {
    let home = root.join(&HOME[1..]);
    let library = home.join(format!("lib/python{}/site-packages", python.version));
    let failed = |why: String| ImageError::Tool {
        tool: "pip",
        why: why.into(),
        remedy: "Look whether the index of pip's configuration can be reached (`pip config list`, \
                 PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT), and has the package for this Python.",
    };
    let system = |error: std::io::Error| failed(error.to_string());
    fs::create_dir_all(&library).map_err(system)?;
    install(&library, python, packages, failed)?;
    // Programs for the host's own paths; the ones that matter are made below.
    fs::remove_dir_all(library.join("bin")).ok();
    let bin = home.join("bin");
    fs::create_dir_all(&bin).map_err(system)?;
    let (directory, version) = (python.directory, &python.version);
    symlink(format!("{directory}/python3"), bin.join("python3")).map_err(system)?;
    symlink("python3", bin.join("python")).map_err(system)?;
    let settings =
        format!("home = {directory}\ninclude-system-site-packages = false\nversion = {version}\n");
    for (path, mode, text) in [
        (home.join("pyvenv.cfg"), 0o644, settings.as_str()),
        (home.join("server.py"), 0o644, SERVER),
        (bin.join("pip"), 0o755, PIP),
    ] {
        kit::durable::write_file(&path, text.as_bytes(), mode).map_err(system)?;
    }
    give_away(&home).map_err(system)?;
    let opt = root.join("opt");
    fs::set_permissions(&opt, fs::Permissions::from_mode(0o755)).map_err(system)
}

fn install(
    library: &Path,
    python: &Python,
    packages: &[&str],
    failed: impl Fn(String) -> ImageError,
) -> images::Result<()> {
    let mut child = Command::new("python3")
        .args(["-m", "pip", "install", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--no-warn-conflicts", "--no-warn-script-location"])
        .args(["--only-binary=:all:", "--implementation=cp"])
        .arg(format!("--python-version={}", python.version))
        .arg("--target")
        .arg(library)
        .args(packages)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| ImageError::Tool {
            tool: "pip",
            why: format!("python3 cannot be started: {error}").into(),
            remedy: "Install it: apt-get install python3-pip.",
        })?;
    let mut errors = Vec::new();
    if let Some(said) = child.stderr.take() {
        for line in BufReader::new(said.take(1 << 20))
            .lines()
            .map_while(Result::ok)
        {
            eprintln!("{line}");
            if line.starts_with("ERROR") || line.contains("No module named") {
                errors.push(line);
            }
        }
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    if errors
        .iter()
        .any(|line| line.contains("No module named pip"))
    {
        return Err(ImageError::Tool {
            tool: "pip",
            why: "python3 of this host has none".into(),
            remedy: "Install it: apt-get install python3-pip.",
        });
    }
    let last = errors.len().saturating_sub(3);
    Err(failed(format!("{status}: {}", errors[last..].join("; "))))
}

/// Makes everything below a directory the user's.
fn give_away(path: &Path) -> std::io::Result<()> {
    let about = fs::symlink_metadata(path)?;
    if about.is_symlink() {
        return lchown(path, Some(USER), Some(USER));
    }
    chown(path, Some(USER), Some(USER))?;
    if about.is_dir() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(path)? {
            give_away(&entry?.path())?;
        }
    }
    Ok(())
}

/// Makes the template where its image is there. One that somebody has changed stays as it is.
///
/// # Errors
/// If the store does not take it.
pub(crate) async fn ensure_template(
    store: &dyn store::Store,
    runtime: &LocalRuntime,
) -> anyhow::Result<()> {
    if runtime.images().find(NAME)?.is_none() {
        return Ok(());
    }
    let words = |words: &[&str]| words.iter().map(|word| Box::from(*word)).collect();
    let (python, server) = (format!("{HOME}/bin/python"), format!("{HOME}/server.py"));
    let spec = TemplateSpec {
        image: NAME.into(),
        image_pull_policy: ImagePullPolicy::Never,
        sudo: true,
        start_command: words(&[&python, &server]),
        // It listens once its first kernel answers.
        ready_command: words(&["/bin/bash", "-c", ": < /dev/tcp/127.0.0.1/49999"]),
        user: Some("user".into()),
        ..TemplateSpec::default()
    };
    let template = SandboxTemplate::new(Metadata::new(None, Name::new(NAME)?), spec);
    match store.create_object(&template).await {
        Ok(_) | Err(StoreError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("make the template `{NAME}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_of_an_image_is_found_without_following_its_links() {
        let (upper, lower) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let layers = [upper.path().to_owned(), lower.path().to_owned()];
        assert_eq!(Python::find(&layers), None);
        fs::create_dir_all(lower.path().join("usr/bin")).unwrap();
        symlink("/no/where/python3.12", lower.path().join("usr/bin/python3")).unwrap();
        let found = Python::find(&layers).unwrap();
        assert_eq!(
            (found.directory, found.version.as_str()),
            ("/usr/bin", "3.12")
        );
        fs::create_dir_all(upper.path().join("usr/local/bin")).unwrap();
        symlink("evil", upper.path().join("usr/local/bin/python3")).unwrap();
        assert_eq!(Python::find(&layers), None);
    }
}
