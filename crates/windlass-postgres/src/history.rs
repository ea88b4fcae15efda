//! Sessions: a log of items with a view, the items that runs refer to, and the right to append.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windlass::core::id::{RunId, SessionId};
use windlass::core::item::Item;
use windlass::core::journal::{HistoryReference, ItemRange, JournalLine};
use windlass::error::StoreError;
use windlass::session::{SessionClaim, SessionFence, SessionItemsPage, SessionState, SessionWrite};
use windlass::store::{
    HISTORY_ARTEFACT, Lease, LeaseClaim, SessionHolder, StartSession, StoredLease, session_of_first_line,
};

use crate::convert::{
    from_integer, from_json, read_lease, read_line, to_integer, to_json, to_json_text, to_millis, to_time,
};
use crate::database::{DbConnection, PgError};
use crate::value::SqlValue;
use crate::{artefacts, runs};

/// A row of a session.
struct SessionRow {
    id: i64,
    version: u64,
    /// Next position in the log.
    next: u64,
    /// The view as text; `None` if the session shows its whole log.
    view: Option<String>,
}

/// The positions that a session shows: closed ranges, and all positions from `open_from` on.
#[derive(Serialize, Deserialize)]
struct SessionView {
    ranges: Vec<ItemRange>,
    open_from: u64,
}

impl SessionRow {
    fn shown_ranges(&self) -> Result<Vec<ItemRange>, PgError> {
        let view = match &self.view {
            Some(view) => from_json(view.as_bytes())?,
            None => SessionView { ranges: Vec::new(), open_from: 0 },
        };
        let open = ItemRange { from: view.open_from, to: self.next };
        Ok(view.ranges.into_iter().chain([open]).filter(|range| !range.is_empty()).collect())
    }
}

async fn find_session(db: &DbConnection, session: &SessionId) -> Result<Option<SessionRow>, PgError> {
    let select = "SELECT id, version, next, view FROM @sessions WHERE name = $1";
    let Some(row) = db.row(select, &[session.as_str().into()]).await? else { return Ok(None) };
    Ok(Some(SessionRow {
        id: row.try_get(0)?,
        version: from_integer(row.try_get(1)?)?,
        next: from_integer(row.try_get(2)?)?,
        view: row.try_get(3)?,
    }))
}

/// Creates the session unless it exists, and locks its row until the transaction ends.
async fn lock_session(db: &DbConnection, session: &SessionId) -> Result<SessionRow, PgError> {
    let create =
        "INSERT INTO @sessions (name, version, next) VALUES ($1, 0, 0) ON CONFLICT (name) DO NOTHING";
    db.run(create, &[session.as_str().into()]).await?;
    db.row("SELECT 1 FROM @sessions WHERE name = $1 FOR UPDATE", &[session.as_str().into()]).await?;
    find_session(db, session)
        .await?
        .ok_or_else(|| PgError::Corrupt(format!("session `{session}` is missing")))
}

/// Records the items that a new run refers to, and holds the session for it. The position of a forgotten run of the same
/// id is not its own.
pub(crate) async fn begin_run(
    db: &DbConnection,
    lease: &Lease,
    run: i64,
    first: &JournalLine,
    imported: Option<&[u8]>,
) -> Result<(), PgError> {
    let Some(StartSession { session, history: Some(reference) }) = session_of_first_line(first) else {
        return Ok(());
    };
    hold_session(db, lease, &session).await?;
    if let Some(items) = imported {
        return artefacts::save_artefact(db, lease, HISTORY_ARTEFACT, items).await;
    }
    let row = lock_session(db, &reference.session).await?;
    if row.version != reference.version {
        return Err(StoreError::session_changed(&reference.session).into());
    }
    let forget = "DELETE FROM @session_runs WHERE session = $1 AND run = $2";
    db.run(forget, &[row.id.into(), lease.run.as_str().into()]).await?;
    let insert = "INSERT INTO @history_references (session, run, first, last) VALUES ($1, $2, $3, $4)";
    for range in &reference.ranges {
        let values =
            [row.id.into(), run.into(), to_integer(range.from)?.into(), to_integer(range.to)?.into()];
        db.run(insert, &values).await?;
    }
    Ok(())
}

