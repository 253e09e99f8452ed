//! What a sandbox may reach, and who may reach it: from the wire to the record, and the route that
//! replaces it.

use std::{net::IpAddr, sync::Arc};

use model::{
    Sandbox, Version,
    lifecycle::{OperationKind, Traffic, traffic},
    sandbox::{NetworkPolicy, OperationState},
};
use tokio::time::Instant;

use crate::{
    body,
    intent::Decision,
    order,
    refusal::Refusal,
    route::{Answer, Call, nothing},
    service::E2b,
    stamp::stamped,
    wire::{NetworkConfig, NetworkUpdate},
};

const EVERYTHING: &str = "0.0.0.0/0";

/// The policy that a request asks for; none where it asks for nothing special.
pub(crate) fn policy(
    internet: Option<bool>,
    config: Option<NetworkConfig>,
) -> Result<Option<Box<NetworkPolicy>>, Refusal> {
    let config = config.unwrap_or_default();
    for (field, is_asked) in [
        ("network.dnsServers", is_some(&config.dns_servers)),
        ("network.egressProxy", config.egress_proxy.is_some()),
        ("network.httpsPorts", is_some(&config.https_ports)),
        (
            "network.rules",
            config.rules.as_ref().is_some_and(|rules| !rules.is_empty()),
        ),
    ] {
        if is_asked {
            return Err(Refusal::unsupported_field(field));
        }
    }
    let policy = NetworkPolicy {
        internet_access: internet.filter(|allowed| !allowed),
        allow_out: entries(config.allow_out),
        deny_out: entries(config.deny_out),
        allow_public_traffic: config.allow_public_traffic.filter(|allowed| !allowed),
        mask_request_host: config.mask_request_host.map(Into::into),
    };
    check("network.", &policy)?;
    Ok(kept(policy))
}

fn is_some<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|list| !list.is_empty())
}

fn entries(list: Option<Vec<String>>) -> Vec<Box<str>> {
    list.into_iter().flatten().map(Into::into).collect()
}

fn kept(policy: NetworkPolicy) -> Option<Box<NetworkPolicy>> {
    (policy != NetworkPolicy::default()).then(|| Box::new(policy))
}

/// Rules of this protocol, beyond those of the record.
fn check(prefix: &str, policy: &NetworkPolicy) -> Result<(), Refusal> {
    let blocked = policy.internet_access == Some(false)
        || policy.deny_out.iter().any(|entry| &**entry == EVERYTHING);
    for (at, entry) in policy.allow_out.iter().enumerate() {
        let field = format!("{prefix}allowOut[{at}]");
        let address = entry
            .split_once('/')
            .map_or(&**entry, |(address, _)| address);
        match address.parse() {
            Ok(IpAddr::V4(_)) => {}
            Ok(IpAddr::V6(_)) => {
                return Err(Refusal::bad_field(
                    &field,
                    "sandboxes have no IPv6 here: name an IPv4 address or a domain",
                ));
            }
            Err(_) if !blocked => {
                let why = "a domain is allowed only where everything else is denied: add \"0.0.0.0/0\" to denyOut";
                return Err(Refusal::bad_field(&field, why));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// `PUT /sandboxes/{id}/network`: everything about what it may reach, replaced.
pub(crate) async fn update(call: Call) -> Answer {
    let update: NetworkUpdate = body::parse_or_default(&call.body)?;
    for (field, is_asked) in [
        ("dnsServers", is_some(&update.dns_servers)),
        ("egressProxy", update.egress_proxy.is_some()),
        (
            "rules",
            update.rules.as_ref().is_some_and(|rules| !rules.is_empty()),
        ),
    ] {
        if is_asked {
            return Err(Refusal::unsupported_field(field));
        }
    }
    let wanted = NetworkPolicy {
        internet_access: update.allow_internet_access.filter(|allowed| !allowed),
        allow_out: entries(update.allow_out),
        deny_out: entries(update.deny_out),
        ..NetworkPolicy::default()
    };
    check("", &wanted)?;
    let api = Arc::clone(&call.api);
    let work = Arc::clone(&api);
    let version = api
        .outlive(async move { replace(&work, &call, &wanted).await })
        .await?;
    Ok(stamped(nothing(), version))
}

async fn replace(api: &E2b, call: &Call, wanted: &NetworkPolicy) -> Result<Version, Refusal> {
    let id = call.subject();
    let amended = api
        .amend(&call.caller.team, id, |sandbox| {
            match traffic(sandbox) {
                Traffic::Running => {}
                Traffic::Pausing | Traffic::Paused | Traffic::Resuming => {
                    return Err(Refusal::conflict(
                        "the sandbox is paused: connect to it first",
                    ));
                }
                Traffic::Unknown => {
                    return Err(Refusal::unavailable("the sandbox cannot be reached now"));
                }
                Traffic::Creating | Traffic::Idle | Traffic::Dead => {
                    return Err(Refusal::no_sandbox(id));
                }
            }
            let mut next = sandbox.clone();
            let old = next.spec.network.take().unwrap_or_default();
            next.spec.network = kept(NetworkPolicy {
                allow_public_traffic: old.allow_public_traffic,
                mask_request_host: old.mask_request_host,
                ..wanted.clone()
            });
            if next.spec == sandbox.spec {
                return Ok(Decision::Keep);
            }
            order::check(&next)?;
            Ok(Decision::Write(Box::new(next)))
        })
        .await?;
    let generation = amended.sandbox.metadata.generation;
    let deadline = Instant::now() + api.options.operation_timeout;
    let key = amended.sandbox.key();
    let applied = |s: Option<&Sandbox>| match s {
        None => Some(Err(Refusal::no_sandbox(id))),
        Some(s) if s.status.observed_generation >= generation => Some(Ok(s.version())),
        Some(s) => s
            .status
            .last_operation
            .as_ref()
            .filter(|op| op.kind == OperationKind::Network && op.state == OperationState::Failed)
            .map(|op| {
                let why = op.error.as_deref().unwrap_or("it failed");
                Err(Refusal::operation_failed(
                    "given its new network rules",
                    why,
                ))
            }),
    };
    match api
        .until(
            &key,
            &amended.id,
            amended.sandbox.version(),
            deadline,
            applied,
        )
        .await
    {
        Ok(outcome) => {
            let version = outcome?;
            api.followers.have_seen(&key, version).await;
            Ok(version)
        }
        Err(cache::WaitError::DeadlineReached { .. }) => {
            Err(Refusal::took_too_long("given its new network rules"))
        }
        Err(error) => Err(error.into()),
    }
}
