//! Migration of everything in one store to another, through the operations of the [`Store`] trait alone.
//!
//! A migration can be repeated: what the target has already is left as it is, so an interrupted migration continues
//! where it ended. A run is copied under the leases of both stores, so nobody drives it meanwhile.

use windlass_core::{
    id::{RunId, SessionId},
    journal::{HashChain, JournalEntry, JournalLine, decode_record},
};

use super::open::{OpenRunError, load_history};
use super::query::{StartSession, session_of_first_line};
use super::{
    DEFAULT_LEASE_DURATION, Durability, Lease, LeaseClaim, LeaseOwner, PostedDecision, RunQuery,
    SnapshotSegments, Store, StoredRun, list_all_runs,
};
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::session::{SessionFence, SessionWrite, export_items};

/// Number of lines, receipts or names that are copied at a time.
const PAGE_SIZE: u32 = 512;

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
    /// Both stores have a session of this id, with different items.
    #[error("session `{session}` is another session in the target: item {position} differs")]
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
    /// Runs that somebody drives, in the source or in the target. They were not copied.
    pub driven_runs: Vec<RunId>,
    /// Number of sessions that the target has now.
    pub sessions: usize,
    /// Number of receipts that were copied.
    pub receipts: usize,
    /// Number of artefacts that were copied.
    pub artefacts: usize,
}

/// Copies all runs, sessions and receipts of one store to another: journals, statuses, epochs, snapshots, posted
/// decisions, artefacts and withheld outputs, the positions of runs in their sessions, and receipts with their
/// generations. The source is unchanged, except that epochs rise.
///
/// Runs that are being driven are not copied; the report names them. After the migration a run must be driven from one
/// of the stores only: each would do the same calls. Idempotency keys whose scope is the store are of the new store for
/// calls that start there; a call that had started keeps its key.
///
/// # Errors
///
/// Returns an error if a store fails, a journal is damaged, or the target has another run or session of the same id.
pub async fn migrate_store(
    source: &dyn Store,
    target: &dyn Store,
) -> Result<MigrationReport, MigrationError> {
    // Receipts and sessions come first: a run that is copied can be driven at once.
    let (receipts, sessions) = (copy_receipts(source, target).await?, copy_sessions(source, target).await?);
    let mut report = MigrationReport { receipts, sessions, ..MigrationReport::default() };
    let mut runs = list_all_runs(source, RunQuery::default()).await?;
    // Oldest first: a fork comes after its origin.
    runs.reverse();
    let migration = RunMigration {
        source,
        target,
        owner: LeaseOwner::for_new_driver().to_string(),
        clock: RunClock::start(),
    };
    for stored in runs {
        let list = match migration.copy_run(&stored, &mut report.artefacts).await {
            Ok(true) => &mut report.copied_runs,
            Ok(false) => &mut report.known_runs,
            Err(MigrationError::Store(error)) if error.kind() == StoreErrorKind::LeaseHeld => {
                &mut report.driven_runs
            }
            Err(error) => return Err(error),
        };
        list.push(stored.run);
    }
    Ok(report)
}

async fn copy_receipts(source: &dyn Store, target: &dyn Store) -> Result<usize, StoreError> {
    let mut after = None;
    let mut count = 0;
    loop {
        let page = source.list_receipts(after.as_ref(), PAGE_SIZE).await?;
        for receipt in &page {
            target.import_receipt(receipt).await?;
        }
        count += page.len();
        match page.into_iter().last() {
            Some(last) => after = Some(last.key),
            None => return Ok(count),
        }
    }
}

