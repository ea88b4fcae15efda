//! A scenario's world, built with the public interface: agents with scripted models, tools that do what is
//! described, and a log of what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::agent::{Agent, ForcedChoice, Handoff, ToolUse};
use windlass::core::{Item, Role};
use windlass::guardrail::{
    InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict, Verdict,
};
use windlass::hook::{Hook, Moment, Then};
use windlass::model::{ModelError, ModelSettings, Reply, ScriptedModel, ToolChoice};
use windlass::{OnFailure, OnTimeout, Tool, ToolContext, ToolError};

use crate::json::{Json, Style, ascii_text};

/// What a scenario's tools, rules and hooks can see.
#[derive(Debug, Default)]
pub struct World {
    state: Mutex<State>,
}

/// What has happened in a world.
#[derive(Debug, Default)]
pub struct State {
    /// What happened, in order.
    pub log: Vec<String>,
    /// How many bodies run.
    running: usize,
    /// The most that ran at one time.
    pub peak: usize,
    /// The application's own state.
    pub context: Vec<(String, Json)>,
    /// What bodies returned that is not text, by call.
    pub values: BTreeMap<String, (String, Json)>,
}

type Shared = Arc<World>;

impl World {
    /// A world with a context.
    pub fn new(context: &Json) -> Self {
        Self { state: Mutex::new(State { context: context.fields().to_vec(), ..State::default() }) }
    }

    /// What has happened so far.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, line: String) {
        self.state().log.push(line);
    }
}

/// The agents of a scenario and their models.
pub struct Cast {
    /// Agents by name.
    pub agents: BTreeMap<String, Agent<World>>,
    /// Models in the order of the agents.
    pub models: Vec<(String, ScriptedModel)>,
    /// Agents that are being built: they are known by name only.
    unfinished: BTreeSet<String>,
}

impl Cast {
    /// Builds the agents of a scenario.
    pub fn new(scenario: &Json) -> Self {
        let mut cast = Self { agents: BTreeMap::new(), models: Vec::new(), unfinished: BTreeSet::new() };
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
            agent = agent.model(model.clone());
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
                behaviour.get("stop_at").unwrap_or(&nothing).list().iter().filter_map(Json::text).map(str::to_owned).collect(),
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
                    let asks = arguments.get(&argument).and_then(Value::as_f64).unwrap_or(0.0) > limit;
                    std::future::ready(asks)
                })
            }
            _ => tool,
        }
    }
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

fn function(name: &str, spec: &Json) -> Tool<World> {
    let parameters: Vec<(String, String)> = spec
        .get("params")
        .unwrap_or(&Json::Null)
        .fields()
        .iter()
        .map(|(name, kind)| (name.clone(), kind.text().unwrap_or_default().to_owned()))
        .collect();
    let description = spec.text_of("description").unwrap_or(name);
    let schema = schema(&parameters);
    let body = Arc::new(Body { tool: name.to_owned(), spec: spec.clone(), parameters });
    let mut tool = if spec.switch("sync", false) {
        Tool::dynamic_blocking(name, description, schema, move |ctx: ToolContext<World>, arguments| {
            body.run_blocking(&ctx, &arguments)
        })
    } else {
        Tool::dynamic(name, description, schema, move |ctx: ToolContext<World>, arguments| {
            let body = body.clone();
            async move { body.run(&ctx, &arguments).await }
        })
    };
    // Schemas with open objects or optional fields have no strict form worth testing here.
    tool = tool.non_strict();
    tool = match spec.get("on_failure") {
        Some(Json::Text(text)) if text == "propagate" => tool.on_failure(OnFailure::Fail),
        Some(custom @ Json::Object(_)) => {
            let message = custom.text_of("message").unwrap_or_default().to_owned();
            tool.on_failure(OnFailure::say(move |_, error| message.replace("{error}", error.message())))
        }
        _ => tool,
    };
    if let Some(timeout) = spec.count_of("timeout_ms") {
        tool = tool.timeout(Duration::from_millis(timeout));
        if spec.text_of("on_timeout") == Some("raise_exception") {
            tool = tool.on_timeout(OnTimeout::Fail);
        }
    }
    tool = match spec.get("enabled") {
        Some(Json::Bool(enabled)) => tool.enabled(*enabled),
        Some(rule @ Json::Object(_)) => {
            let key = rule.text_of("context").unwrap_or_default().to_owned();
            tool.enabled_if(move |ctx| truthy(ctx.app().state().context.iter().find(|(name, _)| *name == key)))
        }
        _ => tool,
    };
    let list = |key: &str| spec.get(key).unwrap_or(&Json::Null).list().to_vec();
    for guardrail in list("input_guardrails") {
        tool = tool.input_guardrail(tool_input_guardrail(guardrail));
    }
    for guardrail in list("output_guardrails") {
        tool = tool.output_guardrail(tool_output_guardrail(guardrail));
    }
    tool
}

