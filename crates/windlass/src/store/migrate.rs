//! Migration of everything in one store to another, through the operations of the [`Store`] trait alone.
//!
//! A migration can be repeated: what the target has already is left as it is, so an interrupted migration continues
//! where it ended. A run is copied under the leases of both stores, so nobody drives it meanwhile, and its session is copied
//! under the lease of the source, so the target has every item of a run that it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::{
    id::{RunId, SessionId, Timestamp},
    item::Item,
    journal::{HashChain, JournalEntry, JournalLine, decode_record},
};

use super::open::{OpenRunError, load_history};
use super::query::{StartSession, session_of_first_line};
use super::{
    DEFAULT_LEASE_DURATION, DerivedWrites, Durability, Lease, LeaseClaim, LeaseObserver, LeaseOwner,
    LeaseStanding, LeaseWatch, MAX_LEASE_POLL, PostedDecision, RunQuery, RunStatus, SnapshotSegments, Store,
    StoredLease, StoredReceipt, StoredRun, end_of_run, list_all_runs,
};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::lock_unpoisoned;
use crate::session::{
    SessionClaim, SessionFence, SessionState, SessionStore, SessionWrite, export_items, list_all_sessions,
};

/// Number of lines, receipts, positions or names that are copied at a time.
const PAGE_SIZE: u32 = 512;

/// Number of attempts to read a session that changes each time.
const MAX_SESSION_READS: u32 = 100;

/// An error that ends a migration. Everything that was copied stays, and the migration can be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// One of the stores could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal of a run is not what was written.
    #[error(transparent)]
    Journal(#[from] OpenRunError),
    /// Both stores have a run of this id, with different records.
    #[error("run `{run}` is another run in the target: record {seq} differs")]
    DifferentRun {
        /// Id of the run.
        run: RunId,
        /// Number of the first record that was compared and differs.
        seq: u64,
    },
    /// Both stores have a session of this id, with different items. The source may have been compacted, rewound or
    /// cleared since an earlier migration: then clear the session in the target, and repeat the migration.
    #[error(
        "session `{session}` is another session in the target: item {position} differs; hint: if it was compacted in the \
         source since an earlier migration, clear it in the target"
    )]
    DifferentSession {
        /// Id of the session.
        session: SessionId,
        /// Number of the first item that differs.
        position: usize,
    },
    /// The source has sessions, and the target keeps none.
    #[error("the target keeps no sessions")]
    NoSessions,
}

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationReport {
    /// Runs that were copied or continued.
    pub copied_runs: Vec<RunId>,
    /// Runs that the target had completely.
    pub known_runs: Vec<RunId>,
    /// Runs that somebody drives, in the source or in the target, or whose session a driver of the target holds: a renewal
    /// of the lease was seen. They were not copied.
    pub driven_runs: Vec<RunId>,
    /// Number of sessions of the source that the target has now.
    pub sessions: usize,
    /// Sessions that a driver holds in the target: a renewal of the lease was seen. They were not copied.
    pub held_sessions: Vec<SessionId>,
    /// Number of receipts that were copied.
    pub receipts: usize,
    /// Number of artefacts that were copied.
    pub artefacts: usize,
}

