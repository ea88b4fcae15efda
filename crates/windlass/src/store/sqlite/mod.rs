//! A store in one SQLite file: runs, journals, posted decisions, receipts, artefacts and sessions.

mod artefacts;
mod backup;
mod decisions;
mod deltas;
mod file;
mod forget;
mod hints;
mod history;
mod queue;
mod reader;
mod receipts;
mod run_list;
mod run_queue;
mod runs;
mod schedules;
mod schema;
mod session_store;
mod sessions;
mod snapshots;
mod warnings;
mod withheld;
mod writer;
mod writer_turn;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::{
    authenticity::MacKeyring,
    id::{AgentName, CallPath, RunId, SessionId, Timestamp},
    item::{Item, OutputContent},
    journal::{HistoryReference, JournalLine},
};

use self::file::{DatabaseFile, SqliteError};
use self::hints::StoreHints;
use self::reader::ReaderPool;
use self::runs::OwnedLeaseClaim;
pub use self::warnings::StoreWarning;
use self::writer::{AckLevel, RequestSubject, SqliteWriter, WriteTx};
use super::{
    ApproverPolicy, DeltaStore, DerivedWrites, Durability, FollowerRegistry, JournalReader, Lease,
    LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, RestoreReport, RunQuery, RunStatus, SessionHolder,
    SnapshotSegments, Store, StoreFuture, StoredLease, StoredReceipt, StoredRun, StoredSnapshot,
};
use crate::error::StoreError;
use crate::session::SessionStore;

/// Environment variable that [`SqliteStore::from_env`] reads.
const PATH_VARIABLE: &str = "WINDLASS_STORE";
/// Path if the variable is not set.
const DEFAULT_PATH: &str = "windlass.db";

/// Default number of records between snapshots. A snapshot writes only the growth of the run, so it may be frequent:
/// whoever opens a run replays fewer records than this.
const DEFAULT_SNAPSHOT_INTERVAL: u64 = 256;

