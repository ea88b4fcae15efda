//! Agents as tools: a nested run inside a tool call, with its own history, turns and pauses.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_core::schema::CompiledSchema;
use windlass_core::{id::AgentName, item::Item, tool::ToolEffect};

use super::{Agent, HandoffTarget};
use crate::tool::{Tool, ToolBody};

/// Default maximum number of turns of a nested agent.
const DEFAULT_NESTED_TURNS: u32 = 10;

/// A tool body that runs an agent.
pub(crate) struct AgentTool<C> {
    pub(crate) target: HandoffTarget<C>,
    pub(crate) max_turns: Option<u32>,
    /// The schema that the call's arguments are validated against.
    pub(crate) schema: Arc<CompiledSchema>,
}

impl<C> Clone for AgentTool<C> {
    fn clone(&self) -> Self {
        Self { target: self.target.clone(), max_turns: self.max_turns, schema: self.schema.clone() }
    }
}

impl<C: Send + Sync + 'static> AgentTool<C> {
    /// Parses canonical arguments into the input of the nested run.
    pub(crate) fn parse_input(&self, arguments: &str) -> Result<Vec<Arc<Item>>, String> {
        let value: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        match value.get("input").and_then(Value::as_str) {
            Some(text) => Ok(vec![Arc::new(Item::user(text))]),
            None => Err("`input` must be a string".to_owned()),
        }
    }
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// Returns a tool that runs this agent: the input is text, and the agent's final output is the output of
    /// the call. A call that waits for a person inside the agent pauses the outer run, and is decided there.
    pub fn as_tool(&self, name: &str, description: &str) -> Tool<C> {
        build_agent_tool(HandoffTarget::Agent(self.clone()), name, description)
    }
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Creates a tool that runs an agent that the run knows by name, for agents that call each other or
    /// themselves. See [`RunBuilder::known_agents`](crate::run::RunBuilder::known_agents).
    pub fn from_agent_name(agent: impl Into<AgentName>, name: &str, description: &str) -> Self {
        build_agent_tool(HandoffTarget::ByName(agent.into()), name, description)
    }

    /// Sets the maximum number of turns of the nested agent. Ignored for tools that do not run an agent.
    #[must_use]
    pub fn agent_max_turns(mut self, turns: u32) -> Self {
        if let ToolBody::Agent(agent) = &mut self.body {
            agent.max_turns = Some(turns);
        }
        self
    }
}

fn build_agent_tool<C: Send + Sync + 'static>(
    target: HandoffTarget<C>,
    name: &str,
    description: &str,
) -> Tool<C> {
    let schema = Arc::new(json!({
        "type": "object",
        "properties": { "input": { "type": "string" } },
        "required": ["input"],
        "additionalProperties": false,
    }));
    let shape = Arc::new(CompiledSchema::new(schema.clone()));
    let body = AgentTool { target, max_turns: Some(DEFAULT_NESTED_TURNS), schema: shape };
    // Each call inside the agent has its own effect, and resuming the agent repeats none of them.
    Tool::new(name, description, schema, ToolBody::Agent(body)).effect(ToolEffect::Pure)
}

/// Converts an agent's name to a tool name that providers accept: lower case, with `_` in place of every other
/// character.
pub(crate) fn to_tool_name(agent: &AgentName) -> String {
    agent
        .as_str()
        .to_lowercase()
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() || character == '_' { character } else { '_' })
        .collect()
}
