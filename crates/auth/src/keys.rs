//! Who is calling: a key looked up by its hash, in memory.
//!
//! A key opens what its team has, as long as both records are there. Deleting the record of a key
//! revokes it; deleting the record of a team shuts all its keys out. Both count from the moment the
//! caches have seen them, and the calls that do it wait for that: see [`crate::settled`].

use std::sync::Arc;

use cache::{ApiKeyCache, ApiKeyIndex, Cache, Options, StartError, TeamCache};
use kit::{Entropy, Tasks};
use model::{
    ApiKey, Key, KindName, Name, Namespace, Spec as _, Team,
    api_key::ApiKeySpec,
    sandbox::Owner,
    team::{Limits, Quotas, TeamSpec},
};
use store::Store;
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::time::Instant;

use crate::{audit::Actor, key, quota::Account, settled::Settled};

/// Whoever showed a key that is in force, or an administrator who acts for a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The team, and the namespace of all it may see.
    pub team: Namespace,
    /// The key, by the name of its record; an administrator has none.
    pub key: Option<Name>,
    /// The person who uses the key.
    pub user: Option<Box<str>>,
    /// The most the team may have.
    pub team_quotas: Quotas,
    /// The most that may be had with this key.
    pub key_quotas: Quotas,
    /// Bounds on each sandbox.
    pub limits: Limits,
}

impl Caller {
    /// Whose a sandbox is that this caller makes.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner {
            team: self.team.clone(),
            user: self.user.clone(),
            key: self.key.clone(),
        }
    }

    /// Whether this caller may make, rename and revoke the keys of its team. One that is limited
    /// itself may not: with a new key it would be free of its limits.
    #[must_use]
    pub fn may_manage_keys(&self) -> bool {
        self.key_quotas == Quotas::default()
    }

    /// What counts against this caller's quotas.
    #[must_use]
    pub fn account(&self) -> Account {
        Account {
            team: self.team.clone(),
            key: self.key.clone(),
            team_quotas: self.team_quotas,
            key_quotas: self.key_quotas,
        }
    }

    /// Who this is to the audit log.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor {
            team: Some(self.team.clone()),
            key: self.key.clone(),
            user: self.user.clone(),
        }
    }
}

/// Why somebody is not let in. What was shown is not in here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    /// It is not a key.
    #[error("what was shown is not an API key")]
    Malformed,
    /// Nobody has this key, or nobody has it any more.
    #[error("the API key is unknown or was revoked")]
    Unknown,
    /// Its team is not there.
    #[error("the API key belongs to a team that does not exist")]
    NoTeam,
    /// Nobody can tell now.
    #[error("API keys cannot be checked now")]
    NotReady,
}

impl Denied {
    /// Whether the same key may be let in later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::NotReady => true,
            Self::Malformed | Self::Unknown | Self::NoTeam => false,
        }
    }

    /// What the caller may know. Which of the reasons it is, is nobody's business.
    #[must_use]
    pub const fn public(self) -> &'static str {
        match self {
            Self::NotReady => "API keys cannot be checked now: try again",
            Self::Malformed | Self::Unknown | Self::NoTeam => "Invalid API key",
        }
    }
}

/// The keys that are in force. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    pub(crate) keys: ApiKeyCache,
    pub(crate) teams: TeamCache,
    pub(crate) store: Arc<Settled>,
    pub(crate) entropy: Arc<Entropy>,
}

impl Keys {
    /// Reads all keys and teams, and from then on follows them.
    ///
    /// # Errors
    /// If they cannot be read before the deadline.
    pub async fn start(
        store: Arc<dyn Store>,
        entropy: Arc<Entropy>,
        deadline: Instant,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        let options = Options::new(Arc::clone(&entropy));
        let keys: ApiKeyCache =
            Cache::start(Arc::clone(&store), options.clone(), deadline, tasks).await?;
        let teams: TeamCache = Cache::start(Arc::clone(&store), options, deadline, tasks).await?;
        Ok(Self {
            store: Arc::new(Settled::new(store, keys.clone(), teams.clone())),
            keys,
            teams,
            entropy,
        })
    }

