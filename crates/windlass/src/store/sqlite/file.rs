//! The database file: opening it, and mapping SQLite errors to [`StoreError`].

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use windlass_core::canonical::Digest;

use super::schema::{self, DatabaseOwner, SCHEMA_VERSION};
use super::writer::RequestSubject;
use crate::error::{StoreError, StoreErrorKind};

/// Time to wait for a lock of another process before a write fails.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 10_000 });

/// Flags for connections that may write.
const WRITE_FLAGS: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_CREATE);

/// SQLite's `SQLITE_IOERR_SHORT_READ`: the file is truncated.
const IOERR_SHORT_READ: i32 = 10 | (2 << 8);
/// SQLite's `SQLITE_IOERR_FSYNC`: the disk did not confirm a sync.
const IOERR_FSYNC: i32 = 10 | (4 << 8);

/// The database file of a store.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    pub(super) path: PathBuf,
    /// Identity of the file when it was opened.
    identity: OnceLock<Option<FileIdentity>>,
}

/// Identity of a file in the operating system: device and inode number.
type FileIdentity = (u64, u64);

/// An error of a request.
#[derive(Debug)]
pub(super) enum SqliteError {
    /// The request is invalid.
    Refused(StoreError),
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// The data are corrupt.
    Corrupt(String),
}

