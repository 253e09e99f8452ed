//! Where the processes behind a Service are, as its EndpointSlices say.
//!
//! All of them count, ready or not: one that is about to start is known before it is sent anything,
//! and one that ends is known while it still has somebody inside. While the API server is away the
//! last word holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    pin::pin,
};

use futures_util::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kit::Tasks;
use kube::{
    Api, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{Config, Event, watcher},
    },
};
use tokio::sync::watch;

use crate::Cluster;

/// The label by which slices say of which Service they are.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Where they are; nothing until it is known.
pub type Members = watch::Receiver<Option<BTreeSet<SocketAddr>>>;

impl Cluster {
    /// Follows the endpoints of a Service of the own namespace, at its port of this name, for as long
    /// as `tasks` runs.
    #[must_use]
    pub fn follow_endpoints(&self, service: &str, port: &str, tasks: &Tasks) -> Members {
        let api = Api::namespaced(self.client(), self.namespace());
        follow(api, service, port, tasks)
    }
}

fn follow(api: Api<EndpointSlice>, service: &str, port: &str, tasks: &Tasks) -> Members {
    let (tell, members) = watch::channel(None);
    let of_service = Config::default().labels(&format!("{SERVICE_LABEL}={service}"));
    let (service, port) = (service.to_owned(), port.to_owned());
    let stop = tasks.stopping().clone();
    tasks.spawn(async move {
        let mut slices = BTreeMap::new();
        let mut listing = None;
        let mut events = pin!(watcher(api, of_service).default_backoff());
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                Some(Ok(Event::Init)) => listing = Some(BTreeMap::new()),
                Some(Ok(Event::InitApply(slice) | Event::Apply(slice))) => {
                    let into = listing.as_mut().unwrap_or(&mut slices);
                    into.insert(slice.name_any(), addresses(&slice, &port));
                    if listing.is_some() {
                        continue;
                    }
                }
                Some(Ok(Event::InitDone)) => slices = listing.take().unwrap_or_default(),
                Some(Ok(Event::Delete(slice))) => {
                    slices.remove(&slice.name_any());
                }
                Some(Err(error)) => {
                    tracing::warn!(service, %error, "the endpoints cannot be followed now");
                    continue;
                }
                None => return,
            }
            if listing.is_none() {
                let all: BTreeSet<SocketAddr> = slices.values().flatten().copied().collect();
                let _ = tell.send_if_modified(|known| {
                    let changed = known.as_ref() != Some(&all);
                    *known = Some(all);
                    changed
                });
            }
        }
    });
    members
}

fn addresses(slice: &EndpointSlice, name: &str) -> Vec<SocketAddr> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let named = ports.iter().find(|port| port.name.as_deref() == Some(name));
    let Some(port) = named
        .and_then(|port| port.port)
        .and_then(|port| u16::try_from(port).ok())
    else {
        return Vec::new();
    };
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, port))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_count_whether_or_not_they_are_ready() {
        let slice = json!({
            "addressType": "IPv4", "metadata": {"name": "a"},
            "ports": [{"name": "http", "port": 80}, {"name": "peer", "port": 7945}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "terminating": true}},
                {"addresses": ["not an address"]},
            ],
        });
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap_or_else(|e| panic!("{e}"));
        let found: Vec<String> = addresses(&slice, "peer")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, ["10.0.0.1:7945", "10.0.0.2:7945"]);
        assert_eq!(addresses(&slice, "other"), []);
    }
}
