//! A Debian root made on this host, from the sources that its own packages come from.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use serde_json::json;

use crate::{
    compression::Compression,
    digest::{Hashing, finish},
    error::{Doing as _, ImageError, Result},
    import::Imported,
    manifest::Platform,
    store::{BASE, Hold, Store},
};

/// What clients expect of `base`.
const PACKAGES: [&str; 9] = [
    "bash",
    "ca-certificates",
    "curl",
    "git",
    "iproute2",
    "ncurses-bin",
    "procps",
    "python3",
    "sudo",
];

/// What is done in the new root before it is packed: the user, `sudo` without a password, the name
/// `python`, and nothing of the host in it: neither its names nor what its sources may be read with.
const FINISH: &str = r#"
set -eu
root="$1"
chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash user
if [ -d "$root/etc/sudoers.d" ]; then
    echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/user"
    chmod 440 "$root/etc/sudoers.d/user"
fi
if [ -e "$root/usr/bin/python3" ] && [ ! -e "$root/usr/bin/python" ]; then
    ln -s python3 "$root/usr/bin/python"
fi
mkdir -p "$root/etc/default"
echo LANG=C.UTF-8 > "$root/etc/default/locale"
echo sandbox > "$root/etc/hostname"
printf '127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n' > "$root/etc/hosts"
: > "$root/etc/resolv.conf"
for file in "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*; do
    if [ -f "$file" ]; then sed -i -E 's#(https?://)[^/@ ]*@#\1#g' "$file"; fi
done
rm -rf "$root"/etc/apt/auth.conf "$root"/etc/apt/auth.conf.d/* "$root"/root/.ssh
"#;

/// What to build.
#[derive(Clone, Debug)]
pub struct Debian {
    /// The program that builds.
    pub program: PathBuf,
    /// Which release; the host's own if none is named.
    pub suite: Option<String>,
    /// What is installed besides what every system has.
    pub packages: Vec<String>,
}

impl Default for Debian {
    fn default() -> Self {
        Self {
            program: "mmdebstrap".into(),
            suite: None,
            packages: PACKAGES.map(str::to_owned).into(),
        }
    }
}

impl Store {
    /// Builds a root and calls it `base`: sandboxes that are made from now on lie on it. `tell`
    /// gets the lines that the builder says.
    ///
    /// # Errors
    /// If the builder is missing or fails; the message says what it said.
    pub fn build_base(&self, what: &Debian, tell: impl FnMut(&str) + Send) -> Result<Imported> {
        let suite = match &what.suite {
            Some(suite) => suite.clone(),
            None => host_suite()?,
        };
        let inner = self.inner();
        let scratch = inner.scratch("debian")?;
        let built = (|| {
            let mut hold = Hold::new(inner.clone());
            let archive = scratch.join("root.tar.zst");
            let diff_id = run(what, &suite, &archive, tell)?;
            let file = File::open(&archive).doing("open the new root")?;
            let (digest, size) = inner.put_stream(file, None, u64::MAX, &mut hold)?;
            let platform = Platform::of_host();
            let configuration = json!({
                "architecture": platform.architecture, "os": platform.os,
                "config": {
                    "Env": [
                        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                        "LANG=C.UTF-8",
                    ],
                    "User": "user", "WorkingDir": "/home/user", "Cmd": ["/bin/bash"],
                },
                "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            });
            let layers = vec![(Compression::Zstd.media_type(), digest, size)];
            let configuration = configuration.to_string();
            inner.make_image(BASE, configuration.as_bytes(), layers, hold)
        })();
        inner.discard(&scratch);
        let image = built?;
        inner.name(BASE, &image.share())?;
        Ok(Imported {
            names: vec![BASE.into()],
            image,
        })
    }
}

/// Runs the builder and packs what it writes; answers the digest of that.
fn run(
    what: &Debian,
    suite: &str,
    to: &std::path::Path,
    mut tell: impl FnMut(&str) + Send,
) -> Result<model::Digest> {
    let failed = |why: String, remedy| ImageError::Tool {
        tool: "mmdebstrap",
        why: why.into(),
        remedy,
    };
    let mut child = Command::new(&what.program)
        .arg("--variant=minbase")
        .arg(format!("--include={}", what.packages.join(",")))
        .arg(format!("--customize-hook={FINISH}"))
        .args([suite, "-"])
        .args(sources()?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let remedy = "Install it: apt-get install mmdebstrap.";
            failed(format!("it cannot be started: {error}"), remedy)
        })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(failed("it has no output".into(), ""));
    };
    let (packed, said) = thread::scope(|scope| {
        let listener = scope.spawn(move || {
            let mut errors = Vec::new();
            for line in BufReader::new(stderr).lines().map_while(io::Result::ok) {
                // How it and the tools that it runs begin what matters.
                if line.starts_with("E:") || line.starts_with("Err:") {
                    errors.push(line.clone());
                }
                tell(&line);
            }
            errors
        });
        let packed = pack(stdout, to);
        (packed, listener.join().unwrap_or_default())
    });
    let status = child.wait().doing("wait for mmdebstrap")?;
    if !status.success() {
        let last = said.len().saturating_sub(5);
        let why = format!("{status}: {}", said[last..].join("; "));
        let remedy = "Look at the package sources in /etc/apt, and whether they can be reached.";
        return Err(failed(why, remedy));
    }
    packed.doing("pack the new root")
}

fn pack(from: impl io::Read, to: &std::path::Path) -> io::Result<model::Digest> {
    let mut hashing = Hashing::new(from);
    let mut encoder = zstd::stream::write::Encoder::new(File::create_new(to)?, 3)?;
    io::copy(&mut hashing.by_ref(), &mut encoder)?;
    encoder.finish()?.sync_all()?;
    Ok(finish(hashing.hash))
}

/// The release that the host runs.
fn host_suite() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").doing("read /etc/os-release")?;
    let suite = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.map(|suite| suite.trim_matches('"').to_owned());
    suite.ok_or_else(|| ImageError::Unsupported {
        what: "this host".into(),
        why: "/etc/os-release names no release; name one of Debian's".into(),
    })
}

/// Files that say where the host's packages come from.
fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let main = PathBuf::from("/etc/apt/sources.list");
    if fs::metadata(&main).is_ok_and(|file| file.len() > 0) {
        found.push(main);
    }
    match fs::read_dir("/etc/apt/sources.list.d") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        listed => {
            for entry in listed.doing("list the package sources")? {
                let path = entry.doing("list the package sources")?.path();
                let extension = path.extension().and_then(|extension| extension.to_str());
                if matches!(extension, Some("list" | "sources")) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(ImageError::Tool {
            tool: "mmdebstrap",
            why: "this host has no package sources in /etc/apt".into(),
            remedy: "Add them, or build on a Debian host and import the image here.",
        });
    }
    Ok(found)
}
