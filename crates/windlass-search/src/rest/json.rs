//! What clients read: objects, lists and errors in the hosted service's words.

use serde_json::{Value, json};

use super::Response;
use crate::{Chunking, FileInfo, FileStatus, Hit, SearchError, StoreInfo, Upload};

const DAY: i64 = 24 * 60 * 60;

pub(super) fn success(value: &Value) -> Response {
    Response { status: 200, content_type: "application/json", body: value.to_string().into_bytes() }
}

pub(super) fn failure(status: u16, message: &str) -> Response {
    let kind = if status >= 500 { "server_error" } else { "invalid_request_error" };
    let error = json!({ "error": { "message": message, "type": kind, "param": null, "code": null } });
    Response { status, content_type: "application/json", body: error.to_string().into_bytes() }
}

pub(super) fn of_error(error: &SearchError) -> Response {
    match error {
        SearchError::Missing { .. } => failure(404, &error.to_string()),
        SearchError::Invalid(_) => failure(400, &error.to_string()),
        // What is wrong with the file on this machine is for its operator.
        _ => failure(500, "the index cannot be used at the moment"),
    }
}

pub(super) fn expires_at(store: &StoreInfo) -> Option<i64> {
    store.expires_days.map(|days| store.active.saturating_add(days.saturating_mul(DAY)))
}

pub(super) fn store(store: &StoreInfo, now: i64) -> Value {
    let expires_at = expires_at(store);
    let is_expired = expires_at.is_some_and(|at| at < now);
    json!({
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created,
        "name": store.name,
        "description": store.description,
        "usage_bytes": store.bytes,
        "file_counts": counts(store.completed, store.failed),
        "status": if is_expired { "expired" } else { "completed" },
        "expires_after": store.expires_days.map(|days| json!({ "anchor": "last_active_at", "days": days })),
        "expires_at": expires_at,
        "last_active_at": store.active,
        "metadata": store.metadata,
    })
}

pub(super) fn counts(completed: u64, failed: u64) -> Value {
    json!({ "in_progress": 0, "completed": completed, "failed": failed, "cancelled": 0, "total": completed + failed })
}

pub(super) fn file(file: &FileInfo, store: &str) -> Value {
    let (status, error) = match &file.status {
        FileStatus::Completed => ("completed", Value::Null),
        FileStatus::Failed(why) => ("failed", json!({ "code": "invalid_file", "message": why })),
    };
    let chunking = file.chunking.unwrap_or_else(Chunking::hosted);
    json!({
        "id": file.id,
        "object": "vector_store.file",
        "created_at": file.created,
        "usage_bytes": file.bytes,
        "vector_store_id": store,
        "status": status,
        "last_error": error,
        "attributes": file.attributes,
        "chunking_strategy": { "type": "static", "static": {
            "max_chunk_size_tokens": chunking.max_tokens,
            "chunk_overlap_tokens": chunking.overlap_tokens,
        }},
    })
}

pub(super) fn batch(id: &str, store: &str, created: i64, files: &[FileInfo], of: usize) -> Value {
    let failed = files.iter().filter(|file| file.status != FileStatus::Completed).count() as u64;
    // What was taken out since counts as neither.
    let completed = files.len() as u64 - failed;
    let mut counts = counts(completed, failed);
    counts["total"] = json!(of);
    json!({
        "id": id,
        "object": "vector_store.files_batch",
        "created_at": created,
        "vector_store_id": store,
        "status": "completed",
        "file_counts": counts,
    })
}

pub(super) fn upload(upload: &Upload) -> Value {
    json!({
        "id": upload.id,
        "object": "file",
        "bytes": upload.bytes,
        "created_at": upload.created,
        "filename": upload.name,
        "purpose": upload.purpose,
        "status": "processed",
        "expires_at": null,
        "status_details": null,
    })
}

pub(super) fn hit(hit: &Hit) -> Value {
    json!({
        "file_id": hit.file,
        "filename": hit.name,
        "score": hit.score,
        "attributes": hit.attributes,
        "content": [{ "type": "text", "text": hit.text }],
    })
}

pub(super) fn deleted(id: &str, object: &str) -> Value {
    json!({ "id": id, "object": object, "deleted": true })
}
