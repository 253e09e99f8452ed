//! A Kubernetes API server, its controllers and a kubelet, for tests.
//!
//! Lists, watches, patches, versions and the rules of records are those of the resource API
//! ([`api`]) over the store in memory; here is what makes of them a cluster. Checked-in transcripts of
//! a real API server are replayed against it, so that it does not only agree with itself.
//!
//! | Module | What it holds |
//! |---|---|
//! | `kinds`, `catalogue`, `schema` | which kinds there are: built in, or by CustomResourceDefinitions |
//! | `rules` | what is filled in and refused for built-in kinds |
//! | `world` | the server from within |
//! | `manager`, `jobs` | controllers: definitions, garbage, namespaces, Jobs |
//! | [`kubelet`] | Pods, with real agents in them, and what goes wrong on nodes |
//! | [`faults`], `listener` | a server that refuses, fails, is late, restarts |
//! | [`testing`] | a cluster for a test: this one, or a real one |
//! | [`transcript`] | requests and what a server answers to them, to be compared |
//!
//! What it does not do: CEL rules, admission webhooks, authorization, conversion between versions,
//! protobuf, foreground deletion in its order, Deployments and DaemonSets (they are only kept).

mod catalogue;
pub mod faults;
mod jobs;
mod kinds;
pub mod kubelet;
mod listener;
mod manager;
mod rules;
mod schema;
pub mod testing;
pub mod transcript;
mod world;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use api::{Authenticator, Limits, ResourceApi};
use axum::{Router, middleware};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kit::{Clock, Entropy, SystemClock, Tasks};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use store::memory::MemoryStore;
use tokio::sync::{Mutex, mpsc};

pub use faults::{Fault, Faults, Rule, Seen};
pub use kubelet::{Ending, Kubelet};

use crate::{
    catalogue::Kinds,
    kinds::NAMESPACES,
    listener::{Identity, Listener},
    manager::Manager,
    world::World,
};

/// Namespaces that every cluster has.
const NAMESPACES_OF_ALL: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// What a stand-in is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 for any.
    pub address: SocketAddr,
    /// Whether there is a node that runs Pods.
    pub kubelet: bool,
    /// The program that runs as the agent in Pods; without one agents only have phases.
    pub agent: Option<PathBuf>,
    /// How often watches that asked for bookmarks get one.
    pub bookmark_interval: Duration,
    /// How the addresses of Pods begin: up to three of their numbers. All of them must be this machine's.
    pub pods: Vec<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            kubelet: true,
            agent: None,
            bookmark_interval: Duration::from_secs(5),
            pods: vec![127, 64],
        }
    }
}

/// The address by which a machine is known on which something listens there.
const fn node_of(listens: SocketAddr) -> IpAddr {
    match listens.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    }
}

/// A cluster. It ends with this, processes of Pods included.
#[derive(Debug)]
pub struct Standin {
    world: Arc<World>,
    kubelet: Option<Arc<Kubelet>>,
    faults: Arc<Faults>,
    router: Router,
    identity: Identity,
    address: SocketAddr,
    listener: Mutex<Option<Listener>>,
}

impl Standin {
    /// Starts a cluster.
    ///
    /// # Errors
    /// If the port cannot be had.
    pub async fn start(options: Options) -> std::io::Result<Self> {
        let token = format!("{:032x}", Entropy::from_os().u128());
        let identity = Identity::new(node_of(options.address))?;
        Self::start_as(options, identity, token).await
    }

    /// Starts over at the same address and with the same kubeconfig, as a cluster that was restored from
    /// a backup of its first moment.
    ///
    /// # Errors
    /// If the port cannot be had.
    pub async fn start_over(self, options: Options) -> std::io::Result<Self> {
        let (address, identity) = (self.address, self.identity.clone());
        let token = self.world.token.clone();
        self.end().await;
        let options = Options { address, ..options };
        Self::start_as(options, identity, token).await
    }

