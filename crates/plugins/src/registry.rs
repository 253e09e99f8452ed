//! All plugins of a server, as those that ask see them.

use std::{future::Future, sync::Arc, time::Duration};

use model::{Sandbox, SandboxPool};
use thiserror::Error;
use tokio::time::timeout;

use crate::{Admission, Creation, Hold, Plugin, Refusal};

/// How long a plugin has to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// However eager a plugin is, nobody asks more often.
const LEAST_RETRY: Duration = Duration::from_secs(1);
/// However patient a plugin is, it is asked again after this.
const MOST_RETRY: Duration = Duration::from_secs(24 * 60 * 60);

/// The plugins of a server, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct Plugins(Arc<[Arc<dyn Plugin>]>);

/// What all plugins together admit.
#[derive(Debug)]
pub struct Admitted {
    /// How many may be made now.
    pub count: u32,
    /// Who admits no more, if not all.
    pub limited: Option<Limited>,
    /// What was set aside, for each of those that may be made.
    pub holds: Vec<Vec<Box<dyn Hold>>>,
}

/// Who admits only some of what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{by}: {why}")]
pub struct Limited {
    /// The plugin.
    pub by: &'static str,
    /// Its words.
    pub why: Box<str>,
    /// When it is worth asking again.
    pub retry_after: Duration,
}

/// A plugin's refusal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{by}: {refusal}")]
pub struct Refused {
    /// The plugin.
    pub by: &'static str,
    /// What it said.
    #[source]
    pub refusal: Refusal,
}

