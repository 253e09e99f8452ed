//! A kubelet, and the scheduler before it: moves Pods through their phases.
//!
//! A container whose command is the agent runs as a real `dormouse-agent` in a pid namespace of its
//! own, bound to an address of loopback that is its Pod's. Other containers only have phases; how
//! those of Jobs end is decided by a hook. Everything that goes wrong on a node can be asked for.

mod container;
mod pod;
mod status;

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use model::{Key, Name, Uid};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    kinds::{NODES, PODS},
    world::World,
};

/// The name of the one node.
pub const NODE: &str = "node-1";

/// The port on which agents listen.
pub(crate) const AGENT_PORT: u16 = 49983;

/// Whoever listens on this port of an address has it, also among other kubelets of this machine. Nobody
/// is given it by chance. The gateway's tests claim theirs in the same way, by the same number, in
/// `gateway/tests/it/loopback.rs`.
const CLAIM_PORT: u16 = 29_983;

/// How many addresses are tried for a Pod.
const TRIES: u32 = 1000;

/// How a container of a Job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its exit code.
    pub code: i32,
    /// What it left in its termination message.
    pub message: String,
    /// How long it takes.
    pub after: Duration,
}

type EndingHook = Arc<dyn Fn(&Value) -> Option<Ending> + Send + Sync>;

/// Something that happens to a Pod.
#[derive(Clone, Debug)]
pub(crate) enum Blow {
    /// A container takes more memory than it may.
    Oom(String),
    /// A container's process ends with this code.
    Exit(String, i32),
    /// The node throws the Pod out.
    Evict(String),
}

/// The kubelet of the one node.
pub struct Kubelet {
    pub(crate) world: Arc<World>,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) state: Mutex<State>,
    /// Moves when something changed that waiting Pods should look at.
    pub(crate) stirred: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct State {
    pods: BTreeMap<Uid, Running>,
    /// Images that cannot be pulled.
    pub(crate) broken_images: Vec<String>,
    pub(crate) ending: Option<EndingHook>,
    pub(crate) start_delay: Duration,
    /// Whether the node is out of reach.
    pub(crate) lost: bool,
    /// Processes by Pod and container.
    pub(crate) pids: BTreeMap<(Uid, String), u32>,
}

struct Running {
    key: Key,
    latest: watch::Sender<Value>,
    blows: mpsc::UnboundedSender<Blow>,
    gone: CancellationToken,
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubelet").finish_non_exhaustive()
    }
}

impl Kubelet {
    pub(crate) fn new(world: Arc<World>, agent: Option<PathBuf>) -> Self {
        Self {
            world,
            agent,
            state: Mutex::default(),
            stirred: watch::channel(0).0,
        }
    }

