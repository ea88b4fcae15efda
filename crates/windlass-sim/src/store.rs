//! A store with delays, failures and crashes that the seed or a test decides.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use windlass::core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    inspect::step_lines,
    item::{Item, OutputContent},
    journal::{
        HashChain, JournalEntry, JournalFormatError, JournalLine, JournalRecord, decode_lines, decode_record,
        resolve_history,
    },
};
use windlass::error::StoreError;
use windlass::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite,
};
use windlass::store::{
    DerivedWrites, Durability, Lease, LeaseClaim, MemoryStore, ReceiptClaim, ReceiptKey, RunStatus,
    SnapshotSegments, Store, StoreFuture, StoreWrapper, StoredLease, StoredSnapshot,
};

use crate::sim::Sim;

/// A store of a simulated machine. Durable lines survive a crash; lines in flight do not.
///
/// Lines become durable in append order, each together with all earlier ones, as in a store with group commit.
/// Its times are simulated, whatever clock its callers use; leases are observed on the simulated clock.
pub struct SimStore {
    sim: Sim,
    backing_store: Arc<MemoryStore>,
    state: Mutex<SimStoreState>,
    reachability_changed: Notify,
}

/// A fault of one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// The append fails and writes nothing; lines in flight behind it are not written either.
    FailBefore,
    /// The lines are written, but the append returns an error.
    FailAfter,
    /// The process crashes before the lines are durable.
    CrashBefore,
    /// The process crashes after the lines are durable and before the append returns.
    CrashAfter,
}

/// The mutable state of a simulated store.
#[derive(Default)]
struct SimStoreState {
    max_latency: Duration,
    is_unreachable: bool,
    failure_percent: u64,
    append_count: u64,
    faults: BTreeMap<u64, WriteFault>,
    session_write_count: u64,
    session_faults: BTreeMap<u64, WriteFault>,
    process_number: u64,
    in_flight: VecDeque<InFlightAppend>,
    /// Results of lines that were committed together with later ones.
    write_results: BTreeMap<u64, Result<(), StoreError>>,
    /// Offset of each owner's clock from the simulated one, in milliseconds.
    clock_offsets: BTreeMap<String, u64>,
}

/// An append that is not durable yet.
struct InFlightAppend {
    number: u64,
    lease: Lease,
    start_seq: u64,
    lines: Vec<JournalLine>,
    durability: Durability,
    /// Items for the run's session, which are written in the same transaction.
    writes: DerivedWrites,
    fault: Option<WriteFault>,
}

impl SimStore {
    /// Creates a store without latency and faults.
    pub fn new(sim: &Sim) -> Self {
        Self {
            sim: sim.clone(),
            backing_store: Arc::default(),
            state: Mutex::default(),
            reachability_changed: Notify::new(),
        }
    }

    /// Returns a second connection to the same store, for another process. Faults affect only one connection.
    #[must_use]
    pub fn for_other_process(&self) -> Self {
        Self { backing_store: self.backing_store.clone(), ..Self::new(&self.sim) }
    }

    /// Creates a store that contains these records of a run, as if a lost process had written them.
    ///
    /// # Panics
    /// Panics if the records do not begin with the start of a run.
    pub fn with_records(sim: &Sim, records: &[JournalRecord]) -> Self {
        let store = Self::new(sim);
        let Some(first) = records.first() else { return store };
        let JournalEntry::RunStarted(started) = &first.entry else {
            panic!("the records do not begin with the start of a run")
        };
        let claim =
            LeaseClaim { owner: "a lost process", now: Timestamp(0), duration: Duration::from_secs(30) };
        let mut chain = HashChain::default();
        let lines = records.iter().map(|record| chain.append(record)).collect();
        let created =
            store.backing_store.create_run(&started.run, &started.agent, claim, lines).now_or_never();
        let Some(Ok(lease)) = created else { panic!("an empty store takes any records") };
        store.backing_store.release_lease(&lease).now_or_never();
        store
    }

    /// Releases the lease of a run whose process has crashed, as a driver does that knows of its death.
    pub(crate) async fn release_dead_lease(&self, run: &RunId) {
        if let Ok(Some(StoredLease { owner, epoch, .. })) = self.backing_store.load_lease(run).await {
            let dead = Lease { run: run.clone(), owner, epoch };
            // Without its lease the next process waits until the lease has expired.
            self.backing_store.release_lease(&dead).await.ok();
        }
    }

