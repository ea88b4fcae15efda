//! Builds a scenario through the public API: agents with scripted models, tools with the described behaviour,
//! and a log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use serde_json::Value;
use windlass::agent::{Agent, Handoff, ToolChoiceReset, ToolUsePolicy};
use windlass::model::{
    DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ModelSettings, ScriptedModel,
    ScriptedResponse, ToolChoice,
};
use windlass::tool::{Tool, ToolContext};

use crate::guardrails::{input_guardrail, output_guardrail};
use crate::json::{JsonStyle, OrderedJson};
use crate::mcp::ScenarioServers;
use crate::tool::function_tool;

/// The application context that a scenario's tools, rules and hooks share.
#[derive(Debug, Default)]
pub(crate) struct ScenarioWorld {
    state: Mutex<ScenarioState>,
}

/// The recorded state of a scenario.
#[derive(Debug, Default)]
pub(crate) struct ScenarioState {
    /// Log lines, in order.
    pub(crate) log: Vec<String>,
    /// Number of running bodies.
    pub(crate) running_bodies: usize,
    /// Maximum number of concurrent bodies.
    pub(crate) peak_concurrency: usize,
    /// State of the application.
    pub(crate) context: Vec<(String, OrderedJson)>,
    /// Non-text results of bodies, by call.
    pub(crate) values: BTreeMap<String, (String, OrderedJson)>,
}

impl ScenarioWorld {
    /// Creates a world with this application state.
    pub(crate) fn new(context: &OrderedJson) -> Self {
        Self {
            state: Mutex::new(ScenarioState {
                context: context.object_fields().to_vec(),
                ..ScenarioState::default()
            }),
        }
    }

    /// Locks and returns the recorded state.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, ScenarioState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets fields of the application's state.
    pub(crate) fn set_context(&self, fields: &OrderedJson) {
        let mut state = self.lock_state();
        for (key, value) in fields.object_fields() {
            match state.context.iter_mut().find(|(known, _)| known == key) {
                Some(known) => known.1 = value.clone(),
                None => state.context.push((key.clone(), value.clone())),
            }
        }
    }

    pub(crate) fn push_log(&self, line: String) {
        self.lock_state().log.push(line);
    }
}

/// The agents of a scenario and their models.
pub(crate) struct ScenarioAgents {
    /// Agents by name.
    pub(crate) agents: BTreeMap<String, Agent<ScenarioWorld>>,
    /// Models in the order of the agents.
    pub(crate) models: Vec<(String, ScriptedModel)>,
    /// Agents under construction; a cycle refers to them by name.
    in_progress: BTreeSet<String>,
    /// MCP servers of the agents.
    pub(crate) servers: ScenarioServers,
}

impl ScenarioAgents {
    /// Builds the agents of a scenario.
    pub(crate) fn new(scenario: &OrderedJson, served: ScenarioServers) -> Self {
        let (agents, models, unfinished) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut cast = Self { agents, models, in_progress: unfinished, servers: served };
        let agents = scenario.get("agents").unwrap_or(&OrderedJson::Null).object_fields();
        for (name, spec) in agents {
            let script =
                spec.get("script").unwrap_or(&OrderedJson::Null).list_items().iter().map(scripted_reply);
            cast.models.push((name.clone(), ScriptedModel::new(script)));
        }
        for (name, _) in agents {
            cast.build_agent(name, scenario);
        }
        cast
    }

