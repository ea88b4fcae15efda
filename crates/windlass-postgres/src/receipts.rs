//! Receipts: outputs of idempotent calls, and claims to execute one.

use tokio_postgres::Row;
use windlass::core::id::Timestamp;
use windlass::core::item::OutputContent;
use windlass::store::{LeaseClaim, ReceiptClaim, ReceiptKey, StoredLease, StoredReceipt};

use crate::convert::{
    from_json, from_time, read_digest, read_lease, to_integer, to_json, to_millis, to_time,
};
use crate::database::{DbConnection, PgError};
use crate::value::SqlValue;

/// Maximum number of expired receipts whose outputs are deleted per claim. Their rows stay: an idempotency key that was
/// handed out is not handed out again.
const MAX_EXPIRED_PER_CLAIM: u32 = 8;

fn key_values(key: &ReceiptKey) -> [SqlValue; 2] {
    [key.scope.as_str().into(), key.digest.as_bytes().as_slice().into()]
}

fn with_key<const N: usize>(key: &ReceiptKey, others: [SqlValue; N]) -> Vec<SqlValue> {
    key_values(key).into_iter().chain(others).collect()
}

fn read_generation(row: &Row, column: usize) -> Result<u32, PgError> {
    let generation: i64 = row.try_get(column)?;
    u32::try_from(generation).map_err(|_| PgError::Corrupt(format!("{generation} is no generation")))
}

pub(crate) async fn claim_receipt(
    db: &DbConnection,
    key: &ReceiptKey,
    claim: LeaseClaim<'_>,
    abandoned: Option<&StoredLease>,
) -> Result<ReceiptClaim, PgError> {
    // The row is there and locked, so that of several claimants one finds it unclaimed.
    let create =
        "INSERT INTO @receipts (scope, digest, generation) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING";
    let select = "SELECT generation, body, expires, owner, beat, lease_ms, renewed FROM @receipts
        WHERE scope = $1 AND digest = $2 FOR UPDATE";
    let row = loop {
        db.run(create, &key_values(key)).await?;
        // The claimant before may have deleted its row in between.
        if let Some(row) = db.row(select, &key_values(key)).await? {
            break row;
        }
    };
    let body: Option<Vec<u8>> = row.try_get(1)?;
    let expires = row.try_get::<_, Option<i64>>(2)?.map(from_time);
    let generation = read_generation(&row, 0)? + u32::from(body.is_some());
    let held = read_lease(&row, 3, 0)?;
    let is_abandoned = |held: &StoredLease| abandoned.is_some_and(|seen| seen.is_same_beat(held));
    let mut beat = 0;
    match (body, held) {
        (Some(body), _) if expires.is_none_or(|expires| expires > claim.now) => {
            return Ok(ReceiptClaim::Completed(from_json(&body)?));
        }
        (None, Some(held)) if held.owner == claim.owner => beat = held.beat + 1,
        (None, Some(held)) if !is_abandoned(&held) => return Ok(ReceiptClaim::InProgress(held)),
        _ => {}
    }
    let sweep = "UPDATE @receipts SET generation = generation + 1, body = NULL, expires = NULL
        WHERE (scope, digest) IN (SELECT scope, digest FROM @receipts WHERE expires <= $3 AND (scope, digest) <> ($1, $2)
        LIMIT $4 FOR UPDATE SKIP LOCKED)";
    let values = with_key(key, [to_time(claim.now).into(), MAX_EXPIRED_PER_CLAIM.into()]);
    db.run(sweep, &values).await?;
    let update = "UPDATE @receipts SET generation = $3, owner = $4, beat = $5, lease_ms = $6, renewed = $7, body = NULL,
        expires = NULL WHERE scope = $1 AND digest = $2";
    let others = [
        generation.into(),
        claim.owner.into(),
        to_integer(beat)?.into(),
        to_millis(claim.duration).into(),
        to_time(claim.now).into(),
    ];
    db.run(update, &with_key(key, others)).await?;
    Ok(ReceiptClaim::Acquired { generation })
}

pub(crate) async fn find_receipt(
    db: &DbConnection,
    key: &ReceiptKey,
    now: Timestamp,
) -> Result<Option<OutputContent>, PgError> {
    let select = "SELECT body FROM @receipts WHERE scope = $1 AND digest = $2 AND body IS NOT NULL
        AND (expires IS NULL OR expires > $3)";
    let row = db.row(select, &with_key(key, [to_time(now).into()])).await?;
    row.map(|row| from_json(row.try_get(0)?)).transpose()
}

pub(crate) async fn save_receipt(
    db: &DbConnection,
    key: &ReceiptKey,
    owner: &str,
    output: &OutputContent,
    expires: Option<Timestamp>,
) -> Result<(), PgError> {
    let keep = "UPDATE @receipts SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL, body = $4, expires = $5
        WHERE scope = $1 AND digest = $2 AND owner = $3";
    let body = to_json(output)?;
    let others = [owner.into(), body.as_slice().into(), expires.map(to_time).into()];
    db.run(keep, &with_key(key, others)).await.map(|_| ())
}

pub(crate) async fn release_receipt(db: &DbConnection, key: &ReceiptKey, owner: &str) -> Result<(), PgError> {
    let release = "UPDATE @receipts SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL
        WHERE scope = $1 AND digest = $2 AND owner = $3";
    db.run(release, &with_key(key, [owner.into()])).await?;
    // Without a row, the generation is 0.
    let delete = "DELETE FROM @receipts WHERE scope = $1 AND digest = $2 AND generation = 0 AND owner IS NULL
        AND body IS NULL";
    db.run(delete, &key_values(key)).await.map(|_| ())
}

pub(crate) async fn list_receipts(
    db: &DbConnection,
    after: Option<&ReceiptKey>,
    limit: u32,
) -> Result<Vec<StoredReceipt>, PgError> {
    let select = "SELECT scope, digest, generation, body, expires FROM @receipts
        WHERE ($1::text IS NULL OR (scope, digest) > ($1 COLLATE \"C\", $2::bytea)) AND (generation > 0 OR body IS NOT NULL)
        ORDER BY scope, digest LIMIT $3";
    let values = [
        after.map(|key| key.scope.as_str()).into(),
        after.map(|key| key.digest.as_bytes().as_slice()).into(),
        limit.into(),
    ];
    let read = |row: &Row| {
        let body: Option<&[u8]> = row.try_get(3)?;
        Ok(StoredReceipt {
            key: ReceiptKey { scope: row.try_get(0)?, digest: read_digest(row.try_get(1)?)? },
            generation: read_generation(row, 2)?,
            output: body.map(from_json).transpose()?,
            expires_at: row.try_get::<_, Option<i64>>(4)?.map(from_time),
        })
    };
    db.rows(select, &values).await?.iter().map(read).collect()
}

pub(crate) async fn import_receipt(db: &DbConnection, receipt: &StoredReceipt) -> Result<(), PgError> {
    let body = receipt.output.as_ref().map(to_json).transpose()?;
    let import =
        "INSERT INTO @receipts AS r (scope, digest, generation, body, expires) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (scope, digest) DO UPDATE SET generation = excluded.generation, body = excluded.body,
        expires = excluded.expires
        WHERE excluded.generation > r.generation OR (excluded.generation = r.generation AND r.body IS NULL)";
    let others = [receipt.generation.into(), body.as_deref().into(), receipt.expires_at.map(to_time).into()];
    db.run(import, &with_key(&receipt.key, others)).await.map(|_| ())
}
