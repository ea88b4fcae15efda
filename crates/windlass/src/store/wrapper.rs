//! Wrappers of stores: one place that forwards every store operation.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use windlass_core::{
    authenticity::MacKeyring,
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::{Item, OutputContent},
    journal::{HistoryReference, JournalLine},
};

use super::{
    ApproverPolicy, DeltaStore, DerivedWrites, Durability, JournalReader, Lease, LeaseClaim, PostedDecision,
    ReceiptClaim, ReceiptKey, RunQuery, RunStatus, SessionHolder, SnapshotSegments, Store, StoreFuture,
    StoredLease, StoredReceipt, StoredRun, StoredSnapshot,
};
use crate::session::SessionStore;

/// Lines on their way to the journal of a run.
#[derive(Debug)]
pub struct JournalAppend<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Sequence number of the first line.
    pub at: u64,
    /// The lines.
    pub lines: Vec<JournalLine>,
    /// The origin of the lines.
    pub origin: AppendOrigin,
}

/// The origin of lines that are appended to a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOrigin {
    /// A driver wrote them as the events happened.
    Driver,
    /// They are the journal of a run that comes from another store.
    OtherStore,
}

/// A store that wraps another store. It is a [`Store`] itself; operations that it does not override are forwarded.
///
/// Simulated and fault-injecting stores are wrappers. Forwarded operations pass through
/// [`StoreWrapper::wrap_operation`], so that a delay or a fault for all of them is written once. All operations that add
/// lines to a journal pass through [`StoreWrapper::wrap_append`] before, so that a wrapper which follows the journals
/// overrides one function.
pub trait StoreWrapper: Send + Sync + 'static {
    /// Returns the wrapped store.
    fn inner(&self) -> &dyn Store;

    /// Wraps a forwarded operation, which starts when `operation` is called. The default calls it at once.
    fn wrap_operation<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        operation()
    }

    /// Wraps a forwarded operation that adds lines to a journal: the creation of a run, its import, and every append. The
    /// operation starts when `operation` is called with the lines.
    fn wrap_append<'a, T: Send + 'a>(
        &'a self,
        append: JournalAppend<'a>,
        operation: impl FnOnce(Vec<JournalLine>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.wrap_operation(move || operation(append.lines))
    }

    /// Forwards [`Store::store_id`].
    fn store_id(&self) -> &str {
        self.inner().store_id()
    }

    /// Forwards [`Store::mac_keys`].
    fn mac_keys(&self) -> Option<&Arc<MacKeyring>> {
        self.inner().mac_keys()
    }

    /// Forwards [`Store::approvers`].
    fn approvers(&self) -> Option<&Arc<ApproverPolicy>> {
        self.inner().approvers()
    }

    /// Forwards [`Store::seals_values`].
    fn seals_values(&self) -> bool {
        self.inner().seals_values()
    }

    /// Forwards [`Store::deltas`].
    fn deltas(&self) -> Option<&dyn DeltaStore> {
        self.inner().deltas()
    }

    /// Forwards [`Store::create_run`].
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        let append = JournalAppend { run, at: 0, lines, origin: AppendOrigin::Driver };
        self.wrap_append(append, move |lines| self.inner().create_run(run, agent, claim, lines))
    }

    /// Forwards [`Store::import_run`].
    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        let append = JournalAppend { run, at: 0, lines, origin: AppendOrigin::OtherStore };
        self.wrap_append(append, move |lines| self.inner().import_run(run, agent, claim, lines, history))
    }

    /// Forwards [`Store::acquire_lease`].
    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        self.wrap_operation(move || self.inner().acquire_lease(run, claim, abandoned))
    }

    /// Forwards [`Store::load_lease`].
    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        self.wrap_operation(move || self.inner().load_lease(run))
    }

    /// Forwards [`Store::renew_lease`].
    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().renew_lease(lease, now))
    }

    /// Forwards [`Store::raise_epoch`].
    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease> {
        self.wrap_operation(move || self.inner().raise_epoch(lease, epoch))
    }

    /// Forwards [`Store::release_lease`].
    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().release_lease(lease))
    }

    /// Forwards [`Store::append_journal`].
    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        let append = JournalAppend { run: &lease.run, at, lines, origin: AppendOrigin::Driver };
        self.wrap_append(append, move |lines| self.inner().append_journal(lease, at, lines, durability))
    }

    /// Returns [`Store::sessions`]. A wrapper keeps no sessions by default.
    fn sessions(&self) -> Option<&dyn SessionStore> {
        None
    }

    /// Forwards [`Store::append_with_writes`]. A wrapper that overrides [`StoreWrapper::append_journal`] overrides this
    /// one, too: appends with receipts or with items of sessions pass through here alone.
    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        let append = JournalAppend { run: &lease.run, at, lines, origin: AppendOrigin::Driver };
        self.wrap_append(append, move |lines| {
            self.inner().append_with_writes(lease, at, lines, durability, writes)
        })
    }

    /// Forwards [`Store::load_history`].
    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        self.wrap_operation(move || self.inner().load_history(reference))
    }

    /// Forwards [`Store::hold_session`].
    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().hold_session(lease, session))
    }

    /// Forwards [`Store::session_holder`].
    fn session_holder<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        self.wrap_operation(move || self.inner().session_holder(session))
    }

    /// Forwards [`Store::free_session`].
    fn free_session<'a>(&'a self, session: &'a SessionId, holder: &'a SessionHolder) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().free_session(session, holder))
    }

    /// Forwards [`Store::set_status`].
    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().set_status(lease, status, now))
    }

    /// Forwards [`Store::load_journal`].
    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.wrap_operation(move || self.inner().load_journal(run, from))
    }

    /// Forwards [`Store::load_journal_page`].
    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        self.wrap_operation(move || self.inner().load_journal_page(run, from, limit))
    }

    /// Forwards [`Store::journal_reader`].
    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        self.inner().journal_reader()
    }

    /// Forwards [`Store::snapshot_interval`].
    fn snapshot_interval(&self) -> Option<u64> {
        self.inner().snapshot_interval()
    }

    /// Forwards [`Store::save_snapshot`].
    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_snapshot(lease, snapshot, segments))
    }

    /// Forwards [`Store::load_snapshot_segments`].
    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        self.wrap_operation(move || self.inner().load_snapshot_segments(run, count))
    }

    /// Forwards [`Store::load_snapshot`].
    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        self.wrap_operation(move || self.inner().load_snapshot(run))
    }

    /// Forwards [`Store::list_runs`].
    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        self.wrap_operation(move || self.inner().list_runs(query))
    }

    /// Forwards [`Store::forget_run`].
    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().forget_run(run, abandoned))
    }

    /// Forwards [`Store::post_decision`].
    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().post_decision(run, posted, record_count))
    }

    /// Forwards [`Store::take_decision`].
    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        self.wrap_operation(move || self.inner().take_decision(lease, call, attempt))
    }

    /// Forwards [`Store::posted_decisions`].
    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        self.wrap_operation(move || self.inner().posted_decisions(run))
    }

    /// Forwards [`Store::wait_for_decision`].
    fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.inner().wait_for_decision(run)
    }

    /// Forwards [`Store::claim_receipt`].
    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.wrap_operation(move || self.inner().claim_receipt(key, claim, abandoned))
    }

    /// Forwards [`Store::find_receipt`].
    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.wrap_operation(move || self.inner().find_receipt(key, now))
    }

    /// Forwards [`Store::release_receipt`].
    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().release_receipt(key, owner))
    }

    /// Forwards [`Store::list_receipts`].
    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        self.wrap_operation(move || self.inner().list_receipts(after, limit))
    }

    /// Forwards [`Store::import_receipt`].
    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().import_receipt(receipt))
    }

    /// Forwards [`Store::save_withheld_output`].
    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_withheld_output(lease, call, output))
    }

    /// Forwards [`Store::load_withheld_output`].
    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.wrap_operation(move || self.inner().load_withheld_output(run, call))
    }

    /// Forwards [`Store::list_withheld_outputs`].
    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>> {
        self.wrap_operation(move || self.inner().list_withheld_outputs(run))
    }

    /// Forwards [`Store::erase_withheld_outputs`].
    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().erase_withheld_outputs(lease, calls))
    }

    /// Forwards [`Store::save_artefact`].
    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_artefact(lease, name, body))
    }

    /// Forwards [`Store::load_artefact`].
    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.wrap_operation(move || self.inner().load_artefact(run, name))
    }

    /// Forwards [`Store::list_artefacts`].
    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>> {
        self.wrap_operation(move || self.inner().list_artefacts(run, after, limit))
    }
}

