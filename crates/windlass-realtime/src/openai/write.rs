//! Commands in the provider's words.

use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Map, Value, json};
use windlass::core::Role;
use windlass::model::{OfferedTool, ToolChoice};

use crate::audio::AudioFormat;
use crate::history::{LiveItem, LiveItemKind, Part};
use crate::model::{Command, CommandKind};
use crate::settings::{Configuration, LiveSettings, NoiseReduction, OutputKind, ServerTurns, TurnDetection};

/// The key under which an answer says which command asked for it.
pub(super) const ASKED_BY: &str = "windlass_command";

/// A command as the provider reads it.
pub fn write_command(command: &Command, model: Option<&str>) -> Value {
    let mut event = match &command.kind {
        CommandKind::Configure(configuration) => {
            json!({ "type": "session.update", "session": session_update(configuration, model) })
        }
        CommandKind::Audio(bytes) => {
            json!({ "type": "input_audio_buffer.append", "audio": BASE64.encode(bytes) })
        }
        CommandKind::CommitAudio => json!({ "type": "input_audio_buffer.commit" }),
        CommandKind::ClearAudio => json!({ "type": "input_audio_buffer.clear" }),
        CommandKind::Add { item, after } => {
            let mut event = json!({ "type": "conversation.item.create", "item": write_item(item) });
            if let Some(after) = after {
                event["previous_item_id"] = after.as_str().into();
            }
            event
        }
        CommandKind::Delete { item } => {
            json!({ "type": "conversation.item.delete", "item_id": item.as_str() })
        }
        CommandKind::Truncate { item, content, heard_ms } => json!({
            "type": "conversation.item.truncate",
            "item_id": item.as_str(),
            "content_index": content,
            "audio_end_ms": heard_ms,
        }),
        CommandKind::Respond(options) => {
            let mut response = json!({ "metadata": { ASKED_BY: command.id.as_str() } });
            if let Some(instructions) = &options.instructions {
                response["instructions"] = instructions.as_str().into();
            }
            json!({ "type": "response.create", "response": response })
        }
        CommandKind::Cancel { response } => {
            json!({ "type": "response.cancel", "response_id": response.as_str() })
        }
        CommandKind::Raw(raw) => raw.clone(),
    };
    if let Some(event) = event.as_object_mut() {
        event.entry("event_id").or_insert_with(|| command.id.as_str().into());
    }
    event
}

/// A configuration as the provider reads it.
pub fn session_update(configuration: &Configuration, model: Option<&str>) -> Value {
    let Configuration { instructions, tools, handoffs, model: settings, live, .. } = configuration;
    let modality = match live.output {
        OutputKind::Audio => "audio",
        OutputKind::Text => "text",
    };
    let tools: Vec<Value> = tools.iter().chain(handoffs).map(write_tool).collect();
    let mut session = json!({
        "type": "realtime",
        "output_modalities": [modality],
        "audio": { "input": input(live), "output": output(live) },
        "tools": tools,
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            session[key] = value;
        }
    };
    set("model", model.map(Value::from));
    set("instructions", instructions.as_deref().map(Value::from));
    set("tool_choice", settings.tool_choice.as_ref().map(tool_choice));
    set("parallel_tool_calls", settings.parallel_calls.map(Value::from));
    set("max_output_tokens", settings.max_tokens.map(Value::from));
    set("reasoning", settings.reasoning_effort.as_ref().map(|effort| json!({ "effort": effort })));
    overlay(&mut session, &live.extra);
    overlay(&mut session, &settings.extra);
    session
}

fn input(live: &LiveSettings) -> Value {
    let turns = match &live.turns {
        TurnDetection::Application => Value::Null,
        TurnDetection::Silence(silence) => {
            let mut turns = json!({ "type": "server_vad" });
            set_turns(&mut turns, silence.turns);
            set(&mut turns, "threshold", silence.threshold);
            set(&mut turns, "prefix_padding_ms", silence.prefix.map(millis));
            set(&mut turns, "silence_duration_ms", silence.silence.map(millis));
            set(&mut turns, "idle_timeout_ms", silence.idle.map(millis));
            turns
        }
        TurnDetection::Meaning(meaning) => {
            let mut turns = json!({ "type": "semantic_vad" });
            set_turns(&mut turns, meaning.turns);
            set(&mut turns, "eagerness", meaning.eagerness.clone());
            turns
        }
    };
    let mut input = json!({ "format": format(live.input_format), "turn_detection": turns });
    if let Some(transcription) = &live.transcription {
        let mut written = json!({ "model": transcription.model });
        set(&mut written, "language", transcription.language.clone());
        set(&mut written, "prompt", transcription.prompt.clone());
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

fn output(live: &LiveSettings) -> Value {
    let mut output = json!({ "format": format(live.output_format) });
    set(&mut output, "voice", live.voice.clone());
    set(&mut output, "speed", live.speed);
    output
}

fn format(format: AudioFormat) -> Value {
    match format {
        AudioFormat::Pcm24k => json!({ "type": "audio/pcm", "rate": 24000 }),
        AudioFormat::Ulaw => json!({ "type": "audio/pcmu" }),
        AudioFormat::Alaw => json!({ "type": "audio/pcma" }),
    }
}

fn set_turns(value: &mut Value, turns: ServerTurns) {
    value["create_response"] = turns.answers.into();
    value["interrupt_response"] = turns.interrupts.into();
}

fn set(value: &mut Value, key: &str, new: Option<impl Into<Value>>) {
    if let Some(new) = new {
        value[key] = new.into();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto | ToolChoice::Required | ToolChoice::None => choice.as_str().into(),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": name }),
    }
}

fn write_tool(tool: &OfferedTool) -> Value {
    json!({
        "type": "function",
        "name": &*tool.name,
        "description": &*tool.description,
        "parameters": &*tool.parameters,
    })
}

/// Puts fields over others, field by field.
fn overlay(value: &mut Value, over: &Map<String, Value>) {
    for (key, new) in over {
        match (value.get_mut(key), new) {
            (Some(known @ Value::Object(_)), Value::Object(new)) => overlay(known, new),
            _ => value[key] = new.clone(),
        }
    }
}

/// An item as the provider reads it. What was spoken is given back as what was said.
pub fn write_item(item: &LiveItem) -> Value {
    let mut written = match &item.kind {
        LiveItemKind::Message { role, parts } => {
            let (role, kind) = match role {
                Role::System => ("system", "input_text"),
                Role::User => ("user", "input_text"),
                Role::Assistant => ("assistant", "output_text"),
            };
            let content: Vec<Value> = parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text { text } | Part::Audio { transcript: Some(text), .. } => {
                        Some(json!({ "type": kind, "text": text }))
                    }
                    Part::Audio { transcript: None, .. } => None,
                    Part::Image { url } => Some(json!({ "type": "input_image", "image_url": url })),
                })
                .collect();
            json!({ "type": "message", "role": role, "content": content })
        }
        LiveItemKind::Call { call, name, arguments } => json!({
            "type": "function_call",
            "call_id": call.as_str(),
            "name": name,
            "arguments": arguments,
        }),
        LiveItemKind::Output { call, text } => json!({
            "type": "function_call_output",
            "call_id": call.as_str(),
            "output": text,
        }),
        LiveItemKind::Other { raw } => raw.clone(),
    };
    written["id"] = item.id.as_str().into();
    written
}
