//! The schema of the database, and the identification of files of other programs.

use rusqlite::Connection;

/// SQLite application id of a store: `WNDL`.
pub(super) const APPLICATION_ID: i32 = 0x574E_444C;

/// SQLite application id of a backup: `WNDB`. A backup is read and never driven.
pub(super) const BACKUP_APPLICATION_ID: i32 = 0x574E_4442;

/// Schema version that is written. This and all earlier versions can be read.
pub(super) const SCHEMA_VERSION: i32 = 6;

/// Schema version 1.
///
/// Runs and sessions have integer ids, so that lines do not repeat long names. The lines of all runs are
/// appended to one table: lines of many runs that are committed together then share pages. A run stores its
/// number of records, because a hash chain does not reveal that its end is missing. Every value that is used
/// after reading is stored with its SHA-256: SQLite itself does not detect a flipped bit. Hashes are 32 bytes.
const SCHEMA_V1: &str = "
    CREATE TABLE store (
        id TEXT NOT NULL,
        commits INTEGER NOT NULL,
        host TEXT,
        path TEXT,
        inode INTEGER
    ) STRICT;
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        status TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        records INTEGER NOT NULL,
        owner TEXT,
        beat INTEGER,
        lease_ms INTEGER,
        renewed INTEGER,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE lines (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run, seq)
    ) STRICT;
    CREATE TABLE inbox (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        path TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        hash BLOB NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run, path, attempt)
    ) STRICT;
    CREATE TABLE taken_decisions (
        run INTEGER NOT NULL,
        path TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        PRIMARY KEY (run, path, attempt)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE artefacts (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        hash BLOB NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (run, name)
    ) STRICT;
    CREATE TABLE receipts (
        id INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        digest BLOB NOT NULL,
        generation INTEGER NOT NULL,
        owner TEXT,
        beat INTEGER,
        lease_ms INTEGER,
        renewed INTEGER,
        hash BLOB,
        body TEXT,
        expires INTEGER,
        UNIQUE (scope, digest)
    ) STRICT;
    CREATE INDEX receipts_by_expiry ON receipts (expires) WHERE expires IS NOT NULL;
";

/// The owner of a database file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DatabaseOwner {
    /// The file is empty.
    Empty,
    /// A store with a known schema version.
    Ours,
    /// A store without any tables left.
    Truncated,
    /// A store with a newer schema version.
    Newer { version: i32 },
    /// A database of another program.
    Foreign { application: i32, tables: Vec<String> },
}

/// Identifies the owner of a file without changing it.
pub(super) fn identify_owner(db: &Connection) -> Result<DatabaseOwner, rusqlite::Error> {
    // Another process may be creating the schema: all queries must run in one transaction.
    let moment = db.unchecked_transaction()?;
    identify_owner_in_transaction(&moment)
}

/// Identifies the owner of a file inside the caller's transaction.
pub(super) fn identify_owner_in_transaction(db: &Connection) -> Result<DatabaseOwner, rusqlite::Error> {
    let application = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name LIMIT 4")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    Ok(match (application, version) {
        (APPLICATION_ID | BACKUP_APPLICATION_ID, 1..=SCHEMA_VERSION) if tables.is_empty() => {
            DatabaseOwner::Truncated
        }
        (APPLICATION_ID | BACKUP_APPLICATION_ID, 1..=SCHEMA_VERSION) => DatabaseOwner::Ours,
        (APPLICATION_ID | BACKUP_APPLICATION_ID, version) if version > SCHEMA_VERSION => {
            DatabaseOwner::Newer { version }
        }
        (0, 0) if tables.is_empty() => DatabaseOwner::Empty,
        _ => DatabaseOwner::Foreign { application, tables },
    })
}

/// Returns true if the file is a backup.
pub(super) fn is_backup(db: &Connection) -> Result<bool, rusqlite::Error> {
    let application: i32 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(application == BACKUP_APPLICATION_ID)
}

/// Returns true if the file has an earlier schema version.
pub(super) fn is_outdated(db: &Connection) -> Result<bool, rusqlite::Error> {
    let version: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(version < SCHEMA_VERSION)
}

/// Adds the tables of later schema versions, inside the caller's transaction.
pub(super) fn migrate_schema(db: &Connection) -> Result<(), rusqlite::Error> {
    let version: i32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version < 2 {
        db.execute_batch(super::queue::SCHEMA_V2)?;
    }
    if version < 3 {
        db.execute_batch(super::schedules::SCHEMA_V3)?;
    }
    if version < 4 {
        db.execute_batch(super::sessions::SCHEMA_V4)?;
        db.execute_batch(super::run_list::SCHEMA_V4)?;
    }
    if version < 5 {
        db.execute_batch(super::decisions::SCHEMA_V5)?;
    }
    if version < 6 {
        db.execute_batch(super::forget::SCHEMA_V6)?;
        db.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    Ok(())
}

/// Returns the id of a store.
pub(super) fn read_store_id(db: &Connection) -> Result<String, rusqlite::Error> {
    db.query_row("SELECT id FROM store", [], |row| row.get(0))
}

/// Creates the schema in an empty file, inside the caller's transaction.
pub(super) fn create_schema(db: &Connection) -> Result<(), rusqlite::Error> {
    db.execute_batch(SCHEMA_V1)?;
    db.execute_batch(super::sessions::SCHEMA_V1)?;
    db.execute_batch(super::queue::SCHEMA_V2)?;
    db.execute_batch(super::schedules::SCHEMA_V3)?;
    db.execute_batch(super::sessions::SCHEMA_V4)?;
    db.execute_batch(super::run_list::SCHEMA_V4)?;
    db.execute_batch(super::decisions::SCHEMA_V5)?;
    db.execute_batch(super::forget::SCHEMA_V6)?;
    db.execute("INSERT INTO store (id, commits) VALUES (?1, 0)", [uuid::Uuid::now_v7().to_string()])?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", SCHEMA_VERSION)
}