pub(crate) async fn load_history(
    db: &DbConnection,
    reference: &HistoryReference,
) -> Result<Option<Vec<Arc<Item>>>, PgError> {
    let Some(row) = find_session(db, &reference.session).await? else { return Ok(None) };
    let mut items = Vec::new();
    for range in &reference.ranges {
        let loaded = load_range(db, row.id, *range).await?;
        if loaded.len() as u64 != range.len() {
            return Ok(None);
        }
        items.extend(loaded);
    }
    Ok(Some(items))
}

/// Removes the references of a run that is deleted, and the items that only it referred to.
pub(crate) async fn release_history(db: &DbConnection, run: i64) -> Result<(), PgError> {
    let first = db.row("SELECT hash, body FROM @lines WHERE run = $1 AND seq = 0", &[run.into()]).await?;
    let first = first.map(|row| read_line(&row, 0)).transpose()?;
    let Some(StartSession { history: Some(reference), .. }) = first.as_ref().and_then(session_of_first_line)
    else {
        return Ok(());
    };
    let row = lock_session(db, &reference.session).await?;
    let delete = "DELETE FROM @history_references WHERE session = $1 AND run = $2";
    db.run(delete, &[row.id.into(), run.into()]).await?;
    delete_unreferenced(db, &row).await
}

/// Deletes the items that a session does not show and that no run refers to.
async fn delete_unreferenced(db: &DbConnection, row: &SessionRow) -> Result<(), PgError> {
    if row.view.is_none() {
        return Ok(());
    }
    let mut kept = row.shown_ranges()?;
    let select = "SELECT first, last FROM @history_references WHERE session = $1";
    for reference in db.rows(select, &[row.id.into()]).await? {
        let (from, to) = (from_integer(reference.try_get(0)?)?, from_integer(reference.try_get(1)?)?);
        kept.push(ItemRange { from, to });
    }
    kept.sort();
    let mut reached = 0;
    for range in kept.into_iter().chain([ItemRange { from: row.next, to: row.next }]) {
        if range.from > reached {
            let delete = "DELETE FROM @items WHERE session = $1 AND seq >= $2 AND seq < $3";
            let values = [row.id.into(), to_integer(reached)?.into(), to_integer(range.from)?.into()];
            db.run(delete, &values).await?;
        }
        reached = reached.max(range.to);
    }
    Ok(())
}

pub(crate) async fn hold_session(
    db: &DbConnection,
    lease: &Lease,
    session: &SessionId,
) -> Result<(), PgError> {
    runs::find_owned_run(db, lease).await?;
    hold_for_owner(db, lease, session).await
}

/// Holds a session for the driver of a run, whose lease is current.
async fn hold_for_owner(db: &DbConnection, lease: &Lease, session: &SessionId) -> Result<(), PgError> {
    let row = lock_session(db, session).await?;
    let holder = find_holder(db, session).await?;
    SessionHolder::check_run(holder.as_ref(), session, &lease.run)?;
    if holder.is_some() {
        return Ok(());
    }
    let update = "UPDATE @sessions SET holder = $2, epoch = $3, claimant = NULL WHERE id = $1";
    let values = [row.id.into(), lease.run.as_str().into(), to_integer(lease.epoch)?.into()];
    db.run(update, &values).await.map(|_| ())
}