/// A store in one SQLite file. It is durable across crashes and power loss.
///
/// Several processes on one machine may use one file concurrently. The file must be on a local disk. While it is
/// open, SQLite keeps two more files beside it, `…-wal` and `…-shm`.
///
/// Concurrent writes share a group commit. A write that has begun is executed even if its future is dropped. Dropping
/// the store waits until all begun writes are committed.
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
    hints: StoreHints,
    readers: ReaderPool,
    writer: Option<SqliteWriter>,
    file: Arc<DatabaseFile>,
    store_id: String,
    snapshot_interval: u64,
    warnings: Vec<StoreWarning>,
    mac_keys: Option<Arc<MacKeyring>>,
    approvers: Option<Arc<ApproverPolicy>>,
    followers: FollowerRegistry,
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
        let db = file.open_for_writing()?;
        let store_id = schema::read_store_id(&db).map_err(|error| file.to_store_error(error))?;
        let warnings =
            warnings::find_warnings(&db, &file.path).map_err(|error| file.to_store_error(error))?;
        for warning in &warnings {
            tracing::warn!(path = %file.path.display(), "{warning}");
        }
        let (writer, readers) = if warnings.contains(&StoreWarning::Backup) {
            (None, ReaderPool::start_without_writer(&file)?)
        } else {
            let writer = SqliteWriter::start(db, file.clone(), store_id.clone())?;
            let readers = ReaderPool::start(&file, writer.counters())?;
            (Some(writer), readers)
        };
        let snapshot_interval = DEFAULT_SNAPSHOT_INTERVAL;
        Ok(Self {
            hints: StoreHints::new(&file),
            readers,
            writer,
            file,
            store_id,
            snapshot_interval,
            warnings,
            mac_keys: None,
            approvers: None,
            followers: FollowerRegistry::for_all_processes(),
        })
    }

    /// Opens a damaged or truncated file for reading. All intact pages can be read; nothing is changed, and
    /// writes return an error.
    pub fn salvage(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let file = Arc::new(DatabaseFile::new(path.into()));
        let readers = ReaderPool::start_salvage(&file)?;
        // No run is driven from a damaged file, so nothing needs the id.
        let (store_id, snapshot_interval) = (String::new(), DEFAULT_SNAPSHOT_INTERVAL);
        Ok(Self {
            hints: StoreHints::new(&file),
            readers,
            writer: None,
            file,
            store_id,
            snapshot_interval,
            warnings: Vec::new(),
            mac_keys: None,
            approvers: None,
            followers: FollowerRegistry::for_all_processes(),
        })
    }

    /// Opens the store at the path in the environment variable `WINDLASS_STORE`, or else `windlass.db` in the
    /// current directory.
    pub fn from_env() -> Result<Self, StoreError> {
        let named = std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty());
        Self::open(named.unwrap_or_else(|| OsString::from(DEFAULT_PATH)))
    }

    /// Sets the number of records between snapshots, which speed up opening long runs; the default is 256.
    #[must_use]
    pub fn with_snapshot_interval(mut self, records: u64) -> Self {
        self.snapshot_interval = records;
        self
    }

    /// Sets the keys with which decisions and snapshots are authenticated. The keys are not written to the file, and must
    /// not be where the tools of an agent can read them.
    ///
    /// From then on every decision in a journal, every posted decision and every snapshot gets a MAC, and those that are
    /// read must have a valid one: a run with a forged decision is refused, a forged posted decision is refused with a
    /// warning, and a forged snapshot is ignored. Without keys nothing has a MAC, and whoever can write to the file can
    /// decide.
    #[must_use]
    pub fn with_keys(mut self, keys: impl Into<Arc<MacKeyring>>) -> Self {
        self.mac_keys = Some(keys.into());
        self
    }

    /// Sets the approvers whose signatures count. They are not written to the file.
    ///
    /// From then on an approval, an edit, an answer or the settlement of a call in doubt counts only if one of them has
    /// signed it, in the name that the policy gives the key ([`post_signed_decision`](super::post_signed_decision),
    /// [`PausedRun::sign_with`](crate::run::PausedRun::sign_with)): a run with another decision is refused, and another
    /// posted decision is refused with a warning. Rejections need no signature. Runs are read from their whole journal,
    /// because no approver signs a snapshot.
    #[must_use]
    pub fn with_approvers(mut self, approvers: impl Into<Arc<ApproverPolicy>>) -> Self {
        self.approvers = Some(approvers.into());
        self
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Returns the warnings that were found when the store was opened: signs that the file is not the store that its
    /// owner takes it for.
    pub fn warnings(&self) -> &[StoreWarning] {
        &self.warnings
    }

    /// Waits until all writes requested so far are durable.
    pub async fn flush(&self) -> Result<(), StoreError> {
        // Every commit counts itself, so this one has a change to wait for.
        self.submit_write(RequestSubject::Store, AckLevel::Synced, |_| Ok(())).await
    }

    /// Writes a consistent copy of the store to a file that does not exist yet, while runs go on. The copy has every
    /// write that was acknowledged before the call.
    ///
    /// The copy opens as a store that can be read: nothing is written to it and no run is driven from it, because a run that
    /// has gone on since would repeat its later effects. [`SqliteStore::restore`] makes a store of it.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// the file exists.
    pub async fn backup(&self, path: impl Into<PathBuf>) -> Result<(), StoreError> {
        if self.writer.is_some() {
            self.flush().await?;
        }
        let (file, path) = (self.file.clone(), path.into());
        let copied = tokio::task::spawn_blocking(move || backup::write_backup(&file, &path)).await;
        copied.unwrap_or_else(|error| Err(StoreError::new("the backup was not finished").with_source(error)))
    }

    /// Makes a store of a backup at a path that does not exist, in place of a store that is lost. The backup is unchanged.
    ///
    /// The runs that were open at the time of the backup may have gone on after it. They come back in doubt: calls that must
    /// not be repeated and may have started since wait for the tool's reconcile function or for a person, and so does every
    /// later call of these runs that has an effect. Runs that were submitted after the backup, their sessions and receipts
    /// are lost.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::AlreadyExists`](crate::error::StoreErrorKind::AlreadyExists) if
    /// the path exists.
    pub async fn restore(
        backup: impl Into<PathBuf>,
        path: impl Into<PathBuf>,
    ) -> Result<RestoreReport, StoreError> {
        backup::restore_backup(backup.into(), path.into()).await
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
            None => std::future::ready(Err(self.no_writer_error(&about))).boxed(),
        }
    }

    /// Returns the error for a write to a file that is only read.
    fn no_writer_error(&self, about: &RequestSubject) -> StoreError {
        match self.warnings.contains(&StoreWarning::Backup) {
            true => self.file.backup_error(about),
            false => self.file.read_only_error(about),
        }
    }
}