impl<W: StoreWrapper> Store for W {
    fn store_id(&self) -> &str {
        StoreWrapper::store_id(self)
    }

    fn mac_keys(&self) -> Option<&Arc<MacKeyring>> {
        StoreWrapper::mac_keys(self)
    }

    fn approvers(&self) -> Option<&Arc<ApproverPolicy>> {
        StoreWrapper::approvers(self)
    }

    fn seals_values(&self) -> bool {
        StoreWrapper::seals_values(self)
    }

    fn deltas(&self) -> Option<&dyn DeltaStore> {
        StoreWrapper::deltas(self)
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        StoreWrapper::create_run(self, run, agent, claim, lines)
    }

    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        StoreWrapper::import_run(self, run, agent, claim, lines, history)
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        StoreWrapper::acquire_lease(self, run, claim, abandoned)
    }

    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        StoreWrapper::load_lease(self, run)
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        StoreWrapper::renew_lease(self, lease, now)
    }

    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease> {
        StoreWrapper::raise_epoch(self, lease, epoch)
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        StoreWrapper::release_lease(self, lease)
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::append_journal(self, lease, at, lines, durability)
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        StoreWrapper::sessions(self)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::append_with_writes(self, lease, at, lines, durability, writes)
    }

    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        StoreWrapper::load_history(self, reference)
    }

    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        StoreWrapper::hold_session(self, lease, session)
    }

    fn session_holder<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        StoreWrapper::session_holder(self, session)
    }

    fn free_session<'a>(&'a self, session: &'a SessionId, holder: &'a SessionHolder) -> StoreFuture<'a, ()> {
        StoreWrapper::free_session(self, session, holder)
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        StoreWrapper::set_status(self, lease, status, now)
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        StoreWrapper::load_journal(self, run, from)
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        StoreWrapper::load_journal_page(self, run, from, limit)
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        StoreWrapper::journal_reader(self)
    }

    fn snapshot_interval(&self) -> Option<u64> {
        StoreWrapper::snapshot_interval(self)
    }

    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::save_snapshot(self, lease, snapshot, segments)
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        StoreWrapper::load_snapshot_segments(self, run, count)
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        StoreWrapper::load_snapshot(self, run)
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        StoreWrapper::list_runs(self, query)
    }

    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        StoreWrapper::forget_run(self, run, abandoned)
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::post_decision(self, run, posted, record_count)
    }

    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        StoreWrapper::take_decision(self, lease, call, attempt)
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        StoreWrapper::posted_decisions(self, run)
    }

    fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        StoreWrapper::wait_for_decision(self, run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        StoreWrapper::claim_receipt(self, key, claim, abandoned)
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        StoreWrapper::find_receipt(self, key, now)
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        StoreWrapper::release_receipt(self, key, owner)
    }

    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        StoreWrapper::list_receipts(self, after, limit)
    }

    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        StoreWrapper::import_receipt(self, receipt)
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::save_withheld_output(self, lease, call, output)
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        StoreWrapper::load_withheld_output(self, run, call)
    }

    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>> {
        StoreWrapper::list_withheld_outputs(self, run)
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        StoreWrapper::erase_withheld_outputs(self, lease, calls)
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        StoreWrapper::save_artefact(self, lease, name, body)
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        StoreWrapper::load_artefact(self, run, name)
    }

    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>> {
        StoreWrapper::list_artefacts(self, run, after, limit)
    }
}
