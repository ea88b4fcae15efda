//! Wrappers of stores: one place that forwards every store operation.

use windlass_core::{
    id::{AgentName, CallPath, RunId, Timestamp},
    item::OutputContent,
    journal::JournalLine,
};

use super::{
    Durability, Lease, LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, RunStatus, Store, StoreFuture,
    StoredRun, StoredSnapshot,
};

/// A store that wraps another store. It is a [`Store`] itself; operations that it does not override are forwarded.
///
/// Simulated and fault-injecting stores are wrappers. Forwarded operations pass through
/// [`StoreWrapper::wrap_operation`], so that a delay or a fault for all of them is written once.
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

    /// Forwards [`Store::create_run`].
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, Lease> {
        self.wrap_operation(move || self.inner().create_run(run, agent, claim))
    }

    /// Forwards [`Store::acquire_lease`].
    fn acquire_lease<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreFuture<'a, Lease> {
        self.wrap_operation(move || self.inner().acquire_lease(run, claim))
    }

    /// Forwards [`Store::renew_lease`].
    fn renew_lease<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().renew_lease(lease, until))
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
        self.wrap_operation(move || self.inner().append_journal(lease, at, lines, durability))
    }

    /// Forwards [`Store::set_status`].
    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().set_status(lease, status, now))
    }

    /// Forwards [`Store::load_journal`].
    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.wrap_operation(move || self.inner().load_journal(run, from))
    }

    /// Forwards [`Store::snapshot_interval`].
    fn snapshot_interval(&self) -> Option<u64> {
        self.inner().snapshot_interval()
    }

    /// Forwards [`Store::save_snapshot`].
    fn save_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_snapshot(lease, snapshot))
    }

    /// Forwards [`Store::load_snapshot`].
    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        self.wrap_operation(move || self.inner().load_snapshot(run))
    }

    /// Forwards [`Store::list_runs`].
    fn list_runs(&self) -> StoreFuture<'_, Vec<StoredRun>> {
        self.wrap_operation(move || self.inner().list_runs())
    }

    /// Forwards [`Store::post_decision`].
    fn post_decision<'a>(&'a self, run: &'a RunId, posted: PostedDecision) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().post_decision(run, posted))
    }

    /// Forwards [`Store::posted_decisions`].
    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        self.wrap_operation(move || self.inner().posted_decisions(run))
    }

    /// Forwards [`Store::claim_receipt`].
    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.wrap_operation(move || self.inner().claim_receipt(key, claim))
    }

    /// Forwards [`Store::save_receipt`].
    fn save_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_receipt(key, owner, output, expires))
    }

    /// Forwards [`Store::release_receipt`].
    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().release_receipt(key, owner))
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

    /// Forwards [`Store::erase_withheld_outputs`].
    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, except: &'a [CallPath]) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().erase_withheld_outputs(lease, except))
    }

    /// Forwards [`Store::save_artefact`].
    fn save_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreFuture<'a, ()> {
        self.wrap_operation(move || self.inner().save_artefact(run, name, text))
    }

    /// Forwards [`Store::load_artefact`].
    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<String>> {
        self.wrap_operation(move || self.inner().load_artefact(run, name))
    }
}

impl<W: StoreWrapper> Store for W {
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, Lease> {
        StoreWrapper::create_run(self, run, agent, claim)
    }

    fn acquire_lease<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreFuture<'a, Lease> {
        StoreWrapper::acquire_lease(self, run, claim)
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreFuture<'a, ()> {
        StoreWrapper::renew_lease(self, lease, until)
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

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        StoreWrapper::set_status(self, lease, status, now)
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        StoreWrapper::load_journal(self, run, from)
    }

    fn snapshot_interval(&self) -> Option<u64> {
        StoreWrapper::snapshot_interval(self)
    }

    fn save_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        StoreWrapper::save_snapshot(self, lease, snapshot)
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        StoreWrapper::load_snapshot(self, run)
    }

    fn list_runs(&self) -> StoreFuture<'_, Vec<StoredRun>> {
        StoreWrapper::list_runs(self)
    }

    fn post_decision<'a>(&'a self, run: &'a RunId, posted: PostedDecision) -> StoreFuture<'a, ()> {
        StoreWrapper::post_decision(self, run, posted)
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        StoreWrapper::posted_decisions(self, run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        StoreWrapper::claim_receipt(self, key, claim)
    }

    fn save_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::save_receipt(self, key, owner, output, expires)
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        StoreWrapper::release_receipt(self, key, owner)
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

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, except: &'a [CallPath]) -> StoreFuture<'a, ()> {
        StoreWrapper::erase_withheld_outputs(self, lease, except)
    }

    fn save_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreFuture<'a, ()> {
        StoreWrapper::save_artefact(self, run, name, text)
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<String>> {
        StoreWrapper::load_artefact(self, run, name)
    }
}
