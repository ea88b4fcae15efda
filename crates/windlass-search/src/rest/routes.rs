//! Which path does what.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::multipart::parts;
use super::{Request, Response, json as wire};
use crate::index::check;
use crate::{Attributes, Chunking, Filter, Index, NewStore, Ranking, SearchError};

/// How many files one batch may have, as in the hosted service.
const MOST_IN_BATCH: usize = 2000;

type Answer = Result<Response, SearchError>;

pub(super) fn respond(index: &Index, request: &Request) -> Response {
    let path = request.path.strip_prefix("/v1").unwrap_or(&request.path);
    let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let answer = match (request.method.as_str(), path.as_slice()) {
        ("POST", ["files"]) => upload(index, request),
        ("GET", ["files"]) => {
            index.uploads().map(|all| page(request, all.iter().map(wire::upload).collect()))
        }
        ("GET", ["files", id]) => index.uploaded(id).map(|one| wire::success(&wire::upload(&one))),
        ("GET", ["files", id, "content"]) => index.upload_bytes(id).map(|body| Response {
            status: 200,
            content_type: "application/octet-stream",
            body,
        }),
        ("DELETE", ["files", id]) => {
            index.delete_upload(id).map(|()| wire::success(&wire::deleted(id, "file")))
        }
        ("GET", ["vector_stores"]) => index.stores().map(|all| {
            page(request, all.iter().map(|store| wire::store(store, crate::index::now())).collect())
        }),
        ("POST", ["vector_stores"]) => create(index, request),
        (method, ["vector_stores", id, rest @ ..]) => {
            in_store(&index.in_store(id), id, method, rest, request)
        }
        _ => Ok(wire::failure(404, &format!("there is no `{} {}`", request.method, request.path))),
    };
    answer.unwrap_or_else(|error| wire::of_error(&error))
}

fn in_store(index: &Index, store: &str, method: &str, rest: &[&str], request: &Request) -> Answer {
    index.store()?;
    match (method, rest) {
        ("GET", []) => shown(index),
        ("POST", []) => change(index, request),
        ("DELETE", []) => {
            index.delete_store()?;
            Ok(wire::success(&wire::deleted(store, "vector_store.deleted")))
        }
        ("POST", ["search"]) => search(index, request),
        ("GET", ["files"]) => {
            let status = parameter(request, "filter");
            let all = index.files()?;
            let wanted = all.iter().map(|file| wire::file(file, store));
            let wanted =
                wanted.filter(|file| status.as_deref().is_none_or(|status| file["status"] == status));
            Ok(page(request, wanted.collect()))
        }
        ("POST", ["files"]) => {
            let asked: NewFile = body(request)?;
            let file = attach(index, asked)?;
            Ok(wire::success(&wire::file(&file, store)))
        }
        ("GET", ["files", file]) => Ok(wire::success(&wire::file(&index.file(file)?, store))),
        ("POST", ["files", file]) => {
            let asked: NewAttributes = body(request)?;
            let attributes = asked.attributes.unwrap_or_default();
            check(&attributes)?;
            Ok(wire::success(&wire::file(&index.set_attributes(file, &attributes)?, store)))
        }
        ("DELETE", ["files", file]) => {
            index.remove_file(file)?;
            Ok(wire::success(&wire::deleted(file, "vector_store.file.deleted")))
        }
        ("GET", ["files", file, "content"]) => {
            let texts = index.file_text(file)?;
            let data: Vec<Value> = texts.iter().map(|text| json!({ "type": "text", "text": text })).collect();
            Ok(wire::success(&json!({
                "object": "vector_store.file_content.page", "data": data, "has_more": false, "next_page": null,
            })))
        }
        ("POST", ["file_batches"]) => batch(index, store, request),
        ("GET", ["file_batches", id]) | ("POST", ["file_batches", id, "cancel"]) => {
            shown_batch(index, store, id)
        }
        ("GET", ["file_batches", id, "files"]) => {
            let (_, files) = index.batch(id)?;
            let there = files.iter().filter_map(|file| index.file(file).ok());
            Ok(page(request, there.map(|file| wire::file(&file, store)).collect()))
        }
        _ => Ok(wire::failure(404, &format!("there is no `{} {}`", request.method, request.path))),
    }
}

