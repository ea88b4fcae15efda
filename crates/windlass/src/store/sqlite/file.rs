//! The file: how it is opened, and what its errors mean to whoever reads them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use windlass_core::Digest;

use super::schema::{self, Found, VERSION};
use super::writer::About;
use crate::error::{StoreError, StoreErrorKind};

/// How long another process may keep the file to itself before a write is given up.
pub(super) const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 10_000 });

/// How the file is opened by whoever may write to it.
const WRITING: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_CREATE);

/// SQLite reads less than a page: the file was cut off.
const SHORT_READ: i32 = 10 | (2 << 8);
/// The disk did not confirm that it has what it was given.
const NOT_SYNCED: i32 = 10 | (4 << 8);

/// The file that a store is kept in.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    /// Which file was found there when it was opened.
    opened: OnceLock<Option<FileId>>,
}

/// What a file is called by the system, whatever it is called by others: its device and its number there.
type FileId = (u64, u64);

/// Why a request was not carried out.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The request is at fault.
    Refused(StoreError),
    /// The file is.
    Sqlite(rusqlite::Error),
    /// What was read is not what was written.
    Damaged(String),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl File {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, opened: OnceLock::new() }
    }

    /// Opens the file for the writer; makes it where it is not there.
    pub(super) fn open(&self) -> Result<Connection, StoreError> {
        make_folder(&self.path).map_err(|error| {
            let folder = self.path.parent().unwrap_or(Path::new("."));
            let message = format!("the folder `{}` cannot be made: {error}", folder.display());
            StoreError::of(StoreErrorKind::Disk, message).caused_by(error)
        })?;
        // SQLite takes a file of one byte for an empty one, and would write over it.
        if fs::metadata(&self.path).is_ok_and(|file| file.len() == 1) {
            return Err(self.not_a_database());
        }
        let db = self.connect(WRITING)?;
        let found = schema::identify(&db).map_err(|error| self.cannot_be_opened(error))?;
        // SQLite opens what it may not write, and says so when it is too late.
        if db.is_readonly("main").map_err(|error| self.explain(error))? {
            let message = format!(
                "`{}` may be read and not written; hint: `SqliteStore::salvage` opens it for reading alone",
                self.path.display()
            );
            return Err(StoreError::of(StoreErrorKind::Disk, message));
        }
        match found {
            Found::Ours => self.write_ahead(&db)?,
            Found::Nothing => {
                self.write_ahead(&db)?;
                self.create(&db)?;
            }
            found => return Err(self.not_ours(found)),
        }
        self.opened.get_or_init(|| file_id(&self.path));
        Ok(db)
    }

    /// Whether the file is still where it was. What is written to one that was moved or deleted would be lost, and
    /// SQLite does not notice.
    pub(super) fn is_in_place(&self) -> Result<(), StoreError> {
        match self.opened.get() {
            Some(opened) if *opened != file_id(&self.path) => {
                let path = self.path.display();
                let message =
                    format!("`{path}` was moved or deleted while it was open: nothing of this was kept");
                Err(StoreError::of(StoreErrorKind::Disk, message))
            }
            _ => Ok(()),
        }
    }

    /// One more connection to a file that is open, for a reader. It must be able to write all the same: readers
    /// leave marks beside the file that keep what they read from being cleared away.
    pub(super) fn connect_to_read(&self) -> Result<Connection, StoreError> {
        let db = self.connect(WRITING)?;
        db.pragma_update(None, "query_only", true).map_err(|error| self.explain(error))?;
        Ok(db)
    }

    /// A connection that reads what is left of a file, and leaves it as it is.
    pub(super) fn connect_to_salvage(&self) -> Result<Connection, StoreError> {
        let db = self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        // Without this, SQLite does not look into a file that is shorter than it should be.
        db.pragma_update(None, "writable_schema", true).map_err(|error| self.explain(error))?;
        match schema::identify(&db).map_err(|error| self.explain(error))? {
            Found::Ours => Ok(db),
            found => Err(self.not_ours(found)),
        }
    }

    fn connect(&self, flags: OpenFlags) -> Result<Connection, StoreError> {
        let connect = || {
            let mut db = Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
            db.busy_handler(Some(wait_a_little as fn(i32) -> bool))?;
            db.set_prepared_statement_cache_capacity(64);
            // Sizes inside a page are checked when it is read, so that a damaged one is found before it is used.
            db.pragma_update(None, "cell_size_check", true)?;
            db.pragma_update(None, "journal_size_limit", 64 << 20)?;
            Ok(db)
        };
        connect().map_err(|error: rusqlite::Error| self.explain(error))
    }

    /// Switches to a write-ahead log. Two processes that open a new file at once may get into each other's way,
    /// and SQLite does not wait here by itself.
    fn write_ahead(&self, db: &Connection) -> Result<(), StoreError> {
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
                    return Err(StoreError::of(StoreErrorKind::Disk, message));
                }
                Err(error) if is_busy(&error) && began.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(self.explain(error)),
            }
        }
    }

    /// Makes the tables, unless another process was faster.
    fn create(&self, db: &Connection) -> Result<(), StoreError> {
        let create = || {
            db.execute_batch("BEGIN IMMEDIATE")?;
            let found = schema::identify_within(db)?;
            if found == Found::Nothing {
                schema::create(db)?;
            }
            db.execute_batch("COMMIT")?;
            Ok(found)
        };
        match create().map_err(|error: rusqlite::Error| self.explain(error))? {
            Found::Nothing | Found::Ours => Ok(()),
            found => Err(self.not_ours(found)),
        }
    }

    fn not_ours(&self, found: Found) -> StoreError {
        let path = self.path.display();
        match found {
            Found::Newer { version } => StoreError::of(
                StoreErrorKind::TooNew,
                format!(
                    "`{path}` is a store of version {version}, and this program reads versions up to {VERSION}"
                ),
            ),
            Found::Foreign { application, tables } => {
                let tables = tables.iter().map(|table| format!("`{table}`")).collect::<Vec<_>>().join(", ");
                let tables = if tables.is_empty() { "none".to_owned() } else { tables };
                let message = format!(
                    "`{path}` is a database of another program (application id {application:#x}, tables: {tables}); \
                     nothing in it was changed"
                );
                StoreError::of(StoreErrorKind::Corrupt, message)
            }
            Found::Nothing | Found::Ours | Found::Stump => {
                StoreError::of(StoreErrorKind::Corrupt, format!("`{path}` is damaged: nothing is left in it"))
            }
        }
    }

    fn cannot_be_opened(&self, error: rusqlite::Error) -> StoreError {
        if error.sqlite_error_code() != Some(ErrorCode::DatabaseCorrupt) {
            return self.explain(error);
        }
        let path = self.path.display();
        let message = format!(
            "`{path}` is damaged or cut off: {error}; nothing in it was changed; hint: `SqliteStore::salvage` reads \
             what is left of it"
        );
        StoreError::of(StoreErrorKind::Corrupt, message).caused_by(error)
    }

    /// The file was opened for reading alone.
    pub(super) fn read_only(&self, about: &About) -> StoreError {
        let path = self.path.display();
        StoreError::of(
            StoreErrorKind::Disk,
            format!("{about}: `{path}` was opened for salvage and is not written to"),
        )
    }

    /// What went wrong, for whoever asked for something.
    pub(super) fn explain(&self, trouble: impl Into<Trouble>) -> StoreError {
        let path = self.path.display();
        let error = match trouble.into() {
            Trouble::Refused(error) => return error,
            Trouble::Damaged(what) => {
                return StoreError::of(StoreErrorKind::Corrupt, format!("`{path}` is damaged: {what}"));
            }
            Trouble::Sqlite(error) => error,
        };
        let kind = kind_of(&error);
        let message = match (kind, error.sqlite_error_code()) {
            (StoreErrorKind::Corrupt, Some(ErrorCode::NotADatabase)) => return self.not_a_database(),
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
                format!("`{path}` cannot be opened or made: {error}")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied)) => {
                format!("`{path}` cannot be written: {error}; what it holds is as it was")
            }
            (StoreErrorKind::Disk, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => format!(
                "`{path}` was kept locked by another process for {PATIENCE:?}: nothing of this was kept, everything \
                 before it was"
            ),
            (StoreErrorKind::Disk, _) => {
                format!(
                    "the disk of `{path}` fails: {error}; nothing of this was kept, everything before it was"
                )
            }
            _ => format!("`{path}`: {error}"),
        };
        StoreError::of(kind, message).caused_by(error)
    }

    /// As [`File::explain`], and says what it was about.
    pub(super) fn explain_about(&self, about: &About, trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::Refused(error) => error,
            Trouble::Sqlite(_) | Trouble::Damaged(_) => {
                let why = self.explain(trouble);
                StoreError::of(why.kind(), format!("{about}: {why}")).caused_by(why)
            }
        }
    }

    /// The thread that should have answered is gone.
    pub(super) fn stopped(&self) -> StoreError {
        StoreError::new(format!("`{}` is closed", self.path.display()))
    }

    fn not_a_database(&self) -> StoreError {
        let message =
            format!("`{}` is not a store: {}; nothing in it was changed", self.path.display(), self.look());
        StoreError::of(StoreErrorKind::Corrupt, message)
    }

    /// What a file that is not a database looks like. Only asked of such a file: opening and closing a database
    /// by other means would take away the locks that SQLite has on it.
    fn look(&self) -> String {
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

/// Whether the disk did not confirm that it has what it was given. Nobody knows then what it has.
pub(super) fn is_not_synced(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Sqlite(error) if extended_code(error) == Some(NOT_SYNCED))
}

