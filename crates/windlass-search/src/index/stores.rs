//! Stores inside of an index: sets of files that are searched apart, as the hosted service has them; and files that
//! were uploaded and wait to be put into one.

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::{Map, Value};

use super::add::prepare_document;
use super::write::{Batch, forget};
use super::{DEFAULT_STORE, Document, Index, now, schema};
use crate::text::Analyser;
use crate::{Attributes, Chunking, SearchError};

/// A store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreInfo {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// When it was last used.
    pub active: i64,
    /// Whatever its owner noted.
    pub metadata: Map<String, Value>,
    /// After how many days without use it is no longer searched.
    pub expires_days: Option<i64>,
    /// How many files it has.
    pub completed: u64,
    /// How many could not be read.
    pub failed: u64,
    /// How large its files are.
    pub bytes: u64,
}

/// What a new store is like.
#[derive(Clone, Debug, Default)]
pub struct NewStore {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Whatever its owner notes.
    pub metadata: Map<String, Value>,
    /// After how many days without use it is no longer searched.
    pub expires_days: Option<i64>,
}

/// A file of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct FileInfo {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it came in.
    pub created: i64,
    /// How large it is.
    pub bytes: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// How it was cut.
    pub chunking: Option<Chunking>,
    /// Whether it can be found.
    pub status: FileStatus,
}

/// Whether a file can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileStatus {
    /// It can.
    Completed,
    /// It could not be read, for this reason.
    Failed(String),
}

/// A file that was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it is for, in the client's words.
    pub purpose: String,
    /// When it came.
    pub created: i64,
    /// How large it is.
    pub bytes: u64,
}

const STORES: &str = "SELECT id, name, description, created, active, metadata, expires_days,
    (SELECT count(*) FROM files WHERE store = stores.id), (SELECT count(*) FROM refused WHERE store = stores.id),
    (SELECT coalesce(sum(size), 0) FROM files WHERE store = stores.id) FROM stores";

const FILES: &str =
    "SELECT public, name, created, size, attributes, chunking, NULL FROM files WHERE store = ?1
    UNION ALL SELECT public, path, created, size, '{}', '', why FROM refused WHERE store = ?1";

impl Index {
    /// The same index, with another store of it in view. The store is not looked for before it is used.
    #[must_use]
    pub fn in_store(&self, id: &str) -> Self {
        Self { inner: self.inner.clone(), store: id.into() }
    }

    /// The store in view.
    pub fn store(&self) -> Result<StoreInfo, SearchError> {
        let found = self.inner.read(|db| store(db, &self.store))?;
        found.ok_or_else(|| SearchError::Missing { what: "vector store", id: self.store.to_string() })
    }

    /// All stores, the newest first.
    pub fn stores(&self) -> Result<Vec<StoreInfo>, SearchError> {
        self.inner.read(|db| {
            db.prepare_cached(&format!("{STORES} ORDER BY created DESC, stores.rowid DESC"))?
                .query_map([], read_store)?
                .collect()
        })
    }

    /// Makes a store.
    pub fn create_store(&self, new: NewStore) -> Result<StoreInfo, SearchError> {
        let id = self.fresh_id("vs_")?;
        self.inner.write(|db| {
            let metadata = serde_json::to_string(&new.metadata).unwrap_or_default();
            db.execute(
                "INSERT INTO stores VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)",
                (&id, &new.name, &new.description, now(), metadata, new.expires_days),
            )
        })?;
        self.in_store(&id).store()
    }

    /// Gives the store in view another name, other notes or another end.
    pub fn change_store(&self, new: NewStore) -> Result<StoreInfo, SearchError> {
        self.store()?;
        self.inner.write(|db| {
            let metadata = serde_json::to_string(&new.metadata).unwrap_or_default();
            db.execute(
                "UPDATE stores SET name = ?2, description = ?3, metadata = ?4, expires_days = ?5 WHERE id = ?1",
                (&*self.store, &new.name, &new.description, metadata, new.expires_days),
            )
        })?;
        self.store()
    }

    /// Takes the store in view out, with all its files.
    pub fn delete_store(&self) -> Result<(), SearchError> {
        self.store()?;
        let paths: Vec<String> = self.inner.read(|db| {
            db.prepare("SELECT path FROM files WHERE store = ?1")?
                .query_map([&*self.store], |row| row.get(0))?
                .collect()
        })?;
        self.inner.write(|db| {
            for path in &paths {
                forget(db, &self.store, path)?;
            }
            db.execute("DELETE FROM refused WHERE store = ?1", [&*self.store])?;
            db.execute("DELETE FROM roots WHERE store = ?1", [&*self.store])?;
            if &*self.store != DEFAULT_STORE {
                db.execute("DELETE FROM stores WHERE id = ?1", [&*self.store])?;
            }
            schema::next_generation(db)
        })
    }

