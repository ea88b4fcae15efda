//! The place of a store: the database that its tables are in.
//!
//! A copy of the tables, such as one that was restored from a dump, is in another database. Its runs may have gone on in the
//! original, so nobody connects to it before it is restored as such.

use windlass::error::{StoreError, StoreErrorKind};

use crate::database::{Database, DbConnection, PgError, transact};

/// Checks that the tables are in the database in which they were created or restored, and records it if nobody has.
///
/// # Errors
///
/// Returns an error of the kind [`StoreErrorKind::NotRestored`] if they are in another one.
pub(crate) async fn check_place(database: &Database) -> Result<(), StoreError> {
    let Some(here) = read_place(database).await? else { return Ok(()) };
    let known = transact!(database, |db| record_place(db, &here))?;
    if known.is_none_or(|known| known == here) {
        return Ok(());
    }
    let message = "the store was restored or copied from another database, where its runs may have gone on; hint: \
                   `windlass restore --store …`, or `PostgresStore::restore`, puts what they may have done in doubt";
    Err(StoreError::with_kind(StoreErrorKind::NotRestored, message))
}

/// Records that the tables belong to the database that they are in.
pub(crate) async fn adopt_place(database: &Database) -> Result<(), StoreError> {
    let here = read_place(database).await?;
    transact!(database, |db| replace_place(db, here.as_deref()))
}

/// Records the place unless one is recorded, and returns the recorded one.
async fn record_place(db: &DbConnection, here: &str) -> Result<Option<String>, PgError> {
    db.run("UPDATE @store SET place = $1 WHERE place IS NULL", &[here.into()]).await?;
    match db.row("SELECT place FROM @store", &[]).await? {
        Some(row) => Ok(row.try_get(0)?),
        None => Ok(None),
    }
}

async fn replace_place(db: &DbConnection, here: Option<&str>) -> Result<(), PgError> {
    db.run("UPDATE @store SET place = $1", &[here.into()]).await.map(|_| ())
}

/// Reads the identity of the database: of its cluster, and its number there. Returns `None` if the server does not tell.
async fn read_place(database: &Database) -> Result<Option<String>, StoreError> {
    let select =
        "SELECT s.system_identifier::text || '/' || d.oid::text FROM pg_control_system() s, pg_database d
        WHERE d.datname = current_database()";
    let connection = database.connection().await.map_err(PgError::into_store_error)?;
    match connection.row(select, &[]).await {
        Ok(row) => {
            connection.give_back();
            row.map(|row| row.try_get(0)).transpose().map_err(|error| PgError::from(error).into_store_error())
        }
        // Compatible databases have no such function, or keep it from users.
        Err(PgError::Database(error)) if error.code().is_some() => Ok(None),
        Err(error) => Err(error.into_store_error()),
    }
}
