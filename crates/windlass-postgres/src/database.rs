//! Connections and transactions.
//!
//! Invariant: a connection goes back to the pool only outside of a transaction. A transaction whose future is dropped takes
//! its connection with it, so that the server rolls it back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use windlass::error::{StoreError, StoreErrorKind};

use crate::tls::TlsMaker;
use crate::value::SqlValue;

/// Maximum number of attempts of an operation while the database is away or refuses to serialise it.
const MAX_ATTEMPTS: u32 = 10;
/// Time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An error of an operation.
#[derive(Debug)]
pub(crate) enum PgError {
    /// The request is invalid.
    Refused(StoreError),
    /// The database failed, or the connection was lost.
    Database(tokio_postgres::Error),
    /// The data are corrupt.
    Corrupt(String),
}

impl From<StoreError> for PgError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl PgError {
    /// True if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        let Self::Database(error) = self else { return false };
        match error.code() {
            Some(code) => {
                let transient = [
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::TOO_MANY_CONNECTIONS,
                ];
                transient.contains(code) || code.code().starts_with("08")
            }
            // Without a code, the server did not answer.
            None => true,
        }
    }

    pub(crate) fn into_store_error(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Corrupt(reason) => StoreError::with_kind(StoreErrorKind::Corrupt, reason),
            Self::Database(error) => {
                let message = match error.as_db_error() {
                    Some(error) => format!("the database failed: {}", error.message()),
                    None => format!("the database cannot be reached: {error}"),
                };
                let kind = match error.code() {
                    Some(&SqlState::DISK_FULL) => StoreErrorKind::Disk,
                    _ => StoreErrorKind::Other,
                };
                StoreError::with_kind(kind, message).with_source(error)
            }
        }
    }
}

/// The database of a store: its connections, and the schema of its tables.
#[derive(Debug)]
pub(crate) struct Database {
    config: Config,
    schema: String,
    idle: Arc<Mutex<Vec<Client>>>,
    permits: Arc<Semaphore>,
}

/// A connection, which goes back to the pool with [`DbConnection::give_back`].
pub(crate) struct DbConnection {
    client: Option<Client>,
    idle: Arc<Mutex<Vec<Client>>>,
    schema: String,
    _permit: OwnedSemaphorePermit,
}

impl Database {
    pub(crate) fn new(config: Config, schema: String, max_connections: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max_connections.max(1)));
        Self { config, schema, idle: Arc::default(), permits }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) async fn connection(&self) -> Result<DbConnection, PgError> {
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::new("the pool is closed"))?;
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|client| !client.is_closed());
            idle.pop()
        };
        let client = match idle {
            Some(client) => client,
            None => self.connect().await?,
        };
        let (idle, schema) = (self.idle.clone(), self.schema.clone());
        Ok(DbConnection { client: Some(client), idle, schema, _permit: permit })
    }

    async fn connect(&self) -> Result<Client, PgError> {
        let connecting = self.config.connect(TlsMaker);
        let (client, connection) = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| StoreError::new("the database does not answer"))??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the database ended");
            }
        });
        Ok(client)
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    ///
    /// Returns the error if no further attempt is made.
    pub(crate) async fn wait_after(&self, error: PgError, attempt: &mut u32) -> Result<(), StoreError> {
        *attempt += 1;
        if !error.is_transient() || *attempt >= MAX_ATTEMPTS {
            return Err(error.into_store_error());
        }
        tracing::debug!(?error, attempt, "an operation on the database is tried again");
        tokio::time::sleep(Duration::from_millis(10 << (*attempt).min(7))).await;
        Ok(())
    }
}

