//! The schedules of the queue.

use windlass::core::id::Timestamp;
use windlass::fleet::{RunSchedule, StoredSchedule};

use crate::convert::{from_json, from_time, to_json, to_time};
use crate::database::{DbConnection, PgError};
use crate::queue::separate_damage;

pub(crate) async fn save_schedule(
    db: &DbConnection,
    schedule: &RunSchedule,
    now: Timestamp,
) -> Result<(), PgError> {
    // The same schedule keeps the time up to which it was dealt with.
    let upsert = "INSERT INTO @schedules AS known (name, covered, body) VALUES ($1, $2, $3)
        ON CONFLICT (name) DO UPDATE SET covered = excluded.covered, body = excluded.body
        WHERE known.body <> excluded.body";
    db.run(upsert, &[(&schedule.name).into(), to_time(now).into(), to_json(schedule)?.as_slice().into()])
        .await?;
    Ok(())
}

/// Removes a schedule. An answer that was lost is given again as the one of the first attempt.
pub(crate) async fn remove_schedule(db: &DbConnection, name: &str, attempt: u32) -> Result<bool, PgError> {
    let removed = db.run("DELETE FROM @schedules WHERE name = $1", &[name.into()]).await?;
    Ok(removed > 0 || attempt > 0)
}

pub(crate) async fn list_schedules(db: &DbConnection) -> Result<Vec<StoredSchedule>, PgError> {
    let rows = db.rows("SELECT covered, body, name FROM @schedules ORDER BY name", &[]).await?;
    rows.iter()
        .map(|row| {
            let covered_until = from_time(row.try_get(0)?);
            let schedule = separate_damage(from_json(row.try_get(1)?))?;
            Ok(StoredSchedule { name: row.try_get(2)?, schedule, covered_until })
        })
        .collect()
}

pub(crate) async fn advance_schedule(
    db: &DbConnection,
    name: &str,
    from: Timestamp,
    until: Timestamp,
) -> Result<(), PgError> {
    let update = "UPDATE @schedules SET covered = $3 WHERE name = $1 AND covered = $2";
    db.run(update, &[name.into(), to_time(from).into(), to_time(until).into()]).await?;
    Ok(())
}
