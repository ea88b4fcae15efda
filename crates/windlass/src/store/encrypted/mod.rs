//! A store whose contents are encrypted with a key that is not in it.

mod deltas;
mod queue;
mod seal;
mod sealed_parts;
mod sessions;

use std::sync::Arc;

use windlass_core::{
    id::{AgentName, CallPath, RunId},
    item::{Item, OutputContent},
    journal::{HistoryReference, JournalLine},
};

pub use self::seal::{EncryptionKeyError, EncryptionKeys};
use self::sealed_parts::{
    is_same_opened, open_decision, open_items, open_lines, open_output, seal_decision, seal_items,
    seal_lines, seal_output,
};
use super::{
    DeltaStore, DerivedWrites, Durability, FollowerRegistry, HISTORY_ARTEFACT, JournalReader, Lease,
    LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, SnapshotSegments, Store, StoreFuture, StoreWrapper,
    StoredLease, StoredReceipt, StoredSnapshot,
};
use crate::error::StoreError;
use crate::fleet::RunQueue;
use crate::session::SessionStore;

/// A store that seals what it writes to another store: the records of runs, snapshots, posted decisions, outputs,
/// receipts, artefacts, the items of sessions, and the input of submitted runs (AES-256-GCM). Whoever reads the other store
/// without the key sees ids, names of agents and tenants, times, statuses, sizes, and which values are equal.
///
/// The journal's hash chain and the MACs are of the records themselves, so they hold as before; a run that is exported is
/// not encrypted. Values that were written before the store was encrypted are read as they are. A key is rotated in
/// two steps ([`EncryptionKeys::from_text`]): values of earlier keys stay readable as long as those are given.
/// [`migrate_store`](super::migrate_store) to a new store seals everything with the current key.
pub struct EncryptedStore {
    inner: Arc<dyn RunQueue>,
    keys: Arc<EncryptionKeys>,
    /// The registry of a store whose inner store carries no deltas.
    no_followers: FollowerRegistry,
}

impl EncryptedStore {
    /// Creates an encrypted store over another one.
    pub fn new(inner: Arc<dyn RunQueue>, keys: EncryptionKeys) -> Self {
        Self { inner, keys: Arc::new(keys), no_followers: FollowerRegistry::for_this_process() }
    }

    fn seal_writes(&self, writes: DerivedWrites) -> Result<DerivedWrites, StoreError> {
        let DerivedWrites { mut sessions, mut receipts, is_status_deferred } = writes;
        for write in &mut sessions {
            write.items = seal_items(&self.keys, &session_place(write.session.as_str()), &write.items)?;
        }
        for write in &mut receipts {
            write.output = seal_output(&self.keys, &receipt_place(&write.key), &write.output)?;
        }
        Ok(DerivedWrites { sessions, receipts, is_status_deferred })
    }
}

fn session_place(session: &str) -> String {
    format!("session {session}")
}

fn receipt_place(key: &ReceiptKey) -> String {
    format!("receipt {} in {}", key.digest, key.scope)
}

fn withheld_place(run: &RunId, call: &CallPath) -> String {
    format!("withheld output of {call} of {run}")
}

fn artefact_place(run: &RunId, name: &str) -> String {
    format!("artefact {name} of {run}")
}

fn snapshot_place(run: &RunId) -> String {
    format!("snapshot of {run}")
}

fn open_segments(
    keys: &EncryptionKeys,
    run: &RunId,
    segments: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    segments.into_iter().map(|segment| keys.open_text(&snapshot_place(run), segment)).collect()
}

fn open_history(
    keys: &EncryptionKeys,
    reference: &HistoryReference,
    items: Option<Vec<Arc<Item>>>,
) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
    items.map(|items| open_items(keys, &session_place(reference.session.as_str()), items)).transpose()
}

/// The blocking reader of an encrypted store.
struct EncryptedReader {
    inner: Arc<dyn JournalReader>,
    keys: Arc<EncryptionKeys>,
}

impl JournalReader for EncryptedReader {
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError> {
        open_lines(&self.keys, run, from, self.inner.read_lines(run, from, limit)?)
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError> {
        open_segments(&self.keys, run, self.inner.read_segments(run, count)?)
    }

    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        open_history(&self.keys, reference, self.inner.read_history(reference)?)
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let body = self.inner.read_artefact(run, name)?;
        body.map(|body| self.keys.open(&artefact_place(run, name), body)).transpose()
    }
}

