//! Vector stores inside an index, as in the hosted service: sets of files that are searched separately.

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::{Map, Value};

use super::write::delete_file;
use super::{DEFAULT_STORE, Index, schema, unix_now};
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
            db.prepare_cached(&format!("{SELECT_STORES} ORDER BY created DESC, id DESC"))?
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
        let store = self.store_info()?;
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
                record_removal(db, STORE_LIST, &self.store, store.created_at)?;
                db.execute("DELETE FROM stores WHERE id = ?1", [&*self.store])?;
            }
            schema::bump_generation(db)
        })
    }

    /// Returns the files of the selected store, newest first.
    pub fn list_files(&self) -> Result<Vec<VectorStoreFile>, SearchError> {
        self.inner.read_transaction(|db| {
            let ordered = format!("SELECT * FROM ({SELECT_FILES}) ORDER BY created DESC, file_id DESC");
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
        let file = self.file_info(id)?;
        self.inner.write_transaction(|db| {
            record_removal(db, &self.store, id, file.created_at)?;
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

    /// Returns the creation time of an item that was removed from a list; `None` if the list never had it, or if it was
    /// removed long ago.
    #[cfg(feature = "rest")]
    pub(crate) fn removed_item_time(&self, list: &str, id: &str) -> Result<Option<i64>, SearchError> {
        self.inner.read_transaction(|db| {
            db.prepare_cached(
                "SELECT created FROM removed_items WHERE list = ?1 AND id = ?2 ORDER BY sequence DESC LIMIT 1",
            )?
            .query_row((list, id), |row| row.get(0))
            .optional()
        })
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

    /// Generates an unguessable id with a prefix. Ids sort by the time of their creation.
    pub(super) fn generate_id(&self, start: &str) -> Result<String, SearchError> {
        let random: String = self
            .inner
            .read_transaction(|db| db.query_row("SELECT lower(hex(randomblob(8)))", [], |row| row.get(0)))?;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(format!("{start}{:014x}{random}", since.as_micros()))
    }
}

/// Names of the lists of stores and of uploads in `removed_items`; the list of a store's files has the store's id.
pub(crate) const STORE_LIST: &str = "stores";
pub(crate) const UPLOAD_LIST: &str = "uploads";
/// Number of removed items that are remembered.
const MAX_REMOVED_ITEMS: i64 = 10_000;

/// Remembers the place of a removed item, so that a client that pages through the list can continue after it.
pub(super) fn record_removal(db: &Connection, list: &str, id: &str, created: i64) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT INTO removed_items (list, id, created) VALUES (?1, ?2, ?3)")?
        .execute((list, id, created))?;
    db.prepare_cached("DELETE FROM removed_items WHERE sequence <= ?1 - ?2")?
        .execute((db.last_insert_rowid(), MAX_REMOVED_ITEMS))?;
    Ok(())
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
