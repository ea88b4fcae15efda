//! A scenario's function tools: they do what is described, and say in the log that they do.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass::{OnFailure, OnTimeout, Tool, ToolContext, ToolError};

use crate::guard::{tool_input_guardrail, tool_output_guardrail};
use crate::json::{Json, Style, ascii_text};
use crate::world::{World, one_step};

/// The tool that a scenario describes.
pub(crate) fn function(name: &str, spec: &Json) -> Tool<World> {
    let parameters = parameters(spec);
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
            tool.on_failure(OnFailure::say(move |ctx, error| {
                message.replace("{error}", &error_text(ctx, error))
            }))
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
            tool.enabled_if(move |ctx| {
                truthy(ctx.app().state().context.iter().find(|(name, _)| *name == key))
            })
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

/// An error as the reference words it. It does not say what is wrong with arguments, which is all that the
/// runtime tells of here: bodies keep what they say to themselves.
fn error_text(ctx: &ToolContext<World>, error: &ToolError) -> String {
    if error.for_model().is_none() {
        return error.message().to_owned();
    }
    let unusable = format!("Invalid JSON input for tool {}", ctx.tool().name());
    match serde_json::from_str(ctx.raw_arguments()) {
        Ok(Value::Object(_)) | Err(_) => unusable,
        Ok(_) => format!("{unusable}: expected a JSON object"),
    }
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

/// The parameters of a tool and their kinds.
pub(crate) fn parameters(spec: &Json) -> Vec<(String, String)> {
    let parameters = spec.get("params").unwrap_or(&Json::Null).fields();
    let kind = |kind: &Json| kind.text().unwrap_or_default().to_owned();
    parameters.iter().map(|(name, given)| (name.clone(), kind(given))).collect()
}

pub(crate) fn schema(parameters: &[(String, String)]) -> Value {
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
        if self.spec.get("timeout_ms").is_some() {
            // In the reference a body with a timeout is a task within a task, and begins after its siblings.
            one_step().await;
        }
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
        world.set(does.get("set").unwrap_or(&Json::Null));
        let mut state = world.state();
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
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}:{}", ascii_text(key), compact_ascii(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.write(Style::Spaced),
    }
}

/// A body while it runs. Dropped before its end, it says so.
struct Running {
    world: Arc<World>,
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