fn upload(index: &Index, request: &Request) -> Answer {
    let Some(parts) = parts(&request.content_type, &request.body) else {
        return Err(SearchError::Invalid(
            "a form with the fields `file` and `purpose` was expected".to_owned(),
        ));
    };
    let Some(file) = parts.iter().find(|part| part.name == "file") else {
        return Err(SearchError::Invalid("the form has no field `file`".to_owned()));
    };
    let purpose = parts.iter().find(|part| part.name == "purpose");
    let purpose = purpose.map(|part| String::from_utf8_lossy(part.data).into_owned());
    let name = file.filename.as_deref().unwrap_or("upload");
    // A name, and never a way to somewhere.
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let kept = index.upload(name, purpose.as_deref().unwrap_or("assistants"), file.data)?;
    Ok(wire::success(&wire::upload(&kept)))
}

#[derive(Deserialize)]
struct AskedStore {
    name: Option<String>,
    description: Option<String>,
    #[serde(default)]
    file_ids: Vec<String>,
    metadata: Option<Map<String, Value>>,
    expires_after: Option<ExpiresAfter>,
    chunking_strategy: Option<Strategy>,
}

#[derive(Deserialize)]
struct ExpiresAfter {
    days: i64,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Strategy {
    Auto,
    Static {
        #[serde(rename = "static")]
        sizes: Sizes,
    },
}

#[derive(Deserialize)]
struct Sizes {
    max_chunk_size_tokens: usize,
    chunk_overlap_tokens: usize,
}

fn chunking(strategy: Option<Strategy>) -> Option<Chunking> {
    Some(match strategy {
        None | Some(Strategy::Auto) => Chunking::hosted(),
        Some(Strategy::Static { sizes }) => {
            Chunking { max_tokens: sizes.max_chunk_size_tokens, overlap_tokens: sizes.chunk_overlap_tokens }
        }
    })
}

fn create(index: &Index, request: &Request) -> Answer {
    let asked: AskedStore = body(request)?;
    let chunking = chunking(asked.chunking_strategy);
    for file in &asked.file_ids {
        index.uploaded(file)?;
    }
    let store = index.create_store(NewStore {
        name: asked.name.unwrap_or_default(),
        description: asked.description,
        metadata: asked.metadata.unwrap_or_default(),
        expires_days: asked.expires_after.map(|after| after.days.clamp(1, 365)),
    })?;
    let index = index.in_store(&store.id);
    for file in &asked.file_ids {
        index.attach(file, Attributes::new(), chunking)?;
    }
    shown(&index)
}

fn change(index: &Index, request: &Request) -> Answer {
    let asked: AskedStore = body(request)?;
    let now = index.store()?;
    index.change_store(NewStore {
        name: asked.name.unwrap_or(now.name),
        description: asked.description.or(now.description),
        metadata: asked.metadata.unwrap_or(now.metadata),
        expires_days: asked.expires_after.map(|after| after.days.clamp(1, 365)).or(now.expires_days),
    })?;
    shown(index)
}

fn shown(index: &Index) -> Answer {
    Ok(wire::success(&wire::store(&index.store()?, crate::index::now())))
}

#[derive(Deserialize)]
struct NewFile {
    file_id: String,
    attributes: Option<Attributes>,
    chunking_strategy: Option<Strategy>,
}

#[derive(Deserialize)]
struct NewAttributes {
    attributes: Option<Attributes>,
}

fn attach(index: &Index, asked: NewFile) -> Result<crate::FileInfo, SearchError> {
    index.attach(&asked.file_id, asked.attributes.unwrap_or_default(), chunking(asked.chunking_strategy))
}

#[derive(Deserialize)]
struct NewBatch {
    #[serde(default)]
    file_ids: Vec<String>,
    #[serde(default)]
    files: Vec<NewFile>,
    attributes: Option<Attributes>,
    chunking_strategy: Option<Value>,
}

fn batch(index: &Index, store: &str, request: &Request) -> Answer {
    let asked: NewBatch = body(request)?;
    let strategy = || asked.chunking_strategy.clone().and_then(|value| serde_json::from_value(value).ok());
    let mut files = asked.files;
    files.extend(asked.file_ids.into_iter().map(|file_id| NewFile {
        file_id,
        attributes: asked.attributes.clone(),
        chunking_strategy: strategy(),
    }));
    if files.is_empty() || files.len() > MOST_IN_BATCH {
        return Err(SearchError::Invalid(format!(
            "a batch has 1 to {MOST_IN_BATCH} files, not {}",
            files.len()
        )));
    }
    for file in &files {
        index.uploaded(&file.file_id)?;
    }
    let ids: Vec<String> = files.iter().map(|file| file.file_id.clone()).collect();
    for file in files {
        attach(index, file)?;
    }
    let id = index.note_batch(&ids)?;
    shown_batch(index, store, &id)
}

fn shown_batch(index: &Index, store: &str, id: &str) -> Answer {
    let (created, ids) = index.batch(id)?;
    let files: Vec<_> = ids.iter().filter_map(|file| index.file(file).ok()).collect();
    Ok(wire::success(&wire::batch(id, store, created, &files, ids.len())))
}

#[derive(Deserialize)]
struct AskedSearch {
    query: Queries,
    max_num_results: Option<usize>,
    filters: Option<Filter>,
    ranking_options: Option<Ranking>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Queries {
    One(String),
    Several(Vec<String>),
}

fn search(index: &Index, request: &Request) -> Answer {
    let asked: AskedSearch = body(request)?;
    let store = index.store()?;
    if wire::expires_at(&store).is_some_and(|at| at < crate::index::now()) {
        return Err(SearchError::Invalid(format!("the vector store `{}` is expired", store.id)));
    }
    let queries = match asked.query {
        Queries::One(query) => vec![query],
        Queries::Several(queries) => queries,
    };
    let mut left = queries.iter();
    let Some(first) = left.next() else {
        return Err(SearchError::Invalid("`query` is empty".to_owned()));
    };
    let mut search = index.search(first).max_results(asked.max_num_results.unwrap_or(10));
    for query in left {
        search = search.also(query);
    }
    if let Some(filters) = asked.filters {
        search = search.filter(filters);
    }
    if let Some(ranking) = asked.ranking_options {
        search = search.ranking(ranking);
    }
    let found = search.run()?;
    index.note_use()?;
    let data: Vec<Value> = found.hits.iter().map(wire::hit).collect();
    Ok(wire::success(&json!({
        "object": "vector_store.search_results.page",
        "search_query": found.questions,
        "data": data,
        "has_more": false,
        "next_page": null,
    })))
}

fn body<T: for<'de> Deserialize<'de>>(request: &Request) -> Result<T, SearchError> {
    let bytes: &[u8] = if request.body.is_empty() { b"{}" } else { &request.body };
    serde_json::from_slice(bytes)
        .map_err(|error| SearchError::Invalid(format!("the body does not fit: {error}")))
}

fn parameter(request: &Request, name: &str) -> Option<String> {
    let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// A part of a list, by the ids that clients page with.
fn page(request: &Request, mut all: Vec<Value>) -> Response {
    if parameter(request, "order").as_deref() == Some("asc") {
        all.reverse();
    }
    let place = |id: String, all: &[Value]| all.iter().position(|value| value["id"] == *id);
    if let Some(at) = parameter(request, "after").and_then(|id| place(id, &all)) {
        all.drain(..=at);
    }
    if let Some(at) = parameter(request, "before").and_then(|id| place(id, &all)) {
        all.truncate(at);
    }
    let limit = parameter(request, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(20).clamp(1, 100);
    let has_more = all.len() > limit;
    all.truncate(limit);
    wire::success(&json!({
        "object": "list",
        "first_id": all.first().map(|value| &value["id"]),
        "last_id": all.last().map(|value| &value["id"]),
        "has_more": has_more,
        "data": all,
    }))
}
