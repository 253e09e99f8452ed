//! Which collection, namespace and object a path names.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use model::{
    Key, Name, Namespace,
    kinds::{self, KindInfo, Scope},
};

use crate::{refusal::Refusal, resource_api::Api, served::Served};

/// What a path names.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) served: Served,
    pub(crate) namespace: Option<Namespace>,
    /// As it stands in the path: it may be no valid name, and is then not found.
    pub(crate) name: Option<String>,
}

impl FromRequestParts<Api> for Place {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refusal> {
        let params = RawPathParams::from_request_parts(parts, api)
            .await
            .map_err(|_| Refusal::no_such_path())?;
        let get = |wanted: &str| {
            params
                .iter()
                .find(|(key, _)| *key == wanted)
                .map(|(_, v)| v)
        };
        let plural = get("plural").unwrap_or_default();
        let served = if parts.uri.path().starts_with("/api/") {
            (plural == "events").then_some(Served::Events)
        } else {
            kinds::find_plural(plural).map(Served::Kind)
        };
        let served = served.ok_or_else(Refusal::no_such_path)?;
        let namespace = get("namespace")
            .map(|text| {
                Namespace::new(text)
                    .map_err(|e| Refusal::invalid_option("metadata.namespace", e.to_string()))
            })
            .transpose()?;
        let place = Self {
            served,
            namespace,
            name: get("name").map(str::to_owned),
        };
        let fits = match (place.served.scope(), &place.namespace, &place.name) {
            (Scope::Cluster, namespace, _) => namespace.is_none(),
            // Across namespaces there are lists, but no single objects.
            (Scope::Namespaced, None, name) => name.is_none(),
            (Scope::Namespaced, Some(_), _) => true,
        };
        if fits {
            Ok(place)
        } else {
            Err(Refusal::no_such_path())
        }
    }
}

impl Place {
    /// The kind, where its objects can be written here.
    pub(crate) fn writable(&self) -> Result<&'static KindInfo, Refusal> {
        self.deletable()?;
        match self.served {
            Served::Kind(info) => Ok(info),
            Served::Events | Served::Foreign(_) => Err(Refusal::method_not_allowed()),
        }
    }

    /// Whether there are objects here that clients can write.
    pub(crate) fn deletable(&self) -> Result<(), Refusal> {
        match (self.served, self.served.scope(), &self.namespace) {
            (Served::Events, _, _) | (_, Scope::Namespaced, None) => {
                Err(Refusal::method_not_allowed())
            }
            (Served::Kind(_) | Served::Foreign(_), Scope::Cluster, _)
            | (Served::Kind(_) | Served::Foreign(_), Scope::Namespaced, Some(_)) => Ok(()),
        }
    }

    /// The key of the object that the path names. A name that cannot be is one that is not there.
    pub(crate) fn key(&self) -> Result<Key, Refusal> {
        let text = self.name.as_deref().unwrap_or_default();
        let name = match self.served {
            Served::Foreign(_) => Name::foreign(text),
            Served::Kind(_) | Served::Events => Name::new(text),
        }
        .map_err(|_| Refusal::not_found(self.served.about(text)))?;
        Ok(Key {
            kind: self.served.kind(),
            namespace: self.namespace.clone(),
            name,
        })
    }
}
