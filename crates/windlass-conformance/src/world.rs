//! A scenario's world, built with the public interface: agents with scripted models, tools that do what is
//! described, and a log of what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use serde_json::Value;
use windlass::agent::{Agent, ForcedChoice, Handoff, ToolUse};
use windlass::model::{
    Answer, Deltas, Model, ModelError, ModelRequest, ModelSettings, Reply, ScriptedModel, ToolChoice,
};
use windlass::{Tool, ToolContext};

use crate::guard::{input_guardrail, output_guardrail};
use crate::json::{Json, Style};
use crate::mcp::Served;
use crate::tool::function;

/// What a scenario's tools, rules and hooks can see.
#[derive(Debug, Default)]
pub(crate) struct World {
    state: Mutex<State>,
}

/// What has happened in a world.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What happened, in order.
    pub(crate) log: Vec<String>,
    /// How many bodies run.
    pub(crate) running: usize,
    /// The most that ran at one time.
    pub(crate) peak: usize,
    /// The application's own state.
    pub(crate) context: Vec<(String, Json)>,
    /// What bodies returned that is not text, by call.
    pub(crate) values: BTreeMap<String, (String, Json)>,
}

impl World {
    /// A world with a context.
    pub(crate) fn new(context: &Json) -> Self {
        Self { state: Mutex::new(State { context: context.fields().to_vec(), ..State::default() }) }
    }

    /// What has happened so far.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the application's state.
    pub(crate) fn set(&self, fields: &Json) {
        let mut state = self.state();
        for (key, value) in fields.fields() {
            match state.context.iter_mut().find(|(known, _)| known == key) {
                Some(known) => known.1 = value.clone(),
                None => state.context.push((key.clone(), value.clone())),
            }
        }
    }

    pub(crate) fn log(&self, line: String) {
        self.state().log.push(line);
    }
}

/// The agents of a scenario and their models.
pub(crate) struct Cast {
    /// Agents by name.
    pub(crate) agents: BTreeMap<String, Agent<World>>,
    /// Models in the order of the agents.
    pub(crate) models: Vec<(String, ScriptedModel)>,
    /// Agents that are being built: they are known by name only.
    unfinished: BTreeSet<String>,
    /// The servers whose tools agents have.
    pub(crate) served: Served,
}

impl Cast {
    /// Builds the agents of a scenario.
    pub(crate) fn new(scenario: &Json, served: Served) -> Self {
        let (agents, models, unfinished) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut cast = Self { agents, models, unfinished, served };
        let agents = scenario.get("agents").unwrap_or(&Json::Null).fields();
        for (name, spec) in agents {
            let script = spec.get("script").unwrap_or(&Json::Null).list().iter().map(reply);
            cast.models.push((name.clone(), ScriptedModel::new(script)));
        }
        for (name, _) in agents {
            cast.agent(name, scenario);
        }
        cast
    }

    fn agent(&mut self, name: &str, scenario: &Json) -> Agent<World> {
        if let Some(known) = self.agents.get(name) {
            return known.clone();
        }
        self.unfinished.insert(name.to_owned());
        let nothing = Json::Null;
        let spec = scenario.get("agents").and_then(|agents| agents.get(name)).unwrap_or(&nothing);
        let list = |key: &str| spec.get(key).unwrap_or(&nothing).list();
        let mut agent = Agent::new(name);
        if let Some((_, model)) = self.models.iter().find(|(owner, _)| owner == name) {
            agent = agent.model(Unhurried(model.clone()));
        }
        if let Some(text) = spec.text_of("instructions") {
            agent = agent.instructions(text);
        }
        agent = agent.settings(ModelSettings {
            tool_choice: spec.text_of("tool_choice").map(ToolChoice::from),
            ..ModelSettings::default()
        });
        if !spec.switch("reset_tool_choice", true) {
            agent = agent.forced_choice(ForcedChoice::Kept);
        }
        agent = agent.tool_use(match spec.get("tool_use_behavior") {
            Some(Json::Text(text)) if text == "stop_on_first_tool" => ToolUse::StopOnFirst,
            Some(behaviour @ Json::Object(_)) => ToolUse::StopAt(
                behaviour
                    .get("stop_at")
                    .unwrap_or(&nothing)
                    .list()
                    .iter()
                    .filter_map(Json::text)
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => ToolUse::RunAgain,
        });
        for guardrail in list("input_guardrails") {
            agent = agent.input_guardrail(input_guardrail(guardrail, scenario));
        }
        for guardrail in list("output_guardrails") {
            agent = agent.output_guardrail(output_guardrail(guardrail));
        }
        for to in list("handoffs").iter().filter_map(Json::text) {
            agent = agent.handoff(Handoff::to_named(to));
        }
        for tool in list("tools").iter().filter_map(Json::text) {
            let tool = self.tool(tool, scenario);
            agent = agent.tools(tool);
        }
        if let Some(tools) = self.served.tools(name, scenario) {
            agent = agent.tool_source(tools);
        }
        self.unfinished.remove(name);
        self.agents.insert(name.to_owned(), agent.clone());
        agent
    }

    fn tool(&mut self, name: &str, scenario: &Json) -> Tool<World> {
        let nothing = Json::Null;
        let spec = scenario.get("tools").and_then(|tools| tools.get(name)).unwrap_or(&nothing);
        let tool = if spec.text_of("kind") == Some("agent") {
            let agent = spec.text_of("agent").unwrap_or_default();
            let description = spec.text_of("description").unwrap_or(name);
            if self.unfinished.contains(agent) {
                Tool::agent_named(agent, name, description)
            } else {
                self.agent(agent, scenario).as_tool(name, description)
            }
        } else {
            function(name, spec)
        };
        match spec.get("approval") {
            Some(Json::Bool(true)) => tool.approve_always(),
            Some(rule @ Json::Object(_)) => {
                let argument = rule.text_of("arg").unwrap_or_default().to_owned();
                let limit = rule.get("above").map_or(0.0, |above| above.to_value().as_f64().unwrap_or(0.0));
                tool.approve_when(move |ctx: ToolContext<World>, arguments: &Value| {
                    ctx.app().log(format!("approval check {}", ctx.call_id()));
                    // The reference's rule fails on what is no number; here a rule that fails asks a person.
                    let amount = arguments.get(&argument).map_or(Some(0.0), Value::as_f64);
                    std::future::ready(amount.is_none_or(|amount| amount > limit))
                })
            }
            _ => tool,
        }
    }
}

/// A model whose answers take a step, as any real one's do: agents that run side by side take turns.
struct Unhurried(ScriptedModel);

impl Model for Unhurried {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let answer = self.0.answer(request, deltas).await;
        one_step().await;
        answer
    }
}

/// Lets everything else that is ready go first. Unlike tokio's own way to do so, it keeps the order of those
/// that wait.
pub(crate) async fn one_step() {
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

fn reply(step: &Json) -> Reply {
    if let Some(error) = step.text_of("error") {
        return Reply::error(ModelError::new(error));
    }
    let mut reply = Reply::items([]);
    if let Some(text) = step.text_of("text") {
        reply = reply.and_text(text);
    }
    for call in step.get("calls").unwrap_or(&Json::Null).list() {
        let arguments = match call.get("args") {
            None => "{}".to_owned(),
            Some(Json::Text(text)) => text.clone(),
            Some(value) => value.write(Style::Compact),
        };
        reply = reply.and_raw_call(
            call.text_of("id").unwrap_or_default(),
            call.text_of("name").unwrap_or_default(),
            &arguments,
        );
    }
    reply
}
