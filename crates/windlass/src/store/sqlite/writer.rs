//! The writer: one thread with one connection, and one commit for everything that waits.
//!
//! A request is in the queue when the method that makes it returns, so requests are carried out in the order of
//! the calls, whoever awaits what and when. The thread takes everything that waits, carries it out in one
//! transaction, commits once, and answers. While the disk is busy with one commit the next batch gathers: the more
//! there is to write, the more a commit carries, and nobody waits for a timer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use futures_util::FutureExt;
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use windlass_core::{RunId, SessionId};

use super::Written;
use super::file::{File, Trouble, is_not_synced};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Lease, StoreResult};

/// How many requests may wait at once. A caller that awaits its answers has one request waiting for each future
/// that it holds, and so is held back by itself; this limit is for callers that do not, and beyond it requests are
/// refused. A request cannot be made to wait outside the queue: it would lose its place.
const WAITING: usize = 65_536;

/// How many requests one transaction carries out at most, so that other processes have their turn.
const BATCH: usize = 1024;

/// When a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// When it is in the transaction. If the commit fails, the requests of the same run that follow are refused.
    AtOnce,
    /// When every process can see it. It survives the process, not the loss of power: good for leases, which the
    /// loss of power ends anyhow. The next request that is synced takes it along.
    Committed,
    /// When the disk has it.
    Synced,
}

/// What a request is about, for error messages.
#[derive(Clone, Debug)]
pub(super) enum About {
    Run(RunId),
    Session(SessionId),
    Receipts,
    Store,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(run) => write!(f, "run `{run}`"),
            Self::Session(session) => write!(f, "session `{session}`"),
            Self::Receipts => f.write_str("receipts"),
            Self::Store => f.write_str("the store"),
        }
    }
}

/// What a request works with.
pub(super) struct Desk<'a> {
    pub(super) db: &'a Connection,
    pub(super) gaps: &'a mut Gaps,
}

/// Runs with lines that could not be written, and the epoch of who tried. Lines that were on their way after them
/// are refused for that reason, rather than because somebody else seems to drive the run.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    runs: BTreeMap<RunId, u64>,
}

impl Gaps {
    pub(super) fn is_behind(&self, lease: &Lease) -> bool {
        self.runs.get(&lease.run) == Some(&lease.epoch)
    }

    pub(super) fn forget(&mut self, run: &RunId) {
        self.runs.remove(run);
    }

    fn add(&mut self, lease: &Lease) {
        self.runs.insert(lease.run.clone(), lease.epoch);
    }
}

/// Counts, for whoever wants to know how many requests a commit carries.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: AtomicU64,
    commits: AtomicU64,
    syncs: AtomicU64,
    answered_at_once: AtomicU64,
    settled: Mutex<u64>,
    moved: Condvar,
}