fn truthy(field: Option<&(String, Json)>) -> bool {
    match field.map(|(_, value)| value) {
        None | Some(Json::Null | Json::Bool(false)) => false,
        Some(Json::Bool(true)) => true,
        Some(Json::Whole(number)) => *number != 0,
        Some(Json::Double(number)) => *number != 0.0,
        Some(Json::Text(text)) => !text.is_empty(),
        Some(Json::List(items)) => !items.is_empty(),
        Some(Json::Object(fields)) => !fields.is_empty(),
    }
}

fn schema(parameters: &[(String, String)]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, kind) in parameters {
        let (kind, optional) = match kind.strip_suffix('?') {
            Some(kind) => (kind, true),
            None => (kind.as_str(), false),
        };
        let mut shape = match kind {
            "strings" => json!({ "type": "array", "items": { "type": "string" } }),
            kind => json!({ "type": kind }),
        };
        if optional {
            shape = json!({ "anyOf": [shape, { "type": "null" }] });
        } else {
            required.push(name.clone());
        }
        properties.insert(name.clone(), shape);
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// What a tool of a scenario does.
struct Body {
    tool: String,
    spec: Json,
    parameters: Vec<(String, String)>,
}

impl Body {
    fn does(&self, call: &str) -> Json {
        let own = self.spec.get("does_for").and_then(|does| does.get(call));
        own.or_else(|| self.spec.get("does")).cloned().unwrap_or(Json::Object(Vec::new()))
    }

    async fn run(&self, ctx: &ToolContext<World>, arguments: &Value) -> Result<String, ToolError> {
        let does = self.does(ctx.call_id());
        let running = Running::begin(&self.tool, ctx);
        if let Some(sleep) = does.count_of("sleep_ms") {
            tokio::time::sleep(Duration::from_millis(sleep)).await;
        }
        self.finish(running, &does, ctx, arguments)
    }

    fn run_blocking(&self, ctx: &ToolContext<World>, arguments: &Value) -> Result<String, ToolError> {
        let does = self.does(ctx.call_id());
        let running = Running::begin(&self.tool, ctx);
        if let Some(sleep) = does.count_of("sleep_ms") {
            std::thread::sleep(Duration::from_millis(sleep));
        }
        self.finish(running, &does, ctx, arguments)
    }

    fn finish(
        &self,
        mut running: Running,
        does: &Json,
        ctx: &ToolContext<World>,
        arguments: &Value,
    ) -> Result<String, ToolError> {
        running.cut_short = false;
        let world = ctx.app();
        let mut state = world.state();
        for (key, value) in does.get("set").unwrap_or(&Json::Null).fields() {
            match state.context.iter_mut().find(|(known, _)| known == key) {
                Some(known) => known.1 = value.clone(),
                None => state.context.push((key.clone(), value.clone())),
            }
        }
        if let Some(error) = does.text_of("raise") {
            return Err(ToolError::hidden(error));
        }
        state.log.push(format!("done {} {}", self.tool, ctx.call_id()));
        if does.switch("echo", false) {
            return Ok(self.echo(arguments));
        }
        match does.get("return") {
            None => Ok("ok".to_owned()),
            Some(Json::Text(text)) => Ok(text.clone()),
            Some(value) => {
                let text = value.write(Style::Python);
                state.values.insert(ctx.call_id().to_owned(), (text.clone(), value.clone()));
                Ok(text)
            }
        }
    }

    /// The arguments as the reference's tool would have them, keys sorted.
    fn echo(&self, arguments: &Value) -> String {
        let mut fields: Vec<(String, Json)> = self
            .parameters
            .iter()
            .map(|(name, kind)| {
                let value = arguments.get(name).cloned().unwrap_or_default();
                let value = serde_json::from_value(value).unwrap_or(Json::Null);
                (name.clone(), typed(value, kind.trim_end_matches('?')))
            })
            .collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        compact_ascii(&Json::Object(fields))
    }
}

/// A value as the reference's types have it: its numbers are floats, its integers are not.
fn typed(value: Json, kind: &str) -> Json {
    match (value, kind) {
        (Json::Whole(number), "number") => Json::Double(number as f64),
        (Json::Double(number), "integer") => Json::Whole(number as i64),
        (Json::Object(mut fields), "object") => {
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Json::Object(fields)
        }
        (value, _) => value,
    }
}

fn compact_ascii(value: &Json) -> String {
    match value {
        Json::List(items) => format!("[{}]", items.iter().map(compact_ascii).collect::<Vec<_>>().join(",")),
        Json::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}:{}", ascii_text(key), compact_ascii(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.write(Style::Spaced),
    }
}

