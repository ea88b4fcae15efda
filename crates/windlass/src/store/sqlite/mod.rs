//! A store in one SQLite file: runs, journals, posted decisions, receipts, artefacts and sessions.

mod file;
mod reader;
mod receipts;
mod runs;
mod schema;
mod sessions;
mod snapshots;
mod withheld;
mod writer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::{
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::{Item, OutputContent},
    journal::JournalLine,
};

use self::file::{DatabaseFile, SqliteError};
use self::reader::ReaderPool;
use self::runs::OwnedLeaseClaim;
use self::writer::{AckLevel, RequestSubject, SqliteWriter, WriteTx};
use super::{
    Durability, Lease, LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, RunStatus, Store, StoreFuture,
    StoredRun, StoredSnapshot,
};
use crate::error::StoreError;
use crate::session::{SessionState, SessionStore};

/// Environment variable that [`SqliteStore::from_env`] reads.
const PATH_VARIABLE: &str = "WINDLASS_STORE";
/// Path if the variable is not set.
const DEFAULT_PATH: &str = "windlass.db";

/// Default number of records between snapshots: replaying so many takes some milliseconds.
const DEFAULT_SNAPSHOT_INTERVAL: u64 = 2048;

/// A store in one SQLite file. It is durable across crashes and power loss.
///
/// Several processes on one machine may use one file concurrently. The file must be on a local disk. While it is
/// open, SQLite keeps two more files beside it, `…-wal` and `…-shm`.
///
/// Concurrent writes share a group commit. A write is executed even if its future is dropped. Dropping the
/// store waits until all requested writes are committed.
///
/// ```
/// use std::sync::Arc;
///
/// use windlass::store::SqliteStore;
/// use windlass::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("windlass.db");
/// let store = Arc::new(SqliteStore::open(path)?);
/// let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
/// let session = Session::new("ann", store.clone());
/// agent.run("Hello").store(store).session(&session).await?;
/// assert_eq!(session.items().await?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    // Dropped before the writer: the last connection to close runs the checkpoint, and must be able to write.
    readers: ReaderPool,
    writer: Option<SqliteWriter>,
    file: Arc<DatabaseFile>,
    snapshot_interval: u64,
}

/// Statistics of a store's writes since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterStats {
    /// Number of requests.
    pub requests: u64,
    /// Number of commits.
    pub commits: u64,
    /// Number of commits that waited for the disk.
    pub syncs: u64,
}

impl SqliteStore {
    /// Opens the store in a file, and creates the file and its folder if they do not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the file belongs to another program or a newer version. The file is then unchanged.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let file = Arc::new(DatabaseFile::new(path.into()));
        let writer = SqliteWriter::start(file.open_for_writing()?, file.clone())?;
        let readers = ReaderPool::start(&file, writer.counters())?;
        Ok(Self { readers, writer: Some(writer), file, snapshot_interval: DEFAULT_SNAPSHOT_INTERVAL })
    }

    /// Opens a damaged or truncated file for reading. All intact pages can be read; nothing is changed, and
    /// writes return an error.
    pub fn salvage(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let file = Arc::new(DatabaseFile::new(path.into()));
        let readers = ReaderPool::start_salvage(&file)?;
        Ok(Self { readers, writer: None, file, snapshot_interval: DEFAULT_SNAPSHOT_INTERVAL })
    }

    /// Opens the store at the path in the environment variable `WINDLASS_STORE`, or else `windlass.db` in the
    /// current directory.
    pub fn from_env() -> Result<Self, StoreError> {
        let named = std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty());
        Self::open(named.unwrap_or_else(|| OsString::from(DEFAULT_PATH)))
    }

    /// Sets the number of records between snapshots, which speed up opening long runs; the default is 2,048.
    #[must_use]
    pub fn with_snapshot_interval(mut self, records: u64) -> Self {
        self.snapshot_interval = records;
        self
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Waits until all writes requested so far are durable.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let flushed = self.submit_write(RequestSubject::Store, AckLevel::Synced, |desk| {
            // Only a commit with changes waits for the disk. This one writes an unchanged value.
            Ok(desk.db.pragma_update(None, "user_version", schema::SCHEMA_VERSION)?)
        });
        flushed.await
    }

    /// Returns the statistics of the writes since the store was opened.
    pub fn writer_stats(&self) -> WriterStats {
        match &self.writer {
            Some(writer) => writer.counters().to_stats(),
            None => WriterStats::default(),
        }
    }

    fn submit_write<T, F>(&self, about: RequestSubject, when: AckLevel, work: F) -> StoreFuture<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTx<'_>) -> Result<T, SqliteError> + Send + 'static,
    {
        match &self.writer {
            Some(writer) => writer.submit(about, when, work),
            None => std::future::ready(Err(self.file.read_only_error(&about))).boxed(),
        }
    }
}

