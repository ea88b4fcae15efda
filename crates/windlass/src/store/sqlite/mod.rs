//! A store in one SQLite file: runs, their journals, posted decisions, receipts, artefacts and sessions.

mod file;
mod reader;
mod receipts;
mod runs;
mod schema;
mod sessions;
mod snapshots;
mod writer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::{AgentName, Item, Line, OutputContent, RunId, SessionId, Timestamp};

use self::file::{File, Trouble};
use self::reader::Readers;
use self::runs::Claimant;
use self::writer::{About, Desk, When, Writer};
use super::{
    Durability, Lease, LeaseClaim, Posted, ReceiptClaim, ReceiptKey, RunStatus, Snapshot, Store, StoreResult,
    StoredRun,
};
use crate::error::StoreError;
use crate::session::{SessionState, SessionStore};

/// The variable that [`SqliteStore::from_env`] looks at.
const VARIABLE: &str = "WINDLASS_STORE";
/// Where it looks without one.
const DEFAULT_PATH: &str = "windlass.db";

/// After how many records a run is worth a snapshot: reading so many takes some milliseconds.
const SNAPSHOT_EVERY: u64 = 2048;

/// A store in one SQLite file: it survives the process, and the loss of power.
///
/// Several processes on one machine may use one file at once. The file must be on a local disk. While it is open
/// there are two more beside it, `…-wal` and `…-shm`, which belong to it.
///
/// Writes that wait at the same time are committed together. A future that is dropped does not take its write back.
/// Dropping the store waits until everything that was asked of it is written.
///
/// ```
/// use std::sync::Arc;
///
/// use windlass::SqliteStore;
/// use windlass::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("windlass.db");
/// let store = Arc::new(SqliteStore::open(path)?);
/// let agent = Agent::new("host").model(ScriptedModel::new([Reply::text("Good morning.")]));
/// let session = Session::new("ann", store.clone());
/// agent.run("Hello").store(store).session(&session).await?;
/// assert_eq!(session.items().await?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    // Before the writer: whoever closes last tidies up, and that should be who can write.
    readers: Readers,
    writer: Option<Writer>,
    file: Arc<File>,
    snapshot_every: u64,
}

/// What a store has written since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// How many requests.
    pub requests: u64,
    /// In how many commits.
    pub commits: u64,
    /// For how many of these the disk was waited for.
    pub syncs: u64,
}

impl SqliteStore {
    /// Opens the store in a file; makes the file, and its folder, where they are not there.
    ///
    /// A file of another program, or of a newer version, is refused and left as it is.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let file = Arc::new(File::at(path.into()));
        let writer = Writer::start(file.open()?, file.clone())?;
        let readers = Readers::start(&file, writer.tally())?;
        Ok(Self { readers, writer: Some(writer), file, snapshot_every: SNAPSHOT_EVERY })
    }

    /// Opens what is left of a damaged file, or of one that is cut off, for reading alone. Whatever stands on whole
    /// pages can be read; nothing is changed, and everything that would change something is refused.
    pub fn salvage(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let file = Arc::new(File::at(path.into()));
        let readers = Readers::salvage(&file)?;
        Ok(Self { readers, writer: None, file, snapshot_every: SNAPSHOT_EVERY })
    }

    /// Opens the store that the environment variable `WINDLASS_STORE` names, or else `windlass.db` in the folder
    /// that the process is in.
    pub fn from_env() -> Result<Self, StoreError> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        Self::open(named.unwrap_or_else(|| OsString::from(DEFAULT_PATH)))
    }

    /// After how many records a run is written down as a whole too, so that it opens fast; 2,048 otherwise.
    #[must_use]
    pub fn with_snapshots_every(mut self, records: u64) -> Self {
        self.snapshot_every = records;
        self
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Waits until everything that was asked of the store so far is on the disk.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let flushed = self.write(About::Store, When::Synced, |desk| {
            // There must be something to commit for the disk to be waited for. This changes nothing.
            Ok(desk.db.pragma_update(None, "user_version", schema::VERSION)?)
        });
        flushed.await
    }

    /// What was written since the store was opened.
    pub fn written(&self) -> Written {
        match &self.writer {
            Some(writer) => writer.tally().written(),
            None => Written::default(),
        }
    }

    fn write<T, F>(&self, about: About, when: When, work: F) -> StoreResult<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Desk<'_>) -> Result<T, Trouble> + Send + 'static,
    {
        match &self.writer {
            Some(writer) => writer.write(about, when, work),
            None => std::future::ready(Err(self.file.read_only(&about))).boxed(),
        }
    }
}

impl Store for SqliteStore {
    fn create<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, Lease> {
        let (run, agent, by) = (run.clone(), agent.clone(), Claimant::from(claim));
        let about = About::Run(run.clone());
        self.write(about, When::Committed, move |desk| runs::create(desk.db, &run, &agent, &by))
    }

    fn acquire<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease> {
        let (run, by) = (run.clone(), Claimant::from(claim));
        let about = About::Run(run.clone());
        self.write(about, When::Committed, move |desk| runs::acquire(desk, &run, &by))
    }

