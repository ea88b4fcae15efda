//! Routing of requests to their handlers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::paging::{PagedList, query_parameter};
use super::{RestRequest, RestResponse, json as wire, uploads};
use crate::index::{STORE_LIST, UPLOAD_LIST, validate_attributes};
use crate::{
    AttributeFilter, ChunkingOptions, FileAttributes, Index, NewVectorStore, RankingOptions, SearchError,
    VectorStoreFile,
};

/// Maximum number of files in a batch, as in the hosted service.
const MAX_BATCH_FILES: usize = 2000;

/// The result of a route; an error becomes an error response.
pub(super) type RouteResult = Result<RestResponse, SearchError>;

pub(super) fn route_request(index: &Index, request: &RestRequest) -> RestResponse {
    let path = request.path.strip_prefix("/v1").unwrap_or(&request.path);
    let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if let Err(error) = index.delete_expired_uploads() {
        return wire::response_for_error(&error);
    }
    let answer = match (request.method.as_str(), path.as_slice()) {
        ("POST", ["files"]) => uploads::upload_file(index, request),
        ("POST", ["uploads"]) => uploads::create_upload(index, request),
        ("POST", ["uploads", id, "parts"]) => uploads::add_part(index, id, request),
        ("POST", ["uploads", id, "complete"]) => uploads::complete_upload(index, id, request),
        ("POST", ["uploads", id, "cancel"]) => uploads::cancel_upload(index, id),
        ("GET", ["files"]) => list_uploads(index, request),
        ("GET", ["files", id]) => {
            index.upload_info(id).map(|one| wire::success_response(&wire::upload_json(&one)))
        }
        ("GET", ["files", id, "content"]) => index.upload_bytes(id).map(|body| RestResponse {
            status: 200,
            content_type: "application/octet-stream",
            body,
        }),
        ("DELETE", ["files", id]) => {
            index.delete_upload(id).map(|()| wire::success_response(&wire::deletion_json(id, "file")))
        }
        ("GET", ["vector_stores"]) => index.list_stores().and_then(|all| {
            let now = crate::index::unix_now();
            let all = all.iter().map(|store| wire::store_json(store, now)).collect();
            PagedList::new(STORE_LIST).respond(index, request, all)
        }),
        ("POST", ["vector_stores"]) => create_store(index, request),
        (method, ["vector_stores", id, rest @ ..]) => {
            route_store_request(&index.in_store(id), id, method, rest, request)
        }
        _ => Ok(wire::error_response(404, &format!("there is no `{} {}`", request.method, request.path))),
    };
    answer.unwrap_or_else(|error| wire::response_for_error(&error))
}

/// Routes a request under `/vector_stores/{id}`.
fn route_store_request(
    index: &Index,
    store: &str,
    method: &str,
    rest: &[&str],
    request: &RestRequest,
) -> RouteResult {
    index.store_info()?;
    match (method, rest) {
        ("GET", []) => store_response(index),
        ("POST", []) => update_store(index, request),
        ("DELETE", []) => {
            index.delete_store()?;
            Ok(wire::success_response(&wire::deletion_json(store, "vector_store.deleted")))
        }
        ("POST", ["search"]) => search_store(index, request),
        ("GET", ["files"]) => {
            index.store_info()?;
            list_files(index, store, request, &index.list_files()?)
        }
        ("POST", ["files"]) => {
            let asked: AttachFileBody = parse_body(request)?;
            check_not_expired(index)?;
            let file = Attachment::check(index, asked)?.attach(index)?;
            Ok(wire::success_response(&wire::file_json(&file, store)))
        }
        ("GET", ["files", file]) => {
            Ok(wire::success_response(&wire::file_json(&index.file_info(file)?, store)))
        }
        ("POST", ["files", file]) => {
            let asked: SetAttributesBody = parse_body(request)?;
            let attributes = asked.attributes.unwrap_or_default();
            validate_attributes(&attributes)?;
            Ok(wire::success_response(&wire::file_json(&index.set_attributes(file, &attributes)?, store)))
        }
        ("DELETE", ["files", file]) => {
            index.remove_file(file)?;
            Ok(wire::success_response(&wire::deletion_json(file, "vector_store.file.deleted")))
        }
        ("GET", ["files", file, "content"]) => {
            let texts = index.file_chunks(file)?;
            let data: Vec<Value> = texts.iter().map(|text| json!({ "type": "text", "text": text })).collect();
            Ok(wire::success_response(&json!({
                "object": "vector_store.file_content.page", "data": data, "has_more": false, "next_page": null,
            })))
        }
        ("POST", ["file_batches"]) => create_batch(index, store, request),
        ("GET", ["file_batches", id]) | ("POST", ["file_batches", id, "cancel"]) => {
            batch_response(index, store, id)
        }
        ("GET", ["file_batches", id, "files"]) => {
            let (_, files) = index.load_batch(id)?;
            let mut there: Vec<_> = files.iter().filter_map(|file| index.file_info(file).ok()).collect();
            there.sort_by(|left, right| (right.created_at, &right.id).cmp(&(left.created_at, &left.id)));
            list_files(index, store, request, &there)
        }
        _ => Ok(wire::error_response(404, &format!("there is no `{} {}`", request.method, request.path))),
    }
}

