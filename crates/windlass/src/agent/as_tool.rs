//! An agent as a tool: a run of its own inside a call, with its own history, turns and pauses.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_core::schema::Shape;
use windlass_core::{AgentName, Effect, Item};

use super::{Agent, Target};
use crate::tool::{Tool, ToolBody};

/// How many turns an agent has when it is called as a tool, unless it is given another number.
const DEFAULT_NESTED_TURNS: u32 = 10;

/// An agent as the body of a tool.
pub(crate) struct AgentTool<C> {
    pub(crate) target: Target<C>,
    pub(crate) max_turns: Option<u32>,
    /// What its arguments are checked against.
    pub(crate) shape: Arc<Shape>,
}

impl<C> Clone for AgentTool<C> {
    fn clone(&self) -> Self {
        Self { target: self.target.clone(), max_turns: self.max_turns, shape: self.shape.clone() }
    }
}

impl<C: Send + Sync + 'static> AgentTool<C> {
    /// What the nested run is given, read from canonical arguments.
    pub(crate) fn input(&self, arguments: &str) -> Result<Vec<Arc<Item>>, String> {
        let value: Value = serde_json::from_str(arguments).map_err(|error| error.to_string())?;
        match value.get("input").and_then(Value::as_str) {
            Some(text) => Ok(vec![Arc::new(Item::user(text))]),
            None => Err("`input` must be a string".to_owned()),
        }
    }
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// This agent as a tool of another: it is given text, runs to its end, and its final output is the call's.
    /// What waits for a person inside it pauses the outer run, and is decided there.
    pub fn as_tool(&self, name: &str, description: &str) -> Tool<C> {
        agent_tool(Target::Agent(self.clone()), name, description)
    }
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// An agent that the run knows by name, as a tool: for agents that call each other, or themselves.
    pub fn agent_named(agent: impl Into<AgentName>, name: &str, description: &str) -> Self {
        agent_tool(Target::Named(agent.into()), name, description)
    }

    /// How many turns an agent has when it is called as this tool. It has no meaning for other tools.
    #[must_use]
    pub fn agent_turns(mut self, turns: u32) -> Self {
        if let ToolBody::Agent(agent) = &mut self.body {
            agent.max_turns = Some(turns);
        }
        self
    }
}

fn agent_tool<C: Send + Sync + 'static>(target: Target<C>, name: &str, description: &str) -> Tool<C> {
    let schema = Arc::new(json!({
        "type": "object",
        "properties": { "input": { "type": "string" } },
        "required": ["input"],
        "additionalProperties": false,
    }));
    let shape = Arc::new(Shape::new(schema.clone()));
    let body = AgentTool { target, max_turns: Some(DEFAULT_NESTED_TURNS), shape };
    // Its own calls have effects of their own; going on with an agent repeats none of them.
    Tool::new(name, description, schema, ToolBody::Agent(body)).effect(Effect::Pure)
}

/// A name in the form that providers take for tools: lower case, with `_` for everything else.
pub(crate) fn tool_name_of(agent: &AgentName) -> String {
    agent
        .as_str()
        .to_lowercase()
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() || character == '_' { character } else { '_' })
        .collect()
}
