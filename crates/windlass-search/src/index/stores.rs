//! Vector stores inside an index, as in the hosted service: sets of files that are searched separately. Also
//! uploaded files, which can be attached to a store.

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::{Map, Value};

use super::add::prepare_document;
use super::write::{WriteBatch, delete_file};
use super::{DEFAULT_STORE, Index, IndexDocument, schema, unix_now};
use crate::text::TextAnalyser;
use crate::{ChunkingOptions, FileAttributes, SearchError};

/// A vector store and its statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorStoreInfo {
    /// Id of the store.
    pub id: String,
    /// Name of the store.
    pub name: String,
    /// Description of the store.
    pub description: Option<String>,
    /// Creation time, in seconds since the Unix epoch.
    pub created_at: i64,
    /// Time of the last use, in seconds since the Unix epoch.
    pub last_active_at: i64,
    /// Metadata of the client.
    pub metadata: Map<String, Value>,
    /// Number of days without use after which the store expires; it never expires if absent.
    pub expires_after_days: Option<i64>,
    /// Number of indexed files.
    pub completed_files: u64,
    /// Number of files that could not be read.
    pub failed_files: u64,
    /// Total size of the indexed files in bytes.
    pub total_bytes: u64,
}

/// The properties of a store to create or update.
#[derive(Clone, Debug, Default)]
pub struct NewVectorStore {
    /// Name of the store.
    pub name: String,
    /// Description of the store.
    pub description: Option<String>,
    /// Metadata of the client.
    pub metadata: Map<String, Value>,
    /// Number of days without use after which the store expires; it never expires if absent.
    pub expires_after_days: Option<i64>,
}

/// A file of a vector store.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorStoreFile {
    /// Client-visible id of the file.
    pub id: String,
    /// Name of the file.
    pub name: String,
    /// Time of indexing, in seconds since the Unix epoch.
    pub created_at: i64,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Attributes of the file.
    pub attributes: FileAttributes,
    /// Chunking options of the file; absent if it could not be read.
    pub chunking: Option<ChunkingOptions>,
    /// Indexing status of the file.
    pub status: IndexedFileStatus,
}

/// The indexing status of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexedFileStatus {
    /// The file is indexed.
    Completed,
    /// The file could not be read, with the reason.
    Failed(String),
}

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
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

const SELECT_STORES: &str = "SELECT id, name, description, created, last_active, metadata, expires_days,
    (SELECT count(*) FROM files WHERE store = stores.id), (SELECT count(*) FROM rejected_files WHERE store = stores.id),
    (SELECT coalesce(sum(size), 0) FROM files WHERE store = stores.id) FROM stores";

const SELECT_FILES: &str =
    "SELECT file_id, name, created, size, attributes, chunking, NULL FROM files WHERE store = ?1
    UNION ALL SELECT file_id, path, created, size, '{}', '', reason FROM rejected_files WHERE store = ?1";

impl Index {
    /// Returns a handle of the same index with another store selected. The store's existence is checked on first
    /// use.
    #[must_use]
    pub fn in_store(&self, id: &str) -> Self {
        Self { inner: self.inner.clone(), store: id.into() }
    }

    /// Returns the selected store.
    pub fn store_info(&self) -> Result<VectorStoreInfo, SearchError> {
        let found = self.inner.read_transaction(|db| load_store(db, &self.store))?;
        found.ok_or_else(|| SearchError::NotFound { object: "vector store", id: self.store.to_string() })
    }

    /// Returns all stores, newest first.
    pub fn list_stores(&self) -> Result<Vec<VectorStoreInfo>, SearchError> {
        self.inner.read_transaction(|db| {
            db.prepare_cached(&format!("{SELECT_STORES} ORDER BY created DESC, stores.rowid DESC"))?
                .query_map([], store_from_row)?
                .collect()
        })
    }

    /// Creates a store.
    pub fn create_store(&self, new: NewVectorStore) -> Result<VectorStoreInfo, SearchError> {
        let id = self.generate_id("vs_")?;
        self.inner.write_transaction(|db| {
            let metadata = serde_json::to_string(&new.metadata).unwrap_or_default();
            db.execute(
                "INSERT INTO stores VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)",
                (&id, &new.name, &new.description, unix_now(), metadata, new.expires_after_days),
            )
        })?;
        self.in_store(&id).store_info()
    }

    /// Replaces the name, description, metadata and expiry of the selected store.
    pub fn update_store(&self, new: NewVectorStore) -> Result<VectorStoreInfo, SearchError> {
        self.store_info()?;
        self.inner.write_transaction(|db| {
            let metadata = serde_json::to_string(&new.metadata).unwrap_or_default();
            db.execute(
                "UPDATE stores SET name = ?2, description = ?3, metadata = ?4, expires_days = ?5 WHERE id = ?1",
                (&*self.store, &new.name, &new.description, metadata, new.expires_after_days),
            )
        })?;
        self.store_info()
    }

