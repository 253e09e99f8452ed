//! What a replica of the API was told of and may not see yet.

use std::{collections::BTreeMap, sync::Arc};

use cache::SandboxCache;
use mesh::Heard;
use model::{Name, Namespace, Version};
use parking_lot::Mutex;
use routes::Message;

use crate::process::Known;

/// What a replica was told of. It reads from a cache of its own, and where it was told of something
/// newer it waits for that.
#[derive(Debug)]
pub struct Ear {
    sandboxes: SandboxCache,
    told: Mutex<BTreeMap<(Namespace, Name), Version>>,
}

impl Ear {
    /// The ear of who reads from this.
    #[must_use]
    pub fn new(sandboxes: SandboxCache) -> Arc<Self> {
        Arc::new(Self {
            sandboxes,
            told: Mutex::default(),
        })
    }

    /// Whether it knows of what a message says, or of something newer.
    #[must_use]
    pub fn knows(&self, message: &Message) -> Known {
        let Some((key, version)) = named(message) else {
            return Known::Passed;
        };
        let told = self.told.lock().get(&key).copied();
        let has_come = self.sandboxes.version() >= version;
        if has_come || told.is_some_and(|told| told >= version) {
            Known::Passed
        } else {
            Known::Unheard
        }
    }
}

fn named(message: &Message) -> Option<((Namespace, Name), Version)> {
    match message {
        Message::Upsert(route) => {
            Some(((route.namespace.clone(), route.name.clone()), route.version))
        }
        Message::Delete(gone) => Some(((gone.namespace.clone(), gone.name.clone()), gone.version)),
        Message::Unreadable(_) => None,
    }
}

impl Heard for Ear {
    fn heard(&self, message: &Message) {
        let Some((key, version)) = named(message) else {
            return;
        };
        let mut told = self.told.lock();
        let known = told.entry(key).or_insert(version);
        *known = version.max(*known);
    }

    fn watched(&self) -> Version {
        self.sandboxes.version()
    }
}
