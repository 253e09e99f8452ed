//! A node of a cluster, as far as workers see one: a containerd of the test's own, whose containers
//! carry the labels that a kubelet would have given them.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use node::{Containerd, containerd::State, guard::ContainerId};

/// Runs a program that must succeed, and answers what it says.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("this test needs {program} (see .ci/run): {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A real registry on loopback; it ends with this.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
    _directory: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {at}/data\n\
             http:\n  addr: 127.0.0.1:0\n"
        );
        let path = directory.path().join("config.yml");
        kit::durable::write_file(&path, config.as_bytes(), 0o600).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("this test needs docker-registry: {error}"));
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(
                log.read_line(&mut line).unwrap(),
                0,
                "docker-registry does not start"
            );
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'));
                break rest[..end.unwrap_or(rest.len())].to_owned();
            }
        };
        // Nobody reads on: its log must not stop it.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self {
            child,
            address,
            _directory: directory,
        }
    }

    /// Puts an image of two layers there that holds busybox, by programs that are not ours.
    pub(crate) fn with_image(self, name: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name).display().to_string();
        let layout = at("layout");
        run("umoci", &["init", "--layout", &layout]);
        let image = format!("{layout}:1");
        run("umoci", &["new", "--image", &image]);
        let bundle = at("bundle");
        run("umoci", &["unpack", "--image", &image, &bundle]);
        let root = home.path().join("bundle/rootfs");
        let bin = root.join("bin");
        fs::create_dir(&bin).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox"))
            .expect("this test needs busybox (apt-get install busybox-static)");
        for word in ["sh", "cat", "sleep", "rm", "mkdir", "touch", "ls"] {
            std::os::unix::fs::symlink("busybox", bin.join(word)).unwrap();
        }
        run(
            "umoci",
            &["repack", "--refresh-bundle", "--image", &image, &bundle],
        );
        fs::create_dir_all(root.join("etc/old")).unwrap();
        for file in ["etc/kept", "etc/removed", "etc/old/file"] {
            let path = root.join(file);
            kit::durable::write_file(&path, b"of the image\n", 0o644).unwrap();
        }
        run("umoci", &["repack", "--image", &image, &bundle]);
        let to = format!("docker://{}/{name}", self.address);
        let from = format!("oci:{image}");
        let words = [
            "--insecure-policy",
            "copy",
            "--dest-tls-verify=false",
            &from,
            &to,
        ];
        run("skopeo", &words);
        self
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// containerd, and everything that it started; all of it ends with this.
pub(crate) struct Node {
    child: Child,
    socket: PathBuf,
    directory: tempfile::TempDir,
}