    /// Sets the maximum latency of an operation.
    #[must_use]
    pub fn max_latency(self, longest: Duration) -> Self {
        self.state().max_latency = longest;
        self
    }

    /// Sets the percentage of operations that fail.
    pub fn set_failure_percent(&self, percent: u64) {
        self.state().failure_percent = percent;
    }

    /// Connects or disconnects the store. While it is disconnected, operations do not return; they complete
    /// after it reconnects.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.state().is_unreachable = !is_reachable;
        self.reachability_changed.notify_waiters();
    }

    /// Injects a fault into the append with this number, counted from 0 over all processes.
    pub fn inject_fault(&self, number: u64, fault: WriteFault) {
        self.state().faults.insert(number, fault);
    }

    /// Injects a fault into the write to a session with this number, counted from 0 over all processes.
    pub fn inject_session_fault(&self, number: u64, fault: WriteFault) {
        self.state().session_faults.insert(number, fault);
    }

    /// Counts a write to a session, and returns its fault.
    fn next_session_fault(&self) -> Option<WriteFault> {
        let mut state = self.state();
        let number = state.session_write_count;
        state.session_write_count += 1;
        state.session_faults.get(&number).copied()
    }

    /// Writes to a session, with the fault of that write.
    fn with_session_fault<'a>(
        &'a self,
        write: impl Future<Output = Result<(), StoreError>> + Send + 'a,
    ) -> StoreFuture<'a, ()> {
        self.with_latency(async move {
            match self.next_session_fault() {
                None => write.await,
                Some(WriteFault::FailBefore) => Err(disk_error()),
                Some(WriteFault::FailAfter) => {
                    write.await?;
                    Err(disk_error())
                }
                Some(WriteFault::CrashBefore) => match self.sim.crash().await {},
                Some(WriteFault::CrashAfter) => {
                    // The result does not matter to a crashed process.
                    let _written = write.await;
                    match self.sim.crash().await {}
                }
            }
        })
    }

    /// Returns the number of appends over all processes.
    pub fn append_count(&self) -> u64 {
        self.state().append_count
    }

    /// Returns the durable records of a run, with the items of the session that it refers to.
    ///
    /// # Errors
    /// Returns an error if the hash chain or a record is invalid, or if the history of the run is missing.
    pub fn durable_records(&self, run: &RunId) -> Result<Vec<JournalRecord>, JournalFormatError> {
        let lines =
            self.backing_store.load_journal(run, 0).now_or_never().and_then(Result::ok).unwrap_or_default();
        let mut records = decode_lines(&lines)?;
        if let Some(JournalEntry::RunStarted(started)) = records.first().map(|first| &first.entry)
            && let Some(reference) = started.history.reference()
        {
            let loaded = self.backing_store.load_history(reference).now_or_never();
            let items = loaded.and_then(Result::ok).flatten().unwrap_or_default();
            resolve_history(&mut records, items)?;
        }
        Ok(records)
    }

    /// Returns the durable records of a run from number `from` on, without verifying the hash chain.
    ///
    /// # Panics
    /// Panics if a line is not a record.
    pub fn durable_records_from(&self, run: &RunId, from: u64) -> Vec<JournalRecord> {
        let lines = self
            .backing_store
            .load_journal(run, from)
            .now_or_never()
            .and_then(Result::ok)
            .unwrap_or_default();
        let read = |(seq, line): (u64, &JournalLine)| match decode_record(seq, &line.body) {
            Ok(record) => record,
            Err(error) => panic!("`{}` is not a record: {error}", line.body),
        };
        (from..).zip(&lines).map(read).collect()
    }

    fn state(&self) -> MutexGuard<'_, SimStoreState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.process_number != self.sim.process_number() {
            state.process_number = self.sim.process_number();
            state.in_flight.clear();
            state.write_results.clear();
        }
        state
    }

    /// Delays and may fail. Never returns in a crashed process.
    async fn delay_and_maybe_fail(&self) -> Result<(), StoreError> {
        let (longest, failing) = {
            let state = self.state();
            (state.max_latency, state.failure_percent)
        };
        self.sim.random_delay(longest).await;
        self.wait_reachable().await;
        if self.sim.chance(failing) { Err(disk_error()) } else { Ok(()) }
    }

    /// Waits until the store is reachable. Never returns in a crashed process.
    async fn wait_reachable(&self) {
        loop {
            let reached = self.reachability_changed.notified();
            if self.sim.is_crashed() {
                std::future::pending::<()>().await;
            }
            if !self.state().is_unreachable {
                return;
            }
            reached.await;
        }
    }

    fn with_latency<'a, T: Send + 'a>(
        &'a self,
        act: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        async move {
            self.delay_and_maybe_fail().await?;
            act.await
        }
        .boxed()
    }

    /// Makes an append durable, together with all earlier ones.
    fn commit_through(&self, number: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        while state.in_flight.front().is_some_and(|first| first.number <= number) {
            let Some(one) = state.in_flight.pop_front() else { break };
            // Lines after an unwritten append do not continue the chain, so they are rejected.
            let written = match one.fault {
                Some(WriteFault::FailBefore) => Some(Err(disk_error())),
                _ => self
                    .backing_store
                    .append_with_writes(&one.lease, one.start_seq, one.lines, one.durability, one.writes)
                    .now_or_never(),
            };
            state.write_results.insert(one.number, written.unwrap_or_else(|| Err(disk_error())));
        }
        state.write_results.remove(&number).unwrap_or(Ok(()))
    }

    /// Commits all appends in flight: a process reads its own writes, durable or not.
    fn commit_all(&self) {
        let last = self.state().in_flight.back().map(|last| last.number);
        if let Some(last) = last {
            let _written = self.commit_through(last);
        }
    }

    /// Puts an append in flight. Returns its number and its fault.
    fn begin_append(
        &self,
        lease: &Lease,
        start_seq: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> (u64, Option<WriteFault>) {
        let mut state = self.state();
        let number = state.append_count;
        state.append_count += 1;
        let by_chance = || self.sim.chance(state.failure_percent).then_some(WriteFault::FailBefore);
        let fault = state.faults.get(&number).copied().or_else(by_chance);
        let lease = lease.clone();
        let append = InFlightAppend { number, lease, start_seq, lines, durability, writes, fault };
        state.in_flight.push_back(append);
        (number, fault)
    }

    /// Describes the records in flight up to an append.
    fn in_flight_text(&self, number: u64) -> String {
        let state = self.state();
        let mut texts = Vec::new();
        for append in state.in_flight.iter().take_while(|append| append.number <= number) {
            for (seq, line) in (append.start_seq..).zip(&append.lines) {
                let step = decode_record(seq, &line.body).ok().and_then(|record| step_lines(&[record]).pop());
                texts.push(match step {
                    Some(step) => format!("#{seq} ({})", step.text),
                    None => format!("#{seq}"),
                });
            }
        }
        match texts.as_slice() {
            // A later append has written these records already.
            [] => "an earlier record is".to_owned(),
            [one] => format!("record {one} is"),
            several => format!("records {} are", several.join(", ")),
        }
    }

    async fn finish_append(
        &self,
        number: u64,
        durability: Durability,
        fault: Option<WriteFault>,
    ) -> Result<(), StoreError> {
        if durability == Durability::Sync || fault.is_some() {
            let longest = self.state().max_latency;
            self.sim.random_delay(longest).await;
        }
        self.wait_reachable().await;
        match fault {
            None if durability == Durability::Deferred => Ok(()),
            None if self.sim.has_crash_points() => {
                let records = self.in_flight_text(number);
                self.sim.pass_crash_point(&format!("before {records} durable")).await;
                let written = self.commit_through(number);
                self.sim.pass_crash_point(&format!("after {records} durable")).await;
                written
            }
            None => self.commit_through(number),
            Some(WriteFault::FailBefore) => self.commit_through(number),
            Some(WriteFault::FailAfter) => {
                self.commit_through(number)?;
                Err(disk_error())
            }
            Some(WriteFault::CrashBefore) => match self.sim.crash().await {},
            Some(WriteFault::CrashAfter) => {
                // The result does not matter to a crashed process.
                let _written = self.commit_through(number);
                match self.sim.crash().await {}
            }
        }
    }

    /// Converts the time of a lease claim to simulated time.
    fn claim_at_sim_time<'a>(&self, claim: LeaseClaim<'a>) -> LeaseClaim<'a> {
        let now = self.sim_millis();
        let ahead = claim.now.0.saturating_sub(now);
        self.state().clock_offsets.insert(claim.owner.to_owned(), ahead);
        LeaseClaim { now: Timestamp(now), ..claim }
    }

    fn to_sim_time(&self, owner: &str, time: Timestamp) -> Timestamp {
        Timestamp(time.0.saturating_sub(self.clock_offset(owner)))
    }

    fn clock_offset(&self, owner: &str) -> u64 {
        self.state().clock_offsets.get(owner).copied().unwrap_or_default()
    }

    fn sim_millis(&self) -> u64 {
        u64::try_from(self.sim.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl StoreWrapper for SimStore {
    fn inner(&self) -> &dyn Store {
        &*self.backing_store
    }

    fn store_id(&self) -> &str {
        // The keys of a seed are the same in every execution.
        "sim"
    }

    fn wrap_operation<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.with_latency(async move { operation().await })
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        self.with_latency(async move {
            self.sim.pass_crash_point("before the run is durable").await;
            let lease =
                self.backing_store.create_run(run, agent, self.claim_at_sim_time(claim), lines).await?;
            self.sim.pass_crash_point("after the run is durable").await;
            Ok(lease)
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
        self.with_latency(async move {
            self.backing_store.import_run(run, agent, self.claim_at_sim_time(claim), lines, history).await
        })
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        self.with_latency(async move {
            self.backing_store.acquire_lease(run, self.claim_at_sim_time(claim), abandoned).await
        })
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        self.with_latency(async move {
            self.backing_store.renew_lease(lease, self.to_sim_time(&lease.owner, now)).await
        })
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::append_with_writes(self, lease, at, lines, durability, DerivedWrites::default())
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
        mut writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        async move {
            if self.sim.is_crashed() {
                std::future::pending::<()>().await;
            }
            for receipt in &mut writes.receipts {
                receipt.expires_at = receipt.expires_at.map(|at| self.to_sim_time(&receipt.owner, at));
            }
            let session_fault = if writes.sessions.is_empty() { None } else { self.next_session_fault() };
            let (number, fault) = self.begin_append(lease, at, lines, durability, writes);
            self.finish_append(number, durability, session_fault.or(fault)).await
        }
        .boxed()
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.with_latency(async move {
            self.backing_store.set_status(lease, status, self.to_sim_time(&lease.owner, now)).await
        })
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.load_journal(run, from).await
        })
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.load_journal_page(run, from, limit).await
        })
    }

    fn snapshot_interval(&self) -> Option<u64> {
        Some(3)
    }

    // A snapshot is saved at once, even before the lines that it covers are durable: that must do no harm.
    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        self.backing_store.save_snapshot(lease, snapshot, segments)
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        self.backing_store.load_snapshot_segments(run, count)
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        self.backing_store.load_snapshot(run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.claim_receipt(key, self.claim_at_sim_time(claim), abandoned).await
        })
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        _: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.find_receipt(key, Timestamp(self.sim_millis())).await
        })
    }
}