/// The blocking reader of a file. It opens the file for each page, so that it keeps no connection beyond the store's.
#[derive(Debug)]
struct FileReader {
    file: Arc<DatabaseFile>,
}

impl FileReader {
    fn read<T>(
        &self,
        about: RequestSubject,
        work: impl FnOnce(&rusqlite::Connection) -> Result<T, SqliteError>,
    ) -> Result<T, StoreError> {
        self.file.check_in_place()?;
        let db = self.file.connect_to_read()?;
        work(&db).map_err(|error| self.file.to_store_error_about(&about, error))
    }
}

impl JournalReader for FileReader {
    fn read_lines(&self, run: &RunId, from: u64, limit: u32) -> Result<Vec<JournalLine>, StoreError> {
        self.read(RequestSubject::Run(run.clone()), |db| runs::load_journal(db, run, from, Some(limit)))
    }

    fn read_segments(&self, run: &RunId, count: u64) -> Result<Vec<String>, StoreError> {
        self.read(RequestSubject::Run(run.clone()), |db| snapshots::load_segments(db, run, count))
    }

    fn read_history(&self, reference: &HistoryReference) -> Result<Option<Vec<Arc<Item>>>, StoreError> {
        let about = RequestSubject::Session(reference.session.clone());
        self.read(about, |db| history::load_history(db, reference))
    }

    fn read_artefact(&self, run: &RunId, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(RequestSubject::Run(run.clone()), |db| artefacts::load_artefact(db, run, name))
    }
}

impl Store for SqliteStore {
    fn store_id(&self) -> &str {
        &self.store_id
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
        let (run, agent, by) = (run.clone(), agent.clone(), OwnedLeaseClaim::from(claim));
        let about = RequestSubject::Run(run.clone());
        let when = if lines.is_empty() { AckLevel::Committed } else { AckLevel::Synced };
        self.submit_write(about, when, move |desk| runs::create_run(desk, &run, &agent, &by, &lines, None))
    }

