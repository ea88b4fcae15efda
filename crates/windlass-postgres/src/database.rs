//! Connections and transactions.
//!
//! Invariant: a connection goes back to the pool only outside of a transaction, and if all of its statements were answered.
//! A transaction whose future is dropped takes its connection with it, so that the server rolls it back.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Connection, Row, Socket};
use windlass::error::{StoreError, StoreErrorKind};

use crate::tls::{EncryptedStream, TlsMaker};
use crate::value::SqlValue;

/// Maximum number of attempts of an operation while the database is away or refuses to serialise it.
const MAX_ATTEMPTS: u32 = 10;
/// Time after which the server ends a transaction whose process sends nothing.
const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a connection.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time after the limit of a statement in which the server says that it has given the statement up.
const SERVER_ANSWER_TIME: Duration = Duration::from_secs(1);
/// Maximum time of a statement that migrates the tables.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Maximum time of a statement that searches all journals.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(600);
/// Time without a packet after which the operating system asks if the server is there, if nobody has set it.
const DEFAULT_KEEPALIVE_IDLE: Duration = Duration::from_secs(2 * 3_600);
/// Number of questions to which the server gives no answer before its connection is lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// The connection behind a client, which somebody must poll.
pub(crate) type ServerConnection = Connection<Socket, EncryptedStream<Socket>>;

/// An error of an operation.
#[derive(Debug)]
pub(crate) enum PgError {
    /// The request is invalid.
    Refused(StoreError),
    /// The database failed, or the connection was lost.
    Database(tokio_postgres::Error),
    /// The database did not answer in time.
    TimedOut,
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
        let error = match self {
            Self::Database(error) => error,
            Self::TimedOut => return true,
            Self::Refused(_) | Self::Corrupt(_) => return false,
        };
        match error.code() {
            Some(code) => {
                let transient = [
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                    SqlState::QUERY_CANCELED,
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
            Self::TimedOut => StoreError::new("the database does not answer"),
            Self::Database(error) => {
                let message = match error.as_db_error() {
                    Some(error) => format!("the database failed: {}", error.message()),
                    None => match std::error::Error::source(&error) {
                        Some(cause) => format!("the database cannot be reached: {error}: {cause}"),
                        None => format!("the database cannot be reached: {error}"),
                    },
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
    statement_timeout: Duration,
    idle: Arc<Mutex<Vec<Client>>>,
    permits: Arc<Semaphore>,
}

/// The kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionMode {
    /// The operation may be repeated if its commit is in doubt: it has the same result if an earlier attempt was committed and
    /// its answer was lost.
    Repeatable,
    /// The operation is repeated only while nothing was committed.
    Once,
    /// The operation reads one state of the database.
    Reading,
    /// The operation reads one state of the database, and its statements may take long.
    Searching,
    /// The operation is repeatable, and its statements may take long.
    Migration,
}

/// A connection, which goes back to the pool with [`DbConnection::give_back`].
pub(crate) struct DbConnection {
    client: Option<Client>,
    /// True once a statement was not answered.
    is_lost: AtomicBool,
    statement_timeout: Duration,
    idle: Arc<Mutex<Vec<Client>>>,
    schema: String,
    _permit: OwnedSemaphorePermit,
}

impl Database {
    pub(crate) fn new(
        mut config: Config,
        schema: String,
        max_connections: usize,
        statement_timeout: Duration,
    ) -> Self {
        limit_silence(&mut config, statement_timeout);
        let permits = Arc::new(Semaphore::new(max_connections.max(1)));
        Self { config, schema, statement_timeout, idle: Arc::default(), permits }
    }

    /// Creates a pool of one connection to the same database, for a runtime of its own.
    pub(crate) fn with_one_connection(&self) -> Self {
        Self::new(self.config.clone(), self.schema.clone(), 1, self.statement_timeout)
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
        let (idle, schema, statement_timeout) =
            (self.idle.clone(), self.schema.clone(), self.statement_timeout);
        let (client, is_lost) = (Some(client), AtomicBool::new(false));
        Ok(DbConnection { client, is_lost, statement_timeout, idle, schema, _permit: permit })
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self, mode: TransactionMode) -> Result<DbConnection, PgError> {
        let mut connection = self.connection().await?;
        let begin = match mode {
            TransactionMode::Repeatable | TransactionMode::Once | TransactionMode::Migration => "BEGIN",
            TransactionMode::Reading | TransactionMode::Searching => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
            }
        };
        match mode {
            TransactionMode::Migration => connection.statement_timeout = MIGRATION_TIMEOUT,
            TransactionMode::Searching => connection.statement_timeout = SEARCH_TIMEOUT,
            TransactionMode::Repeatable | TransactionMode::Once | TransactionMode::Reading => {}
        }
        // The server ends the transaction of a process that freezes, so that its locks do not hold up the others. It also
        // ends a statement that this process has given up.
        let (idle, statement) = (IDLE_LIMIT.as_millis(), connection.statement_timeout.as_millis().max(1));
        let limited = format!(
            "{begin}; SET LOCAL idle_in_transaction_session_timeout = {idle}; SET LOCAL statement_timeout = {statement}"
        );
        connection.execute(&limited).await?;
        Ok(connection)
    }

    /// Opens a connection that is not of the pool, and does not poll it.
    pub(crate) async fn open_connection(&self) -> Result<(Client, ServerConnection), PgError> {
        let limit = self.statement_timeout.min(MAX_CONNECT_TIME);
        let connecting = tokio::time::timeout(limit, self.config.connect(TlsMaker));
        Ok(connecting.await.map_err(|_| PgError::TimedOut)??)
    }

    async fn connect(&self) -> Result<Client, PgError> {
        let (client, connection) = self.open_connection().await?;
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
        let is_lost = *self.is_lost.get_mut();
        if let Some(client) = self.client.take().filter(|client| !client.is_closed() && !is_lost) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        }
    }

    /// Ends the transaction of an operation by its result.
    pub(crate) async fn end<T>(
        self,
        mode: TransactionMode,
        result: Result<T, PgError>,
    ) -> Result<T, PgError> {
        let Ok(value) = result else {
            self.roll_back().await;
            return result;
        };
        match mode {
            TransactionMode::Reading | TransactionMode::Searching => self.roll_back().await,
            TransactionMode::Repeatable | TransactionMode::Migration => self.commit().await?,
            // The commit may have happened: an error that is not transient ends the attempts.
            TransactionMode::Once => self.commit().await.map_err(PgError::into_store_error)?,
        }
        Ok(value)
    }

    async fn commit(self) -> Result<(), PgError> {
        self.execute("COMMIT").await?;
        self.give_back();
        Ok(())
    }

    async fn roll_back(self) {
        if self.execute("ROLLBACK").await.is_ok() {
            self.give_back();
        }
    }

    /// Executes statements without values. `@` stands for the schema of the store.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), PgError> {
        let sql = self.qualify(sql);
        self.answer(self.client()?.batch_execute(&sql)).await
    }

    /// Returns the rows of a statement. `@` stands for the schema of the store.
    pub(crate) async fn rows(&self, sql: &str, values: &[SqlValue]) -> Result<Vec<Row>, PgError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = values.iter().map(SqlValue::typed).collect();
        let sql = self.qualify(sql);
        self.answer(self.client()?.query_typed(&sql, &values)).await
    }

