//! Writing of a batch of files: its rows and one segment, in one transaction.
//!
//! Invariant: after a crash a batch is present completely or not at all.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};
use sha2::{Digest, Sha256};

use super::codec::{self, PostingList};
use super::{IndexInner, merge, schema};
use crate::chunk::{ChunkLocation, ChunkingOptions};
use crate::embed::{EmbeddingPurpose, QuantisedVector, quantise};
use crate::text::{TermKind, TextAnalyser, compose_text};
use crate::{DocumentFormat, EmbedError, Embedder, FileAttributes, SearchError};

/// Number of chunks at which a batch is written if the built-in word vectors, or none, are used.
const MAX_BATCH_CHUNKS: usize = 4096;
/// Number of chunks at which a batch is written if an embedder is used that may be slow or fail.
const MAX_SLOW_BATCH_CHUNKS: usize = 256;
/// Number of bytes of text at which a batch is written.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Number of word positions between the text of a chunk, its heading and its file name, which no phrase spans.
const FIELD_GAP: u32 = 16;
/// Number of seconds after which the vector of a text that was never written is deleted.
const PENDING_VECTOR_SECONDS: i64 = 30 * 24 * 60 * 60;

/// A file whose text was extracted and split into chunks.
pub(super) struct PreparedFile {
    pub(super) store: String,
    /// Path of the file, or the name of the document; unique within the store.
    pub(super) path: String,
    pub(super) name: String,
    /// Client-visible id; derived from the path if absent.
    pub(super) file_id: Option<String>,
    pub(super) format: DocumentFormat,
    pub(super) size: u64,
    pub(super) modified_at: i64,
    pub(super) hash: [u8; 32],
    pub(super) attributes: FileAttributes,
    pub(super) chunking: ChunkingOptions,
    pub(super) chunks: Vec<(ChunkLocation, String)>,
}

/// A file that could not be read, stored so that it is not read again until it changes.
pub(super) struct RejectedFile {
    pub(super) store: String,
    pub(super) path: String,
    pub(super) file_id: String,
    pub(super) size: u64,
    pub(super) modified_at: i64,
    pub(super) reason: String,
}

/// Files to write in one transaction.
pub(super) struct WriteBatch {
    files: Vec<PreparedFile>,
    rejected: Vec<RejectedFile>,
    chunk_count: usize,
    text_bytes: usize,
    max_chunks: usize,
}

impl WriteBatch {
    pub(super) fn new(inner: &IndexInner) -> Self {
        let max_chunks = if inner.has_custom_embedder { MAX_SLOW_BATCH_CHUNKS } else { MAX_BATCH_CHUNKS };
        Self { files: Vec::new(), rejected: Vec::new(), chunk_count: 0, text_bytes: 0, max_chunks }
    }

    pub(super) fn add_file(&mut self, file: PreparedFile) {
        self.chunk_count += file.chunks.len();
        self.text_bytes += file.chunks.iter().map(|(_, text)| text.len()).sum::<usize>();
        self.files.push(file);
    }

    pub(super) fn add_rejected(&mut self, refused: RejectedFile) {
        self.rejected.push(refused);
    }

    pub(super) fn is_full(&self) -> bool {
        self.chunk_count >= self.max_chunks
            || self.text_bytes >= MAX_BATCH_BYTES
            || self.rejected.len() >= MAX_BATCH_CHUNKS
    }

    /// Embeds and writes the files, merges segments if due, and empties the batch.
    pub(super) fn write(
        &mut self,
        inner: &IndexInner,
        analyser: &mut TextAnalyser,
    ) -> Result<(), SearchError> {
        let batch = std::mem::replace(self, Self::new(inner));
        if batch.files.is_empty() && batch.rejected.is_empty() {
            return Ok(());
        }
        let built = InvertedSegment::build(&batch.files, analyser);
        let vectors = embed_chunks(inner, &batch.files)?;
        inner.write_transaction(|db| {
            insert_batch(db, &batch, &built, vectors.as_ref())?;
            schema::bump_generation(db)
        })?;
        // Each merge is its own transaction, so that other processes can write in between.
        while inner.write_transaction(merge::merge_step)? {}
        Ok(())
    }
}