/// Whether what was read is not what was written.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    kind_of(error) == StoreErrorKind::Corrupt
}

/// The text's hash, to stand beside it.
pub(super) fn seal(text: &str) -> String {
    Digest::of(text).to_string()
}

/// The text, if it is what was written.
pub(super) fn unseal(hash: &str, text: String) -> Result<String, Trouble> {
    if seal(&text) == hash {
        Ok(text)
    } else {
        Err(Trouble::Damaged("a text does not fit its hash".to_owned()))
    }
}

fn kind_of(error: &rusqlite::Error) -> StoreErrorKind {
    if extended_code(error) == Some(SHORT_READ) {
        return StoreErrorKind::Corrupt;
    }
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..)
        // What is asked does not change, so a table is missing that should be there.
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

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Waits for another process. Commits take about a millisecond, so the waits are short; SQLite's own grow to a
/// tenth of a second, and a writer that is out of luck falls behind.
fn wait_a_little(times: i32) -> bool {
    const WAIT: Duration = Duration::from_millis(2);
    thread::sleep(WAIT);
    WAIT * times.unsigned_abs() < PATIENCE
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Elsewhere a file that is open cannot be moved or deleted.
#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileId> {
    None
}

/// Makes the folder of a file, and makes it last.
fn make_folder(path: &Path) -> std::io::Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .collect();
    let Some(folder) = missing.first() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    for made in &missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Not every system can do this with a folder, and those that cannot need not.
        if let Ok(above) = fs::File::open(above) {
            above.sync_all().ok();
        }
    }
    Ok(())
}