/// Copies all runs, sessions and receipts of one store to another: journals, statuses, epochs, snapshots, posted
/// decisions, artefacts and withheld outputs, the positions in sessions of these runs and of runs in other stores, and
/// receipts with their generations. The source is unchanged, except that epochs rise.
///
/// Drivers of the source may go on meanwhile. Runs that are being driven are not copied; the report names them, and runs
/// that began after the migration are not in it. A lease that its driver, or an earlier migration, has left behind is taken
/// over, at once or as soon as its duration has passed without a renewal. Nobody drives a run in the target before the migration has ended. After
/// it a run must be driven from one of the stores only: each would do the same calls. Idempotency keys whose scope is the
/// store, or a session in it, are of the new store for calls that start there; a call that had started keeps its key.
///
/// # Errors
///
/// Returns an error if a store fails, a journal is damaged, or the target has another run or session of the same id.
pub async fn migrate_store(
    source: &dyn Store,
    target: &dyn Store,
) -> Result<MigrationReport, MigrationError> {
    copy_receipts(source, target).await?;
    let migration = RunMigration {
        source,
        target,
        owner: LeaseOwner::for_new_driver().to_string(),
        clock: RunClock::start(),
        run_leases: LeaseObserver::new(),
        session_leases: Mutex::default(),
        copied_versions: Mutex::default(),
    };
    let mut report = MigrationReport::default();
    let mut sessions = match source.sessions() {
        Some(from) => list_all_sessions(from).await?,
        None => Vec::new(),
    };
    migration.copy_sessions(&mut sessions, &mut report).await?;
    let mut runs = list_all_runs(source, RunQuery::default()).await?;
    // Oldest first: a fork comes after its origin.
    runs.reverse();
    loop {
        let of_runs = migration.copy_runs(&mut runs, &mut report).await?;
        let of_sessions = migration.copy_sessions(&mut sessions, &mut report).await?;
        let Some(next_look) = [of_runs, of_sessions].into_iter().flatten().min() else { break };
        tokio::time::sleep(next_look.min(MAX_LEASE_POLL)).await;
    }
    // A run that was driven until its turn came may have left receipts since.
    report.receipts = copy_receipts(source, target).await?;
    Ok(report)
}

/// Copies the receipts that the target lacks, and returns the number of receipts of the source.
async fn copy_receipts(source: &dyn Store, target: &dyn Store) -> Result<usize, StoreError> {
    let mut after = None;
    let mut count = 0;
    loop {
        let page = source.list_receipts(after.as_ref(), PAGE_SIZE).await?;
        let known = target.list_receipts(after.as_ref(), PAGE_SIZE).await?;
        let known: BTreeMap<_, &StoredReceipt> =
            known.iter().map(|receipt| (&receipt.key, receipt)).collect();
        for receipt in page.iter().filter(|receipt| known.get(&receipt.key) != Some(receipt)) {
            target.import_receipt(receipt).await?;
        }
        count += page.len();
        match page.into_iter().last() {
            Some(last) => after = Some(last.key),
            None => return Ok(count),
        }
    }
}

/// Loads a session and the positions of its runs, as of one point in time.
async fn load_with_positions(
    store: &dyn SessionStore,
    session: &SessionId,
) -> Result<(SessionState, Vec<(RunId, u64)>), StoreError> {
    let mut state = store.load_session(session).await?;
    for _ in 0..MAX_SESSION_READS {
        let positions = list_all_positions(store, session).await?;
        let after = store.load_session(session).await?;
        if after.version == state.version {
            return Ok((state, positions));
        }
        state = after;
    }
    Err(StoreError::session_changed(session))
}

/// Lists the positions of all runs in a session.
async fn list_all_positions(
    store: &dyn SessionStore,
    session: &SessionId,
) -> Result<Vec<(RunId, u64)>, StoreError> {
    let mut positions: Vec<(RunId, u64)> = Vec::new();
    loop {
        let after = positions.last().map(|(run, _)| run);
        let page = store.list_run_positions(session, after, PAGE_SIZE).await?;
        if page.is_empty() {
            return Ok(positions);
        }
        positions.extend(page);
    }
}

/// The items and positions that the target lacks of a session.
struct MissingItems {
    /// The change of the target's items.
    change: ItemChange,
    /// Runs with their positions in the target and in the source.
    positions: Vec<(RunId, u64, u64)>,
    /// Version of the session in the target.
    target_version: u64,
    /// Number of items in the target and in the source.
    item_counts: (usize, usize),
}

/// The change that gives the target the items of a session.
enum ItemChange {
    Append(Vec<Arc<Item>>),
    /// The source was compacted, rewound or cleared after the target got its items.
    Replace(Vec<Arc<Item>>),
}

