//! The writer: one thread with one connection, which executes all waiting requests in one group commit.
//!
//! A request is queued when it is made, so that requests are executed in that order, independent of which futures are
//! awaited. The thread takes all waiting requests, executes them in one
//! transaction, commits once, and sends the results. While the disk is busy with one commit, the next batch
//! accumulates: batches grow with the load, and no request waits for a timer.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use windlass_core::id::{RunId, SessionId};

use super::WriterStats;
use super::file::{DatabaseFile, LOCK_TIMEOUT, SqliteError, is_sync_failure};
use super::warnings::{self, CommitMark, FilePlace};
use super::writer_turn::WriterTurn;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, StoreFuture};

/// Maximum number of queued requests; further ones are rejected. A caller that awaits its results queues one
/// request per future and thereby limits itself; the limit is for callers that do not. A request cannot wait
/// outside the queue: it would lose its position.
const MAX_QUEUED_REQUESTS: usize = 65_536;

/// Maximum number of requests per transaction, so that other processes get the lock too.
const MAX_BATCH_REQUESTS: usize = 1024;

/// The level of durability at which a request is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckLevel {
    /// Executed in the open transaction. If the commit fails, later requests of the same run are rejected.
    InTransaction,
    /// Committed and visible to every process. It survives a crash of the process, not power loss, which is
    /// sufficient for leases: power loss ends them anyway. The next synced request makes it durable.
    Committed,
    /// Synced to disk.
    Synced,
}

/// The subject of a request, for error messages.
#[derive(Clone, Debug)]
pub(super) enum RequestSubject {
    Run(RunId),
    Session(SessionId),
    Receipts,
    Store,
}

impl fmt::Display for RequestSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(run) => write!(f, "run `{run}`"),
            Self::Session(session) => write!(f, "session `{session}`"),
            Self::Receipts => f.write_str("receipts"),
            Self::Store => f.write_str("the store"),
        }
    }
}

/// The transaction that a request writes to.
pub(super) struct WriteTx<'a> {
    pub(super) db: &'a Connection,
    pub(super) gaps: &'a mut JournalGaps,
    unrecorded_place: Option<&'a FilePlace>,
    records_place: &'a mut bool,
}

impl WriteTx<'_> {
    /// Records that the store is driven at its present place, once.
    pub(super) fn record_place(&mut self) -> Result<(), SqliteError> {
        match self.unrecorded_place {
            Some(place) if !*self.records_place => {
                *self.records_place = true;
                warnings::record_place(self.db, place)
            }
            _ => Ok(()),
        }
    }
}

/// Runs with lines that could not be written, and the epochs of their writers. Later lines of the same epoch
/// are rejected for that reason, and not as if another driver had taken over.
#[derive(Debug, Default)]
pub(super) struct JournalGaps {
    runs: BTreeMap<RunId, u64>,
}

impl JournalGaps {
    pub(super) fn has_gap(&self, lease: &Lease) -> bool {
        self.runs.get(&lease.run) == Some(&lease.epoch)
    }

    pub(super) fn clear_run(&mut self, run: &RunId) {
        self.runs.remove(run);
    }

    fn record_gap(&mut self, lease: &Lease) {
        self.runs.insert(lease.run.clone(), lease.epoch);
    }
}

/// Counters of requests and commits, and of requests that were acknowledged before their commit.
#[derive(Debug, Default)]
pub(super) struct WriterCounters {
    requests: AtomicU64,
    commits: AtomicU64,
    syncs: AtomicU64,
    early_acks: AtomicU64,
    settled_early_acks: Mutex<u64>,
    settled_changed: Condvar,
}

