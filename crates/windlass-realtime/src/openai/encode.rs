//! Encoding of commands as the provider's events.

use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};
use windlass::core::item::Role;
use windlass::model::{ToolChoice, ToolDefinition};

use crate::audio::AudioFormat;
use crate::history::{RealtimeContentPart, RealtimeItem, RealtimeItemKind};
use crate::id::CommandId;
use crate::json::merge_json;
use crate::model::{RealtimeCommand, RealtimeCommandKind, ResponseOptions, ResponseScope};
use crate::settings::{
    NoiseReduction, OutputModality, ProviderTracing, RealtimeSettings, ServerTurnActions,
    SessionConfiguration, TurnDetection,
};

/// Metadata key under which a response names the command that requested it.
pub(super) const REQUESTED_BY_KEY: &str = "windlass_command";

/// Encodes a command as a provider event.
pub fn encode_command(command: &RealtimeCommand, model: Option<&str>) -> Value {
    let mut event = match &command.kind {
        RealtimeCommandKind::Configure(configuration) => {
            json!({ "type": "session.update", "session": encode_session(configuration, model) })
        }
        RealtimeCommandKind::AppendAudio(bytes) => {
            json!({ "type": "input_audio_buffer.append", "audio": BASE64.encode(bytes) })
        }
        RealtimeCommandKind::CommitAudio => json!({ "type": "input_audio_buffer.commit" }),
        RealtimeCommandKind::ClearAudio => json!({ "type": "input_audio_buffer.clear" }),
        RealtimeCommandKind::CreateItem { item, after } => {
            let mut event = json!({ "type": "conversation.item.create", "item": encode_item(item) });
            if let Some(after) = after {
                event["previous_item_id"] = after.as_str().into();
            }
            event
        }
        RealtimeCommandKind::DeleteItem { item } => {
            json!({ "type": "conversation.item.delete", "item_id": item.as_str() })
        }
        RealtimeCommandKind::TruncateItem { item, content_index, heard_ms } => json!({
            "type": "conversation.item.truncate",
            "item_id": item.as_str(),
            "content_index": content_index,
            "audio_end_ms": heard_ms,
        }),
        RealtimeCommandKind::CreateResponse(options) => {
            json!({ "type": "response.create", "response": encode_options(options, &command.id) })
        }
        RealtimeCommandKind::CreateRawResponse(raw) => {
            let mut event = raw.clone();
            name_raw_request(&mut event, &command.id);
            event
        }
        RealtimeCommandKind::CancelResponse { response } => {
            json!({ "type": "response.cancel", "response_id": response.as_str() })
        }
        RealtimeCommandKind::Raw(raw) => raw.clone(),
    };
    if let Some(event) = event.as_object_mut() {
        event.entry("event_id").or_insert_with(|| command.id.as_str().into());
    }
    event
}

/// Names the command in a request of the application, so that its response and its rejection can be matched. Parts of
/// another form than the provider's are left for the provider to reject.
fn name_raw_request(event: &mut Value, command: &CommandId) {
    event["event_id"] = command.as_str().into();
    let mut place = event;
    for key in ["response", "metadata"] {
        place = &mut place[key];
        if !(place.is_object() || place.is_null()) {
            return;
        }
    }
    place[REQUESTED_BY_KEY] = command.as_str().into();
}

/// Encodes the options of a response request. Its metadata names the command, so that the response can be matched.
fn encode_options(options: &ResponseOptions, command: &CommandId) -> Value {
    let mut metadata = options.metadata.clone();
    metadata.insert(REQUESTED_BY_KEY.to_owned(), command.as_str().into());
    let mut response = json!({ "metadata": metadata });
    set_field(&mut response, "instructions", options.instructions.clone());
    set_field(&mut response, "max_output_tokens", options.max_output_tokens);
    set_field(&mut response, "tool_choice", options.tool_choice.as_ref().map(encode_tool_choice));
    set_field(
        &mut response,
        "output_modalities",
        options.output_modality.map(|modality| json!([modality_name(modality)])),
    );
    set_field(
        &mut response,
        "input",
        options.input.as_ref().map(|items| items.iter().map(encode_item).collect::<Value>()),
    );
    if options.scope == ResponseScope::OutOfBand {
        response["conversation"] = "none".into();
    }
    for (key, extra) in &options.extra {
        merge_json(&mut response[key], extra, &[]);
    }
    response
}

fn modality_name(modality: OutputModality) -> &'static str {
    match modality {
        OutputModality::Audio => "audio",
        OutputModality::Text => "text",
    }
}

/// Encodes a configuration as the provider's `session` object.
pub fn encode_session(configuration: &SessionConfiguration, model: Option<&str>) -> Value {
    let SessionConfiguration {
        instructions,
        tools,
        handoffs,
        model_settings: settings,
        realtime_settings: live,
        ..
    } = configuration;
    let modality = modality_name(live.output_modality);
    let tools: Vec<Value> = tools.iter().chain(handoffs).map(encode_tool).collect();
    let mut session = json!({
        "type": "realtime",
        "output_modalities": [modality],
        "audio": { "input": encode_input(live), "output": encode_output(live) },
        "tools": tools,
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            session[key] = value;
        }
    };
    set("model", model.map(Value::from));
    set("instructions", instructions.as_deref().map(Value::from));
    set("tool_choice", settings.tool_choice.as_ref().map(encode_tool_choice));
    set("parallel_tool_calls", settings.parallel_tool_calls.map(Value::from));
    set("max_output_tokens", settings.max_tokens.map(Value::from));
    set("reasoning", settings.reasoning_effort.as_ref().map(|effort| json!({ "effort": effort })));
    set("tracing", live.tracing.as_ref().map(encode_tracing));
    for (key, extra) in live.extra.iter().chain(&settings.extra) {
        merge_json(&mut session[key], extra, &[]);
    }
    session
}

