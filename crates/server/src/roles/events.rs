//! What people read, also as Events of Kubernetes: `kubectl describe` shows them.

use cluster_kube::events::{Happening, Recorder};
use control::{
    EventSink,
    events::{StoredEvents, fingerprint},
};
use model::{
    event::{About, Severity},
    kinds,
    meta::GROUP_VERSION,
};
use plan::Note;

/// Both.
#[derive(Debug)]
pub(crate) struct ToldToAll {
    pub(crate) stored: StoredEvents,
    pub(crate) recorder: Recorder,
}

impl EventSink for ToldToAll {
    fn record(&self, about: About, note: Note) {
        // What has no record has nothing that could be described.
        if kinds::find(&about.kind).is_some() {
            self.recorder.record(happening(&about, &note));
        }
        self.stored.record(about, note);
    }
}

fn happening(about: &About, note: &Note) -> Happening {
    let uid = about.uid.to_string();
    Happening {
        kind: about.kind.to_string(),
        api_version: GROUP_VERSION.to_owned(),
        namespace: about.namespace.as_ref().map(ToString::to_string),
        name: about.name.to_string(),
        fingerprint: fingerprint(&[&uid, note.reason, &note.message]),
        uid,
        is_warning: note.severity == Severity::Warning,
        reason: note.reason.to_owned(),
        message: note.message.to_string(),
    }
}