/// The inverted index of a batch: the posting list of each term, and the length of each chunk.
struct InvertedSegment {
    chunk_lengths: Vec<u32>,
    postings: Vec<(String, PostingList)>,
}

impl InvertedSegment {
    /// Analyses the chunks and builds their posting lists.
    fn build(files: &[PreparedFile], analyser: &mut TextAnalyser) -> Self {
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut terms: Vec<(String, PostingList)> = Vec::new();
        let mut lengths = Vec::new();
        // Terms of a chunk with their word positions.
        let mut seen: Vec<(usize, u32)> = Vec::new();
        for file in files {
            for (place, text) in &file.chunks {
                let (mut length, mut position) = (0, 0u32);
                seen.clear();
                let mut analyse = |text: &str| {
                    analyser.analyse(text, &mut |term, kind| {
                        let at = match known.get(term) {
                            Some(at) => *at,
                            None => {
                                known.insert(term.to_owned(), terms.len());
                                terms.push((term.to_owned(), PostingList::default()));
                                terms.len() - 1
                            }
                        };
                        seen.push((at, position));
                        position += u32::from(kind.has_own_position());
                        length += u32::from(matches!(kind, TermKind::Word | TermKind::Identifier));
                    });
                    position += FIELD_GAP;
                };
                analyse(text);
                analyse(&place.heading);
                // A file name without letters has no useful terms.
                if file.name.contains(char::is_alphabetic) {
                    analyse(&file.name);
                }
                seen.sort_unstable();
                let at = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
                for same in seen.chunk_by(|left, right| left.0 == right.0) {
                    terms[same[0].0].1.push(at, same.iter().map(|(_, position)| *position));
                }
                lengths.push(length);
            }
        }
        // The table is ordered by term, so sorted inserts write each page once.
        terms.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        Self { chunk_lengths: lengths, postings: terms }
    }
}

/// The vectors of a batch in the format of the `vectors` table.
struct BatchVectors {
    data: Vec<u8>,
    /// Digests of the texts whose vectors are in `pending_vectors`.
    pending: Vec<[u8; 32]>,
}

/// Embeds all chunks, with their headings; `None` without an embedder.
///
/// The vectors of a custom embedder are committed after each of its calls, so that neither a killed process nor a
/// provider that fails later loses them: the next attempt finds them by the digest of their text.
fn embed_chunks(inner: &IndexInner, files: &[PreparedFile]) -> Result<Option<BatchVectors>, SearchError> {
    let Some(embedder) = inner.embedder.as_deref() else { return Ok(None) };
    let texts: Vec<String> = files
        .iter()
        .flat_map(|file| &file.chunks)
        .map(|(place, text)| {
            let text = compose_text(text);
            if place.heading.is_empty() { text.into_owned() } else { format!("{}\n{text}", place.heading) }
        })
        .collect();
    let digests: Vec<[u8; 32]> = if inner.has_custom_embedder {
        texts.iter().map(|text| Sha256::digest(text).into()).collect()
    } else {
        Vec::new()
    };
    let mut found = load_pending(inner, embedder, &digests)?;
    found.resize(texts.len(), None);
    let missing: Vec<usize> = (0..texts.len()).filter(|at| found[*at].is_none()).collect();
    for some in missing.chunks(embedder.batch_size().max(1)) {
        let group: Vec<&str> = some.iter().map(|at| texts[*at].as_str()).collect();
        let vectors = embed_group(embedder, &group)?;
        if inner.has_custom_embedder {
            save_pending(inner, some.iter().map(|at| &digests[*at]).zip(&vectors))?;
        }
        for (at, vector) in some.iter().zip(vectors) {
            found[*at] = Some(vector);
        }
    }
    let (mut scales, mut values) = (Vec::new(), Vec::new());
    for vector in found.iter().flatten() {
        scales.extend(vector.scale.to_le_bytes());
        values.extend(vector.values.iter().map(|value| value.cast_unsigned()));
    }
    scales.append(&mut values);
    Ok(Some(BatchVectors { data: scales, pending: digests }))
}

