//! A cluster for a test, and a namespace in it: the stand-in, or with `DORMOUSE_TEST_KUBECONFIG` the
//! real one that this names.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Namespace;
use kit::Entropy;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use thiserror::Error;

use crate::{Options, Standin};

/// Names a real cluster to test against.
pub const KUBECONFIG: &str = "DORMOUSE_TEST_KUBECONFIG";

/// Names the program that runs as the agent in Pods of the stand-in.
pub const AGENT: &str = "DORMOUSE_AGENT";

/// Why there is no cluster to test with.
#[derive(Debug, Error)]
pub enum TestingError {
    /// The stand-in does not start.
    #[error("start the stand-in")]
    Start(#[source] std::io::Error),
    /// Its kubeconfig cannot be written.
    #[error("write a kubeconfig")]
    Write(#[source] std::io::Error),
    /// The kubeconfig cannot be used.
    #[error("read the kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// The cluster refuses.
    #[error("make a namespace for the test")]
    Namespace(#[source] kube::Error),
    /// There is no agent to run in Pods.
    #[error("build the agent: {0}")]
    Agent(String),
}

/// A cluster, with a namespace that is gone when this is.
pub struct TestCluster {
    standin: Option<Arc<Standin>>,
    /// Holds the kubeconfig of a stand-in.
    _directory: Option<tempfile::TempDir>,
    kubeconfig: PathBuf,
    config: Config,
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestCluster")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A cluster as the environment wants it.
///
/// # Errors
/// If there is none.
pub async fn cluster() -> Result<TestCluster, TestingError> {
    match std::env::var_os(KUBECONFIG) {
        Some(path) => TestCluster::real(PathBuf::from(path)).await,
        None => standin().await,
    }
}

/// A stand-in, whatever the environment says: for tests of what only it can do.
///
/// # Errors
/// If it does not start.
pub async fn standin() -> Result<TestCluster, TestingError> {
    standin_with(Options::default()).await
}

/// The same, otherwise than usual.
///
/// # Errors
/// If it does not start.
pub async fn standin_with(options: Options) -> Result<TestCluster, TestingError> {
    TestCluster::standin(options).await
}

impl TestCluster {
    async fn standin(options: Options) -> Result<Self, TestingError> {
        let options = Options {
            agent: Some(agent()?),
            ..options
        };
        let standin = Standin::start(options).await.map_err(TestingError::Start)?;
        let directory = tempfile::tempdir().map_err(TestingError::Write)?;
        let kubeconfig = directory.path().join("kubeconfig");
        let text = standin.kubeconfig();
        kit::durable::write_file(&kubeconfig, text.as_bytes(), 0o600)
            .map_err(TestingError::Write)?;
        let mut cluster = Self::connect(kubeconfig).await?;
        cluster.standin = Some(Arc::new(standin));
        cluster._directory = Some(directory);
        cluster.make_namespace().await?;
        Ok(cluster)
    }

    async fn real(kubeconfig: PathBuf) -> Result<Self, TestingError> {
        let cluster = Self::connect(kubeconfig).await?;
        cluster.make_namespace().await?;
        Ok(cluster)
    }

    async fn connect(kubeconfig: PathBuf) -> Result<Self, TestingError> {
        let file = Kubeconfig::read_from(&kubeconfig).map_err(TestingError::Kubeconfig)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(TestingError::Kubeconfig)?;
        let client = Client::try_from(config.clone()).map_err(TestingError::Namespace)?;
        Ok(Self {
            standin: None,
            _directory: None,
            kubeconfig,
            config,
            client,
            namespace: format!("test-{:016x}", Entropy::from_os().u64()),
        })
    }

    async fn make_namespace(&self) -> Result<(), TestingError> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let made = namespaces.create(&PostParams::default(), &namespace).await;
        made.map(drop).map_err(TestingError::Namespace)
    }

    /// The kubeconfig, for programs that take one.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// How clients connect.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// A connected client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A namespace for this test alone.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The stand-in, where it is one.
    #[must_use]
    pub const fn as_standin(&self) -> Option<&Arc<Standin>> {
        self.standin.as_ref()
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if self.standin.is_some() {
            return;
        }
        // A real cluster outlives the test. Its namespace should not, and nobody can wait here but
        // a thread of its own.
        let (config, name) = (self.config.clone(), self.namespace.clone());
        let deleting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            runtime.block_on(async {
                let client = Client::try_from(config).ok()?;
                let namespaces = Api::<Namespace>::all(client);
                namespaces
                    .delete(&name, &DeleteParams::default())
                    .await
                    .ok()
            })
        });
        // What is left then is left to whoever owns the cluster.
        let _ = deleting.join();
    }
}

/// The agent that runs in Pods: that of this build, which is built where it is missing.
///
/// # Errors
/// If it cannot be built.
pub fn agent() -> Result<PathBuf, TestingError> {
    if let Some(path) = std::env::var_os(AGENT) {
        return Ok(PathBuf::from(path));
    }
    let failed = |why: String| TestingError::Agent(why);
    let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
    // A test is in `deps`, a program beside the agent.
    let mut directory = program.parent().unwrap_or(Path::new("."));
    if directory.ends_with("deps") {
        directory = directory.parent().unwrap_or(directory);
    }
    let path = directory.join("dormouse-agent");
    if !path.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--package", "dormouse-agent"])
            .status()
            .map_err(|e| failed(e.to_string()))?;
        if !built.success() {
            return Err(failed("it does not build".to_owned()));
        }
    }
    Ok(path)
}
