//! Processes under test, and the cluster that they work for.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use auth::key::{NewKey, mint};
use cluster_kube::Cluster;
use http::Method;
use kit::{Entropy, Tasks};
use model::{
    Key, Metadata, Name, Namespace, Sandbox, SandboxTemplate, Spec as _, Team, Uid,
    lifecycle::Phase, meta::Object, sandbox::SandboxSpec, team::TeamSpec, template::TemplateSpec,
    workload::Secret,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use standin_kube::{
    Options,
    testing::{TestCluster, standin, standin_with},
};
use store::{Query, Store, StoreExt as _};
use store_kube::{KubeStore, crds};
use tempfile::TempDir;

use crate::{
    daemon,
    http::{Answer, send},
};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// A cluster, what its roles share, and a team.
pub(crate) struct Installation {
    pub(crate) cluster: TestCluster,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) team: Namespace,
    pub(crate) key: Secret,
    home: TempDir,
    started: AtomicUsize,
    /// Of nodes.
    tasks: Tasks,
}

impl Installation {
    /// With our kinds, a team with a key, and a template.
    pub(crate) async fn new() -> Self {
        let mut bare = Self::bare().await;
        bare.define().await;
        bare.key = bare.furnish().await;
        bare
    }

    /// The same on a cluster that listens elsewhere.
    pub(crate) async fn at(options: Options) -> Self {
        let mut bare = Self::on(standin_with(options).await.unwrap()).await;
        bare.define().await;
        bare.key = bare.furnish().await;
        bare
    }

    /// A cluster that knows nothing of us.
    pub(crate) async fn bare() -> Self {
        Self::on(standin().await.unwrap()).await
    }

