//! The receipts of idempotent calls in this run, and the calls in flight that will leave one.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_core::{canonical::Digest, id::Timestamp, item::OutputContent};

use super::lock_unpoisoned;

/// The receipts and the calls in flight of one run, by digest.
#[derive(Default)]
pub(crate) struct ReceiptCache {
    entries: Mutex<BTreeMap<Digest, CachedReceipt>>,
}

/// A receipt, or an identical call that is in progress.
enum CachedReceipt {
    Completed {
        output: OutputContent,
        created_at: Timestamp,
    },
    /// An identical call runs. Its token wakes the waiting calls in order.
    InProgress(CancellationToken),
}

/// The result of a claim before an idempotent call.
pub(super) enum LocalReceiptClaim<'a> {
    /// An identical call has completed with this output.
    Completed(OutputContent),
    /// An identical call runs: wait for the token, and claim again.
    InProgress(CancellationToken),
    /// This call may run. Identical calls wait until the guard is dropped.
    Acquired(InFlight<'a>),
}

/// A call in flight. Dropping it wakes identical calls, with or without a receipt.
pub(super) struct InFlight<'a> {
    cache: &'a ReceiptCache,
    digest: Digest,
    _done: DropGuard,
}

/// The age limit of a receipt.
#[derive(Clone, Copy)]
pub(super) struct ReceiptAge {
    pub(super) now: Timestamp,
    pub(super) expire_after: Option<Duration>,
}

impl ReceiptAge {
    fn is_expired(&self, since: Timestamp) -> bool {
        self.expire_after.is_some_and(|lasting| since.saturating_add(lasting) <= self.now)
    }
}

impl ReceiptCache {
    /// Adds the receipts of a resumed run. Existing receipts and calls in flight stay.
    pub(super) fn restore_receipts(&self, receipts: BTreeMap<Digest, (OutputContent, Timestamp)>) {
        let mut entries = lock_unpoisoned(&self.entries);
        for (digest, (output, since)) in receipts {
            entries.entry(digest).or_insert(CachedReceipt::Completed { output, created_at: since });
        }
    }

    /// Returns all receipts, for a paused run.
    pub(super) fn all_receipts(&self) -> BTreeMap<Digest, (OutputContent, Timestamp)> {
        let entries = lock_unpoisoned(&self.entries);
        let kept = |(digest, kept): (&Digest, &CachedReceipt)| match kept {
            CachedReceipt::Completed { output, created_at: since } => {
                Some((*digest, (output.clone(), *since)))
            }
            CachedReceipt::InProgress(_) => None,
        };
        entries.iter().filter_map(kept).collect()
    }

    pub(super) fn find_receipt(&self, digest: &Digest, age: ReceiptAge) -> Option<OutputContent> {
        match lock_unpoisoned(&self.entries).get(digest) {
            Some(CachedReceipt::Completed { output, created_at: since }) if !age.is_expired(*since) => {
                Some(output.clone())
            }
            Some(CachedReceipt::Completed { .. } | CachedReceipt::InProgress(_)) | None => None,
        }
    }

    pub(super) fn claim(&self, digest: Digest, age: ReceiptAge) -> LocalReceiptClaim<'_> {
        let mut entries = lock_unpoisoned(&self.entries);
        match entries.get(&digest) {
            Some(CachedReceipt::Completed { output, created_at: since }) if !age.is_expired(*since) => {
                LocalReceiptClaim::Completed(output.clone())
            }
            Some(CachedReceipt::InProgress(landed)) => LocalReceiptClaim::InProgress(landed.clone()),
            Some(CachedReceipt::Completed { .. }) | None => {
                let landed = CancellationToken::new();
                entries.insert(digest, CachedReceipt::InProgress(landed.clone()));
                LocalReceiptClaim::Acquired(InFlight { cache: self, digest, _done: landed.drop_guard() })
            }
        }
    }

    pub(super) fn insert_receipt(&self, digest: Digest, output: OutputContent, since: Timestamp) {
        lock_unpoisoned(&self.entries).insert(digest, CachedReceipt::Completed { output, created_at: since });
    }
}

impl InFlight<'_> {
    /// Returns the call's receipt, if it succeeded.
    pub(super) fn result(&self) -> Option<OutputContent> {
        match lock_unpoisoned(&self.cache.entries).get(&self.digest) {
            Some(CachedReceipt::Completed { output, .. }) => Some(output.clone()),
            Some(CachedReceipt::InProgress(_)) | None => None,
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut entries = lock_unpoisoned(&self.cache.entries);
        if let Some(CachedReceipt::InProgress(_)) = entries.get(&self.digest) {
            entries.remove(&self.digest);
        }
    }
}
