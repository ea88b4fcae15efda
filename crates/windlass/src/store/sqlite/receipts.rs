//! Receipts: outputs of idempotent calls, and claims to execute one.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{id::Timestamp, item::OutputContent};

use super::file::{SqliteError, compute_checksum, verify_checksum};
use super::runs::OwnedLeaseClaim;
use super::{from_json_text, from_sql_time, to_json_text, to_sql_time};
use crate::store::{ReceiptClaim, ReceiptKey};

/// Maximum number of expired receipts that are deleted per claim.
const MAX_EXPIRED_PER_CLAIM: u32 = 8;

struct ReceiptRow {
    claim: Option<(String, Timestamp)>,
    output: Option<(String, String)>,
    expires_at: Option<Timestamp>,
}

pub(super) fn claim_receipt(
    db: &Connection,
    key: &ReceiptKey,
    by: &OwnedLeaseClaim,
) -> Result<ReceiptClaim, SqliteError> {
    if let Some(known) = find_receipt(db, key)? {
        match (known.output, known.claim) {
            (Some((hash, body)), _) if known.expires_at.is_none_or(|expires| expires > by.now) => {
                return Ok(ReceiptClaim::Completed(from_json_text(&verify_checksum(&hash, body)?)?));
            }
            (None, Some((owner, until))) if until > by.now && owner != by.owner => {
                return Ok(ReceiptClaim::InProgress { expires_at: until });
            }
            _ => {}
        }
    }
    let sweep = "DELETE FROM receipts WHERE id IN (SELECT id FROM receipts WHERE expires <= ?1 LIMIT ?2)";
    db.prepare_cached(sweep)?.execute(params![to_sql_time(by.now), MAX_EXPIRED_PER_CLAIM])?;
    let claim = "INSERT INTO receipts (scope, digest, owner, owned_until) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (scope, digest) DO UPDATE SET owner = excluded.owner,
                 owned_until = excluded.owned_until, hash = NULL, body = NULL, expires = NULL";
    db.prepare_cached(claim)?.execute(params![
        key.scope,
        key.digest.to_string(),
        by.owner,
        to_sql_time(by.expires_at)
    ])?;
    Ok(ReceiptClaim::Acquired)
}

pub(super) fn save_receipt(
    db: &Connection,
    key: &ReceiptKey,
    owner: &str,
    output: &OutputContent,
    expires: Option<Timestamp>,
) -> Result<(), SqliteError> {
    let body = to_json_text(output)?;
    let keep = "UPDATE receipts SET owner = NULL, owned_until = NULL, hash = ?4, body = ?5, expires = ?6
                WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    let digest = key.digest.to_string();
    db.prepare_cached(keep)?.execute(params![
        key.scope,
        digest,
        owner,
        compute_checksum(&body),
        body,
        expires.map(to_sql_time)
    ])?;
    Ok(())
}

pub(super) fn release_receipt(db: &Connection, key: &ReceiptKey, owner: &str) -> Result<(), SqliteError> {
    let delete = "DELETE FROM receipts WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    db.prepare_cached(delete)?.execute(params![key.scope, key.digest.to_string(), owner])?;
    Ok(())
}

fn find_receipt(db: &Connection, key: &ReceiptKey) -> Result<Option<ReceiptRow>, SqliteError> {
    let select =
        "SELECT owner, owned_until, hash, body, expires FROM receipts WHERE scope = ?1 AND digest = ?2";
    let known = db.prepare_cached(select)?.query_row(params![key.scope, key.digest.to_string()], |row| {
        let owner: Option<String> = row.get(0)?;
        let until: Option<i64> = row.get(1)?;
        let hash: Option<String> = row.get(2)?;
        let body: Option<String> = row.get(3)?;
        let expires: Option<i64> = row.get(4)?;
        Ok(ReceiptRow {
            claim: owner.zip(until.map(from_sql_time)),
            output: hash.zip(body),
            expires_at: expires.map(from_sql_time),
        })
    });
    Ok(known.optional()?)
}
