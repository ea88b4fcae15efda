//! Receipts: results of idempotent calls, and who is making one right now.

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::{OutputContent, Timestamp};

use super::file::{Trouble, seal, unseal};
use super::runs::Claimant;
use super::{text, time, to_time, value};
use crate::store::{ReceiptClaim, ReceiptKey};

/// How many receipts that have run out are swept away when one more call begins.
const SWEPT: u32 = 8;

struct Known {
    claimed: Option<(String, Timestamp)>,
    kept: Option<(String, String)>,
    expires: Option<Timestamp>,
}

pub(super) fn claim(db: &Connection, key: &ReceiptKey, by: &Claimant) -> Result<ReceiptClaim, Trouble> {
    if let Some(known) = known(db, key)? {
        match (known.kept, known.claimed) {
            (Some((hash, body)), _) if known.expires.is_none_or(|expires| expires > by.now) => {
                return Ok(ReceiptClaim::Receipt(value(&unseal(&hash, body)?)?));
            }
            (None, Some((owner, until))) if until > by.now && owner != by.owner => {
                return Ok(ReceiptClaim::Busy { until });
            }
            _ => {}
        }
    }
    let sweep = "DELETE FROM receipts WHERE id IN (SELECT id FROM receipts WHERE expires <= ?1 LIMIT ?2)";
    db.prepare_cached(sweep)?.execute(params![time(by.now), SWEPT])?;
    let claim = "INSERT INTO receipts (scope, digest, owner, owned_until) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (scope, digest) DO UPDATE SET owner = excluded.owner,
                 owned_until = excluded.owned_until, hash = NULL, body = NULL, expires = NULL";
    db.prepare_cached(claim)?.execute(params![
        key.scope,
        key.digest.to_string(),
        by.owner,
        time(by.until)
    ])?;
    Ok(ReceiptClaim::Mine)
}

pub(super) fn keep(
    db: &Connection,
    key: &ReceiptKey,
    owner: &str,
    output: &OutputContent,
    expires: Option<Timestamp>,
) -> Result<(), Trouble> {
    let body = text(output)?;
    let keep = "UPDATE receipts SET owner = NULL, owned_until = NULL, hash = ?4, body = ?5, expires = ?6
                WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    let digest = key.digest.to_string();
    db.prepare_cached(keep)?.execute(params![
        key.scope,
        digest,
        owner,
        seal(&body),
        body,
        expires.map(time)
    ])?;
    Ok(())
}

pub(super) fn give_up(db: &Connection, key: &ReceiptKey, owner: &str) -> Result<(), Trouble> {
    let delete = "DELETE FROM receipts WHERE scope = ?1 AND digest = ?2 AND owner = ?3";
    db.prepare_cached(delete)?.execute(params![key.scope, key.digest.to_string(), owner])?;
    Ok(())
}

fn known(db: &Connection, key: &ReceiptKey) -> Result<Option<Known>, Trouble> {
    let select =
        "SELECT owner, owned_until, hash, body, expires FROM receipts WHERE scope = ?1 AND digest = ?2";
    let known = db.prepare_cached(select)?.query_row(params![key.scope, key.digest.to_string()], |row| {
        let owner: Option<String> = row.get(0)?;
        let until: Option<i64> = row.get(1)?;
        let hash: Option<String> = row.get(2)?;
        let body: Option<String> = row.get(3)?;
        let expires: Option<i64> = row.get(4)?;
        Ok(Known {
            claimed: owner.zip(until.map(to_time)),
            kept: hash.zip(body),
            expires: expires.map(to_time),
        })
    });
    Ok(known.optional()?)
}
