//! What a writer says to a table.
//!
//! On the wire a message is one flat object, the same for both kinds; a delete is a message in
//! state `Dead`. Peers may run another build, so decoding ignores fields it does not know, closes
//! gates it cannot read, and turns whatever lacks the essentials into [`Message::Unreadable`],
//! which the table counts: one place decides and counts what is invalid.

use std::sync::Arc;

use model::{Epoch, Name, Namespace, SandboxId, Uid, Version};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
    ser::{Error as _, SerializeStruct},
};

use crate::{
    outcome::Invalid,
    route::{Address, Gate, Route, State, bounded, keep},
};

/// Who speaks. The merge rules are the same for both, but for a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Writer {
    /// A peer that saw a change first. It may run an older build and know fewer fields, so at
    /// the same version it yields to the own watch.
    Peer,
    /// This process's own watch of the store, which sees every change.
    Watch,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The key has this route. One whose state is not kept is a delete at its version.
    Upsert(Arc<Route>),
    /// The key has no route.
    Delete(Deletion),
    /// What arrived lacks something essential.
    Unreadable(Invalid),
}

/// A key had no route at this version.
///
/// It names no uid: versions are one sequence for the whole store, so a namesake created later
/// has a newer version and is not touched, and one created earlier was deleted before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// With the name, the key.
    pub namespace: Namespace,
    /// With the namespace, the key.
    pub name: Name,
    /// When it was gone.
    pub version: Version,
}

/// Everything the store held at one version: the answer to a list.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The version of the list.
    pub version: Version,
    /// Every route there is. One newer than the list is taken as a delta.
    pub routes: Vec<Arc<Route>>,
}

impl From<Route> for Message {
    fn from(route: Route) -> Self {
        Self::Upsert(Arc::new(route))
    }
}

impl Serialize for Message {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Upsert(route) => route.serialize(s),
            Self::Delete(deletion) => {
                let mut fields = s.serialize_struct("Message", 4)?;
                fields.serialize_field("version", &deletion.version)?;
                fields.serialize_field("namespace", &deletion.namespace)?;
                fields.serialize_field("name", &deletion.name)?;
                fields.serialize_field("state", &State::Dead)?;
                fields.end()
            }
            Self::Unreadable(_) => Err(S::Error::custom("an unreadable message is not passed on")),
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Wire::deserialize(d)?
            .read()
            .unwrap_or_else(Self::Unreadable))
    }
}

/// A value, or something in its place that this build cannot read.
#[derive(Deserialize)]
#[serde(untagged, bound = "T: DeserializeOwned")]
enum Field<T> {
    Read(T),
    Other(IgnoredAny),
}

impl<T> Field<T> {
    fn read(self) -> Option<T> {
        match self {
            Self::Read(value) => Some(value),
            Self::Other(IgnoredAny) => None,
        }
    }
}

fn readable<T>(field: Option<Field<T>>) -> Option<T> {
    field.and_then(Field::read)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    version: Option<Field<Version>>,
    epoch: Option<Field<Epoch>>,
    uid: Option<Field<Uid>>,
    namespace: Option<Field<Namespace>>,
    name: Option<Field<Name>>,
    id: Option<Field<SandboxId>>,
    state: Option<Field<State>>,
    address: Option<Field<Address>>,
    wake_on_traffic: Option<Field<bool>>,
    is_closing: Option<Field<bool>>,
    agent: Option<Field<Gate>>,
    traffic: Option<Field<Gate>>,
    owner: Option<Field<Namespace>>,
    mask_host: Option<Field<Box<str>>>,
}