/// Embeds and quantises the texts of one call.
fn embed_group(embedder: &dyn Embedder, texts: &[&str]) -> Result<Vec<QuantisedVector>, EmbedError> {
    let vectors = embedder.embed(texts, EmbeddingPurpose::Document)?;
    let fits =
        vectors.len() == texts.len() && vectors.iter().all(|vector| vector.len() == embedder.dimensions());
    if !fits {
        let why =
            format!("it did not return {} vectors of {} dimensions", texts.len(), embedder.dimensions());
        return Err(EmbedError::new(embedder.name(), why));
    }
    Ok(vectors.iter().map(|vector| quantise(vector)).collect())
}

/// Loads the vectors that an earlier attempt has computed.
fn load_pending(
    inner: &IndexInner,
    embedder: &dyn Embedder,
    digests: &[[u8; 32]],
) -> Result<Vec<Option<QuantisedVector>>, SearchError> {
    if digests.is_empty() {
        return Ok(Vec::new());
    }
    inner.read_transaction(|db| {
        let mut select = db.prepare_cached("SELECT data FROM pending_vectors WHERE digest = ?1")?;
        let mut found = Vec::with_capacity(digests.len());
        for digest in digests {
            let parse = |row: &rusqlite::Row<'_>| {
                let data = row.get_ref(0)?.as_blob()?;
                let Some((scale, values)) = data.split_first_chunk::<4>() else { return Ok(None) };
                let values: Vec<i8> = values.iter().map(|byte| byte.cast_signed()).collect();
                let vector = QuantisedVector { scale: f32::from_le_bytes(*scale), values };
                Ok(Some(vector).filter(|vector| vector.values.len() == embedder.dimensions()))
            };
            found.push(select.query_row([digest.as_slice()], parse).optional()?.flatten());
        }
        Ok(found)
    })
}

fn save_pending<'a>(
    inner: &IndexInner,
    vectors: impl Iterator<Item = (&'a [u8; 32], &'a QuantisedVector)>,
) -> Result<(), SearchError> {
    let now = super::unix_now();
    inner.write_transaction(|db| {
        let mut insert = db.prepare_cached("INSERT OR REPLACE INTO pending_vectors VALUES (?1, ?2, ?3)")?;
        for (digest, vector) in vectors {
            let mut data = vector.scale.to_le_bytes().to_vec();
            data.extend(vector.values.iter().map(|value| value.cast_unsigned()));
            insert.execute((digest.as_slice(), data, now))?;
        }
        db.prepare_cached("DELETE FROM pending_vectors WHERE created < ?1")?
            .execute([now - PENDING_VECTOR_SECONDS])?;
        Ok(())
    })
}

