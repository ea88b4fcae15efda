//! The store of runs.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use windlass::core::authenticity::MacKeyring;
use windlass::core::id::{AgentName, CallPath, RunId, SessionId, Timestamp};
use windlass::core::item::{Item, OutputContent};
use windlass::core::journal::{HistoryReference, JournalLine};
use windlass::session::SessionStore;
use windlass::store::{
    ApproverPolicy, DeltaStore, DerivedWrites, Durability, JournalReader, Lease, LeaseClaim, PostedDecision,
    ReceiptClaim, ReceiptKey, ReceiptWrite, RunQuery, RunStatus, SessionHolder, SnapshotSegments, Store,
    StoreFuture, StoredLease, StoredReceipt, StoredRun, StoredSnapshot,
};

use crate::database::{TransactionMode, transact};
use crate::{PostgresStore, artefacts, decisions, history, receipts, runs};

impl Store for PostgresStore {
    fn store_id(&self) -> &str {
        &self.store_id
    }

    fn mac_keys(&self) -> Option<&Arc<MacKeyring>> {
        self.mac_keys.as_ref()
    }

    fn approvers(&self) -> Option<&Arc<ApproverPolicy>> {
        self.approvers.as_ref()
    }

    fn deltas(&self) -> Option<&dyn DeltaStore> {
        Some(self)
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        async move { transact!(self.database, |db| runs::create_run(db, run, agent, claim, &lines, None)) }
            .boxed()
    }

    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        async move {
            transact!(self.database, |db| runs::create_run(db, run, agent, claim, &lines, Some(&history)))
        }
        .boxed()
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        async move { transact!(self.database, |db| runs::acquire_lease(db, run, claim, abandoned)) }.boxed()
    }

    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| runs::load_lease(db, run)) }
            .boxed()
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| runs::renew_lease(db, lease, now)) }.boxed()
    }

    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease> {
        async move { transact!(self.database, |db| runs::raise_epoch(db, lease, epoch)) }.boxed()
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| runs::release_lease(db, lease)) }.boxed()
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        _: Durability,
    ) -> StoreFuture<'a, ()> {
        self.appends.append(lease, at, lines).boxed()
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        Some(self)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        if writes.is_empty() {
            return self.append_journal(lease, at, lines, durability);
        }
        async move {
            transact!(self.database, attempt, |db| async {
                runs::append_journal(db, lease, at, &lines, writes.end_status(&lines), attempt).await?;
                for write in &writes.sessions {
                    history::append_with_lines(db, lease, write).await?;
                }
                for ReceiptWrite { key, owner, output, expires_at } in &writes.receipts {
                    receipts::save_receipt(db, key, owner, output, *expires_at).await?;
                }
                Ok(())
            })
        }
        .boxed()
    }

    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| history::load_history(db, reference))
        }
        .boxed()
    }

    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| history::hold_session(db, lease, session)) }.boxed()
    }

    fn session_holder<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| history::find_holder(db, session)) }.boxed()
    }

    fn free_session<'a>(&'a self, session: &'a SessionId, holder: &'a SessionHolder) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| history::free_session(db, session, holder)) }.boxed()
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| runs::set_status(db, lease, status, now)) }.boxed()
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| runs::load_journal(db, run, from, None))
        }
        .boxed()
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| runs::load_journal(
                db,
                run,
                from,
                Some(limit)
            ))
        }
        .boxed()
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        Some(self.reader.clone())
    }

    fn snapshot_interval(&self) -> Option<u64> {
        Some(self.snapshot_interval)
    }

    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| runs::save_snapshot(db, lease, &snapshot, &segments)) }
            .boxed()
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| runs::load_segments(db, run, count))
        }
        .boxed()
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| runs::load_snapshot(db, run)) }
            .boxed()
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| runs::list_runs(db, query)) }
            .boxed()
    }

    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        async move {
            let kept = transact!(self.database, TransactionMode::Searching, |db| {
                runs::find_referenced_media(db, run)
            })?;
            transact!(self.database, |db| runs::forget_run(db, run, abandoned, &kept))
        }
        .boxed()
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        async move {
            let result = transact!(self.database, |db| decisions::post_decision(
                db,
                run,
                posted.clone(),
                record_count
            ));
            self.hints.give_decision(run);
            result
        }
        .boxed()
    }

    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        async move { transact!(self.database, |db| decisions::take_decision(db, lease, call, attempt)) }
            .boxed()
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| decisions::posted_decisions(db, run))
        }
        .boxed()
    }

    fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.hints.wait_for_decision(run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        async move { transact!(self.database, |db| receipts::claim_receipt(db, key, claim, abandoned)) }
            .boxed()
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| receipts::find_receipt(db, key, now))
        }
        .boxed()
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| receipts::release_receipt(db, key, owner)) }.boxed()
    }

    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| receipts::list_receipts(db, after, limit))
        }
        .boxed()
    }

    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| receipts::import_receipt(db, receipt)) }.boxed()
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| artefacts::save_withheld(db, lease, call, output)) }
            .boxed()
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| artefacts::load_withheld(db, run, call))
        }
        .boxed()
    }

    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| artefacts::list_withheld(db, run)) }.boxed()
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| artefacts::erase_withheld(db, lease, calls)) }.boxed()
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| artefacts::save_artefact(db, lease, name, body)) }.boxed()
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| artefacts::load_artefact(db, run, name))
        }
        .boxed()
    }

    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>> {
        async move {
            transact!(self.database, TransactionMode::Reading, |db| artefacts::list_artefacts(
                db, run, after, limit
            ))
        }
        .boxed()
    }
}
