//! Hints that there may be work, from this process and from the others that use the file.
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

use super::file::{DatabaseFile, SqliteError};
use super::queue;
use crate::error::StoreError;

/// Time between two looks at the file for the work of other processes.
const WATCH_INTERVAL: Duration = Duration::from_millis(15);

/// The hints of a store.
#[derive(Debug)]
pub(super) struct WorkHint {
    work: Arc<Notify>,
    file: Arc<DatabaseFile>,
    /// Watches the file from the first wait on.
    watcher: OnceLock<Option<FileWatcher>>,
}

impl WorkHint {
    pub(super) fn new(file: &Arc<DatabaseFile>) -> Self {
        Self { work: Arc::default(), file: file.clone(), watcher: OnceLock::new() }
    }

    /// Tells the workers of this process that there may be work.
    pub(super) fn give(&self) {
        self.work.notify_waiters();
    }

    /// Waits for a hint that is given after this call, also before the future is polled.
    pub(super) fn wait(&self) -> BoxFuture<'_, ()> {
        self.watcher.get_or_init(|| match FileWatcher::start(&self.file, self.work.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(%error, "the work of other processes is found by polling only");
                None
            }
        });
        self.work.notified().boxed()
    }
}

/// A thread with a connection of its own. Dropping it ends the thread and closes the connection.
#[derive(Debug)]
struct FileWatcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    fn start(file: &Arc<DatabaseFile>, work: Arc<Notify>) -> Result<Self, StoreError> {
        let db = file.connect_to_read()?;
        let (stop, stopped) = channel::<()>();
        let thread = thread::Builder::new().name("windlass-watcher".to_owned()).spawn(move || {
            let mut seen = QueueView::default();
            while stopped.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                match seen.look_for_work(&db) {
                    Ok(true) => work.notify_waiters(),
                    Ok(false) => {}
                    // Workers go on polling, and say what fails.
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

/// The queue as the watcher has seen it last.
#[derive(Default)]
struct QueueView {
    version: i64,
    position: i64,
}

impl QueueView {
    /// Returns true if a run has become ready since the last look. Only a file that was written to is read.
    fn look_for_work(&mut self, db: &Connection) -> Result<bool, SqliteError> {
        let version = db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version == self.version {
            return Ok(false);
        }
        let (position, has_ready_run) = queue::last_position(db)?;
        let is_new = position != self.position;
        *self = Self { version, position };
        Ok(is_new && has_ready_run)
    }
}
