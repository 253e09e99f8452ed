//! A cluster for a test: a stand-in of its own, or with `DORMOUSE_TEST_KUBECONFIG` the real one that
//! this names.
//!
//! A real cluster is shared, and a store lists whole kinds. So the tests have an API group of their
//! own, with definitions of their own; on a real cluster they take turns, and each begins by removing
//! what the last one left.

use cluster_kube::Cluster;
use http::{Method, Request};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use model::{kinds, meta::API_VERSION};
use serde_json::{Value, json};
use standin_kube::{Options, Standin};
use store::{Change, Half, Query, Store as _};
use store_kube::{KubeStore, crds};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub(crate) const GROUP: &str = "storetest.dormouse.dev";

static TURN: Mutex<()> = Mutex::const_new(());
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// A cluster with the tests' kinds, empty.
pub(crate) struct Lab {
    config: Config,
    _turn: Option<MutexGuard<'static, ()>>,
    standin: Option<Standin>,
}

impl Lab {
    /// A cluster as the environment wants it.
    pub(crate) async fn new() -> Self {
        let Some(path) = std::env::var_os("DORMOUSE_TEST_KUBECONFIG") else {
            return Self::standin().await;
        };
        let turn = TURN.lock().await;
        let lab = Self {
            config: config(Kubeconfig::read_from(path).unwrap()).await,
            _turn: Some(turn),
            standin: None,
        };
        let cluster = lab.connect();
        INSTALLED
            .get_or_init(async || install(&cluster).await)
            .await;
        clear(&cluster, &lab.store()).await;
        lab
    }

    /// A stand-in, for tests of what only it can do.
    pub(crate) async fn standin() -> Self {
        Self::standin_with(options()).await
    }

    /// A stand-in at this port.
    pub(crate) async fn standin_at(port: u16) -> Self {
        let address = ([127, 0, 0, 1], port).into();
        Self::standin_with(Options {
            address,
            ..options()
        })
        .await
    }

    async fn standin_with(options: Options) -> Self {
        let standin = Standin::start(options).await.unwrap();
        let lab = Self {
            config: config(Kubeconfig::from_yaml(&standin.kubeconfig()).unwrap()).await,
            _turn: None,
            standin: Some(standin),
        };
        install(&lab.connect()).await;
        lab
    }

    /// Restores the stand-in from a backup of when it was empty.
    pub(crate) async fn restore(&mut self) {
        let standin = self.standin.take().unwrap();
        self.standin = Some(standin.start_over(options()).await.unwrap());
        install(&self.connect()).await;
    }

    /// A connection of its own.
    pub(crate) fn connect(&self) -> Cluster {
        Cluster::of(self.config.clone()).unwrap()
    }

    /// The store over a connection of its own.
    pub(crate) fn store(&self) -> KubeStore {
        store_of(&self.connect())
    }

    /// The stand-in, for what is done to it.
    pub(crate) fn api_server(&self) -> &Standin {
        self.standin.as_ref().unwrap()
    }
}

fn options() -> Options {
    Options {
        kubelet: false,
        ..Options::default()
    }
}

/// The tests' store of a cluster.
pub(crate) fn store_of(cluster: &Cluster) -> KubeStore {
    KubeStore::of_group(cluster.clone(), GROUP)
}

async fn config(kubeconfig: Kubeconfig) -> Config {
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

async fn install(cluster: &Cluster) {
    let ours: Vec<Value> = crds::in_group(GROUP).map(newer).collect();
    crds::install_all(cluster, &ours).await.unwrap();
}

/// A definition as a newer version would have it: with fields that this one does not know.
fn newer(mut definition: Value) -> Value {
    let fields = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let later = json!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    });
    fields["spec"]["properties"]["laterField"] = later;
    fields["status"]["properties"]["laterStatus"] = json!({"type": "string"});
    definition
}

async fn clear(cluster: &Cluster, store: &KubeStore) {
    for info in kinds::stored() {
        let found = store.list(&Query::kind(info.kind)).await.unwrap().records;
        for record in found.iter().filter(|r| !r.meta.finalizers.is_empty()) {
            let mut meta = Box::new(record.meta.clone());
            meta.finalizers.clear();
            let half = Half::Spec {
                meta,
                spec: record.spec.clone(),
            };
            let change = Change {
                key: record.key(),
                uid: record.meta.uid,
                expected: record.version(),
                half,
                fields: record.fields.clone(),
            };
            store.update(change).await.unwrap();
        }
        let mut places: Vec<_> = found.iter().map(|r| r.meta.namespace.clone()).collect();
        places.dedup();
        for place in places {
            let place = place.map_or_else(String::new, |name| format!("namespaces/{name}/"));
            let uri = format!("/apis/{GROUP}/{API_VERSION}/{place}{}", info.plural);
            let request = Request::builder()
                .method(Method::DELETE)
                .uri(uri)
                .body(Vec::new())
                .unwrap();
            cluster.client().request_text(request).await.unwrap();
        }
    }
}
