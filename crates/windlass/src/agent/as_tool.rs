//! Agents as tools: a nested run inside a tool call, with its own history, turns and pauses.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_core::schema::{CompiledSchema, describe_violations};
use windlass_core::{
    id::AgentName,
    item::{Item, OutputContent},
    run::RunItem,
    tool::ToolEffect,
};

use super::{Agent, AgentInner, HandoffTarget};
use crate::guardrail::panic_message;
use crate::run::{IntoInput, TurnLimit};
use crate::tool::{
    BodyResult, Tool, ToolBody, ToolError, generate_schema, parse_arguments, parse_value, to_body_result,
};

/// A tool body that runs an agent.
pub(crate) struct AgentTool<C> {
    pub(crate) target: HandoffTarget<C>,
    pub(crate) max_turns: TurnLimit,
    /// The schema that the call's arguments are validated against.
    schema: Arc<CompiledSchema>,
    input: AgentToolInput,
    output: Option<OutputFunction>,
}

/// The conversion of a call's arguments to the input of the nested run.
#[derive(Clone)]
struct AgentToolInput {
    parse: fn(&str, &CompiledSchema) -> Result<ParsedArguments, String>,
    build: Arc<dyn Fn(&(dyn Any + Send + Sync)) -> Option<Vec<Arc<Item>>> + Send + Sync>,
}

/// Parsed arguments of an agent tool: a [`Value`] or the type that the author declared.
type ParsedArguments = Box<dyn Any + Send + Sync>;

type OutputFunction = Arc<dyn Fn(&NestedAgentResult) -> BodyResult + Send + Sync>;

/// The result of an agent that ran as a tool, for [`Tool::agent_output`].
#[derive(Clone, Debug)]
pub struct NestedAgentResult {
    /// The agent that ended the nested run.
    pub agent: AgentName,
    /// The final output. It is JSON if the agent has an output type.
    pub output: String,
    /// The items of the nested run, oldest first.
    pub items: Vec<RunItem>,
}

impl NestedAgentResult {
    /// Parses the final output, for agents with an output type.
    ///
    /// # Errors
    ///
    /// Returns an error if the output does not match the type.
    pub fn parse_output<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.output)
    }
}

impl<C> Clone for AgentTool<C> {
    fn clone(&self) -> Self {
        Self {
            target: self.target.clone(),
            max_turns: self.max_turns,
            schema: self.schema.clone(),
            input: self.input.clone(),
            output: self.output.clone(),
        }
    }
}

impl<C: Send + Sync + 'static> AgentTool<C> {
    /// Parses canonical arguments, or returns a list of their problems.
    pub(crate) fn parse_arguments(&self, text: &str) -> Result<ParsedArguments, String> {
        (self.input.parse)(text, &self.schema)
    }

    /// Converts canonical arguments to the input of the nested run.
    pub(crate) fn build_input(&self, arguments: &str) -> Result<Vec<Arc<Item>>, ToolError> {
        let parsed = self.parse_arguments(arguments).map_err(ToolError::visible)?;
        let built = std::panic::catch_unwind(AssertUnwindSafe(|| (self.input.build)(&*parsed)));
        match built {
            Ok(Some(input)) => Ok(input),
            Ok(None) => Err(ToolError::visible("the arguments cannot be used")),
            Err(panic) => {
                let message = format!("the input function panicked: {}", panic_message(&*panic));
                Err(ToolError::hidden(message))
            }
        }
    }

    /// True if a function makes the output of the call.
    pub(crate) fn has_output_function(&self) -> bool {
        self.output.is_some()
    }

    /// Returns the output of the call.
    pub(crate) fn extract_output(&self, result: NestedAgentResult) -> BodyResult {
        let Some(extract) = &self.output else { return Ok(OutputContent::from(result.output)) };
        let extracted = std::panic::catch_unwind(AssertUnwindSafe(|| extract(&result)));
        extracted.unwrap_or_else(|panic| {
            Err(ToolError::hidden(format!("the output function panicked: {}", panic_message(&*panic))))
        })
    }
}

impl<C: Send + Sync + 'static> AgentTool<C> {
    /// Returns the effect of a new run of the agent.
    pub(crate) fn run_effect(&self) -> ToolEffect {
        let mut visited = Vec::new();
        if is_pure_target(&self.target, &mut visited) { ToolEffect::Pure } else { ToolEffect::Once }
    }
}

