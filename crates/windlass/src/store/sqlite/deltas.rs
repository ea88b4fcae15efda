//! Deltas for followers in other processes. The tables are created with the first follower and the first delta.

use rusqlite::{Connection, params};
use windlass_core::id::RunId;

use super::file::SqliteError;
use super::runs::find_owned_run;
use super::writer::{AckLevel, RequestSubject};
use super::{SqliteStore, from_json_text, from_sql_integer, to_json_text, to_sql_integer};
use crate::store::{
    DeltaBatch, DeltaPosition, DeltaStore, FollowerRegistry, Lease, StoreFuture, StoredFollower,
};

const CREATE_FOLLOWERS_SQL: &str = "
    CREATE TABLE IF NOT EXISTS followers (
        name TEXT PRIMARY KEY,
        beat INTEGER NOT NULL,
        runs TEXT NOT NULL
    ) STRICT, WITHOUT ROWID";

const CREATE_DELTAS_SQL: &str = "
    CREATE TABLE IF NOT EXISTS live_deltas (
        run INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        number INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run, epoch, number)
    ) STRICT, WITHOUT ROWID";

impl DeltaStore for SqliteStore {
    fn followers(&self) -> &FollowerRegistry {
        &self.followers
    }

    fn renew_follower<'a>(&'a self, follower: &'a str, runs: Vec<RunId>) -> StoreFuture<'a, ()> {
        let follower = follower.to_owned();
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            renew_follower(desk.db, &follower, &runs)
        })
    }

    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>> {
        self.readers.run_read(RequestSubject::Store, list_followers)
    }

    fn remove_follower<'a>(&'a self, follower: &'a str, beat: u64) -> StoreFuture<'a, ()> {
        let follower = follower.to_owned();
        self.submit_write(RequestSubject::Store, AckLevel::Committed, move |desk| {
            if has_table(desk.db, "followers")? {
                let delete = "DELETE FROM followers WHERE name = ?1 AND beat = ?2";
                desk.db.prepare_cached(delete)?.execute(params![follower, to_sql_integer(beat)?])?;
            }
            Ok(())
        })
    }

    fn publish_deltas<'a>(
        &'a self,
        lease: &'a Lease,
        batch: DeltaBatch,
        first_kept: u64,
    ) -> StoreFuture<'a, ()> {
        let lease = lease.clone();
        let about = RequestSubject::Run(lease.run.clone());
        self.submit_write(about, AckLevel::Committed, move |desk| {
            publish_deltas(desk.db, &lease, &batch, first_kept)
        })
    }

    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>> {
        let run = run.clone();
        self.readers.run_read(RequestSubject::Run(run.clone()), move |db| load_deltas(db, &run, after))
    }

    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()> {
        let run = run.clone();
        self.submit_write(RequestSubject::Run(run.clone()), AckLevel::Committed, move |desk| {
            if has_table(desk.db, "live_deltas")? {
                let delete = "DELETE FROM live_deltas WHERE epoch <= ?2
                    AND run = (SELECT id FROM runs WHERE name = ?1)";
                desk.db.prepare_cached(delete)?.execute(params![run.as_str(), to_sql_integer(epoch)?])?;
            }
            Ok(())
        })
    }
}

fn renew_follower(db: &Connection, follower: &str, runs: &[RunId]) -> Result<(), SqliteError> {
    db.execute(CREATE_FOLLOWERS_SQL, [])?;
    if runs.is_empty() {
        db.prepare_cached("DELETE FROM followers WHERE name = ?1")?.execute([follower])?;
        return Ok(());
    }
    let renew = "INSERT INTO followers (name, beat, runs) VALUES (?1, 0, ?2)
        ON CONFLICT (name) DO UPDATE SET beat = beat + 1, runs = excluded.runs";
    db.prepare_cached(renew)?.execute(params![follower, to_json_text(&runs)?])?;
    Ok(())
}

fn list_followers(db: &Connection) -> Result<Vec<StoredFollower>, SqliteError> {
    if !has_table(db, "followers")? {
        return Ok(Vec::new());
    }
    let mut select = db.prepare_cached("SELECT name, beat, runs FROM followers ORDER BY name")?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?)))?;
    rows.map(|row| {
        let (name, beat, runs) = row?;
        Ok(StoredFollower { name, beat: from_sql_integer(beat)?, runs: from_json_text(&runs)? })
    })
    .collect()
}

fn publish_deltas(
    db: &Connection,
    lease: &Lease,
    batch: &DeltaBatch,
    first_kept: u64,
) -> Result<(), SqliteError> {
    let (id, _) = find_owned_run(db, lease)?;
    db.execute(CREATE_DELTAS_SQL, [])?;
    let DeltaBatch { position: DeltaPosition { epoch, number }, body } = batch;
    let (epoch, number) = (to_sql_integer(*epoch)?, to_sql_integer(*number)?);
    let delete = "DELETE FROM live_deltas WHERE run = ?1 AND (epoch < ?2 OR (epoch = ?2 AND number < ?3))";
    db.prepare_cached(delete)?.execute(params![id, epoch, to_sql_integer(first_kept)?])?;
    let insert = "INSERT OR REPLACE INTO live_deltas (run, epoch, number, body) VALUES (?1, ?2, ?3, ?4)";
    db.prepare_cached(insert)?.execute(params![id, epoch, number, body])?;
    Ok(())
}

fn load_deltas(
    db: &Connection,
    run: &RunId,
    after: Option<DeltaPosition>,
) -> Result<Vec<DeltaBatch>, SqliteError> {
    if !has_table(db, "live_deltas")? {
        return Ok(Vec::new());
    }
    let (epoch, number) = match after {
        Some(DeltaPosition { epoch, number }) => (to_sql_integer(epoch)?, to_sql_integer(number)?),
        None => (-1, -1),
    };
    let select = "SELECT epoch, number, body FROM live_deltas
        WHERE run = (SELECT id FROM runs WHERE name = ?1) AND (epoch, number) > (?2, ?3)
        ORDER BY epoch, number";
    let mut select = db.prepare_cached(select)?;
    let rows = select
        .query_map(params![run.as_str(), epoch, number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.map(|row| {
        let (epoch, number, body) = row?;
        let position = DeltaPosition { epoch: from_sql_integer(epoch)?, number: from_sql_integer(number)? };
        Ok(DeltaBatch { position, body })
    })
    .collect()
}

fn has_table(db: &Connection, name: &str) -> Result<bool, SqliteError> {
    let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    Ok(db.prepare_cached(select)?.exists([name])?)
}
