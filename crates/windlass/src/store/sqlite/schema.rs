//! What the file looks like, and how one is told from the file of another program.

use rusqlite::Connection;

/// Marks the file as ours: `WNDL`.
pub(super) const APPLICATION: i32 = 0x574E_444C;

/// The version that is written. This one and every one before it are read.
pub(super) const VERSION: i32 = 1;

/// Version 1.
///
/// Runs and sessions have numbers of their own, so that a line does not repeat a long name. Lines go to the end of
/// one table whatever run they belong to: lines of many runs that are committed together then share pages. A run says
/// how many it has, because a chain does not show that its end is missing. Every text that is read back as a value
/// stands beside its SHA-256: SQLite itself does not notice a flipped bit.
const VERSION_1: &str = "
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        status TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        records INTEGER NOT NULL,
        owner TEXT,
        owned_until INTEGER,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE lines (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run, seq)
    ) STRICT;
    CREATE TABLE inbox (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        path TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        hash TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run, path, attempt)
    ) STRICT;
    CREATE TABLE artefacts (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        name TEXT NOT NULL,
        hash TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run, name)
    ) STRICT;
    CREATE TABLE receipts (
        id INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        digest TEXT NOT NULL,
        owner TEXT,
        owned_until INTEGER,
        hash TEXT,
        body TEXT,
        expires INTEGER,
        UNIQUE (scope, digest)
    ) STRICT;
    CREATE INDEX receipts_by_expiry ON receipts (expires) WHERE expires IS NOT NULL;
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        version INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE items (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        hash TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (session, seq)
    ) STRICT;
";

/// Whose file it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody's yet.
    Nothing,
    /// Ours, in a version that can be read.
    Ours,
    /// Ours, with nothing left in it.
    Stump,
    /// Ours, in a version that is not known here.
    Newer { version: i32 },
    /// Another program's.
    Foreign { application: i32, tables: Vec<String> },
}

/// Finds out whose file it is. Changes nothing.
pub(super) fn identify(db: &Connection) -> Result<Found, rusqlite::Error> {
    // Another process may be making it: what is asked for must be of one moment.
    let moment = db.unchecked_transaction()?;
    identify_within(&moment)
}

/// As [`identify`], inside the caller's transaction.
pub(super) fn identify_within(db: &Connection) -> Result<Found, rusqlite::Error> {
    let application = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables = db
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name LIMIT 4")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<Vec<String>, _>>()?;
    Ok(match (application, version) {
        (APPLICATION, 1..=VERSION) if tables.is_empty() => Found::Stump,
        (APPLICATION, 1..=VERSION) => Found::Ours,
        (APPLICATION, version) if version > VERSION => Found::Newer { version },
        (0, 0) if tables.is_empty() => Found::Nothing,
        _ => Found::Foreign { application, tables },
    })
}

/// Makes an empty file ours, inside the caller's transaction.
pub(super) fn create(db: &Connection) -> Result<(), rusqlite::Error> {
    db.execute_batch(VERSION_1)?;
    db.pragma_update(None, "application_id", APPLICATION)?;
    db.pragma_update(None, "user_version", VERSION)
}