impl Plugins {
    /// These, asked in this order.
    #[must_use]
    pub fn new(all: Vec<Arc<dyn Plugin>>) -> Self {
        Self(all.into())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks how many of these may be made now.
    pub async fn before_create(&self, wanted: &Creation<'_>) -> Admitted {
        let mut all = Admitted {
            count: wanted.count,
            limited: None,
            holds: Vec::new(),
        };
        all.holds
            .resize_with(wanted.count as usize, Default::default);
        for plugin in self.0.iter() {
            let left = Creation {
                count: all.count,
                ids: wanted.ids.get(..all.count as usize).unwrap_or(wanted.ids),
                ..*wanted
            };
            let asked = timeout(PATIENCE, plugin.before_create(&left)).await;
            let answer =
                asked.unwrap_or_else(|_| Admission::some(0, "it does not answer", PATIENCE));
            for (place, hold) in all.holds.iter_mut().zip(answer.holds) {
                place.push(hold);
            }
            if answer.admitted >= all.count {
                continue;
            }
            let patience = all.limited.map_or(LEAST_RETRY, |known| known.retry_after);
            all.limited = Some(Limited {
                by: plugin.name(),
                why: answer.why,
                retry_after: answer.retry_after.min(MOST_RETRY).max(patience),
            });
            all.count = answer.admitted;
            // What was set aside for the others is given back.
            all.holds.truncate(all.count as usize);
            if all.count == 0 {
                break;
            }
        }
        all
    }

    /// Asks whether a pool may be created.
    ///
    /// # Errors
    /// With the first refusal.
    pub async fn before_pool_create(&self, pool: &SandboxPool) -> Result<(), Refused> {
        for plugin in self.0.iter() {
            answered(&**plugin, plugin.before_pool_create(pool)).await?;
        }
        Ok(())
    }

    /// Asks whether a pool may be changed.
    ///
    /// # Errors
    /// With the first refusal.
    pub async fn before_pool_update(
        &self,
        old: &SandboxPool,
        new: &SandboxPool,
    ) -> Result<(), Refused> {
        for plugin in self.0.iter() {
            answered(&**plugin, plugin.before_pool_update(old, new)).await?;
        }
        Ok(())
    }

    /// Asks whether a pool may be deleted.
    ///
    /// # Errors
    /// With the first refusal.
    pub async fn before_pool_delete(&self, pool: &SandboxPool) -> Result<(), Refused> {
        for plugin in self.0.iter() {
            answered(&**plugin, plugin.before_pool_delete(pool)).await?;
        }
        Ok(())
    }

    /// Tells of a sandbox that is ready for its owner.
    pub async fn on_ready(&self, sandbox: &Sandbox) {
        for plugin in self.0.iter() {
            told(&**plugin, plugin.on_ready(sandbox)).await;
        }
    }

    /// Tells of a delivery that is over.
    pub async fn on_release(&self, sandbox: &Sandbox) {
        for plugin in self.0.iter() {
            told(&**plugin, plugin.on_release(sandbox)).await;
        }
    }
}

impl Admitted {
    /// Takes what was set aside for the next one; it is to be told what became of it.
    pub fn next_holds(&mut self) -> Holds {
        match self.holds.is_empty() {
            true => Holds::default(),
            false => Holds(self.holds.remove(0)),
        }
    }
}

/// What was set aside for one sandbox. Dropped, it is given back.
#[derive(Debug, Default)]
#[must_use = "dropped, it is given back"]
pub struct Holds(Vec<Box<dyn Hold>>);

impl Holds {
    /// The sandbox was written, at this version.
    pub fn written(self, version: model::Version) {
        self.0.into_iter().for_each(|hold| hold.written(version));
    }
}

async fn answered(
    plugin: &dyn Plugin,
    asked: impl Future<Output = Result<(), Refusal>>,
) -> Result<(), Refused> {
    let late = || Refusal::NotNow {
        why: "it does not answer".into(),
        retry_after: PATIENCE,
    };
    let answer = timeout(PATIENCE, asked).await;
    answer
        .unwrap_or_else(|_| Err(late()))
        .map_err(|refusal| Refused {
            by: plugin.name(),
            refusal,
        })
}

async fn told(plugin: &dyn Plugin, telling: impl Future<Output = ()>) {
    if timeout(PATIENCE, telling).await.is_err() {
        tracing::warn!(plugin = plugin.name(), "a plugin was not done in time");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use model::{Name, Namespace, Version, sandbox::SandboxSpec};

    use super::*;
    use crate::Purpose;

    #[derive(Debug)]
    struct AtMost {
        name: &'static str,
        most: u32,
        retry: u64,
        held: Arc<AtomicU32>,
    }

    #[derive(Debug)]
    struct Place(Arc<AtomicU32>);

    impl Hold for Place {
        fn written(self: Box<Self>, _: Version) {
            std::mem::forget(self);
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[async_trait]
    impl Plugin for AtMost {
        fn name(&self) -> &'static str {
            self.name
        }

        async fn before_create(&self, wanted: &Creation<'_>) -> Admission {
            let admitted = self.most.min(wanted.count);
            let mut answer = Admission::some(admitted, "full", Duration::from_secs(self.retry));
            for _ in 0..admitted {
                self.held.fetch_add(1, Ordering::Relaxed);
                answer.holds.push(Box::new(Place(Arc::clone(&self.held))));
            }
            answer
        }
    }

    #[derive(Debug)]
    struct Asleep;

    #[async_trait]
    impl Plugin for Asleep {
        fn name(&self) -> &'static str {
            "asleep"
        }

        async fn before_create(&self, _: &Creation<'_>) -> Admission {
            std::future::pending().await
        }

        async fn before_pool_delete(&self, _: &SandboxPool) -> Result<(), Refusal> {
            std::future::pending().await
        }
    }

    async fn ask(plugins: Vec<Arc<dyn Plugin>>, count: u32) -> Admitted {
        let team = Namespace::new("team").unwrap();
        let pool = Name::new("pool").unwrap();
        let wanted = Creation {
            purpose: Purpose::Member { pool: &pool },
            team: &team,
            spec: &SandboxSpec::default(),
            count,
            ids: &[],
        };
        Plugins::new(plugins).before_create(&wanted).await
    }

    fn at_most(name: &'static str, most: u32, retry: u64) -> (Arc<AtMost>, Arc<AtomicU32>) {
        let held = Arc::<AtomicU32>::default();
        let plugin = AtMost {
            name,
            most,
            retry,
            held: Arc::clone(&held),
        };
        (Arc::new(plugin), held)
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_counts_and_what_was_set_aside_for_more_is_given_back() {
        let (wide, wide_held) = at_most("wide", 6, 30);
        let (narrow, narrow_held) = at_most("narrow", 2, 0);
        let (wider, _) = at_most("wider", 9, 0);
        let mut all = ask(vec![wide, narrow, wider], 8).await;
        assert_eq!(all.count, 2);
        let limited = all.limited.take().unwrap();
        assert_eq!((limited.by, &*limited.why), ("narrow", "full"));
        assert_eq!(limited.retry_after.as_secs(), 30, "the longest of all");
        let held = || {
            (
                wide_held.load(Ordering::Relaxed),
                narrow_held.load(Ordering::Relaxed),
            )
        };
        assert_eq!(held(), (2, 2));
        all.next_holds().written(Version::ZERO);
        drop(all.next_holds());
        assert_eq!(held(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn without_plugins_everything_is_admitted() {
        let all = ask(Vec::new(), 3).await;
        assert_eq!((all.count, all.limited), (3, None));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_answer_admits_nothing_for_now() {
        let all = ask(vec![Arc::new(Asleep)], 3).await;
        let limited = all.limited.unwrap();
        assert_eq!((all.count, limited.by), (0, "asleep"));
        assert!(limited.retry_after >= LEAST_RETRY);
        let namespace = Some(Namespace::new("team").unwrap());
        let meta = model::Metadata::new(namespace, Name::new("pool").unwrap());
        let spec = model::pool::PoolSpec::new(Name::new("t").unwrap(), 0, 0, 0);
        let pool = SandboxPool::new(meta, spec);
        let plugins = Plugins::new(vec![Arc::new(Asleep)]);
        let refused = plugins.before_pool_delete(&pool).await.unwrap_err();
        assert!(matches!(refused.refusal, Refusal::NotNow { .. }));
        assert_eq!(plugins.before_pool_create(&pool).await, Ok(()));
    }
}