/// Claims a session for a driver whose run is in another store.
pub(crate) async fn claim_session(
    db: &DbConnection,
    session: &SessionId,
    claim: LeaseClaim<'_>,
    abandoned: Option<&StoredLease>,
) -> Result<SessionClaim, PgError> {
    let (row, holder) = lock_holder(db, session).await?;
    let beat = match SessionHolder::answer_claim(holder, claim.owner, abandoned) {
        Ok(beat) => to_integer(beat)?,
        Err(held) => return Ok(SessionClaim::Held(held)),
    };
    let update = "UPDATE @sessions SET holder = NULL, epoch = NULL, claimant = $2, beat = $3, lease_ms = $4, renewed = $5
        WHERE id = $1";
    let (duration, now) = (to_millis(claim.duration).into(), to_time(claim.now).into());
    db.run(update, &[row.id.into(), claim.owner.into(), beat.into(), duration, now]).await?;
    Ok(SessionClaim::Granted)
}

/// Releases the claim of a session, if `owner` holds it.
pub(crate) async fn release_claim(
    db: &DbConnection,
    session: &SessionId,
    owner: &str,
) -> Result<(), PgError> {
    let update = "UPDATE @sessions SET claimant = NULL WHERE name = $1 AND claimant = $2";
    db.run(update, &[session.as_str().into(), owner.into()]).await.map(|_| ())
}

/// Frees a session from a driver whose lease is still the one that was observed.
pub(crate) async fn free_session(
    db: &DbConnection,
    session: &SessionId,
    abandoned: &SessionHolder,
) -> Result<(), PgError> {
    let (row, holder) = lock_holder(db, session).await?;
    if holder.is_some_and(|holder| holder.is_same_beat(abandoned)) {
        let update = "UPDATE @sessions SET holder = NULL, epoch = NULL, claimant = NULL WHERE id = $1";
        db.run(update, &[row.id.into()]).await?;
    }
    Ok(())
}

/// Returns the driver that holds a session, and locks the session and the run of the driver. A run is locked before its
/// session, as in every other operation.
async fn lock_holder(
    db: &DbConnection,
    session: &SessionId,
) -> Result<(SessionRow, Option<SessionHolder>), PgError> {
    if let Some(run) = find_holder(db, session).await?.and_then(|holder| holder.run) {
        runs::lock_run(db, &run).await?;
    }
    let row = lock_session(db, session).await?;
    Ok((row, find_holder(db, session).await?))
}

/// Returns the driver that holds a session. A run without a driver holds none, whatever the session says.
pub(crate) async fn find_holder(
    db: &DbConnection,
    session: &SessionId,
) -> Result<Option<SessionHolder>, PgError> {
    let select = "SELECT holder, epoch, claimant, beat, lease_ms, renewed FROM @sessions WHERE name = $1";
    let Some(row) = db.row(select, &[session.as_str().into()]).await? else { return Ok(None) };
    if let Some(lease) = read_lease(&row, 2, 0)? {
        return Ok(Some(SessionHolder { run: None, lease }));
    }
    let (Some(run), Some(epoch)) = (row.try_get::<_, Option<String>>(0)?, row.try_get::<_, Option<i64>>(1)?)
    else {
        return Ok(None);
    };
    let (run, epoch) = (RunId::from(run), from_integer(epoch)?);
    let held = runs::find_lease(db, &run).await?.and_then(|(_, lease)| lease);
    let held = held.filter(|lease| lease.epoch == epoch);
    Ok(held.map(|lease| SessionHolder { run: Some(run), lease }))
}

/// Appends the items of a run to the session in its store, together with its lines. The lease is current.
pub(crate) async fn append_with_lines(
    db: &DbConnection,
    lease: &Lease,
    write: &SessionWrite,
) -> Result<(), PgError> {
    hold_for_owner(db, lease, &write.session).await?;
    append_run_items(db, write).await
}

/// Appends the items of a run, if its driver may append to the session.
pub(crate) async fn append_fenced(
    db: &DbConnection,
    write: &SessionWrite,
    fence: &SessionFence,
) -> Result<(), PgError> {
    let claim = match fence {
        SessionFence::Lease(lease) => {
            hold_session(db, lease, &write.session).await?;
            return append_run_items(db, write).await;
        }
        SessionFence::Claim(owner) => Some(owner.as_str()),
        SessionFence::Unheld => None,
    };
    lock_session(db, &write.session).await?;
    let holder = find_holder(db, &write.session).await?;
    SessionHolder::check_claim(holder.as_ref(), &write.session, claim)?;
    append_run_items(db, write).await
}

