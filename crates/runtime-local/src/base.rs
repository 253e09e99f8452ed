//! The `base` image: a small generated root over the host's `/usr`, and the mount points that
//! every root has.
//!
//! Both are directories named by what is in them, made once and never changed: sandboxes that run
//! may have them as a layer.
//!
//! The host's `/usr` does change. What a sandbox wrote over it may not fit another one, so the root
//! has a fingerprint: of what is generated, and of what the host has installed. A captured layer is
//! used again only where the fingerprint is the same.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
};

use images::Origin;
use rustix::fs::{Gid, Mode, Uid, chmod, chown};
use sha2::{Digest as _, Sha256};

use crate::{
    error::{Doing as _, Result, impossible},
    fingerprint::Fingerprint,
    options::Options,
    rootfs::Image,
    tree,
};

/// The image that needs no download.
pub(crate) use images::BASE;

/// A directory of [`Bases::base`] that a sandbox can write although it is below `/usr`.
pub(crate) const USR_LOCAL: &std::ffi::CStr = c"usr/local";

/// The user that commands run as.
const USER: u32 = 1000;

/// Who may become another user is decided by `sudoers` and by the user namespace.
const PERMIT: &str = "auth sufficient pam_rootok.so\naccount required pam_permit.so\n\
                      session required pam_permit.so\n";
const DENY: &str = "auth required pam_deny.so\naccount required pam_deny.so\n\
                    password required pam_deny.so\nsession required pam_deny.so\n";

/// Generated layers.
#[derive(Debug)]
pub(crate) struct Bases {
    mount_points: PathBuf,
    base: Result<Generated, String>,
}

/// The generated half of `base`.
#[derive(Debug)]
struct Generated {
    layer: PathBuf,
    fingerprint: Fingerprint,
}

impl Bases {
    /// Makes what is not there yet.
    pub(crate) fn open(directory: &Path, options: &Options) -> Result<Self> {
        let mount_points = generate(directory, &foundation(options))?;
        let base = match skeleton() {
            Ok(entries) => Ok(Generated {
                layer: generate(directory, &entries)?,
                fingerprint: Fingerprint::of(&lasting(&entries)),
            }),
            Err(reason) => Err(reason),
        };
        Ok(Self { mount_points, base })
    }

    /// The lowest layer of every root.
    pub(crate) const fn mount_points(&self) -> &PathBuf {
        &self.mount_points
    }

    /// The generated root over the host's programs as they are now.
    pub(crate) fn host(&self) -> Result<Image> {
        let base = self.base.as_ref();
        let base = base.map_err(|reason| impossible("images", reason.as_str()))?;
        let fingerprint = base.fingerprint.now();
        Ok(Image {
            layers: vec![base.layer.clone()],
            usr: Some("/usr".into()),
            origin: Origin::Host {
                fingerprint: fingerprint.doing("look at what the host has installed")?,
            },
            pinned: None,
        })
    }
}

/// One thing in a generated layer.
#[derive(Clone, Debug)]
struct Entry {
    path: String,
    owner: u32,
    mode: u32,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    File(Vec<u8>),
    Link(String),
}

fn directory(path: &str, mode: u32) -> Entry {
    Entry {
        path: path.into(),
        owner: 0,
        mode,
        kind: Kind::Directory,
    }
}

