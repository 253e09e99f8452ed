//! The kinds as an API server serves them.

use std::sync::Arc;

use model::{
    Key, KindName, Namespace, StringMap,
    kinds::{self, KindInfo, Scope},
    meta::API_VERSION,
};
use store::StoreError;

use crate::{fields, proof::Vouch};

/// Every kind that is stored, in one API group.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(Vec<Kind>);

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) info: &'static KindInfo,
    /// `group/version`.
    pub(crate) api_version: String,
    /// What selectable fields of the status are while nothing was observed.
    pub(crate) default_fields: StringMap,
    default_status: String,
    /// Who signs records of it; nobody where only we write them.
    pub(crate) vouch: Option<Arc<dyn Vouch>>,
}

impl Kinds {
    pub(crate) fn of_group(group: &str) -> Self {
        let kind = |info: &'static KindInfo| {
            let default_status = info.default_status();
            Kind {
                info,
                api_version: format!("{group}/{API_VERSION}"),
                default_fields: fields::of_half("status", &default_status, info.selectable),
                default_status,
                vouch: None,
            }
        };
        Self(kinds::stored().map(kind).collect())
    }

    pub(crate) fn vouch_for(&mut self, name: KindName, vouch: Arc<dyn Vouch>) {
        if let Some(kind) = self.0.iter_mut().find(|kind| kind.info.kind == name) {
            kind.vouch = Some(vouch);
        }
    }

    /// The kind of a name.
    ///
    /// # Errors
    /// If no such kind is stored: a mistake of ours, and not the API server's to find.
    pub(crate) fn find(&self, name: KindName) -> Result<&Kind, StoreError> {
        let kind = self.0.iter().find(|kind| kind.info.kind == name);
        kind.ok_or_else(|| StoreError::Unavailable {
            outcome: store::Outcome::NotApplied,
            reason: format!("{name} is no kind that is stored").into(),
        })
    }
}

impl Kind {
    /// The path of all objects of the kind, or of those in a namespace.
    pub(crate) fn collection(&self, namespace: Option<&Namespace>) -> String {
        let (group_version, plural) = (&self.api_version, self.info.plural);
        match (self.info.scope, namespace) {
            (Scope::Namespaced, Some(namespace)) => {
                format!("/apis/{group_version}/namespaces/{namespace}/{plural}")
            }
            (Scope::Namespaced, None) | (Scope::Cluster, _) => {
                format!("/apis/{group_version}/{plural}")
            }
        }
    }

    /// The path of one object.
    pub(crate) fn object(&self, key: &Key) -> String {
        format!("{}/{}", self.collection(key.namespace.as_ref()), key.name)
    }

    /// Whether a status says no more than that nothing was observed yet.
    pub(crate) fn is_default_status(&self, status: &str) -> bool {
        status == "{}" || status == self.default_status
    }
}
