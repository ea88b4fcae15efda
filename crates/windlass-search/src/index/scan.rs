//! Scanning of files: comparison with the stored state, reading, extraction and splitting.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row};
use sha2::{Digest, Sha256};

use super::claim::{ClaimOutcome, ClaimOwner};
use super::walk::{FoundFile, path_to_text};
use super::write::{PreparedFile, RejectedFile};
use super::{IndexDocument, IndexInner, schema};
use crate::chunk::{ChunkingOptions, split_into_chunks};
use crate::extract::{ExtractionBudget, extract_text};
use crate::{DocumentFormat, FileAttributes, SearchError};

/// Scans a group of files. Those that must be read are claimed first; those that other processes have claimed are
/// returned.
pub(super) fn scan_group(
    inner: &IndexInner,
    store: &str,
    group: Vec<FoundFile>,
    attributes: &FileAttributes,
    known: &HashMap<String, KnownFile>,
    owner: &ClaimOwner,
    mut done: impl FnMut(FoundFile, ScanOutcome) -> bool,
) -> Result<Vec<FoundFile>, SearchError> {
    let mut wanted = Vec::new();
    for entry in group {
        match compare_known(inner, &entry, attributes, known.get(&path_to_text(&entry.path))) {
            Some(outcome) => {
                if !done(entry, outcome) {
                    return Ok(Vec::new());
                }
            }
            None => wanted.push(entry),
        }
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let paths: Vec<&Path> = wanted.iter().map(|entry| entry.path.as_path()).collect();
    let outcomes = owner.claim(inner, store, &paths)?;
    // Another process may have written a file since the known files were loaded.
    let fresh = inner.read_transaction(|db| {
        paths
            .iter()
            .map(|path| load_known_file(db, store, &path_to_text(path)))
            .collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let mut others = Vec::new();
    for ((entry, outcome), known) in wanted.into_iter().zip(outcomes).zip(fresh) {
        if outcome == ClaimOutcome::Elsewhere {
            others.push(entry);
            continue;
        }
        let came = compare_known(inner, &entry, attributes, known.as_ref())
            .unwrap_or_else(|| scan_file(inner, store, &entry, attributes, known.as_ref()));
        if !done(entry, came) {
            return Ok(Vec::new());
        }
    }
    Ok(others)
}

/// The stored state of a file, against which a scan compares it.
pub(super) struct KnownFile {
    size: u64,
    modified_at: i64,
    hash: Vec<u8>,
    attributes: FileAttributes,
    chunking: Option<ChunkingOptions>,
    /// Reason of the rejection; absent if the file is indexed.
    pub(super) rejection: Option<String>,
}

/// The outcome of scanning one file.
pub(super) enum ScanOutcome {
    Unchanged,
    /// The content is the same, but the modification time or the attributes differ.
    MetadataChanged([u8; 32]),
    StillRejected(String),
    Rejected(RejectedFile),
    ContentRead(Box<PreparedFile>, Vec<String>),
}

/// Returns the outcome for a file that has not changed since it was indexed or rejected; `None` if it must be read.
fn compare_known(
    inner: &IndexInner,
    entry: &FoundFile,
    attributes: &FileAttributes,
    known: Option<&KnownFile>,
) -> Option<ScanOutcome> {
    let known = known?;
    if known.size != entry.size || known.modified_at != entry.modified_at {
        return None;
    }
    match &known.rejection {
        Some(why) => Some(ScanOutcome::StillRejected(why.clone())),
        None if known.attributes == *attributes && known.chunking == Some(inner.chunking) => {
            Some(ScanOutcome::Unchanged)
        }
        None => None,
    }
}

fn scan_file(
    inner: &IndexInner,
    store: &str,
    entry: &FoundFile,
    attributes: &FileAttributes,
    known: Option<&KnownFile>,
) -> ScanOutcome {
    let path = path_to_text(&entry.path);
    let refuse_at = |changed: i64, why: String| {
        let public = super::derive_file_id("file", store, &path);
        let (store, path) = (store.to_owned(), path.clone());
        ScanOutcome::Rejected(RejectedFile {
            store,
            path,
            file_id: public,
            size: entry.size,
            modified_at: changed,
            reason: why,
        })
    };
    // A failure that the content did not cause may not recur, so the stored time forces another attempt.
    let refuse_for_now = |why: String| refuse_at(-1, why);
    let limit = inner.limits.max_file_bytes;
    if entry.size > limit {
        let (size, limit) = (entry.size >> 20, limit >> 20);
        return refuse_for_now(format!(
            "it has {size} MB, and files of up to {limit} MB are read; hint: `IndexingLimits::max_file_bytes`"
        ));
    }
    let bytes = match read_file(&entry.path, limit) {
        Ok(bytes) => bytes,
        Err(why) => return refuse_for_now(why),
    };
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    if known.is_some_and(|known| known.hash == hash && known.chunking == Some(inner.chunking)) {
        return ScanOutcome::MetadataChanged(hash);
    }
    let name =
        entry.path.file_name().map_or_else(|| path.clone(), |name| name.to_string_lossy().into_owned());
    let kind = DocumentFormat::from_path(&entry.path).or_else(|| DocumentFormat::from_bytes(&bytes));
    match extract_chunks(inner, kind, &bytes, inner.chunking) {
        Ok((kind, chunks, notes)) => {
            let prepared = PreparedFile {
                store: store.to_owned(),
                path,
                name,
                file_id: None,
                format: kind,
                size: entry.size,
                modified_at: entry.modified_at,
                hash,
                attributes: attributes.clone(),
                chunking: inner.chunking,
                chunks,
            };
            ScanOutcome::ContentRead(Box::new(prepared), notes)
        }
        Err(why) => refuse_at(entry.modified_at, why),
    }
}

/// Reads a file, at most `limit` bytes of it, because the file may grow while it is read.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("it cannot be read: {error}"))?;
    if bytes.len() as u64 > limit { Err("it grew while it was read".to_owned()) } else { Ok(bytes) }
}

/// A file's format, its chunks with their locations, and the warnings of the extraction.
type ChunkedFile = (DocumentFormat, Vec<(crate::ChunkLocation, String)>, Vec<String>);

/// Extracts the text of a file and splits it into chunks. A panic of the extractor becomes a problem of that file.
fn extract_chunks(
    inner: &IndexInner,
    kind: Option<DocumentFormat>,
    bytes: &[u8],
    chunking: ChunkingOptions,
) -> Result<ChunkedFile, String> {
    let kind = kind.ok_or("it is not text and not in a known format")?;
    let budget = ExtractionBudget {
        text_bytes: inner.limits.max_text_bytes,
        inflated_bytes: inner.limits.max_inflated_bytes,
        steps: inner.limits.max_extraction_steps,
    };
    let work = AssertUnwindSafe(|| {
        let extracted = extract_text(kind, bytes, budget)?;
        let pieces = split_into_chunks(&extracted, chunking);
        let pieces = pieces.into_iter().map(|chunk| (chunk.location, chunk.text.to_owned())).collect();
        Ok((kind, pieces, extracted.warnings))
    });
    catch_unwind(work).unwrap_or_else(|_| Err("the text extractor panicked, which is a bug".to_owned()))
}

/// Extracts and splits a document, with the warnings of the extraction; returns the rejection if it cannot be
/// read.
pub(super) fn prepare_document(
    inner: &IndexInner,
    store: &str,
    document: IndexDocument,
) -> Result<(PreparedFile, Vec<String>), RejectedFile> {
    let IndexDocument { name, file_id: public, format: kind, content: bytes, attributes, chunking } =
        document;
    let size = bytes.len() as u64;
    let path = public.clone().unwrap_or_else(|| name.clone());
    let chunking = chunking.unwrap_or(inner.chunking);
    let kind = kind
        .or_else(|| DocumentFormat::from_path(Path::new(&name)))
        .or_else(|| DocumentFormat::from_bytes(&bytes));
    let came = if size > inner.limits.max_file_bytes {
        Err(format!("it has {size} bytes, and {} are the most", inner.limits.max_file_bytes))
    } else {
        extract_chunks(inner, kind, &bytes, chunking)
    };
    match came {
        Ok((kind, chunks, notes)) => {
            let hash = Sha256::digest(&bytes).into();
            let store = store.to_owned();
            let prepared = PreparedFile {
                store,
                path,
                name,
                file_id: public,
                format: kind,
                size,
                modified_at: 0,
                hash,
                attributes,
                chunking,
                chunks,
            };
            Ok((prepared, notes))
        }
        Err(why) => {
            let public = public.unwrap_or_else(|| super::derive_file_id("file", store, &path));
            Err(RejectedFile {
                store: store.to_owned(),
                path,
                file_id: public,
                size,
                modified_at: 0,
                reason: why,
            })
        }
    }
}

/// Updates the modification time and attributes of a file whose content has not changed.
pub(super) fn update_metadata(
    inner: &IndexInner,
    store: &str,
    entry: &FoundFile,
    attributes: &FileAttributes,
    hash: &[u8; 32],
) -> Result<(), SearchError> {
    let attributes = serde_json::to_string(attributes).unwrap_or_default();
    inner.write_transaction(|db| {
        db.prepare_cached(
            "UPDATE files SET modified = ?3, attributes = ?4 WHERE store = ?1 AND path = ?2 AND hash = ?5",
        )?
        .execute((
            store,
            path_to_text(&entry.path),
            entry.modified_at,
            &attributes,
            hash.as_slice(),
        ))?;
        schema::bump_generation(db)
    })
}

const SELECT_KNOWN_FILES: &str =
    "SELECT path, size, modified, hash, attributes, chunking, NULL FROM files WHERE store = ?1";
const SELECT_REJECTED_FILES: &str =
    "SELECT path, size, modified, x'', '{}', '', reason FROM rejected_files WHERE store = ?1";

pub(super) fn load_known_files(db: &Connection, store: &str) -> rusqlite::Result<HashMap<String, KnownFile>> {
    let mut known = HashMap::new();
    for select in [SELECT_KNOWN_FILES, SELECT_REJECTED_FILES] {
        let mut files = db.prepare(select)?;
        let mut rows = files.query([store])?;
        while let Some(row) = rows.next()? {
            known.insert(row.get(0)?, known_file_from_row(row)?);
        }
    }
    Ok(known)
}

fn load_known_file(db: &Connection, store: &str, path: &str) -> rusqlite::Result<Option<KnownFile>> {
    for select in [SELECT_KNOWN_FILES, SELECT_REJECTED_FILES] {
        let mut one = db.prepare_cached(&format!("{select} AND path = ?2"))?;
        if let Some(known) = one.query_row((store, path), known_file_from_row).optional()? {
            return Ok(Some(known));
        }
    }
    Ok(None)
}

fn known_file_from_row(row: &Row<'_>) -> rusqlite::Result<KnownFile> {
    let attributes: String = row.get(4)?;
    let chunking: String = row.get(5)?;
    Ok(KnownFile {
        size: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
        modified_at: row.get(2)?,
        hash: row.get(3)?,
        attributes: serde_json::from_str(&attributes).unwrap_or_default(),
        chunking: serde_json::from_str(&chunking).ok(),
        rejection: row.get(6)?,
    })
}
