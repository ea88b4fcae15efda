//! Names and values of attributes.

use opentelemetry::{Array, KeyValue};
use serde_json::{Value, json};
use windlass::core::{
    failure::RunFailure,
    item::{ContentPart, Item, OutputContent, Role},
    journal::{CallStatus, FinishReason, ModelResponded, RequestedModel},
    usage::Usage,
};

/// Names of the semantic conventions for generative AI, version 1.42.0.
pub(crate) mod convention {
    pub(crate) const ERROR_TYPE: &str = "error.type";
    pub(crate) const GEN_AI_AGENT_NAME: &str = "gen_ai.agent.name";
    pub(crate) const GEN_AI_CONVERSATION_ID: &str = "gen_ai.conversation.id";
    pub(crate) const GEN_AI_INPUT_MESSAGES: &str = "gen_ai.input.messages";
    pub(crate) const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
    pub(crate) const GEN_AI_OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
    pub(crate) const GEN_AI_PROVIDER_NAME: &str = "gen_ai.provider.name";
    pub(crate) const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
    pub(crate) const GEN_AI_RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    pub(crate) const GEN_AI_RESPONSE_ID: &str = "gen_ai.response.id";
    pub(crate) const GEN_AI_RESPONSE_MODEL: &str = "gen_ai.response.model";
    pub(crate) const GEN_AI_TOOL_CALL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
    pub(crate) const GEN_AI_TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
    pub(crate) const GEN_AI_TOOL_CALL_RESULT: &str = "gen_ai.tool.call.result";
    pub(crate) const GEN_AI_TOOL_NAME: &str = "gen_ai.tool.name";
    pub(crate) const GEN_AI_TOOL_TYPE: &str = "gen_ai.tool.type";
    pub(crate) const GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS: &str =
        "gen_ai.usage.cache_creation.input_tokens";
    pub(crate) const GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
    pub(crate) const GEN_AI_USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    pub(crate) const GEN_AI_USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    pub(crate) const GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
}

/// Maximum length of a text from the conversation in an attribute, in bytes.
pub(crate) const MAX_CONTENT_BYTES: usize = 16 * 1024;

pub(crate) const SPAN_KIND: &str = "windlass.span.kind";
pub(crate) const RUN_ID: &str = "windlass.run.id";
pub(crate) const RUN_STATUS: &str = "windlass.run.status";
pub(crate) const TURN_NUMBER: &str = "windlass.turn.number";
pub(crate) const CALL_STATUS: &str = "windlass.call.status";
pub(crate) const CALL_ATTEMPTS: &str = "windlass.call.attempts";
pub(crate) const CALL_EFFECT: &str = "windlass.call.effect";
pub(crate) const WAIT_REASON: &str = "windlass.wait.reason";
pub(crate) const WAIT_DECISION: &str = "windlass.wait.decision";
pub(crate) const WAIT_DECIDED_BY: &str = "windlass.wait.decided_by";
pub(crate) const BUDGET_RESOURCE: &str = "windlass.budget.resource";
pub(crate) const GUARDRAIL_NAME: &str = "windlass.guardrail.name";
pub(crate) const GUARDRAIL_STAGE: &str = "windlass.guardrail.stage";
pub(crate) const GUARDRAIL_VERDICT: &str = "windlass.guardrail.verdict";
pub(crate) const FORK_SEQ: &str = "windlass.fork.seq";
pub(crate) const RETRY_AFTER_MS: &str = "windlass.retry.after_ms";
pub(crate) const REQUEST_ID: &str = "windlass.provider.request_id";

/// Returns the attributes of a usage. Usage that the provider did not report is left out, and the number of its requests
/// is said.
pub(crate) fn usage_attributes(usage: &Usage) -> Vec<KeyValue> {
    let count =
        |name: &'static str, value: u64| KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX));
    let mut attributes = Vec::new();
    if usage.unknown_requests < usage.requests {
        attributes.push(count(convention::GEN_AI_USAGE_INPUT_TOKENS, usage.input_tokens));
        attributes.push(count(convention::GEN_AI_USAGE_OUTPUT_TOKENS, usage.output_tokens));
    }
    let optional = [
        (convention::GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS, usage.cached_tokens),
        (convention::GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS, usage.cache_write_tokens),
        (convention::GEN_AI_USAGE_REASONING_OUTPUT_TOKENS, usage.reasoning_tokens),
        ("windlass.usage.audio_input_tokens", usage.audio_input_tokens),
        ("windlass.usage.audio_output_tokens", usage.audio_output_tokens),
        ("windlass.usage.unknown_requests", usage.unknown_requests),
        ("windlass.usage.cost_nanos", usage.cost_nanos),
    ];
    attributes
        .extend(optional.into_iter().filter(|(_, value)| *value > 0).map(|(name, value)| count(name, value)));
    attributes
}