fn insert_batch(
    db: &Connection,
    batch: &WriteBatch,
    built: &InvertedSegment,
    vectors: Option<&BatchVectors>,
) -> rusqlite::Result<()> {
    let now = super::unix_now();
    for refused in &batch.rejected {
        delete_file(db, &refused.store, &refused.path)?;
        db.prepare_cached("INSERT OR REPLACE INTO rejected_files VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
            .execute((
                &refused.store,
                &refused.path,
                &refused.file_id,
                i64::try_from(refused.size).unwrap_or(i64::MAX),
                refused.modified_at,
                &refused.reason,
                now,
            ))?;
    }
    if batch.files.is_empty() {
        return Ok(());
    }
    let first = u32::try_from(schema::read_meta(db, "next_chunk")?).unwrap_or(u32::MAX);
    let mut next = first;
    let mut owners = Vec::with_capacity(built.chunk_lengths.len());
    for file in &batch.files {
        let id = insert_file(db, file, now)?;
        let mut statement = db.prepare_cached("INSERT INTO chunks VALUES (?1, ?2, ?3, ?4)")?;
        for (place, text) in &file.chunks {
            let place = serde_json::to_string(place).unwrap_or_default();
            statement.execute((next, id, place, text))?;
            owners.push(id);
            next = next.checked_add(1).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, i64::from(next)))?;
        }
    }
    schema::write_meta(db, "next_chunk", i64::from(next))?;
    let words: u64 = built.chunk_lengths.iter().map(|length| u64::from(*length)).sum();
    db.prepare_cached(
        "INSERT INTO segments (count, words, ids, lengths, files) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute((
        i64::from(next - first),
        i64::try_from(words).unwrap_or(i64::MAX),
        codec::encode_u32s(first..next),
        codec::encode_u32s(built.chunk_lengths.iter().copied()),
        codec::encode_u32s(owners),
    ))?;
    let segment = db.last_insert_rowid();
    if let Some(vectors) = vectors {
        db.prepare_cached("INSERT INTO vectors VALUES (?1, ?2)")?.execute((segment, &vectors.data))?;
        let mut delete = db.prepare_cached("DELETE FROM pending_vectors WHERE digest = ?1")?;
        for digest in &vectors.pending {
            delete.execute([digest.as_slice()])?;
        }
    }
    let mut postings = db.prepare_cached("INSERT INTO postings VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let mut terms = db.prepare_cached("INSERT OR IGNORE INTO terms VALUES (?1)")?;
    for (term, list) in &built.postings {
        postings.execute((segment, term, list.chunk_count, &list.encoded, &list.word_positions))?;
        terms.execute([term])?;
    }
    Ok(())
}

fn insert_file(db: &Connection, file: &PreparedFile, now: i64) -> rusqlite::Result<u32> {
    // A changed file keeps its client-visible id.
    let public: Option<String> = db
        .prepare_cached("SELECT file_id FROM files WHERE store = ?1 AND path = ?2")?
        .query_row((&file.store, &file.path), |row| row.get(0))
        .optional()?;
    let public = file
        .file_id
        .clone()
        .or(public)
        .unwrap_or_else(|| super::derive_file_id("file", &file.store, &file.path));
    delete_file(db, &file.store, &file.path)?;
    db.prepare_cached(
        "INSERT INTO files (file_id, store, path, name, format, size, modified, hash, attributes, chunking, created, chunks)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute((
        public,
        &file.store,
        &file.path,
        &file.name,
        file.format.name(),
        i64::try_from(file.size).unwrap_or(i64::MAX),
        file.modified_at,
        file.hash.as_slice(),
        serde_json::to_string(&file.attributes).unwrap_or_default(),
        serde_json::to_string(&file.chunking).unwrap_or_default(),
        now,
        i64::try_from(file.chunks.len()).unwrap_or(i64::MAX),
    ))?;
    u32::try_from(db.last_insert_rowid())
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, db.last_insert_rowid()))
}

/// Deletes a file, its chunks and its rejection; returns true if the file was indexed.
pub(super) fn delete_file(db: &Connection, store: &str, path: &str) -> rusqlite::Result<bool> {
    db.prepare_cached("DELETE FROM rejected_files WHERE store = ?1 AND path = ?2")?.execute((store, path))?;
    db.prepare_cached("DELETE FROM claims WHERE store = ?1 AND path = ?2")?.execute((store, path))?;
    let id: Option<i64> = db
        .prepare_cached("SELECT id FROM files WHERE store = ?1 AND path = ?2")?
        .query_row((store, path), |row| row.get(0))
        .optional()?;
    let Some(id) = id else { return Ok(false) };
    db.prepare_cached("INSERT OR IGNORE INTO deleted_chunks SELECT id FROM chunks WHERE file = ?1")?
        .execute([id])?;
    db.prepare_cached("DELETE FROM chunks WHERE file = ?1")?.execute([id])?;
    db.prepare_cached("DELETE FROM files WHERE id = ?1")?.execute([id])?;
    Ok(true)
}