impl MissingItems {
    /// Compares a session of both stores. `copied_version` is the version in the target at which it was a copy.
    async fn find(
        (from, to): (&dyn SessionStore, &dyn SessionStore),
        session: &SessionId,
        copied_version: Option<u64>,
    ) -> Result<Self, MigrationError> {
        let (SessionState { items, .. }, source) = load_with_positions(from, session).await?;
        let SessionState { items: known, version: target_version, .. } = to.load_session(session).await?;
        let is_unchanged = copied_version == Some(target_version);
        let differs = items.iter().zip(&known).position(|(one, other)| one != other);
        let item_counts = (known.len(), items.len());
        let change = match differs {
            // The target may have more items: a run that was copied earlier has gone on there.
            None if known.len() <= items.len() || !is_unchanged => {
                ItemChange::Append(items.get(known.len()..).unwrap_or_default().to_vec())
            }
            Some(position) if !is_unchanged => {
                return Err(MigrationError::DifferentSession { session: session.clone(), position });
            }
            None | Some(_) => ItemChange::Replace(items),
        };
        let target: BTreeMap<RunId, u64> = list_all_positions(to, session).await?.into_iter().collect();
        let positions = source.into_iter().map(|(run, position)| {
            let known = target.get(&run).copied().unwrap_or_default();
            (run, known, position)
        });
        let positions = positions.filter(|(_, known, position)| position > known).collect();
        Ok(Self { change, positions, target_version, item_counts })
    }

    fn is_empty(&self) -> bool {
        matches!(&self.change, ItemChange::Append(items) if items.is_empty()) && self.positions.is_empty()
    }
}

/// The migration of runs from one store to another.
struct RunMigration<'a> {
    source: &'a dyn Store,
    target: &'a dyn Store,
    owner: String,
    clock: RunClock,
    /// The leases of runs, as they were seen.
    run_leases: LeaseObserver,
    /// The leases of sessions in the target, as they were seen.
    session_leases: Mutex<BTreeMap<SessionId, LeaseWatch>>,
    /// Versions of the sessions in the target at which they were copies of those of the source.
    copied_versions: Mutex<BTreeMap<SessionId, u64>>,
}