impl SessionStore for SimStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, SessionState> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.load_session(session).await
        })
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> StoreFuture<'a, SessionItemsPage> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.load_session_items(session, skip, limit).await
        })
    }

    fn append_items<'a>(&'a self, session: &'a SessionId, items: Vec<Arc<Item>>) -> StoreFuture<'a, ()> {
        self.with_session_fault(async move { self.backing_store.append_items(session, items).await })
    }

    fn append_run_items(&self, write: SessionWrite, fence: SessionFence) -> StoreFuture<'_, ()> {
        self.with_session_fault(async move { self.backing_store.append_run_items(write, fence).await })
    }

    fn run_position<'a>(&'a self, session: &'a SessionId, run: &'a RunId) -> StoreFuture<'a, u64> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.run_position(session, run).await
        })
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<(RunId, u64)>> {
        self.with_latency(async move {
            self.commit_all();
            self.backing_store.list_run_positions(session, after, limit).await
        })
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> StoreFuture<'a, ()> {
        self.with_session_fault(async move {
            self.commit_all();
            self.backing_store.replace_items(session, version, items).await
        })
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, SessionClaim> {
        self.with_latency(async move { self.backing_store.claim_session(session, claim, abandoned).await })
    }

    fn release_session<'a>(&'a self, session: &'a SessionId, owner: &'a str) -> StoreFuture<'a, ()> {
        self.with_latency(async move { self.backing_store.release_session(session, owner).await })
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<SessionId>> {
        self.with_latency(async move { self.backing_store.list_sessions(after, limit).await })
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").field("appends", &self.append_count()).finish_non_exhaustive()
    }
}

fn disk_error() -> StoreError {
    StoreError::new("the simulated disk failed")
}
