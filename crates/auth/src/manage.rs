//! Making, listing, renaming and revoking the keys of a team, and the first key of an installation.
//!
//! Every function names the team, and looks for a key nowhere else: a key of another team is not
//! found, like one that does not exist. Each returns once what it did is in force.

use kit::Entropy;
use model::{
    ApiKey, Key, Metadata, Name, Namespace, Object, Spec as _, Team, Timestamp,
    api_key::{ApiKeySpec, KEY_DIGITS, KEY_PREFIX},
    team::TeamSpec,
    validate::{Problem, Problems, Rules as _},
    workload::Secret,
};
use serde::{Serialize, Serializer};
use store::{Precondition, Query, Store, StoreError, StoreExt as _};
use thiserror::Error;

use crate::{
    Keys,
    key::{self, NewKey},
    keys::team_key,
};

/// The most keys of one team. Whoever has one can make more.
pub const MAX_KEYS: usize = 1000;

/// How often a change is made again because another writer was first.
const ATTEMPTS: u32 = 5;

/// The team and the key that a first start makes.
pub const FIRST_TEAM: &str = "default";
const FIRST_KEY: &str = "first";

/// Why a key could not be made, changed or revoked.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The team has no such key.
    #[error("the team has no API key {0}")]
    NotFound(Box<str>),
    /// There is no such team.
    #[error("there is no team {0}: create one first")]
    NoTeam(Namespace),
    /// What is asked breaks a rule.
    #[error("{0}")]
    Invalid(Problem),
    /// The team has as many keys as a team may have.
    #[error("the team has {MAX_KEYS} API keys already: revoke one first")]
    TooMany,
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl KeysError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::NotFound(_) | Self::NoTeam(_) | Self::Invalid(_) | Self::TooMany => false,
            Self::Store(error) => error.is_retryable(),
        }
    }
}

/// What people may know of a key, in the shape that E2B's clients read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyInfo {
    /// By what it is renamed and revoked.
    pub id: Name,
    /// What people call it.
    pub name: Box<str>,
    /// The few characters that tell it from others.
    pub mask: KeyMask,
    /// When it was made.
    pub created_at: Option<Timestamp>,
}

/// A key with most of it left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyMask {
    /// What every key begins with.
    pub prefix: &'static str,
    /// How many characters follow.
    pub value_length: usize,
    /// The first of them.
    pub masked_value_prefix: Box<str>,
    /// The last of them.
    pub masked_value_suffix: Box<str>,
}

impl KeyInfo {
    /// Of a record.
    #[must_use]
    pub fn of(record: &ApiKey) -> Self {
        let spec = &record.spec;
        Self {
            id: record.metadata.name.clone(),
            name: spec.display_name.clone(),
            mask: KeyMask {
                prefix: KEY_PREFIX,
                value_length: KEY_DIGITS,
                masked_value_prefix: spec.mask.first.clone(),
                masked_value_suffix: spec.mask.last.clone(),
            },
            created_at: record.metadata.creation_timestamp,
        }
    }
}

/// A new key, with its text: to be sent to who asked for it and to nobody else. Written as JSON it
/// has the text; printed for a log it has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CreatedKey {
    /// The text.
    #[serde(serialize_with = "reveal")]
    pub key: Secret,
    /// What may be known of it.
    #[serde(flatten)]
    pub info: KeyInfo,
}

fn reveal<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.reveal())
}

impl Keys {
    /// Makes a key of a team.
    ///
    /// # Errors
    /// If there is no such team, the wish breaks a rule, or the store fails.
    pub async fn create(&self, team: &Namespace, wish: NewKey) -> Result<CreatedKey, KeysError> {
        if self.find_team(team).is_none() {
            return Err(KeysError::NoTeam(team.clone()));
        }
        if self.count(team) >= MAX_KEYS {
            return Err(KeysError::TooMany);
        }
        let (record, key) = key::mint(&self.entropy, team.clone(), wish);
        check(&record)?;
        let record = self.store.create_object(&record).await?;
        let info = KeyInfo::of(&record);
        Ok(CreatedKey { key, info })
    }