    async fn on(cluster: TestCluster) -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("seal", "a seal that only these processes share 0123456789"),
            ("peer-key", daemon::KEY),
        ] {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(home.path().join(name))
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        let connected = Cluster::connect(Some(cluster.kubeconfig())).await.unwrap();
        let team = Namespace::new(cluster.namespace()).unwrap();
        Self {
            store: Arc::new(KubeStore::new(connected)),
            cluster,
            team,
            key: Secret::new(String::new()),
            home,
            started: AtomicUsize::new(0),
            tasks: Tasks::default(),
        }
    }

    /// Teaches the cluster our kinds.
    pub(crate) async fn define(&self) {
        let cluster = Cluster::connect(Some(self.cluster.kubeconfig())).await;
        crds::install(&cluster.unwrap()).await.unwrap();
    }

    /// Makes a team, a key and a template.
    pub(crate) async fn furnish(&self) -> Secret {
        let name = Name::new(self.team.as_str()).unwrap();
        let team: Team = Object::new(Metadata::new(None, name), TeamSpec::default());
        self.store.create_object(&team).await.unwrap();
        let spec = TemplateSpec {
            image: "localhost/debian:1".into(),
            ..TemplateSpec::default()
        };
        let base = Metadata::new(None, Name::new("base").unwrap());
        let template = SandboxTemplate::new(base, spec);
        self.store.create_object(&template).await.unwrap();
        let wish = NewKey::named("test");
        let (record, key) = mint(&Entropy::from_os(), self.team.clone(), wish);
        self.store.create_object(&record).await.unwrap();
        key
    }

    /// Starts a role.
    pub(crate) fn start(&self, role: &str, more: &[(&str, &str)]) -> Role {
        self.start_by(dormouse(self.home.path()), role, more)
    }

    /// Starts a role in a network namespace.
    pub(crate) fn start_in(&self, namespace: &str, role: &str, more: &[(&str, &str)]) -> Role {
        let mut command = program("ip", self.home.path());
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_dormouse")]);
        self.start_by(command, role, more)
    }

    fn start_by(&self, mut command: Command, role: &str, more: &[(&str, &str)]) -> Role {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let log = self.home.path().join(format!("{role}-{number}.log"));
        let child = command
            .arg(role)
            .env("DORMOUSE_KUBERNETES_KUBECONFIG", self.cluster.kubeconfig())
            .env("DORMOUSE_KUBERNETES_NAMESPACE", self.team.as_str())
            .env("DORMOUSE_KUBERNETES_IMAGE", "localhost/dormouse:1")
            .env("DORMOUSE_SEAL_FILE", self.home.path().join("seal"))
            .env("DORMOUSE_PEER_KEY_FILE", self.home.path().join("peer-key"))
            .env("DORMOUSE_METRICS_LISTEN", "127.0.0.1:0")
            .env("DORMOUSE_E2B_LISTEN", "127.0.0.1:0")
            .env("DORMOUSE_PEER_LISTEN", "127.0.0.1:0")
            .env("DORMOUSE_PEER_SEEDS", "")
            // As long as may be: where there is much else to do nobody is late.
            .env("DORMOUSE_PEER_ACK_TIMEOUT", "2s")
            .env("DORMOUSE_LOG_FORMAT", "json")
            .env("DORMOUSE_LOG_LEVEL", "info,control=debug")
            .envs(more.iter().copied())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Role { child, log }
    }

    /// Gateways, control loops and an API, all ready.
    pub(crate) async fn start_all(&self, gateways: usize, controls: usize) -> Roles {
        self.start_with(gateways, controls, &[]).await
    }

    /// The same, with more in their environment.
    pub(crate) async fn start_with(
        &self,
        gateways: usize,
        controls: usize,
        env: &[(&str, &str)],
    ) -> Roles {
        let gateways: Vec<Role> = (0..gateways).map(|_| self.start("gateway", env)).collect();
        let mut listed = Vec::new();
        for gateway in &gateways {
            listed.push(gateway.address("serving", "peers").await.to_string());
        }
        let listed = listed.join(",");
        let standin = self.cluster.as_standin().unwrap();
        let node = daemon::start(standin, &self.tasks).await.to_string();
        let more = [
            ("DORMOUSE_KUBERNETES_GATEWAYS", listed.as_str()),
            ("DORMOUSE_PEER_SEEDS", listed.as_str()),
            ("DORMOUSE_KUBERNETES_NODE_DAEMON", "on"),
            ("DORMOUSE_KUBERNETES_NODE_PORT", node.as_str()),
        ];
        let more = [&more[..], env].concat();
        let controls: Vec<Role> = (0..controls)
            .map(|_| self.start("control", &more))
            .collect();
        let api = self.start("api", &more);
        for role in gateways.iter().chain(&controls).chain([&api]) {
            role.ready().await;
        }
        Roles {
            gateways,
            controls,
            api,
            env: more
                .iter()
                .map(|(n, v)| ((*n).into(), (*v).into()))
                .collect(),
        }
    }

    /// Waits until a sandbox of the team is so.
    pub(crate) async fn until(&self, name: &str, is_so: impl Fn(&Sandbox) -> bool) -> Sandbox {
        let key = Key::namespaced(
            SandboxSpec::KIND,
            self.team.clone(),
            Name::new(name).unwrap(),
        );
        let begun = tokio::time::Instant::now();
        loop {
            let found = self.store.find::<SandboxSpec>(&key).await.unwrap();
            if let Some(found) = found.as_ref().filter(|found| is_so(found)) {
                return found.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "{name} is not so: {found:#?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until so many members of pools are idle whose uid is fit. Answers which.
    pub(crate) async fn until_idle(&self, many: usize, is_fit: impl Fn(&Uid) -> bool) -> Vec<Uid> {
        let begun = tokio::time::Instant::now();
        loop {
            let all = self.sandboxes().await;
            let idle = all.iter().filter(|s| s.status.phase == Phase::Idle);
            let idle: Vec<Uid> = idle.map(Sandbox::uid).filter(|uid| is_fit(uid)).collect();
            if idle.len() >= many {
                return idle;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "only {idle:?} are idle: {all:#?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The reasons of the Events of a sandbox, as stock kubectl shows them.
    pub(crate) fn events_of(&self, name: &str) -> Vec<String> {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .env("HOME", self.home.path())
            .args(["get", "events", "-o", "json", "-n", self.team.as_str()]);
        let ran = kubectl.output().expect("this test needs `kubectl`");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        let all: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let of_it = all.iter().filter(|event| {
            let about = &event["involvedObject"];
            about["kind"] == "Sandbox" && about["name"] == name
        });
        of_it
            .filter_map(|event| event["reason"].as_str().map(str::to_owned))
            .collect()
    }

    /// All sandboxes of the team.
    pub(crate) async fn sandboxes(&self) -> Vec<Sandbox> {
        let mut query = Query::kind(SandboxSpec::KIND);
        query.namespace = Some(self.team.clone());
        let found = self.store.list_objects::<SandboxSpec>(&query).await;
        found.unwrap().0
    }
}

impl Installation {
    /// Somebody with the team's key.
    pub(crate) async fn user(&self, roles: &Roles) -> User {
        User {
            api: roles.api.url().await,
            key: self.key.clone(),
        }
    }
}

/// All roles of an installation.
pub(crate) struct Roles {
    pub(crate) gateways: Vec<Role>,
    pub(crate) controls: Vec<Role>,
    pub(crate) api: Role,
    /// What more of the like are started with.
    env: Vec<(String, String)>,
}

impl Roles {
    /// What a further control loop or API is started with.
    pub(crate) fn env(&self) -> Vec<(&str, &str)> {
        let pairs = self.env.iter();
        pairs.map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }
}

/// One process.
pub(crate) struct Role {
    child: Child,
    log: PathBuf,
}

impl Role {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        let log = self.log();
        log.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Whether it has said this.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    /// Waits until it has said this.
    pub(crate) async fn says(&self, text: &str) {
        self.until(text, || self.has_said(text)).await;
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            if is_so() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("never: {what}\n{}", self.log());
    }

    /// An address that it has logged.
    pub(crate) async fn address(&self, message: &str, field: &str) -> SocketAddr {
        let mut found = None;
        self.until(message, || {
            let lines = self.lines();
            let mut said = lines.iter().filter(|line| line["message"] == message);
            found = said.find_map(|line| line[field].as_str()?.parse().ok());
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// What it answers to a probe.
    pub(crate) async fn probe(&self, path: &str) -> Answer {
        let at = self.address("probes and metrics", "address").await;
        let asked = send(Method::GET, &format!("http://{at}{path}"), &[], "").await;
        asked.unwrap()
    }

    /// Waits until its metrics have this line.
    pub(crate) async fn shows(&self, line: &str) {
        let begun = tokio::time::Instant::now();
        loop {
            let page = self.probe("/metrics").await.text();
            if page.lines().any(|shown| shown == line) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "never {line}: {page}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What its metrics count.
    pub(crate) async fn count(&self, metric: &str) -> u64 {
        let page = self.probe("/metrics").await.text();
        let mut lines = page.lines();
        let found = lines.find_map(|line| line.strip_prefix(metric)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {metric}: {page}"))
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&self) {
        let begun = tokio::time::Instant::now();
        loop {
            let answer = self.probe("/readyz").await;
            if answer.status == 200 {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "not ready: {}\n{}",
                answer.text(),
                self.log()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Where it serves users.
    pub(crate) async fn url(&self) -> String {
        format!("http://{}", self.address("serving", "address").await)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn end(&mut self) -> ExitStatus {
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("it does not end: {}", self.log());
    }

    /// Stops it as a kubelet would. It must end well.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.end().await;
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // A failed test must not leave it behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// One who uses the API with a key.
pub(crate) struct User {
    pub(crate) api: String,
    pub(crate) key: Secret,
}

impl User {
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Value) -> Answer {
        let headers = [
            ("x-api-key", self.key.reveal()),
            ("content-type", "application/json"),
        ];
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let url = format!("{}{path}", self.api);
        send(method, &url, &headers, body).await.unwrap()
    }

    /// Makes a sandbox.
    pub(crate) async fn create(&self, more: Value) -> Made {
        let mut body = json!({"templateID": "base", "timeout": 600});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        let made = self
            .ask(Method::POST, "/sandboxes", body)
            .await
            .is(201)
            .json();
        Made {
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    pub(crate) async fn state(&self, id: &str) -> Value {
        let path = format!("/sandboxes/{id}");
        self.ask(Method::GET, &path, Value::Null)
            .await
            .is(200)
            .json()["state"]
            .clone()
    }
}

/// A sandbox that was made.
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) token: String,
}

/// The binary under test.
fn dormouse(home: &Path) -> Command {
    program(env!("CARGO_BIN_EXE_dormouse"), home)
}

fn program(name: &str, home: &Path) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", home)
        .current_dir(home);
    command
}
