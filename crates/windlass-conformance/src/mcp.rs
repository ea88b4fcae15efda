//! A scenario's MCP servers: served by the library, spoken to by the library, over HTTP on this machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use windlass::{OnFailure, Tool, ToolContext, ToolError};
use windlass_mcp::{Approve, Config, Era, McpServer, McpTools, Naming, ServerConfig, Servers};

use crate::json::Json;
use crate::tool::{parameters, schema};
use crate::world::World;

/// The servers of a scenario, for as long as it is played.
#[derive(Default)]
pub(crate) struct Served {
    addresses: BTreeMap<String, String>,
    /// What each agent that has servers is connected to.
    connected: BTreeMap<String, Servers>,
    serving: Vec<AbortHandle>,
}

impl Served {
    /// Serves what a scenario describes, and connects its agents.
    pub(crate) async fn new(scenario: &Json, world: &Arc<World>) -> std::io::Result<Self> {
        let mut served = Self::default();
        for (name, spec) in scenario.get("mcp_servers").unwrap_or(&Json::Null).fields() {
            let tools = spec.get("tools").unwrap_or(&Json::Null).fields();
            let tools = tools.iter().map(|(tool, spec)| served_tool(name, tool, spec));
            let server = tools.fold(McpServer::with_context(name, world.clone()), McpServer::tool);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            served.addresses.insert(name.clone(), format!("http://{}/mcp", listener.local_addr()?));
            let serving = tokio::spawn(async move {
                let _ended = server.serve_http(listener, std::future::pending()).await;
            });
            served.serving.push(serving.abort_handle());
        }
        let era = match scenario.text_of("mcp_era") {
            Some("legacy") => Era::Legacy,
            _ => Era::Modern,
        };
        for (agent, spec) in scenario.get("agents").unwrap_or(&Json::Null).fields() {
            let names = spec.get("mcp_servers").unwrap_or(&Json::Null).list().iter().filter_map(Json::text);
            let of =
                |name: &str| served.addresses.get(name).map(|url| ServerConfig::http(name, url).era(era));
            let configs: Vec<ServerConfig> = names.filter_map(of).collect();
            if !configs.is_empty() {
                let config = configs.into_iter().fold(Config::new(), Config::server);
                served.connected.insert(agent.clone(), Servers::connect(config).await);
            }
        }
        Ok(served)
    }

    /// The tools of an agent's servers.
    pub(crate) fn tools(&self, agent: &str, scenario: &Json) -> Option<McpTools<World>> {
        let nothing = Json::Null;
        let spec = scenario.get("agents").and_then(|agents| agents.get(agent)).unwrap_or(&nothing);
        let mut tools = self.connected.get(agent)?.tools();
        if spec.switch("mcp_prefix", false) {
            tools = tools.naming(Naming::Prefixed);
        }
        for (name, server) in scenario.get("mcp_servers").unwrap_or(&nothing).fields() {
            tools = tools.approve_for(name, approve(server.get("approval").unwrap_or(&nothing)));
        }
        Some(tools)
    }

    pub(crate) async fn close(&self) {
        for servers in self.connected.values() {
            servers.close().await;
        }
        self.serving.iter().for_each(AbortHandle::abort);
    }
}

/// A tool as its server has it. A server does not know which call of which agent it carries out, so its bodies name
/// themselves in the log.
fn served_tool(server: &str, name: &str, spec: &Json) -> Tool<World> {
    let (line, spec) = (format!("{name} {server}/{name}"), spec.clone());
    let schema = schema(&parameters(&spec));
    let body = move |ctx: ToolContext<World>, arguments: Value| {
        let (line, does) = (line.clone(), spec.get("does").cloned().unwrap_or(Json::Null));
        async move {
            ctx.app().log(format!("start {line}"));
            if let Some(error) = does.text_of("raise") {
                return Err(ToolError::tell(error));
            }
            ctx.app().set(does.get("set").unwrap_or(&Json::Null));
            ctx.app().log(format!("done {line}"));
            Ok(match does.text_of("return") {
                // Keys are sorted in a value.
                _ if does.switch("echo", false) => arguments.to_string(),
                Some(text) => text.to_owned(),
                None => "ok".to_owned(),
            })
        }
    };
    // The server's own words are what its client is told.
    let said = OnFailure::say(|_, error: &ToolError| error.message().to_owned());
    Tool::dynamic(name, name, schema, body).non_strict().on_failure(said)
}

/// When a person decides; never, where the scenario does not say.
fn approve(rule: &Json) -> Approve<World> {
    match rule {
        Json::Text(word) if word == "always" => Approve::Always,
        Json::Object(tools) => {
            Approve::per_tool(tools.iter().map(|(name, rule)| (name.clone(), approve(rule))))
        }
        _ => Approve::Never,
    }
}
