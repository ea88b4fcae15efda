//! The deltas in memory.

use futures_util::FutureExt;
use windlass_core::id::RunId;

use super::{
    DeltaBatch, DeltaPosition, DeltaStore, FollowerRegistry, Lease, MemoryStore, StoreFuture, StoredFollower,
};

impl DeltaStore for MemoryStore {
    fn followers(&self) -> &FollowerRegistry {
        &self.followers
    }

    // Followers are in this process, whose registry knows them.
    fn renew_follower<'a>(&'a self, _: &'a str, _: Vec<RunId>) -> StoreFuture<'a, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn remove_follower<'a>(&'a self, _: &'a str, _: u64) -> StoreFuture<'a, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn publish_deltas<'a>(
        &'a self,
        lease: &'a Lease,
        batch: DeltaBatch,
        first_kept: u64,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            let first = DeltaPosition { epoch: lease.epoch, number: first_kept };
            let batches = kept.deltas.entry(lease.run.clone()).or_default();
            batches.retain(|position, _| *position >= first);
            batches.insert(batch.position, batch.body);
            Ok(())
        })
    }

    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>> {
        self.ready_result(|kept| {
            let batches = kept.deltas.get(run).into_iter().flatten();
            let later = batches.filter(|(position, _)| after.is_none_or(|after| **position > after));
            Ok(later.map(|(position, body)| DeltaBatch { position: *position, body: body.clone() }).collect())
        })
    }

    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Some(batches) = kept.deltas.get_mut(run) {
                batches.retain(|position, _| position.epoch > epoch);
                if batches.is_empty() {
                    kept.deltas.remove(run);
                }
            }
            Ok(())
        })
    }
}
