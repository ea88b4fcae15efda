//! The receipts of idempotent calls in this run, and the calls in flight that will leave one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_core::{
    canonical::Digest,
    id::Timestamp,
    item::OutputContent,
    run::{CallReceipt, NewReceipt},
};

use super::body_hold::LateState;
use crate::lock_unpoisoned;

/// The receipts and the calls in flight of one run, by digest.
#[derive(Default)]
pub(crate) struct ReceiptCache {
    entries: Mutex<BTreeMap<Digest, CachedOperation>>,
    next_claim: AtomicU64,
}

/// The state of one operation.
#[derive(Default)]
struct CachedOperation {
    /// The last receipt. An expired one is kept, because it determines the generation of the next.
    receipt: Option<CallReceipt>,
    /// An identical call that runs: the number of its claim, and its signals.
    in_flight: Option<(u64, FlightSignals)>,
}

/// The signals of a call in flight to identical calls.
#[derive(Clone)]
pub(crate) struct FlightSignals {
    /// Wakes the waiting calls in order when the claim ends.
    pub(super) landed: CancellationToken,
    /// True if the body has outlived its deadline.
    pub(super) is_late: Arc<LateState<bool>>,
}

/// The result of a claim before an idempotent call.
pub(crate) enum LocalReceiptClaim {
    /// An identical call has completed with this output.
    Completed(OutputContent),
    /// An identical call runs: wait until it has landed, and claim again.
    InProgress(FlightSignals),
    /// This call may run. Identical calls wait until the guard is dropped.
    Acquired {
        in_flight: InFlight,
        /// Generation of the receipt that the call leaves.
        generation: u32,
    },
}

/// A call in flight. Dropping it wakes identical calls, with or without a receipt.
pub(crate) struct InFlight {
    cache: Arc<ReceiptCache>,
    digest: Digest,
    number: u64,
    is_late: Arc<LateState<bool>>,
    _landed: DropGuard,
}

/// The age limit of a receipt.
#[derive(Clone, Copy)]
pub(crate) struct ReceiptAge {
    pub(crate) now: Timestamp,
    pub(crate) expire_after: Option<Duration>,
}

impl ReceiptAge {
    fn is_expired(&self, receipt: &CallReceipt) -> bool {
        self.expire_after.is_some_and(|lasting| receipt.created_at.saturating_add(lasting) <= self.now)
    }
}

impl ReceiptCache {
    /// Adds the receipts of a resumed run. Existing receipts stay.
    pub(crate) fn restore_receipts(&self, receipts: BTreeMap<Digest, CallReceipt>) {
        let mut entries = lock_unpoisoned(&self.entries);
        for (digest, receipt) in receipts {
            entries.entry(digest).or_default().receipt.get_or_insert(receipt);
        }
    }

    /// Returns all receipts, for a paused run.
    pub(crate) fn all_receipts(&self) -> BTreeMap<Digest, CallReceipt> {
        let entries = lock_unpoisoned(&self.entries);
        let receipts = entries.iter().map(|(digest, known)| (*digest, known.receipt.clone()));
        receipts.filter_map(|(digest, receipt)| Some((digest, receipt?))).collect()
    }

    pub(crate) fn find_receipt(&self, digest: &Digest, age: ReceiptAge) -> Option<OutputContent> {
        let entries = lock_unpoisoned(&self.entries);
        let known = entries.get(digest).filter(|known| known.in_flight.is_none())?;
        let receipt = known.receipt.as_ref().filter(|receipt| !age.is_expired(receipt))?;
        Some(receipt.output.clone())
    }

    pub(crate) fn claim(self: &Arc<Self>, digest: Digest, age: ReceiptAge) -> LocalReceiptClaim {
        let mut entries = lock_unpoisoned(&self.entries);
        let known = entries.entry(digest).or_default();
        if let Some((_, signals)) = &known.in_flight {
            return LocalReceiptClaim::InProgress(signals.clone());
        }
        let generation = match &known.receipt {
            Some(receipt) if !age.is_expired(receipt) => {
                return LocalReceiptClaim::Completed(receipt.output.clone());
            }
            Some(expired) => expired.generation.saturating_add(1),
            None => 0,
        };
        let (landed, is_late) = (CancellationToken::new(), Arc::<LateState<bool>>::default());
        let number = self.next_claim.fetch_add(1, Ordering::Relaxed);
        known.in_flight = Some((number, FlightSignals { landed: landed.clone(), is_late: is_late.clone() }));
        let in_flight =
            InFlight { cache: self.clone(), digest, number, is_late, _landed: landed.drop_guard() };
        LocalReceiptClaim::Acquired { in_flight, generation }
    }

    /// Adds the receipt of a call that settled.
    pub(crate) fn insert_receipt(&self, new: NewReceipt, created_at: Timestamp) {
        let NewReceipt { digest, output, generation } = new;
        let receipt = CallReceipt { output, created_at, generation };
        let settled = CachedOperation { receipt: Some(receipt), in_flight: None };
        lock_unpoisoned(&self.entries).insert(digest, settled);
    }
}

impl InFlight {
    /// Marks the body of the call as one that has outlived its deadline.
    pub(super) fn mark_late(&self) {
        self.is_late.modify(|is_late| *is_late = true);
    }

    /// Returns true if the call has left a receipt.
    pub(crate) fn has_receipt(&self) -> bool {
        let entries = lock_unpoisoned(&self.cache.entries);
        let settled = entries.get(&self.digest).filter(|known| !self.is_claim_of(known));
        settled.is_some_and(|settled| settled.receipt.is_some())
    }

    /// Returns true if the call still holds its claim: a receipt ends it, and the next call may have claimed since.
    fn is_claim_of(&self, known: &CachedOperation) -> bool {
        known.in_flight.as_ref().is_some_and(|(number, _)| *number == self.number)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut entries = lock_unpoisoned(&self.cache.entries);
        if let Some(known) = entries.get_mut(&self.digest).filter(|known| self.is_claim_of(known)) {
            known.in_flight = None;
            if known.receipt.is_none() {
                entries.remove(&self.digest);
            }
        }
    }
}
