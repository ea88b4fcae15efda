//! Listing of a server's tools. Tools are parsed one by one, so that one invalid tool does not hide the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde_json::Value;

/// Maximum number of pages of a listing.
const MAX_PAGES: usize = 100;
/// Maximum number of tools of a listing.
const MAX_TOOLS: usize = 2000;
/// Maximum number of bytes of a tool description; the rest is cut.
const MAX_DESCRIPTION_BYTES: usize = 8 * 1024;

/// A tool as described by its server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct McpToolInfo {
    /// The server's configured name.
    pub server: Arc<str>,
    /// The tool's name at the server.
    pub name: Arc<str>,
    /// The display title.
    pub title: Option<String>,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of the arguments, unchanged from the server.
    pub input_schema: Arc<Value>,
    /// The JSON Schema of structured results, if the server declares one.
    pub output_schema: Option<Arc<Value>>,
    /// The server's annotations about the tool's effects; they are unverified.
    pub hints: ToolHints,
}

/// A server's annotations about a tool's effects. `None` means that the server does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolHints {
    /// True if the tool changes nothing.
    pub read_only: Option<bool>,
    /// True if the tool may destroy data; assumed if absent.
    pub destructive: Option<bool>,
    /// True if repeating the call has no further effect.
    pub idempotent: Option<bool>,
    /// True if the tool interacts with systems beyond the server.
    pub open_world: Option<bool>,
}

/// The tools of a server, with warnings about invalid ones.
#[derive(Debug, PartialEq)]
pub(crate) struct ToolListing {
    pub(crate) tools: Vec<Arc<McpToolInfo>>,
    pub(crate) warnings: Vec<String>,
    /// The server's support of tasks.
    pub(crate) task_support: TaskSupport,
}

/// The ability of a server to answer a call with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSupport {
    Unsupported,
    Supported,
}

/// Fetches all pages of the tool list. Also returns the shortest cache lifetime (`ttlMs`) that the server gave.
pub(super) async fn list_tools(
    peer: &Peer<RoleClient>,
    server: &Arc<str>,
) -> Result<(ToolListing, Option<Duration>), ServiceError> {
    let supports = peer.peer_info().is_some_and(|info| info.capabilities.supports_tasks());
    let tasks = if supports { TaskSupport::Supported } else { TaskSupport::Unsupported };
    let mut listing = ToolListing { tools: Vec::new(), warnings: Vec::new(), task_support: tasks };
    let mut known: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut cursors: BTreeSet<String> = BTreeSet::new();
    let mut cursor = None;
    let mut lasting: Option<Duration> = None;
    for _ in 0..MAX_PAGES {
        let page = fetch_page(peer, cursor.take()).await?;
        lasting = page.ttl.into_iter().chain(lasting).min();
        for tool in page.tools {
            let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
            let described = description.len();
            match parse_tool(server, tool) {
                Ok(_) if known.len() == MAX_TOOLS => {
                    listing.add_warning(
                        server,
                        format!("lists more than {MAX_TOOLS} tools; the rest is left out"),
                    );
                    return Ok((listing.sorted_by_name(), lasting));
                }
                Ok(tool) if !known.insert(tool.name.clone()) => {
                    listing
                        .add_warning(server, format!("lists tool `{}` twice; the first counts", tool.name));
                }
                Ok(tool) => {
                    if described > MAX_DESCRIPTION_BYTES {
                        let what = format!(
                            "describes tool `{}` in {described} bytes; the model sees the first {MAX_DESCRIPTION_BYTES}",
                            tool.name
                        );
                        listing.add_warning(server, what);
                    }
                    listing.tools.push(Arc::new(tool));
                }
                Err(why) => listing.add_warning(server, format!("{why}; it is left out")),
            }
        }
        match page.next_cursor {
            None => return Ok((listing.sorted_by_name(), lasting)),
            Some(next) if !cursors.insert(next.clone()) => {
                listing.add_warning(
                    server,
                    "repeats a page cursor of its tool list; the list ends there".into(),
                );
                return Ok((listing.sorted_by_name(), lasting));
            }
            Some(next) => cursor = Some(next),
        }
    }
    listing
        .add_warning(server, format!("lists its tools on more than {MAX_PAGES} pages; the rest is left out"));
    Ok((listing.sorted_by_name(), lasting))
}

impl ToolListing {
    fn add_warning(&mut self, server: &str, what: String) {
        // The number of warnings is bounded so that one broken server does not flood the log.
        const MAX_WARNINGS: usize = 20;
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(format!("MCP server `{server}` {what}"));
        }
    }

    /// Sorts the tools by name: a stable order keeps the providers' prompt caches valid.
    fn sorted_by_name(mut self) -> Self {
        self.tools.sort_by(|one, other| one.name.cmp(&other.name));
        self
    }
}

struct ToolListPage {
    tools: Vec<Value>,
    next_cursor: Option<String>,
    ttl: Option<Duration>,
}

async fn fetch_page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<ToolListPage, ServiceError> {
    let params = PaginatedRequestParams::default().with_cursor(cursor);
    let request = ListToolsRequest::with_param(params);
    let value = match peer.send_request(ClientRequest::ListToolsRequest(request)).await? {
        ServerResult::ListToolsResult(result) => serde_json::to_value(result).unwrap_or_default(),
        // rmcp returns a custom result if any tool of the list does not match the protocol's schema.
        ServerResult::CustomResult(result) => result.0,
        _ => return Err(ServiceError::UnexpectedResponse),
    };
    let Some(Value::Array(tools)) = value.get("tools") else { return Err(ServiceError::UnexpectedResponse) };
    Ok(ToolListPage {
        tools: tools.clone(),
        next_cursor: value.get("nextCursor").and_then(Value::as_str).map(str::to_owned),
        ttl: value.get("ttlMs").and_then(Value::as_u64).map(Duration::from_millis),
    })
}

pub(super) fn parse_tool(server: &Arc<str>, tool: Value) -> Result<McpToolInfo, String> {
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
    if description.len() > MAX_DESCRIPTION_BYTES {
        description.truncate(description.floor_char_boundary(MAX_DESCRIPTION_BYTES));
    }
    let title = text("title").or_else(|| annotations?.get("title")?.as_str()).map(str::to_owned);
    Ok(McpToolInfo {
        server: server.clone(),
        name: name.into(),
        title,
        description,
        input_schema: Arc::new(input_schema),
        output_schema: tool.get("outputSchema").filter(|schema| schema.is_object()).cloned().map(Arc::new),
        hints: ToolHints {
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint"),
            idempotent: hint("idempotentHint"),
            open_world: hint("openWorldHint"),
        },
    })
}
