//! Where a list that was cut short goes on.
//!
//! Pages follow the order of namespace and name, so that however much changes between two of them,
//! none shows an object twice and none skips one that was there all along.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use model::{Name, Namespace, Version};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use store::Record;

use crate::{params::Params, place::Place, refusal::Refusal, served::Served};

/// Where a page begins.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The version of the first page.
    pub(crate) version: Version,
    /// After this namespace
    pub(crate) namespace: Option<Namespace>,
    /// and name.
    pub(crate) name: Name,
}

#[derive(Serialize, Deserialize)]
struct Token {
    #[serde(rename = "v")]
    version: Version,
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Namespace>,
    #[serde(rename = "n")]
    name: String,
    /// Which list this continues: a token of another would skip without anybody noticing.
    #[serde(rename = "of")]
    list: String,
}

impl Page {
    /// The page after this record.
    pub(crate) fn after(record: &Record, version: Version) -> Self {
        Self {
            version,
            namespace: record.meta.namespace.clone(),
            name: record.meta.name.clone(),
        }
    }

    pub(crate) fn to_token(&self, place: &Place, params: &Params) -> String {
        let token = Token {
            version: self.version,
            namespace: self.namespace.clone(),
            name: self.name.to_string(),
            list: fingerprint(place, params),
        };
        // Strings and numbers only: this cannot fail to be JSON.
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    pub(crate) fn parse(token: &str, place: &Place, params: &Params) -> Result<Self, Refusal> {
        let unknown = || match place.served {
            Served::Foreign(_) => Refusal::bad_request("invalid continue token"),
            Served::Kind(_) | Served::Events => Self::refuse("it is not a token of this server"),
        };
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|_| unknown())?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| unknown())?;
        if token.list != fingerprint(place, params) {
            return Err(Self::refuse("it belongs to another list"));
        }
        let name = Name::foreign(&token.name).map_err(|_| unknown())?;
        Ok(Self {
            version: token.version,
            namespace: token.namespace,
            name,
        })
    }

    pub(crate) fn refuse(why: &str) -> Refusal {
        Refusal::expired(format!(
            "The provided continue parameter cannot be used: {why}: start the list again without it"
        ))
    }
}

fn fingerprint(place: &Place, params: &Params) -> String {
    let mut hash = Sha256::new();
    let parts = [
        place.served.kind().0,
        place.namespace.as_ref().map_or("", Namespace::as_str),
        params.get("labelSelector").unwrap_or_default(),
        params.get("fieldSelector").unwrap_or_default(),
    ];
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    BASE64_URL_SAFE_NO_PAD.encode(&hash.finalize()[..12])
}
