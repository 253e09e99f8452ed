//! Sandboxes whose files go to a registry when they sleep: a server, a real registry, and a small
//! image that both know. And what is left on the host of them.

use std::{
    collections::BTreeSet,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    archives::{Head, Tar},
    layout::{ARCH, Layout, Pack},
    run::agent,
    sandboxes::{json, until},
    server::{Server, command, dormouse, run},
    servers::Registry,
};

/// What the image is called.
const IMAGE: &str = "small:1";

/// A server whose sandboxes are kept in a registry.
pub(crate) struct Kept {
    pub(crate) registry: Registry,
    pub(crate) server: Option<Server>,
}

impl Kept {
    /// A first start, with the image at hand.
    pub(crate) fn start() -> Self {
        let mut kept = Self::without_a_server();
        let home = tempfile::tempdir().unwrap();
        kept.import_into(home.path());
        kept.start_in(home, &[]);
        kept
    }

    pub(crate) fn without_a_server() -> Self {
        Self {
            registry: Registry::start(),
            server: None,
        }
    }

    /// Brings the image into a data directory.
    pub(crate) fn import_into(&self, home: &Path) {
        import(home, &small(b"first"), IMAGE);
    }

    pub(crate) fn start_in(&mut self, home: TempDir, more: &[(&str, &str)]) {
        agent();
        let flags = ["--runtime", "local", "--gc-grace", "0s"];
        self.server = Some(Server::start_in(home, &flags, more));
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Kills the server, and starts another one in its place.
    pub(crate) fn restart(&mut self, more: &[(&str, &str)]) {
        let home = self.server.take().unwrap().kill();
        self.start_in(home, more);
    }

    /// Writes what is wanted of a sandbox that is kept in the registry.
    pub(crate) fn want(&self, name: &str, state: &str) {
        let policy = format!("    snapshotRegistry: \"{}/kept\"\n", self.registry.address);
        self.want_with(name, state, &policy);
    }

    /// The same, with other lines in its policy.
    pub(crate) fn want_with(&self, name: &str, state: &str, policy: &str) {
        let manifest = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: {name}\nspec:\n  \
             images:\n    main: \"{IMAGE}\"\n  imagePullPolicy: Never\n  desiredState: {state}\n  \
             access:\n    agentIsOpen: true\n  pausePolicy:\n    snapshotType: Rootfs\n{policy}"
        );
        self.server().run_with("apply -f -", &manifest).ok();
    }

    /// A sandbox by E2B's API, which gives it tokens, of a template with the same image and policy.
    pub(crate) fn create(&self) -> String {
        let template = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: SandboxTemplate\nmetadata:\n  name: kept\n\
             spec:\n  image: \"{IMAGE}\"\n  imagePullPolicy: Never\n  pausePolicy:\n    \
             snapshotType: Rootfs\n    snapshotRegistry: \"{}/kept\"\n",
            self.registry.address
        );
        self.server().run_with("apply -f -", &template).ok();
        let created = self.server().run("sandbox create kept --timeout 1h");
        created.ok().trim().to_owned()
    }

    /// Changes only whether a sandbox should sleep.
    pub(crate) fn turn(&self, name: &str, state: &str) {
        let manifest = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata:\n  name: {name}\nspec:\n  \
             desiredState: {state}\n"
        );
        self.server().run_with("apply -f -", &manifest).ok();
    }

    /// Asks for a snapshot that goes to the registry.
    pub(crate) fn snapshot(&self, name: &str, of: &str) {
        let manifest = format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: SandboxSnapshot\nmetadata:\n  name: {name}\n\
             spec:\n  sandbox: {of}\n  registry: \"{}/taken\"\n",
            self.registry.address
        );
        self.server().run_with("apply -f -", &manifest).ok();
    }

    pub(crate) fn find(&self, kind: &str, name: &str) -> Value {
        json(
            &self
                .server()
                .run(&format!("get {kind} {name} -o json"))
                .ok(),
        )
    }

    /// Waits until its record says so; answers the record.
    pub(crate) fn becomes(&self, kind: &str, name: &str, phase: &str) -> Value {
        until(&format!("{kind} {name} is {phase}"), || {
            let found = self.find(kind, name);
            let is = &found["status"]["phase"];
            assert!(is != "Failed" || phase == "Failed", "{found:#}");
            (is == phase).then_some(found)
        })
    }

    /// What a script inside says.
    pub(crate) fn said(&self, name: &str, script: &str) -> String {
        let sandbox = self.find("sandbox", name);
        let id = sandbox["spec"]["sandboxId"].as_str().unwrap();
        let words = ["sandbox", "exec", id, "--", "/bin/sh", "-c", script];
        run(&mut self.server().program(&words), "").ok()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.server().data()
    }
}

