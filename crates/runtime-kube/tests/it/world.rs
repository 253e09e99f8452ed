//! A cluster, and the runtime on it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use auth::Seal;
use cluster_kube::Cluster;
use k8s_openapi::api::core::v1::Pod;
use kit::Tasks;
use kube::Api;
use model::{Generation, OperationId, StringMap, Uid};
use peer::{Identity, Keys};
use runtime::{Facts, Fence, Observed, Publication, Runtime as _, WorkloadSpec};
use runtime_kube::{KubeRuntime, NodeDaemon, Options};
use standin_kube::{
    Kubelet, Standin,
    testing::{self, TestCluster},
};

use crate::{daemon, worker};

/// Names the image of Dormouse on a real cluster, that of a sandbox, another name of the same, and
/// the registry for captures.
const IMAGE: &str = "DORMOUSE_TEST_IMAGE";
const SANDBOX_IMAGE: &str = "DORMOUSE_TEST_SANDBOX_IMAGE";
const REGISTRY: &str = "DORMOUSE_TEST_REGISTRY";
/// Where containerd listens on the nodes of a real cluster, and where it keeps what it has, if that is
/// not where it usually is.
const SOCKET: &str = "DORMOUSE_TEST_CONTAINERD_SOCKET";
const ROOT: &str = "DORMOUSE_TEST_CONTAINERD_ROOT";
/// The file with the peer key of the daemons on a real cluster.
const PEER_KEY: &str = "DORMOUSE_TEST_PEER_KEY";

pub(crate) const SEAL: [u8; 32] = [7; 32];

pub(crate) struct World {
    // Ends first: what follows Pods must not see their cluster go.
    pub(crate) tasks: Tasks,
    pub(crate) runtime: KubeRuntime,
    pub(crate) cluster: TestCluster,
    pub(crate) options: Options,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

fn said(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl World {
    /// As the environment wants it, with a daemon on every node.
    pub(crate) async fn new() -> Self {
        Self::of(testing::cluster().await.unwrap(), true).await
    }

    /// The same without daemons.
    pub(crate) async fn without_daemon() -> Self {
        Self::of(testing::cluster().await.unwrap(), false).await
    }

    /// A stand-in, whatever the environment says.
    pub(crate) async fn standin() -> Self {
        Self::of(testing::standin().await.unwrap(), true).await
    }

    /// A stand-in without daemons.
    pub(crate) async fn standin_without_daemon() -> Self {
        Self::of(testing::standin().await.unwrap(), false).await
    }

    async fn of(cluster: TestCluster, with_daemon: bool) -> Self {
        let tasks = Tasks::default();
        let image = said(IMAGE).unwrap_or_else(|| "dormouse:test".to_owned());
        let mut options = Options::new(&image);
        options.stop_timeout = Duration::from_secs(30);
        match cluster.as_standin() {
            Some(standin) => {
                worker::employ(standin);
                if with_daemon {
                    options.node = Some(NodeDaemon {
                        port: daemon::start(standin, &tasks).await,
                        identity: daemon::identity(),
                    });
                }
            }
            None => {
                if let Some(commits) = &mut options.commits {
                    let usual = commits.clone();
                    commits.containerd_socket =
                        said(SOCKET).map_or(usual.containerd_socket, String::into_boxed_str);
                    commits.containerd_root =
                        said(ROOT).map_or(usual.containerd_root, String::into_boxed_str);
                    // A registry of a test's own need not speak TLS.
                    let host = said(REGISTRY).and_then(|it| Some(it.split('/').next()?.into()));
                    commits.insecure_registries = host.into_iter().collect();
                }
                let file = said(PEER_KEY).map(PathBuf::from).filter(|_| with_daemon);
                options.node = file.map(|file| {
                    let keys = Keys::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
                    NodeDaemon {
                        port: runtime::node::PORT,
                        identity: Arc::new(Identity::new(&keys).unwrap()),
                    }
                });
            }
        }
        let runtime = start(&cluster, &options, &tasks).await;
        Self {
            tasks,
            runtime,
            cluster,
            options,
        }
    }

    /// What a process has that starts anew: it remembers nothing.
    pub(crate) async fn another(&self) -> KubeRuntime {
        start(&self.cluster, &self.options, &self.tasks).await
    }

    pub(crate) fn kubelet(&self) -> &Arc<Kubelet> {
        self.cluster.as_standin().unwrap().kubelet().unwrap()
    }

    pub(crate) fn server(&self) -> &Arc<Standin> {
        self.cluster.as_standin().unwrap()
    }

    pub(crate) fn images() -> StringMap {
        let image = said(SANDBOX_IMAGE).unwrap_or_else(|| "app:1".to_owned());
        [("main", image)].into_iter().collect()
    }

    pub(crate) fn spec() -> WorkloadSpec {
        WorkloadSpec {
            images: Self::images(),
            ..WorkloadSpec::default()
        }
    }

    pub(crate) fn registry() -> Publication {
        Publication {
            registry: said(REGISTRY)
                .unwrap_or_else(|| "r.example".to_owned())
                .into(),
            secret: None,
            parent: None,
        }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), self.cluster.namespace())
    }

    pub(crate) async fn facts(&self, uid: Uid) -> Facts {
        match self.runtime.inspect(uid).await.unwrap() {
            Observed::Present(facts) => facts,
            other => panic!("{uid} should be there: {other:?}"),
        }
    }

    /// Waits until what is seen of a workload is so.
    pub(crate) async fn until(&self, uid: Uid, is_so: impl Fn(&Observed) -> bool) -> Observed {
        for _ in 0..1500 {
            if let Ok(seen) = self.runtime.inspect(uid).await
                && is_so(&seen)
            {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never so: {:?}", self.runtime.inspect(uid).await);
    }
}

async fn start(cluster: &TestCluster, options: &Options, tasks: &Tasks) -> KubeRuntime {
    let mut config = cluster.config().clone();
    config.default_namespace = cluster.namespace().to_owned();
    let connected = Cluster::of(config).unwrap();
    let keys = Arc::new(Seal::new(SEAL));
    let runtime = KubeRuntime::start(&connected, options.clone(), keys, tasks).await;
    runtime.unwrap()
}

pub(crate) fn fence(uid: u128, generation: u64, operation: u64) -> Fence {
    Fence {
        uid: Uid::from_random(uid),
        generation: Generation(generation),
        operation: OperationId(operation),
    }
}

/// The name of a Pod that is nobody's.
pub(crate) fn name_of(fence: Fence) -> String {
    format!("sandbox-{}", fence.uid)
}
