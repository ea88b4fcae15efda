//! The MCP servers of a scenario, served and called by `windlass-mcp` over local HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use windlass::tool::{OnFailure, Tool, ToolContext, ToolError};
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpServer, McpServerConfig, McpTools, ProtocolEra,
    ToolNaming,
};

use crate::json::OrderedJson;
use crate::tool::{parameters_schema, read_parameters};
use crate::world::ScenarioWorld;

/// The running MCP servers of a scenario.
#[derive(Default)]
pub(crate) struct ScenarioServers {
    addresses: BTreeMap<String, String>,
    /// Server connections by agent.
    connections: BTreeMap<String, McpConnections>,
    server_tasks: Vec<AbortHandle>,
}

impl ScenarioServers {
    /// Starts the servers of a scenario and connects its agents.
    pub(crate) async fn new(scenario: &OrderedJson, world: &Arc<ScenarioWorld>) -> std::io::Result<Self> {
        let mut served = Self::default();
        for (name, spec) in scenario.get("mcp_servers").unwrap_or(&OrderedJson::Null).object_fields() {
            let tools = spec.get("tools").unwrap_or(&OrderedJson::Null).object_fields();
            let tools = tools.iter().map(|(tool, spec)| served_tool(name, tool, spec));
            let server = tools.fold(McpServer::with_context(name, world.clone()), McpServer::tool);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            served.addresses.insert(name.clone(), format!("http://{}/mcp", listener.local_addr()?));
            let serving = tokio::spawn(async move {
                let _ended = server.serve_http(listener, std::future::pending()).await;
            });
            served.server_tasks.push(serving.abort_handle());
        }
        let era = match scenario.text_field("mcp_era") {
            Some("legacy") => ProtocolEra::Legacy,
            _ => ProtocolEra::Modern,
        };
        for (agent, spec) in scenario.get("agents").unwrap_or(&OrderedJson::Null).object_fields() {
            let names = spec
                .get("mcp_servers")
                .unwrap_or(&OrderedJson::Null)
                .list_items()
                .iter()
                .filter_map(OrderedJson::as_text);
            let of =
                |name: &str| served.addresses.get(name).map(|url| McpServerConfig::http(name, url).era(era));
            let configs: Vec<McpServerConfig> = names.filter_map(of).collect();
            if !configs.is_empty() {
                let config = configs.into_iter().fold(McpConfig::new(), McpConfig::server);
                served.connections.insert(agent.clone(), McpConnections::connect(config).await);
            }
        }
        Ok(served)
    }

    /// Returns the MCP tools of an agent, or `None` if the agent has no servers.
    pub(crate) fn tools(&self, agent: &str, scenario: &OrderedJson) -> Option<McpTools<ScenarioWorld>> {
        let nothing = OrderedJson::Null;
        let spec = scenario.get("agents").and_then(|agents| agents.get(agent)).unwrap_or(&nothing);
        let mut tools = self.connections.get(agent)?.tools();
        if spec.bool_field("mcp_prefix", false) {
            tools = tools.naming(ToolNaming::Prefixed);
        }
        for (name, server) in scenario.get("mcp_servers").unwrap_or(&nothing).object_fields() {
            tools = tools.approve_for(name, approval_rule(server.get("approval").unwrap_or(&nothing)));
        }
        Some(tools)
    }

    pub(crate) async fn close(&self) {
        for servers in self.connections.values() {
            servers.close().await;
        }
        self.server_tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Creates a tool on the server side. A server does not know the agent or the call, so its bodies log their own
/// name.
fn served_tool(server: &str, name: &str, spec: &OrderedJson) -> Tool<ScenarioWorld> {
    let (line, spec) = (format!("{name} {server}/{name}"), spec.clone());
    let schema = parameters_schema(&read_parameters(&spec));
    let body = move |ctx: ToolContext<ScenarioWorld>, arguments: Value| {
        let (line, does) = (line.clone(), spec.get("does").cloned().unwrap_or(OrderedJson::Null));
        async move {
            ctx.app().push_log(format!("start {line}"));
            if let Some(error) = does.text_field("raise") {
                return Err(ToolError::visible(error));
            }
            ctx.app().set_context(does.get("set").unwrap_or(&OrderedJson::Null));
            ctx.app().push_log(format!("done {line}"));
            Ok(match does.text_field("return") {
                // `Value` sorts its keys.
                _ if does.bool_field("echo", false) => arguments.to_string(),
                Some(text) => text.to_owned(),
                None => "ok".to_owned(),
            })
        }
    };
    // The client receives the server's error text.
    let said = OnFailure::custom_message(|_, error: &ToolError| error.message().to_owned());
    Tool::dynamic(name, name, schema, body).non_strict().on_failure(said)
}

/// Returns the approval rule of a scenario; `Never` by default.
fn approval_rule(rule: &OrderedJson) -> McpApprovalPolicy<ScenarioWorld> {
    match rule {
        OrderedJson::Text(word) if word == "always" => McpApprovalPolicy::Always,
        OrderedJson::Object(tools) => {
            McpApprovalPolicy::per_tool(tools.iter().map(|(name, rule)| (name.clone(), approval_rule(rule))))
        }
        _ => McpApprovalPolicy::Never,
    }
}