    fn renew<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreResult<'a, ()> {
        let lease = lease.clone();
        let about = About::Run(lease.run.clone());
        self.write(about, When::Committed, move |desk| runs::renew(desk.db, &lease, until))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreResult<'a, ()> {
        let lease = lease.clone();
        let about = About::Run(lease.run.clone());
        self.write(about, When::Committed, move |desk| runs::release(desk.db, &lease))
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<Line>,
        durability: Durability,
    ) -> StoreResult<'a, ()> {
        let when = match durability {
            Durability::Later => When::AtOnce,
            Durability::Now => When::Synced,
        };
        let owned = lease.clone();
        match &self.writer {
            Some(writer) => writer.append(lease, when, move |desk| runs::append(desk, &owned, at, &lines)),
            None => std::future::ready(Err(self.file.read_only(&About::Run(owned.run)))).boxed(),
        }
    }

    fn mark<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreResult<'a, ()> {
        let lease = lease.clone();
        let about = About::Run(lease.run.clone());
        self.write(about, When::Committed, move |desk| runs::mark(desk.db, &lease, status, now))
    }

    fn load<'a>(&'a self, run: &'a RunId, from: u64) -> StoreResult<'a, Vec<Line>> {
        let run = run.clone();
        self.readers.read(About::Run(run.clone()), move |db| runs::load(db, &run, from))
    }

    fn snapshot_every(&self) -> Option<u64> {
        Some(self.snapshot_every)
    }

    fn keep_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: Snapshot) -> StoreResult<'a, ()> {
        let lease = lease.clone();
        let about = About::Run(lease.run.clone());
        self.write(about, When::Committed, move |desk| snapshots::keep(desk.db, &lease, &snapshot))
    }

    fn snapshot<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Option<Snapshot>> {
        let run = run.clone();
        self.readers.read(About::Run(run.clone()), move |db| snapshots::load(db, &run))
    }

    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>> {
        self.readers.read(About::Store, runs::list)
    }

    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()> {
        let run = run.clone();
        let about = About::Run(run.clone());
        self.write(about, When::Synced, move |desk| runs::post(desk.db, &run, &posted))
    }

    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>> {
        let run = run.clone();
        self.readers.read(About::Run(run.clone()), move |db| runs::posted(db, &run))
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, ReceiptClaim> {
        let (key, by) = (key.clone(), Claimant::from(claim));
        self.write(About::Receipts, When::Committed, move |desk| receipts::claim(desk.db, &key, &by))
    }

    fn keep_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreResult<'a, ()> {
        let (key, owner, output) = (key.clone(), owner.to_owned(), output.clone());
        self.write(About::Receipts, When::Synced, move |desk| {
            receipts::keep(desk.db, &key, &owner, &output, expires)
        })
    }

    fn give_up_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreResult<'a, ()> {
        let (key, owner) = (key.clone(), owner.to_owned());
        self.write(About::Receipts, When::Committed, move |desk| receipts::give_up(desk.db, &key, &owner))
    }

    fn keep_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreResult<'a, ()> {
        let (run, name, text) = (run.clone(), name.to_owned(), text.to_owned());
        let about = About::Run(run.clone());
        self.write(about, When::Synced, move |desk| runs::keep_artefact(desk.db, &run, &name, &text))
    }

    fn artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreResult<'a, Option<String>> {
        let (run, name) = (run.clone(), name.to_owned());
        self.readers.read(About::Run(run.clone()), move |db| runs::artefact(db, &run, &name))
    }
}

impl SessionStore for SqliteStore {
    fn load<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<SessionState, StoreError>> {
        let session = session.clone();
        self.readers.read(About::Session(session.clone()), move |db| sessions::load(db, &session))
    }

    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = About::Session(session.clone());
        self.write(about, When::Synced, move |desk| sessions::append(desk.db, &session, &items))
    }

    fn replace<'a>(
        &'a self,
        session: &'a SessionId,
        version: u64,
        items: Vec<Arc<Item>>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let session = session.clone();
        let about = About::Session(session.clone());
        self.write(about, When::Synced, move |desk| sessions::replace(desk.db, &session, version, &items))
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionId>, StoreError>> {
        self.readers.read(About::Store, sessions::list)
    }
}

impl From<LeaseClaim<'_>> for Claimant {
    fn from(claim: LeaseClaim<'_>) -> Self {
        Self { owner: claim.owner.to_owned(), now: claim.now, until: claim.until }
    }
}

/// A number as SQLite has them.
fn number(number: u64) -> Result<i64, Trouble> {
    i64::try_from(number).map_err(|_| StoreError::new(format!("{number} is too large a number")).into())
}

fn to_number(number: i64) -> Result<u64, Trouble> {
    u64::try_from(number).map_err(|_| Trouble::Damaged(format!("{number} stands where a count should")))
}

/// A time as SQLite has numbers. What is later than that is never.
fn time(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn to_time(time: i64) -> Timestamp {
    Timestamp(u64::try_from(time).unwrap_or_default())
}

fn text(value: &impl Serialize) -> Result<String, Trouble> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::new("a value cannot be written").caused_by(error).into())
}

fn value<T: DeserializeOwned>(text: &str) -> Result<T, Trouble> {
    serde_json::from_str(text).map_err(|error| Trouble::Damaged(format!("a value cannot be read: {error}")))
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