    /// The keys of a team, oldest first.
    #[must_use]
    pub fn list(&self, team: &Namespace) -> Vec<KeyInfo> {
        let found = self.keys.find_by(cache::ApiKeyIndex::Team, team.as_str());
        let mut all: Vec<KeyInfo> = found
            .iter()
            .filter(|key| !key.metadata.is_deleting())
            .map(|key| KeyInfo::of(key))
            .collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// Calls a key something else.
    ///
    /// # Errors
    /// If the team has no such key, the name breaks a rule, or the store fails.
    pub async fn rename(
        &self,
        team: &Namespace,
        id: &str,
        display_name: &str,
    ) -> Result<KeyInfo, KeysError> {
        let at = place(team, id)?;
        let mut attempt = 1;
        loop {
            let found = self.store.find::<ApiKeySpec>(&at).await?;
            let mut record = found.ok_or_else(|| KeysError::NotFound(id.into()))?;
            record.spec.display_name = display_name.into();
            check(&record)?;
            match self.store.update_spec(&record).await {
                Err(StoreError::Conflict { .. }) if attempt < ATTEMPTS => attempt += 1,
                Err(StoreError::NotFound(_)) => return Err(KeysError::NotFound(id.into())),
                result => return Ok(KeyInfo::of(&result?)),
            }
        }
    }

    /// Revokes a key: once this returns, it is refused.
    ///
    /// # Errors
    /// If the team has no such key, or the store fails.
    pub async fn revoke(&self, team: &Namespace, id: &str) -> Result<(), KeysError> {
        let at = place(team, id)?;
        match self.store.delete(&at, Precondition::default()).await {
            Err(StoreError::NotFound(_)) => Err(KeysError::NotFound(id.into())),
            result => Ok(result.map(|_| ())?),
        }
    }

    fn count(&self, team: &Namespace) -> usize {
        self.keys.count_by(cache::ApiKeyIndex::Team, team.as_str())
    }
}

fn place(team: &Namespace, id: &str) -> Result<Key, KeysError> {
    // What cannot be the name of a record is the name of none.
    let name = Name::new(id).map_err(|_| KeysError::NotFound(id.into()))?;
    Ok(Key::namespaced(ApiKeySpec::KIND, team.clone(), name))
}

fn check(record: &ApiKey) -> Result<(), KeysError> {
    let mut problems = Problems::default();
    ApiKeySpec::check(record, &mut problems);
    match problems.into_vec().into_iter().next() {
        Some(problem) => Err(KeysError::Invalid(problem)),
        None => Ok(()),
    }
}

/// Makes the team `default` and a key for it, at the first start of an installation; the text of
/// the key is for whoever started it, to be shown once. `None` at any later start: the team is
/// there, or somebody has made keys otherwise.
///
/// The team comes last. A start that ended in between is the first one still, and the key that
/// nobody ever saw is made anew.
///
/// # Errors
/// If the store fails.
pub async fn ensure_first_key(
    store: &dyn Store,
    entropy: &Entropy,
) -> Result<Option<Secret>, StoreError> {
    let (Ok(namespace), Ok(name)) = (Namespace::new(FIRST_TEAM), Name::new(FIRST_KEY)) else {
        unreachable!("both are names");
    };
    let Some(at) = team_key(&namespace) else {
        unreachable!("a namespace is a name");
    };
    if store.get(&at).await?.is_some() {
        return Ok(None);
    }
    let first = Key::namespaced(ApiKeySpec::KIND, namespace.clone(), name.clone());
    let mut query = Query::kind(ApiKeySpec::KIND);
    query.limit = Some(2);
    let keys = store.list(&query).await?.records;
    if keys.iter().any(|record| record.key() != first) {
        return Ok(None);
    }
    for unseen in keys {
        let only_if = Precondition {
            uid: Some(unseen.uid()),
            version: Some(unseen.version()),
        };
        store.delete(&first, only_if).await?;
    }
    let wish = NewKey::named("First key");
    let (record, secret) = key::mint_as(entropy, namespace, name, wish);
    store.create_object(&record).await?;
    let team: Team = Object::new(Metadata::new(None, at.name), TeamSpec::default());
    store.create_object(&team).await?;
    Ok(Some(secret))
}