impl DbConnection {
    /// Returns the connection to the pool. Call it outside of a transaction.
    pub(crate) fn give_back(mut self) {
        if let Some(client) = self.client.take().filter(|client| !client.is_closed()) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        }
    }

    pub(crate) async fn begin(&self) -> Result<(), PgError> {
        self.execute("BEGIN").await
    }

    /// Begins a transaction that reads one state of the database.
    pub(crate) async fn begin_reading(&self) -> Result<(), PgError> {
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }

    pub(crate) async fn commit(self) -> Result<(), PgError> {
        self.execute("COMMIT").await?;
        self.give_back();
        Ok(())
    }

    /// Ends the transaction of a failed operation.
    pub(crate) async fn roll_back(self) {
        if self.execute("ROLLBACK").await.is_ok() {
            self.give_back();
        }
    }

    /// Executes statements without values. `@` stands for the schema of the store.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), PgError> {
        Ok(self.client()?.batch_execute(&self.qualify(sql)).await?)
    }

    /// Returns the rows of a statement. `@` stands for the schema of the store.
    pub(crate) async fn rows(&self, sql: &str, values: &[SqlValue]) -> Result<Vec<Row>, PgError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = values.iter().map(SqlValue::typed).collect();
        Ok(self.client()?.query_typed(&self.qualify(sql), &values).await?)
    }

    /// Returns the first row of a statement.
    pub(crate) async fn row(&self, sql: &str, values: &[SqlValue]) -> Result<Option<Row>, PgError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Executes a statement and returns the number of rows that it changed.
    pub(crate) async fn run(&self, sql: &str, values: &[SqlValue]) -> Result<u64, PgError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = values.iter().map(SqlValue::typed).collect();
        Ok(self.client()?.execute_typed(&self.qualify(sql), &values).await?)
    }

    fn client(&self) -> Result<&Client, PgError> {
        self.client.as_ref().ok_or_else(|| StoreError::new("the connection was given back").into())
    }

    fn qualify(&self, sql: &str) -> String {
        sql.replace('@', &format!("{}.", self.schema))
    }
}

/// Runs an operation in a transaction, and again while the database is away or refuses to serialise it. The operation must
/// have the same result if an earlier attempt was committed and its answer was lost.
macro_rules! transact {
    ($database:expr, |$db:ident| $work:expr) => {
        transact!($database, attempt, |$db| $work)
    };
    ($database:expr, $attempt:ident, |$db:ident| $work:expr) => {{
        let mut $attempt = 0;
        loop {
            let result = match $database.connection().await {
                Ok(connection) => {
                    let result = async {
                        connection.begin().await?;
                        let $db = &connection;
                        $work.await
                    }
                    .await;
                    match result {
                        Ok(value) => connection.commit().await.map(|()| value),
                        Err(error) => {
                            connection.roll_back().await;
                            Err(error)
                        }
                    }
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(value) => break Ok(value),
                Err(error) => {
                    if let Err(error) = $database.wait_after(error, &mut $attempt).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}

/// Reads one state of the database, and again while it is away.
macro_rules! read_all {
    ($database:expr, |$db:ident| $work:expr) => {{
        let mut attempt = 0;
        loop {
            let result = match $database.connection().await {
                Ok(connection) => {
                    let result = async {
                        connection.begin_reading().await?;
                        let $db = &connection;
                        $work.await
                    }
                    .await;
                    connection.roll_back().await;
                    result
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(value) => break Ok(value),
                Err(error) => {
                    if let Err(error) = $database.wait_after(error, &mut attempt).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}

/// Runs an operation in a transaction, once: it must not be repeated if its commit is in doubt. It is tried again only
/// while nothing was committed.
macro_rules! once {
    ($database:expr, |$db:ident| $work:expr) => {{
        let mut attempt = 0;
        loop {
            let error = match $database.connection().await {
                Ok(connection) => {
                    let result = async {
                        connection.begin().await?;
                        let $db = &connection;
                        $work.await
                    }
                    .await;
                    match result {
                        Ok(value) => match connection.commit().await {
                            Ok(()) => break Ok(value),
                            Err(error) => break Err(error.into_store_error()),
                        },
                        Err(error) => {
                            connection.roll_back().await;
                            error
                        }
                    }
                }
                Err(error) => error,
            };
            if let Err(error) = $database.wait_after(error, &mut attempt).await {
                break Err(error);
            }
        }
    }};
}

pub(crate) use {once, read_all, transact};