fn list_uploads(index: &Index, request: &RestRequest) -> RouteResult {
    let purpose = query_parameter(request, "purpose");
    let wanted = index.list_uploads()?;
    let wanted = wanted.iter().filter(|file| purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose));
    let list = PagedList { name: UPLOAD_LIST, default_limit: 10_000, max_limit: 10_000 };
    list.respond(index, request, wanted.map(wire::upload_json).collect())
}

/// Returns a page of files, of those with one status if the parameter `filter` is present.
fn list_files(index: &Index, store: &str, request: &RestRequest, all: &[VectorStoreFile]) -> RouteResult {
    let status = query_parameter(request, "filter");
    if let Some(status) = &status
        && !["in_progress", "completed", "failed", "cancelled"].contains(&status.as_str())
    {
        let why = format!("`filter` is `in_progress`, `completed`, `failed` or `cancelled`, not `{status}`");
        return Err(SearchError::InvalidArgument(why));
    }
    let files = all.iter().map(|file| wire::file_json(file, store));
    let files = files.filter(|file| status.as_deref().is_none_or(|status| file["status"] == status));
    PagedList::new(store).respond(index, request, files.collect())
}

#[derive(Deserialize)]
struct VectorStoreBody {
    name: Option<String>,
    description: Option<String>,
    #[serde(default)]
    file_ids: Vec<String>,
    metadata: Option<Map<String, Value>>,
    /// Absent, or null to remove the expiry.
    #[serde(default, deserialize_with = "deserialize_present")]
    expires_after: Option<Option<ExpiresAfter>>,
    chunking_strategy: Option<ChunkingStrategy>,
}

#[derive(Deserialize)]
struct ExpiresAfter {
    anchor: String,
    days: i64,
}

/// Deserialises a field that is present, so that null differs from an absent field.
fn deserialize_present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Returns the number of days after which a store expires.
fn check_expiry(after: Option<ExpiresAfter>) -> Result<Option<i64>, SearchError> {
    let Some(ExpiresAfter { anchor, days }) = after else { return Ok(None) };
    if anchor != "last_active_at" {
        return Err(SearchError::InvalidArgument("`expires_after.anchor` is `last_active_at`".to_owned()));
    }
    if !(1..=365).contains(&days) {
        return Err(SearchError::InvalidArgument(format!("`expires_after.days` is 1 to 365, not {days}")));
    }
    Ok(Some(days))
}

