//! Requests about uploaded files, whole and in parts.

use serde::Deserialize;
use serde_json::{Value, json};

use super::multipart::{FormField, parse_form};
use super::routes::{RouteResult, parse_body};
use super::{RestRequest, json as wire};
use crate::{Index, SearchError};

/// Maximum size of a part in bytes, as in the hosted service.
const MAX_PART_BYTES: usize = 64 << 20;
/// Permitted lifetimes of a file in seconds, as in the hosted service: an hour to thirty days.
const LIFETIME_SECONDS: std::ops::RangeInclusive<i64> = 3600..=2_592_000;

pub(super) fn upload_file(index: &Index, request: &RestRequest) -> RouteResult {
    let parts = form_fields(request, "`file` and `purpose`")?;
    let file = form_field(&parts, "file")?;
    let text = |name: &str| {
        let field = parts.iter().find(|part| part.name == name);
        field.map(|part| String::from_utf8_lossy(part.data).into_owned())
    };
    let seconds = match (text("expires_after[anchor]"), text("expires_after[seconds]")) {
        (None, None) => None,
        (anchor, seconds) => {
            let seconds = seconds.and_then(|seconds| seconds.trim().parse().ok());
            Some(check_lifetime(anchor.as_deref(), seconds)?)
        }
    };
    let name = file.filename.as_deref().unwrap_or("upload");
    let purpose = text("purpose").unwrap_or_else(|| "assistants".to_owned());
    let kept = index.upload_expiring_file(last_component(name), &purpose, file.data, seconds)?;
    Ok(wire::success_response(&wire::upload_json(&kept)))
}

#[derive(Deserialize)]
struct CreateUploadBody {
    filename: String,
    purpose: String,
    bytes: u64,
    #[serde(default)]
    expires_after: Option<FileLifetime>,
}

#[derive(Deserialize)]
struct FileLifetime {
    anchor: Option<String>,
    seconds: Option<i64>,
}

#[derive(Deserialize)]
struct CompleteUploadBody {
    part_ids: Vec<String>,
    #[serde(default)]
    md5: Option<String>,
}

pub(super) fn create_upload(index: &Index, request: &RestRequest) -> RouteResult {
    let asked: CreateUploadBody = parse_body(request)?;
    let seconds = match asked.expires_after {
        None => None,
        Some(lifetime) => Some(check_lifetime(lifetime.anchor.as_deref(), lifetime.seconds)?),
    };
    let name = last_component(&asked.filename);
    let session = index.create_upload_session(name, &asked.purpose, asked.bytes, seconds)?;
    Ok(wire::success_response(&wire::session_json(&session, Value::Null)))
}

pub(super) fn add_part(index: &Index, session: &str, request: &RestRequest) -> RouteResult {
    let parts = form_fields(request, "`data`")?;
    let data = form_field(&parts, "data")?.data;
    if data.len() > MAX_PART_BYTES {
        let why = format!("a part has {MAX_PART_BYTES} bytes at most, not {}", data.len());
        return Err(SearchError::InvalidArgument(why));
    }
    let (id, created_at) = index.add_upload_part(session, data)?;
    let part = json!({ "id": id, "object": "upload.part", "created_at": created_at, "upload_id": session });
    Ok(wire::success_response(&part))
}

pub(super) fn complete_upload(index: &Index, session: &str, request: &RestRequest) -> RouteResult {
    let asked: CompleteUploadBody = parse_body(request)?;
    let (session, file) = index.complete_upload(session, &asked.part_ids, asked.md5.as_deref())?;
    Ok(wire::success_response(&wire::session_json(&session, wire::upload_json(&file))))
}

pub(super) fn cancel_upload(index: &Index, session: &str) -> RouteResult {
    Ok(wire::success_response(&wire::session_json(&index.cancel_upload(session)?, Value::Null)))
}

fn check_lifetime(anchor: Option<&str>, seconds: Option<i64>) -> Result<i64, SearchError> {
    if anchor != Some("created_at") {
        return Err(SearchError::InvalidArgument("`expires_after.anchor` is `created_at`".to_owned()));
    }
    seconds.filter(|seconds| LIFETIME_SECONDS.contains(seconds)).ok_or_else(|| {
        let (least, most) = (LIFETIME_SECONDS.start(), LIFETIME_SECONDS.end());
        SearchError::InvalidArgument(format!("`expires_after.seconds` is {least} to {most}"))
    })
}

fn form_fields<'a>(request: &'a RestRequest, expected: &str) -> Result<Vec<FormField<'a>>, SearchError> {
    parse_form(&request.content_type, &request.body).ok_or_else(|| {
        SearchError::InvalidArgument(format!("a form with the fields {expected} was expected"))
    })
}

fn form_field<'a, 'b>(fields: &'b [FormField<'a>], name: &str) -> Result<&'b FormField<'a>, SearchError> {
    let found = fields.iter().find(|field| field.name == name);
    found.ok_or_else(|| SearchError::InvalidArgument(format!("the form has no field `{name}`")))
}

/// Returns the last component of a path, because a file name must not be a path.
fn last_component(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}
