//! The store as one role sees it: every call takes a moment, and every change has an author.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use kit::Entropy;
use model::{Key, Version};
use parking_lot::Mutex;
use routes::Message;
use store::{
    Change, Deletion, Draft, Half, Listing, Precondition, Query, Record, Scope, Store, StoreError,
    Watch, WatchEvent, memory::MemoryStore,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    plant::Plant,
    process::Process,
    voice::{Patience, Voice, message_of},
};

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The control loop.
    Control,
    /// Somebody outside.
    Client,
    /// What wakes sandboxes for a gateway: what it reads is as new as what it can write.
    Waker,
    /// A gateway: it only reads, and never stale: a table that starts from an old list knows no
    /// better, and is not what is tested here.
    Gateway,
}

/// Who is at the store at this very moment. The memory store does each call in one go, so what is
/// noted before a call is still true while it happens.
#[derive(Clone, Debug)]
pub struct Author(Arc<Mutex<Role>>);

impl Default for Author {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Role::Client)))
    }
}

impl Author {
    /// Who it is.
    #[must_use]
    pub fn get(&self) -> Role {
        *self.0.lock()
    }
}

/// One role's way to the store.
#[derive(Debug)]
pub struct Desk {
    /// Who.
    pub role: Role,
    /// Where.
    pub store: Arc<MemoryStore>,
    /// Noted before each call.
    pub author: Author,
    /// Draws the delays.
    pub entropy: Arc<Entropy>,
    /// A defect on purpose.
    pub plant: Option<Plant>,
    /// Over with who sits here: nothing is done for it any more.
    pub dead: CancellationToken,
    /// Until when it hears nothing of what it watches.
    pub deaf: Deaf,
    /// By which others are told what was written.
    pub voice: Voice,
    /// For who waits until they have heard.
    pub patience: Option<Patience>,
}

/// Until when a watcher hears nothing. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Deaf(Arc<Mutex<Option<Instant>>>);

impl Deaf {
    /// From now on, for so long, whatever was said before.
    pub fn begin(&self, long: Duration) {
        *self.0.lock() = Some(Instant::now() + long);
    }

    async fn pass(&self) {
        while let Some(until) = self.until() {
            // It may be over sooner.
            let soon = Instant::now() + Duration::from_secs(1);
            tokio::time::sleep_until(until.min(soon)).await;
        }
    }

    fn until(&self) -> Option<Instant> {
        self.0.lock().filter(|until| *until > Instant::now())
    }
}

impl Desk {
    /// A call takes between nothing and a few milliseconds: others act in between.
    async fn moment(&self) {
        self.pass_time().await;
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    async fn pass_time(&self) {
        let micros = match self.entropy.below(10) {
            0..5 => return,
            5..9 => self.entropy.below(500),
            _ => self.entropy.below(20_000),
        };
        tokio::time::sleep(Duration::from_micros(micros as u64)).await;
    }

    fn note(&self) {
        *self.author.0.lock() = self.role;
    }

    /// Tells the others what was written.
    fn tell(&self, record: &Record, is_removed: bool) {
        let said = self.voice.speaker().zip(message_of(record, is_removed));
        if let Some((speaker, message)) = said {
            speaker.say(message.clone());
            self.lie(&speaker, &message);
            if let Some(patience) = &self.patience {
                patience.wait(speaker, message);
            }
        }
    }

    /// The defect of saying that what lives is gone.
    fn lie(&self, speaker: &Arc<Process>, message: &Message) {
        if self.plant != Some(Plant::FalseDeletions) || !self.entropy.chance(0.05) {
            return;
        }
        if let Message::Upsert(route) = message {
            speaker.say(Message::Delete(routes::Deletion {
                namespace: route.namespace.clone(),
                name: route.name.clone(),
                version: route.version,
            }));
        }
    }

    /// The defect of a writer that does not compare before it sets.
    async fn overwrite(&self, mut change: Change) -> Result<Arc<Record>, StoreError> {
        if let (Half::Spec { .. }, Some(now)) = (&change.half, self.store.get(&change.key).await?) {
            change.expected = now.version();
        }
        self.note();
        self.store.update(change).await
    }
}

#[async_trait]
impl Store for Desk {
    async fn get(&self, key: &Key) -> Result<Option<Arc<Record>>, StoreError> {
        self.moment().await;
        self.note();
        self.store.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Listing, StoreError> {
        self.moment().await;
        if self.role == Role::Gateway {
            self.deaf.pass().await;
        }
        self.note();
        self.store.list(query).await
    }

    async fn create(&self, draft: Draft) -> Result<Arc<Record>, StoreError> {
        self.moment().await;
        self.note();
        let created = self.store.create(draft).await;
        self.moment().await;
        let created = created?;
        self.tell(&created, false);
        Ok(created)
    }

    async fn update(&self, change: Change) -> Result<Arc<Record>, StoreError> {
        self.moment().await;
        if self.plant == Some(Plant::BlindWrites) {
            return self.overwrite(change).await;
        }
        self.note();
        let updated = self.store.update(change).await;
        self.moment().await;
        let updated = updated?;
        self.tell(&updated, false);
        Ok(updated)
    }

    async fn delete(&self, key: &Key, only_if: Precondition) -> Result<Deletion, StoreError> {
        self.moment().await;
        self.note();
        let only_if = match self.plant {
            Some(Plant::BlindDeletes) => Precondition::default(),
            Some(_) | None => only_if,
        };
        let deleted = self.store.delete(key, only_if).await;
        self.moment().await;
        let deleted = deleted?;
        match &deleted {
            Deletion::Removed(record) => self.tell(record, true),
            Deletion::Marked(record) => self.tell(record, false),
        }
        Ok(deleted)
    }

    async fn watch(&self, scope: Scope, after: Version) -> Result<Box<dyn Watch>, StoreError> {
        self.moment().await;
        let watch = self.store.watch(scope, after).await?;
        match self.plant {
            Some(Plant::LostEvents) => Ok(Box::new(Leaky {
                watch,
                entropy: Arc::clone(&self.entropy),
            })),
            Some(_) | None => Ok(Box::new(Late {
                watch,
                deaf: self.deaf.clone(),
            })),
        }
    }
}

/// A watch of somebody who can be deaf.
#[derive(Debug)]
struct Late {
    watch: Box<dyn Watch>,
    deaf: Deaf,
}

#[async_trait]
impl Watch for Late {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        let event = self.watch.next().await;
        self.deaf.pass().await;
        event
    }
}

/// The defect of a watch that loses changes without saying so.
#[derive(Debug)]
struct Leaky {
    watch: Box<dyn Watch>,
    entropy: Arc<Entropy>,
}

#[async_trait]
impl Watch for Leaky {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            let event = self.watch.next().await?;
            match event {
                WatchEvent::Put { .. } | WatchEvent::Removed { .. }
                    if self.entropy.chance(0.05) => {}
                WatchEvent::Put { .. } | WatchEvent::Removed { .. } | WatchEvent::Bookmark(_) => {
                    return Ok(event);
                }
            }
        }
    }
}
