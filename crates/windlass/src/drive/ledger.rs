//! Receipts: results of idempotent calls, and who is making one right now.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::watch;
use windlass_core::{Digest, OutputContent};

use super::lock;

#[derive(Default)]
pub(super) struct Ledger {
    entries: Mutex<BTreeMap<Digest, Kept>>,
}

enum Kept {
    Receipt(OutputContent),
    UnderWay(watch::Receiver<()>),
}

/// What an idempotent call finds before it runs.
pub(super) enum Claim<'a> {
    /// An identical call has given this.
    Receipt(OutputContent),
    /// An identical call is running: wait, and ask again.
    Wait(watch::Receiver<()>),
    /// Nobody else: run. Identical calls wait until this is dropped.
    Mine(Flight<'a>),
}

/// A call under way. Whether it left a receipt or not, dropping it lets identical calls go on.
pub(super) struct Flight<'a> {
    ledger: &'a Ledger,
    digest: Digest,
    _landed: watch::Sender<()>,
}

impl Ledger {
    pub(super) fn of(receipts: BTreeMap<Digest, OutputContent>) -> Self {
        let entries = receipts.into_iter().map(|(digest, output)| (digest, Kept::Receipt(output))).collect();
        Self { entries: Mutex::new(entries) }
    }

    pub(super) fn receipt(&self, digest: &Digest) -> Option<OutputContent> {
        match lock(&self.entries).get(digest) {
            Some(Kept::Receipt(output)) => Some(output.clone()),
            Some(Kept::UnderWay(_)) | None => None,
        }
    }

    pub(super) fn claim(&self, digest: Digest) -> Claim<'_> {
        let mut entries = lock(&self.entries);
        match entries.get(&digest) {
            Some(Kept::Receipt(output)) => Claim::Receipt(output.clone()),
            Some(Kept::UnderWay(landed)) => Claim::Wait(landed.clone()),
            None => {
                let (landed, waiting) = watch::channel(());
                entries.insert(digest, Kept::UnderWay(waiting));
                Claim::Mine(Flight { ledger: self, digest, _landed: landed })
            }
        }
    }

    pub(super) fn keep(&self, digest: Digest, output: OutputContent) {
        lock(&self.entries).insert(digest, Kept::Receipt(output));
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