fn file(path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Entry {
    Entry {
        path: path.into(),
        owner: 0,
        mode,
        kind: Kind::File(content.into()),
    }
}

fn link(path: &str, target: impl Into<String>) -> Entry {
    Entry {
        path: path.into(),
        owner: 0,
        mode: 0,
        kind: Kind::Link(target.into()),
    }
}

/// What lies under every image: directories to mount at, and the names that an image does not bring.
fn foundation(options: &Options) -> Vec<Entry> {
    let mut entries: Vec<_> = ["dev", "proc", "sys", "run", "run/dormouse", "tmp", "etc"]
        .map(|path| directory(path, 0o755))
        .into();
    entries[5].mode = 0o1777;
    entries.extend(names(options));
    entries
}

fn names(options: &Options) -> [Entry; 3] {
    [
        file("etc/hostname", 0o644, "sandbox\n"),
        file(
            "etc/hosts",
            0o644,
            "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n",
        ),
        file("etc/resolv.conf", 0o644, options.resolv_conf.as_str()),
    ]
}

/// The generated root: users, names, certificates, and nothing of the host but public files.
fn skeleton() -> Result<Vec<Entry>, String> {
    let mut entries = vec![
        directory("boot", 0o755),
        directory("etc", 0o755),
        directory("etc/alternatives", 0o755),
        directory("etc/default", 0o755),
        directory("etc/pam.d", 0o755),
        directory("etc/profile.d", 0o755),
        directory("etc/ssl", 0o755),
        directory("etc/ssl/certs", 0o755),
        directory("etc/sudoers.d", 0o750),
        directory("home", 0o755),
        directory("media", 0o755),
        directory("mnt", 0o755),
        directory("opt", 0o755),
        directory("root", 0o700),
        directory("run", 0o755),
        directory("run/lock", 0o1777),
        directory("srv", 0o755),
        directory("tmp", 0o1777),
        directory("usr", 0o755),
        directory("usr/local", 0o755),
        directory("var", 0o755),
        directory("var/cache", 0o755),
        directory("var/lib", 0o755),
        directory("var/log", 0o755),
        directory("var/spool", 0o755),
        directory("var/tmp", 0o1777),
        link("var/run", "/run"),
        link("var/lock", "/run/lock"),
    ];
    for name in ["bin", "etc", "include", "lib", "sbin", "share", "src"] {
        entries.push(directory(&format!("usr/local/{name}"), 0o755));
    }
    // `/bin` and its like lead into `/usr`: on a host where they do not, `/usr` is not enough.
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        match fs::read_link(Path::new("/").join(name)) {
            Ok(target) => entries.push(link(name, target.to_string_lossy())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => {
                return Err(format!(
                    "base needs a host whose /{name} is a link into /usr; give an image instead"
                ));
            }
        }
    }
    entries.push(Entry {
        owner: USER,
        ..directory("home/user", 0o755)
    });
    let text = |path: &str, content: &str| file(path, 0o644, content);
    entries.extend([
        text(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/bash\n\
             daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
             user:x:1000:1000:user:/home/user:/bin/bash\n",
        ),
        text(
            "etc/group",
            "root:x:0:\ndaemon:x:1:\ntty:x:5:\nsudo:x:27:user\nstaff:x:50:\nusers:x:100:\n\
             nogroup:x:65534:\nuser:x:1000:\n",
        ),
        file(
            "etc/shadow",
            0o640,
            "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n",
        ),
        file(
            "etc/sudoers",
            0o440,
            "root ALL=(ALL:ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n",
        ),
        text(
            "etc/nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n\
             services: files\nprotocols: files\n",
        ),
        text("etc/default/locale", "LANG=C.UTF-8\n"),
        text(
            "etc/profile",
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
             export LANG=${LANG:-C.UTF-8}\n",
        ),
        text("etc/shells", "/bin/sh\n/bin/bash\n"),
        text("etc/pam.d/sudo", PERMIT),
        text("etc/pam.d/su", PERMIT),
        text("etc/pam.d/other", DENY),
        link("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
        link("etc/os-release", "../usr/lib/os-release"),
        link("etc/mtab", "/proc/self/mounts"),
    ]);
    // Public files of the host that programs cannot do without.
    for path in [
        "etc/ssl/certs/ca-certificates.crt",
        "etc/ssl/openssl.cnf",
        "etc/services",
        "etc/protocols",
        "etc/mime.types",
    ] {
        if let Ok(content) = fs::read(Path::new("/").join(path)) {
            entries.push(file(path, 0o644, content));
        }
    }
    entries.extend(alternatives());
    // Many scripts say `python`, few hosts have it.
    if Path::new("/usr/bin/python3").exists() && !Path::new("/usr/bin/python").exists() {
        entries.push(link("usr/local/bin/python", "/usr/bin/python3"));
    }
    Ok(entries)
}

/// What a captured layer relies on: not where names are resolved, which is the host's affair.
fn lasting(entries: &[Entry]) -> String {
    let lasting = |entry: &&Entry| entry.path != "etc/resolv.conf";
    format!("{:?}", entries.iter().filter(lasting).collect::<Vec<_>>())
}

/// The host's choice among programs that do the same, where it leads to `/usr`.
fn alternatives() -> Vec<Entry> {
    let Ok(listed) = fs::read_dir("/etc/alternatives") else {
        return Vec::new();
    };
    let mut links: Vec<_> = listed
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let target = fs::read_link(entry.path())
                .ok()?
                .into_os_string()
                .into_string()
                .ok()?;
            let name = entry.file_name().into_string().ok()?;
            let usable = target.starts_with("/usr/") && !target.starts_with("/usr/local/");
            usable.then(|| link(&format!("etc/alternatives/{name}"), target))
        })
        .collect();
    links.sort_by(|a, b| a.path.cmp(&b.path));
    links
}

/// Makes a layer, unless it is there.
fn generate(directory: &Path, entries: &[Entry]) -> Result<PathBuf> {
    let digest = Sha256::digest(format!("{entries:?}"));
    let name: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let there = directory.join(&name);
    if there.exists() {
        return Ok(there);
    }
    let new = directory.join(format!("{name}.new"));
    let make = || {
        tree::remove(&new, &directory.join("parking"))?;
        tree::ensure_directory(&new, 0o755)?;
        for entry in entries {
            make_entry(&new, entry)?;
        }
        fs::rename(&new, &there)
    };
    make().doing("generate a base layer")?;
    Ok(there)
}

fn make_entry(root: &Path, entry: &Entry) -> io::Result<()> {
    let path = root.join(&entry.path);
    match &entry.kind {
        Kind::Link(target) => return symlink(target, &path),
        Kind::Directory => fs::create_dir(&path)?,
        Kind::File(content) => fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(entry.mode)
            .open(&path)?
            .write_all(content)?,
    }
    let (uid, gid) = (Uid::from_raw(entry.owner), Gid::from_raw(entry.owner));
    chown(&path, Some(uid), Some(gid))?;
    Ok(chmod(&path, Mode::from_raw_mode(entry.mode))?)
}
