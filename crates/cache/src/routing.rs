//! The trimmed view of sandboxes for gateways: their routes, and nothing else.
//!
//! The value is the very [`Route`] that a gateway's table holds: cache and table share it.

use model::{
    KindName, Name, Namespace, Spec as _, Uid, Version,
    codec::DecodeError,
    sandbox::{Sandbox, SandboxSpec},
};
use routes::Route;
use store::{Record, StoreError};

use crate::{Cache, Identified, Indexes, Names, Term, View};

/// A cache of what gateways route by.
pub type RoutingCache = Cache<Routing>;

/// The view.
#[derive(Debug)]
pub enum Routing {}

impl View for Routing {
    type Value = Route;
    type Index = RoutingIndex;
    const KIND: KindName = SandboxSpec::KIND;

    fn project(record: &Record, names: &mut Names) -> Result<Route, StoreError> {
        let sandbox: Sandbox = record.decode()?;
        let mut route = Route::of(&sandbox).ok_or_else(|| StoreError::Undecodable {
            key: record.key(),
            source: DecodeError {
                field: "metadata.namespace".into(),
                message: "a sandbox belongs to a namespace".into(),
            },
        })?;
        names.share_namespace(&mut route.namespace);
        if let Some(owner) = &mut route.owner {
            names.share_namespace(owner);
        }
        Ok(route)
    }
}

impl Identified for Route {
    fn namespace(&self) -> Option<&Namespace> {
        Some(&self.namespace)
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn uid(&self) -> Uid {
        self.uid
    }

    fn version(&self) -> Version {
        self.version
    }
}

/// By what gateways find a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingIndex {
    /// The sandbox id, exact.
    Id,
}

impl Indexes<Route> for RoutingIndex {
    const ALL: &'static [Self] = &[Self::Id];

    fn terms<'v>(self, value: &'v Route, emit: &mut dyn FnMut(Term<'v>)) {
        match self {
            Self::Id => {
                let id = value.id.as_ref().map(|id| id.as_str().into());
                id.into_iter().for_each(emit);
            }
        }
    }
}