impl StoreWrapper for EncryptedStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        Box::pin(async move {
            let lines = seal_lines(&self.keys, run, 0, lines)?;
            self.inner.create_run(run, agent, claim, lines).await
        })
    }

    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        Box::pin(async move {
            let lines = seal_lines(&self.keys, run, 0, lines)?;
            let history = self.keys.seal(&artefact_place(run, HISTORY_ARTEFACT), &history)?.into_bytes();
            self.inner.import_run(run, agent, claim, lines, history).await
        })
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let lines = seal_lines(&self.keys, &lease.run, at, lines)?;
            self.inner.append_journal(lease, at, lines, durability).await
        })
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.inner.sessions().map(|_| self as &dyn SessionStore)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let lines = seal_lines(&self.keys, &lease.run, at, lines)?;
            let writes = self.seal_writes(writes)?;
            self.inner.append_with_writes(lease, at, lines, durability, writes).await
        })
    }

    fn seals_values(&self) -> bool {
        true
    }

    fn deltas(&self) -> Option<&dyn DeltaStore> {
        self.inner.deltas().map(|_| self as &dyn DeltaStore)
    }

    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        Box::pin(
            async move { open_history(&self.keys, reference, self.inner.load_history(reference).await?) },
        )
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(async move { open_lines(&self.keys, run, from, self.inner.load_journal(run, from).await?) })
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        Box::pin(async move {
            open_lines(&self.keys, run, from, self.inner.load_journal_page(run, from, limit).await?)
        })
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        let inner = self.inner.journal_reader()?;
        Some(Arc::new(EncryptedReader { inner, keys: self.keys.clone() }))
    }

    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let place = snapshot_place(&lease.run);
            let body = self.keys.seal_text(&place, &snapshot.body)?;
            let bodies = segments.bodies.iter().map(|body| self.keys.seal_text(&place, body));
            let segments =
                SnapshotSegments { first: segments.first, bodies: bodies.collect::<Result<_, _>>()? };
            self.inner.save_snapshot(lease, StoredSnapshot { body, ..snapshot }, segments).await
        })
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        Box::pin(async move {
            open_segments(&self.keys, run, self.inner.load_snapshot_segments(run, count).await?)
        })
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        Box::pin(async move {
            let Some(snapshot) = self.inner.load_snapshot(run).await? else { return Ok(None) };
            let body = self.keys.open_text(&snapshot_place(run), snapshot.body.clone())?;
            Ok(Some(StoredSnapshot { body, ..snapshot }))
        })
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let known = self.inner.posted_decisions(run).await?.into_iter();
            let known = known
                .filter(|known| known.path == posted.path && known.attempt == posted.attempt)
                .find(|known| is_same_opened(&self.keys, run, known, &posted));
            let sealed = match known {
                // The same decision is sealed differently with another key. The store recognises it as it was sealed.
                Some(known) => {
                    let mut sealed = posted;
                    sealed.decision.decision = known.decision.decision;
                    sealed
                }
                None => seal_decision(&self.keys, run, posted)?,
            };
            self.inner.post_decision(run, sealed, record_count).await
        })
    }

    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        Box::pin(async move {
            let taken = self.inner.take_decision(lease, call, attempt).await?;
            taken.map(|posted| open_decision(&self.keys, &lease.run, posted)).transpose()
        })
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        Box::pin(async move {
            let posted = self.inner.posted_decisions(run).await?;
            posted.into_iter().map(|posted| open_decision(&self.keys, run, posted)).collect()
        })
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        Box::pin(async move {
            Ok(match self.inner.claim_receipt(key, claim, abandoned).await? {
                ReceiptClaim::Completed(output) => {
                    ReceiptClaim::Completed(open_output(&self.keys, &receipt_place(key), output)?)
                }
                other @ (ReceiptClaim::InProgress(_) | ReceiptClaim::Acquired { .. }) => other,
            })
        })
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: windlass_core::id::Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        Box::pin(async move {
            let found = self.inner.find_receipt(key, now).await?;
            found.map(|output| open_output(&self.keys, &receipt_place(key), output)).transpose()
        })
    }

    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        Box::pin(async move {
            let mut receipts = self.inner.list_receipts(after, limit).await?;
            for receipt in &mut receipts {
                if let Some(output) = receipt.output.take() {
                    receipt.output = Some(open_output(&self.keys, &receipt_place(&receipt.key), output)?);
                }
            }
            Ok(receipts)
        })
    }

    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut sealed = receipt.clone();
            if let Some(output) = &receipt.output {
                sealed.output = Some(seal_output(&self.keys, &receipt_place(&receipt.key), output)?);
            }
            self.inner.import_receipt(&sealed).await
        })
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let sealed = seal_output(&self.keys, &withheld_place(&lease.run, call), output)?;
            self.inner.save_withheld_output(lease, call, &sealed).await
        })
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        Box::pin(async move {
            let output = self.inner.load_withheld_output(run, call).await?;
            output.map(|output| open_output(&self.keys, &withheld_place(run, call), output)).transpose()
        })
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let sealed = self.keys.seal(&artefact_place(&lease.run, name), body)?;
            self.inner.save_artefact(lease, name, sealed.as_bytes()).await
        })
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let body = self.inner.load_artefact(run, name).await?;
            body.map(|body| self.keys.open(&artefact_place(run, name), body)).transpose()
        })
    }
}
