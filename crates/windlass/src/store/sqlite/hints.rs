//! Hints that there may be work or a decision, from this process and from the others that use the file.
//!
//! A hint may be missing or needless: polling is the truth.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::Notify;
use windlass_core::id::RunId;

use super::file::{DatabaseFile, SqliteError};
use super::{decisions, queue};
use crate::error::StoreError;
use crate::store::DecisionHints;

/// Time between two looks at the file for what other processes have written.
const WATCH_INTERVAL: Duration = Duration::from_millis(15);

/// The hints of a store.
#[derive(Debug)]
pub(super) struct StoreHints {
    work: Arc<Notify>,
    decisions: DecisionHints,
    file: Arc<DatabaseFile>,
    /// Watches the file from the first wait on.
    watcher: OnceLock<Option<FileWatcher>>,
}

impl StoreHints {
    pub(super) fn new(file: &Arc<DatabaseFile>) -> Self {
        Self {
            work: Arc::default(),
            decisions: DecisionHints::default(),
            file: file.clone(),
            watcher: OnceLock::new(),
        }
    }

    /// Tells the workers of this process that there may be work.
    pub(super) fn give_work(&self) {
        self.work.notify_waiters();
    }

    /// Tells the driver of a run in this process that a decision was posted.
    pub(super) fn give_decision(&self, run: &RunId) {
        self.decisions.give(run);
    }

    /// Waits for a hint at work that is given after this call, also before the future is polled.
    pub(super) fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.watch_file();
        self.work.notified().boxed()
    }

    /// Waits for a hint at a decision that is given after this call, also before the future is polled.
    pub(super) fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.watch_file();
        self.decisions.wait(run)
    }

    fn watch_file(&self) {
        self.watcher.get_or_init(|| {
            match FileWatcher::start(&self.file, self.work.clone(), self.decisions.clone()) {
                Ok(watcher) => Some(watcher),
                Err(error) => {
                    tracing::warn!(%error, "the writes of other processes are found by polling only");
                    None
                }
            }
        });
    }
}

/// A thread with a connection of its own. Dropping it ends the thread and closes the connection.
#[derive(Debug)]
struct FileWatcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    fn start(
        file: &Arc<DatabaseFile>,
        work: Arc<Notify>,
        decided: DecisionHints,
    ) -> Result<Self, StoreError> {
        let db = file.connect_to_read()?;
        let mut seen = FileView::default();
        // Here, and not in the thread: what is written after the first wait has begun is news.
        if let Err(error) = seen.look_for_news(&db) {
            tracing::debug!(?error, "the file cannot be watched yet");
        }
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new().name("windlass-watcher".to_owned()).spawn(move || {
            while stopped.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                match seen.look_for_news(&db) {
                    Ok(news) => {
                        if news.has_work {
                            work.notify_waiters();
                        }
                        news.decided_runs.iter().for_each(|run| decided.give(run));
                    }
                    // Workers and drivers go on polling, and say what fails.
                    Err(error) => tracing::debug!(?error, "the file cannot be watched now"),
                }
            }
        });
        let thread =
            thread.map_err(|error| StoreError::new("a thread cannot be started").with_source(error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The file as the watcher has seen it last.
#[derive(Default)]
struct FileView {
    version: i64,
    queue_position: i64,
    /// Position of the last posted decision. None before the first look: drivers find the decisions before it by themselves.
    decision_position: Option<i64>,
}

/// Changes since the last look.
#[derive(Default)]
struct FileNews {
    /// A run has become ready.
    has_work: bool,
    /// Runs about which decisions were posted.
    decided_runs: Vec<RunId>,
}

impl FileView {
    /// Returns the changes since the last look. Only a file that was written to is read.
    fn look_for_news(&mut self, db: &Connection) -> Result<FileNews, SqliteError> {
        let version = db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version == self.version {
            return Ok(FileNews::default());
        }
        let (queue_position, has_ready_run) = queue::last_position(db)?;
        let decision_position = decisions::last_position(db)?;
        let decided_runs = match self.decision_position {
            Some(seen) if seen < decision_position => decisions::runs_decided_after(db, seen)?,
            Some(_) | None => Vec::new(),
        };
        let has_work = queue_position != self.queue_position && has_ready_run;
        *self = Self { version, queue_position, decision_position: Some(decision_position) };
        Ok(FileNews { has_work, decided_runs })
    }
}