fn encode_tracing(tracing: &ProviderTracing) -> Value {
    match tracing {
        ProviderTracing::Auto => "auto".into(),
        ProviderTracing::Disabled => Value::Null,
        ProviderTracing::Named { workflow_name, group_id, metadata } => {
            let mut named = json!({});
            set_field(&mut named, "workflow_name", workflow_name.clone());
            set_field(&mut named, "group_id", group_id.clone());
            if !metadata.is_empty() {
                named["metadata"] = Value::Object(metadata.clone());
            }
            named
        }
    }
}

fn encode_input(live: &RealtimeSettings) -> Value {
    let turns = match &live.turn_detection {
        TurnDetection::Application => Value::Null,
        TurnDetection::ServerVad(silence) => {
            let mut turns = json!({ "type": "server_vad" });
            set_server_actions(&mut turns, silence.server_actions);
            set_field(&mut turns, "threshold", silence.threshold);
            set_field(&mut turns, "prefix_padding_ms", silence.prefix_padding.map(to_millis));
            set_field(&mut turns, "silence_duration_ms", silence.silence_duration.map(to_millis));
            set_field(&mut turns, "idle_timeout_ms", silence.idle_timeout.map(to_millis));
            turns
        }
        TurnDetection::SemanticVad(meaning) => {
            let mut turns = json!({ "type": "semantic_vad" });
            set_server_actions(&mut turns, meaning.server_actions);
            set_field(&mut turns, "eagerness", meaning.eagerness.clone());
            turns
        }
    };
    let mut input = json!({ "turn_detection": turns });
    set_field(&mut input, "format", live.input_audio_format.map(encode_format));
    if let Some(transcription) = &live.input_transcription {
        let mut written = json!({ "model": transcription.model });
        set_field(&mut written, "language", transcription.language.clone());
        set_field(&mut written, "prompt", transcription.prompt.clone());
        input["transcription"] = written;
    }
    if let Some(noise) = live.noise_reduction {
        let kind = match noise {
            NoiseReduction::NearField => "near_field",
            NoiseReduction::FarField => "far_field",
        };
        input["noise_reduction"] = json!({ "type": kind });
    }
    input
}

fn encode_output(live: &RealtimeSettings) -> Value {
    let mut output = json!({});
    set_field(&mut output, "format", live.output_audio_format.map(encode_format));
    set_field(&mut output, "voice", live.voice.clone());
    set_field(&mut output, "speed", live.speed);
    output
}

fn encode_format(format: AudioFormat) -> Value {
    match format {
        AudioFormat::Pcm24k => json!({ "type": "audio/pcm", "rate": 24000 }),
        AudioFormat::Ulaw => json!({ "type": "audio/pcmu" }),
        AudioFormat::Alaw => json!({ "type": "audio/pcma" }),
    }
}

fn set_server_actions(value: &mut Value, turns: ServerTurnActions) {
    value["create_response"] = turns.create_response.into();
    value["interrupt_response"] = turns.interrupt_response.into();
}

fn set_field(value: &mut Value, key: &str, new: Option<impl Into<Value>>) {
    if let Some(new) = new {
        value[key] = new.into();
    }
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn encode_tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto | ToolChoice::Required | ToolChoice::None => choice.as_str().into(),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": name }),
    }
}

fn encode_tool(tool: &ToolDefinition) -> Value {
    json!({
        "type": "function",
        "name": &*tool.name,
        "description": &*tool.description,
        "parameters": &*tool.parameters,
    })
}

/// Encodes an item for the provider. Speech is sent as its transcript.
pub fn encode_item(item: &RealtimeItem) -> Value {
    let mut written = match &item.kind {
        RealtimeItemKind::Message { role, parts } => {
            let (role, kind) = match role {
                Role::System => ("system", "input_text"),
                Role::User => ("user", "input_text"),
                Role::Assistant => ("assistant", "output_text"),
            };
            let content: Vec<Value> = parts
                .iter()
                .filter_map(|part| match part {
                    RealtimeContentPart::Text { text }
                    | RealtimeContentPart::Audio { transcript: Some(text), .. } => {
                        Some(json!({ "type": kind, "text": text }))
                    }
                    RealtimeContentPart::Audio { transcript: None, .. } => None,
                    RealtimeContentPart::Image { url } => {
                        Some(json!({ "type": "input_image", "image_url": url }))
                    }
                })
                .collect();
            json!({ "type": "message", "role": role, "content": content })
        }
        RealtimeItemKind::Call { call, name, arguments } => json!({
            "type": "function_call",
            "call_id": call.as_str(),
            "name": name,
            "arguments": arguments,
        }),
        RealtimeItemKind::Output { call, text } => json!({
            "type": "function_call_output",
            "call_id": call.as_str(),
            "output": text,
        }),
        RealtimeItemKind::Other { raw } => raw.clone(),
    };
    written["id"] = item.id.as_str().into();
    written
}
