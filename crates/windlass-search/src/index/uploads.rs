//! Uploaded files, which can be attached to vector stores: whole, or in parts.
//!
//! Invariant: an upload that has expired is in no list and no store.

use rusqlite::{Connection, OptionalExtension, Row};

use super::scan::prepare_document;
use super::stores::{UPLOAD_LIST, record_removal, validate_attributes};
use super::write::{WriteBatch, delete_file};
use super::{Index, IndexDocument, schema, unix_now};
use crate::text::TextAnalyser;
use crate::{ChunkingOptions, FileAttributes, SearchError, VectorStoreFile};

/// Number of seconds after which an upload session without `complete` expires, as in the hosted service.
const SESSION_SECONDS: i64 = 60 * 60;

/// An uploaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedFile {
    /// Id of the upload.
    pub id: String,
    /// Name of the file.
    pub name: String,
    /// Purpose, as given by the client.
    pub purpose: String,
    /// Time of the upload, in seconds since the Unix epoch.
    pub created_at: i64,
    /// Time at which the file is deleted, in seconds since the Unix epoch; it is kept if absent.
    pub expires_at: Option<i64>,
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

/// A file that is being uploaded in parts.
#[cfg(feature = "rest")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UploadSession {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) purpose: String,
    pub(crate) size_bytes: u64,
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
    /// `pending`, `completed`, `cancelled` or `expired`.
    pub(crate) status: String,
    /// Number of seconds after its creation at which the file expires.
    pub(crate) file_seconds: Option<i64>,
    /// Id of the file, once it is complete.
    pub(crate) file_id: Option<String>,
}

const SELECT_UPLOADS: &str = "SELECT id, name, purpose, created, size, expires FROM uploads
    WHERE (expires IS NULL OR expires > unixepoch())";

impl Index {
    /// Stores an uploaded file, which can then be attached to vector stores.
    pub fn upload_file(&self, name: &str, purpose: &str, bytes: &[u8]) -> Result<UploadedFile, SearchError> {
        self.upload_expiring_file(name, purpose, bytes, None)
    }

    /// Stores an uploaded file that is deleted after some seconds.
    pub fn upload_expiring_file(
        &self,
        name: &str,
        purpose: &str,
        bytes: &[u8],
        seconds: Option<i64>,
    ) -> Result<UploadedFile, SearchError> {
        let limit = self.inner.limits.max_upload_bytes;
        if bytes.len() as u64 > limit {
            return Err(SearchError::InvalidArgument(format!(
                "a file has {limit} bytes at most, not {}",
                bytes.len()
            )));
        }
        self.delete_expired_uploads()?;
        let id = self.generate_id("file-")?;
        let now = unix_now();
        self.inner.write_transaction(|db| {
            let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
            db.execute(
                "INSERT INTO uploads VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                (&id, name, purpose, now, seconds.map(|seconds| now.saturating_add(seconds)), size, bytes),
            )
        })?;
        self.upload_info(&id)
    }

    /// Returns all uploads, newest first.
    pub fn list_uploads(&self) -> Result<Vec<UploadedFile>, SearchError> {
        self.inner.read_transaction(|db| {
            db.prepare_cached(&format!("{SELECT_UPLOADS} ORDER BY created DESC, id DESC"))?
                .query_map([], upload_from_row)?
                .collect()
        })
    }

    /// Returns an upload.
    pub fn upload_info(&self, id: &str) -> Result<UploadedFile, SearchError> {
        let found = self.inner.read_transaction(|db| {
            db.prepare_cached(&format!("{SELECT_UPLOADS} AND id = ?1"))?
                .query_row([id], upload_from_row)
                .optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "file", id: id.to_owned() })
    }

