//! The tables of an index, and how its file is opened.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::SearchError;

/// Tells our files from those of other programs: `WLix`.
const APPLICATION: i64 = 0x574c_6978;
pub(super) const VERSION: i64 = 1;
/// How long another process may keep the file to itself.
const PATIENCE: Duration = Duration::from_secs(60);

const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO meta VALUES ('generation', 0), ('next_chunk', 1), ('chunks', 0);
CREATE TABLE stores (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, description TEXT, created INTEGER NOT NULL, active INTEGER NOT NULL,
    metadata TEXT NOT NULL, expires_days INTEGER
);
INSERT INTO stores VALUES ('vs_default', 'default', NULL, unixepoch(), unixepoch(), '{}', NULL);
CREATE TABLE roots (store TEXT NOT NULL, path TEXT NOT NULL, attributes TEXT NOT NULL, PRIMARY KEY (store, path))
    WITHOUT ROWID;
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, public TEXT NOT NULL, store TEXT NOT NULL, path TEXT NOT NULL,
    name TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, changed INTEGER NOT NULL, hash BLOB NOT NULL,
    attributes TEXT NOT NULL, chunking TEXT NOT NULL, created INTEGER NOT NULL, chunks INTEGER NOT NULL,
    UNIQUE (store, path)
);
CREATE INDEX files_public ON files (public, store);
CREATE TABLE refused (
    store TEXT NOT NULL, path TEXT NOT NULL, public TEXT NOT NULL, size INTEGER NOT NULL, changed INTEGER NOT NULL,
    why TEXT NOT NULL, created INTEGER NOT NULL, PRIMARY KEY (store, path)
) WITHOUT ROWID;
CREATE TABLE chunks (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, place TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX chunks_file ON chunks (file);
CREATE TABLE dead (chunk INTEGER PRIMARY KEY);
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

/// Opens an index's file; makes it where it is not there.
pub(super) fn open(path: &Path) -> Result<Connection, SearchError> {
    let fail = |source| SearchError::Sqlite { path: path.to_owned(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| SearchError::Path { path: folder.to_owned(), source })?;
    }
    let db = connect(path).map_err(fail)?;
    let (application, version, tables) = identify(&db).map_err(fail)?;
    match (application, version) {
        (APPLICATION, VERSION) => {}
        (APPLICATION, version) => {
            let why = format!("it is of version {version}, and this program reads version {VERSION}");
            return Err(SearchError::NotAnIndex { path: path.to_owned(), why });
        }
        (0, 0) if tables == 0 => create(&db).map_err(fail)?,
        _ => {
            let why = format!("it is a database of another program, with {tables} tables");
            return Err(SearchError::NotAnIndex { path: path.to_owned(), why });
        }
    }
    let mode: String =
        db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(fail)?;
    if mode != "wal" && mode != "memory" {
        let why = "it cannot have a write-ahead log here: an index needs a local disk".to_owned();
        return Err(SearchError::NotAnIndex { path: path.to_owned(), why });
    }
    Ok(db)
}

/// One more connection to an index that is open.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(PATIENCE)?;
    db.set_prepared_statement_cache_capacity(64);
    db.pragma_update(None, "synchronous", "normal")?;
    db.pragma_update(None, "cell_size_check", true)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)?;
    Ok(db)
}

fn identify(db: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let number = |pragma: &str| db.query_row(pragma, [], |row| row.get(0));
    Ok((
        number("PRAGMA application_id")?,
        number("PRAGMA user_version")?,
        number("SELECT count(*) FROM sqlite_schema")?,
    ))
}

/// Makes the tables, unless another process was faster.
fn create(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    if identify(db)?.2 == 0 {
        db.execute_batch(TABLES)?;
        db.pragma_update(None, "application_id", APPLICATION)?;
        db.pragma_update(None, "user_version", VERSION)?;
    }
    db.execute_batch("COMMIT")
}

pub(super) fn number(db: &Connection, key: &str) -> rusqlite::Result<i64> {
    let value = db
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(value.unwrap_or(0))
}

pub(super) fn set_number(db: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2")?
        .execute((key, value))?;
    Ok(())
}

/// Says to every process that what it remembers is old.
pub(super) fn next_generation(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE meta SET value = value + 1 WHERE key = 'generation'")?.execute([])?;
    Ok(())
}
