//! What a sandbox may reach, as a NetworkPolicy.
//!
//! The rules are those of one machine: everything public, less what is denied, and whatever is allowed,
//! where allow goes before deny; private networks and other special addresses only where an entry lies
//! wholly within one of them. Names cannot be kept by a NetworkPolicy, so they are refused. Whether a
//! policy is enforced at all is up to the cluster's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::runtime::{Fence, RuntimeError};
use k8s_openapi::{
    api::{
        core::v1::Pod,
        networking::v1::{
            IPBlock, NetworkPolicy as Object, NetworkPolicyEgressRule, NetworkPolicyIngressRule,
            NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use model::{Uid, sandbox::NetworkPolicy};

use crate::{
    create::named,
    error::{code, failed, refused},
    look, names,
    pod::{self, Place, labels},
    runtime::Engine,
};

/// Reached only if named: private networks, link-local and with it the metadata of a cloud, and what
/// no router passes on.
const SPECIAL: [Block; 14] = [
    Block::v4([0, 0, 0, 0], 8),
    Block::v4([10, 0, 0, 0], 8),
    Block::v4([100, 64, 0, 0], 10),
    Block::v4([127, 0, 0, 0], 8),
    Block::v4([169, 254, 0, 0], 16),
    Block::v4([172, 16, 0, 0], 12),
    Block::v4([192, 0, 0, 0], 24),
    Block::v4([192, 168, 0, 0], 16),
    Block::v4([198, 18, 0, 0], 15),
    Block::v4([224, 0, 0, 0], 3),
    Block::v6(Ipv6Addr::LOCALHOST, 128),
    Block::v6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    Block::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    Block::v6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];
const EVERYTHING: [Block; 2] = [
    Block::v4([0, 0, 0, 0], 0),
    Block::v6(Ipv6Addr::UNSPECIFIED, 0),
];
/// The label of the namespace that the cluster's name server is in, and that of its Pods.
const NAME_SERVER: [(&str, &str); 2] = [
    ("kubernetes.io/metadata.name", "kube-system"),
    ("k8s-app", "kube-dns"),
];

/// A block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    ip: IpAddr,
    length: u8,
}

impl Block {
    const fn v4(ip: [u8; 4], length: u8) -> Self {
        let ip = IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]));
        Self { ip, length }
    }

    const fn v6(ip: Ipv6Addr, length: u8) -> Self {
        let ip = IpAddr::V6(ip);
        Self { ip, length }
    }

    /// A block, or a single address.
    fn parse(text: &str) -> Option<Self> {
        let (ip, length) = match text.split_once('/') {
            Some((ip, length)) => (ip, Some(length.parse().ok()?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().ok()?;
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(whole);
        let block = Self { ip, length };
        (length <= whole).then_some(block.trimmed())
    }

    /// The bits of its addresses, at the top of a number.
    const fn bits(self) -> u128 {
        match self.ip {
            IpAddr::V4(ip) => (ip.to_bits() as u128) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn mask(self) -> u128 {
        u128::MAX
            .checked_shl(128 - u32::from(self.length))
            .unwrap_or(0)
    }

    fn trimmed(self) -> Self {
        let bits = self.bits() & self.mask();
        let ip = match self.ip {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        Self { ip, ..self }
    }

    fn contains(self, other: Self) -> bool {
        self.ip.is_ipv4() == other.ip.is_ipv4()
            && self.length <= other.length
            && other.bits() & self.mask() == self.bits()
    }

    fn text(self) -> String {
        format!("{}/{}", self.ip, self.length)
    }

    /// This block, without what lies within it of others.
    fn without(self, others: &[Self]) -> IPBlock {
        let inside = others.iter().filter(|other| self.contains(**other));
        let except: Vec<String> = inside
            .filter(|other| **other != self)
            .map(|other| other.text())
            .collect();
        IPBlock {
            cidr: self.text(),
            except: (!except.is_empty()).then_some(except),
        }
    }
}

/// The NetworkPolicy of a workload.
fn object(
    fence: Fence,
    place: &Place,
    policy: Option<&NetworkPolicy>,
    own: &str,
) -> Result<Object, RuntimeError> {
    Ok(Object {
        metadata: ObjectMeta {
            name: Some(place.name.clone()),
            namespace: Some(place.namespace.clone()),
            labels: Some(labels(fence)),
            annotations: Some([(names::FENCE.to_owned(), pod::rank(fence))].into()),
            owner_references: place.owners(fence),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector([(names::UID, &fence.uid.to_string())])),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![NetworkPolicyPeer {
                    namespace_selector: Some(selector([(NAME_SERVER[0].0, own)])),
                    pod_selector: Some(selector([(names::NAME, names::DORMOUSE)])),
                    ip_block: None,
                }]),
                ports: None,
            }]),
            egress: Some(egress(policy)?),
        }),
    })
}

