//! What can be chosen about sandboxes in a cluster.

use std::{fmt, sync::Arc, time::Duration};

use auth::Seal;
use model::{Epoch, Uid, template::RuntimeClass, workload::Secret};
use peer::Identity;

use crate::commit;

/// Choices that hold for every sandbox of one cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Dormouse's own image: it brings the agent into sandboxes.
    pub image: Box<str>,
    /// Where the agent is in that image.
    pub agent: Box<str>,
    /// Secrets for pulling, in the namespace of each sandbox.
    pub pull_secrets: Vec<Box<str>>,
    /// The RuntimeClass of the cluster for each of ours; one that is not here means the cluster's own
    /// default.
    pub runtime_classes: Vec<(RuntimeClass, Box<str>)>,
    /// The daemon on every node that freezes; without it nothing can be frozen.
    pub node: Option<NodeDaemon>,
    /// How files are captured; without it they cannot be.
    pub commits: Option<commit::Options>,
    /// How long a new Pod may take until its agent answers, for one call.
    pub start_timeout: Duration,
    /// How long a Pod may take to end.
    pub stop_timeout: Duration,
    /// How long a template's commands may take to bring a sandbox up.
    pub boot_timeout: Duration,
    /// How long a node may be away before its sandboxes are lost.
    pub node_patience: Duration,
}

impl Options {
    /// The usual choices, with this image of Dormouse's.
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self {
            image: image.into(),
            agent: "/usr/local/bin/dormouse-agent".into(),
            pull_secrets: Vec::new(),
            runtime_classes: vec![(RuntimeClass::Runsc, "gvisor".into())],
            node: None,
            commits: Some(commit::Options::new(image)),
            start_timeout: Duration::from_secs(100),
            stop_timeout: Duration::from_secs(60),
            boot_timeout: Duration::from_secs(60),
            node_patience: Duration::from_secs(60),
        }
    }
}

/// How the daemon of a node is spoken to.
#[derive(Clone)]
pub struct NodeDaemon {
    /// Where it listens, at the node's address.
    pub port: u16,
    /// Who we are to it.
    pub identity: Arc<Identity>,
}

impl fmt::Debug for NodeDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeDaemon")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The keys by which agents know who speaks to them.
pub trait Keys: Send + Sync + fmt::Debug {
    /// That of the control plane, for the agent of one Pod of a workload: by the random name that its
    /// start has. A Pod of an older version has none, and a key of its workload alone.
    fn init_key(&self, uid: Uid, start: Option<&str>) -> Secret;
    /// That of the ports of one delivery.
    fn door_key(&self, uid: Uid, epoch: Epoch) -> Secret;
    /// What says that a Pod of this namespace and name was made for that workload. It is no secret.
    fn mark(&self, uid: Uid, namespace: &str, name: &str) -> Box<str>;
    /// Whether that is such a mark.
    fn has_marked(&self, uid: Uid, namespace: &str, name: &str, mark: &str) -> bool;
}

fn marked_text(uid: Uid, namespace: &str, name: &str) -> String {
    // None of them can have a line break.
    format!("Pod\n{namespace}\n{name}\n{uid}")
}

impl Keys for Seal {
    fn init_key(&self, uid: Uid, start: Option<&str>) -> Secret {
        match start {
            Some(start) => self.start_key(uid, start),
            None => Self::init_key(self, uid),
        }
    }

    fn door_key(&self, uid: Uid, epoch: Epoch) -> Secret {
        Self::door_key(self, uid, epoch)
    }

    fn mark(&self, uid: Uid, namespace: &str, name: &str) -> Box<str> {
        self.sign(&marked_text(uid, namespace, name))
    }

    fn has_marked(&self, uid: Uid, namespace: &str, name: &str, mark: &str) -> bool {
        self.has_signed(&marked_text(uid, namespace, name), mark)
    }
}