impl From<StoreError> for SqliteError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl DatabaseFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, identity: OnceLock::new() }
    }

    /// Opens the file for the writer, and creates it if it does not exist.
    pub(super) fn open_for_writing(&self) -> Result<Connection, StoreError> {
        create_synced_folder(&self.path).map_err(|error| {
            let folder = self.path.parent().unwrap_or(Path::new("."));
            let message = format!("the folder `{}` cannot be created: {error}", folder.display());
            StoreError::with_kind(StoreErrorKind::Disk, message).with_source(error)
        })?;
        // SQLite treats a file of one byte as empty and would overwrite it.
        if fs::metadata(&self.path).is_ok_and(|file| file.len() == 1) {
            return Err(self.not_a_database_error());
        }
        let db = self.connect(WRITE_FLAGS)?;
        let found = schema::identify_owner(&db).map_err(|error| self.open_error(error))?;
        // SQLite opens read-only files without an error and fails only on the first write.
        if db.is_readonly("main").map_err(|error| self.to_store_error(error))? {
            let message = format!(
                "`{}` is read-only; hint: `SqliteStore::salvage` opens it for reading",
                self.path.display()
            );
            return Err(StoreError::with_kind(StoreErrorKind::Disk, message));
        }
        match found {
            DatabaseOwner::Ours => {
                self.enable_write_ahead_log(&db)?;
                if schema::is_outdated(&db).map_err(|error| self.to_store_error(error))? {
                    self.create_tables(&db)?;
                }
            }
            DatabaseOwner::Empty => {
                self.enable_write_ahead_log(&db)?;
                self.create_tables(&db)?;
            }
            found => return Err(self.unusable_file_error(found)),
        }
        self.identity.get_or_init(|| file_id(&self.path));
        Ok(db)
    }

    /// Checks that the file was not moved or deleted since it was opened. SQLite would not notice, and writes
    /// would be lost.
    pub(super) fn check_in_place(&self) -> Result<(), StoreError> {
        match self.identity.get() {
            Some(opened) if *opened != file_id(&self.path) => {
                let path = self.path.display();
                let message =
                    format!("`{path}` was moved or deleted while it was open: nothing of this was kept");
                Err(StoreError::with_kind(StoreErrorKind::Disk, message))
            }
            _ => Ok(()),
        }
    }

    /// Opens another connection for a reader. It needs write access: readers set marks in the shared-memory
    /// file that protect the pages that they read from checkpoints.
    pub(super) fn connect_to_read(&self) -> Result<Connection, StoreError> {
        let db = self.connect(WRITE_FLAGS)?;
        db.pragma_update(None, "query_only", true).map_err(|error| self.to_store_error(error))?;
        Ok(db)
    }

    /// Opens a connection that copies the file.
    pub(super) fn connect_to_copy(&self) -> Result<Connection, StoreError> {
        self.connect(WRITE_FLAGS)
    }

    /// Opens a read-only connection to a damaged file.
    pub(super) fn connect_to_salvage(&self) -> Result<Connection, StoreError> {
        let db = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        // Without this, SQLite refuses to read a truncated file.
        db.pragma_update(None, "writable_schema", true).map_err(|error| self.to_store_error(error))?;
        match schema::identify_owner(&db).map_err(|error| self.to_store_error(error))? {
            // The list of tables has several pages, and some of them may be lost.
            DatabaseOwner::Ours if db.prepare("SELECT id FROM runs").is_ok() => Ok(db),
            found => Err(self.unusable_file_error(found)),
        }
    }

    fn connect(&self, flags: OpenFlags) -> Result<Connection, StoreError> {
        let connect = || {
            let mut db = Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
            db.busy_handler(Some(wait_for_lock as fn(i32) -> bool))?;
            db.set_prepared_statement_cache_capacity(64);
            // Cell sizes are checked when a page is read, so that a corrupt page is detected before it is used.
            db.pragma_update(None, "cell_size_check", true)?;
            db.pragma_update(None, "journal_size_limit", 64 << 20)?;
            // What is erased is overwritten with zeros.
            db.pragma_update(None, "secure_delete", true)?;
            Ok(db)
        };
        connect().map_err(|error: rusqlite::Error| self.to_store_error(error))
    }

    /// Switches to a write-ahead log. Two processes that open a new file concurrently may conflict here, and
    /// SQLite's busy handler does not apply.
    fn enable_write_ahead_log(&self, db: &Connection) -> Result<(), StoreError> {
        let began = Instant::now();
        loop {
            let mode = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
            match mode {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    let message = format!(
                        "`{}` cannot have a write-ahead log (its journal is `{mode}`): a store needs a local disk",
                        self.path.display()
                    );
                    return Err(StoreError::with_kind(StoreErrorKind::Disk, message));
                }
                Err(error) if is_locked(&error) && began.elapsed() < LOCK_TIMEOUT => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(self.to_store_error(error)),
            }
        }
    }

    /// Creates the tables that the file lacks, unless another process has done so.
    fn create_tables(&self, db: &Connection) -> Result<(), StoreError> {
        let create = || {
            db.execute_batch("BEGIN IMMEDIATE")?;
            let found = schema::identify_owner_in_transaction(db)?;
            match found {
                DatabaseOwner::Empty => schema::create_schema(db)?,
                DatabaseOwner::Ours => schema::migrate_schema(db)?,
                DatabaseOwner::Truncated | DatabaseOwner::Newer { .. } | DatabaseOwner::Foreign { .. } => {}
            }
            db.execute_batch("COMMIT")?;
            Ok(found)
        };
        match create().map_err(|error: rusqlite::Error| self.to_store_error(error))? {
            DatabaseOwner::Empty | DatabaseOwner::Ours => Ok(()),
            found => Err(self.unusable_file_error(found)),
        }
    }

    fn unusable_file_error(&self, found: DatabaseOwner) -> StoreError {
        let path = self.path.display();
        match found {
            DatabaseOwner::Newer { version } => StoreError::with_kind(
                StoreErrorKind::UnsupportedVersion,
                format!(
                    "`{path}` is a store of version {version}, and this program reads versions up to {SCHEMA_VERSION}"
                ),
            ),
            DatabaseOwner::Foreign { application, tables } => {
                let tables = tables.iter().map(|table| format!("`{table}`")).collect::<Vec<_>>().join(", ");
                let tables = if tables.is_empty() { "none".to_owned() } else { tables };
                let message = format!(
                    "`{path}` is a database of another program (application id {application:#x}, tables: {tables}); \
                     nothing in it was changed"
                );
                StoreError::with_kind(StoreErrorKind::Corrupt, message)
            }
            DatabaseOwner::Empty | DatabaseOwner::Ours | DatabaseOwner::Truncated => StoreError::with_kind(
                StoreErrorKind::Corrupt,
                format!("`{path}` is damaged: nothing is left in it"),
            ),
        }
    }

    fn open_error(&self, error: rusqlite::Error) -> StoreError {
        if error.sqlite_error_code() != Some(ErrorCode::DatabaseCorrupt) {
            return self.to_store_error(error);
        }
        let path = self.path.display();
        let message = format!(
            "`{path}` is damaged or cut off: {error}; nothing in it was changed; hint: `SqliteStore::salvage` reads \
             what is left of it"
        );
        StoreError::with_kind(StoreErrorKind::Corrupt, message).with_source(error)
    }

    /// Returns the error for a write to a backup.
    pub(super) fn backup_error(&self, about: &RequestSubject) -> StoreError {
        let path = self.path.display();
        let message = format!(
            "{about}: `{path}` is a backup, and no run is driven from it before it is restored; hint: `windlass restore`"
        );
        StoreError::with_kind(StoreErrorKind::NotRestored, message)
    }

    /// Returns the error for a write to a file that was opened for salvage.
    pub(super) fn read_only_error(&self, about: &RequestSubject) -> StoreError {
        let path = self.path.display();
        StoreError::with_kind(
            StoreErrorKind::Disk,
            format!("{about}: `{path}` was opened for salvage and is not written to"),
        )
    }

    /// Converts an error to a [`StoreError`] with a message for the operator.
    pub(super) fn to_store_error(&self, trouble: impl Into<SqliteError>) -> StoreError {
        let path = self.path.display();
        let error = match trouble.into() {
            SqliteError::Refused(error) => return error,
            SqliteError::Corrupt(what) => {
                return StoreError::with_kind(
                    StoreErrorKind::Corrupt,
                    format!("`{path}` is damaged: {what}"),
                );
            }
            SqliteError::Sqlite(error) => error,
        };
        let kind = store_error_kind(&error);
        let message = match (kind, error.sqlite_error_code()) {
            (StoreErrorKind::Corrupt, Some(ErrorCode::NotADatabase)) => return self.not_a_database_error(),
            (StoreErrorKind::Corrupt, _) => {
                format!("`{path}` is damaged: {error}; what stands on its other pages can still be read")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::DiskFull)) => {
                format!("the disk of `{path}` is full: nothing of this was kept, everything before it was")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::CannotOpen)) if self.path.is_dir() => {
                format!("`{path}` is a folder, and a store is a file")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::CannotOpen)) => {
                format!("`{path}` cannot be opened or created: {error}")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied)) => {
                format!("`{path}` cannot be written: {error}; what it holds is as it was")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => format!(
                "`{path}` was kept locked by another process for {LOCK_TIMEOUT:?}: nothing of this was kept, everything \
                 before it was"
            ),
            (StoreErrorKind::Disk, _) => {
                format!(
                    "the disk of `{path}` fails: {error}; nothing of this was kept, everything before it was"
                )
            }
            _ => format!("`{path}`: {error}"),
        };
        StoreError::with_kind(kind, message).with_source(error)
    }

    /// Converts an error as [`DatabaseFile::to_store_error`] does, and adds the subject of the request.
    pub(super) fn to_store_error_about(&self, about: &RequestSubject, trouble: SqliteError) -> StoreError {
        match trouble {
            SqliteError::Refused(error) => error,
            SqliteError::Sqlite(_) | SqliteError::Corrupt(_) => {
                let why = self.to_store_error(trouble);
                StoreError::with_kind(why.kind(), format!("{about}: {why}")).with_source(why)
            }
        }
    }

    /// Returns the error for a request whose thread has stopped.
    pub(super) fn thread_stopped_error(&self) -> StoreError {
        StoreError::new(format!("`{}` is closed", self.path.display()))
    }

    fn not_a_database_error(&self) -> StoreError {
        let message = format!(
            "`{}` is not a store: {}; nothing in it was changed",
            self.path.display(),
            self.describe_content()
        );
        StoreError::with_kind(StoreErrorKind::Corrupt, message)
    }

    /// Describes the content of a file that is not a database. It must not be called for a database: closing
    /// the file would release SQLite's POSIX locks on it.
    fn describe_content(&self) -> String {
        let mut head = [0; 48];
        let read = fs::File::open(&self.path).and_then(|mut file| file.read(&mut head));
        match read.map(|length| std::str::from_utf8(&head[..length])) {
            Ok(Ok(text)) if !text.chars().any(|one| one.is_control() && !one.is_whitespace()) => {
                format!("it is a text that begins with {:?}", text.lines().next().unwrap_or_default())
            }
            Ok(_) if head.starts_with(b"SQLite format 3\0") => "its first page is damaged".to_owned(),
            Ok(_) => "it is a file of another kind".to_owned(),
            Err(error) => format!("it cannot be read ({error})"),
        }
    }
}

