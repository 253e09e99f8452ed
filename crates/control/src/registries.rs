//! Registries that teams name, and that need not answer.
//!
//! The images of a claim are pinned by flights, a few of each team at a time, and once for each
//! claim: it is served what its images were when it was first looked at. Steps that fetch or push
//! wait for a registry in their turn; a team may have only some of the workers wait so, and all teams
//! together leave half of them to others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{Generation, Key, Namespace, StringMap, Uid, template::ImagePullPolicy};
use parking_lot::Mutex;
use runtime::Runtime;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    control::Work,
    flights::{Crew, Flights},
};

/// How many claims of one team ask registries at a time.
const PINS_PER_TEAM: usize = 4;

/// How long a turn rests that may not wait for a registry now.
pub(crate) const REST: Duration = Duration::from_millis(200);

/// Why images could not be pinned.
#[derive(Clone, Debug)]
pub(crate) enum NotPinned {
    /// They cannot be had, in words.
    Never(String),
    /// It is worth another try.
    NotNow,
}

/// Which claim asked, and which of its versions: a namesake is another.
type Asked = (Uid, Generation);

/// The images of claims, each as it can only be one.
#[derive(Debug)]
pub(crate) struct Pins {
    flights: Flights<Asked, Result<StringMap, NotPinned>>,
    known: Mutex<BTreeMap<Key, (Asked, StringMap)>>,
    teams: Mutex<BTreeMap<Namespace, Arc<Semaphore>>>,
}

/// What is to be pinned, of one claim.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a Key,
    pub(crate) team: &'a Namespace,
    pub(crate) asked: Asked,
    pub(crate) images: &'a StringMap,
    pub(crate) pull: ImagePullPolicy,
}

impl Pins {
    pub(crate) fn new(crew: Crew) -> Self {
        Self {
            flights: Flights::new(crew, Work::Claim),
            known: Mutex::default(),
            teams: Mutex::default(),
        }
    }

    /// The images of a claim; none while a registry is asked, which ends in a turn of the claim.
    pub(crate) async fn images(
        &self,
        runtime: &Arc<dyn Runtime>,
        wanted: Wanted<'_>,
        limit: Duration,
    ) -> Option<Result<StringMap, NotPinned>> {
        let Wanted { key, asked, .. } = wanted;
        if wanted.images.is_empty() {
            return Some(Ok(StringMap::new()));
        }
        let known = self.known.lock().get(key).cloned();
        if let Some((_, images)) = known.filter(|(of, _)| *of == asked) {
            return Some(Ok(images));
        }
        let (runtime, images, pull) = (Arc::clone(runtime), wanted.images.clone(), wanted.pull);
        let (team, key_of_call) = (self.team(wanted.team), key.clone());
        let namespace = wanted.team.clone();
        let call = async move {
            let _turn = team.acquire().await.map_err(|_| NotPinned::NotNow)?;
            let mut exact = StringMap::new();
            for (container, image) in images.iter() {
                match timeout(limit, runtime.pin(&namespace, image, pull)).await {
                    Ok(Ok(pinned)) => {
                        exact.insert(container, pinned);
                    }
                    Ok(Err(error)) if !error.is_retryable() => {
                        let why = format!("spec.images.{container}: {image}: {error}");
                        return Err(NotPinned::Never(why));
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(key = %key_of_call, %error, "an image cannot be asked for");
                        return Err(NotPinned::NotNow);
                    }
                    Err(_) => return Err(NotPinned::NotNow),
                }
            }
            Ok(exact)
        };
        let pinned = self.flights.outcome(key, asked, call).await?;
        if let Ok(images) = &pinned {
            let mut known = self.known.lock();
            known.insert(key.clone(), (asked, images.clone()));
        }
        Some(pinned)
    }

    /// Whose turns the calls of a team wait for.
    fn team(&self, team: &Namespace) -> Arc<Semaphore> {
        let mut teams = self.teams.lock();
        teams.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = teams.entry(team.clone());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(PINS_PER_TEAM))))
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.flights.forget(key);
        self.known.lock().remove(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }
}

/// Who waits for a registry in a turn.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Arc<Mutex<BTreeMap<Option<Namespace>, usize>>>);

/// The right to wait for a registry in a turn.
#[derive(Debug)]
pub(crate) struct MayWait {
    of: Waiting,
    team: Option<Namespace>,
}

impl Waiting {
    /// Lets a turn of this team wait, if not too many do.
    pub(crate) fn enter(&self, team: Option<&Namespace>, workers: usize) -> Option<MayWait> {
        let mut waiting = self.0.lock();
        let all: usize = waiting.values().sum();
        let team = team.cloned();
        let own = waiting.get(&team).copied().unwrap_or(0);
        if all >= (workers / 2).max(1) || own >= (workers / 4).max(1) {
            return None;
        }
        waiting.insert(team.clone(), own + 1);
        Some(MayWait {
            of: Self(Arc::clone(&self.0)),
            team,
        })
    }
}

impl Drop for MayWait {
    fn drop(&mut self) {
        let mut waiting = self.of.0.lock();
        match waiting.get_mut(&self.team) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => {
                waiting.remove(&self.team);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_team_waits_with_a_quarter_of_the_workers_and_all_with_half_of_them() {
        let waiting = Waiting::default();
        let team = |name: &str| Namespace::new(name).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(team);
        let mut of_a: Vec<_> = (0..4).map(|_| waiting.enter(Some(&a), 16)).collect();
        assert!(of_a.iter().all(Option::is_some));
        assert!(waiting.enter(Some(&a), 16).is_none());
        let of_b: Vec<_> = (0..4).map(|_| waiting.enter(Some(&b), 16)).collect();
        assert!(of_b.iter().all(Option::is_some));
        assert!(waiting.enter(Some(&c), 16).is_none());
        of_a.pop();
        assert!(waiting.enter(Some(&c), 16).is_some());
        drop((of_a, of_b));
        assert!(waiting.0.lock().is_empty());
        assert!(waiting.enter(None, 1).is_some(), "never nobody at all");
    }
}