    fn build_agent(&mut self, name: &str, scenario: &OrderedJson) -> Agent<ScenarioWorld> {
        if let Some(known) = self.agents.get(name) {
            return known.clone();
        }
        self.in_progress.insert(name.to_owned());
        let nothing = OrderedJson::Null;
        let spec = scenario.get("agents").and_then(|agents| agents.get(name)).unwrap_or(&nothing);
        let list = |key: &str| spec.get(key).unwrap_or(&nothing).list_items();
        let mut agent = Agent::new(name);
        if let Some((_, model)) = self.models.iter().find(|(owner, _)| owner == name) {
            agent = agent.model(YieldingModel(model.clone()));
        }
        if let Some(text) = spec.text_field("instructions") {
            agent = agent.instructions(text);
        }
        agent = agent.model_settings(ModelSettings {
            tool_choice: spec.text_field("tool_choice").map(ToolChoice::from),
            ..ModelSettings::default()
        });
        if !spec.bool_field("reset_tool_choice", true) {
            agent = agent.tool_choice_reset(ToolChoiceReset::Never);
        }
        agent = agent.tool_use_policy(match spec.get("tool_use_behavior") {
            Some(OrderedJson::Text(text)) if text == "stop_on_first_tool" => ToolUsePolicy::StopOnFirstTool,
            Some(behaviour @ OrderedJson::Object(_)) => ToolUsePolicy::StopAtTools(
                behaviour
                    .get("stop_at")
                    .unwrap_or(&nothing)
                    .list_items()
                    .iter()
                    .filter_map(OrderedJson::as_text)
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => ToolUsePolicy::RunModelAgain,
        });
        for guardrail in list("input_guardrails") {
            agent = agent.input_guardrail(input_guardrail(guardrail, scenario));
        }
        for guardrail in list("output_guardrails") {
            agent = agent.output_guardrail(output_guardrail(guardrail));
        }
        for to in list("handoffs").iter().filter_map(OrderedJson::as_text) {
            agent = agent.handoff(Handoff::to_named(to));
        }
        for tool in list("tools").iter().filter_map(OrderedJson::as_text) {
            let tool = self.build_tool(tool, scenario);
            agent = agent.tools(tool);
        }
        if let Some(tools) = self.servers.tools(name, scenario) {
            agent = agent.tool_source(tools);
        }
        self.in_progress.remove(name);
        self.agents.insert(name.to_owned(), agent.clone());
        agent
    }

    fn build_tool(&mut self, name: &str, scenario: &OrderedJson) -> Tool<ScenarioWorld> {
        let nothing = OrderedJson::Null;
        let spec = scenario.get("tools").and_then(|tools| tools.get(name)).unwrap_or(&nothing);
        let tool = if spec.text_field("kind") == Some("agent") {
            let agent = spec.text_field("agent").unwrap_or_default();
            let description = spec.text_field("description").unwrap_or(name);
            if self.in_progress.contains(agent) {
                Tool::from_agent_name(agent, name, description)
            } else {
                self.build_agent(agent, scenario).as_tool(name, description)
            }
        } else {
            function_tool(name, spec)
        };
        match spec.get("approval") {
            Some(OrderedJson::Bool(true)) => tool.needs_approval(),
            Some(rule @ OrderedJson::Object(_)) => {
                let argument = rule.text_field("arg").unwrap_or_default().to_owned();
                let limit = rule.get("above").map_or(0.0, |above| above.to_value().as_f64().unwrap_or(0.0));
                tool.needs_approval_if_async(move |ctx: ToolContext<ScenarioWorld>, arguments: &Value| {
                    ctx.app().push_log(format!("approval check {}", ctx.call_id()));
                    // The reference's rule fails for a non-number; Windlass asks a person if a rule fails.
                    let amount = arguments.get(&argument).map_or(Some(0.0), Value::as_f64);
                    std::future::ready(amount.is_none_or(|amount| amount > limit))
                })
            }
            _ => tool,
        }
    }
}

/// A scripted model that yields once before it responds, as a real one would, so that concurrent agents
/// alternate.
struct YieldingModel(ScriptedModel);

impl Model for YieldingModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let answer = self.0.respond(request, deltas).await;
        yield_once().await;
        answer
    }
}

/// Yields once to all ready tasks. Unlike `tokio::task::yield_now`, it keeps the order of the waiting tasks.
pub(crate) async fn yield_once() {
    let mut is_behind = false;
    std::future::poll_fn(|cx| {
        if is_behind {
            return Poll::Ready(());
        }
        is_behind = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn scripted_reply(step: &OrderedJson) -> ScriptedResponse {
    if let Some(error) = step.text_field("error") {
        return ScriptedResponse::error(ModelError::new(error));
    }
    let mut reply = ScriptedResponse::items([]);
    if let Some(text) = step.text_field("text") {
        reply = reply.and_text(text);
    }
    for call in step.get("calls").unwrap_or(&OrderedJson::Null).list_items() {
        let arguments = match call.get("args") {
            None => "{}".to_owned(),
            Some(OrderedJson::Text(text)) => text.clone(),
            Some(value) => value.format_as(JsonStyle::Compact),
        };
        reply = reply.and_raw_call(
            call.text_field("id").unwrap_or_default(),
            call.text_field("name").unwrap_or_default(),
            &arguments,
        );
    }
    reply
}