async fn append_run_items(db: &DbConnection, write: &SessionWrite) -> Result<(), PgError> {
    if !write.is_new_at(run_position(db, &write.session, &write.run).await?)? {
        return Ok(());
    }
    let row = append_items(db, &write.session, &write.items).await?;
    let replace = "INSERT INTO @session_runs (session, run, position) VALUES ($1, $2, $3)
        ON CONFLICT (session, run) DO UPDATE SET position = excluded.position";
    let values = [row.into(), write.run.as_str().into(), to_integer(write.to)?.into()];
    db.run(replace, &values).await.map(|_| ())
}

/// Appends items, and returns the id of the session's row.
pub(crate) async fn append_items(
    db: &DbConnection,
    session: &SessionId,
    items: &[Arc<Item>],
) -> Result<i64, PgError> {
    let row = lock_session(db, session).await?;
    let bodies = items.iter().map(to_json).collect::<Result<Vec<_>, _>>()?;
    let next = row.next + bodies.len() as u64;
    insert_items(db, row.id, row.next, bodies).await?;
    let update = "UPDATE @sessions SET version = version + 1, next = $2 WHERE id = $1";
    db.run(update, &[row.id.into(), to_integer(next)?.into()]).await?;
    Ok(row.id)
}

async fn insert_items(
    db: &DbConnection,
    session: i64,
    from: u64,
    bodies: Vec<Vec<u8>>,
) -> Result<(), PgError> {
    let numbers = (from..from + bodies.len() as u64).map(to_integer).collect::<Result<Vec<_>, _>>()?;
    let insert = "INSERT INTO @items (session, seq, body)
        SELECT $1, s.seq, s.body FROM unnest($2::bigint[], $3::bytea[]) s(seq, body)";
    db.run(insert, &[session.into(), SqlValue::Integers(numbers), SqlValue::ByteRows(bodies)])
        .await
        .map(|_| ())
}

pub(crate) async fn run_position(
    db: &DbConnection,
    session: &SessionId,
    run: &RunId,
) -> Result<u64, PgError> {
    let select = "SELECT position FROM @session_runs JOIN @sessions s ON s.id = session
        WHERE s.name = $1 AND run = $2";
    let row = db.row(select, &[session.as_str().into(), run.as_str().into()]).await?;
    row.map_or(Ok(0), |row| from_integer(row.try_get(0)?))
}

