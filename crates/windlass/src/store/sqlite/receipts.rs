//! Receipts: outputs of idempotent calls, and claims to execute one.

use rusqlite::{Connection, params};
use windlass_core::{canonical::Digest, id::Timestamp, item::OutputContent};

use super::file::{Checksum, SqliteError, compute_checksum, verify_checksum};
use super::runs::{OwnedLeaseClaim, read_lease, to_sql_millis};
use super::{from_json_text, from_sql_time, to_json_text, to_sql_integer, to_sql_time};
use crate::store::{ReceiptClaim, ReceiptKey, ReceiptWrite, StoredLease, StoredReceipt};

/// Maximum number of expired receipts whose outputs are deleted per claim. Their rows stay: an idempotency key that was
/// handed out is not handed out again.
const MAX_EXPIRED_PER_CLAIM: u32 = 8;

struct ReceiptRow {
    generation: u32,
    claim: Option<StoredLease>,
    output: Option<(Checksum, String)>,
    expires_at: Option<Timestamp>,
}

pub(super) fn claim_receipt(
    db: &Connection,
    key: &ReceiptKey,
    by: &OwnedLeaseClaim,
    abandoned: Option<&StoredLease>,
) -> Result<ReceiptClaim, SqliteError> {
    let (mut generation, mut beat) = (0, 0);
    if let Some(known) = find_receipt_row(db, key)? {
        generation = known.generation + u32::from(known.output.is_some());
        let is_abandoned = |held: &StoredLease| abandoned.is_some_and(|seen| seen.is_same_beat(held));
        match (known.output, known.claim) {
            (Some((hash, body)), _) if known.expires_at.is_none_or(|expires| expires > by.now) => {
                return Ok(ReceiptClaim::Completed(from_json_text(&verify_checksum(&hash, body)?)?));
            }
            (None, Some(held)) if held.owner == by.owner => beat = held.beat + 1,
            (None, Some(held)) if !is_abandoned(&held) => return Ok(ReceiptClaim::InProgress(held)),
            _ => {}
        }
    }
    let sweep = "UPDATE receipts SET generation = generation + 1, hash = NULL, body = NULL, expires = NULL
                 WHERE id IN (SELECT id FROM receipts WHERE expires <= ?1 LIMIT ?2)";
    db.prepare_cached(sweep)?.execute(params![to_sql_time(by.now), MAX_EXPIRED_PER_CLAIM])?;
    let claim = "INSERT INTO receipts (scope, digest, generation, owner, beat, lease_ms, renewed)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (scope, digest) DO UPDATE SET generation = excluded.generation, owner = excluded.owner,
                 beat = excluded.beat, lease_ms = excluded.lease_ms, renewed = excluded.renewed,
                 hash = NULL, body = NULL, expires = NULL";
    db.prepare_cached(claim)?.execute(params![
        key.scope,
        key.digest.as_bytes(),
        generation,
        by.owner,
        to_sql_integer(beat)?,
        to_sql_millis(by.duration),
        to_sql_time(by.now)
    ])?;
    Ok(ReceiptClaim::Acquired { generation })
}

pub(super) fn save_receipt(db: &Connection, receipt: &ReceiptWrite) -> Result<(), SqliteError> {
    let ReceiptWrite { key, owner, output, expires_at } = receipt;
    let body = to_json_text(output)?;
    let keep = "UPDATE receipts SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL, hash = ?4, body = ?5, expires = ?6
                WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    let digest = key.digest.as_bytes();
    db.prepare_cached(keep)?.execute(params![
        key.scope,
        digest,
        owner,
        compute_checksum(&body),
        body,
        expires_at.map(to_sql_time)
    ])?;
    Ok(())
}

pub(super) fn release_receipt(db: &Connection, key: &ReceiptKey, owner: &str) -> Result<(), SqliteError> {
    let params = params![key.scope, key.digest.as_bytes(), owner];
    let of_claim = "WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    // Without a row, the generation is 0.
    db.prepare_cached(&format!("DELETE FROM receipts {of_claim} AND generation = 0"))?.execute(params)?;
    let release =
        format!("UPDATE receipts SET owner = NULL, beat = NULL, lease_ms = NULL, renewed = NULL {of_claim}");
    db.prepare_cached(&release)?.execute(params)?;
    Ok(())
}

pub(super) fn list_receipts(
    db: &Connection,
    after: Option<&ReceiptKey>,
    limit: u32,
) -> Result<Vec<StoredReceipt>, SqliteError> {
    let select = "SELECT scope, digest, generation, hash, body, expires FROM receipts
        WHERE (?1 IS NULL OR (scope, digest) > (?1, ?2)) AND (generation > 0 OR body IS NOT NULL)
        ORDER BY scope, digest LIMIT ?3";
    let mut select = db.prepare_cached(select)?;
    let (scope, digest) = (after.map(|key| key.scope.as_str()), after.map(|key| key.digest.as_bytes()));
    let mut rows = select.query(params![scope, digest, limit])?;
    let mut receipts = Vec::new();
    while let Some(row) = rows.next()? {
        let output = match (row.get::<_, Option<Checksum>>(3)?, row.get::<_, Option<String>>(4)?) {
            (Some(hash), Some(body)) => Some(from_json_text(&verify_checksum(&hash, body)?)?),
            _ => None,
        };
        receipts.push(StoredReceipt {
            key: ReceiptKey { scope: row.get(0)?, digest: Digest::from_bytes(row.get(1)?) },
            generation: row.get(2)?,
            output,
            expires_at: row.get::<_, Option<i64>>(5)?.map(from_sql_time),
        });
    }
    Ok(receipts)
}

pub(super) fn import_receipt(db: &Connection, receipt: &StoredReceipt) -> Result<(), SqliteError> {
    let StoredReceipt { key, generation, output, expires_at } = receipt;
    let body = output.as_ref().map(to_json_text).transpose()?;
    let import = "INSERT INTO receipts (scope, digest, generation, hash, body, expires) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                  ON CONFLICT (scope, digest) DO UPDATE SET generation = excluded.generation, hash = excluded.hash,
                  body = excluded.body, expires = excluded.expires
                  WHERE excluded.generation > generation OR (excluded.generation = generation AND body IS NULL)";
    db.prepare_cached(import)?.execute(params![
        key.scope,
        key.digest.as_bytes(),
        generation,
        body.as_ref().map(compute_checksum),
        body,
        expires_at.map(to_sql_time)
    ])?;
    Ok(())
}

pub(super) fn find_receipt(
    db: &Connection,
    key: &ReceiptKey,
    now: Timestamp,
) -> Result<Option<OutputContent>, SqliteError> {
    let Some(known) = find_receipt_row(db, key)? else { return Ok(None) };
    let valid = known.output.filter(|_| known.expires_at.is_none_or(|expires| expires > now));
    valid.map(|(hash, body)| from_json_text(&verify_checksum(&hash, body)?)).transpose()
}

fn find_receipt_row(db: &Connection, key: &ReceiptKey) -> Result<Option<ReceiptRow>, SqliteError> {
    let select = "SELECT generation, hash, body, expires, owner, beat, lease_ms, renewed FROM receipts
                  WHERE scope = ?1 AND digest = ?2";
    let mut select = db.prepare_cached(select)?;
    let mut rows = select.query(params![key.scope, key.digest.as_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let hash: Option<Checksum> = row.get(1)?;
    let expires: Option<i64> = row.get(3)?;
    Ok(Some(ReceiptRow {
        generation: row.get(0)?,
        claim: read_lease(row, 4, 0)?,
        output: hash.zip(row.get(2)?),
        expires_at: expires.map(from_sql_time),
    }))
}
