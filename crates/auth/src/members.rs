//! The quotas of a team, as a plugin that pools, declarative claims and the resource API ask.
//!
//! A request to the E2B API reserves by itself, with the key it came with. A declarative claim and
//! a sandbox that is applied have no key: here their team's quotas decide, by the same ledger and
//! with the same reservations, so that of two who ask for the last one only one gets it. One that is
//! changed or woken counts for whom it was made. Where several processes make sandboxes, each by its
//! own ledger, the one that starts them lets in the oldest, as many as there may be.
//!
//! A member that waits in a pool has no owner and counts for nobody yet. But one that its team could
//! not claim is made for nothing: so no more of them are made than the team may still have.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cache::PoolCache;
use model::{Name, Namespace, Version, sandbox::Owner};
use plugins::{Admission, Creation, Hold, Plugin, Purpose};

use crate::{Keys, Ledger, Reservation, quota::Account};

/// When it is worth asking again: something may have ended by then.
const RETRY: Duration = Duration::from_secs(5);

/// The quotas of teams.
#[derive(Debug)]
pub struct TeamQuota {
    keys: Keys,
    ledger: Arc<Ledger>,
    pools: PoolCache,
}

impl TeamQuota {
    /// Over this ledger.
    #[must_use]
    pub const fn new(keys: Keys, ledger: Arc<Ledger>, pools: PoolCache) -> Self {
        Self {
            keys,
            ledger,
            pools,
        }
    }

    fn pools_of(&self, team: &Namespace) -> Vec<Name> {
        let all = self.pools.find_all();
        let own = all
            .iter()
            .filter(|pool| pool.metadata.namespace.as_ref() == Some(team));
        own.map(|pool| pool.metadata.name.clone()).collect()
    }

    fn members(&self, account: &Account, wanted: &Creation<'_>) -> Admission {
        let pools = self.pools_of(wanted.team);
        let (room, exceeded) = self.ledger.room(account, wanted.spec, &pools, wanted.count);
        match exceeded {
            Some(exceeded) => Admission::some(room, exceeded.to_string(), RETRY),
            None => Admission::all(wanted),
        }
    }

    fn in_turn(&self, account: &Account, wanted: &Creation<'_>) -> Admission {
        let over = |id| self.ledger.in_turn(account, id).err();
        match wanted.ids.iter().find_map(over) {
            Some(exceeded) => Admission::some(0, exceeded.to_string(), RETRY),
            None => Admission::all(wanted),
        }
    }

    fn reserve(&self, account: &Account, wanted: &Creation<'_>) -> Admission {
        let mut answer = Admission::all(wanted);
        for id in wanted.ids {
            let reserved = match wanted.purpose {
                Purpose::Woken => self.ledger.wake(account, id, wanted.spec),
                _ => self.ledger.reserve(account, id, wanted.spec),
            };
            match reserved {
                Ok(reserved) => answer.holds.push(Box::new(Reserved(reserved))),
                Err(exceeded) => {
                    answer.admitted = u32::try_from(answer.holds.len()).unwrap_or(u32::MAX);
                    answer.why = exceeded.to_string().into();
                    answer.retry_after = RETRY;
                    break;
                }
            }
        }
        answer
    }
}

#[async_trait]
impl Plugin for TeamQuota {
    fn name(&self) -> &'static str {
        "team-quota"
    }

    async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
        let key = match wanted.purpose {
            Purpose::Changed | Purpose::Promised | Purpose::Woken => wanted.spec.owner.as_ref(),
            _ => None,
        };
        let owner = Owner {
            team: wanted.team.clone(),
            user: None,
            key: key.and_then(|owner| owner.key.clone()),
        };
        // A namespace that is no team's has no quotas.
        let Some(account) = self.keys.find_account(&owner) else {
            return Admission::all(wanted);
        };
        if account.is_unlimited() {
            return Admission::all(wanted);
        }
        match wanted.purpose {
            Purpose::Member { .. } => self.members(&account, wanted),
            Purpose::Claim { .. } | Purpose::Applied | Purpose::Changed | Purpose::Woken => {
                self.reserve(&account, wanted)
            }
            Purpose::Promised => self.in_turn(&account, wanted),
            Purpose::Request => Admission::all(wanted),
        }
    }
}

/// What the ledger holds for a sandbox that is about to be its owner's.
#[derive(Debug)]
struct Reserved(Reservation);

impl Hold for Reserved {
    fn written(self: Box<Self>, version: Version) {
        self.0.written(version);
    }
}