impl Store for SqliteStore {
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, Lease> {
        let (run, agent, by) = (run.clone(), agent.clone(), OwnedLeaseClaim::from(claim));
        let about = RequestSubject::Run(run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            runs::create_run(desk.db, &run, &agent, &by)
        })
    }

    fn acquire_lease<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreFuture<'a, Lease> {
        let (run, by) = (run.clone(), OwnedLeaseClaim::from(claim));
        let about = RequestSubject::Run(run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| runs::acquire_lease(desk, &run, &by))
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| runs::renew_lease(desk.db, &lease, until))
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| runs::release_lease(desk.db, &lease))
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        let when = match durability {
            Durability::Deferred => AckLevel::InTransaction,
            Durability::Sync => AckLevel::Synced,
        };
        let owned = lease.clone();
        match &self.writer {
            Some(writer) => {
                writer.submit_append(lease, when, move |desk| runs::append_journal(desk, &owned, at, &lines))
            }
            None => {
                std::future::ready(Err(self.file.read_only_error(&RequestSubject::Run(owned.run)))).boxed()
            }
        }
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            runs::set_status(desk.db, &lease, status, now)
        })
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| runs::load_journal(db, &run, from))
    }

    fn snapshot_interval(&self) -> Option<u64> {
        Some(self.snapshot_interval)
    }

    fn save_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            snapshots::save_snapshot(desk.db, &lease, &snapshot)
        })
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| snapshots::load_snapshot(db, &run))
    }

    fn list_runs(&self) -> StoreFuture<'_, Vec<StoredRun>> {
        self.readers.run_read(RequestSubject::Store, runs::list_runs)
    }

    fn post_decision<'a>(&'a self, run: &'a RunId, posted: PostedDecision) -> StoreFuture<'a, ()> {
        let run = run.clone();
        let about = RequestSubject::Run(run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| runs::post_decision(desk.db, &run, &posted))
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| runs::posted_decisions(db, &run))
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        let (key, by) = (key.clone(), OwnedLeaseClaim::from(claim));
        self.submit_write(RequestSubject::Receipts, AckLevel::Committed, move |desk| {
            receipts::claim_receipt(desk.db, &key, &by)
        })
    }

    fn save_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreFuture<'a, ()> {
        let (key, owner, output) = (key.clone(), owner.to_owned(), output.clone());
        self.submit_write(RequestSubject::Receipts, AckLevel::Synced, move |desk| {
            receipts::save_receipt(desk.db, &key, &owner, &output, expires)
        })
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        let (key, owner) = (key.clone(), owner.to_owned());
        self.submit_write(RequestSubject::Receipts, AckLevel::Committed, move |desk| {
            receipts::release_receipt(desk.db, &key, &owner)
        })
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        let (lease, call, output) = (lease.clone(), call.clone(), output.clone());
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            withheld::save_output(desk.db, &lease, &call, &output)
        })
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        let (run, call) = (run.clone(), call.clone());
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| withheld::load_output(db, &run, &call))
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, except: &'a [CallPath]) -> StoreFuture<'a, ()> {
        let (lease, except) = (lease.clone(), except.to_vec());
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            withheld::erase_outputs(desk.db, &lease, &except)
        })
    }

    fn save_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreFuture<'a, ()> {
        let (run, name, text) = (run.clone(), name.to_owned(), text.to_owned());
        let about = RequestSubject::Run(run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            runs::save_artefact(desk.db, &run, &name, &text)
        })
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<String>> {
        let (run, name) = (run.clone(), name.to_owned());
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| runs::load_artefact(db, &run, &name))
    }
}

impl SessionStore for SqliteStore {
    fn load_session<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        let session = session.clone();
        self.readers.run_read(RequestSubject::Session(session.clone()), move |db| {
            sessions::load_session(db, &session)
        })
    }

    fn append_items<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            sessions::append_items(desk.db, &session, &items)
        })
    }

    fn replace_items<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            sessions::replace_items(desk.db, &session, version, &items)
        })
    }

    fn list_sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        self.readers.run_read(RequestSubject::Store, sessions::list_sessions)
    }
}

impl From<LeaseClaim<'_>> for OwnedLeaseClaim {
    fn from(claim: LeaseClaim<'_>) -> Self {
        Self { owner: claim.owner.to_owned(), now: claim.now, expires_at: claim.expires_at }
    }
}

/// Converts a number to an SQLite integer.
fn to_sql_integer(number: u64) -> Result<i64, SqliteError> {
    i64::try_from(number).map_err(|_| StoreError::new(format!("{number} is too large a number")).into())
}

fn from_sql_integer(number: i64) -> Result<u64, SqliteError> {
    u64::try_from(number).map_err(|_| SqliteError::Corrupt(format!("{number} stands where a count should")))
}

/// Converts a time to an SQLite integer. Later times saturate.
fn to_sql_time(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn from_sql_time(time: i64) -> Timestamp {
    Timestamp(u64::try_from(time).unwrap_or_default())
}

fn to_json_text(value: &impl Serialize) -> Result<String, SqliteError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::new("a value cannot be written").with_source(error).into())
}

fn from_json_text<T: DeserializeOwned>(text: &str) -> Result<T, SqliteError> {
    serde_json::from_str(text)
        .map_err(|error| SqliteError::Corrupt(format!("a value cannot be read: {error}")))
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
