//! From a name to the one image that it leads to now.
//!
//! What is named by its digest cannot change under whoever uses it: a sandbox that is to run it is
//! there when the digest runs, whatever its tag leads to by then. A name is looked up on disk where
//! the pull policy lets it, and else at its registry. What a registry said is remembered for a
//! minute, for so many names and no more; everybody who asks meanwhile waits for the same answer.
//! Where a registry cannot be reached, what it said before counts for as long as it is remembered.

use std::{collections::BTreeMap, time::Duration};

use model::{Digest, template::ImagePullPolicy};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    error::{ImageError, Result},
    reference::Reference,
    registry,
    store::{BASE, Store},
};

/// How long an answer is taken for true.
const FRESH: Duration = Duration::from_secs(60);
/// More names than this are not remembered.
const MOST: usize = 4096;

/// What registries said of tags.
#[derive(Debug, Default)]
pub(crate) struct Tags(Mutex<BTreeMap<Box<str>, Answer>>);

#[derive(Clone, Debug)]
struct Answer {
    digest: Digest,
    at: Instant,
}

impl Tags {
    fn find(&self, name: &str) -> Option<Answer> {
        self.0.lock().get(name).cloned()
    }

    fn learn(&self, name: &str, digest: &Digest) {
        let mut known = self.0.lock();
        if known.len() >= MOST && !known.contains_key(name) {
            let oldest = known.iter().min_by_key(|(_, answer)| answer.at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                known.remove(&oldest);
            }
        }
        let (digest, at) = (digest.clone(), Instant::now());
        known.insert(name.into(), Answer { digest, at });
    }
}

impl Store {
    /// The name of the image that `name` leads to now, by its digest. Nothing is downloaded but
    /// its manifest, and that only if the policy says so or it is not here; all of it where it is
    /// here from another repository.
    ///
    /// # Errors
    /// If there is no such image, or nobody can say.
    pub async fn pin(&self, name: &str, policy: ImagePullPolicy) -> Result<Box<str>> {
        if name == BASE {
            return Ok(name.into());
        }
        let reference: Reference = name.parse()?;
        // A digest is no proof that whoever names it may have what it names.
        let here = self.find_chosen(name)?;
        let fixed = reference.digest().is_some();
        let digest = match (policy, here) {
            (ImagePullPolicy::Never, None) => return Err(ImageError::NotPresent(name.into())),
            (ImagePullPolicy::Never | ImagePullPolicy::IfNotPresent, Some(here)) => {
                here.digest().clone()
            }
            (ImagePullPolicy::Always, Some(here)) if fixed => here.digest().clone(),
            (ImagePullPolicy::IfNotPresent | ImagePullPolicy::Always, _) => {
                self.resolve(&reference).await?
            }
        };
        let exact = reference.at(digest);
        // Here from elsewhere: a manifest is no proof that this repository has the rest of it.
        let name = exact.to_string();
        if let Some(digest) = exact.digest()
            && self.find_digest(digest).is_some()
            && self.find_chosen(&name)?.is_none()
        {
            self.pull(&name)?.wait(|_| {}).await?;
        }
        Ok(name.into())
    }

    async fn resolve(&self, reference: &Reference) -> Result<Digest> {
        let name = reference.to_string();
        let known = self.inner().tags.find(&name);
        if let Some(answer) = &known
            && answer.at.elapsed() < FRESH
        {
            return Ok(answer.digest.clone());
        }
        let (store, asked) = (self.clone(), reference.clone());
        let flight = self.fly(&self.inner().answers, &name, |tasks, _| async move {
            let digest = registry::resolve(&store, &asked, &tasks).await?;
            store.inner().tags.learn(&asked.to_string(), &digest);
            Ok(digest)
        });
        match (flight.wait(|_| {}).await, known) {
            (Err(error), Some(before)) if error.is_retryable() => {
                tracing::warn!(image = %name, %error, "a registry is not reached; what it said before counts");
                Ok(before.digest)
            }
            (answer, _) => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_makes_room() {
        let tags = Tags::default();
        let digest = |n: usize| Digest::new(format!("sha256:{n:064x}")).unwrap();
        for n in 0..MOST {
            tags.learn(&format!("a:{n}"), &digest(n));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        tags.learn("a:0", &digest(1));
        tokio::time::advance(Duration::from_millis(1)).await;
        tags.learn("another", &digest(2));
        assert!(tags.find("a:1").is_none(), "the oldest by its last answer");
        assert_eq!(tags.find("a:0").unwrap().digest, digest(1));
        assert_eq!(tags.0.lock().len(), MOST);
    }
}