/// Copies the items of all sessions, and returns the number of sessions.
async fn copy_sessions(source: &dyn Store, target: &dyn Store) -> Result<usize, MigrationError> {
    let Some(from) = source.sessions() else { return Ok(0) };
    let sessions = from.list_sessions().await?;
    if sessions.is_empty() {
        return Ok(0);
    }
    let to = target.sessions().ok_or(MigrationError::NoSessions)?;
    for session in &sessions {
        let items = from.load_session(session).await?.items;
        let known = to.load_session(session).await?.items;
        let differs = items.iter().zip(&known).position(|(one, other)| one != other);
        if let Some(position) = differs {
            return Err(MigrationError::DifferentSession { session: session.clone(), position });
        }
        // The target may have more items: a run that was copied earlier has gone on there.
        if let Some(rest) = items.get(known.len()..).filter(|rest| !rest.is_empty()) {
            to.append_items(session, rest.to_vec()).await?;
        }
    }
    Ok(sessions.len())
}

/// The migration of runs from one store to another.
struct RunMigration<'a> {
    source: &'a dyn Store,
    target: &'a dyn Store,
    owner: String,
    clock: RunClock,
}

impl RunMigration<'_> {
    fn claim(&self) -> LeaseClaim<'_> {
        LeaseClaim { owner: &self.owner, now: self.clock.now(), duration: DEFAULT_LEASE_DURATION }
    }

    /// Copies a run under the leases of both stores. Returns false if the target had all of it.
    async fn copy_run(&self, stored: &StoredRun, artefacts: &mut usize) -> Result<bool, MigrationError> {
        let from = self.source.acquire_lease(&stored.run, self.claim(), None).await?;
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
        let to = match known {
            0 => {
                let claim = LeaseClaim { now: stored.created_at, ..self.claim() };
                match self.load_referenced_history(run, &lines).await? {
                    Some(history) => {
                        self.target.import_run(run, &stored.agent, claim, lines.clone(), history).await?
                    }
                    None => self.target.create_run(run, &stored.agent, claim, lines.clone()).await?,
                }
            }
            _ => self.target.acquire_lease(run, self.claim(), None).await?,
        };
        let mut written = known.max(lines.len() as u64);
        let mut seq = 0;
        while !lines.is_empty() {
            let end = seq + lines.len() as u64;
            if end > written {
                let new = lines.split_off(usize::try_from(written.saturating_sub(seq)).unwrap_or(usize::MAX));
                self.target.append_journal(&to, written, new, Durability::Sync).await?;
                written = end;
            }
            seq = end;
            self.source.renew_lease(from, self.clock.now()).await?;
            self.target.renew_lease(&to, self.clock.now()).await?;
            lines = self.next_page(run, seq, &mut chain).await?;
        }
        if seq > known {
            self.target.set_status(&to, stored.status, stored.updated_at).await?;
        }
        *artefacts += self.copy_details(from, &to).await?;
        let to = self.raise_epoch(to, from.epoch).await?;
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
        self.copy_position(to).await?;
        Ok(count)
    }

    /// Copies the position of a run in its session, whose items are copied already.
    async fn copy_position(&self, lease: &Lease) -> Result<(), MigrationError> {
        let run = &lease.run;
        let (Some(from), Some(to)) = (self.source.sessions(), self.target.sessions()) else { return Ok(()) };
        let first = self.source.load_journal_page(run, 0, 1).await?;
        let Some(StartSession { session, .. }) = first.first().and_then(session_of_first_line) else {
            return Ok(());
        };
        let position = from.run_position(&session, run).await?;
        let known = to.run_position(&session, run).await?;
        if position > known {
            let items = Vec::new();
            let write = SessionWrite { session, run: run.clone(), from: known, to: position, items };
            to.append_run_items(write, SessionFence::Lease(lease.clone())).await?;
        }
        Ok(())
    }

    /// Raises the epoch of a run in the target to that of the source: a fencing token never goes back.
    async fn raise_epoch(&self, mut lease: Lease, epoch: u64) -> Result<Lease, MigrationError> {
        while lease.epoch < epoch {
            self.target.release_lease(&lease).await?;
            lease = self.target.acquire_lease(&lease.run, self.claim(), None).await?;
        }
        Ok(lease)
    }
}