    /// The files of the store in view, the newest first.
    pub fn files(&self) -> Result<Vec<FileInfo>, SearchError> {
        self.inner.read(|db| {
            let ordered = format!("SELECT * FROM ({FILES}) ORDER BY created DESC, public");
            db.prepare_cached(&ordered)?.query_map([&*self.store], read_file)?.collect()
        })
    }

    /// One file of the store in view.
    pub fn file(&self, id: &str) -> Result<FileInfo, SearchError> {
        let found = self.inner.read(|db| {
            let one = format!("SELECT * FROM ({FILES}) WHERE public = ?2");
            db.prepare_cached(&one)?.query_row((&*self.store, id), read_file).optional()
        })?;
        found.ok_or_else(|| SearchError::Missing { what: "file", id: id.to_owned() })
    }

    /// The text of a file of the store in view, chunk by chunk.
    pub fn file_text(&self, id: &str) -> Result<Vec<String>, SearchError> {
        self.file(id)?;
        self.inner.read(|db| {
            db.prepare_cached(
                "SELECT text FROM chunks JOIN files ON files.id = file WHERE store = ?1 AND public = ?2 ORDER BY chunks.id",
            )?
            .query_map((&*self.store, id), |row| row.get(0))?
            .collect()
        })
    }

    /// Gives a file other attributes.
    pub fn set_attributes(&self, id: &str, attributes: &Attributes) -> Result<FileInfo, SearchError> {
        self.file(id)?;
        self.inner.write(|db| {
            let attributes = serde_json::to_string(attributes).unwrap_or_default();
            db.execute(
                "UPDATE files SET attributes = ?3 WHERE store = ?1 AND public = ?2",
                (&*self.store, id, attributes),
            )?;
            schema::next_generation(db)
        })?;
        self.file(id)
    }

    /// Takes a file out of the store in view.
    pub fn remove_file(&self, id: &str) -> Result<(), SearchError> {
        self.file(id)?;
        self.inner.write(|db| {
            let path: Option<String> = db
                .prepare_cached(
                    "SELECT path FROM files WHERE store = ?1 AND public = ?2
                     UNION ALL SELECT path FROM refused WHERE store = ?1 AND public = ?2",
                )?
                .query_row((&*self.store, id), |row| row.get(0))
                .optional()?;
            if let Some(path) = path {
                forget(db, &self.store, &path)?;
            }
            schema::next_generation(db)
        })
    }

    /// Keeps a file that was sent, for stores to take.
    pub fn upload(&self, name: &str, purpose: &str, bytes: &[u8]) -> Result<Upload, SearchError> {
        let limit = self.inner.limits.file_bytes;
        if bytes.len() as u64 > limit {
            return Err(SearchError::Invalid(format!(
                "a file has {limit} bytes at most, not {}",
                bytes.len()
            )));
        }
        let id = self.fresh_id("file-")?;
        self.inner.write(|db| {
            let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
            db.execute(
                "INSERT INTO uploads VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (&id, name, purpose, now(), size, bytes),
            )
        })?;
        self.uploaded(&id)
    }

    /// All uploads, the newest first.
    pub fn uploads(&self) -> Result<Vec<Upload>, SearchError> {
        self.inner.read(|db| {
            db.prepare_cached(
                "SELECT id, name, purpose, created, size FROM uploads ORDER BY created DESC, rowid DESC",
            )?
            .query_map([], read_upload)?
            .collect()
        })
    }

    /// One upload.
    pub fn uploaded(&self, id: &str) -> Result<Upload, SearchError> {
        let found = self.inner.read(|db| {
            db.prepare_cached("SELECT id, name, purpose, created, size FROM uploads WHERE id = ?1")?
                .query_row([id], read_upload)
                .optional()
        })?;
        found.ok_or_else(|| SearchError::Missing { what: "file", id: id.to_owned() })
    }