impl WriterCounters {
    pub(super) fn to_stats(&self) -> WriterStats {
        WriterStats {
            requests: self.requests.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }

    /// Waits until all requests acknowledged before their commit are committed, so that callers read their own
    /// writes.
    pub(super) fn wait_for_early_acks(&self) {
        let answered = self.early_acks.load(Ordering::Acquire);
        let mut settled = self.settled_early_acks.lock().unwrap_or_else(PoisonError::into_inner);
        while *settled < answered {
            settled = self.settled_changed.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn settle_early_acks(&self) {
        self.settle_early_acks_up_to(self.early_acks.load(Ordering::Acquire));
    }

    fn settle_early_acks_up_to(&self, answered: u64) {
        let mut settled = self.settled_early_acks.lock().unwrap_or_else(PoisonError::into_inner);
        if *settled < answered {
            *settled = answered;
            self.settled_changed.notify_all();
        }
    }
}

/// The handle of the writer thread. Dropping it waits until the thread has finished all queued requests.
#[derive(Debug)]
pub(super) struct SqliteWriter {
    queue: Option<mpsc::Sender<WriteRequest>>,
    queue_permits: Arc<Semaphore>,
    file: Arc<DatabaseFile>,
    counters: Arc<WriterCounters>,
    thread: Option<JoinHandle<()>>,
}

impl SqliteWriter {
    pub(super) fn start(
        db: Connection,
        file: Arc<DatabaseFile>,
        store_id: String,
    ) -> Result<Self, StoreError> {
        let (requests, waiting) = mpsc::channel();
        let tally = Arc::new(WriterCounters::default());
        let thread = WriterThread {
            db,
            file: file.clone(),
            counters: tally.clone(),
            gaps: JournalGaps::default(),
            turn: WriterTurn::open(&file.path, LOCK_TIMEOUT),
            store_id,
            mark: CommitMark::open(&file.path),
            unrecorded_place: Some(FilePlace::of_file(&file.path)),
            waits_for_sync: None,
            stop_reason: None,
        };
        let thread =
            thread::Builder::new().name("windlass-writer".to_owned()).spawn(move || thread.run(&waiting));
        let thread = thread
            .map_err(|error| StoreError::new("the writer thread cannot be started").with_source(error))?;
        let room = Arc::new(Semaphore::new(MAX_QUEUED_REQUESTS));
        Ok(Self { queue: Some(requests), queue_permits: room, file, counters: tally, thread: Some(thread) })
    }

    pub(super) fn counters(&self) -> &Arc<WriterCounters> {
        &self.counters
    }

    /// Queues a request. It is executed even if the future is dropped.
    pub(super) fn submit<T, F>(
        &self,
        about: RequestSubject,
        when: AckLevel,
        work: F,
    ) -> StoreFuture<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTx<'_>) -> Result<T, SqliteError> + Send + 'static,
    {
        self.enqueue(about, when, None, work).boxed()
    }

    /// Queues a request that appends lines to a run.
    pub(super) fn submit_append<F>(
        &self,
        lease: &Lease,
        when: AckLevel,
        work: F,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<F>
    where
        F: FnOnce(&mut WriteTx<'_>) -> Result<(), SqliteError> + Send + 'static,
    {
        self.enqueue(RequestSubject::Run(lease.run.clone()), when, Some(lease.clone()), work)
    }

    fn enqueue<T, F>(
        &self,
        about: RequestSubject,
        when: AckLevel,
        appends: Option<Lease>,
        work: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTx<'_>) -> Result<T, SqliteError> + Send + 'static,
    {
        let submitted = self.send_request(about, when, appends, work);
        let file = self.file.clone();
        async move { submitted?.await.unwrap_or_else(|_| Err(file.thread_stopped_error())) }
    }

    fn send_request<T, F>(
        &self,
        about: RequestSubject,
        when: AckLevel,
        appends: Option<Lease>,
        work: F,
    ) -> Result<oneshot::Receiver<Result<T, StoreError>>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTx<'_>) -> Result<T, SqliteError> + Send + 'static,
    {
        let Ok(room) = self.queue_permits.clone().try_acquire_owned() else {
            let message = format!(
                "{about}: the write queue of `{}` is full ({MAX_QUEUED_REQUESTS} requests)",
                self.file.path.display()
            );
            return Err(StoreError::new(message));
        };
        let (answer, answered) = oneshot::channel();
        let job = WriteJob { subject: about, work: Some(work), result: None, reply_to: Some(answer) };
        let request = WriteRequest {
            ack_level: when,
            appends_to: appends,
            operation: Box::new(job),
            _queue_permit: room,
        };
        // If the thread has stopped, the sender of the result is dropped as well.
        if let Some(requests) = &self.queue {
            requests.send(request).ok();
        }
        Ok(answered)
    }
}

impl Drop for SqliteWriter {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct WriteRequest {
    ack_level: AckLevel,
    /// The lease of the run that the request appends to, if it does.
    appends_to: Option<Lease>,
    operation: Box<dyn WriteOperation>,
    _queue_permit: OwnedSemaphorePermit,
}

trait WriteOperation: Send {
    /// Executes the request. An error aborts the whole transaction.
    fn execute(&mut self, desk: &mut WriteTx<'_>) -> Result<ExecuteStatus, SqliteError>;

    /// Sends the result, once; `lost` is the cause if the commit failed.
    fn send_result(&mut self, file: &DatabaseFile, lost: Option<&CommitFailure>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExecuteStatus {
    Succeeded,
    Refused,
    /// SQLite failed.
    Failed,
}

/// The cause of a failed commit.
#[derive(Clone, Debug)]
struct CommitFailure {
    kind: StoreErrorKind,
    reason: String,
}

struct WriteJob<T, F> {
    subject: RequestSubject,
    work: Option<F>,
    result: Option<Result<T, SqliteError>>,
    reply_to: Option<oneshot::Sender<Result<T, StoreError>>>,
}

impl<T, F> WriteOperation for WriteJob<T, F>
where
    T: Send,
    F: FnOnce(&mut WriteTx<'_>) -> Result<T, SqliteError> + Send,
{
    fn execute(&mut self, desk: &mut WriteTx<'_>) -> Result<ExecuteStatus, SqliteError> {
        let Some(work) = self.work.take() else { return Ok(ExecuteStatus::Succeeded) };
        // The partial changes of a failed request must not be committed with the others.
        desk.db.prepare_cached("SAVEPOINT request")?.execute([])?;
        let result = work(desk);
        if desk.db.is_autocommit() {
            // On some errors SQLite rolls back the whole transaction.
            return Err(result
                .err()
                .unwrap_or_else(|| SqliteError::Corrupt("a transaction was undone".to_owned())));
        }
        let done = match &result {
            Ok(_) => ExecuteStatus::Succeeded,
            Err(SqliteError::Refused(_)) => ExecuteStatus::Refused,
            Err(SqliteError::Sqlite(_) | SqliteError::Corrupt(_)) => ExecuteStatus::Failed,
        };
        self.result = Some(result);
        if done != ExecuteStatus::Succeeded {
            desk.db.prepare_cached("ROLLBACK TO request")?.execute([])?;
        }
        desk.db.prepare_cached("RELEASE request")?.execute([])?;
        Ok(done)
    }

    fn send_result(&mut self, file: &DatabaseFile, lost: Option<&CommitFailure>) {
        let Some(answer) = self.reply_to.take() else { return };
        let result = match (self.result.take(), lost) {
            (Some(Err(trouble)), _) => Err(file.to_store_error_about(&self.subject, trouble)),
            (Some(Ok(_)) | None, Some(lost)) => {
                Err(StoreError::with_kind(lost.kind, format!("{}: {}", self.subject, lost.reason)))
            }
            (Some(Ok(value)), None) => Ok(value),
            (None, None) => Err(file.thread_stopped_error()),
        };
        // The caller may have dropped its future.
        answer.send(result).ok();
    }
}

struct WriterThread {
    db: Connection,
    file: Arc<DatabaseFile>,
    counters: Arc<WriterCounters>,
    gaps: JournalGaps,
    turn: WriterTurn,
    store_id: String,
    mark: Option<CommitMark>,
    /// Place of the file, until it is recorded.
    unrecorded_place: Option<FilePlace>,
    /// Current setting of the connection: true if commits wait for the disk.
    waits_for_sync: Option<bool>,
    /// The cause, if the writer has stopped for good.
    stop_reason: Option<CommitFailure>,
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        // Releases readers that wait for this thread.
        self.counters.settle_early_acks_up_to(u64::MAX);
    }
}

impl WriterThread {
    fn run(mut self, requests: &mpsc::Receiver<WriteRequest>) {
        while let Some(first) = self.next_request(requests) {
            self.turn.take();
            // Requests that came while this process waited for its turn share the commit.
            let mut batch = vec![first];
            batch.extend(requests.try_iter().take(MAX_BATCH_REQUESTS - 1));
            self.execute_batch(&mut batch);
            self.turn.yield_if_due();
        }
        self.turn.end();
    }

    /// Returns the next request. The turn ends before the thread waits for one.
    fn next_request(&mut self, requests: &mpsc::Receiver<WriteRequest>) -> Option<WriteRequest> {
        match requests.try_recv() {
            Ok(request) => Some(request),
            Err(mpsc::TryRecvError::Disconnected) => None,
            Err(mpsc::TryRecvError::Empty) => {
                self.turn.end();
                requests.recv().ok()
            }
        }
    }

    fn execute_batch(&mut self, batch: &mut [WriteRequest]) {
        let lost = match &self.stop_reason {
            Some(why) => Some(why.clone()),
            None => self.run_transaction(batch).err().map(|trouble| self.roll_back(trouble)),
        };
        if lost.is_some() {
            for lease in batch.iter().filter_map(|request| request.appends_to.as_ref()) {
                self.gaps.record_gap(lease);
            }
        }
        self.counters.settle_early_acks();
        for request in batch {
            request.operation.send_result(&self.file, lost.as_ref());
        }
    }

    fn run_transaction(&mut self, batch: &mut [WriteRequest]) -> Result<(), SqliteError> {
        self.file.check_in_place()?;
        self.set_sync_mode(batch.iter().any(|request| request.ack_level == AckLevel::Synced))?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut records_place = false;
        for request in batch.iter_mut() {
            let mut desk = WriteTx {
                db: &self.db,
                gaps: &mut self.gaps,
                unrecorded_place: self.unrecorded_place.as_ref(),
                records_place: &mut records_place,
            };
            let done = request.operation.execute(&mut desk)?;
            if let (ExecuteStatus::Failed, Some(lease)) = (done, &request.appends_to) {
                self.gaps.record_gap(lease);
            }
            if request.ack_level == AckLevel::InTransaction {
                self.counters.early_acks.fetch_add(1, Ordering::AcqRel);
                request.operation.send_result(&self.file, None);
            }
        }
        let count = "UPDATE store SET commits = commits + 1 RETURNING commits";
        let number: i64 = self.db.prepare_cached(count)?.query_row([], |row| row.get(0))?;
        self.db.prepare_cached("COMMIT")?.execute([])?;
        if let (Some(mark), Some(true)) = (&mut self.mark, self.waits_for_sync) {
            mark.write(&self.store_id, u64::try_from(number).unwrap_or_default());
        }
        if records_place {
            self.unrecorded_place = None;
        }
        let WriterCounters { requests, commits, syncs, .. } = &*self.counters;
        requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
        commits.fetch_add(1, Ordering::Relaxed);
        syncs.fetch_add(u64::from(self.waits_for_sync == Some(true)), Ordering::Relaxed);
        Ok(())
    }

    /// Sets if commits wait for the disk. The statement is not cached: SQLite executes this pragma when it is
    /// compiled.
    fn set_sync_mode(&mut self, is_synced: bool) -> Result<(), rusqlite::Error> {
        if self.waits_for_sync != Some(is_synced) {
            self.db.pragma_update(None, "synchronous", if is_synced { "FULL" } else { "NORMAL" })?;
            self.waits_for_sync = Some(is_synced);
        }
        Ok(())
    }

    /// Rolls back the open transaction and returns the cause of the failure.
    fn roll_back(&mut self, trouble: SqliteError) -> CommitFailure {
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "a transaction could not be rolled back");
        }
        let may_go_on = !is_sync_failure(&trouble);
        let explained = self.file.to_store_error(trouble);
        let lost = CommitFailure { kind: explained.kind(), reason: explained.to_string() };
        if !may_go_on {
            // After a failed fsync the kernel may drop the dirty pages: a retry would succeed without the data.
            let why = format!("{}; the store must be opened again", lost.reason);
            self.stop_reason = Some(CommitFailure { kind: lost.kind, reason: why });
        }
        lost
    }
}