/// Returns true if no run of the agent can have a side effect: its own tools and those of the agents that it can
/// reach are pure, and all of them are known. Idempotent tools do not count, because another run of the agent may
/// call them with other arguments.
fn is_pure_target<C: Send + Sync + 'static>(
    target: &HandoffTarget<C>,
    visited: &mut Vec<*const AgentInner<C>>,
) -> bool {
    let HandoffTarget::Agent(agent) = target else { return false };
    let inner = &*agent.inner;
    if visited.contains(&std::ptr::from_ref(inner)) {
        return true;
    }
    visited.push(inner);
    let is_pure_tool = |tool: &Arc<Tool<C>>, visited: &mut Vec<_>| match &tool.body {
        ToolBody::Agent(agent) => is_pure_target(&agent.target, visited),
        ToolBody::Function(_) => tool.is_function() && tool.effect == ToolEffect::Pure,
    };
    inner.sources.is_empty()
        && inner.tools.iter().all(|tool| is_pure_tool(tool, visited))
        && inner.handoffs.iter().all(|handoff| is_pure_target(&handoff.target, visited))
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// Returns a tool that runs this agent: the input is text, and the agent's final output is the output of
    /// the call. A call that waits for a person inside the agent pauses the outer run, and is decided there.
    ///
    /// [`Tool::agent_input`] gives the tool other parameters, and [`Tool::agent_output`] another output:
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use windlass::prelude::*;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Search {
    ///     topic: String,
    ///     pages: u32,
    /// }
    ///
    /// let reader: Agent = Agent::new("reader");
    /// let tool = reader
    ///     .as_tool("read_up", "Reads up on a topic.")
    ///     .agent_input(|search: &Search| format!("Read {} pages about {}.", search.pages, search.topic))
    ///     .agent_output(|result| Ok::<_, String>(result.output.to_uppercase()));
    /// # let _ = tool;
    /// ```
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
            agent.max_turns = TurnLimit::AtMost(turns);
        }
        self
    }

    /// Sets the type of the arguments of a tool that runs an agent, and the function that makes the input of the nested
    /// run from them. Rules of the tool see the same type. Ignored for tools that do not run an agent.
    #[must_use]
    pub fn agent_input<A, I>(mut self, build: impl Fn(&A) -> I + Send + Sync + 'static) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + Sync + 'static,
        I: IntoInput,
    {
        if let ToolBody::Agent(agent) = &mut self.body {
            let schema = Arc::new(generate_schema::<A>());
            agent.schema = Arc::new(CompiledSchema::new(schema.clone()));
            agent.input = AgentToolInput {
                parse: parse_typed_arguments::<A>,
                build: Arc::new(move |arguments| Some(build(arguments.downcast_ref::<A>()?).into_input())),
            };
            self.set_schema(schema);
        }
        self
    }

    /// Sets the function that makes the output of the call from the result of the nested agent, in place of the agent's
    /// final output. An error is the failure of the call. Ignored for tools that do not run an agent.
    #[must_use]
    pub fn agent_output<T, E>(
        mut self,
        extract: impl Fn(&NestedAgentResult) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self
    where
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        if let ToolBody::Agent(agent) = &mut self.body {
            agent.output = Some(Arc::new(move |result| to_body_result(extract(result))));
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
    let input = AgentToolInput {
        parse: |text, schema| Ok(Box::new(parse_value(text, schema)?)),
        build: Arc::new(|arguments| {
            let text = arguments.downcast_ref::<Value>()?.get("input")?.as_str()?;
            Some(vec![Arc::new(Item::user(text))])
        }),
    };
    let body = AgentTool {
        target,
        max_turns: TurnLimit::ByTools,
        schema: Arc::new(CompiledSchema::new(schema.clone())),
        input,
        output: None,
    };
    // Each call inside the agent has its own effect, and resuming the agent repeats none of them. This is the
    // effect for recovery alone; `Tool::declared_effect` returns the effect of the agent's tools.
    Tool::new(name, description, schema, ToolBody::Agent(body)).effect(ToolEffect::Pure)
}

/// Parses canonical arguments as `A` after validation against the schema.
fn parse_typed_arguments<A: DeserializeOwned + Send + Sync + 'static>(
    text: &str,
    schema: &CompiledSchema,
) -> Result<ParsedArguments, String> {
    let problems = schema.validate_text(text);
    if !problems.is_empty() {
        return Err(describe_violations(&problems));
    }
    Ok(Box::new(parse_arguments::<A>(text, schema)?))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Handoff;

    fn tool(effect: ToolEffect) -> Tool {
        let schema = json!({ "type": "object", "properties": {} });
        Tool::dynamic("tool", "A tool.", schema, |_, _: Value| async { Ok::<_, String>("done") })
            .effect(effect)
    }

    fn effect_of(agent: &Agent) -> ToolEffect {
        agent.as_tool("ask", "Asks.").declared_effect()
    }

    #[test]
    fn the_effect_of_an_agent_is_that_of_its_tools() {
        let reader: Agent = Agent::new("reader").tool(tool(ToolEffect::Pure));
        let writer: Agent = Agent::new("writer").tool(tool(ToolEffect::Once));
        assert_eq!(effect_of(&Agent::new("talker")), ToolEffect::Pure);
        assert_eq!(effect_of(&reader), ToolEffect::Pure);
        assert_eq!(effect_of(&writer), ToolEffect::Once);
        assert_eq!(effect_of(&Agent::new("payer").tool(tool(ToolEffect::Idempotent))), ToolEffect::Once);
        // Agents that it can reach count too, and those that are not known here.
        let manager: Agent = Agent::new("manager");
        assert_eq!(effect_of(&manager.clone().tool(reader.as_tool("read", "Reads."))), ToolEffect::Pure);
        assert_eq!(effect_of(&manager.clone().tool(writer.as_tool("write", "Writes."))), ToolEffect::Once);
        assert_eq!(effect_of(&manager.clone().handoff(reader)), ToolEffect::Pure);
        assert_eq!(effect_of(&manager.clone().handoff(writer)), ToolEffect::Once);
        assert_eq!(effect_of(&manager.clone().handoff(Handoff::to_named("somebody"))), ToolEffect::Once);
        let hosted = Tool::hosted(json!({ "type": "code_interpreter" }));
        assert_eq!(effect_of(&manager.tool(hosted)), ToolEffect::Once);
    }
}