/// Returns an error if the selected store has expired.
fn check_not_expired(index: &Index) -> Result<(), SearchError> {
    let store = index.store_info()?;
    match wire::expires_at(&store).is_some_and(|at| at < crate::index::unix_now()) {
        true => Err(SearchError::InvalidArgument(format!("the vector store `{}` is expired", store.id))),
        false => Ok(()),
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ChunkingStrategy {
    Auto,
    Static {
        #[serde(rename = "static")]
        sizes: StaticChunkSizes,
    },
}

#[derive(Clone, Copy, Deserialize)]
struct StaticChunkSizes {
    max_chunk_size_tokens: usize,
    chunk_overlap_tokens: usize,
}

fn chunking_options(strategy: Option<ChunkingStrategy>) -> Result<ChunkingOptions, SearchError> {
    let options = match strategy {
        None | Some(ChunkingStrategy::Auto) => ChunkingOptions::hosted_default(),
        Some(ChunkingStrategy::Static { sizes }) => ChunkingOptions {
            max_tokens: sizes.max_chunk_size_tokens,
            overlap_tokens: sizes.chunk_overlap_tokens,
        },
    };
    options.validated().map_err(SearchError::InvalidArgument)
}

fn create_store(index: &Index, request: &RestRequest) -> RouteResult {
    let asked: VectorStoreBody = parse_body(request)?;
    // Everything is checked before the store exists: the client of a refused request does not know its id.
    let chunking = chunking_options(asked.chunking_strategy)?;
    for file in &asked.file_ids {
        index.upload_info(file)?;
    }
    let store = index.create_store(NewVectorStore {
        name: asked.name.unwrap_or_default(),
        description: asked.description,
        metadata: asked.metadata.unwrap_or_default(),
        expires_after_days: check_expiry(asked.expires_after.flatten())?,
    })?;
    let index = index.in_store(&store.id);
    for file in &asked.file_ids {
        index.attach_upload(file, FileAttributes::new(), Some(chunking))?;
    }
    store_response(&index)
}

fn update_store(index: &Index, request: &RestRequest) -> RouteResult {
    let asked: VectorStoreBody = parse_body(request)?;
    let now = index.store_info()?;
    index.update_store(NewVectorStore {
        name: asked.name.unwrap_or(now.name),
        description: asked.description.or(now.description),
        metadata: asked.metadata.unwrap_or(now.metadata),
        expires_after_days: match asked.expires_after {
            Some(after) => check_expiry(after)?,
            None => now.expires_after_days,
        },
    })?;
    store_response(index)
}

fn store_response(index: &Index) -> RouteResult {
    Ok(wire::success_response(&wire::store_json(&index.store_info()?, crate::index::unix_now())))
}

#[derive(Deserialize)]
struct AttachFileBody {
    file_id: String,
    attributes: Option<FileAttributes>,
    chunking_strategy: Option<ChunkingStrategy>,
}

#[derive(Deserialize)]
struct SetAttributesBody {
    attributes: Option<FileAttributes>,
}

/// A file to attach, which was checked.
struct Attachment {
    upload: String,
    attributes: FileAttributes,
    chunking: ChunkingOptions,
}

impl Attachment {
    fn check(index: &Index, asked: AttachFileBody) -> Result<Self, SearchError> {
        let attributes = asked.attributes.unwrap_or_default();
        validate_attributes(&attributes)?;
        index.upload_info(&asked.file_id)?;
        Ok(Self { upload: asked.file_id, attributes, chunking: chunking_options(asked.chunking_strategy)? })
    }

    fn attach(self, index: &Index) -> Result<VectorStoreFile, SearchError> {
        index.attach_upload(&self.upload, self.attributes, Some(self.chunking))
    }
}

#[derive(Deserialize)]
struct FileBatchBody {
    #[serde(default)]
    file_ids: Vec<String>,
    #[serde(default)]
    files: Vec<AttachFileBody>,
    attributes: Option<FileAttributes>,
    chunking_strategy: Option<ChunkingStrategy>,
}

fn create_batch(index: &Index, store: &str, request: &RestRequest) -> RouteResult {
    let asked: FileBatchBody = parse_body(request)?;
    check_not_expired(index)?;
    let mut files = asked.files;
    files.extend(asked.file_ids.into_iter().map(|file_id| AttachFileBody {
        file_id,
        attributes: asked.attributes.clone(),
        chunking_strategy: asked.chunking_strategy,
    }));
    if files.is_empty() || files.len() > MAX_BATCH_FILES {
        return Err(SearchError::InvalidArgument(format!(
            "a batch has 1 to {MAX_BATCH_FILES} files, not {}",
            files.len()
        )));
    }
    // All files are checked before the first one is attached.
    let files: Vec<Attachment> =
        files.into_iter().map(|file| Attachment::check(index, file)).collect::<Result<_, _>>()?;
    let ids: Vec<String> = files.iter().map(|file| file.upload.clone()).collect();
    for file in files {
        file.attach(index)?;
    }
    let id = index.record_batch(&ids)?;
    batch_response(index, store, &id)
}

fn batch_response(index: &Index, store: &str, id: &str) -> RouteResult {
    let (created, ids) = index.load_batch(id)?;
    let files: Vec<_> = ids.iter().filter_map(|file| index.file_info(file).ok()).collect();
    Ok(wire::success_response(&wire::batch_json(id, store, created, &files, ids.len())))
}

#[derive(Deserialize)]
struct SearchBody {
    query: SearchQueries,
    max_num_results: Option<usize>,
    filters: Option<AttributeFilter>,
    ranking_options: Option<RankingOptions>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SearchQueries {
    One(String),
    Several(Vec<String>),
}

fn search_store(index: &Index, request: &RestRequest) -> RouteResult {
    let asked: SearchBody = parse_body(request)?;
    check_not_expired(index)?;
    let queries = match asked.query {
        SearchQueries::One(query) => vec![query],
        SearchQueries::Several(queries) => queries,
    };
    let mut left = queries.iter();
    let Some(first) = left.next() else {
        return Err(SearchError::InvalidArgument("`query` is empty".to_owned()));
    };
    let mut search = index.search(first).max_results(asked.max_num_results.unwrap_or(10));
    for query in left {
        search = search.add_query(query);
    }
    if let Some(filters) = asked.filters {
        search = search.filter(filters);
    }
    if let Some(ranking) = asked.ranking_options {
        search = search.ranking(ranking);
    }
    let found = search.run()?;
    index.mark_store_used()?;
    let data: Vec<Value> = found.hits.iter().map(wire::hit_json).collect();
    Ok(wire::success_response(&json!({
        "object": "vector_store.search_results.page",
        "search_query": found.queries,
        "data": data,
        "has_more": false,
        "next_page": null,
    })))
}

pub(super) fn parse_body<T: for<'de> Deserialize<'de>>(request: &RestRequest) -> Result<T, SearchError> {
    let bytes: &[u8] = if request.body.is_empty() { b"{}" } else { &request.body };
    serde_json::from_slice(bytes)
        .map_err(|error| SearchError::InvalidArgument(format!("the body is not valid: {error}")))
}
