//! A scenario's guardrails and hooks: each writes into the log that it was asked.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::{Item, Role};
use windlass::guardrail::{
    GuardrailError, InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict,
    Verdict,
};
use windlass::hook::{Hook, Moment, Then};
use windlass::{RunContext, ToolContext};

use crate::json::{Json, ascii_text};
use crate::world::World;

fn tool_verdict(spec: &Json, text: &str) -> ToolVerdict {
    let when = spec.text_of("when").unwrap_or_default();
    if when != "always" && !text.contains(when) {
        return ToolVerdict::Allow;
    }
    match spec.get("then") {
        Some(Json::Text(then)) if then == "raise" => ToolVerdict::Stop,
        Some(then @ Json::Object(_)) => {
            ToolVerdict::Reject(then.text_of("reject").unwrap_or_default().to_owned())
        }
        _ => ToolVerdict::Allow,
    }
}

pub(crate) fn tool_input_guardrail(spec: Json) -> ToolInputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    ToolInputGuardrail::new(&name.clone(), move |ctx: ToolContext<World>| {
        ctx.app().log(format!("input guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, ctx.raw_arguments())))
    })
}

pub(crate) fn tool_output_guardrail(spec: Json) -> ToolOutputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    ToolOutputGuardrail::new(&name.clone(), move |ctx: ToolContext<World>, output| {
        ctx.app().log(format!("output guardrail {name} {}", ctx.call_id()));
        std::future::ready(Ok(tool_verdict(&spec, &output.text())))
    })
}

async fn run_verdict(world: Arc<World>, spec: Json, text: String) -> Result<Verdict, GuardrailError> {
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

pub(crate) fn input_guardrail(spec: &Json, scenario: &Json) -> InputGuardrail<World> {
    let has_session = scenario.get("run").is_some_and(|run| run.switch("session", false));
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    let first = !spec.switch("parallel", true);
    let spec = spec.clone();
    let guardrail = InputGuardrail::new(&name, move |ctx: RunContext<World>, input| {
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

pub(crate) fn output_guardrail(spec: &Json) -> OutputGuardrail<World> {
    let name = spec.text_of("name").unwrap_or_default().to_owned();
    let spec = spec.clone();
    OutputGuardrail::new(&name, move |ctx: RunContext<World>, output: Arc<str>| {
        run_verdict(ctx.app().clone(), spec.clone(), output.to_string())
    })
}

/// Writes the moments of a run into the log.
pub(crate) fn log_hook() -> Hook<World> {
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