/// True if a sync failed. The state of the disk is then unknown.
pub(super) fn is_sync_failure(trouble: &SqliteError) -> bool {
    matches!(trouble, SqliteError::Sqlite(error) if extended_code(error) == Some(IOERR_FSYNC))
}

/// True if the data are corrupt.
pub(super) fn is_corruption(error: &rusqlite::Error) -> bool {
    store_error_kind(error) == StoreErrorKind::Corrupt
}

/// The SHA-256 of a value, which is stored beside it.
pub(super) type Checksum = [u8; 32];

/// Returns the checksum of a value.
pub(super) fn compute_checksum(value: impl AsRef<[u8]>) -> Checksum {
    *Digest::of_bytes(value.as_ref()).as_bytes()
}

/// Returns the value if it matches its checksum.
pub(super) fn verify_checksum<T: AsRef<[u8]>>(hash: &Checksum, value: T) -> Result<T, SqliteError> {
    if compute_checksum(&value) == *hash {
        Ok(value)
    } else {
        Err(SqliteError::Corrupt("a value does not fit its hash".to_owned()))
    }
}

fn store_error_kind(error: &rusqlite::Error) -> StoreErrorKind {
    if extended_code(error) == Some(IOERR_SHORT_READ) {
        return StoreErrorKind::Corrupt;
    }
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..)
        // The SQL is constant, so an error in it means that a table is missing.
        | rusqlite::Error::SqlInputError { .. } => return StoreErrorKind::Corrupt,
        _ => {}
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreErrorKind::Corrupt,
        Some(
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked,
        ) => StoreErrorKind::Disk,
        _ => StoreErrorKind::Other,
    }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Waits for a lock of another process. Commits take about a millisecond, so the waits are short: SQLite's own
/// busy handler backs off to a tenth of a second, which starves unlucky writers.
fn wait_for_lock(times: i32) -> bool {
    const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(2);
    thread::sleep(LOCK_POLL_INTERVAL);
    LOCK_POLL_INTERVAL * times.unsigned_abs() < LOCK_TIMEOUT
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Returns no identity: on other systems an open file cannot be moved or deleted.
#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileIdentity> {
    None
}

/// Creates the folder of a file, and syncs it to disk.
fn create_synced_folder(path: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .collect();
    let Some(folder) = missing.first() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    for made in &missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Systems that cannot sync a folder do not need to.
        if let Ok(above) = fs::File::open(above) {
            above.sync_all().ok();
        }
    }
    Ok(())
}
