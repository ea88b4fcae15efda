//! Claims of files, by which several processes that index the same folder share the work.
//!
//! A process claims a file in the index before it reads it, and the claim ends in the transaction that writes the
//! file. While the process works, it holds a lock on a small file beside the index; the operating system releases the
//! lock when the process ends, however it ends, and the claims of an owner without a lock are void.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension};

use super::IndexInner;
use super::walk::path_to_text;
use crate::SearchError;

/// An owner of claims. Dropping it releases its lock.
pub(super) struct ClaimOwner {
    id: String,
    lock_path: PathBuf,
    /// `None` if no lock can be held here; the claims are then void, and the work is not shared.
    lock: Option<File>,
}

/// The result of an attempt to claim a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// This process must read the file.
    Claimed,
    /// Another process reads the file.
    Elsewhere,
}

impl ClaimOwner {
    /// Creates an owner and takes its lock.
    pub(super) fn register(inner: &IndexInner) -> Result<Self, SearchError> {
        let id: String = inner
            .read_transaction(|db| db.query_row("SELECT lower(hex(randomblob(8)))", [], |row| row.get(0)))?;
        let lock_path = lock_path(&inner.path, &id);
        let lock = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&lock_path)
            .ok()
            .filter(|file| file.try_lock().is_ok());
        Ok(Self { id, lock_path, lock })
    }

    /// Claims the paths in one transaction, and returns the outcome of each.
    pub(super) fn claim(
        &self,
        inner: &IndexInner,
        store: &str,
        paths: &[&Path],
    ) -> Result<Vec<ClaimOutcome>, SearchError> {
        let mut is_alive: HashMap<String, bool> = HashMap::new();
        inner.write_transaction(|db| {
            let mut outcomes = Vec::with_capacity(paths.len());
            for path in paths {
                let path = path_to_text(path);
                let owner = load_owner(db, store, &path)?;
                let is_elsewhere = owner.is_some_and(|owner| {
                    owner != self.id
                        && *is_alive
                            .entry(owner)
                            .or_insert_with_key(|owner| is_owner_alive(&inner.path, owner))
                });
                if !is_elsewhere {
                    db.prepare_cached("INSERT OR REPLACE INTO claims VALUES (?1, ?2, ?3)")?
                        .execute((store, &path, &self.id))?;
                }
                outcomes.push(if is_elsewhere { ClaimOutcome::Elsewhere } else { ClaimOutcome::Claimed });
            }
            Ok(outcomes)
        })
    }

    /// Ends all claims of this owner, such as those of files that turned out to be unchanged.
    pub(super) fn release(&self, inner: &IndexInner) -> Result<(), SearchError> {
        inner.write_transaction(|db| db.execute("DELETE FROM claims WHERE owner = ?1", [&self.id]))?;
        Ok(())
    }
}

impl Drop for ClaimOwner {
    fn drop(&mut self) {
        if self.lock.take().is_some() {
            let _ = std::fs::remove_file(&self.lock_path);
        }
    }
}

fn load_owner(db: &Connection, store: &str, path: &str) -> rusqlite::Result<Option<String>> {
    db.prepare_cached("SELECT owner FROM claims WHERE store = ?1 AND path = ?2")?
        .query_row((store, path), |row| row.get(0))
        .optional()
}

/// Returns true if the owner still holds its lock. Removes the lock file of an owner that does not.
fn is_owner_alive(index: &Path, owner: &str) -> bool {
    let path = lock_path(index, owner);
    let Ok(file) = OpenOptions::new().write(true).open(&path) else { return false };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => true,
        // A platform without locks: nobody can be known to work.
        Err(TryLockError::Error(_)) => false,
        Ok(()) => {
            let _ = std::fs::remove_file(&path);
            false
        }
    }
}

fn lock_path(index: &Path, owner: &str) -> PathBuf {
    let mut path = index.as_os_str().to_owned();
    path.push(format!("-worker-{owner}"));
    path.into()
}
