//! The tables of a store, in a schema of their own.

use windlass::error::{StoreError, StoreErrorKind};

use crate::database::{Database, DbConnection, PgError, TransactionMode, transact};

/// Version of the tables that this crate writes.
const SCHEMA_VERSION: i64 = 6;

/// Key of the advisory lock under which tables are created and migrated.
const MIGRATION_LOCK: i64 = 0x574E_444C;

/// Version 1. Names have the collation `C`, so that their order is that of their bytes. Bodies are `bytea`: `text` takes no
/// NUL. Only rows that wait for something are in an index of the queue.
const TABLES: &str = r#"
    CREATE TABLE @store (id text NOT NULL, version bigint NOT NULL);
    CREATE TABLE @runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE "C" NOT NULL UNIQUE,
        agent text NOT NULL,
        session text,
        status text NOT NULL,
        epoch bigint NOT NULL,
        records bigint NOT NULL,
        owner text COLLATE "C",
        beat bigint,
        lease_ms bigint,
        renewed bigint,
        created bigint NOT NULL,
        updated bigint NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX runs_by_creation ON @runs (created DESC, name DESC);
    CREATE INDEX runs_by_status ON @runs (status, created DESC, name DESC);
    CREATE TABLE @lines (
        run bigint NOT NULL,
        seq bigint NOT NULL,
        hash bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, seq)
    );
    CREATE TABLE @inbox (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run bigint NOT NULL,
        path text NOT NULL,
        attempt bigint NOT NULL,
        body bytea NOT NULL,
        UNIQUE (run, path, attempt)
    );
    CREATE TABLE @taken_decisions (
        run bigint NOT NULL,
        path text NOT NULL,
        attempt bigint NOT NULL,
        epoch bigint NOT NULL,
        PRIMARY KEY (run, path, attempt)
    );
    CREATE TABLE @snapshots (
        run bigint PRIMARY KEY,
        records bigint NOT NULL,
        head bytea NOT NULL,
        body bytea NOT NULL
    );
    CREATE TABLE @withheld_outputs (
        run bigint NOT NULL,
        path text NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, path)
    );
    CREATE TABLE @artefacts (
        run text COLLATE "C" NOT NULL,
        name text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, name)
    );
    CREATE TABLE @receipts (
        scope text COLLATE "C" NOT NULL,
        digest bytea NOT NULL,
        generation bigint NOT NULL,
        owner text,
        beat bigint,
        lease_ms bigint,
        renewed bigint,
        body bytea,
        expires bigint,
        PRIMARY KEY (scope, digest)
    );
    CREATE TABLE @sessions (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE "C" NOT NULL UNIQUE,
        version bigint NOT NULL,
        next bigint NOT NULL,
        view text,
        holder text COLLATE "C",
        epoch bigint
    );
    CREATE TABLE @items (
        session bigint NOT NULL,
        seq bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (session, seq)
    );
    CREATE TABLE @session_runs (
        session bigint NOT NULL,
        run text COLLATE "C" NOT NULL,
        position bigint NOT NULL,
        PRIMARY KEY (session, run)
    );
    CREATE TABLE @history_references (
        session bigint NOT NULL,
        run bigint NOT NULL,
        first bigint NOT NULL,
        last bigint NOT NULL,
        PRIMARY KEY (session, run, first)
    );
    CREATE TABLE @workers (
        name text COLLATE "C" PRIMARY KEY,
        beat bigint NOT NULL,
        lease_ms bigint NOT NULL,
        renewed bigint NOT NULL
    );
    CREATE TABLE @queue (
        run text COLLATE "C" PRIMARY KEY,
        agent text COLLATE "C" NOT NULL,
        tenant text COLLATE "C" NOT NULL,
        priority bigint NOT NULL,
        state text NOT NULL,
        position bigint NOT NULL,
        wake bigint,
        worker text COLLATE "C",
        attempt bigint NOT NULL,
        max_attempts bigint NOT NULL,
        signals bigint NOT NULL,
        reason text,
        body bytea NOT NULL
    ) WITH (fillfactor = 70);
    CREATE INDEX queue_ready ON @queue (tenant, agent, priority DESC, position) WHERE state = 'ready';
    CREATE INDEX queue_wake ON @queue (wake) WHERE wake IS NOT NULL;
    CREATE INDEX queue_worker ON @queue (worker) WHERE worker IS NOT NULL;
    CREATE SEQUENCE @queue_positions;
    CREATE TABLE @queue_orders (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run text COLLATE "C" NOT NULL,
        body bytea NOT NULL
    );
    CREATE INDEX queue_orders_of_run ON @queue_orders (run);
    CREATE TABLE @queue_refusals (
        run text COLLATE "C" NOT NULL,
        build text COLLATE "C" NOT NULL,
        reason text NOT NULL,
        PRIMARY KEY (run, build)
    );
    CREATE TABLE @queue_shares (
        scope text COLLATE "C" NOT NULL,
        name text COLLATE "C" NOT NULL,
        time bigint NOT NULL,
        PRIMARY KEY (scope, name)
    );