impl RunMigration<'_> {
    fn claim(&self) -> LeaseClaim<'_> {
        LeaseClaim { owner: &self.owner, now: self.clock.now(), duration: DEFAULT_LEASE_DURATION }
    }

    /// Acquires the lease of a run, if it is free or abandoned.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::LeaseHeld`] if somebody else has it, with the time until it is
    /// abandoned if no renewal was seen.
    async fn acquire_lease(&self, store: &dyn Store, run: &RunId) -> Result<Lease, StoreError> {
        let abandoned = match self.run_leases.observe(store, run).await? {
            LeaseStanding::Free => None,
            LeaseStanding::Abandoned(lease) => Some(lease),
            LeaseStanding::Held { lease, is_renewed: true, .. } => {
                return Err(StoreError::lease_held(run, &lease.owner));
            }
            LeaseStanding::Held { lease, remaining, .. } => {
                return Err(StoreError::lease_held(run, &lease.owner).with_retry_after(remaining));
            }
        };
        store.acquire_lease(run, self.claim(), abandoned.as_ref()).await
    }

    /// Claims a session of the target, if it is free or abandoned.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::SessionBusy`] if somebody else holds it, with the time until it is
    /// abandoned if no renewal was seen.
    async fn claim_session(
        &self,
        to: &dyn SessionStore,
        session: &SessionId,
    ) -> Result<SessionFence, StoreError> {
        let mut abandoned = None;
        loop {
            match to.claim_session(session, self.claim(), abandoned.as_ref()).await? {
                SessionClaim::Granted => return Ok(SessionFence::Claim(self.owner.clone())),
                SessionClaim::ProcessLocal => return Ok(SessionFence::Unheld),
                SessionClaim::Held(held) => abandoned = Some(self.find_abandoned(session, held)?),
            }
        }
    }

    /// Returns the lease of a session if it is abandoned.
    fn find_abandoned(&self, session: &SessionId, held: StoredLease) -> Result<StoredLease, StoreError> {
        let mut watches = lock_unpoisoned(&self.session_leases);
        let busy = StoreError::session_busy_elsewhere(session, &held.owner);
        match watches.entry(session.clone()).or_insert_with(LeaseWatch::new).look(held) {
            LeaseStanding::Abandoned(lease) => Ok(lease),
            LeaseStanding::Held { remaining, is_renewed: false, .. } => Err(busy.with_retry_after(remaining)),
            LeaseStanding::Held { .. } | LeaseStanding::Free => Err(busy),
        }
    }

    /// Copies runs. Those whose leases may be abandoned stay in the list, and the least time until one is abandoned is
    /// returned.
    async fn copy_runs(
        &self,
        runs: &mut Vec<StoredRun>,
        report: &mut MigrationReport,
    ) -> Result<Option<Duration>, MigrationError> {
        let mut next_look = None;
        for stored in std::mem::take(runs) {
            let copied = self.copy_run(&stored, &mut report.artefacts).await;
            match check_held(copied)? {
                CopyResult::Copied(true) => report.copied_runs.push(stored.run),
                CopyResult::Copied(false) => report.known_runs.push(stored.run),
                CopyResult::Held => report.driven_runs.push(stored.run),
                CopyResult::MayBeAbandoned(wait) => {
                    next_look = next_look.into_iter().chain([wait]).min();
                    runs.push(stored);
                }
            }
        }
        Ok(next_look)
    }

    /// Copies the items of sessions. Those whose leases may be abandoned stay in the list, and the least time until one is
    /// abandoned is returned.
    async fn copy_sessions(
        &self,
        sessions: &mut Vec<SessionId>,
        report: &mut MigrationReport,
    ) -> Result<Option<Duration>, MigrationError> {
        let mut next_look = None;
        for session in std::mem::take(sessions) {
            let copied = self.copy_session(&session).await;
            match check_held(copied)? {
                CopyResult::Copied(()) => report.sessions += 1,
                CopyResult::Held => report.held_sessions.push(session),
                CopyResult::MayBeAbandoned(wait) => {
                    next_look = next_look.into_iter().chain([wait]).min();
                    sessions.push(session);
                }
            }
        }
        Ok(next_look)
    }

    /// Copies the items of a session that the target lacks, and the positions of its runs. Nobody else appends to it in the
    /// target meanwhile.
    async fn copy_session(&self, session: &SessionId) -> Result<(), MigrationError> {
        let Some(from) = self.source.sessions() else { return Ok(()) };
        let to = self.target.sessions().ok_or(MigrationError::NoSessions)?;
        let missing = self.find_missing((from, to), session).await?;
        if missing.is_empty() {
            let (known, count) = missing.item_counts;
            self.note_copy(session, known == count, missing.target_version);
            return Ok(());
        }
        let fence = self.claim_session(to, session).await?;
        let copied = self.copy_missing_items((from, to), session, fence).await;
        let released = to.release_session(session, &self.owner).await;
        copied?;
        Ok(released?)
    }

    async fn find_missing(
        &self,
        stores: (&dyn SessionStore, &dyn SessionStore),
        session: &SessionId,
    ) -> Result<MissingItems, MigrationError> {
        let copied_version = lock_unpoisoned(&self.copied_versions).get(session).copied();
        MissingItems::find(stores, session, copied_version).await
    }

    /// Notes the version of a session in the target, if it is a copy.
    fn note_copy(&self, session: &SessionId, is_copy: bool, version: u64) {
        let mut copied = lock_unpoisoned(&self.copied_versions);
        match is_copy {
            true => copied.insert(session.clone(), version),
            false => copied.remove(session),
        };
    }

    async fn copy_missing_items(
        &self,
        (from, to): (&dyn SessionStore, &dyn SessionStore),
        session: &SessionId,
        fence: SessionFence,
    ) -> Result<(), MigrationError> {
        let missing = self.find_missing((from, to), session).await?;
        match missing.change {
            ItemChange::Append(items) if items.is_empty() => {}
            ItemChange::Append(items) => to.append_items(session, items).await?,
            ItemChange::Replace(items) => to.replace_items(session, missing.target_version, items).await?,
        }
        for (run, from, position) in missing.positions {
            let write = SessionWrite { session: session.clone(), run, from, to: position, items: Vec::new() };
            to.append_run_items(write, fence.clone()).await?;
        }
        // An application may have appended items meanwhile.
        let copy = to.load_session(session).await?;
        self.note_copy(session, copy.items.len() == missing.item_counts.1, copy.version);
        Ok(())
    }

    /// Copies a run under the leases of both stores. Returns false if the target had all of it.
    async fn copy_run(&self, stored: &StoredRun, artefacts: &mut usize) -> Result<bool, MigrationError> {
        let from = self.acquire_lease(self.source, &stored.run).await?;
        let copied = self.copy_leased_run(stored, &from, artefacts).await;
        self.source.release_lease(&from).await?;
        copied
    }

    async fn copy_leased_run(
        &self,
        stored: &StoredRun,
        from: &Lease,
        artefacts: &mut usize,
    ) -> Result<bool, MigrationError> {
        let run = &stored.run;
        let known = self.known_count(stored).await?;
        let mut chain = HashChain::default();
        let mut lines = self.next_page(run, 0, &mut chain).await?;
        let start = lines.first().and_then(session_of_first_line);
        // It has all items of the run: nobody drives the run now, and whoever did left the session complete.
        if let Some(StartSession { session, history: Some(_) }) = &start {
            self.copy_session(session).await?;
        }
        let to = match known {
            0 => {
                let claim = LeaseClaim { now: stored.created_at, ..self.claim() };
                let first: Vec<JournalLine> = lines.iter().take(1).cloned().collect();
                match self.load_referenced_history(run, &lines).await? {
                    Some(history) => {
                        self.target.import_run(run, &stored.agent, claim, first, history).await?
                    }
                    None => self.target.create_run(run, &stored.agent, claim, first).await?,
                }
            }
            _ => self.acquire_lease(self.target, run).await?,
        };
        let mut written = known.max(u64::from(!lines.is_empty()));
        let mut seq = 0;
        let mut status = (stored.status, stored.updated_at);
        while !lines.is_empty() {
            let end = seq + lines.len() as u64;
            status = current_status(&lines, start.as_ref()).unwrap_or(status);
            if end > written {
                let new = lines.split_off(usize::try_from(written.saturating_sub(seq)).unwrap_or(usize::MAX));
                let writes = DerivedWrites { is_status_deferred: true, ..DerivedWrites::default() };
                self.target.append_with_writes(&to, written, new, Durability::Sync, writes).await?;
                written = end;
            }
            seq = end;
            self.source.renew_lease(from, self.clock.now()).await?;
            self.target.renew_lease(&to, self.clock.now()).await?;
            lines = self.next_page(run, seq, &mut chain).await?;
        }
        // A migration that was killed after its last append has not set it.
        if seq >= known {
            self.target.set_status(&to, status.0, status.1).await?;
        }
        *artefacts += self.copy_details(from, &to).await?;
        // A fencing token never goes back.
        let to = self.target.raise_epoch(&to, from.epoch).await?;
        self.target.release_lease(&to).await?;
        Ok(seq > known)
    }

    /// Loads the items of the session that a run refers to; `None` if it refers to none.
    async fn load_referenced_history(
        &self,
        run: &RunId,
        lines: &[JournalLine],
    ) -> Result<Option<Vec<u8>>, MigrationError> {
        let Some(first) = lines.first() else { return Ok(None) };
        let first = decode_record(0, &first.body)
            .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
        let JournalEntry::RunStarted(mut started) = first.entry else { return Ok(None) };
        if started.history.reference().is_none() {
            return Ok(None);
        }
        load_history(self.source, run, &mut started.history).await?;
        Ok(Some(export_items(started.history.items().unwrap_or_default()).into_bytes()))
    }

    /// Returns the number of records that the target has of a run.
    async fn known_count(&self, stored: &StoredRun) -> Result<u64, MigrationError> {
        let (mut count, mut seq) = (0, 0);
        loop {
            let known = self.target.load_journal_page(&stored.run, count, PAGE_SIZE).await?;
            let lines = self.source.load_journal_page(&stored.run, count, PAGE_SIZE).await?;
            let differs = known.iter().zip(&lines).position(|(one, other)| one.hash != other.hash);
            if let Some(at) = differs {
                return Err(MigrationError::DifferentRun { run: stored.run.clone(), seq: seq + at as u64 });
            }
            count += known.len() as u64;
            seq = count;
            if known.is_empty() {
                return Ok(count);
            }
        }
    }

    /// Loads the next lines of a run and verifies them.
    async fn next_page(
        &self,
        run: &RunId,
        from: u64,
        chain: &mut HashChain,
    ) -> Result<Vec<JournalLine>, MigrationError> {
        let lines = self.source.load_journal_page(run, from, PAGE_SIZE).await?;
        for (seq, line) in (from..).zip(&lines) {
            chain
                .verify_line(seq, line)
                .map_err(|source| OpenRunError::JournalFormat { run: run.clone(), source })?;
        }
        Ok(lines)
    }

    /// Copies everything about a run but its journal. Returns the number of artefacts.
    async fn copy_details(&self, from: &Lease, to: &Lease) -> Result<usize, MigrationError> {
        let (source, target, run) = (self.source, self.target, &from.run);
        let known = target.posted_decisions(run).await?;
        for posted in source.posted_decisions(run).await? {
            let is_known = |one: &PostedDecision| {
                one.answers_same_question(&posted)
                    && one.decision.posted_revision >= posted.decision.posted_revision
            };
            if !known.iter().any(is_known) {
                target.post_decision(run, posted, 0).await?;
            }
        }
        for call in source.list_withheld_outputs(run).await? {
            if let Some(output) = source.load_withheld_output(run, &call).await? {
                target.save_withheld_output(to, &call, &output).await?;
            }
        }
        let mut count = 0;
        let mut after: Option<String> = None;
        loop {
            let names = source.list_artefacts(run, after.as_deref(), PAGE_SIZE).await?;
            let Some(last) = names.last().cloned() else { break };
            for name in &names {
                if let Some(body) = source.load_artefact(run, name).await? {
                    target.save_artefact(to, name, &body).await?;
                }
            }
            count += names.len();
            after = Some(last);
        }
        if let (Some(_), Some(snapshot)) = (target.snapshot_interval(), source.load_snapshot(run).await?) {
            let bodies = source.load_snapshot_segments(run, u32::MAX.into()).await?;
            target.save_snapshot(to, snapshot, SnapshotSegments { first: 0, bodies }).await?;
        }
        Ok(count)
    }
}