impl Wire {
    fn read(self) -> Result<Message, Invalid> {
        let version = readable(self.version).ok_or(Invalid::NoVersion)?;
        let state = readable(self.state).ok_or(Invalid::NoState)?;
        let namespace = readable(self.namespace).ok_or(Invalid::Incomplete)?;
        let name = readable(self.name).ok_or(Invalid::Incomplete)?;
        if !keep(state) {
            return Ok(Message::Delete(Deletion {
                namespace,
                name,
                version,
            }));
        }
        // An id or owner may be absent, but one that is there and unreadable is not the same.
        let id = self
            .id
            .map(|f| f.read().ok_or(Invalid::Incomplete))
            .transpose()?;
        let owner = self
            .owner
            .map(|f| f.read().ok_or(Invalid::Incomplete))
            .transpose()?;
        let traffic = readable(self.traffic).unwrap_or_default();
        let (mask_host, traffic) = bounded(readable(self.mask_host), traffic);
        Ok(Message::from(Route {
            version,
            epoch: readable(self.epoch).ok_or(Invalid::Incomplete)?,
            uid: readable(self.uid).ok_or(Invalid::Incomplete)?,
            namespace,
            name,
            id,
            state,
            // What cannot be read cannot be dialled, does not wake, and is closed.
            address: readable(self.address),
            wake_on_traffic: readable(self.wake_on_traffic).unwrap_or(false),
            is_closing: readable(self.is_closing).unwrap_or(false),
            agent: readable(self.agent).unwrap_or_default(),
            traffic,
            owner,
            mask_host,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{route::TokenHash, tests::route};

    fn decode(value: Value) -> Message {
        serde_json::from_value(value).unwrap()
    }

    fn encoded() -> Value {
        let mut route = route("team-a", "box", 7);
        route.agent = Gate::Token(TokenHash([9; 32]));
        route.address = Some(Address::Pod([10, 0, 0, 7].into()));
        route.mask_host = Some("localhost:${PORT}".into());
        serde_json::to_value(Message::from(route)).unwrap()
    }

    fn without(field: &str) -> Value {
        let mut value = encoded();
        value.as_object_mut().unwrap().remove(field).unwrap();
        value
    }

    fn with(field: &str, to: Value) -> Value {
        let mut value = encoded();
        value[field] = to;
        value
    }

    #[test]
    fn a_message_round_trips() {
        let value = encoded();
        let message = decode(value.clone());
        assert!(matches!(message, Message::Upsert(_)));
        assert_eq!(serde_json::to_value(&message).unwrap(), value);

        let delete = Message::Delete(Deletion {
            namespace: Namespace::new("team-a").unwrap(),
            name: Name::new("box").unwrap(),
            version: Version::from_u64(8),
        });
        assert_eq!(decode(serde_json::to_value(&delete).unwrap()), delete);
    }

    #[test]
    fn fields_of_a_newer_build_are_ignored() {
        assert_eq!(
            decode(with("colour", json!({"of": "the sky"}))),
            decode(encoded())
        );
    }

    #[test]
    fn a_message_without_version_or_known_state_is_unreadable() {
        for bad in [
            without("version"),
            with("version", json!("soon")),
            with("version", json!(null)),
        ] {
            assert_eq!(decode(bad), Message::Unreadable(Invalid::NoVersion));
        }
        let states = [
            json!("Hibernating"),
            json!({"deep": "sleep"}),
            json!(null),
            json!(3),
        ];
        for bad in states
            .into_iter()
            .map(|s| with("state", s))
            .chain([without("state")])
        {
            assert_eq!(decode(bad), Message::Unreadable(Invalid::NoState));
        }
    }

    #[test]
    fn a_message_without_identity_is_unreadable() {
        for field in ["namespace", "name", "uid", "epoch"] {
            assert_eq!(
                decode(without(field)),
                Message::Unreadable(Invalid::Incomplete),
                "{field}"
            );
        }
        assert_eq!(
            decode(with("id", json!("NOT AN ID"))),
            Message::Unreadable(Invalid::Incomplete)
        );
        assert_eq!(
            decode(with("owner", json!(1))),
            Message::Unreadable(Invalid::Incomplete)
        );
    }

    #[test]
    fn gates_and_addresses_that_cannot_be_read_are_closed() {
        let mut value = with("agent", json!({"passkey": "later"}));
        value["traffic"] = json!(null);
        value["address"] = json!({"vsock": 3});
        let Message::Upsert(route) = decode(value) else {
            panic!("readable")
        };
        assert_eq!(
            (route.agent, route.traffic, route.address),
            (Gate::Closed, Gate::Closed, None)
        );
    }

    #[test]
    fn a_mask_that_is_too_long_is_none_and_closes_what_it_masks() {
        let longest = "a".repeat(crate::route::LONGEST_MASK);
        let Message::Upsert(route) = decode(with("maskHost", json!(longest))) else {
            panic!("readable")
        };
        assert_eq!(route.mask_host.as_deref(), Some(longest.as_str()));
        assert_eq!(route.traffic, Gate::Open);
        let Message::Upsert(route) = decode(with("maskHost", json!(longest + "a"))) else {
            panic!("readable")
        };
        assert_eq!((&route.mask_host, route.traffic), (&None, Gate::Closed));
    }

    #[test]
    fn an_absent_id_is_a_member_without_owner() {
        for absent in [without("id"), with("id", json!(null))] {
            let Message::Upsert(route) = decode(absent) else {
                panic!("readable")
            };
            assert_eq!(route.id, None);
        }
    }
}