"#;

/// Changes of the tables, each from the version before it: the first makes version 2.
const MIGRATIONS: [&str; 5] = [
    r#"
    CREATE TABLE @schedules (
        name text COLLATE "C" PRIMARY KEY,
        covered bigint NOT NULL,
        body bytea NOT NULL
    );
"#,
    r#"
    CREATE TABLE @snapshot_segments (
        run bigint NOT NULL,
        number bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, number)
    );
"#,
    r#"
    ALTER TABLE @sessions ADD COLUMN claimant text COLLATE "C", ADD COLUMN beat bigint, ADD COLUMN lease_ms bigint,
        ADD COLUMN renewed bigint;
    CREATE INDEX runs_by_agent ON @runs (agent, status, created DESC, name DESC);
    CREATE INDEX runs_by_session ON @runs (session, created DESC, name DESC) WHERE session IS NOT NULL;
    CREATE INDEX queue_open ON @queue (run) WHERE state <> 'ended';
    ALTER TABLE @store ADD COLUMN place text;
"#,
    r#"
    CREATE TABLE @followers (
        name text COLLATE "C" PRIMARY KEY,
        beat bigint NOT NULL,
        runs bytea NOT NULL
    );
    CREATE TABLE @live_deltas (
        run bigint NOT NULL,
        epoch bigint NOT NULL,
        number bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (run, epoch, number)
    );
"#,
    // The highest epoch of a forgotten run. New runs begin above it, because they may have the id of such a run.
    r#"
    ALTER TABLE @store ADD COLUMN forgotten_epoch bigint NOT NULL DEFAULT 0;
"#,
];

/// Creates or migrates the tables, and returns the id of the store. Processes that start together wait for each other.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::UnsupportedVersion`] if a newer version has written the tables.
pub(crate) async fn open_schema(database: &Database) -> Result<String, StoreError> {
    transact!(database, TransactionMode::Migration, |db| migrate(db, database.schema()))
}

async fn migrate(db: &DbConnection, schema: &str) -> Result<String, PgError> {
    // A statement of its own, so that the next one sees what another process has created.
    db.rows("SELECT pg_advisory_xact_lock($1)", &[MIGRATION_LOCK.into()]).await?;
    let exists = db
        .row(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'store'",
            &[schema.into()],
        )
        .await?;
    if exists.is_none() {
        db.execute(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")).await?;
        db.execute(TABLES).await?;
        let id = uuid::Uuid::now_v7().to_string();
        db.run("INSERT INTO @store (id, version) VALUES ($1, 1)", &[(&id).into()]).await?;
    }
    let row = db.row("SELECT id, version FROM @store", &[]).await?;
    let row = row.ok_or_else(|| PgError::Corrupt("the store has no id".to_owned()))?;
    let version: i64 = row.try_get(1)?;
    if version > SCHEMA_VERSION {
        let message = format!(
            "the store has tables of version {version}, and this program reads versions up to {SCHEMA_VERSION}"
        );
        return Err(StoreError::with_kind(StoreErrorKind::UnsupportedVersion, message).into());
    }
    for (from, migration) in (1..).zip(MIGRATIONS) {
        if version <= from {
            db.execute(migration).await?;
        }
    }
    if version < SCHEMA_VERSION {
        db.run("UPDATE @store SET version = $1", &[SCHEMA_VERSION.into()]).await?;
    }
    Ok(row.try_get(0)?)
}