fn selector<const N: usize>(labels: [(&str, &str); N]) -> LabelSelector {
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    LabelSelector {
        match_labels: Some(labels.into()),
        match_expressions: None,
    }
}

fn egress(policy: Option<&NetworkPolicy>) -> Result<Vec<NetworkPolicyEgressRule>, RuntimeError> {
    let default = NetworkPolicy::default();
    let policy = policy.unwrap_or(&default);
    let parse = |field, entries: &[Box<str>]| -> Result<Vec<Block>, RuntimeError> {
        let blocks = entries.iter().map(|entry| {
            Block::parse(entry).ok_or_else(|| RuntimeError::Impossible {
                field,
                reason: format!(
                    "{entry:?} is no address or block: names cannot be kept by a NetworkPolicy"
                )
                .into(),
            })
        });
        blocks.collect()
    };
    let allowed = parse("network.allowOut", &policy.allow_out)?;
    let denied = parse("network.denyOut", &policy.deny_out)?;
    let is_open = policy.internet_access != Some(false);
    let closed: Vec<Block> = SPECIAL.iter().chain(&denied).copied().collect();
    let everywhere = EVERYTHING.iter().filter(|_| is_open);
    // All of it is denied where an entry says so.
    let everywhere = everywhere.filter(|block| !denied.contains(block));
    let blocks = everywhere
        .map(|block| block.without(&closed))
        .chain(allowed.iter().map(|block| block.without(&SPECIAL)));
    let peers: Vec<_> = blocks
        .map(|block| NetworkPolicyPeer {
            ip_block: Some(block),
            ..NetworkPolicyPeer::default()
        })
        .collect();
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let ports = ["UDP", "TCP"].map(|protocol| NetworkPolicyPort {
        port: Some(IntOrString::Int(53)),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    });
    let names = NetworkPolicyEgressRule {
        to: Some(vec![NetworkPolicyPeer {
            namespace_selector: Some(selector([NAME_SERVER[0]])),
            pod_selector: Some(selector([NAME_SERVER[1]])),
            ip_block: None,
        }]),
        ports: Some(ports.into()),
    };
    let outside = NetworkPolicyEgressRule {
        to: Some(peers),
        ports: None,
    };
    // Who may reach nothing but a few addresses has no question to ask: it would be a way out.
    Ok(match is_open {
        true => vec![outside, names],
        false => vec![outside],
    })
}

/// Whether a NetworkPolicy is that of a workload.
fn is_of(policy: &Object, uid: Uid) -> bool {
    let labels = policy.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(names::UID));
    label.is_some_and(|label| *label == uid.to_string())
}

