//! The function tools of a scenario: they behave as described, and log it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::tool::{OnFailure, OnTimeout, Tool, ToolContext, ToolError};

use crate::guardrails::{tool_input_guardrail, tool_output_guardrail};
use crate::json::{JsonStyle, OrderedJson, ascii_json_text};
use crate::world::{ScenarioWorld, yield_once};

/// Creates the tool that a scenario describes.
pub(crate) fn function_tool(name: &str, spec: &OrderedJson) -> Tool<ScenarioWorld> {
    let parameters = read_parameters(spec);
    let description = spec.text_field("description").unwrap_or(name);
    let schema = parameters_schema(&parameters);
    let body = Arc::new(ScenarioBody { tool: name.to_owned(), spec: spec.clone(), parameters });
    let mut tool = if spec.bool_field("sync", false) {
        Tool::dynamic_blocking(
            name,
            description,
            schema,
            move |ctx: ToolContext<ScenarioWorld>, arguments| body.run_blocking(&ctx, &arguments),
        )
    } else {
        Tool::dynamic(name, description, schema, move |ctx: ToolContext<ScenarioWorld>, arguments| {
            let body = body.clone();
            async move { body.run(&ctx, &arguments).await }
        })
    };
    // Schemas with open objects or optional fields have no useful strict form.
    tool = tool.non_strict();
    tool = match spec.get("on_failure") {
        Some(OrderedJson::Text(text)) if text == "propagate" => tool.on_failure(OnFailure::FailRun),
        Some(custom @ OrderedJson::Object(_)) => {
            let message = custom.text_field("message").unwrap_or_default().to_owned();
            tool.on_failure(OnFailure::custom_message(move |ctx, error| {
                message.replace("{error}", &error_text(ctx, error))
            }))
        }
        _ => tool,
    };
    if let Some(timeout) = spec.count_field("timeout_ms") {
        tool = tool.timeout(Duration::from_millis(timeout));
        if spec.text_field("on_timeout") == Some("raise_exception") {
            tool = tool.on_timeout(OnTimeout::FailRun);
        }
    }
    tool = match spec.get("enabled") {
        Some(OrderedJson::Bool(enabled)) => tool.enabled(*enabled),
        Some(rule @ OrderedJson::Object(_)) => {
            let key = rule.text_field("context").unwrap_or_default().to_owned();
            tool.enabled_if(move |ctx| {
                is_truthy(ctx.app().lock_state().context.iter().find(|(name, _)| *name == key))
            })
        }
        _ => tool,
    };
    let list = |key: &str| spec.get(key).unwrap_or(&OrderedJson::Null).list_items().to_vec();
    for guardrail in list("input_guardrails") {
        tool = tool.input_guardrail(tool_input_guardrail(guardrail));
    }
    for guardrail in list("output_guardrails") {
        tool = tool.output_guardrail(tool_output_guardrail(guardrail));
    }
    tool
}

/// Returns an error in the words of the reference. Bodies use hidden errors here, so an error that the model
/// may see is one of invalid arguments, which the reference reports without details.
fn error_text(ctx: &ToolContext<ScenarioWorld>, error: &ToolError) -> String {
    if error.model_message().is_none() {
        return error.message().to_owned();
    }
    let unusable = format!("Invalid JSON input for tool {}", ctx.tool_key().name());
    match serde_json::from_str(ctx.raw_arguments()) {
        Ok(Value::Object(_)) | Err(_) => unusable,
        Ok(_) => format!("{unusable}: expected a JSON object"),
    }
}

fn is_truthy(field: Option<&(String, OrderedJson)>) -> bool {
    match field.map(|(_, value)| value) {
        None | Some(OrderedJson::Null | OrderedJson::Bool(false)) => false,
        Some(OrderedJson::Bool(true)) => true,
        Some(OrderedJson::Integer(number)) => *number != 0,
        Some(OrderedJson::Float(number)) => *number != 0.0,
        Some(OrderedJson::Text(text)) => !text.is_empty(),
        Some(OrderedJson::List(items)) => !items.is_empty(),
        Some(OrderedJson::Object(fields)) => !fields.is_empty(),
    }
}

/// Returns the parameters of a tool and their types.
pub(crate) fn read_parameters(spec: &OrderedJson) -> Vec<(String, String)> {
    let parameters = spec.get("params").unwrap_or(&OrderedJson::Null).object_fields();
    let kind = |kind: &OrderedJson| kind.as_text().unwrap_or_default().to_owned();
    parameters.iter().map(|(name, given)| (name.clone(), kind(given))).collect()
}

