//! An in-memory store: it outlives runs, not the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    authenticity::MacKeyring,
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::{Item, OutputContent},
    journal::{HistoryReference, JournalLine},
};

use super::memory_queue::MemoryQueue;
use super::query::{StartSession, end_of_run, session_of_first_line};
use super::{
    ApproverPolicy, DecisionHints, DeltaPosition, DeltaStore, DerivedWrites, Durability, FollowerRegistry,
    HISTORY_ARTEFACT, JournalReader, Lease, LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey,
    ReceiptWrite, RunQuery, RunStatus, SessionHolder, SnapshotSegments, Store, StoreFuture, StoredLease,
    StoredReceipt, StoredRun, StoredSnapshot,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::session::log::SessionLogs;
use crate::session::{
    SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionStore, SessionWrite,
};

/// A store in memory: it outlives runs, not the process.
#[derive(Debug)]
pub struct MemoryStore {
    id: String,
    state: Arc<Mutex<MemoryState>>,
    mac_keys: Option<Arc<MacKeyring>>,
    pub(super) work_hint: Arc<tokio::sync::Notify>,
    decision_hints: DecisionHints,
    approvers: Option<Arc<ApproverPolicy>>,
    pub(super) followers: FollowerRegistry,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            id: uuid::Uuid::now_v7().to_string(),
            state: Arc::default(),
            mac_keys: None,
            approvers: None,
            work_hint: Arc::default(),
            decision_hints: DecisionHints::default(),
            followers: FollowerRegistry::for_this_process(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct MemoryState {
    pub(super) runs: BTreeMap<RunId, MemoryRun>,
    pub(super) queue: MemoryQueue,
    receipts: BTreeMap<ReceiptKey, MemoryReceipt>,
    artefacts: BTreeMap<(RunId, String), Vec<u8>>,
    withheld: BTreeMap<(RunId, CallPath), OutputContent>,
    sessions: SessionLogs,
    pub(super) deltas: BTreeMap<RunId, BTreeMap<DeltaPosition, String>>,
}

#[derive(Debug)]
pub(super) struct MemoryRun {
    agent: AgentName,
    pub(super) status: RunStatus,
    pub(super) epoch: u64,
    pub(super) lease: Option<StoredLease>,
    lines: Vec<JournalLine>,
    inbox: Vec<PostedDecision>,
    /// Epochs in which decisions were taken.
    taken: BTreeMap<(CallPath, u32), u64>,
    snapshot: Option<StoredSnapshot>,
    segments: Vec<String>,
    created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// The receipt of one operation, or the claim to execute it.
#[derive(Debug, Default)]
struct MemoryReceipt {
    generation: u32,
    claim: Option<StoredLease>,
    output: Option<(OutputContent, Option<Timestamp>)>,
}

impl MemoryReceipt {
    fn is_claimed_by(&self, owner: &str) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.owner == owner)
    }
}

impl MemoryStore {
    /// Sets the keys with which decisions and snapshots are authenticated.
    #[must_use]
    pub fn with_keys(mut self, keys: impl Into<Arc<MacKeyring>>) -> Self {
        self.mac_keys = Some(keys.into());
        self
    }

    /// Sets the approvers whose signatures count.
    #[must_use]
    pub fn with_approvers(mut self, approvers: impl Into<Arc<ApproverPolicy>>) -> Self {
        self.approvers = Some(approvers.into());
        self
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes an operation synchronously and returns its result as a ready future.
    pub(super) fn ready_result<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut MemoryState) -> Result<T, StoreError>,
    ) -> StoreFuture<'_, T> {
        std::future::ready(act(&mut self.lock_state())).boxed()
    }
}