/// The end of an attempt to copy a run or a session.
enum CopyResult<T> {
    Copied(T),
    /// Somebody else holds it.
    Held,
    /// Somebody else has held it, and no renewal was seen. It is abandoned after this time.
    MayBeAbandoned(Duration),
}

/// Tells what is held by somebody else from an error that ends the migration.
fn check_held<T>(copied: Result<T, MigrationError>) -> Result<CopyResult<T>, MigrationError> {
    match copied {
        Ok(value) => Ok(CopyResult::Copied(value)),
        Err(MigrationError::Store(error))
            if matches!(error.kind(), StoreErrorKind::LeaseHeld | StoreErrorKind::SessionBusy) =>
        {
            Ok(error.retry_after().map_or(CopyResult::Held, CopyResult::MayBeAbandoned))
        }
        Err(error) => Err(error),
    }
}

/// Returns the status of a run that has ended with one of these lines since it was listed. A run whose session is in
/// another store keeps the status that its driver has set, because the session may lack its last turn.
fn current_status(lines: &[JournalLine], start: Option<&StartSession>) -> Option<(RunStatus, Timestamp)> {
    let is_session_elsewhere = start.is_some_and(|start| start.history.is_none());
    end_of_run(lines).filter(|_| !is_session_elsewhere)
}