    /// The bytes of an upload.
    pub fn upload_bytes(&self, id: &str) -> Result<Vec<u8>, SearchError> {
        let found = self.inner.read(|db| {
            db.prepare_cached("SELECT data FROM uploads WHERE id = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()
        })?;
        found.ok_or_else(|| SearchError::Missing { what: "file", id: id.to_owned() })
    }

    /// Forgets an upload, and takes it out of every store.
    pub fn delete_upload(&self, id: &str) -> Result<(), SearchError> {
        self.uploaded(id)?;
        self.inner.write(|db| {
            db.execute("DELETE FROM uploads WHERE id = ?1", [id])?;
            let stores: Vec<(String, String)> = db
                .prepare("SELECT store, path FROM files WHERE public = ?1")?
                .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            for (store, path) in stores {
                forget(db, &store, &path)?;
            }
            schema::next_generation(db)
        })
    }

    /// Puts an upload into the store in view. One that cannot be read is in it too, with the reason.
    pub fn attach(
        &self,
        upload: &str,
        attributes: Attributes,
        chunking: Option<Chunking>,
    ) -> Result<FileInfo, SearchError> {
        self.store()?;
        check(&attributes)?;
        let chunking = chunking.map(Chunking::checked).transpose().map_err(SearchError::Invalid)?;
        let kept = self.uploaded(upload)?;
        let bytes = self.upload_bytes(upload)?;
        let document = Document {
            public: Some(upload.to_owned()),
            attributes,
            chunking,
            ..Document::new(kept.name, bytes)
        };
        let mut batch = Batch::default();
        match prepare_document(&self.inner, &self.store, document) {
            Ok((prepared, _)) => batch.add(prepared),
            Err(refused) => batch.refuse(refused),
        }
        batch.write(&self.inner, &mut Analyser::default())?;
        self.inner
            .write(|db| db.execute("UPDATE stores SET active = ?2 WHERE id = ?1", (&*self.store, now())))?;
        self.file(upload)
    }

    /// Notes which files were put in together, and gives the note an id.
    #[cfg(feature = "rest")]
    pub(crate) fn note_batch(&self, files: &[String]) -> Result<String, SearchError> {
        let id = self.fresh_id("vsfb_")?;
        let files = serde_json::to_string(files).unwrap_or_default();
        self.inner.write(|db| {
            db.execute("INSERT INTO batches VALUES (?1, ?2, ?3, ?4)", (&id, &*self.store, now(), files))
        })?;
        Ok(id)
    }

    /// When a batch was made, and its files.
    #[cfg(feature = "rest")]
    pub(crate) fn batch(&self, id: &str) -> Result<(i64, Vec<String>), SearchError> {
        let found: Option<(i64, String)> = self.inner.read(|db| {
            db.prepare_cached("SELECT created, files FROM batches WHERE id = ?1 AND store = ?2")?
                .query_row((id, &*self.store), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })?;
        let (created, files) =
            found.ok_or_else(|| SearchError::Missing { what: "file batch", id: id.to_owned() })?;
        Ok((created, serde_json::from_str(&files).unwrap_or_default()))
    }

    /// Notes that the store in view was used.
    #[cfg(feature = "rest")]
    pub(crate) fn note_use(&self) -> Result<(), SearchError> {
        self.inner.write(|db| {
            db.execute("UPDATE stores SET active = ?2 WHERE id = ?1 AND active < ?2", (&*self.store, now()))
        })?;
        Ok(())
    }

    fn fresh_id(&self, start: &str) -> Result<String, SearchError> {
        let random: String =
            self.inner.read(|db| db.query_row("SELECT lower(hex(randomblob(12)))", [], |row| row.get(0)))?;
        Ok(format!("{start}{random}"))
    }
}

/// The limits of the hosted service, so that what works here works there.
pub(crate) fn check(attributes: &Attributes) -> Result<(), SearchError> {
    let problem = if attributes.len() > 16 {
        Some("a file has 16 attributes at most".to_owned())
    } else {
        attributes.iter().find_map(|(key, value)| match value {
            _ if key.chars().count() > 64 => {
                Some(format!("the name of the attribute `{key}` is longer than 64"))
            }
            crate::Attribute::Text(text) if text.chars().count() > 512 => {
                Some(format!("the attribute `{key}` is longer than 512"))
            }
            _ => None,
        })
    };
    problem.map_or(Ok(()), |problem| Err(SearchError::Invalid(problem)))
}

fn store(db: &Connection, id: &str) -> rusqlite::Result<Option<StoreInfo>> {
    db.prepare_cached(&format!("{STORES} WHERE id = ?1"))?.query_row([id], read_store).optional()
}

fn read_store(row: &Row<'_>) -> rusqlite::Result<StoreInfo> {
    let metadata: String = row.get(5)?;
    let count = |at: usize| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0));
    Ok(StoreInfo {
        id: row.get(0)?,
        name: row.get(1)?,
        description: row.get(2)?,
        created: row.get(3)?,
        active: row.get(4)?,
        metadata: serde_json::from_str(&metadata).unwrap_or_default(),
        expires_days: row.get(6)?,
        completed: count(7)?,
        failed: count(8)?,
        bytes: count(9)?,
    })
}

fn read_file(row: &Row<'_>) -> rusqlite::Result<FileInfo> {
    let attributes: String = row.get(4)?;
    let chunking: String = row.get(5)?;
    let why: Option<String> = row.get(6)?;
    Ok(FileInfo {
        id: row.get(0)?,
        name: row.get(1)?,
        created: row.get(2)?,
        bytes: u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0),
        attributes: serde_json::from_str(&attributes).unwrap_or_default(),
        chunking: serde_json::from_str(&chunking).ok(),
        status: why.map_or(FileStatus::Completed, FileStatus::Failed),
    })
}

fn read_upload(row: &Row<'_>) -> rusqlite::Result<Upload> {
    Ok(Upload {
        id: row.get(0)?,
        name: row.get(1)?,
        purpose: row.get(2)?,
        created: row.get(3)?,
        bytes: u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0),
    })
}
