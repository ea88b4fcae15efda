//! A store and a queue of Windlass in PostgreSQL, for fleets of workers.
//!
//! Invariant: every operation is one transaction that compares the epoch of the writer's lease, or one statement that does.
//! No statement depends on a session of the database, so a pooler in transaction mode works.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use windlass_postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), windlass::error::StoreError> {
//! let store = Arc::new(PostgresStore::connect("postgres://windlass@localhost/windlass").await?);
//! # drop(store);
//! # Ok(()) }
//! ```

mod append;
mod artefacts;
mod blocking_reader;
mod convert;
mod database;
mod decisions;
mod deltas;
mod hints;
mod history;
mod place;
mod queue;
mod receipts;
mod runs;
mod schedules;
mod schema;
mod session_appends;
mod session_store;
mod store;
mod tls;
mod value;
mod work_queue;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use windlass::core::authenticity::MacKeyring;
use windlass::error::StoreError;
use windlass::store::{ApproverPolicy, FollowerRegistry, RestoreReport, mark_restored};

use crate::append::AppendQueue;
use crate::blocking_reader::BlockingReader;
use crate::database::{Database, PgError};
use crate::hints::StoreHints;
use crate::session_appends::SessionAppends;

/// Default schema of the tables.
const DEFAULT_SCHEMA: &str = "windlass";
/// Default number of connections.
const DEFAULT_CONNECTIONS: usize = 8;
/// Default number of records between snapshots.
const DEFAULT_SNAPSHOT_INTERVAL: u64 = 256;
/// Default time limit of a statement. A worker's lease of 30 s outlives a connection that dies without a word.
const DEFAULT_STATEMENT_TIMEOUT: Duration = Duration::from_secs(8);

/// A store and a queue in PostgreSQL. Any number of processes on any machines may use it.
#[derive(Debug)]
pub struct PostgresStore {
    database: Arc<Database>,
    appends: AppendQueue,
    session_appends: SessionAppends,
    reader: Arc<BlockingReader>,
    store_id: String,
    snapshot_interval: u64,
    mac_keys: Option<Arc<MacKeyring>>,
    approvers: Option<Arc<ApproverPolicy>>,
    hints: StoreHints,
    followers: FollowerRegistry,
}

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Schema of the tables; the default is `windlass`. Lower-case letters, digits and underscores.
    pub schema: String,
    /// Maximum number of connections of this process; the default is 8.
    pub max_connections: usize,
    /// Number of records between snapshots, which speed up opening long runs; the default is 256.
    pub snapshot_interval: u64,
    /// Time limit of a statement, those aside that migrate the tables; the default is 8 s. A connection whose server does
    /// not answer in time is given up with all idle ones, and the operation is tried again over a new one. A worker notices
    /// a dead connection before its lease is over if this is less than a quarter of the lease.
    pub statement_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: DEFAULT_SCHEMA.to_owned(),
            max_connections: DEFAULT_CONNECTIONS,
            snapshot_interval: DEFAULT_SNAPSHOT_INTERVAL,
            statement_timeout: DEFAULT_STATEMENT_TIMEOUT,
        }
    }
}

impl PostgresStore {
    /// Connects to a database, and creates the tables if they do not exist. The address is a URL or a list of
    /// `key=value`, as `libpq` takes it.
    ///
    /// TLS is used if the server offers it, and its certificate must be one that the machine trusts; `sslmode=require`
    /// refuses a server without TLS, `sslmode=disable` does without.
    ///
    /// # Errors
    ///
    /// Returns an error if the database cannot be reached, or a newer version has written the tables, and one of the kind
    /// [`StoreErrorKind::NotRestored`](windlass::error::StoreErrorKind::NotRestored) if the tables are a copy of those of
    /// another database, such as a dump that was restored: see [`PostgresStore::restore`].
    pub async fn connect(address: &str) -> Result<Self, StoreError> {
        Self::connect_with(address, PostgresOptions::default()).await
    }

    /// Connects to a database with these settings.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`PostgresStore::connect`].
    pub async fn connect_with(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let store = Self::open(address, options).await?;
        place::check_place(&store.database).await?;
        Ok(store)
    }

    /// Puts in doubt what the open runs of a store may have done since its database was backed up:
    /// [`mark_restored`]. Call it once after the database was restored, before the first worker starts. It
    /// also records that the store belongs to this database.
    ///
    /// A dump that is restored is recognised, because its database is another one. The recovery of a cluster to a point in
    /// time, and a failover to a replica that lacks commits, are not.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`PostgresStore::connect`] and of [`mark_restored`].
    pub async fn restore(address: &str, options: PostgresOptions) -> Result<RestoreReport, StoreError> {
        let store = Self::open(address, options).await?;
        let report = mark_restored(&store).await?;
        place::adopt_place(&store.database).await?;
        Ok(report)
    }

    async fn open(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let config: Config = address.parse().map_err(|error: tokio_postgres::Error| {
            StoreError::new("the address of the database is invalid").with_source(error)
        })?;
        let PostgresOptions { schema, max_connections, snapshot_interval, statement_timeout } = options;
        let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let begins_plain = schema.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '_');
        if !begins_plain || !schema.chars().all(is_plain) || schema.len() > 63 {
            return Err(StoreError::new(format!("`{schema}` is no name of a schema")));
        }
        let database = Arc::new(Database::new(config, schema, max_connections, statement_timeout));
        // A database that cannot be reached now is an error at once: the address may be wrong.
        database.connection().await.map_err(PgError::into_store_error)?.give_back();
        let store_id = schema::open_schema(&database).await?;
        let appends = AppendQueue::start(database.clone());
        let session_appends = SessionAppends::start(database.clone());
        let hints = StoreHints::start(database.clone());
        let reader = Arc::new(BlockingReader::new(database.clone()));
        Ok(Self {
            database,
            appends,
            session_appends,
            reader,
            store_id,
            snapshot_interval,
            mac_keys: None,
            approvers: None,
            hints,
            followers: FollowerRegistry::for_all_processes(),
        })
    }

    /// Sets the keys with which decisions and snapshots are authenticated. They are not in the database.
    #[must_use]
    pub fn with_keys(mut self, keys: impl Into<Arc<MacKeyring>>) -> Self {
        self.mac_keys = Some(keys.into());
        self
    }

    /// Sets the approvers whose signatures count: see
    /// [`SqliteStore::with_approvers`](windlass::store::SqliteStore::with_approvers). They are not in the database.
    #[must_use]
    pub fn with_approvers(mut self, approvers: impl Into<Arc<ApproverPolicy>>) -> Self {
        self.approvers = Some(approvers.into());
        self
    }
}

#[cfg(test)]
mod fuzz_tests;
