//! The guardrails and hooks of a scenario. Each one logs its invocation.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::item::{Item, Role};
use windlass::guardrail::{
    GuardrailError, GuardrailVerdict, InputGuardrail, OutputGuardrail, ToolGuardrailVerdict,
    ToolInputGuardrail, ToolOutputGuardrail,
};
use windlass::hook::{AfterCall, Hook, HookEvent};
use windlass::tool::{RunContext, ToolContext};

use crate::json::{OrderedJson, ascii_json_text};
use crate::world::ScenarioWorld;

fn tool_verdict(spec: &OrderedJson, text: &str) -> ToolGuardrailVerdict {
    let when = spec.text_field("when").unwrap_or_default();
    if when != "always" && !text.contains(when) {
        return ToolGuardrailVerdict::Allow;
    }
    match spec.get("then") {
        Some(OrderedJson::Text(then)) if then == "raise" => ToolGuardrailVerdict::FailRun,
        Some(then @ OrderedJson::Object(_)) => {
            ToolGuardrailVerdict::RejectCall(then.text_field("reject").unwrap_or_default().to_owned())
        }
        _ => ToolGuardrailVerdict::Allow,
    }
}

pub(crate) fn tool_input_guardrail(spec: OrderedJson) -> ToolInputGuardrail<ScenarioWorld> {
    let name = spec.text_field("name").unwrap_or_default().to_owned();
    ToolInputGuardrail::new(&name.clone(), move |ctx: ToolContext<ScenarioWorld>| {
        ctx.app().push_log(format!("input guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, ctx.raw_arguments())))
    })
}

pub(crate) fn tool_output_guardrail(spec: OrderedJson) -> ToolOutputGuardrail<ScenarioWorld> {
    let name = spec.text_field("name").unwrap_or_default().to_owned();
    ToolOutputGuardrail::new(&name.clone(), move |ctx: ToolContext<ScenarioWorld>, output| {
        ctx.app().push_log(format!("output guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, &output.text())))
    })
}

async fn run_verdict(
    world: Arc<ScenarioWorld>,
    spec: OrderedJson,
    text: String,
) -> Result<GuardrailVerdict, GuardrailError> {
    world.push_log(format!("guardrail {}", spec.text_field("name").unwrap_or_default()));
    if let Some(sleep) = spec.count_field("sleep_ms") {
        tokio::time::sleep(Duration::from_millis(sleep)).await;
    }
    if let Some(error) = spec.text_field("raise").filter(|error| !error.is_empty()) {
        return Err(error.into());
    }
    let trips = spec.text_field("trips_on").is_some_and(|on| text.contains(on));
    Ok(if trips { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass })
}

pub(crate) fn input_guardrail(spec: &OrderedJson, scenario: &OrderedJson) -> InputGuardrail<ScenarioWorld> {
    let has_session = scenario.get("run").is_some_and(|run| run.bool_field("session", false));
    let name = spec.text_field("name").unwrap_or_default().to_owned();
    let first = !spec.bool_field("parallel", true);
    let spec = spec.clone();
    let guardrail = InputGuardrail::new(&name, move |ctx: RunContext<ScenarioWorld>, input| {
        let is_nested = ctx.run_id().as_str().contains('/');
        run_verdict(ctx.app().clone(), spec.clone(), guardrail_input_text(&input, has_session && !is_nested))
    });
    if first { guardrail.blocking() } else { guardrail }
}

/// Returns the input that the reference's guardrails receive: the text alone, or all items as JSON if there is
/// a session.
fn guardrail_input_text(input: &[Arc<Item>], has_session: bool) -> String {
    if !has_session {
        return input.iter().map(|item| message_text(item)).collect();
    }
    let items: Vec<String> = input
        .iter()
        .map(|item| match &**item {
            Item::Message(message) => {
                let role = if message.role == Role::User { "user" } else { "assistant" };
                format!("{{\"content\": {}, \"role\": \"{role}\"}}", ascii_json_text(&message.text()))
            }
            Item::Call(call) => format!(
                "{{\"arguments\": {}, \"call_id\": {}, \"name\": {}, \"type\": \"function_call\"}}",
                ascii_json_text(&call.arguments),
                ascii_json_text(call.id.as_str()),
                ascii_json_text(&call.name)
            ),
            Item::Output(output) => format!(
                "{{\"call_id\": {}, \"output\": {}, \"type\": \"function_call_output\"}}",
                ascii_json_text(output.call.as_str()),
                ascii_json_text(&output.content.text())
            ),
            Item::Handoff(handoff) => format!(
                "{{\"call_id\": {}, \"output\": {}, \"type\": \"function_call_output\"}}",
                ascii_json_text(handoff.call.as_str()),
                ascii_json_text(&handoff.output_text())
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

pub(crate) fn output_guardrail(spec: &OrderedJson) -> OutputGuardrail<ScenarioWorld> {
    let name = spec.text_field("name").unwrap_or_default().to_owned();
    let spec = spec.clone();
    OutputGuardrail::new(&name, move |ctx: RunContext<ScenarioWorld>, output: Arc<str>| {
        run_verdict(ctx.app().clone(), spec.clone(), output.to_string())
    })
}

/// Creates a hook that logs the lifecycle events of a run.
pub(crate) fn log_hook() -> Hook<ScenarioWorld> {
    Hook::new(|event: HookEvent<ScenarioWorld>| {
        // In the reference, the hooks of a run do not see nested agents.
        if !event.parent_calls().is_empty() {
            return std::future::ready(Ok(()));
        }
        match event {
            HookEvent::AgentStarted { ctx } => ctx.app().push_log(format!("agent start {}", ctx.agent())),
            HookEvent::AgentEnded { ctx, .. } => ctx.app().push_log(format!("agent end {}", ctx.agent())),
            HookEvent::ModelRequestStarted { ctx, .. } => {
                ctx.app().push_log(format!("llm start {}", ctx.agent()))
            }
            HookEvent::ModelResponded { ctx, .. } => ctx.app().push_log(format!("llm end {}", ctx.agent())),
            HookEvent::HandedOff { ctx, to, .. } => {
                ctx.app().push_log(format!("handoff {} {to}", ctx.agent()))
            }
            HookEvent::CallStarted { ctx, .. } => {
                ctx.app().push_log(format!("tool start {} {}", ctx.tool_key().name(), ctx.call_id()));
            }
            // The reference emits no end event for calls that end the run.
            HookEvent::CallEnded { ctx, after_call: AfterCall::RunContinues, .. } => {
                ctx.app().push_log(format!("tool end {} {}", ctx.tool_key().name(), ctx.call_id()));
            }
            HookEvent::CallEnded { after_call: AfterCall::RunEnds, .. } => {}
            // The format has no log line for events that a later version adds.
            _ => {}
        }
        std::future::ready(Ok(()))
    })
}