pub(crate) fn parameters_schema(parameters: &[(String, String)]) -> Value {
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

/// The body of a scenario's tool.
struct ScenarioBody {
    tool: String,
    spec: OrderedJson,
    parameters: Vec<(String, String)>,
}

impl ScenarioBody {
    fn behaviour_for(&self, call: &str) -> OrderedJson {
        let own = self.spec.get("does_for").and_then(|does| does.get(call));
        own.or_else(|| self.spec.get("does")).cloned().unwrap_or(OrderedJson::Object(Vec::new()))
    }

    async fn run(&self, ctx: &ToolContext<ScenarioWorld>, arguments: &Value) -> Result<String, ToolError> {
        let does = self.behaviour_for(ctx.call_id());
        if self.spec.get("timeout_ms").is_some() {
            // In the reference, a body with a timeout is a task within a task and starts after its siblings.
            yield_once().await;
        }
        let running = RunningBodyLog::start(&self.tool, ctx);
        if let Some(sleep) = does.count_field("sleep_ms") {
            tokio::time::sleep(Duration::from_millis(sleep)).await;
        }
        self.finish(running, &does, ctx, arguments)
    }

    fn run_blocking(&self, ctx: &ToolContext<ScenarioWorld>, arguments: &Value) -> Result<String, ToolError> {
        let does = self.behaviour_for(ctx.call_id());
        let running = RunningBodyLog::start(&self.tool, ctx);
        if let Some(sleep) = does.count_field("sleep_ms") {
            std::thread::sleep(Duration::from_millis(sleep));
        }
        self.finish(running, &does, ctx, arguments)
    }

    fn finish(
        &self,
        mut running: RunningBodyLog,
        does: &OrderedJson,
        ctx: &ToolContext<ScenarioWorld>,
        arguments: &Value,
    ) -> Result<String, ToolError> {
        running.is_cut_short = false;
        let world = ctx.app();
        world.set_context(does.get("set").unwrap_or(&OrderedJson::Null));
        let mut state = world.lock_state();
        if let Some(error) = does.text_field("raise") {
            return Err(ToolError::hidden(error));
        }
        state.log.push(format!("done {} {}", self.tool, ctx.call_id()));
        if does.bool_field("echo", false) {
            return Ok(self.echo_arguments(arguments));
        }
        match does.get("return") {
            None => Ok("ok".to_owned()),
            Some(OrderedJson::Text(text)) => Ok(text.clone()),
            Some(value) => {
                let text = value.format_as(JsonStyle::PythonRepr);
                state.values.insert(ctx.call_id().to_owned(), (text.clone(), value.clone()));
                Ok(text)
            }
        }
    }

    /// Returns the arguments as the reference's tool would, with sorted keys.
    fn echo_arguments(&self, arguments: &Value) -> String {
        let mut fields: Vec<(String, OrderedJson)> = self
            .parameters
            .iter()
            .map(|(name, kind)| {
                let value = arguments.get(name).cloned().unwrap_or_default();
                let value = serde_json::from_value(value).unwrap_or(OrderedJson::Null);
                (name.clone(), coerce_number(value, kind.trim_end_matches('?')))
            })
            .collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        compact_ascii(&OrderedJson::Object(fields))
    }
}

/// Converts a number to the declared type, as the reference does: `number` is a float, `integer` is not.
fn coerce_number(value: OrderedJson, kind: &str) -> OrderedJson {
    match (value, kind) {
        (OrderedJson::Integer(number), "number") => OrderedJson::Float(number as f64),
        (OrderedJson::Float(number), "integer") => OrderedJson::Integer(number as i64),
        (OrderedJson::Object(mut fields), "object") => {
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            OrderedJson::Object(fields)
        }
        (value, _) => value,
    }
}

fn compact_ascii(value: &OrderedJson) -> String {
    match value {
        OrderedJson::List(items) => {
            format!("[{}]", items.iter().map(compact_ascii).collect::<Vec<_>>().join(","))
        }
        OrderedJson::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}:{}", ascii_json_text(key), compact_ascii(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.format_as(JsonStyle::SpacedAscii),
    }
}

/// A guard that logs the start of a body, and its cancellation if dropped early.
struct RunningBodyLog {
    world: Arc<ScenarioWorld>,
    line: String,
    is_cut_short: bool,
}

impl RunningBodyLog {
    fn start(tool: &str, ctx: &ToolContext<ScenarioWorld>) -> Self {
        let line = format!("{tool} {}", ctx.call_id());
        let world = ctx.app().clone();
        {
            let mut state = world.lock_state();
            state.log.push(format!("start {line}"));
            state.running_bodies += 1;
            state.peak_concurrency = state.peak_concurrency.max(state.running_bodies);
        }
        Self { world, line, is_cut_short: true }
    }
}

impl Drop for RunningBodyLog {
    fn drop(&mut self) {
        let mut state = self.world.lock_state();
        state.running_bodies -= 1;
        if self.is_cut_short {
            state.log.push(format!("cancelled {}", self.line));
        }
    }
}