    /// Returns the first row of a statement.
    pub(crate) async fn row(&self, sql: &str, values: &[SqlValue]) -> Result<Option<Row>, PgError> {
        Ok(self.rows(sql, values).await?.into_iter().next())
    }

    /// Executes a statement and returns the number of rows that it changed.
    pub(crate) async fn run(&self, sql: &str, values: &[SqlValue]) -> Result<u64, PgError> {
        let values: Vec<(&(dyn ToSql + Sync), Type)> = values.iter().map(SqlValue::typed).collect();
        let sql = self.qualify(sql);
        self.answer(self.client()?.execute_typed(&sql, &values)).await
    }

    /// Waits for the answer of the server. If none comes, the connections that are idle may be dead as well: they were made
    /// over the same network, to the same server.
    async fn answer<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, PgError> {
        // The server gives up a statement that is merely slow before the connection counts as dead.
        let limit = self.statement_timeout + SERVER_ANSWER_TIME;
        let answered = match tokio::time::timeout(limit, statement).await {
            Ok(answered) => answered.map_err(PgError::from),
            Err(_) => Err(PgError::TimedOut),
        };
        let is_unanswered = match &answered {
            Err(PgError::TimedOut) => true,
            // An error of the server has a code.
            Err(PgError::Database(error)) => error.code().is_none(),
            _ => false,
        };
        if is_unanswered {
            self.is_lost.store(true, Ordering::Relaxed);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        answered
    }

    fn client(&self) -> Result<&Client, PgError> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(PgError::TimedOut);
        }
        self.client.as_ref().ok_or_else(|| StoreError::new("the connection was given back").into())
    }

    fn qualify(&self, sql: &str) -> String {
        // In quotes, because the name may be a word of SQL.
        sql.replace('@', &format!("\"{}\".", self.schema))
    }
}

/// Has the operating system notice a connection whose packets are lost, after about as much time as a statement may take.
/// The address of the database may set other limits.
fn limit_silence(config: &mut Config, limit: Duration) {
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(limit);
    }
    if config.get_keepalives_idle() == DEFAULT_KEEPALIVE_IDLE {
        config.keepalives_idle(limit.max(Duration::from_secs(1)));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval((limit / KEEPALIVE_RETRIES).max(Duration::from_secs(1)));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
}

/// Runs an operation in a transaction, and again while the database is away or refuses to serialise it.
///
/// `|db| work` is repeatable, and `attempt, |db| work` also says how many attempts were made; another mode stands before the
/// operation.
macro_rules! transact {
    ($database:expr, |$db:ident| $work:expr) => {
        transact!($database, attempt, |$db| $work)
    };
    ($database:expr, $attempt:ident, |$db:ident| $work:expr) => {
        transact!($database, $crate::database::TransactionMode::Repeatable, $attempt, |$db| $work)
    };
    ($database:expr, $mode:expr, |$db:ident| $work:expr) => {
        transact!($database, $mode, attempt, |$db| $work)
    };
    // A macro, because the futures of borrowing closures cannot be required to be `Send`.
    ($database:expr, $mode:expr, $attempt:ident, |$db:ident| $work:expr) => {{
        let mut $attempt = 0;
        loop {
            let result = match $database.begin($mode).await {
                Ok(connection) => {
                    let $db = &connection;
                    let result = $work.await;
                    connection.end($mode, result).await
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

pub(crate) use transact;
