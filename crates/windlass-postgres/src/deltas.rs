//! Deltas for followers in other processes.

use futures_util::FutureExt;
use windlass::core::id::RunId;
use windlass::store::{
    DeltaBatch, DeltaPosition, DeltaStore, FollowerRegistry, Lease, StoreFuture, StoredFollower,
};

use crate::convert::{from_integer, from_json, to_integer, to_json};
use crate::database::{DbConnection, PgError, TransactionMode, transact};
use crate::{PostgresStore, runs};

impl DeltaStore for PostgresStore {
    fn followers(&self) -> &FollowerRegistry {
        &self.followers
    }

    fn renew_follower<'a>(&'a self, follower: &'a str, runs: Vec<RunId>) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| renew_follower(db, follower, &runs)) }.boxed()
    }

    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| list_followers(db)) }.boxed()
    }

    fn remove_follower<'a>(&'a self, follower: &'a str, beat: u64) -> StoreFuture<'a, ()> {
        async move {
            transact!(self.database, |db| async {
                let delete = "DELETE FROM @followers WHERE name = $1 AND beat = $2";
                db.run(delete, &[follower.into(), to_integer(beat)?.into()]).await.map(|_| ())
            })
        }
        .boxed()
    }

    fn publish_deltas<'a>(
        &'a self,
        lease: &'a Lease,
        batch: DeltaBatch,
        first_kept: u64,
    ) -> StoreFuture<'a, ()> {
        async move { transact!(self.database, |db| publish_deltas(db, lease, &batch, first_kept)) }.boxed()
    }

    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>> {
        async move { transact!(self.database, TransactionMode::Reading, |db| load_deltas(db, run, after)) }
            .boxed()
    }

    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()> {
        async move {
            transact!(self.database, |db| async {
                let delete = "DELETE FROM @live_deltas WHERE run = (SELECT id FROM @runs WHERE name = $1)
                    AND epoch <= $2";
                db.run(delete, &[run.as_str().into(), to_integer(epoch)?.into()]).await.map(|_| ())
            })
        }
        .boxed()
    }
}

async fn renew_follower(db: &DbConnection, follower: &str, runs: &[RunId]) -> Result<(), PgError> {
    if runs.is_empty() {
        return db.run("DELETE FROM @followers WHERE name = $1", &[follower.into()]).await.map(|_| ());
    }
    let renew = "INSERT INTO @followers AS f (name, beat, runs) VALUES ($1, 0, $2)
        ON CONFLICT (name) DO UPDATE SET beat = f.beat + 1, runs = excluded.runs";
    let runs = to_json(&runs)?;
    db.run(renew, &[follower.into(), runs.as_slice().into()]).await.map(|_| ())
}

async fn list_followers(db: &DbConnection) -> Result<Vec<StoredFollower>, PgError> {
    let rows = db.rows("SELECT name, beat, runs FROM @followers ORDER BY name", &[]).await?;
    let read = |row: &tokio_postgres::Row| {
        let (name, beat) = (row.try_get(0)?, from_integer(row.try_get(1)?)?);
        Ok(StoredFollower { name, beat, runs: from_json(row.try_get(2)?)? })
    };
    rows.iter().map(read).collect()
}

async fn publish_deltas(
    db: &DbConnection,
    lease: &Lease,
    batch: &DeltaBatch,
    first_kept: u64,
) -> Result<(), PgError> {
    // Deltas are a preview: nobody waits until they are on the disk.
    db.execute("SET LOCAL synchronous_commit = off").await?;
    let (id, _) = runs::find_owned_run(db, lease).await?;
    let DeltaBatch { position: DeltaPosition { epoch, number }, body } = batch;
    let (epoch, number) = (to_integer(*epoch)?, to_integer(*number)?);
    let delete = "DELETE FROM @live_deltas WHERE run = $1 AND (epoch < $2 OR (epoch = $2 AND number < $3))";
    db.run(delete, &[id.into(), epoch.into(), to_integer(first_kept)?.into()]).await?;
    let insert = "INSERT INTO @live_deltas (run, epoch, number, body) VALUES ($1, $2, $3, $4)
        ON CONFLICT (run, epoch, number) DO UPDATE SET body = excluded.body";
    db.run(insert, &[id.into(), epoch.into(), number.into(), body.as_bytes().into()]).await.map(|_| ())
}

async fn load_deltas(
    db: &DbConnection,
    run: &RunId,
    after: Option<DeltaPosition>,
) -> Result<Vec<DeltaBatch>, PgError> {
    let (epoch, number) = match after {
        Some(DeltaPosition { epoch, number }) => (to_integer(epoch)?, to_integer(number)?),
        None => (-1, -1),
    };
    let select = "SELECT epoch, number, body FROM @live_deltas
        WHERE run = (SELECT id FROM @runs WHERE name = $1) AND (epoch, number) > ($2, $3)
        ORDER BY epoch, number";
    let rows = db.rows(select, &[run.as_str().into(), epoch.into(), number.into()]).await?;
    let read = |row: &tokio_postgres::Row| {
        let (epoch, number) = (from_integer(row.try_get(0)?)?, from_integer(row.try_get(1)?)?);
        let body = String::from_utf8(row.try_get(2)?)
            .map_err(|_| PgError::Corrupt("a batch of deltas is no text".to_owned()))?;
        Ok(DeltaBatch { position: DeltaPosition { epoch, number }, body })
    };
    rows.iter().map(read).collect()
}