/// Takes an image into a data directory, by whoever has it.
pub(crate) fn import(home: &Path, layout: &Layout, name: &str) {
    let path = layout.path().to_str().unwrap();
    let mut command = dormouse(home);
    command.args(["image", "import", path, "--name", name]);
    run(command.args(["--data-dir", "data"]), "").ok();
}

/// A small system: busybox, and the libraries that an agent built for tests needs.
pub(crate) fn small(content: &[u8]) -> Layout {
    let busybox = fs::read("/bin/busybox").unwrap_or_else(|error| {
        panic!("this test needs busybox (apt-get install busybox-static): {error}")
    });
    let executable = |path: &str, mode: u32| Head {
        path: Box::leak(path.to_owned().into_boxed_str()).as_bytes(),
        mode,
        ..Head::default()
    };
    let everybody = Head {
        kind: b'5',
        ..executable("data", 0o777)
    };
    let mut tar = Tar::default()
        .directory("bin")
        .directory("etc")
        .directory("tmp")
        .head(&everybody, b"")
        .head(&executable("bin/busybox", 0o755), &busybox)
        .file("etc/content", content)
        .file(
            "etc/passwd",
            b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/data:/bin/sh\n",
        );
    for name in [
        "sh",
        "cat",
        "echo",
        "sha256sum",
        "head",
        "find",
        "sort",
        "mkdir",
        "ln",
        "mkfifo",
        "chmod",
    ] {
        tar = tar.symlink(&format!("bin/{name}"), "busybox");
    }
    // One that is built for tests is not static.
    let needs = run(command("ldd", Path::new("/")).arg(agent()), "").ok();
    for word in needs
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let name = word.trim_start_matches('/');
        tar = tar.head(&executable(name, 0o755), &fs::read(word).unwrap());
    }
    let layers = [(tar.end(), Pack::Zstd)];
    let config = serde_json::json!({
        "architecture": ARCH, "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [crate::archives::sha256(&layers[0].0)]},
    });
    let layout = Layout::new();
    let image = layout.image_with(&config, ARCH, &layers);
    layout.add(image, None)
}

/// Everything on the host that belongs to a sandbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) directory: bool,
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) processes: usize,
    pub(crate) links: Vec<String>,
    pub(crate) mounts: usize,
}

impl Traces {
    /// Of the sandbox with this uid; `addresses` are those it has had.
    pub(crate) fn of(data: &Path, uid: &str, addresses: &BTreeSet<Ipv4Addr>) -> Self {
        let mut cgroups = Vec::new();
        for hierarchy in entries(Path::new("/sys/fs/cgroup")) {
            for instance in entries(&hierarchy.join("dormouse")) {
                cgroups.extend(
                    entries(&instance)
                        .into_iter()
                        .filter(|it| it.ends_with(uid)),
                );
            }
        }
        for instance in entries(Path::new("/sys/fs/cgroup/dormouse")) {
            cgroups.extend(
                entries(&instance)
                    .into_iter()
                    .filter(|it| it.ends_with(uid)),
            );
        }
        let inside = |process: &PathBuf| {
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            groups.contains(uid)
        };
        let links = addresses.iter().map(|a| format!("dm{:08x}", a.to_bits()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        Self {
            directory: data.join("sandboxes").join(uid).exists(),
            cgroups,
            processes: entries(Path::new("/proc"))
                .iter()
                .filter(|it| inside(it))
                .count(),
            links: links
                .filter(|name| Path::new("/sys/class/net").join(name).exists())
                .collect(),
            mounts: mounts.lines().filter(|line| line.contains(uid)).count(),
        }
    }
}

/// The address of a sandbox on this host, while it has one.
pub(crate) fn address_of(data: &Path, uid: &str) -> Option<Ipv4Addr> {
    let path = data.join("sandboxes").join(uid).join("state.json");
    let record: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    record["address"].as_str()?.parse().ok()
}

/// What is in a directory; nothing, if it is none.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}
