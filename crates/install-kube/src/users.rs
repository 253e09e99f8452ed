//! Who may reach the API and the gateways, as the policy `dormouse-users` says.

use std::{collections::BTreeMap, net::IpAddr, str::FromStr};

use model::validate::{is_label_key, is_label_value};
use serde_json::{Value, json};

/// Where users come from. Nothing named is everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Blocks of addresses.
    pub blocks: Vec<Block>,
    /// Namespaces, each by all of these labels.
    pub namespaces: Vec<Labels>,
}

/// A block of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block(String);

/// Labels that a namespace has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

/// What names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsersError {
    /// It is no block.
    #[error("`{0}` is not a block of addresses, as 10.0.0.0/8 or fd00::/8")]
    NoBlock(String),
    /// It is an address within a block.
    #[error("`{0}` has bits behind its prefix: write the first address of the block")]
    WithinBlock(String),
    /// They are no labels.
    #[error("`{0}` is not a label of a namespace, as app=web, or several as app=web,tier=edge")]
    NoLabels(String),
}

impl FromStr for Block {
    type Err = UsersError;

    fn from_str(text: &str) -> Result<Self, UsersError> {
        let none = || UsersError::NoBlock(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(none)?;
        let is_number = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u32 = prefix.parse().ok().filter(|_| is_number).ok_or_else(none)?;
        // What is behind the prefix, shifted to the front.
        let behind = match address.parse().map_err(|_| none())? {
            IpAddr::V4(_) if prefix > 32 => return Err(none()),
            IpAddr::V6(_) if prefix > 128 => return Err(none()),
            IpAddr::V4(v4) => u128::from(v4.to_bits().checked_shl(prefix).unwrap_or(0)),
            IpAddr::V6(v6) => v6.to_bits().checked_shl(prefix).unwrap_or(0),
        };
        match behind {
            0 => Ok(Self(text.to_owned())),
            _ => Err(UsersError::WithinBlock(text.to_owned())),
        }
    }
}

impl FromStr for Labels {
    type Err = UsersError;

    fn from_str(text: &str) -> Result<Self, UsersError> {
        let label = |pair: &str| {
            let (key, value) = pair.split_once('=')?;
            let fits = is_label_key(key) && is_label_value(value);
            fits.then(|| (key.to_owned(), value.to_owned()))
        };
        let labels: Option<_> = text.split(',').map(label).collect();
        let labels = labels.map(Self);
        labels.ok_or_else(|| UsersError::NoLabels(text.to_owned()))
    }
}

impl Users {
    /// The same as peers of a NetworkPolicy; nothing for everybody.
    pub(crate) fn peers(&self) -> Value {
        let blocks = self
            .blocks
            .iter()
            .map(|Block(cidr)| json!({"ipBlock": {"cidr": cidr}}));
        let namespaces = self
            .namespaces
            .iter()
            .map(|Labels(labels)| json!({"namespaceSelector": {"matchLabels": labels}}));
        let peers: Vec<Value> = blocks.chain(namespaces).collect();
        match peers.is_empty() {
            true => Value::Null,
            false => peers.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_begins_with_its_first_address() {
        for good in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "192.0.2.7/32",
            "fd00::/8",
            "::1/128",
        ] {
            assert!(good.parse::<Block>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "fd00::/129",
            "a/8",
        ] {
            let refused = UsersError::NoBlock(bad.to_owned());
            assert_eq!(bad.parse::<Block>(), Err(refused));
        }
        for bad in ["10.0.0.1/8", "fd00::1/8", "0.0.0.1/0"] {
            let refused = UsersError::WithinBlock(bad.to_owned());
            assert_eq!(bad.parse::<Block>(), Err(refused));
        }
    }

    #[test]
    fn a_namespace_is_named_by_labels() {
        for good in [
            "app=web",
            "kubernetes.io/metadata.name=ingress,tier=",
            "a=b,c=d",
        ] {
            assert!(good.parse::<Labels>().is_ok(), "{good}");
        }
        for bad in ["", "app", "app=a b", "app=web,", "=web"] {
            let refused = UsersError::NoLabels(bad.to_owned());
            assert_eq!(bad.parse::<Labels>(), Err(refused));
        }
    }
}
