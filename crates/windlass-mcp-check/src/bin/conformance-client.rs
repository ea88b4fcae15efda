//! The client under test of the official conformance suite: an agent with the suite's server, which uses only the
//! library's public API.
//!
//! Usage: `conformance-client URL`. The suite's environment variables name the calls; by default every tool
//! is called once.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::prelude::*;
use windlass_mcp::{
    McpApprovalPolicy, McpAuth, McpConfig, McpConnections, McpServerConfig, McpToolInfo, OAuthConfig,
    ProtocolEra,
};

const REDIRECT_URL: &str = "http://localhost:3000/callback";
const METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().next_back().unwrap_or_default();
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    tokio::time::timeout(Duration::from_secs(25), run_scenario(&url, &context)).await?
}

async fn run_scenario(url: &str, context: &Value) -> Result<(), Box<dyn std::error::Error>> {
    let mut oauth = OAuthConfig::new(REDIRECT_URL, follow_redirect)
        .client_name("conformance-client")
        .metadata_url(METADATA_URL);
    if let Some(id) = context["client_id"].as_str() {
        oauth = oauth.preregistered_client(id, context["client_secret"].as_str().map(str::to_owned));
    }
    let server = McpServerConfig::http("suite", url).auth(McpAuth::OAuth(oauth)).trusted();
    let server = match std::env::var("MCP_CONFORMANCE_PROTOCOL_VERSION") {
        Ok(version) if *version < *"2026-07-28" => server.era(ProtocolEra::Legacy),
        Ok(_) | Err(_) => server,
    };
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let missing = servers.report().await.unavailable_servers();
    if !missing.is_empty() {
        return Err(missing.join("\n").into());
    }
    let tools = servers.list_tools().await;
    let calls: Vec<(String, Value)> = match context["toolCalls"].as_array() {
        Some(calls) => calls
            .iter()
            .map(|call| (call["name"].as_str().unwrap_or_default().to_owned(), call["arguments"].clone()))
            .collect(),
        None => tools.iter().map(|tool| (tool.name.to_string(), sample_arguments(tool, &tools))).collect(),
    };
    let replies = calls.iter().enumerate().map(|(at, (name, arguments))| {
        let arguments = if arguments.is_object() { arguments.clone() } else { json!({}) };
        ScriptedResponse::call(&format!("c{at}"), name, arguments)
    });
    let model = ScriptedModel::new(replies.chain([ScriptedResponse::text("done")]));
    let tools = servers.tools().approve(McpApprovalPolicy::Never);
    let tools = tools
        .on_elicitation(|_, question| async move { Some(default_answer(question.schema.as_ref()).into()) });
    Agent::new("client").model(model).tool_source(tools).run("go").unlimited_turns().await?;
    servers.close().await;
    Ok(())
}

/// Returns sample values for a tool's required arguments.
fn sample_arguments(tool: &McpToolInfo, all: &[std::sync::Arc<McpToolInfo>]) -> Value {
    let schema = &tool.input_schema;
    let mut given = Map::new();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let value = match schema["properties"][name]["type"].as_str() {
            Some("number" | "integer") => json!(1),
            Some("boolean") => json!(true),
            // The suite checks the schema that the client received.
            Some("object") if name == "schema" => {
                let other = all.iter().find(|other| other.name != tool.name);
                other.map_or(json!({}), |other| (*other.input_schema).clone())
            }
            Some("object") => json!({}),
            Some("array") => json!([]),
            _ => json!("test"),
        };
        given.insert(name.to_owned(), value);
    }
    Value::Object(given)
}

/// Returns the answer to an elicitation form: the defaults, and sample values for required fields.
fn default_answer(schema: Option<&Value>) -> Value {
    let mut given = Map::new();
    let properties = schema.and_then(|schema| schema["properties"].as_object());
    for (name, property) in properties.into_iter().flatten() {
        let required = schema.and_then(|schema| schema["required"].as_array());
        let is_required = required.is_some_and(|names| names.iter().any(|one| one.as_str() == Some(name)));
        let value = match (property.get("default"), property["type"].as_str()) {
            (Some(default), _) => default.clone(),
            (None, _) if !is_required => continue,
            (None, Some("number" | "integer")) => json!(1),
            (None, Some("boolean")) => json!(true),
            (None, _) => property["enum"].get(0).cloned().unwrap_or(json!("test")),
        };
        given.insert(name.clone(), value);
    }
    Value::Object(given)
}

/// Requests the authorisation page without a browser and returns the redirect target.
async fn follow_redirect(address: String) -> Result<String, String> {
    let rest = address.strip_prefix("http://").ok_or("only plain addresses are visited here")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = tokio::net::TcpStream::connect(host).await.map_err(failed)?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page).await.map_err(failed)?;
    let page = String::from_utf8_lossy(&page);
    let mut headers = page.lines().take_while(|line| !line.is_empty());
    let location = headers.find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.to_owned())
    });
    location.ok_or_else(|| "the page led nowhere".to_owned())
}