    /// Deletes the selected store with all its files. The default store is only emptied.
    pub fn delete_store(&self) -> Result<(), SearchError> {
        self.store_info()?;
        let paths: Vec<String> = self.inner.read_transaction(|db| {
            db.prepare("SELECT path FROM files WHERE store = ?1")?
                .query_map([&*self.store], |row| row.get(0))?
                .collect()
        })?;
        self.inner.write_transaction(|db| {
            for path in &paths {
                delete_file(db, &self.store, path)?;
            }
            db.execute("DELETE FROM rejected_files WHERE store = ?1", [&*self.store])?;
            db.execute("DELETE FROM roots WHERE store = ?1", [&*self.store])?;
            if &*self.store != DEFAULT_STORE {
                db.execute("DELETE FROM stores WHERE id = ?1", [&*self.store])?;
            }
            schema::bump_generation(db)
        })
    }

    /// Returns the files of the selected store, newest first.
    pub fn list_files(&self) -> Result<Vec<VectorStoreFile>, SearchError> {
        self.inner.read_transaction(|db| {
            let ordered = format!("SELECT * FROM ({SELECT_FILES}) ORDER BY created DESC, file_id");
            db.prepare_cached(&ordered)?.query_map([&*self.store], file_from_row)?.collect()
        })
    }

    /// Returns a file of the selected store.
    pub fn file_info(&self, id: &str) -> Result<VectorStoreFile, SearchError> {
        let found = self.inner.read_transaction(|db| {
            let one = format!("SELECT * FROM ({SELECT_FILES}) WHERE file_id = ?2");
            db.prepare_cached(&one)?.query_row((&*self.store, id), file_from_row).optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "file", id: id.to_owned() })
    }

    /// Returns the text of a file of the selected store, one string per chunk.
    pub fn file_chunks(&self, id: &str) -> Result<Vec<String>, SearchError> {
        self.file_info(id)?;
        self.inner.read_transaction(|db| {
            db.prepare_cached(
                "SELECT text FROM chunks JOIN files ON files.id = file WHERE store = ?1 AND file_id = ?2 ORDER BY chunks.id",
            )?
            .query_map((&*self.store, id), |row| row.get(0))?
            .collect()
        })
    }

    /// Replaces the attributes of a file.
    pub fn set_attributes(
        &self,
        id: &str,
        attributes: &FileAttributes,
    ) -> Result<VectorStoreFile, SearchError> {
        self.file_info(id)?;
        self.inner.write_transaction(|db| {
            let attributes = serde_json::to_string(attributes).unwrap_or_default();
            db.execute(
                "UPDATE files SET attributes = ?3 WHERE store = ?1 AND file_id = ?2",
                (&*self.store, id, attributes),
            )?;
            schema::bump_generation(db)
        })?;
        self.file_info(id)
    }

    /// Removes a file from the selected store.
    pub fn remove_file(&self, id: &str) -> Result<(), SearchError> {
        self.file_info(id)?;
        self.inner.write_transaction(|db| {
            let path: Option<String> = db
                .prepare_cached(
                    "SELECT path FROM files WHERE store = ?1 AND file_id = ?2
                     UNION ALL SELECT path FROM rejected_files WHERE store = ?1 AND file_id = ?2",
                )?
                .query_row((&*self.store, id), |row| row.get(0))
                .optional()?;
            if let Some(path) = path {
                delete_file(db, &self.store, &path)?;
            }
            schema::bump_generation(db)
        })
    }

    /// Stores an uploaded file, which can then be attached to vector stores.
    pub fn upload_file(&self, name: &str, purpose: &str, bytes: &[u8]) -> Result<UploadedFile, SearchError> {
        let limit = self.inner.limits.max_file_bytes;
        if bytes.len() as u64 > limit {
            return Err(SearchError::InvalidArgument(format!(
                "a file has {limit} bytes at most, not {}",
                bytes.len()
            )));
        }
        let id = self.generate_id("file-")?;
        self.inner.write_transaction(|db| {
            let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
            db.execute(
                "INSERT INTO uploads VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (&id, name, purpose, unix_now(), size, bytes),
            )
        })?;
        self.upload_info(&id)
    }

    /// Returns all uploads, newest first.
    pub fn list_uploads(&self) -> Result<Vec<UploadedFile>, SearchError> {
        self.inner.read_transaction(|db| {
            db.prepare_cached(
                "SELECT id, name, purpose, created, size FROM uploads ORDER BY created DESC, rowid DESC",
            )?
            .query_map([], upload_from_row)?
            .collect()
        })
    }

    /// Returns an upload.
    pub fn upload_info(&self, id: &str) -> Result<UploadedFile, SearchError> {
        let found = self.inner.read_transaction(|db| {
            db.prepare_cached("SELECT id, name, purpose, created, size FROM uploads WHERE id = ?1")?
                .query_row([id], upload_from_row)
                .optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "file", id: id.to_owned() })
    }