/// Returns the reason for which a response ended, in the words of the semantic conventions. The journal names it unless it
/// is the end of the response or its calls.
pub(crate) fn finish_reasons_attribute(responded: &ModelResponded) -> KeyValue {
    let reason = match &responded.finish_reason {
        None | Some(FinishReason::Complete) if responded.calls.is_empty() => "stop".to_owned(),
        None | Some(FinishReason::Complete | FinishReason::ToolCalls) => "tool_call".to_owned(),
        Some(FinishReason::StopSequence) => "stop".to_owned(),
        Some(FinishReason::LengthLimit) => "length".to_owned(),
        Some(FinishReason::ContentFilter | FinishReason::Refusal) => "content_filter".to_owned(),
        Some(other) => serialised_name(serde_json::to_value(other).ok()),
    };
    let reasons = opentelemetry::Value::Array(Array::String(vec![reason.into()]));
    KeyValue::new(convention::GEN_AI_RESPONSE_FINISH_REASONS, reasons)
}

/// Returns the attributes of the model that was asked.
pub(crate) fn requested_attributes(requested: &RequestedModel) -> impl Iterator<Item = KeyValue> {
    let RequestedModel { provider, model } = requested.clone();
    let named = [(convention::GEN_AI_PROVIDER_NAME, provider), (convention::GEN_AI_REQUEST_MODEL, model)];
    named.into_iter().filter_map(|(name, value)| Some(KeyValue::new(name, value?)))
}

/// Returns the serialised name of a call's status.
pub(crate) fn call_status_name(status: &CallStatus) -> String {
    serialised_name(serde_json::to_value(status).ok())
}

/// Returns the serialised name of a failure, without its texts.
pub(crate) fn failure_name(failure: &RunFailure) -> String {
    serialised_name(serde_json::to_value(failure).ok())
}

/// Returns the name of an enum variant in its serialised form.
pub(crate) fn serialised_name(value: Option<Value>) -> String {
    match value {
        Some(Value::String(name)) => name,
        Some(Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

/// Returns messages in the JSON form of the semantic conventions.
pub(crate) fn messages_attribute<'a>(name: &'static str, items: impl Iterator<Item = &'a Item>) -> KeyValue {
    let messages: Vec<Value> = items.filter_map(message_value).collect();
    KeyValue::new(name, truncated(Value::Array(messages).to_string()))
}

fn message_value(item: &Item) -> Option<Value> {
    match item {
        Item::Message(message) => {
            let role = match message.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            let parts: Vec<Value> = message.content.iter().map(part_value).collect();
            Some(json!({ "role": role, "parts": parts }))
        }
        Item::Call(call) => {
            let part = json!({ "type": "tool_call", "id": call.id.as_str(), "name": call.name, "arguments": call.arguments });
            Some(json!({ "role": "assistant", "parts": [part] }))
        }
        Item::Output(output) => {
            let part = json!({
                "type": "tool_call_response", "id": output.call.as_str(), "response": output_text(&output.content),
            });
            Some(json!({ "role": "tool", "parts": [part] }))
        }
        _ => None,
    }
}

fn part_value(part: &ContentPart) -> Value {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            json!({ "type": "text", "content": text })
        }
        ContentPart::Image(_) => json!({ "type": "image" }),
        ContentPart::File(_) => json!({ "type": "file" }),
        _ => json!({ "type": "other" }),
    }
}

/// Returns the text of an output; images and files are named only.
pub(crate) fn output_text(output: &OutputContent) -> String {
    match output {
        OutputContent::Text(text) => text.clone(),
        OutputContent::Parts(parts) => Value::Array(parts.iter().map(part_value).collect()).to_string(),
    }
}

/// Cuts a text at the limit for content, at a character boundary, and says so.
pub(crate) fn truncated(mut text: String) -> String {
    if text.len() > MAX_CONTENT_BYTES {
        let end = text.floor_char_boundary(MAX_CONTENT_BYTES);
        let left_out = text.len() - end;
        text.truncate(end);
        text.push_str(&format!("… [{left_out} bytes left out]"));
    }
    text
}
