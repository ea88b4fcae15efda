//! JSON of the responses: objects, lists and errors in the format of the hosted service.

use serde_json::{Value, json};

use super::RestResponse;
use crate::index::UploadSession;
use crate::{
    ChunkingOptions, IndexedFileStatus, SearchError, SearchHit, UploadedFile, VectorStoreFile,
    VectorStoreInfo,
};

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

pub(super) fn success_response(value: &Value) -> RestResponse {
    RestResponse { status: 200, content_type: "application/json", body: value.to_string().into_bytes() }
}

/// Creates an error response in the format of the hosted service.
pub(super) fn error_response(status: u16, message: &str) -> RestResponse {
    let kind = if status >= 500 { "server_error" } else { "invalid_request_error" };
    let error = json!({ "error": { "message": message, "type": kind, "param": null, "code": null } });
    RestResponse { status, content_type: "application/json", body: error.to_string().into_bytes() }
}

pub(super) fn response_for_error(error: &SearchError) -> RestResponse {
    match error {
        SearchError::NotFound { .. } => error_response(404, &error.to_string()),
        SearchError::InvalidArgument(_) => error_response(400, &error.to_string()),
        SearchError::ReadOnly { .. } => error_response(403, "the index is read-only"),
        // Errors of the index file concern the operator and are not disclosed to clients.
        _ => error_response(500, "the index cannot be used at the moment"),
    }
}

pub(super) fn expires_at(store: &VectorStoreInfo) -> Option<i64> {
    store
        .expires_after_days
        .map(|days| store.last_active_at.saturating_add(days.saturating_mul(SECONDS_PER_DAY)))
}

pub(super) fn store_json(store: &VectorStoreInfo, now: i64) -> Value {
    let expires_at = expires_at(store);
    let is_expired = expires_at.is_some_and(|at| at < now);
    json!({
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created_at,
        "name": store.name,
        "description": store.description,
        "usage_bytes": store.total_bytes,
        "file_counts": file_counts_json(store.completed_files, store.failed_files),
        "status": if is_expired { "expired" } else { "completed" },
        "expires_after": store.expires_after_days.map(|days| json!({ "anchor": "last_active_at", "days": days })),
        "expires_at": expires_at,
        "last_active_at": store.last_active_at,
        "metadata": store.metadata,
    })
}

pub(super) fn file_counts_json(completed: u64, failed: u64) -> Value {
    json!({ "in_progress": 0, "completed": completed, "failed": failed, "cancelled": 0, "total": completed + failed })
}

pub(super) fn file_json(file: &VectorStoreFile, store: &str) -> Value {
    let (status, error) = match &file.status {
        IndexedFileStatus::Completed => ("completed", Value::Null),
        IndexedFileStatus::Failed(why) => ("failed", json!({ "code": "invalid_file", "message": why })),
    };
    let chunking = file.chunking.unwrap_or_else(ChunkingOptions::hosted_default);
    json!({
        "id": file.id,
        "object": "vector_store.file",
        "created_at": file.created_at,
        "usage_bytes": file.size_bytes,
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

pub(super) fn batch_json(id: &str, store: &str, created: i64, files: &[VectorStoreFile], of: usize) -> Value {
    let failed = files.iter().filter(|file| file.status != IndexedFileStatus::Completed).count() as u64;
    // A file that was removed since counts as neither completed nor failed.
    let completed = files.len() as u64 - failed;
    let mut counts = file_counts_json(completed, failed);
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

pub(super) fn upload_json(upload: &UploadedFile) -> Value {
    json!({
        "id": upload.id,
        "object": "file",
        "bytes": upload.size_bytes,
        "created_at": upload.created_at,
        "filename": upload.name,
        "purpose": upload.purpose,
        "status": "processed",
        "expires_at": upload.expires_at,
        "status_details": null,
    })
}

pub(super) fn session_json(session: &UploadSession, file: Value) -> Value {
    json!({
        "id": session.id,
        "object": "upload",
        "bytes": session.size_bytes,
        "created_at": session.created_at,
        "expires_at": session.expires_at,
        "filename": session.name,
        "purpose": session.purpose,
        "status": session.status,
        "file": file,
    })
}

pub(super) fn hit_json(hit: &SearchHit) -> Value {
    json!({
        "file_id": hit.file_id,
        "filename": hit.file_name,
        "score": hit.score,
        "attributes": hit.attributes,
        "content": [{ "type": "text", "text": hit.text }],
    })
}

pub(super) fn deletion_json(id: &str, object: &str) -> Value {
    json!({ "id": id, "object": object, "deleted": true })
}
