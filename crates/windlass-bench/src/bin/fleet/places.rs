//! The stores that are measured.

use std::path::Path;
use std::sync::Arc;

use windlass::fleet::RunQueue;
use windlass::store::SqliteStore;
use windlass_postgres::{PostgresOptions, PostgresStore};

/// A place for the store of one measurement.
pub(crate) struct StorePlace<'a> {
    address: &'a str,
    name: String,
}

impl<'a> StorePlace<'a> {
    /// Creates a place with a name that no other measurement has.
    pub(crate) fn new(address: &'a str, name: &str) -> Self {
        Self { address, name: format!("{name}_{}", std::process::id()) }
    }

    pub(crate) fn is_database(&self) -> bool {
        self.address.starts_with("postgres")
    }

    /// Returns the schema of a database.
    pub(crate) fn schema(&self) -> &str {
        &self.name
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self) -> String {
        format!("{}-{}.db", self.address, self.name)
    }

    /// Opens the store, as a process of its own would.
    pub(crate) async fn open(&self) -> Result<Arc<dyn RunQueue>, String> {
        if self.is_database() {
            let options = PostgresOptions { schema: self.name.clone(), ..PostgresOptions::default() };
            let store = PostgresStore::connect_with(self.address, options).await;
            return Ok(Arc::new(store.map_err(|error| error.to_string())?));
        }
        Ok(Arc::new(SqliteStore::open(Path::new(&self.path())).map_err(|error| error.to_string())?))
    }

    /// Removes the files or the tables.
    pub(crate) async fn remove(&self) -> Result<(), String> {
        if self.is_database() {
            return self.execute(&format!("DROP SCHEMA \"{}\" CASCADE", self.name)).await;
        }
        for suffix in ["", "-wal", "-shm", "-turn"] {
            std::fs::remove_file(format!("{}{suffix}", self.path())).ok();
        }
        Ok(())
    }

    /// Executes statements in the database or the file.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), String> {
        if self.is_database() {
            let (client, connection) = tokio_postgres::connect(self.address, tokio_postgres::NoTls)
                .await
                .map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            return client.batch_execute(sql).await.map_err(|error| format!("{error:?}"));
        }
        let db = rusqlite::Connection::open(self.path()).map_err(|error| error.to_string())?;
        db.execute_batch(sql).map_err(|error| error.to_string())
    }
}
