//! The SQLite schema of an index, and opening of its file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::SearchError;

/// SQLite `application_id` of an index file: `WLix`.
const APPLICATION_ID: i64 = 0x574c_6978;
/// SQLite `user_version` of an index file: the version of the schema.
pub(super) const SCHEMA_VERSION: i64 = 2;
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
    PRIMARY KEY (segment, term)
) WITHOUT ROWID;
CREATE TABLE terms (term TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, purpose TEXT NOT NULL, created INTEGER NOT NULL, size INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE batches (id TEXT PRIMARY KEY, store TEXT NOT NULL, created INTEGER NOT NULL, files TEXT NOT NULL);
";

/// Opens an index file for writing; creates it if it does not exist.
pub(super) fn open_database(path: &Path) -> Result<Connection, SearchError> {
    let fail = |source| SearchError::Sqlite { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| SearchError::PathAccess { path: folder.to_owned(), source })?;
    }
    let db = open_connection(path).map_err(fail)?;
    let (application, version, tables) = read_file_identity(&db).map_err(fail)?;
    match (application, version) {
        (APPLICATION_ID, SCHEMA_VERSION) => {}
        (APPLICATION_ID, version) => {
            let why = format!("it is of version {version}, and this program reads version {SCHEMA_VERSION}");
            return Err(SearchError::NotAnIndex { path: path.to_owned(), reason: why });
        }
        (0, 0) if tables == 0 => create_tables(&db).map_err(fail)?,
        _ => {
            let why = format!("it is a database of another program, with {tables} tables");
            return Err(SearchError::NotAnIndex { path: path.to_owned(), reason: why });
        }
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
pub(super) fn open_connection(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.set_prepared_statement_cache_capacity(64);
    db.pragma_update(None, "synchronous", "normal")?;
    db.pragma_update(None, "cell_size_check", true)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    Ok(db)
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
