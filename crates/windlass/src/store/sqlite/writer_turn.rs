//! The order of the processes that write to one file.
//!
//! SQLite's write lock has no queue: whoever waits for it polls, so the lock stands idle after each commit while the
//! others sleep, and an unlucky writer starves. Here writers take turns by two advisory file locks on which the
//! operating system blocks and wakes. A writer takes `next`, then `turn`, then releases `next`: a process that has had
//! its turn waits behind the one that holds `next`. While a writer waits, its requests pile up and share one commit.
//!
//! The locks are a courtesy and protect nothing: SQLite's lock decides. A writer that is not given its turn in time
//! goes on without it.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time that a writer keeps its turn while it has requests. Several commits in a row reuse the page cache, which
/// SQLite drops when another process has written.
const TURN_LENGTH: Duration = Duration::from_millis(10);

/// The turns of this process.
#[derive(Debug)]
pub(super) struct WriterTurn {
    /// `None` where the system has no file locks.
    locks: Option<Arc<TurnLocks>>,
    timeout: Duration,
    /// Start of the current turn, if this process has it.
    since: Option<Instant>,
}

#[derive(Debug)]
struct TurnLocks {
    next: File,
    turn: File,
    request: Mutex<TurnRequest>,
    changed: Condvar,
}

/// The state of the request that a helper thread makes, because a file lock cannot be waited for with a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnRequest {
    Idle,
    Waiting,
    Granted,
    /// Nobody waits for the turn any more. The helper thread releases it as soon as it has it.
    Abandoned,
}

/// Suffix of the file whose lock is the turn of a writer. It holds the number of synced commits.
pub(super) const TURN_SUFFIX: &str = "-turn";

/// Opens a file beside a database file, and creates it if it is missing.
pub(super) fn open_companion_file(database: &Path, suffix: &str) -> io::Result<File> {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    // The store may be private, and the locks say how much is written to it.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl WriterTurn {
    /// Opens the locks beside a database file.
    pub(super) fn open(database: &Path, timeout: Duration) -> Self {
        let locks = open_companion_file(database, "-next").and_then(|next| {
            Ok(Arc::new(TurnLocks {
                next,
                turn: open_companion_file(database, TURN_SUFFIX)?,
                request: Mutex::new(TurnRequest::Idle),
                changed: Condvar::new(),
            }))
        });
        Self { locks: locks.ok(), timeout, since: None }
    }

    /// Waits for the turn of this process, up to the timeout.
    pub(super) fn take(&mut self) {
        let Some(locks) = &self.locks else { return };
        if self.since.is_some() {
            return;
        }
        match locks.take_at_once() {
            Ok(()) => self.since = Some(Instant::now()),
            Err(TryLockError::WouldBlock) => {
                if locks.wait(self.timeout) {
                    self.since = Some(Instant::now());
                }
            }
            Err(TryLockError::Error(_)) => self.locks = None,
        }
    }

    /// Ends the turn if it has lasted long enough.
    pub(super) fn yield_if_due(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= TURN_LENGTH) {
            self.end();
        }
    }

    /// Ends the turn of this process, if it has it.
    pub(super) fn end(&mut self) {
        if let (Some(locks), Some(_)) = (&self.locks, self.since.take()) {
            locks.turn.unlock().ok();
        }
    }
}

impl TurnLocks {
    /// Takes the turn if nobody has it or waits for it.
    fn take_at_once(&self) -> Result<(), TryLockError> {
        if *self.lock_request() != TurnRequest::Idle {
            return Err(TryLockError::WouldBlock);
        }
        self.next.try_lock()?;
        let taken = self.turn.try_lock();
        self.next.unlock().map_err(TryLockError::Error)?;
        taken
    }

    /// Waits for the turn. Returns true if it was granted in time.
    fn wait(self: &Arc<Self>, timeout: Duration) -> bool {
        let mut request = self.lock_request();
        if *request != TurnRequest::Idle {
            // The helper thread still waits for a turn that was given up: some process does not pass it on.
            return false;
        }
        let locks = self.clone();
        let helper =
            thread::Builder::new().name("windlass-turn".to_owned()).spawn(move || locks.take_blocking());
        if helper.is_err() {
            return false;
        }
        *request = TurnRequest::Waiting;
        let (mut request, _) = self
            .changed
            .wait_timeout_while(request, timeout, |request| *request == TurnRequest::Waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let found = *request;
        *request = match found {
            TurnRequest::Waiting => TurnRequest::Abandoned,
            TurnRequest::Idle | TurnRequest::Granted | TurnRequest::Abandoned => TurnRequest::Idle,
        };
        found == TurnRequest::Granted
    }

    /// Takes the turn, however long it takes, and reports it to the waiting writer.
    fn take_blocking(&self) {
        let taken = self.next.lock().and_then(|()| self.turn.lock());
        self.next.unlock().ok();
        let mut request = self.lock_request();
        if *request == TurnRequest::Waiting && taken.is_ok() {
            *request = TurnRequest::Granted;
        } else {
            self.turn.unlock().ok();
            *request = TurnRequest::Idle;
        }
        self.changed.notify_all();
    }

    fn lock_request(&self) -> MutexGuard<'_, TurnRequest> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