    async fn start_as(
        options: Options,
        identity: Identity,
        token: String,
    ) -> std::io::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let entropy = Arc::new(Entropy::from_os());
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Arc::clone(&entropy)));
        // From under the store's lock, so it cannot wait for room; the controllers keep up.
        let (told, changes) = mpsc::unbounded_channel();
        store.audit(move |change| {
            // Who stops listening has stopped.
            let _ = told.send(change.clone());
        });
        let kinds = Arc::new(Kinds::new(Arc::clone(&store)));
        let hash = Sha256::digest(&token).into();
        let tasks = Tasks::default();
        let limits = Limits {
            bookmark_interval: options.bookmark_interval,
            ..Limits::default()
        };
        let api = ResourceApi::new(
            Arc::<MemoryStore>::clone(&store),
            Arc::clone(&clock),
            Arc::clone(&entropy),
            Authenticator::from_token_hashes(vec![hash]),
            limits,
        )
        .with_tasks(tasks.clone())
        .with_catalogue(Arc::<Kinds>::clone(&kinds));
        let inner = api::catalogue_router(Arc::new(api));
        let faults = Arc::new(Faults::default());
        let router = inner.clone().layer(middleware::from_fn_with_state(
            Arc::clone(&faults),
            faults::around,
        ));
        let world = Arc::new(World {
            store,
            kinds,
            entropy,
            tasks: tasks.clone(),
            clock,
            router: inner,
            token,
            node: node_of(options.address),
            pods: options.pods,
        });
        let kubelet = options
            .kubelet
            .then(|| Arc::new(Kubelet::new(Arc::clone(&world), options.agent)));
        let manager = Manager::new(Arc::clone(&world), kubelet.clone());
        let stopping = tasks.stopping().clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = manager.run(changes) => {}
            }
        });
        for name in NAMESPACES_OF_ALL {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            world.create(&NAMESPACES, None, &namespace).await;
        }
        if let Some(kubelet) = &kubelet {
            kubelet.register().await;
        }
        // What came before anybody could have watched is what nobody can watch from.
        world.store.lose_watches();
        let listener = Listener::open(options.address, router.clone(), &identity)?;
        Ok(Self {
            world,
            kubelet,
            faults,
            router,
            identity,
            address: listener.address,
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig for it.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        // JSON is YAML.
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "standin", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority-data": BASE64_STANDARD.encode(&self.identity.pem),
            }}],
            "users": [{"name": "standin", "user": {"token": self.world.token}}],
            "contexts": [{"name": "standin", "context": {"cluster": "standin", "user": "standin"}}],
            "current-context": "standin",
        })
        .to_string()
    }

    /// How it misbehaves, and what it has served.
    #[must_use]
    pub const fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// The kubelet, if there is one.
    #[must_use]
    pub const fn kubelet(&self) -> Option<&Arc<Kubelet>> {
        self.kubelet.as_ref()
    }

    /// Takes the API server away: its port is closed, and every connection. What it stores stays.
    pub async fn stop(&self) {
        if let Some(listener) = self.listener.lock().await.take() {
            listener.close().await;
        }
    }

    /// Brings the API server back on the same port.
    ///
    /// # Errors
    /// If the port cannot be had.
    pub async fn resume(&self) -> std::io::Result<()> {
        let mut listener = self.listener.lock().await;
        if listener.is_none() {
            let router = self.router.clone();
            *listener = Some(Listener::open(self.address, router, &self.identity)?);
        }
        Ok(())
    }

    /// Forgets the changes so far: who watches is told so (410), and who wants to watch from before.
    pub fn expire_history(&self) {
        self.world.store.lose_watches();
    }

    /// Holds back from watches what happens from now on.
    pub fn hold_watches(&self) {
        self.world.store.lag();
    }

    /// Lets watches catch up.
    pub fn release_watches(&self) {
        self.world.store.catch_up();
    }

    /// Writes that took effect or were refused by the store so far, those of controllers included.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.world.store.version().to_u64()
    }

    /// Ends everything, and waits until it has.
    pub async fn end(self) {
        self.stop().await;
        // Processes of Pods end with their tasks.
        let _ = self.world.tasks.drain(Duration::from_secs(10)).await;
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.world.tasks.stopping().cancel();
    }
}