pub(crate) async fn list_run_positions(
    db: &DbConnection,
    session: &SessionId,
    after: Option<&RunId>,
    limit: u32,
) -> Result<Vec<(RunId, u64)>, PgError> {
    let select = "SELECT run, position FROM @session_runs JOIN @sessions s ON s.id = session
        WHERE s.name = $1 AND ($2::text IS NULL OR run > $2 COLLATE \"C\") ORDER BY run LIMIT $3";
    let values = [session.as_str().into(), after.map(RunId::as_str).into(), i64::from(limit).into()];
    let rows = db.rows(select, &values).await?;
    rows.iter()
        .map(|row| Ok((RunId::from(row.try_get::<_, String>(0)?), from_integer(row.try_get(1)?)?)))
        .collect()
}

pub(crate) async fn replace_items(
    db: &DbConnection,
    session: &SessionId,
    version: u64,
    items: &[Arc<Item>],
) -> Result<(), PgError> {
    let row = lock_session(db, session).await?;
    if row.version != version {
        return Err(StoreError::session_changed(session).into());
    }
    let ranges = row.shown_ranges()?;
    let shown: Vec<u64> = ranges.iter().flat_map(|range| range.from..range.to).collect();
    let mut known = Vec::with_capacity(shown.len());
    for range in &ranges {
        known.extend(load_bodies(db, row.id, *range).await?);
    }
    let mut bodies = items.iter().map(to_json).collect::<Result<Vec<_>, _>>()?;
    // Items that stay, as after a rewind or a compaction, are not written again.
    let shorter = known.len().min(bodies.len());
    let front = known.iter().zip(&bodies).take_while(|(old, new)| old == new).count();
    let back = known.iter().rev().zip(bodies.iter().rev()).take_while(|(old, new)| old == new).count();
    let back = back.min(shorter - front);
    let middle: Vec<Vec<u8>> = bodies.drain(front..bodies.len() - back).collect();
    let next = row.next + middle.len() as u64;
    insert_items(db, row.id, row.next, middle).await?;
    let kept_back = shown[shown.len() - back..].iter().copied();
    let positions = shown[..front].iter().copied().chain(row.next..next).chain(kept_back);
    let view = SessionView { ranges: ItemRange::from_positions(positions), open_from: next };
    let view = to_json_text(&view)?;
    let update = "UPDATE @sessions SET version = version + 1, next = $2, view = $3 WHERE id = $1";
    db.run(update, &[row.id.into(), to_integer(next)?.into(), (&view).into()]).await?;
    delete_unreferenced(db, &SessionRow { next, view: Some(view), ..row }).await
}

pub(crate) async fn load_session(db: &DbConnection, session: &SessionId) -> Result<SessionState, PgError> {
    let Some(row) = find_session(db, session).await? else { return Ok(SessionState::default()) };
    let positions = row.shown_ranges()?;
    let items = load_ranges(db, row.id, &positions).await?;
    Ok(SessionState { version: row.version, items, positions })
}

pub(crate) async fn load_session_items(
    db: &DbConnection,
    session: &SessionId,
    skip: u64,
    limit: u32,
) -> Result<SessionItemsPage, PgError> {
    let Some(row) = find_session(db, session).await? else { return Ok(SessionItemsPage::default()) };
    let (total, ranges) = ItemRange::page(&row.shown_ranges()?, skip, limit);
    Ok(SessionItemsPage { total, items: load_ranges(db, row.id, &ranges).await? })
}

/// Loads the items at these positions, all of which exist.
async fn load_ranges(
    db: &DbConnection,
    session: i64,
    ranges: &[ItemRange],
) -> Result<Vec<Arc<Item>>, PgError> {
    let mut items = Vec::new();
    for range in ranges {
        let loaded = load_range(db, session, *range).await?;
        if loaded.len() as u64 != range.len() {
            let (from, to) = (range.from, range.to);
            return Err(PgError::Corrupt(format!("one of the items {from} to {to} is missing")));
        }
        items.extend(loaded);
    }
    Ok(items)
}

async fn load_range(db: &DbConnection, session: i64, range: ItemRange) -> Result<Vec<Arc<Item>>, PgError> {
    let bodies = load_bodies(db, session, range).await?;
    bodies.iter().map(|body| from_json(body).map(Arc::new)).collect()
}

async fn load_bodies(db: &DbConnection, session: i64, range: ItemRange) -> Result<Vec<Vec<u8>>, PgError> {
    let select = "SELECT body FROM @items WHERE session = $1 AND seq >= $2 AND seq < $3 ORDER BY seq";
    let values = [session.into(), to_integer(range.from)?.into(), to_integer(range.to)?.into()];
    db.rows(select, &values).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(crate) async fn list_sessions(
    db: &DbConnection,
    after: Option<&SessionId>,
    limit: u32,
) -> Result<Vec<SessionId>, PgError> {
    let select =
        "SELECT name FROM @sessions WHERE version > 0 AND ($1::text IS NULL OR name > $1 COLLATE \"C\")
        ORDER BY name COLLATE \"C\" LIMIT $2";
    let rows = db.rows(select, &[after.map(SessionId::as_str).into(), limit.into()]).await?;
    rows.iter().map(|row| Ok(SessionId::from(row.try_get::<_, String>(0)?))).collect()
}