    /// Makes the node known.
    pub(crate) async fn register(&self) {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
            "spec": {},
        });
        self.world.create(&NODES, None, &node).await;
        self.report_node("True", "KubeletReady").await;
    }

    async fn report_node(&self, ready: &str, reason: &str) {
        let Ok(name) = Name::foreign(NODE) else {
            return;
        };
        let key = Key {
            kind: NODES.stored_as,
            namespace: None,
            name,
        };
        let now = self.world.now();
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": self.world.node}, {"type": "Hostname", "address": NODE}],
            "conditions": [{
                "type": "Ready",
                "status": ready,
                "reason": reason,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.0.0", "kubeletVersion": "v1.36.0"},
        }});
        self.world.patch(&NODES, &key, true, &status).await;
    }

    /// A Pod was made or changed.
    pub(crate) fn put(self: &Arc<Self>, key: &Key, uid: Uid, pod: Value) {
        let mut state = self.state.lock();
        if let Some(running) = state.pods.get(&uid) {
            running.latest.send_replace(pod);
            return;
        }
        let over = matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        let elsewhere = pod["spec"]["nodeName"]
            .as_str()
            .is_some_and(|node| node != NODE);
        let scheduler = pod["spec"]["schedulerName"].as_str();
        let unscheduled = pod["spec"]["nodeName"].is_null()
            && scheduler.is_some_and(|name| name != "default-scheduler");
        if over || elsewhere || unscheduled {
            return;
        }
        let address = match self.address() {
            Ok(address) => address,
            Err(error) => {
                tracing::error!(%error, "no address is free for a Pod: it is not run");
                return;
            }
        };
        let (latest, pods) = watch::channel(pod);
        let (blows, hits) = mpsc::unbounded_channel();
        let gone = CancellationToken::new();
        let pod = pod::Identity {
            key: key.clone(),
            uid,
            address,
        };
        let worker = pod::Worker::new(Arc::clone(self), pod, pods, hits, gone.clone());
        self.world.tasks.spawn(worker.run());
        let running = Running {
            key: key.clone(),
            latest,
            blows,
            gone,
        };
        state.pods.insert(uid, running);
    }

    /// A Pod is no more.
    pub(crate) fn removed(&self, uid: Uid) {
        let mut state = self.state.lock();
        state.pids.retain(|(of, _), _| *of != uid);
        if let Some(running) = state.pods.remove(&uid) {
            running.gone.cancel();
        }
    }

    fn strike(&self, namespace: &str, name: &str, blow: Blow) -> bool {
        let state = self.state.lock();
        let hit = state.pods.values().find(|running| {
            let within = running.key.namespace.as_ref().map(AsRef::<str>::as_ref);
            running.key.name.as_str() == name && within == Some(namespace)
        });
        hit.is_some_and(|running| running.blows.send(blow).is_ok())
    }

    /// Kills a container as one that took too much memory. Answers whether there is such a Pod.
    pub fn run_out_of_memory(&self, namespace: &str, pod: &str, container: &str) -> bool {
        self.strike(namespace, pod, Blow::Oom(container.to_owned()))
    }

    /// Ends a container's process with this exit code. Answers whether there is such a Pod.
    pub fn end_container(&self, namespace: &str, pod: &str, container: &str, code: i32) -> bool {
        self.strike(namespace, pod, Blow::Exit(container.to_owned(), code))
    }

    /// Evicts a Pod. Answers whether there is one.
    pub fn evict(&self, namespace: &str, pod: &str) -> bool {
        let why = "The node was low on resource: memory.";
        self.strike(namespace, pod, Blow::Evict(why.to_owned()))
    }

    /// Lets pulls of images fail whose reference has this in it.
    pub fn break_pulls(&self, part: &str) {
        self.state.lock().broken_images.push(part.to_owned());
    }

    /// Lets all pulls succeed again.
    pub fn mend_pulls(&self) {
        self.state.lock().broken_images.clear();
        self.stir();
    }

    /// Makes Pods wait this long before their first container starts.
    pub fn delay_starts(&self, by: Duration) {
        self.state.lock().start_delay = by;
    }

    /// Decides how containers end that are no agents: those that this answers nothing for run on,
    /// but for those of Jobs, which succeed.
    pub fn on_run(&self, decide: impl Fn(&Value) -> Option<Ending> + Send + Sync + 'static) {
        self.state.lock().ending = Some(Arc::new(decide));
    }

    /// The process of a container, if it has one: the agent itself, as this host numbers it.
    #[must_use]
    pub fn pid(&self, namespace: &str, pod: &str, container: &str) -> Option<u32> {
        let state = self.state.lock();
        let (uid, _) = state.pods.iter().find(|(_, running)| {
            let within = running.key.namespace.as_ref().map(AsRef::<str>::as_ref);
            running.key.name.as_str() == pod && within == Some(namespace)
        })?;
        state.pids.get(&(*uid, container.to_owned())).copied()
    }

    /// The process of the container with this id, without `containerd://` before it.
    #[must_use]
    pub fn pid_of_pod(&self, uid: &str, container: &str) -> Option<u32> {
        let uid = uid.parse().ok()?;
        let state = self.state.lock();
        state.pids.get(&(uid, container.to_owned())).copied()
    }

    /// Takes the node away: its processes are gone, nobody reports of its Pods, and after a while
    /// it counts as lost and they as unknown.
    pub async fn lose_node(&self) {
        self.state.lock().lost = true;
        self.stir();
        self.report_node("Unknown", "NodeStatusUnknown").await;
        let now = self.world.now();
        for key in self.keys() {
            let patch = json!({"status": {"conditions": [{
                "type": "Ready",
                "status": "False",
                "reason": "NodeNotReady",
                "lastTransitionTime": now,
            }]}});
            self.world.patch(&PODS, &key, true, &patch).await;
        }
    }

    /// What is done about a lost node in the end: its Pods are removed without being asked.
    pub fn collect_pods_of_lost_node(&self) {
        for key in self.keys() {
            let nothing = store::Precondition::default();
            // Whoever was first, it is gone.
            let _ = self.world.store.delete_gracefully(&key, nothing, Some(0));
        }
    }

    /// Brings the node back, empty.
    pub async fn return_node(&self) {
        self.state.lock().lost = false;
        self.report_node("True", "KubeletReady").await;
        self.stir();
    }

    fn keys(&self) -> Vec<Key> {
        let state = self.state.lock();
        state.pods.values().map(|r| r.key.clone()).collect()
    }

    fn stir(&self) {
        self.stirred.send_modify(|n| *n += 1);
    }

    /// An address for a Pod. Nobody else on this machine is given it while the listener is there, and
    /// nobody had the agents' port of it.
    fn address(&self) -> io::Result<(Ipv4Addr, TcpListener)> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for _ in 0..TRIES {
            let [a, b, c, d, ..] = self.world.entropy.u64().to_le_bytes();
            let mut octets = [a, b, c, d.clamp(1, 254)];
            for (octet, given) in octets.iter_mut().zip(&self.world.pods) {
                *octet = *given;
            }
            let address = Ipv4Addr::from(octets);
            let claimed = TcpListener::bind((address, CLAIM_PORT));
            match claimed.and_then(|claim| {
                TcpListener::bind((address, AGENT_PORT))?;
                Ok(claim)
            }) {
                Ok(claim) => return Ok((address, claim)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
