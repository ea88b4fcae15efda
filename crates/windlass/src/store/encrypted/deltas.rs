//! The deltas of an encrypted store.

use windlass_core::id::RunId;

use super::EncryptedStore;
use crate::error::StoreError;
use crate::store::{
    DeltaBatch, DeltaPosition, DeltaStore, FollowerRegistry, Lease, StoreFuture, StoredFollower,
};

fn deltas_place(run: &RunId) -> String {
    format!("deltas of {run}")
}

impl EncryptedStore {
    fn inner_deltas(&self) -> Result<&dyn DeltaStore, StoreError> {
        self.inner.deltas().ok_or_else(|| StoreError::new("the store carries no deltas"))
    }
}

impl DeltaStore for EncryptedStore {
    fn followers(&self) -> &FollowerRegistry {
        // Without deltas in the inner store, this one has none either, and nobody follows.
        self.inner.deltas().map_or(&self.no_followers, DeltaStore::followers)
    }

    fn renew_follower<'a>(&'a self, follower: &'a str, runs: Vec<RunId>) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.inner_deltas()?.renew_follower(follower, runs).await })
    }

    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>> {
        Box::pin(async move { self.inner_deltas()?.list_followers().await })
    }

    fn remove_follower<'a>(&'a self, follower: &'a str, beat: u64) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.inner_deltas()?.remove_follower(follower, beat).await })
    }

    fn publish_deltas<'a>(
        &'a self,
        lease: &'a Lease,
        batch: DeltaBatch,
        first_kept: u64,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let body = self.keys.seal_text(&deltas_place(&lease.run), &batch.body)?;
            self.inner_deltas()?.publish_deltas(lease, DeltaBatch { body, ..batch }, first_kept).await
        })
    }

    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>> {
        Box::pin(async move {
            let mut batches = self.inner_deltas()?.load_deltas(run, after).await?;
            for batch in &mut batches {
                batch.body = self.keys.open_text(&deltas_place(run), std::mem::take(&mut batch.body))?;
            }
            Ok(batches)
        })
    }

    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.inner_deltas()?.remove_deltas(run, epoch).await })
    }
}