/// A body while it runs. Dropped before its end, it says so.
struct Running {
    world: Shared,
    line: String,
    cut_short: bool,
}

impl Running {
    fn begin(tool: &str, ctx: &ToolContext<World>) -> Self {
        let line = format!("{tool} {}", ctx.call_id());
        let world = ctx.app().clone();
        {
            let mut state = world.state();
            state.log.push(format!("start {line}"));
            state.running += 1;
            state.peak = state.peak.max(state.running);
        }
        Self { world, line, cut_short: true }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.world.state();
        state.running -= 1;
        if self.cut_short {
            state.log.push(format!("cancelled {}", self.line));
        }
    }
}

fn tool_verdict(spec: &Json, text: &str) -> ToolVerdict {
    let when = spec.text_of("when").unwrap_or_default();
    if when != "always" && !text.contains(when) {
        return ToolVerdict::Allow;
    }
    match spec.get("then") {
        Some(Json::Text(then)) if then == "raise" => ToolVerdict::Stop,
        Some(then @ Json::Object(_)) => ToolVerdict::Reject(then.text_of("reject").unwrap_or_default().to_owned()),
        _ => ToolVerdict::Allow,
    }
}

fn tool_input_guardrail(spec: Json) -> ToolInputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    ToolInputGuardrail::new(&name.clone(), move |ctx: ToolContext<World>| {
        ctx.app().log(format!("input guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, ctx.raw_arguments())))
    })
}

fn tool_output_guardrail(spec: Json) -> ToolOutputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    ToolOutputGuardrail::new(&name.clone(), move |ctx: ToolContext<World>, output| {
        ctx.app().log(format!("output guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, &output.text())))
    })
}

async fn run_verdict(world: Shared, spec: Json, text: String) -> Result<Verdict, windlass::guardrail::GuardrailError> {
    world.log(format!("guardrail {}", spec.text_of("name").unwrap_or_default()));
    if let Some(sleep) = spec.count_of("sleep_ms") {
        tokio::time::sleep(Duration::from_millis(sleep)).await;
    }
    if let Some(error) = spec.text_of("raise").filter(|error| !error.is_empty()) {
        return Err(error.into());
    }
    let trips = spec.text_of("trips_on").is_some_and(|on| text.contains(on));
    Ok(if trips { Verdict::Trip } else { Verdict::Pass })
}

fn input_guardrail(spec: &Json, scenario: &Json) -> InputGuardrail<World> {
    let has_session = scenario.get("run").is_some_and(|run| run.switch("session", false));
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    let first = !spec.switch("parallel", true);
    let spec = spec.clone();
    let guardrail = InputGuardrail::new(&name, move |ctx: windlass::RunContext<World>, input| {
        let is_nested = ctx.run_id().as_str().contains('/');
        run_verdict(ctx.app().clone(), spec.clone(), shown_to_guardrail(&input, has_session && !is_nested))
    });
    if first { guardrail.first() } else { guardrail }
}

/// What the reference's guardrails read: the text alone, or with a session all items as JSON.
fn shown_to_guardrail(input: &[Arc<Item>], has_session: bool) -> String {
    if !has_session {
        return input.iter().map(|item| message_text(item)).collect();
    }
    let items: Vec<String> = input
        .iter()
        .map(|item| match &**item {
            Item::Message(message) => {
                let role = if message.role == Role::User { "user" } else { "assistant" };
                format!("{{\"content\": {}, \"role\": \"{role}\"}}", ascii_text(&message.text()))
            }
            Item::Call(call) => format!(
                "{{\"arguments\": {}, \"call_id\": {}, \"name\": {}, \"type\": \"function_call\"}}",
                ascii_text(&call.arguments),
                ascii_text(call.id.as_str()),
                ascii_text(&call.name)
            ),
            Item::Output(output) => format!(
                "{{\"call_id\": {}, \"output\": {}, \"type\": \"function_call_output\"}}",
                ascii_text(output.call.as_str()),
                ascii_text(&output.content.text())
            ),
            Item::Handoff(handoff) => format!(
                "{{\"call_id\": {}, \"output\": {}, \"type\": \"function_call_output\"}}",
                ascii_text(handoff.call.as_str()),
                ascii_text(&handoff.text())
            ),
            _ => String::new(),
        })
        .collect();
    format!("[{}]", items.join(", "))
}

fn message_text(item: &Item) -> String {
    match item {
        Item::Message(message) => message.text(),
        _ => String::new(),
    }
}

fn output_guardrail(spec: &Json) -> OutputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    let spec = spec.clone();
    OutputGuardrail::new(&name, move |ctx: windlass::RunContext<World>, output: Arc<str>| {
        run_verdict(ctx.app().clone(), spec.clone(), output.to_string())
    })
}

/// Writes the moments of a run into the log.
pub fn log_hook() -> Hook<World> {
    Hook::new(|moment: Moment<World>| {
        match moment {
            Moment::AgentStarted { ctx } => ctx.app().log(format!("agent start {}", ctx.agent())),
            Moment::AgentEnded { ctx, .. } => ctx.app().log(format!("agent end {}", ctx.agent())),
            Moment::ModelAsked { ctx, .. } => ctx.app().log(format!("llm start {}", ctx.agent())),
            Moment::ModelAnswered { ctx, .. } => ctx.app().log(format!("llm end {}", ctx.agent())),
            Moment::HandedOff { ctx, to } => ctx.app().log(format!("handoff {} {to}", ctx.agent())),
            Moment::CallStarted { ctx } => {
                ctx.app().log(format!("tool start {} {}", ctx.tool().name(), ctx.call_id()));
            }
            // The reference has no end for calls that end the run.
            Moment::CallEnded { ctx, then: Then::GoesOn, .. } => {
                ctx.app().log(format!("tool end {} {}", ctx.tool().name(), ctx.call_id()));
            }
            Moment::CallEnded { then: Then::Ends, .. } => {}
        }
        std::future::ready(Ok(()))
    })
}
