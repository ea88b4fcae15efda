//! The resources of MCP servers as tools of an agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::MediaSource;
use windlass::core::provenance::ContentSource;
use windlass::core::tool::ToolEffect;
use windlass::tool::{FilePart, TextPart, Tool, ToolContext, ToolError};

use crate::client::ResourceBody;
use crate::servers::McpConnections;

/// Builds the tools that list and read the resources of the named servers.
pub(crate) fn build<C: Send + Sync + 'static>(
    servers: &McpConnections,
    names: BTreeSet<String>,
) -> Vec<Tool<C>> {
    let names = Arc::new(names);
    let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let (listed, listed_names) = (servers.clone(), names.clone());
    let list = Tool::dynamic(
        "list_mcp_resources",
        "Lists the resources of the MCP servers, with the server and the URI of each, and the servers whose list is missing or incomplete. Variables in a URI are in braces.",
        nothing,
        move |_: ToolContext<C>, _: Value| {
            let (servers, names) = (listed.clone(), listed_names.clone());
            async move {
                let mut catalogue = servers.list_resources().await;
                catalogue.items.retain(|item| names.contains(&item.server));
                catalogue.unavailable.retain(|problem| names.contains(&problem.server));
                Ok::<_, ToolError>(
                    json!({ "resources": catalogue.items, "unavailable": catalogue.unavailable }),
                )
            }
        },
    );
    let place = json!({
        "type": "object",
        "properties": {
            "server": { "type": "string", "description": "The name of the server." },
            "uri": { "type": "string", "description": "The URI of the resource." },
        },
        "required": ["server", "uri"],
        "additionalProperties": false,
    });
    let read_from = servers.clone();
    let read = Tool::dynamic(
        "read_mcp_resource",
        "Reads a resource of an MCP server.",
        place,
        move |_: ToolContext<C>, arguments: Value| {
            let (servers, names) = (read_from.clone(), names.clone());
            async move {
                let text =
                    |key: &str| arguments.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                if !names.contains(&text("server")) {
                    let known = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                    return Err(ToolError::visible(format!("`server` must be one of {known}")));
                }
                let read = servers.read_resource(&text("server"), &text("uri")).await;
                let contents = read.map_err(|error| ToolError::visible(error.to_string()))?;
                let parts = contents.into_iter().flat_map(|resource| {
                    let label = ResourcePart::Text(TextPart(format!("[resource {}]", resource.uri)));
                    let body = match resource.body {
                        ResourceBody::Text(text) => ResourcePart::Text(TextPart(text)),
                        ResourceBody::Base64(data) => ResourcePart::File(FilePart(MediaSource {
                            name: Some(resource.uri),
                            data: Some(data),
                            media_type: resource.mime_type,
                            ..MediaSource::default()
                        })),
                    };
                    [label, body]
                });
                Ok::<_, ToolError>(parts.collect::<Vec<_>>())
            }
        },
    );
    let mark = |tool: Tool<C>| tool.effect(ToolEffect::Pure).content_source(ContentSource::Mcp);
    vec![mark(list), mark(read)]
}

/// One part of a resource's content.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum ResourcePart {
    Text(TextPart),
    File(FilePart),
}