    fn import_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
        history: Vec<u8>,
    ) -> StoreFuture<'a, Lease> {
        let (run, agent, by) = (run.clone(), agent.clone(), OwnedLeaseClaim::from(claim));
        self.submit_write(RequestSubject::Run(run.clone()), AckLevel::Synced, move |desk| {
            runs::create_run(desk, &run, &agent, &by, &lines, Some(&history))
        })
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        let (run, by, abandoned) = (run.clone(), OwnedLeaseClaim::from(claim), abandoned.cloned());
        let about = RequestSubject::Run(run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            runs::acquire_lease(desk, &run, &by, abandoned.as_ref())
        })
    }

    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| runs::load_lease(db, &run))
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, now: Timestamp) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| runs::renew_lease(desk.db, &lease, now))
    }

    fn raise_epoch<'a>(&'a self, lease: &'a Lease, epoch: u64) -> StoreFuture<'a, Lease> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| runs::raise_epoch(desk.db, &lease, epoch))
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
        self.append_with_writes(lease, at, lines, durability, DerivedWrites::default())
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        Some(self)
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        writes: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        let when = match durability {
            Durability::Deferred => AckLevel::InTransaction,
            Durability::Sync => AckLevel::Synced,
        };
        async move {
            let owned = lease.clone();
            let Some(writer) = &self.writer else {
                return Err(self.no_writer_error(&RequestSubject::Run(owned.run)));
            };
            let append = move |desk: &mut WriteTx<'_>| {
                runs::append_journal(desk, &owned, at, &lines, writes.end_status(&lines))?;
                writes
                    .sessions
                    .iter()
                    .try_for_each(|write| history::append_with_lines(desk.db, &owned, write))?;
                writes.receipts.iter().try_for_each(|receipt| receipts::save_receipt(desk.db, receipt))
            };
            writer.submit_append(lease, when, append).await
        }
        .boxed()
    }

    fn load_history<'a>(
        &'a self,
        reference: &'a HistoryReference,
    ) -> StoreFuture<'a, Option<Vec<Arc<Item>>>> {
        let reference = reference.clone();
        let about = RequestSubject::Session(reference.session.clone());
        self.readers.run_read(about, move |db| history::load_history(db, &reference))
    }

    fn hold_session<'a>(&'a self, lease: &'a Lease, session: &'a SessionId) -> StoreFuture<'a, ()> {
        let (lease, session) = (lease.clone(), session.clone());
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            history::hold_session(desk.db, &lease, &session)
        })
    }

    fn session_holder<'a>(&'a self, session: &'a SessionId) -> StoreFuture<'a, Option<SessionHolder>> {
        let session = session.clone();
        let about = RequestSubject::Session(session.clone());
        self.readers.run_read(about, move |db| history::find_holder(db, &session))
    }

    fn free_session<'a>(&'a self, session: &'a SessionId, holder: &'a SessionHolder) -> StoreFuture<'a, ()> {
        let (session, holder) = (session.clone(), holder.clone());
        let about = RequestSubject::Session(session.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            history::free_session(desk.db, &session, &holder)
        })
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
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| runs::load_journal(db, &run, from, None))
    }

    fn load_journal_page<'a>(
        &'a self,
        run: &'a RunId,
        from: u64,
        limit: u32,
    ) -> StoreFuture<'a, Vec<JournalLine>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| {
            runs::load_journal(db, &run, from, Some(limit))
        })
    }

    fn journal_reader(&self) -> Option<Arc<dyn JournalReader>> {
        Some(Arc::new(FileReader { file: self.file.clone() }))
    }

    fn snapshot_interval(&self) -> Option<u64> {
        Some(self.snapshot_interval)
    }

    fn save_snapshot<'a>(
        &'a self,
        lease: &'a Lease,
        snapshot: StoredSnapshot,
        segments: SnapshotSegments,
    ) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            snapshots::save_snapshot(desk.db, &lease, &snapshot, &segments)
        })
    }

    fn load_snapshot_segments<'a>(&'a self, run: &'a RunId, count: u64) -> StoreFuture<'a, Vec<String>> {
        let run = run.clone();
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| snapshots::load_segments(db, &run, count))
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| snapshots::load_snapshot(db, &run))
    }

    fn list_runs<'a>(&'a self, query: &'a RunQuery) -> StoreFuture<'a, Vec<StoredRun>> {
        let query = query.clone();
        self.readers.run_read(RequestSubject::Store, move |db| run_list::list_runs(db, &query))
    }

    fn forget_run<'a>(&'a self, run: &'a RunId, abandoned: Option<&'a StoredLease>) -> StoreFuture<'a, ()> {
        let abandoned = abandoned.cloned();
        let about = || RequestSubject::Run(run.clone());
        async move {
            let searched = run.clone();
            let search = move |db: &rusqlite::Connection| forget::find_referenced_media(db, &searched);
            let kept = self.readers.run_read(about(), search).await?;
            let (about, run) = (about(), run.clone());
            let forget =
                move |desk: &mut WriteTx<'_>| forget::forget_run(desk, &run, abandoned.as_ref(), &kept);
            self.submit_write(about, AckLevel::Synced, forget).await
        }
        .boxed()
    }

    fn post_decision<'a>(
        &'a self,
        run: &'a RunId,
        posted: PostedDecision,
        record_count: u64,
    ) -> StoreFuture<'a, ()> {
        let about = RequestSubject::Run(run.clone());
        let of_run = run.clone();
        let written = self.submit_write(about, AckLevel::Synced, move |desk| {
            decisions::post_decision(desk.db, &of_run, posted, record_count)
        });
        async move {
            written.await?;
            self.hints.give_work();
            self.hints.give_decision(run);
            Ok(())
        }
        .boxed()
    }

    fn take_decision<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        attempt: u32,
    ) -> StoreFuture<'a, Option<PostedDecision>> {
        let (lease, call) = (lease.clone(), call.clone());
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            decisions::take_decision(desk.db, &lease, &call, attempt)
        })
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        let run = run.clone();
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| decisions::posted_decisions(db, &run))
    }

    fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.hints.wait_for_decision(run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        let (key, by, abandoned) = (key.clone(), OwnedLeaseClaim::from(claim), abandoned.cloned());
        self.submit_write(RequestSubject::Receipts, AckLevel::Committed, move |desk| {
            receipts::claim_receipt(desk.db, &key, &by, abandoned.as_ref())
        })
    }

    fn find_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        now: Timestamp,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        let key = key.clone();
        self.readers.run_read(RequestSubject::Receipts, move |db| receipts::find_receipt(db, &key, now))
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        let (key, owner) = (key.clone(), owner.to_owned());
        self.submit_write(RequestSubject::Receipts, AckLevel::Committed, move |desk| {
            receipts::release_receipt(desk.db, &key, &owner)
        })
    }

    fn list_receipts<'a>(
        &'a self,
        after: Option<&'a ReceiptKey>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<StoredReceipt>> {
        let after = after.cloned();
        self.readers
            .run_read(RequestSubject::Receipts, move |db| receipts::list_receipts(db, after.as_ref(), limit))
    }

    fn import_receipt<'a>(&'a self, receipt: &'a StoredReceipt) -> StoreFuture<'a, ()> {
        let receipt = receipt.clone();
        self.submit_write(RequestSubject::Receipts, AckLevel::Synced, move |desk| {
            receipts::import_receipt(desk.db, &receipt)
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

    fn list_withheld_outputs<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<CallPath>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| withheld::list_outputs(db, &run))
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, calls: &'a [CallPath]) -> StoreFuture<'a, ()> {
        let (lease, calls) = (lease.clone(), calls.to_vec());
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            withheld::erase_outputs(desk.db, &lease, &calls)
        })
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        let (lease, name, body) = (lease.clone(), name.to_owned(), body.to_vec());
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Synced, move |desk| {
            artefacts::save_artefact(desk.db, &lease, &name, &body)
        })
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        let (run, name) = (run.clone(), name.to_owned());
        self.readers
            .run_read(RequestSubject::Run(run.clone()), move |db| artefacts::load_artefact(db, &run, &name))
    }

    fn list_artefacts<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<&'a str>,
        limit: u32,
    ) -> StoreFuture<'a, Vec<String>> {
        let (run, after) = (run.clone(), after.map(str::to_owned));
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| {
            artefacts::list_artefacts(db, &run, after.as_deref(), limit)
        })
    }
}

impl From<LeaseClaim<'_>> for OwnedLeaseClaim {
    fn from(claim: LeaseClaim<'_>) -> Self {
        Self { owner: claim.owner.to_owned(), now: claim.now, duration: claim.duration }
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