    /// The store, with writes of keys and teams that answer once they are in force here. What
    /// serves the records of keys to administrators must write through this one.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// Whether keys can be checked.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.keys.is_ready() && self.teams.is_ready()
    }

    /// Who shows this key. Looks in memory only.
    ///
    /// # Errors
    /// If nobody with this key is let in.
    pub fn authenticate(&self, presented: &str) -> Result<Caller, Denied> {
        // A cache that stopped would let in who was revoked since.
        if !self.is_ready() {
            return Err(Denied::NotReady);
        }
        if !key::is_key(presented) {
            return Err(Denied::Malformed);
        }
        let hash = key::hash(presented);
        let found = self.keys.find_by(ApiKeyIndex::Hash, hash.as_str());
        // Two records of one hash leave open whose it is, and can only be made by hand.
        let [key] = found.as_slice() else {
            return Err(Denied::Unknown);
        };
        let stored = key.spec.hash.as_str().as_bytes();
        let is_same: bool = stored.ct_eq(hash.as_str().as_bytes()).into();
        if !is_same || key.metadata.is_deleting() {
            return Err(Denied::Unknown);
        }
        let namespace = key.metadata.namespace.as_ref().ok_or(Denied::NoTeam)?;
        let team = self.find_team(namespace).ok_or(Denied::NoTeam)?;
        Ok(caller(key, namespace, &team))
    }

    /// An administrator who acts for a team: its quotas and limits hold, those of no key. That the
    /// caller is an administrator is for whoever asks to know.
    ///
    /// # Errors
    /// If there is no such team, or nobody can tell now.
    pub fn on_behalf_of(&self, team: &Namespace) -> Result<Caller, Denied> {
        if !self.is_ready() {
            return Err(Denied::NotReady);
        }
        let found = self.find_team(team).ok_or(Denied::NoTeam)?;
        Ok(Caller {
            team: team.clone(),
            key: None,
            user: None,
            team_quotas: found.spec.quotas,
            key_quotas: Quotas::default(),
            limits: found.spec.limits,
        })
    }

    /// Against whose quotas a sandbox of this owner counts when it wakes, whoever wakes it. `None`
    /// if the team is gone. A key that is gone limits nothing any more; its team still does.
    #[must_use]
    pub fn find_account(&self, owner: &Owner) -> Option<Account> {
        let team = self.find_team(&owner.team)?;
        let key = owner.key.as_ref().and_then(|name| {
            let at = Key::namespaced(ApiKeySpec::KIND, owner.team.clone(), name.clone());
            self.keys.find(&at)
        });
        Some(Account {
            team: owner.team.clone(),
            key: owner.key.clone(),
            team_quotas: team.spec.quotas,
            key_quotas: key.map(|key| key.spec.quotas).unwrap_or_default(),
        })
    }

    /// The team of this namespace, unless it is gone or going.
    #[must_use]
    pub fn find_team(&self, namespace: &Namespace) -> Option<Arc<Team>> {
        let team = self.teams.find(&team_key(namespace)?)?;
        (!team.metadata.is_deleting()).then_some(team)
    }
}

fn caller(key: &ApiKey, namespace: &Namespace, team: &Team) -> Caller {
    Caller {
        team: namespace.clone(),
        key: Some(key.metadata.name.clone()),
        user: key.spec.user.clone(),
        team_quotas: team.spec.quotas,
        key_quotas: key.spec.quotas,
        limits: team.spec.limits,
    }
}

/// Where the record of a team is.
pub(crate) fn team_key(namespace: &Namespace) -> Option<Key> {
    const KIND: KindName = TeamSpec::KIND;
    Some(Key {
        kind: KIND,
        namespace: None,
        // Both are DNS labels, so this is always one.
        name: Name::new(namespace.as_str()).ok()?,
    })
}
