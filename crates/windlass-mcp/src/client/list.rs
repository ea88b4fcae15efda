//! A server's tools as it lists them: read one by one, so that a bad one is left out alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde_json::Value;

/// How many pages a list may have, and how many tools.
const MOST_PAGES: usize = 100;
const MOST_TOOLS: usize = 2000;
/// How much of a description a model is told.
const LONGEST_DESCRIPTION: usize = 8 * 1024;

/// A tool as its server describes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolInfo {
    /// The server's name here.
    pub server: Arc<str>,
    /// The tool's name there.
    pub name: Arc<str>,
    /// A title, for people.
    pub title: Option<String>,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its arguments, as the server wrote it.
    pub input_schema: Arc<Value>,
    /// The JSON Schema of its structured results.
    pub output_schema: Option<Arc<Value>>,
    /// What the server says of its effects. Only that: nobody has checked it.
    pub hints: Hints,
}

/// What a server says of a tool's effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// It changes nothing.
    pub read_only: Option<bool>,
    /// It may destroy something. It may, where the server does not say.
    pub destructive: Option<bool>,
    /// Doing it again changes nothing more.
    pub idempotent: Option<bool>,
    /// It reaches beyond the server.
    pub open_world: Option<bool>,
}

/// All that a server lists.
#[derive(Debug, PartialEq)]
pub(crate) struct Listing {
    pub(crate) tools: Vec<Arc<ToolInfo>>,
    pub(crate) warnings: Vec<String>,
    /// Whether calls may be answered with tasks.
    pub(crate) tasks: TaskSupport,
}

/// Whether a server may answer a call with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSupport {
    No,
    Yes,
}

/// Asks for all pages. Also says how long the server wants the list to be believed.
pub(super) async fn list(
    peer: &Peer<RoleClient>,
    server: &Arc<str>,
) -> Result<(Listing, Option<Duration>), ServiceError> {
    let supports = peer.peer_info().is_some_and(|info| info.capabilities.supports_tasks());
    let tasks = if supports { TaskSupport::Yes } else { TaskSupport::No };
    let mut listing = Listing { tools: Vec::new(), warnings: Vec::new(), tasks };
    let mut known: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut cursors: BTreeSet<String> = BTreeSet::new();
    let mut cursor = None;
    let mut lasting: Option<Duration> = None;
    for _ in 0..MOST_PAGES {
        let page = page(peer, cursor.take()).await?;
        lasting = page.lasting.into_iter().chain(lasting).min();
        for tool in page.tools {
            match read(server, tool) {
                Ok(_) if known.len() == MOST_TOOLS => {
                    listing.warn(server, format!("lists more than {MOST_TOOLS} tools; the rest is left out"));
                    return Ok((listing.sorted(), lasting));
                }
                Ok(tool) if !known.insert(tool.name.clone()) => {
                    listing.warn(server, format!("lists tool `{}` twice; the first counts", tool.name));
                }
                Ok(tool) => listing.tools.push(Arc::new(tool)),
                Err(why) => listing.warn(server, format!("{why}; it is left out")),
            }
        }
        match page.next {
            None => return Ok((listing.sorted(), lasting)),
            Some(next) if !cursors.insert(next.clone()) => {
                listing
                    .warn(server, "lists its tools in a circle; the list ends where it began again".into());
                return Ok((listing.sorted(), lasting));
            }
            Some(next) => cursor = Some(next),
        }
    }
    listing.warn(server, format!("lists its tools on more than {MOST_PAGES} pages; the rest is left out"));
    Ok((listing.sorted(), lasting))
}

impl Listing {
    fn warn(&mut self, server: &str, what: String) {
        // One server's mistakes must not fill the screen.
        const MOST: usize = 20;
        if self.warnings.len() < MOST {
            self.warnings.push(format!("MCP server `{server}` {what}"));
        }
    }

    /// Servers may list in any order. Models are offered tools in one, which also keeps their caches warm.
    fn sorted(mut self) -> Self {
        self.tools.sort_by(|one, other| one.name.cmp(&other.name));
        self
    }
}

struct Page {
    tools: Vec<Value>,
    next: Option<String>,
    lasting: Option<Duration>,
}

async fn page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<Page, ServiceError> {
    let params = PaginatedRequestParams::default().with_cursor(cursor);
    let request = ListToolsRequest::with_param(params);
    let value = match peer.send_request(ClientRequest::ListToolsRequest(request)).await? {
        ServerResult::ListToolsResult(result) => serde_json::to_value(result).unwrap_or_default(),
        // A list with a tool that is not one is not what the protocol calls a list.
        ServerResult::CustomResult(result) => result.0,
        _ => return Err(ServiceError::UnexpectedResponse),
    };
    let Some(Value::Array(tools)) = value.get("tools") else { return Err(ServiceError::UnexpectedResponse) };
    Ok(Page {
        tools: tools.clone(),
        next: value.get("nextCursor").and_then(Value::as_str).map(str::to_owned),
        lasting: value.get("ttlMs").and_then(Value::as_u64).map(Duration::from_millis),
    })
}

fn read(server: &Arc<str>, tool: Value) -> Result<ToolInfo, String> {
    let text = |key: &str| tool.get(key).and_then(Value::as_str);
    let Some(name) = text("name").filter(|name| !name.is_empty()) else {
        return Err("lists a tool without a name".to_owned());
    };
    let shown: String = name.chars().take(80).collect();
    let input_schema = match tool.get("inputSchema") {
        Some(schema @ Value::Object(keys)) => match keys.get("type") {
            None => schema.clone(),
            Some(Value::String(kind)) if kind == "object" => schema.clone(),
            Some(_) => return Err(format!("lists tool `{shown}`, whose `inputSchema.type` is not `object`")),
        },
        Some(_) => return Err(format!("lists tool `{shown}`, whose `inputSchema` is not an object")),
        None => return Err(format!("lists tool `{shown}` without an `inputSchema`")),
    };
    let annotations = tool.get("annotations");
    let hint = |key: &str| annotations.and_then(|hints| hints.get(key)).and_then(Value::as_bool);
    let mut description = text("description").or_else(|| text("title")).unwrap_or_default().to_owned();
    if description.len() > LONGEST_DESCRIPTION {
        description.truncate(description.floor_char_boundary(LONGEST_DESCRIPTION));
    }
    let title = text("title").or_else(|| annotations?.get("title")?.as_str()).map(str::to_owned);
    Ok(ToolInfo {
        server: server.clone(),
        name: name.into(),
        title,
        description,
        input_schema: Arc::new(input_schema),
        output_schema: tool.get("outputSchema").filter(|schema| schema.is_object()).cloned().map(Arc::new),
        hints: Hints {
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint"),
            idempotent: hint("idempotentHint"),
            open_world: hint("openWorldHint"),
        },
    })
}