    /// Returns the bytes of an upload.
    pub fn upload_bytes(&self, id: &str) -> Result<Vec<u8>, SearchError> {
        self.upload_info(id)?;
        let found = self.inner.read_transaction(|db| {
            db.prepare_cached("SELECT data FROM uploads WHERE id = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "file", id: id.to_owned() })
    }

    /// Deletes an upload and removes it from every store.
    pub fn delete_upload(&self, id: &str) -> Result<(), SearchError> {
        let upload = self.upload_info(id)?;
        self.inner.write_transaction(|db| {
            delete_upload(db, id, upload.created_at)?;
            schema::bump_generation(db)
        })
    }

    /// Deletes the uploads that have expired, and removes them from every store.
    pub(crate) fn delete_expired_uploads(&self) -> Result<(), SearchError> {
        let select = "SELECT id, created FROM uploads WHERE expires <= ?1";
        let load = |db: &Connection| {
            db.prepare_cached(select)?
                .query_map([unix_now()], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<Vec<(String, i64)>>>()
        };
        let expired = self.inner.read_transaction(load)?;
        if expired.is_empty() || self.is_read_only() {
            return Ok(());
        }
        self.inner.write_transaction(|db| {
            for (id, created) in &expired {
                delete_upload(db, id, *created)?;
            }
            schema::bump_generation(db)
        })
    }

    /// Indexes an upload into the selected store. A file that cannot be read is recorded as failed, with the
    /// reason.
    pub fn attach_upload(
        &self,
        upload: &str,
        attributes: FileAttributes,
        chunking: Option<ChunkingOptions>,
    ) -> Result<VectorStoreFile, SearchError> {
        self.store_info()?;
        validate_attributes(&attributes)?;
        let chunking =
            chunking.map(ChunkingOptions::validated).transpose().map_err(SearchError::InvalidArgument)?;
        let kept = self.upload_info(upload)?;
        let bytes = self.upload_bytes(upload)?;
        let document = IndexDocument {
            file_id: Some(upload.to_owned()),
            attributes,
            chunking,
            ..IndexDocument::new(kept.name, bytes)
        };
        let mut batch = WriteBatch::new(&self.inner);
        match prepare_document(&self.inner, &self.store, document) {
            Ok((prepared, _)) => batch.add_file(prepared),
            Err(refused) => batch.add_rejected(refused),
        }
        batch.write(&self.inner, &mut TextAnalyser::default())?;
        self.inner.write_transaction(|db| {
            db.execute("UPDATE stores SET last_active = ?2 WHERE id = ?1", (&*self.store, unix_now()))
        })?;
        self.file_info(upload)
    }

    /// Creates a session for a file that is uploaded in parts.
    #[cfg(feature = "rest")]
    pub(crate) fn create_upload_session(
        &self,
        name: &str,
        purpose: &str,
        size: u64,
        file_seconds: Option<i64>,
    ) -> Result<UploadSession, SearchError> {
        let limit = self.inner.limits.max_upload_bytes;
        if size > limit {
            return Err(SearchError::InvalidArgument(format!(
                "a file has {limit} bytes at most, not {size}"
            )));
        }
        let id = self.generate_id("upload_")?;
        let now = unix_now();
        self.inner.write_transaction(|db| {
            // The parts of abandoned sessions take room.
            db.execute(
                "DELETE FROM upload_parts WHERE session IN (SELECT id FROM upload_sessions WHERE expires <= ?1)",
                [now],
            )?;
            db.execute(
                "INSERT INTO upload_sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'pending', ?7, NULL)",
                (&id, name, purpose, i64::try_from(size).unwrap_or(i64::MAX), now, now + SESSION_SECONDS, file_seconds),
            )
        })?;
        self.upload_session(&id)
    }

    /// Returns an upload session.
    #[cfg(feature = "rest")]
    pub(crate) fn upload_session(&self, id: &str) -> Result<UploadSession, SearchError> {
        let found = self.inner.read_transaction(|db| {
            db.prepare_cached(
                "SELECT id, name, purpose, size, created, expires, status, file_seconds, file FROM upload_sessions
                 WHERE id = ?1",
            )?
            .query_row([id], session_from_row)
            .optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "upload", id: id.to_owned() })
    }

    /// Adds a part to a session, and returns the id and the creation time of the part.
    #[cfg(feature = "rest")]
    pub(crate) fn add_upload_part(&self, session: &str, data: &[u8]) -> Result<(String, i64), SearchError> {
        let pending = self.pending_session(session)?;
        let id = self.generate_id("part_")?;
        let now = unix_now();
        let stored = self.inner.write_transaction(|db| {
            let stored: i64 = db.query_row(
                "SELECT coalesce(sum(length(data)), 0) FROM upload_parts WHERE session = ?1",
                [session],
                |row| row.get(0),
            )?;
            let stored = u64::try_from(stored).unwrap_or(u64::MAX).saturating_add(data.len() as u64);
            if stored <= pending.size_bytes {
                db.execute("INSERT INTO upload_parts VALUES (?1, ?2, ?3, ?4)", (&id, session, now, data))?;
            }
            Ok(stored)
        })?;
        if stored > pending.size_bytes {
            return Err(SearchError::InvalidArgument(format!(
                "the parts have {stored} bytes, and the upload was announced with {}",
                pending.size_bytes
            )));
        }
        Ok((id, now))
    }

    /// Joins the parts of a session in the given order to a file. `md5` is its expected digest in hexadecimal.
    #[cfg(feature = "rest")]
    pub(crate) fn complete_upload(
        &self,
        session: &str,
        parts: &[String],
        md5: Option<&str>,
    ) -> Result<(UploadSession, UploadedFile), SearchError> {
        let pending = self.pending_session(session)?;
        let refused = |why: String| Err(SearchError::InvalidArgument(why));
        let mut bytes = Vec::new();
        for part in parts {
            let data: Option<Vec<u8>> = self.inner.read_transaction(|db| {
                db.prepare_cached("SELECT data FROM upload_parts WHERE id = ?1 AND session = ?2")?
                    .query_row((part, session), |row| row.get(0))
                    .optional()
            })?;
            let Some(data) = data else { return refused(format!("the upload has no part `{part}`")) };
            if bytes.len() + data.len() > usize::try_from(pending.size_bytes).unwrap_or(usize::MAX) {
                return refused("a part is named twice".to_owned());
            }
            bytes.extend(data);
        }
        if bytes.len() as u64 != pending.size_bytes {
            let (have, announced) = (bytes.len(), pending.size_bytes);
            return refused(format!(
                "the parts have {have} bytes, and the upload was announced with {announced}"
            ));
        }
        if let Some(expected) = md5 {
            use md5::Digest;
            let found: String = md5::Md5::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if !found.eq_ignore_ascii_case(expected) {
                return refused(format!("the file has the MD5 digest {found}, not {expected}"));
            }
        }
        let file =
            self.upload_expiring_file(&pending.name, &pending.purpose, &bytes, pending.file_seconds)?;
        self.inner.write_transaction(|db| {
            db.execute("DELETE FROM upload_parts WHERE session = ?1", [session])?;
            db.execute(
                "UPDATE upload_sessions SET status = 'completed', file = ?2 WHERE id = ?1",
                (session, &file.id),
            )
        })?;
        Ok((self.upload_session(session)?, file))
    }

    /// Cancels a session and deletes its parts.
    #[cfg(feature = "rest")]
    pub(crate) fn cancel_upload(&self, session: &str) -> Result<UploadSession, SearchError> {
        self.pending_session(session)?;
        self.inner.write_transaction(|db| {
            db.execute("DELETE FROM upload_parts WHERE session = ?1", [session])?;
            db.execute("UPDATE upload_sessions SET status = 'cancelled' WHERE id = ?1", [session])
        })?;
        self.upload_session(session)
    }

    /// Returns a session that still accepts parts.
    #[cfg(feature = "rest")]
    fn pending_session(&self, id: &str) -> Result<UploadSession, SearchError> {
        let session = self.upload_session(id)?;
        match session.status.as_str() {
            "pending" => Ok(session),
            status => Err(SearchError::InvalidArgument(format!("the upload `{id}` is {status}"))),
        }
    }
}

/// Deletes an upload and removes it from every store.
fn delete_upload(db: &Connection, id: &str, created: i64) -> rusqlite::Result<()> {
    db.execute("DELETE FROM uploads WHERE id = ?1", [id])?;
    record_removal(db, UPLOAD_LIST, id, created)?;
    let stores: Vec<(String, String, i64)> = db
        .prepare_cached(
            "SELECT store, path, created FROM files WHERE file_id = ?1
             UNION ALL SELECT store, path, created FROM rejected_files WHERE file_id = ?1",
        )?
        .query_map([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (store, path, created) in stores {
        record_removal(db, &store, id, created)?;
        delete_file(db, &store, &path)?;
    }
    Ok(())
}

fn upload_from_row(row: &Row<'_>) -> rusqlite::Result<UploadedFile> {
    Ok(UploadedFile {
        id: row.get(0)?,
        name: row.get(1)?,
        purpose: row.get(2)?,
        created_at: row.get(3)?,
        size_bytes: u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0),
        expires_at: row.get(5)?,
    })
}

#[cfg(feature = "rest")]
fn session_from_row(row: &Row<'_>) -> rusqlite::Result<UploadSession> {
    let (expires_at, status): (i64, String) = (row.get(5)?, row.get(6)?);
    let is_expired = status == "pending" && expires_at <= unix_now();
    Ok(UploadSession {
        id: row.get(0)?,
        name: row.get(1)?,
        purpose: row.get(2)?,
        size_bytes: u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
        created_at: row.get(4)?,
        expires_at,
        status: if is_expired { "expired".to_owned() } else { status },
        file_seconds: row.get(7)?,
        file_id: row.get(8)?,
    })
}
