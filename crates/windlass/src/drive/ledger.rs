//! Receipts: results of idempotent calls, and who is making one right now, in this run.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_core::{Digest, OutputContent, Timestamp};

use super::lock;

#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<BTreeMap<Digest, Kept>>,
}

enum Kept {
    Receipt {
        output: OutputContent,
        since: Timestamp,
    },
    /// A token lets those who wait for it go on in the order in which they came.
    UnderWay(CancellationToken),
}

/// What an idempotent call finds before it runs.
pub(super) enum Claim<'a> {
    /// An identical call has given this.
    Receipt(OutputContent),
    /// An identical call is running: wait, and ask again.
    Wait(CancellationToken),
    /// Nobody else: run. Identical calls wait until this is dropped.
    Mine(Flight<'a>),
}

/// A call under way. Whether it left a receipt or not, dropping it lets identical calls go on.
pub(super) struct Flight<'a> {
    ledger: &'a Ledger,
    digest: Digest,
    _landed: DropGuard,
}

/// When a receipt is too old.
#[derive(Clone, Copy)]
pub(super) struct Age {
    pub(super) now: Timestamp,
    pub(super) expire_after: Option<Duration>,
}

impl Age {
    fn is_over(&self, since: Timestamp) -> bool {
        self.expire_after.is_some_and(|lasting| since.after(lasting) <= self.now)
    }
}

impl Ledger {
    /// Takes in the receipts of a run that is gone on with. Those that are there, or under way, stay.
    pub(super) fn take_in(&self, receipts: BTreeMap<Digest, (OutputContent, Timestamp)>) {
        let mut entries = lock(&self.entries);
        for (digest, (output, since)) in receipts {
            entries.entry(digest).or_insert(Kept::Receipt { output, since });
        }
    }

    /// All receipts, for a run that is gone on with later.
    pub(super) fn receipts(&self) -> BTreeMap<Digest, (OutputContent, Timestamp)> {
        let entries = lock(&self.entries);
        let kept = |(digest, kept): (&Digest, &Kept)| match kept {
            Kept::Receipt { output, since } => Some((*digest, (output.clone(), *since))),
            Kept::UnderWay(_) => None,
        };
        entries.iter().filter_map(kept).collect()
    }

    pub(super) fn receipt(&self, digest: &Digest, age: Age) -> Option<OutputContent> {
        match lock(&self.entries).get(digest) {
            Some(Kept::Receipt { output, since }) if !age.is_over(*since) => Some(output.clone()),
            Some(Kept::Receipt { .. } | Kept::UnderWay(_)) | None => None,
        }
    }

    pub(super) fn claim(&self, digest: Digest, age: Age) -> Claim<'_> {
        let mut entries = lock(&self.entries);
        match entries.get(&digest) {
            Some(Kept::Receipt { output, since }) if !age.is_over(*since) => Claim::Receipt(output.clone()),
            Some(Kept::UnderWay(landed)) => Claim::Wait(landed.clone()),
            Some(Kept::Receipt { .. }) | None => {
                let landed = CancellationToken::new();
                entries.insert(digest, Kept::UnderWay(landed.clone()));
                Claim::Mine(Flight { ledger: self, digest, _landed: landed.drop_guard() })
            }
        }
    }

    pub(super) fn keep(&self, digest: Digest, output: OutputContent, since: Timestamp) {
        lock(&self.entries).insert(digest, Kept::Receipt { output, since });
    }
}

impl Flight<'_> {
    /// What the call left, if it succeeded.
    pub(super) fn result(&self) -> Option<OutputContent> {
        match lock(&self.ledger.entries).get(&self.digest) {
            Some(Kept::Receipt { output, .. }) => Some(output.clone()),
            Some(Kept::UnderWay(_)) | None => None,
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut entries = lock(&self.ledger.entries);
        if let Some(Kept::UnderWay(_)) = entries.get(&self.digest) {
            entries.remove(&self.digest);
        }
    }
}