impl Tally {
    pub(super) fn written(&self) -> Written {
        Written {
            requests: self.requests.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }

    /// Waits until everything that was answered before its commit has had its commit, so that whoever was answered
    /// reads what they wrote.
    pub(super) fn wait_for_answered(&self) {
        let answered = self.answered_at_once.load(Ordering::Acquire);
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        while *settled < answered {
            settled = self.moved.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn settle(&self) {
        self.settle_up_to(self.answered_at_once.load(Ordering::Acquire));
    }

    fn settle_up_to(&self, answered: u64) {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if *settled < answered {
            *settled = answered;
            self.moved.notify_all();
        }
    }
}

/// The way to the writer's thread. Dropping it lets the thread finish what waits, and waits for that.
#[derive(Debug)]
pub(super) struct Writer {
    requests: Option<mpsc::Sender<Request>>,
    room: Arc<Semaphore>,
    file: Arc<File>,
    tally: Arc<Tally>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(db: Connection, file: Arc<File>) -> Result<Self, StoreError> {
        let (requests, waiting) = mpsc::channel();
        let tally = Arc::new(Tally::default());
        let thread = Thread {
            db,
            file: file.clone(),
            tally: tally.clone(),
            gaps: Gaps::default(),
            is_synced: None,
            stopped: None,
        };
        let thread =
            thread::Builder::new().name("windlass-writer".to_owned()).spawn(move || thread.run(&waiting));
        let thread =
            thread.map_err(|error| StoreError::new("the writer cannot be started").caused_by(error))?;
        let room = Arc::new(Semaphore::new(WAITING));
        Ok(Self { requests: Some(requests), room, file, tally, thread: Some(thread) })
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Puts a request in the queue. It is carried out whether or not anybody awaits the answer.
    pub(super) fn write<T, F>(&self, about: About, when: When, work: F) -> StoreResult<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Desk<'_>) -> Result<T, Trouble> + Send + 'static,
    {
        self.queue(about, when, None, work)
    }

    /// As [`Writer::write`], for lines of a run.
    pub(super) fn append<F>(&self, lease: &Lease, when: When, work: F) -> StoreResult<'static, ()>
    where
        F: FnOnce(&mut Desk<'_>) -> Result<(), Trouble> + Send + 'static,
    {
        self.queue(About::Run(lease.run.clone()), when, Some(lease.clone()), work)
    }

    fn queue<T, F>(
        &self,
        about: About,
        when: When,
        appends: Option<Lease>,
        work: F,
    ) -> StoreResult<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Desk<'_>) -> Result<T, Trouble> + Send + 'static,
    {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            let message =
                format!("{about}: {WAITING} requests wait for `{}` already", self.file.path.display());
            return std::future::ready(Err(StoreError::new(message))).boxed();
        };
        let (answer, answered) = oneshot::channel();
        let job = Job { about, work: Some(work), result: None, answer: Some(answer) };
        let request = Request { when, appends, work: Box::new(job), _room: room };
        // Where the thread is gone, so is the sender of the answer.
        if let Some(requests) = &self.requests {
            requests.send(request).ok();
        }
        let file = self.file.clone();
        async move { answered.await.unwrap_or_else(|_| Err(file.stopped())) }.boxed()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Request {
    when: When,
    /// Whose lines it appends, where it does.
    appends: Option<Lease>,
    work: Box<dyn Work>,
    _room: OwnedSemaphorePermit,
}

trait Work: Send {
    /// Carries the request out. An error means that the whole transaction cannot go on.
    fn carry_out(&mut self, desk: &mut Desk<'_>) -> Result<Done, Trouble>;

    /// Gives the answer, once; `lost` says why there was no commit.
    fn answer(&mut self, file: &File, lost: Option<&Lost>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    Well,
    Refused,
    /// The file did not allow it.
    Failed,
}

/// Why a batch was not committed.
#[derive(Clone, Debug)]
struct Lost {
    kind: StoreErrorKind,
    why: String,
}

struct Job<T, F> {
    about: About,
    work: Option<F>,
    result: Option<Result<T, Trouble>>,
    answer: Option<oneshot::Sender<Result<T, StoreError>>>,
}

impl<T, F> Work for Job<T, F>
where
    T: Send,
    F: FnOnce(&mut Desk<'_>) -> Result<T, Trouble> + Send,
{
    fn carry_out(&mut self, desk: &mut Desk<'_>) -> Result<Done, Trouble> {
        let Some(work) = self.work.take() else { return Ok(Done::Well) };
        // What one request leaves half-done must not be committed with the others.
        desk.db.prepare_cached("SAVEPOINT request")?.execute([])?;
        let result = work(desk);
        if desk.db.is_autocommit() {
            // Some failures make SQLite roll the whole transaction back.
            return Err(result
                .err()
                .unwrap_or_else(|| Trouble::Damaged("a transaction was undone".to_owned())));
        }
        let done = match &result {
            Ok(_) => Done::Well,
            Err(Trouble::Refused(_)) => Done::Refused,
            Err(Trouble::Sqlite(_) | Trouble::Damaged(_)) => Done::Failed,
        };
        self.result = Some(result);
        if done != Done::Well {
            desk.db.prepare_cached("ROLLBACK TO request")?.execute([])?;
        }
        desk.db.prepare_cached("RELEASE request")?.execute([])?;
        Ok(done)
    }

    fn answer(&mut self, file: &File, lost: Option<&Lost>) {
        let Some(answer) = self.answer.take() else { return };
        let result = match (self.result.take(), lost) {
            (Some(Err(trouble)), _) => Err(file.explain_about(&self.about, trouble)),
            (Some(Ok(_)) | None, Some(lost)) => {
                Err(StoreError::of(lost.kind, format!("{}: {}", self.about, lost.why)))
            }
            (Some(Ok(value)), None) => Ok(value),
            (None, None) => Err(file.stopped()),
        };
        // Nobody may be waiting any more.
        answer.send(result).ok();
    }
}

struct Thread {
    db: Connection,
    file: Arc<File>,
    tally: Arc<Tally>,
    gaps: Gaps,
    /// Whether commits wait for the disk, as the connection is set now.
    is_synced: Option<bool>,
    /// Why nothing is written any more.
    stopped: Option<Lost>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Nobody waits for a thread that is gone.
        self.tally.settle_up_to(u64::MAX);
    }
}

impl Thread {
    fn run(mut self, requests: &mpsc::Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let mut batch = vec![first];
            batch.extend(requests.try_iter().take(BATCH - 1));
            self.carry_out(&mut batch);
        }
    }

    fn carry_out(&mut self, batch: &mut [Request]) {
        let lost = match &self.stopped {
            Some(why) => Some(why.clone()),
            None => self.transaction(batch).err().map(|trouble| self.lost(trouble)),
        };
        if lost.is_some() {
            for lease in batch.iter().filter_map(|request| request.appends.as_ref()) {
                self.gaps.add(lease);
            }
        }
        self.tally.settle();
        for request in batch {
            request.work.answer(&self.file, lost.as_ref());
        }
    }

    fn transaction(&mut self, batch: &mut [Request]) -> Result<(), Trouble> {
        self.file.is_in_place()?;
        self.sync(batch.iter().any(|request| request.when == When::Synced))?;
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for request in batch.iter_mut() {
            let mut desk = Desk { db: &self.db, gaps: &mut self.gaps };
            let done = request.work.carry_out(&mut desk)?;
            if let (Done::Failed, Some(lease)) = (done, &request.appends) {
                self.gaps.add(lease);
            }
            if request.when == When::AtOnce {
                self.tally.answered_at_once.fetch_add(1, Ordering::AcqRel);
                request.work.answer(&self.file, None);
            }
        }
        self.db.prepare_cached("COMMIT")?.execute([])?;
        let Tally { requests, commits, syncs, .. } = &*self.tally;
        requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
        commits.fetch_add(1, Ordering::Relaxed);
        syncs.fetch_add(u64::from(self.is_synced == Some(true)), Ordering::Relaxed);
        Ok(())
    }

    /// Sets whether commits wait for the disk. Not a prepared statement: SQLite acts on it when it is compiled.
    fn sync(&mut self, is_synced: bool) -> Result<(), rusqlite::Error> {
        if self.is_synced != Some(is_synced) {
            self.db.pragma_update(None, "synchronous", if is_synced { "FULL" } else { "NORMAL" })?;
            self.is_synced = Some(is_synced);
        }
        Ok(())
    }

    /// Undoes what is left of a transaction, and says why there was no commit.
    fn lost(&mut self, trouble: Trouble) -> Lost {
        if !self.db.is_autocommit()
            && let Err(error) = self.db.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "a transaction could not be rolled back");
        }
        let may_go_on = !is_not_synced(&trouble);
        let explained = self.file.explain(trouble);
        let lost = Lost { kind: explained.kind(), why: explained.to_string() };
        if !may_go_on {
            // A second attempt may seem to succeed although what the first one wrote is gone.
            let why = format!("{}; the store must be opened again", lost.why);
            self.stopped = Some(Lost { kind: lost.kind, why });
        }
        lost
    }
}