impl Engine {
    /// Puts in force what a workload may reach, before and while it runs.
    pub(crate) async fn apply_network(
        &self,
        fence: Fence,
        place: &Place,
        policy: Option<&NetworkPolicy>,
    ) -> Result<(), RuntimeError> {
        let mut wanted = object(fence, place, policy, &self.own)?;
        let api = Api::<Object>::namespaced(self.client.clone(), &place.namespace);
        let made = api.create(&PostParams::default(), &wanted).await;
        match made {
            Ok(_) => return Ok(()),
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => return Err(refused("make a NetworkPolicy", &error)),
        }
        let there = api.get(&place.name).await;
        let there = there.map_err(|error| failed("read a NetworkPolicy", &error))?;
        if !is_of(&there, fence.uid) {
            let (namespace, name) = (&place.namespace, &place.name);
            let why = format!("another NetworkPolicy is called {namespace}/{name}");
            return Err(RuntimeError::Failed(why.into()));
        }
        let last = look::rank_of(&there.metadata);
        if last > fence.into() {
            return Err(RuntimeError::Stale(fence));
        }
        if there.spec == wanted.spec && last == fence.into() {
            return Ok(());
        }
        // This one, as it was seen: one that was made anew since has another uid.
        wanted.metadata.uid = there.metadata.uid;
        wanted.metadata.resource_version = there.metadata.resource_version;
        let replaced = api
            .replace(&place.name, &PostParams::default(), &wanted)
            .await;
        match replaced {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => {
                Err(failed("change a NetworkPolicy", &error))
            }
            Err(error) => Err(refused("change a NetworkPolicy", &error)),
        }
    }

    /// Removes the NetworkPolicy of a Pod that is gone, and no other of its name.
    pub(crate) async fn remove_network(&self, uid: Uid, pod: &Pod) -> Result<(), RuntimeError> {
        let (namespace, name) = named(pod);
        let api = Api::<Object>::namespaced(self.client.clone(), namespace);
        let there = api.get_opt(name).await;
        let there = there.map_err(|error| failed("read a NetworkPolicy", &error))?;
        let Some(there) = there.filter(|there| is_of(there, uid)) else {
            return Ok(());
        };
        let this_one = DeleteParams::default().preconditions(Preconditions {
            uid: there.metadata.uid,
            resource_version: there.metadata.resource_version,
        });
        match api.delete(name, &this_one).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Ok(()),
            Err(error) => Err(failed("remove a NetworkPolicy", &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(policy: &NetworkPolicy) -> Vec<(String, usize)> {
        let rules = egress(Some(policy)).unwrap();
        let peers = rules
            .into_iter()
            .flat_map(|rule| rule.to.unwrap_or_default());
        let blocks = peers.filter_map(|peer| peer.ip_block);
        blocks
            .map(|block| (block.cidr, block.except.map_or(0, |all| all.len())))
            .collect()
    }

    fn texts(all: &[&str]) -> Vec<Box<str>> {
        all.iter().map(|&text| text.into()).collect()
    }

    #[test]
    fn everything_public_is_open_and_nothing_else() {
        let open = rules(&NetworkPolicy::default());
        let four = ("0.0.0.0/0".to_owned(), 10);
        assert_eq!(open, [four, ("::/0".to_owned(), 4)]);
        let closed = NetworkPolicy {
            internet_access: Some(false),
            ..NetworkPolicy::default()
        };
        assert_eq!(egress(Some(&closed)).unwrap(), []);
    }

    #[test]
    fn what_is_allowed_is_open_but_for_what_is_special_within_it() {
        let policy = NetworkPolicy {
            internet_access: Some(false),
            allow_out: texts(&["10.1.2.3", "8.0.0.0/6", "2001:db8::/32"]),
            ..NetworkPolicy::default()
        };
        let rows = [("10.1.2.3/32", 0), ("8.0.0.0/6", 1), ("2001:db8::/32", 0)];
        assert_eq!(rules(&policy), rows.map(|(cidr, n)| (cidr.to_owned(), n)));
        assert_eq!(
            egress(Some(&policy)).unwrap().len(),
            1,
            "no names are asked"
        );
    }

    #[test]
    fn what_is_denied_is_left_out() {
        let policy = NetworkPolicy {
            deny_out: texts(&["1.2.3.4", "::/0"]),
            ..NetworkPolicy::default()
        };
        assert_eq!(rules(&policy), [("0.0.0.0/0".to_owned(), 11)]);
    }

    #[test]
    fn names_are_refused_by_name() {
        let policy = NetworkPolicy {
            allow_out: texts(&["*.example.com"]),
            ..NetworkPolicy::default()
        };
        let refused = egress(Some(&policy)).unwrap_err();
        let RuntimeError::Impossible { field, reason } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(*field, "network.allowOut");
        assert!(reason.contains("*.example.com"), "{reason}");
    }
}