    /// Returns the bytes of an upload.
    pub fn upload_bytes(&self, id: &str) -> Result<Vec<u8>, SearchError> {
        let found = self.inner.read_transaction(|db| {
            db.prepare_cached("SELECT data FROM uploads WHERE id = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()
        })?;
        found.ok_or_else(|| SearchError::NotFound { object: "file", id: id.to_owned() })
    }

    /// Deletes an upload and removes it from every store.
    pub fn delete_upload(&self, id: &str) -> Result<(), SearchError> {
        self.upload_info(id)?;
        self.inner.write_transaction(|db| {
            db.execute("DELETE FROM uploads WHERE id = ?1", [id])?;
            let stores: Vec<(String, String)> = db
                .prepare("SELECT store, path FROM files WHERE file_id = ?1")?
                .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            for (store, path) in stores {
                delete_file(db, &store, &path)?;
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
        let mut batch = WriteBatch::default();
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

    /// Records a batch of attached files and returns its id.
    #[cfg(feature = "rest")]
    pub(crate) fn record_batch(&self, files: &[String]) -> Result<String, SearchError> {
        let id = self.generate_id("vsfb_")?;
        let files = serde_json::to_string(files).unwrap_or_default();
        self.inner.write_transaction(|db| {
            db.execute("INSERT INTO batches VALUES (?1, ?2, ?3, ?4)", (&id, &*self.store, unix_now(), files))
        })?;
        Ok(id)
    }

    /// Returns the creation time and the file ids of a batch.
    #[cfg(feature = "rest")]
    pub(crate) fn load_batch(&self, id: &str) -> Result<(i64, Vec<String>), SearchError> {
        let found: Option<(i64, String)> = self.inner.read_transaction(|db| {
            db.prepare_cached("SELECT created, files FROM batches WHERE id = ?1 AND store = ?2")?
                .query_row((id, &*self.store), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })?;
        let (created, files) =
            found.ok_or_else(|| SearchError::NotFound { object: "file batch", id: id.to_owned() })?;
        Ok((created, serde_json::from_str(&files).unwrap_or_default()))
    }

    /// Sets the time of last use of the selected store to now.
    #[cfg(feature = "rest")]
    pub(crate) fn mark_store_used(&self) -> Result<(), SearchError> {
        self.inner.write_transaction(|db| {
            db.execute(
                "UPDATE stores SET last_active = ?2 WHERE id = ?1 AND last_active < ?2",
                (&*self.store, unix_now()),
            )
        })?;
        Ok(())
    }

    /// Generates a random id with a prefix.
    fn generate_id(&self, start: &str) -> Result<String, SearchError> {
        let random: String = self
            .inner
            .read_transaction(|db| db.query_row("SELECT lower(hex(randomblob(12)))", [], |row| row.get(0)))?;
        Ok(format!("{start}{random}"))
    }
}

/// Checks attributes against the limits of the hosted service, so that they are valid in both.
pub(crate) fn validate_attributes(attributes: &FileAttributes) -> Result<(), SearchError> {
    let problem = if attributes.len() > 16 {
        Some("a file has 16 attributes at most".to_owned())
    } else {
        attributes.iter().find_map(|(key, value)| match value {
            _ if key.chars().count() > 64 => {
                Some(format!("the name of the attribute `{key}` is longer than 64 characters"))
            }
            crate::AttributeValue::Text(text) if text.chars().count() > 512 => {
                Some(format!("the attribute `{key}` is longer than 512 characters"))
            }
            _ => None,
        })
    };
    problem.map_or(Ok(()), |problem| Err(SearchError::InvalidArgument(problem)))
}

fn load_store(db: &Connection, id: &str) -> rusqlite::Result<Option<VectorStoreInfo>> {
    db.prepare_cached(&format!("{SELECT_STORES} WHERE id = ?1"))?.query_row([id], store_from_row).optional()
}

fn store_from_row(row: &Row<'_>) -> rusqlite::Result<VectorStoreInfo> {
    let metadata: String = row.get(5)?;
    let count = |at: usize| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0));
    Ok(VectorStoreInfo {
        id: row.get(0)?,
        name: row.get(1)?,
        description: row.get(2)?,
        created_at: row.get(3)?,
        last_active_at: row.get(4)?,
        metadata: serde_json::from_str(&metadata).unwrap_or_default(),
        expires_after_days: row.get(6)?,
        completed_files: count(7)?,
        failed_files: count(8)?,
        total_bytes: count(9)?,
    })
}

fn file_from_row(row: &Row<'_>) -> rusqlite::Result<VectorStoreFile> {
    let attributes: String = row.get(4)?;
    let chunking: String = row.get(5)?;
    let why: Option<String> = row.get(6)?;
    Ok(VectorStoreFile {
        id: row.get(0)?,
        name: row.get(1)?,
        created_at: row.get(2)?,
        size_bytes: u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
        attributes: serde_json::from_str(&attributes).unwrap_or_default(),
        chunking: serde_json::from_str(&chunking).ok(),
        status: why.map_or(IndexedFileStatus::Completed, IndexedFileStatus::Failed),
    })
}

fn upload_from_row(row: &Row<'_>) -> rusqlite::Result<UploadedFile> {
    Ok(UploadedFile {
        id: row.get(0)?,
        name: row.get(1)?,
        purpose: row.get(2)?,
        created_at: row.get(3)?,
        size_bytes: u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0),
    })
}
