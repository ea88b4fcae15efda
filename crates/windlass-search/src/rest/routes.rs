//! Routing of requests to their handlers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::multipart::parse_form;
use super::{RestRequest, RestResponse, json as wire};
use crate::index::validate_attributes;
use crate::{
    AttributeFilter, ChunkingOptions, FileAttributes, Index, NewVectorStore, RankingOptions, SearchError,
};

/// Maximum number of files in a batch, as in the hosted service.
const MAX_BATCH_FILES: usize = 2000;

/// The result of a route; an error becomes an error response.
type RouteResult = Result<RestResponse, SearchError>;

pub(super) fn route_request(index: &Index, request: &RestRequest) -> RestResponse {
    let path = request.path.strip_prefix("/v1").unwrap_or(&request.path);
    let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let answer = match (request.method.as_str(), path.as_slice()) {
        ("POST", ["files"]) => upload_file(index, request),
        ("GET", ["files"]) => index
            .list_uploads()
            .map(|all| list_response(request, all.iter().map(wire::upload_json).collect())),
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
        ("GET", ["vector_stores"]) => index.list_stores().map(|all| {
            list_response(
                request,
                all.iter().map(|store| wire::store_json(store, crate::index::unix_now())).collect(),
            )
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
            let status = query_parameter(request, "filter");
            let all = index.list_files()?;
            let wanted = all.iter().map(|file| wire::file_json(file, store));
            let wanted =
                wanted.filter(|file| status.as_deref().is_none_or(|status| file["status"] == status));
            Ok(list_response(request, wanted.collect()))
        }
        ("POST", ["files"]) => {
            let asked: AttachFileBody = parse_body(request)?;
            let file = attach_upload(index, asked)?;
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
            let there = files.iter().filter_map(|file| index.file_info(file).ok());
            Ok(list_response(request, there.map(|file| wire::file_json(&file, store)).collect()))
        }
        _ => Ok(wire::error_response(404, &format!("there is no `{} {}`", request.method, request.path))),
    }
}

fn upload_file(index: &Index, request: &RestRequest) -> RouteResult {
    let Some(parts) = parse_form(&request.content_type, &request.body) else {
        return Err(SearchError::InvalidArgument(
            "a form with the fields `file` and `purpose` was expected".to_owned(),
        ));
    };
    let Some(file) = parts.iter().find(|part| part.name == "file") else {
        return Err(SearchError::InvalidArgument("the form has no field `file`".to_owned()));
    };
    let purpose = parts.iter().find(|part| part.name == "purpose");
    let purpose = purpose.map(|part| String::from_utf8_lossy(part.data).into_owned());
    let name = file.filename.as_deref().unwrap_or("upload");
    // Only the last path component is kept, because the name must not be a path.
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let kept = index.upload_file(name, purpose.as_deref().unwrap_or("assistants"), file.data)?;
    Ok(wire::success_response(&wire::upload_json(&kept)))
}

#[derive(Deserialize)]
struct VectorStoreBody {
    name: Option<String>,
    description: Option<String>,
    #[serde(default)]
    file_ids: Vec<String>,
    metadata: Option<Map<String, Value>>,
    expires_after: Option<ExpiresAfter>,
    chunking_strategy: Option<ChunkingStrategy>,
}

#[derive(Deserialize)]
struct ExpiresAfter {
    days: i64,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ChunkingStrategy {
    Auto,
    Static {
        #[serde(rename = "static")]
        sizes: StaticChunkSizes,
    },
}

#[derive(Deserialize)]
struct StaticChunkSizes {
    max_chunk_size_tokens: usize,
    chunk_overlap_tokens: usize,
}

fn chunking_options(strategy: Option<ChunkingStrategy>) -> Option<ChunkingOptions> {
    Some(match strategy {
        None | Some(ChunkingStrategy::Auto) => ChunkingOptions::hosted_default(),
        Some(ChunkingStrategy::Static { sizes }) => ChunkingOptions {
            max_tokens: sizes.max_chunk_size_tokens,
            overlap_tokens: sizes.chunk_overlap_tokens,
        },
    })
}

fn create_store(index: &Index, request: &RestRequest) -> RouteResult {
    let asked: VectorStoreBody = parse_body(request)?;
    let chunking = chunking_options(asked.chunking_strategy);
    for file in &asked.file_ids {
        index.upload_info(file)?;
    }
    let store = index.create_store(NewVectorStore {
        name: asked.name.unwrap_or_default(),
        description: asked.description,
        metadata: asked.metadata.unwrap_or_default(),
        expires_after_days: asked.expires_after.map(|after| after.days.clamp(1, 365)),
    })?;
    let index = index.in_store(&store.id);
    for file in &asked.file_ids {
        index.attach_upload(file, FileAttributes::new(), chunking)?;
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
        expires_after_days: asked
            .expires_after
            .map(|after| after.days.clamp(1, 365))
            .or(now.expires_after_days),
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

fn attach_upload(index: &Index, asked: AttachFileBody) -> Result<crate::VectorStoreFile, SearchError> {
    index.attach_upload(
        &asked.file_id,
        asked.attributes.unwrap_or_default(),
        chunking_options(asked.chunking_strategy),
    )
}

#[derive(Deserialize)]
struct FileBatchBody {
    #[serde(default)]
    file_ids: Vec<String>,
    #[serde(default)]
    files: Vec<AttachFileBody>,
    attributes: Option<FileAttributes>,
    chunking_strategy: Option<Value>,
}

fn create_batch(index: &Index, store: &str, request: &RestRequest) -> RouteResult {
    let asked: FileBatchBody = parse_body(request)?;
    let strategy = || asked.chunking_strategy.clone().and_then(|value| serde_json::from_value(value).ok());
    let mut files = asked.files;
    files.extend(asked.file_ids.into_iter().map(|file_id| AttachFileBody {
        file_id,
        attributes: asked.attributes.clone(),
        chunking_strategy: strategy(),
    }));
    if files.is_empty() || files.len() > MAX_BATCH_FILES {
        return Err(SearchError::InvalidArgument(format!(
            "a batch has 1 to {MAX_BATCH_FILES} files, not {}",
            files.len()
        )));
    }
    for file in &files {
        index.upload_info(&file.file_id)?;
    }
    let ids: Vec<String> = files.iter().map(|file| file.file_id.clone()).collect();
    for file in files {
        attach_upload(index, file)?;
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
    let store = index.store_info()?;
    if wire::expires_at(&store).is_some_and(|at| at < crate::index::unix_now()) {
        return Err(SearchError::InvalidArgument(format!("the vector store `{}` is expired", store.id)));
    }
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

fn parse_body<T: for<'de> Deserialize<'de>>(request: &RestRequest) -> Result<T, SearchError> {
    let bytes: &[u8] = if request.body.is_empty() { b"{}" } else { &request.body };
    serde_json::from_slice(bytes)
        .map_err(|error| SearchError::InvalidArgument(format!("the body is not valid: {error}")))
}

fn query_parameter(request: &RestRequest, name: &str) -> Option<String> {
    let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// Returns one page of a list, by the parameters `order`, `after`, `before` and `limit`.
fn list_response(request: &RestRequest, mut all: Vec<Value>) -> RestResponse {
    if query_parameter(request, "order").as_deref() == Some("asc") {
        all.reverse();
    }
    let place = |id: String, all: &[Value]| all.iter().position(|value| value["id"] == *id);
    if let Some(at) = query_parameter(request, "after").and_then(|id| place(id, &all)) {
        all.drain(..=at);
    }
    if let Some(at) = query_parameter(request, "before").and_then(|id| place(id, &all)) {
        all.truncate(at);
    }
    let limit =
        query_parameter(request, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(20).clamp(1, 100);
    let has_more = all.len() > limit;
    all.truncate(limit);
    wire::success_response(&json!({
        "object": "list",
        "first_id": all.first().map(|value| &value["id"]),
        "last_id": all.last().map(|value| &value["id"]),
        "has_more": has_more,
        "data": all,
    }))
}