impl Node {
    pub(crate) fn start() -> Self {
        // Sockets have short names.
        let directory = tempfile::tempdir_in("/run").unwrap();
        let at = |name: &str| directory.path().join(name);
        let socket = at("c.sock");
        // Files that an overlay can lie on are not in memory.
        let root = Path::new("/var/tmp").join(directory.path().file_name().unwrap());
        fs::create_dir_all(&root).unwrap();
        let config = format!(
            "version = 2\nroot = \"{}\"\nstate = \"{}\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\n  address = \"{}\"\n\
             [ttrpc]\n  address = \"{}\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{}\"\n",
            root.display(),
            at("state").display(),
            socket.display(),
            at("t.sock").display(),
            at("opt").display(),
        );
        let path = at("config.toml");
        kit::durable::write_file(&path, config.as_bytes(), 0o600).unwrap();
        let log = File::create(at("log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("this test needs containerd (apt-get install containerd): {error}")
            });
        let node = Self {
            child,
            socket,
            directory,
        };
        for _ in 0..600 {
            if node.try_ctr(&["version"]).is_ok() {
                return node;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(node.directory.path().join("log"));
        panic!("containerd does not start: {}", log.unwrap_or_default());
    }

    pub(crate) fn containerd(&self) -> Containerd {
        Containerd::new(&self.socket, self.namespace())
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// One of its own: runc keeps what it knows of containers by namespace, for all of a host.
    pub(crate) fn namespace(&self) -> &str {
        let name = self.directory.path().file_name().unwrap();
        name.to_str().unwrap().trim_start_matches('.')
    }

    fn root(&self) -> PathBuf {
        Path::new("/var/tmp").join(self.directory.path().file_name().unwrap())
    }

    fn try_ctr(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", self.namespace()])
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("this test needs ctr of containerd: {error}"));
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    #[track_caller]
    pub(crate) fn ctr(&self, arguments: &[&str]) -> String {
        self.try_ctr(arguments)
            .unwrap_or_else(|said| panic!("ctr {arguments:?}: {said}"))
    }

    pub(crate) fn pull(&self, image: &str) {
        self.ctr(&["images", "pull", "--plain-http", image]);
    }

    /// A Pod of ours with its sandbox, which runs a shell's words.
    pub(crate) fn pod(&self, image: &str, name: &str, words: &str) -> Pod<'_> {
        self.holder(
            image,
            name,
            &[
                "app.kubernetes.io/managed-by=dormouse",
                "dormouse.dev/uid=u",
            ],
        );
        self.container(image, name, "sandbox", words)
    }

    /// What holds a Pod's namespaces, with the Pod's labels.
    pub(crate) fn holder(&self, image: &str, pod: &str, labels: &[&str]) {
        let (uid, id) = (
            format!("io.kubernetes.pod.uid={pod}"),
            format!("{pod}-holder"),
        );
        let mut words = vec!["containers", "create"];
        for label in labels
            .iter()
            .chain(&[&*uid, "io.cri-containerd.kind=sandbox"])
        {
            words.extend(["--label", label]);
        }
        words.extend([image, &id]);
        self.ctr(&words);
    }

    /// A container of a Pod.
    pub(crate) fn container(&self, image: &str, pod: &str, name: &str, words: &str) -> Pod<'_> {
        let id = format!("{pod}-{name}");
        let (uid, label) = (
            format!("io.kubernetes.pod.uid={pod}"),
            format!("io.kubernetes.container.name={name}"),
        );
        let kind = "io.cri-containerd.kind=container";
        let mut all = vec!["run", "--detach", "--snapshotter", "overlayfs"];
        for label in [&*uid, &*label, kind] {
            all.extend(["--label", label]);
        }
        all.extend([image, &id, "/bin/sh", "-c", words]);
        self.ctr(&all);
        Pod {
            node: self,
            uid: pod.into(),
            id,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let listed = self.try_ctr(&["tasks", "ls", "-q"]).unwrap_or_default();
        for id in listed.lines() {
            // What is frozen does not die.
            let _ = self.try_ctr(&["tasks", "resume", id]);
            let _ = self.try_ctr(&["tasks", "kill", "--signal", "SIGKILL", id]);
            for _ in 0..100 {
                if self.try_ctr(&["tasks", "delete", "--force", id]).is_ok() {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        let listed = self
            .try_ctr(&["containers", "ls", "-q"])
            .unwrap_or_default();
        for id in listed.lines() {
            let _ = self.try_ctr(&["containers", "delete", id]);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(self.root());
        // What runc leaves of a namespace: empty directories.
        let hierarchies = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let parents = hierarchies.map(|entry| entry.path());
        let parents = parents.chain(["/sys/fs/cgroup", "/run/containerd/runc"].map(PathBuf::from));
        for parent in parents {
            let _ = fs::remove_dir(parent.join(self.namespace()));
        }
    }
}

/// The sandbox of a Pod.
pub(crate) struct Pod<'a> {
    pub(crate) node: &'a Node,
    pub(crate) uid: String,
    pub(crate) id: String,
}

impl Pod<'_> {
    pub(crate) fn container_id(&self) -> ContainerId {
        self.id.parse().unwrap()
    }

    pub(crate) async fn state(&self) -> State {
        self.node.containerd().state(&self.id).await.unwrap()
    }

    /// Runs a shell's words inside, and answers what they say.
    pub(crate) fn exec(&self, words: &str) -> String {
        self.node.ctr(&[
            "tasks",
            "exec",
            "--exec-id",
            "e",
            &self.id,
            "/bin/sh",
            "-c",
            words,
        ])
    }

    /// Waits until a shell's words succeed inside.
    pub(crate) fn wait_for(&self, words: &str) {
        let tried = [
            "tasks",
            "exec",
            "--exec-id",
            "w",
            &self.id,
            "/bin/sh",
            "-c",
            words,
        ];
        for _ in 0..200 {
            if self.node.try_ctr(&tried).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("it never comes to this: {words}");
    }
}
