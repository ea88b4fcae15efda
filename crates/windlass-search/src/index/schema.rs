//! The SQLite schema of an index, and opening of its file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::SearchError;

/// SQLite `application_id` of an index file: `WLix`.
const APPLICATION_ID: i64 = 0x574c_6978;
/// SQLite `user_version` of an index file: the version of the schema.
pub(super) const SCHEMA_VERSION: i64 = 3;
/// Maximum time to wait for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

const CREATE_TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('generation', 0), ('next_chunk', 1), ('chunks', 0);
CREATE TABLE stores (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, description TEXT, created INTEGER NOT NULL, last_active INTEGER NOT NULL,
    metadata TEXT NOT NULL, expires_days INTEGER
);
INSERT INTO stores VALUES ('vs_default', 'default', NULL, unixepoch(), unixepoch(), '{}', NULL);
CREATE TABLE roots (store TEXT NOT NULL, path TEXT NOT NULL, attributes TEXT NOT NULL, PRIMARY KEY (store, path))
    WITHOUT ROWID;
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file_id TEXT NOT NULL, store TEXT NOT NULL, path TEXT NOT NULL,
    name TEXT NOT NULL, format TEXT NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL, hash BLOB NOT NULL,
    attributes TEXT NOT NULL, chunking TEXT NOT NULL, created INTEGER NOT NULL, chunks INTEGER NOT NULL,
    UNIQUE (store, path)
);
CREATE INDEX files_file_id ON files (file_id, store);
CREATE TABLE rejected_files (
    store TEXT NOT NULL, path TEXT NOT NULL, file_id TEXT NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL,
    reason TEXT NOT NULL, created INTEGER NOT NULL, PRIMARY KEY (store, path)
) WITHOUT ROWID;
CREATE TABLE chunks (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, location TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX chunks_file ON chunks (file);
CREATE TABLE deleted_chunks (chunk INTEGER PRIMARY KEY);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER NOT NULL, words INTEGER NOT NULL, ids BLOB NOT NULL,
    lengths BLOB NOT NULL, files BLOB NOT NULL
);
CREATE TABLE vectors (segment INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE postings (
    segment INTEGER NOT NULL, term TEXT NOT NULL, count INTEGER NOT NULL, data BLOB NOT NULL,
    positions BLOB NOT NULL, PRIMARY KEY (segment, term)
) WITHOUT ROWID;
CREATE TABLE terms (term TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE pending_vectors (digest BLOB PRIMARY KEY, data BLOB NOT NULL, created INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE claims (
    store TEXT NOT NULL, path TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (store, path)
) WITHOUT ROWID;
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, purpose TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER,
    size INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX uploads_expires ON uploads (expires);
CREATE TABLE upload_sessions (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, purpose TEXT NOT NULL, size INTEGER NOT NULL, created INTEGER NOT NULL,
    expires INTEGER NOT NULL, status TEXT NOT NULL, file_seconds INTEGER, file TEXT
);
CREATE TABLE upload_parts (id TEXT PRIMARY KEY, session TEXT NOT NULL, created INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX upload_parts_session ON upload_parts (session);
CREATE TABLE removed_items (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, list TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL
);
CREATE INDEX removed_items_id ON removed_items (list, id);
CREATE TABLE batches (id TEXT PRIMARY KEY, store TEXT NOT NULL, created INTEGER NOT NULL, files TEXT NOT NULL);
";

/// The access that a connection has to the index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexAccess {
    ReadWrite,
    /// The file is only read; other processes may change it.
    ReadOnly,
    /// The file is only read, and SQLite can keep no lock beside it, as on a read-only disk. Nobody may change it.
    Immutable,
}

/// Opens an index file that cannot or must not be written.
pub(super) fn open_read_only(path: &Path) -> Result<(Connection, IndexAccess), SearchError> {
    let mut failure = None;
    // A log that was not merged into the file has data that the file alone lacks.
    let log = std::fs::metadata(log_path(path)).is_ok_and(|log| log.len() > 0);
    let immutable = (!log).then_some(IndexAccess::Immutable);
    for access in [IndexAccess::ReadOnly].into_iter().chain(immutable) {
        match open_connection(path, access).and_then(|db| Ok((read_file_identity(&db)?, db))) {
            Ok((identity, db)) => {
                check_identity(path, identity)?;
                return Ok((db, access));
            }
            Err(source) => _ = failure.get_or_insert(source),
        }
    }
    let source = failure.unwrap_or(rusqlite::Error::InvalidQuery);
    Err(SearchError::Sqlite { path: path.to_owned(), source })
}

fn log_path(path: &Path) -> std::path::PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Returns true if the error may mean that the file can be read and not written.
pub(super) fn is_write_failure(error: &SearchError) -> bool {
    use rusqlite::ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
    match error {
        SearchError::Sqlite { source, .. } => source
            .sqlite_error_code()
            .is_some_and(|code| matches!(code, CannotOpen | PermissionDenied | ReadOnly)),
        _ => false,
    }
}

fn check_identity(path: &Path, identity: (i64, i64, i64)) -> Result<(), SearchError> {
    let reason = match identity {
        (APPLICATION_ID, SCHEMA_VERSION, _) => return Ok(()),
        (APPLICATION_ID, version, _) => {
            format!("it is of version {version}, and this program reads version {SCHEMA_VERSION}")
        }
        (.., tables) => format!("it is a database of another program, with {tables} tables"),
    };
    Err(SearchError::NotAnIndex { path: path.to_owned(), reason })
}

/// Opens an index file for writing; creates it if it does not exist.
pub(super) fn open_database(path: &Path) -> Result<Connection, SearchError> {
    let fail = |source| SearchError::Sqlite { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| SearchError::PathAccess { path: folder.to_owned(), source })?;
    }
    let db = open_connection(path, IndexAccess::ReadWrite).map_err(fail)?;
    let identity = read_file_identity(&db).map_err(fail)?;
    if identity == (0, 0, 0) {
        create_tables(&db).map_err(fail)?;
    } else {
        check_identity(path, identity)?;
    }
    let mode: String =
        db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(fail)?;
    if mode != "wal" && mode != "memory" {
        let why = "it cannot have a write-ahead log here: an index needs a local disk".to_owned();
        return Err(SearchError::NotAnIndex { path: path.to_owned(), reason: why });
    }
    Ok(db)
}

/// Opens another connection to an existing index file.
pub(super) fn open_connection(path: &Path, access: IndexAccess) -> rusqlite::Result<Connection> {
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = match access {
        IndexAccess::ReadWrite => Connection::open(path)?,
        IndexAccess::ReadOnly => Connection::open_with_flags(path, read_only)?,
        IndexAccess::Immutable => {
            Connection::open_with_flags(immutable_uri(path), read_only | OpenFlags::SQLITE_OPEN_URI)?
        }
    };
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.set_prepared_statement_cache_capacity(64);
    db.pragma_update(None, "cell_size_check", true)?;
    if access == IndexAccess::ReadWrite {
        db.pragma_update(None, "synchronous", "normal")?;
        db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    }
    Ok(db)
}

fn immutable_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                uri.push(char::from(*byte))
            }
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri + "?immutable=1"
}

/// Returns the application id, the schema version and the number of tables of a database.
fn read_file_identity(db: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let number = |pragma: &str| db.query_row(pragma, [], |row| row.get(0));
    Ok((
        number("PRAGMA application_id")?,
        number("PRAGMA user_version")?,
        number("SELECT count(*) FROM sqlite_schema")?,
    ))
}

/// Creates the tables, unless another process has created them meanwhile.
fn create_tables(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    if read_file_identity(db)?.2 == 0 {
        db.execute_batch(CREATE_TABLES)?;
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
        db.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    db.execute_batch("COMMIT")
}

/// Returns a number of the `meta` table; 0 if it is absent.
pub(super) fn read_meta(db: &Connection, key: &str) -> rusqlite::Result<i64> {
    let value = db
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(value.unwrap_or(0))
}

/// Sets a number of the `meta` table.
pub(super) fn write_meta(db: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2")?
        .execute((key, value))?;
    Ok(())
}

/// Increments the generation, which invalidates the snapshots of all processes.
pub(super) fn bump_generation(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE meta SET value = value + 1 WHERE key = 'generation'")?.execute([])?;
    Ok(())
}
