//! Records as objects of a kind.

use async_trait::async_trait;
use model::{Key, Object, Spec, Version};

use crate::{Change, Deletion, Draft, Precondition, Query, Store, StoreError};

/// Typed calls on any store.
#[async_trait]
pub trait StoreExt {
    /// The object at a key, if there is one.
    async fn find<S: Spec>(&self, key: &Key) -> Result<Option<Object<S>>, StoreError>;
    /// The objects a query asks for, and the version to watch from.
    async fn list_objects<S: Spec>(
        &self,
        query: &Query,
    ) -> Result<(Vec<Object<S>>, Version), StoreError>;
    /// Adds an object; answers it as stored.
    async fn create_object<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError>;
    /// Replaces the spec half of an object that was read and then changed.
    async fn update_spec<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError>;
    /// Replaces the status half of an object that was read and then changed.
    async fn update_status<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError>;
    /// Deletes an object exactly as it was read.
    async fn delete_object<S: Spec>(&self, object: &Object<S>) -> Result<Deletion, StoreError>;
}

#[async_trait]
impl<T: Store + ?Sized> StoreExt for T {
    async fn find<S: Spec>(&self, key: &Key) -> Result<Option<Object<S>>, StoreError> {
        self.get(key)
            .await?
            .map(|record| record.decode())
            .transpose()
    }

    async fn list_objects<S: Spec>(
        &self,
        query: &Query,
    ) -> Result<(Vec<Object<S>>, Version), StoreError> {
        let listing = self.list(query).await?;
        let objects = listing
            .records
            .iter()
            .map(|r| r.decode())
            .collect::<Result<_, _>>()?;
        Ok((objects, listing.version))
    }

    async fn create_object<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError> {
        self.create(Draft::of(object)).await?.decode()
    }

    async fn update_spec<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError> {
        self.update(Change::spec(object)).await?.decode()
    }

    async fn update_status<S: Spec>(&self, object: &Object<S>) -> Result<Object<S>, StoreError> {
        self.update(Change::status(object)).await?.decode()
    }

    async fn delete_object<S: Spec>(&self, object: &Object<S>) -> Result<Deletion, StoreError> {
        let only_if = Precondition {
            uid: object.metadata.uid,
            version: object.metadata.resource_version,
        };
        self.delete(&object.key(), only_if).await
    }
}