impl MemoryState {
    pub(super) fn run_mut(&mut self, run: &RunId) -> Result<&mut MemoryRun, StoreError> {
        self.runs.get_mut(run).ok_or_else(|| {
            StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`"))
        })
    }

    /// Returns the lease of a run. That of a worker's run lives with the worker.
    pub(super) fn stored_lease(&mut self, run: &RunId) -> Result<Option<StoredLease>, StoreError> {
        let lease = self.run_mut(run)?.lease.clone();
        Ok(self.queue.current_lease(lease.as_ref()))
    }

    fn page_of_lines(&self, run: &RunId, from: u64, limit: u32) -> Vec<JournalLine> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let lines = self.runs.get(run).and_then(|run| run.lines.get(from..)).unwrap_or_default();
        lines.iter().take(limit as usize).cloned().collect()
    }

    pub(super) fn owned_run_mut(&mut self, lease: &Lease) -> Result<&mut MemoryRun, StoreError> {
        let run = self.run_mut(&lease.run)?;
        if run.epoch == lease.epoch { Ok(run) } else { Err(StoreError::fenced_off(lease)) }
    }

    fn append_journal(
        &mut self,
        lease: &Lease,
        at: u64,
        lines: Vec<JournalLine>,
        end: Option<(RunStatus, Timestamp)>,
    ) -> Result<(), StoreError> {
        let run = self.owned_run_mut(lease)?;
        let next = run.lines.len() as u64;
        if next != at {
            return Err(StoreError::stale_read(&lease.run, next, at));
        }
        if let Some((status, at)) = end {
            (run.status, run.updated_at) = (status, at);
        }
        run.lines.extend(lines);
        Ok(())
    }

    /// Saves a receipt, if its owner holds the claim.
    fn save_receipt(&mut self, receipt: ReceiptWrite) {
        let ReceiptWrite { key, owner, output, expires_at } = receipt;
        if let Some(known) = self.receipts.get_mut(&key).filter(|known| known.is_claimed_by(&owner)) {
            known.claim = None;
            known.output = Some((output, expires_at));
        }
    }

    fn create_run(
        &mut self,
        run: &RunId,
        agent: &AgentName,
        claim: LeaseClaim<'_>,
        lines: Vec<JournalLine>,
        history: Option<Vec<u8>>,
    ) -> Result<Lease, StoreError> {
        if self.runs.contains_key(run) {
            return Err(StoreError::already_exists(run));
        }
        self.queue.check_owner(claim.owner)?;
        if let Some(first) = lines.first() {
            self.begin_run(run, first, history)?;
        }
        let created = MemoryRun {
            agent: agent.clone(),
            status: end_of_run(&lines).map_or(RunStatus::Running, |(status, _)| status),
            epoch: 1,
            lease: Some(new_lease(claim, 1)),
            lines,
            inbox: Vec::new(),
            taken: BTreeMap::new(),
            snapshot: None,
            segments: Vec::new(),
            created_at: claim.now,
            updated_at: claim.now,
        };
        self.runs.insert(run.clone(), created);
        Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: 1 })
    }

    /// Checks that a new run may begin, records the items that it refers to, and holds the session for it. The position of
    /// a forgotten run of the same id is not its own.
    fn begin_run(
        &mut self,
        run: &RunId,
        first: &JournalLine,
        history: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let Some(StartSession { session, history: Some(reference) }) = session_of_first_line(first) else {
            return Ok(());
        };
        self.check_session_free(&session, run)?;
        match history {
            // The session of this store may have other items under the same version.
            Some(history) => {
                self.artefacts.insert((run.clone(), HISTORY_ARTEFACT.to_owned()), history);
            }
            None if self.sessions.version(&reference.session) == reference.version => {
                self.sessions.forget_run_position(&session, run);
                self.sessions.keep_history(run, &reference);
            }
            None => return Err(StoreError::session_changed(&reference.session)),
        }
        self.set_holder(&session, run, 1);
        Ok(())
    }

    fn set_holder(&mut self, session: &SessionId, run: &RunId, epoch: u64) {
        let log = self.sessions.logs.entry(session.clone()).or_default();
        (log.holder, log.claim) = (Some((run.clone(), epoch)), None);
    }

    /// Returns the driver that holds a session. A run without a driver holds none, whatever the session says.
    fn find_holder(&self, session: &SessionId) -> Option<SessionHolder> {
        let log = self.sessions.logs.get(session)?;
        if let Some(lease) = log.claim.clone() {
            return Some(SessionHolder { run: None, lease });
        }
        let (run, epoch) = log.holder.as_ref()?;
        let held = self.queue.current_lease(self.runs.get(run)?.lease.as_ref());
        let lease = held.filter(|lease| lease.epoch == *epoch)?;
        Some(SessionHolder { run: Some(run.clone()), lease })
    }

    fn check_session_free(&self, session: &SessionId, run: &RunId) -> Result<(), StoreError> {
        SessionHolder::check_run(self.find_holder(session).as_ref(), session, run)
    }

    fn hold_session(&mut self, lease: &Lease, session: &SessionId) -> Result<(), StoreError> {
        self.owned_run_mut(lease)?;
        self.check_session_free(session, &lease.run)?;
        self.set_holder(session, &lease.run, lease.epoch);
        Ok(())
    }

    /// Returns the first segments of a run's snapshot.
    fn first_segments(&self, run: &RunId, count: u64) -> Vec<String> {
        let Some(run) = self.runs.get(run) else { return Vec::new() };
        run.segments.iter().take(usize::try_from(count).unwrap_or(usize::MAX)).cloned().collect()
    }
}

/// The blocking reader of a store in memory.
struct MemoryReader {
    state: Arc<Mutex<MemoryState>>,
}

impl JournalReader for MemoryReader {
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError> {
        let kept = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.page_of_lines(run, from, limit))
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError> {
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner).first_segments(run, count))
    }

    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        let kept = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.sessions.load_history(reference))
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let kept = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.artefacts.get(&(run.clone(), name.to_owned())).cloned())
    }
}

impl Store for MemoryStore {
    fn store_id(&self) -> &str {
        &self.id
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
        self.ready_result(|kept| kept.create_run(run, agent, claim, lines, None))
    }

    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        self.ready_result(|kept| kept.create_run(run, agent, claim, lines, Some(history)))
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        self.ready_result(|kept| {
            let known = kept.stored_lease(run)?;
            kept.queue.check_owner(claim.owner)?;
            if let Some(known) = known.filter(|known| known.owner != claim.owner) {
                check_abandoned(run, &known, abandoned)?;
                kept.retire_owner(&known.owner);
            }
            let kept_run = kept.run_mut(run)?;
            kept_run.epoch += 1;
            kept_run.lease = Some(new_lease(claim, kept_run.epoch));
            Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: kept_run.epoch })
        })
    }

    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        self.ready_result(|kept| kept.stored_lease(run))
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Some(known) = &mut kept.owned_run_mut(lease)?.lease {
                known.beat += 1;
                known.renewed_at = now;
            }
            Ok(())
        })
    }

    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            run.epoch = run.epoch.max(epoch);
            if let Some(known) = &mut run.lease {
                known.epoch = run.epoch;
            }
            Ok(Lease { epoch: run.epoch, ..lease.clone() })
        })
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Ok(run) = kept.owned_run_mut(lease) {
                run.lease = None;
            }
            Ok(())
        })
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        _: Durability,
    ) -> StoreFuture<'a, ()> {
        async move {
            let end = end_of_run(&lines);
            self.lock_state().append_journal(lease, at, lines, end)
        }
        .boxed()
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        Some(self)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        _: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        async move {
            let mut kept = self.lock_state();
            for write in &writes.sessions {
                kept.hold_session(lease, &write.session)?;
                write.is_new_at(kept.sessions.run_position(&write.session, &write.run))?;
            }
            let end = writes.end_status(&lines);
            kept.append_journal(lease, at, lines, end)?;
            writes.receipts.into_iter().for_each(|receipt| kept.save_receipt(receipt));
            writes.sessions.into_iter().try_for_each(|write| kept.sessions.append_run_items(write))
        }
        .boxed()
    }

    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        self.ready_result(|kept| Ok(kept.sessions.load_history(reference)))
    }

    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| kept.hold_session(lease, session))
    }

    fn session_holder<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        self.ready_result(|kept| Ok(kept.find_holder(session)))
    }

    fn free_session<'a>(&'a self, session: &'a SessionId, holder: &'a SessionHolder) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if kept.find_holder(session).is_some_and(|known| known.is_same_beat(holder)) {
                let log = kept.sessions.logs.entry(session.clone()).or_default();
                (log.holder, log.claim) = (None, None);
            }
            Ok(())
        })
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            run.status = status;
            run.updated_at = now;
            Ok(())
        })
    }

    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            let SnapshotSegments { first, bodies } = segments;
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            if first > run.segments.len() {
                return Err(StoreError::missing_segments(&lease.run, run.segments.len() as u64));
            }
            run.segments.truncate(first);
            run.segments.extend(bodies);
            run.snapshot = Some(snapshot);
            Ok(())
        })
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        self.ready_result(|kept| Ok(kept.first_segments(run, count)))
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        self.ready_result(|kept| Ok(kept.runs.get(run).and_then(|run| run.snapshot.clone())))
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.ready_result(|kept| {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let lines = kept.runs.get(run).and_then(|run| run.lines.get(from..));
            Ok(lines.map(<[JournalLine]>::to_vec).unwrap_or_default())
        })
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        self.ready_result(|kept| Ok(kept.page_of_lines(run, from, limit)))
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        Some(Arc::new(MemoryReader { state: self.state.clone() }))
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        self.ready_result(|kept| {
            let has_session = |run: &MemoryRun| match &query.session {
                Some(session) => {
                    let start = run.lines.first().and_then(session_of_first_line);
                    start.is_some_and(|start| start.session == *session)
                }
                None => true,
            };
            let mut runs: Vec<StoredRun> = kept
                .runs
                .iter()
                .filter(|(_, run)| has_session(run))
                .map(|(id, run)| StoredRun {
                    run: id.clone(),
                    agent: run.agent.clone(),
                    status: run.status,
                    record_count: run.lines.len() as u64,
                    lease: kept.queue.current_lease(run.lease.as_ref()),
                    created_at: run.created_at,
                    updated_at: run.updated_at,
                })
                .filter(|run| query.matches(run))
                .collect();
            runs.sort_by(|a, b| (b.created_at, &b.run).cmp(&(a.created_at, &a.run)));
            runs.truncate(query.limit as usize);
            Ok(runs)
        })
    }

    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Some(known) = kept.stored_lease(run)? {
                check_abandoned(run, &known, abandoned)?;
            }
            kept.runs.remove(run);
            kept.queue.forget_run(run);
            kept.sessions.release_history(run);
            kept.withheld.retain(|(of, _), _| of != run);
            kept.deltas.remove(run);
            // The names of media are digests.
            let MemoryState { runs, artefacts, sessions, .. } = kept;
            let is_referenced = |name: &str| {
                let place = format!("/{name}");
                runs.values().flat_map(|run| &run.lines).any(|line| line.body.contains(&place))
                    || sessions.has_item_with(&place)
            };
            artefacts.retain(|(of, name), _| of != run || (name.len() == 64 && is_referenced(name)));
            Ok(())
        })
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        mut posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let is_held = kept.stored_lease(run)?.is_some();
            let kept_run = kept.run_mut(run)?;
            let known = kept_run.inbox.iter_mut().find(|known| known.answers_same_question(&posted));
            if known.as_ref().is_some_and(|known| known.is_repeated_by(&posted)) {
                return Ok(());
            }
            if let Some(epoch) = kept_run.taken.get(&(posted.path.clone(), posted.attempt)) {
                if *epoch == kept_run.epoch && is_held {
                    return Err(StoreError::already_decided(run, &posted.path, known.as_deref()));
                }
                let records = kept_run.lines.len() as u64;
                if records != record_count {
                    return Err(StoreError::stale_read(run, records, record_count));
                }
            }
            let next = known.as_ref().map_or(0, |known| known.decision.posted_revision) + 1;
            if posted.mac.is_some() && posted.decision.posted_revision < next {
                return Err(StoreError::stale_revision(run, &posted.path));
            }
            // A decision that comes from another store keeps its revision.
            posted.decision.posted_revision = posted.decision.posted_revision.max(next);
            match known {
                Some(known) => *known = posted,
                None => kept_run.inbox.push(posted),
            }
            kept.queue.signal_run(run);
            self.work_hint.notify_waiters();
            self.decision_hints.give(run);
            Ok(())
        })
    }

    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            run.taken.insert((call.clone(), attempt), lease.epoch);
            Ok(run.inbox.iter().find(|known| known.path == *call && known.attempt == attempt).cloned())
        })
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        self.ready_result(|kept| Ok(kept.runs.get(run).map(|run| run.inbox.clone()).unwrap_or_default()))
    }

    fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.decision_hints.wait(run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.ready_result(|kept| {
            let known = kept.receipts.entry(key.clone()).or_default();
            let is_abandoned = |held: &StoredLease| abandoned.is_some_and(|seen| seen.is_same_beat(held));
            let mut beat = 0;
            match (&known.output, &known.claim) {
                (Some((output, expires)), _) if expires.is_none_or(|expires| expires > claim.now) => {
                    return Ok(ReceiptClaim::Completed(output.clone()));
                }
                (Some(_), _) => {
                    known.output = None;
                    known.generation += 1;
                }
                (None, Some(held)) if held.owner == claim.owner => beat = held.beat + 1,
                (None, Some(held)) if !is_abandoned(held) => {
                    return Ok(ReceiptClaim::InProgress(held.clone()));
                }
                (None, _) => {}
            }
            known.claim = Some(StoredLease { beat, ..new_lease(claim, 0) });
            Ok(ReceiptClaim::Acquired { generation: known.generation })
        })
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.ready_result(|kept| {
            let kept = kept.receipts.get(key).and_then(|known| known.output.as_ref());
            let valid = kept.filter(|(_, expires)| expires.is_none_or(|expires| expires > now));
            Ok(valid.map(|(output, _)| output.clone()))
        })
    }

    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        self.ready_result(|kept| {
            let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
            let later = kept.receipts.range((from, Bound::Unbounded));
            let listed = later.filter(|(_, receipt)| receipt.generation > 0 || receipt.output.is_some());
            let listed = listed.map(|(key, receipt)| StoredReceipt {
                key: key.clone(),
                generation: receipt.generation,
                output: receipt.output.as_ref().map(|(output, _)| output.clone()),
                expires_at: receipt.output.as_ref().and_then(|(_, expires)| *expires),
            });
            Ok(listed.take(limit as usize).collect())
        })
    }

    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let known = kept.receipts.entry(receipt.key.clone()).or_default();
            let is_newer = receipt.generation > known.generation
                || (receipt.generation == known.generation && known.output.is_none());
            if is_newer {
                known.generation = receipt.generation;
                known.output = receipt.output.clone().map(|output| (output, receipt.expires_at));
            }
            Ok(())
        })
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            kept.withheld.insert((lease.run.clone(), call.clone()), output.clone());
            Ok(())
        })
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.ready_result(|kept| Ok(kept.withheld.get(&(run.clone(), call.clone())).cloned()))
    }

    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>> {
        self.ready_result(|kept| {
            let of_run = kept.withheld.keys().filter(|(one, _)| one == run);
            Ok(of_run.map(|(_, call)| call.clone()).collect())
        })
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            kept.withheld.retain(|(run, call), _| *run != lease.run || !calls.contains(call));
            Ok(())
        })
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            kept.artefacts.insert((lease.run.clone(), name.to_owned()), body.to_vec());
            Ok(())
        })
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.ready_result(|kept| Ok(kept.artefacts.get(&(run.clone(), name.to_owned())).cloned()))
    }

    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>> {
        self.ready_result(|kept| {
            let of_run = kept.artefacts.keys().filter(|(of, _)| of == run).map(|(_, name)| name);
            let later = of_run.filter(|name| after.is_none_or(|after| name.as_str() > after));
            Ok(later.take(limit as usize).cloned().collect())
        })
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Some(known) = kept.receipts.get_mut(key).filter(|known| known.is_claimed_by(owner)) {
                known.claim = None;
            }
            Ok(())
        })
    }
}

/// Creates the stored lease of a claim that was granted.
fn new_lease(claim: LeaseClaim<'_>, epoch: u64) -> StoredLease {
    let LeaseClaim { owner, now, duration } = claim;
    StoredLease { owner: owner.to_owned(), epoch, beat: 0, duration, renewed_at: now }
}

/// Fails if the known lease is not the one that was observed.
fn check_abandoned(run: &RunId, known: &StoredLease, seen: Option<&StoredLease>) -> Result<(), StoreError> {
    match seen {
        Some(seen) if seen.is_same_beat(known) => Ok(()),
        _ => Err(StoreError::lease_held(run, &known.owner)),
    }
}

impl SessionStore for MemoryStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        self.ready_result(|kept| Ok(kept.sessions.load_session(session)))
    }

    fn load_session_items<'a>(
        &'a self,
        session: &'a SessionId,
        skip: u64,
        limit: u32,
    ) -> BoxFuture<'a, Result<SessionItemsPage, StoreError>> {
        self.ready_result(|kept| Ok(kept.sessions.load_session_items(session, skip, limit)))
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.ready_result(|kept| {
            kept.sessions.append_items(session, items);
            Ok(())
        })
    }

    fn append_run_items(
        &self,
        write: SessionWrite,
        fence: SessionFence,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ready_result(|kept| {
            let claim = match &fence {
                SessionFence::Lease(lease) => {
                    kept.hold_session(lease, &write.session)?;
                    return kept.sessions.append_run_items(write);
                }
                SessionFence::Claim(owner) => Some(owner.as_str()),
                SessionFence::Unheld => None,
            };
            SessionHolder::check_claim(kept.find_holder(&write.session).as_ref(), &write.session, claim)?;
            kept.sessions.append_run_items(write)
        })
    }

    fn run_position<'a>(
        &'a self,
        session: &'a SessionId,
        run: &'a RunId,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.ready_result(|kept| Ok(kept.sessions.run_position(session, run)))
    }

    fn list_run_positions<'a>(
        &'a self,
        session: &'a SessionId,
        after: Option<&'a RunId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<(RunId, u64)>, StoreError>> {
        self.ready_result(|kept| Ok(kept.sessions.list_run_positions(session, after, limit)))
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.ready_result(|kept| kept.sessions.replace_items(session, version, &items))
    }

    fn claim_session<'a>(
        &'a self,
        session: &'a SessionId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> BoxFuture<'a, Result<SessionClaim, StoreError>> {
        self.ready_result(|kept| {
            let beat = match SessionHolder::answer_claim(kept.find_holder(session), claim.owner, abandoned) {
                Ok(beat) => beat,
                Err(held) => return Ok(SessionClaim::Held(held)),
            };
            let log = kept.sessions.logs.entry(session.clone()).or_default();
            (log.holder, log.claim) = (None, Some(StoredLease { beat, ..new_lease(claim, 0) }));
            Ok(SessionClaim::Granted)
        })
    }

    fn release_session<'a>(
        &'a self,
        session: &'a SessionId,
        owner: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.ready_result(|kept| {
            if let Some(log) = kept.sessions.logs.get_mut(session) {
                log.claim.take_if(|claim| claim.owner == owner);
            }
            Ok(())
        })
    }

    fn list_sessions<'a>(
        &'a self,
        after: Option<&'a SessionId>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<SessionId>, StoreError>> {
        self.ready_result(|kept| Ok(kept.sessions.list_sessions(after, limit)))
    }
}
