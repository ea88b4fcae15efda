//! Artefacts, and outputs that their output guardrails have not passed yet.

use windlass::core::id::{CallPath, RunId};
use windlass::core::item::OutputContent;
use windlass::store::Lease;

use crate::convert::{from_json, to_json, to_json_text};
use crate::database::{DbConnection, PgError};
use crate::runs;
use crate::value::SqlValue;

pub(crate) async fn save_artefact(
    db: &DbConnection,
    lease: &Lease,
    name: &str,
    body: &[u8],
) -> Result<(), PgError> {
    runs::find_owned_run(db, lease).await?;
    let insert = "INSERT INTO @artefacts (run, name, body) VALUES ($1, $2, $3)
        ON CONFLICT (run, name) DO UPDATE SET body = excluded.body";
    db.run(insert, &[lease.run.as_str().into(), name.into(), body.into()]).await.map(|_| ())
}

pub(crate) async fn load_artefact(
    db: &DbConnection,
    run: &RunId,
    name: &str,
) -> Result<Option<Vec<u8>>, PgError> {
    let select = "SELECT body FROM @artefacts WHERE run = $1 AND name = $2";
    let row = db.row(select, &[run.as_str().into(), name.into()]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

pub(crate) async fn list_artefacts(
    db: &DbConnection,
    run: &RunId,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<String>, PgError> {
    let select =
        "SELECT name FROM @artefacts WHERE run = $1 AND ($2::text IS NULL OR name > $2 COLLATE \"C\")
        ORDER BY name LIMIT $3";
    let rows = db.rows(select, &[run.as_str().into(), after.into(), limit.into()]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(crate) async fn save_withheld(
    db: &DbConnection,
    lease: &Lease,
    call: &CallPath,
    output: &OutputContent,
) -> Result<(), PgError> {
    let (id, _) = runs::find_owned_run(db, lease).await?;
    let replace = "INSERT INTO @withheld_outputs (run, path, body) VALUES ($1, $2, $3)
        ON CONFLICT (run, path) DO UPDATE SET body = excluded.body";
    let (path, body) = (to_json_text(call)?, to_json(output)?);
    db.run(replace, &[id.into(), (&path).into(), body.as_slice().into()]).await.map(|_| ())
}

pub(crate) async fn load_withheld(
    db: &DbConnection,
    run: &RunId,
    call: &CallPath,
) -> Result<Option<OutputContent>, PgError> {
    let select = "SELECT o.body FROM @withheld_outputs o JOIN @runs r ON r.id = o.run
        WHERE r.name = $1 AND o.path = $2";
    let row = db.row(select, &[run.as_str().into(), (&to_json_text(call)?).into()]).await?;
    row.map(|row| from_json(row.try_get(0)?)).transpose()
}

pub(crate) async fn list_withheld(db: &DbConnection, run: &RunId) -> Result<Vec<CallPath>, PgError> {
    let select = "SELECT o.path FROM @withheld_outputs o JOIN @runs r ON r.id = o.run WHERE r.name = $1
        ORDER BY o.path";
    let rows = db.rows(select, &[run.as_str().into()]).await?;
    rows.iter().map(|row| from_json(row.try_get::<_, String>(0)?.as_bytes())).collect()
}

pub(crate) async fn erase_withheld(
    db: &DbConnection,
    lease: &Lease,
    calls: &[CallPath],
) -> Result<(), PgError> {
    let (id, _) = runs::find_owned_run(db, lease).await?;
    let paths = calls.iter().map(to_json_text).collect::<Result<Vec<_>, _>>()?;
    let delete = "DELETE FROM @withheld_outputs WHERE run = $1 AND path = ANY($2)";
    db.run(delete, &[id.into(), SqlValue::Texts(paths)]).await.map(|_| ())
}
