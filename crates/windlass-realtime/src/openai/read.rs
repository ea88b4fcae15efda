//! The provider's events, read. What is not known is passed on as it is; nothing that comes ends the session.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use serde_json::Value;
use windlass::Usage;
use windlass::core::{CallId, Role};

use super::write::ASKED_BY;
use crate::history::{ItemStatus, LiveItem, LiveItemKind, Part};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::model::{ModelEvent, RateLimit, RefusalKind, ResponsePlace, ResponseStatus, WordForm};

/// So many answers may have calls at once; a server that begins more never ended the others.
const MOST_ANSWERS: usize = 64;

/// Reads the events of one connection.
#[derive(Debug, Default)]
pub struct Reader {
    /// Calls of answers that have not ended. Some servers do not repeat them at the end.
    calls: BTreeMap<ResponseId, Vec<LiveItem>>,
    /// The server says which conversation an answer belongs to, so that none means none.
    names_conversations: bool,
}

impl Reader {
    /// What a message says: nothing that matters, or an event.
    pub fn read(&mut self, text: &str) -> Option<ModelEvent> {
        let raw: Value = match serde_json::from_str(text) {
            Ok(raw) => raw,
            Err(error) => {
                let message: String = text.chars().take(200).collect();
                tracing::warn!(%error, message, "a message of the provider is no JSON");
                return Some(ModelEvent::Unknown { kind: "unreadable".to_owned(), raw: message.into() });
            }
        };
        let kind = raw["type"].as_str().unwrap_or_default().to_owned();
        let read = self.event(&kind, &raw);
        match read {
            Read::Event(event) => Some(event),
            Read::Nothing => None,
            Read::Unknown => Some(ModelEvent::Unknown { kind, raw }),
        }
    }

    fn event(&mut self, kind: &str, raw: &Value) -> Read {
        let read = match kind {
            "session.created" => Some(ModelEvent::Opened { session: text(&raw["session"]["id"]) }),
            "session.updated" => Some(ModelEvent::Configured),
            "error" => Some(error(&raw["error"])),
            "response.created" => self.response_started(&raw["response"]),
            "response.done" => self.response_ended(&raw["response"]),
            "response.output_audio.delta" => audio(raw),
            "response.output_audio.done" => {
                part(raw).map(|(response, item, content)| ModelEvent::AudioEnded { response, item, content })
            }
            "response.output_audio_transcript.delta" => words(raw, WordForm::Spoken),
            "response.output_text.delta" => words(raw, WordForm::Written),
            "response.output_audio_transcript.done" => words_ended(raw, "transcript", WordForm::Spoken),
            "response.output_text.done" => words_ended(raw, "text", WordForm::Written),
            "response.function_call_arguments.delta" => response(raw).map(|response| ModelEvent::Arguments {
                response,
                call: CallId::from(text(&raw["call_id"])),
                delta: text(&raw["delta"]),
            }),
            "response.output_item.added" | "response.output_item.done" => self.output_item(kind, raw),
            "conversation.item.added"
            | "conversation.item.done"
            | "conversation.item.created"
            | "conversation.item.retrieved" => read_item(&raw["item"]).map(|item| ModelEvent::Item {
                item,
                after: raw["previous_item_id"].as_str().map(ItemId::from),
            }),
            "conversation.item.deleted" => item(raw).map(|item| ModelEvent::ItemDeleted { item }),
            "conversation.item.truncated" => {
                let heard_ms = raw["audio_end_ms"].as_u64().unwrap_or_default();
                item(raw).map(|item| ModelEvent::ItemTruncated { item, heard_ms })
            }
            "conversation.item.input_audio_transcription.delta" => item(raw).map(|item| ModelEvent::Heard {
                item,
                content: content(raw),
                delta: text(&raw["delta"]),
            }),
            "conversation.item.input_audio_transcription.completed" => item(raw).map(|item| {
                ModelEvent::HeardAll { item, content: content(raw), text: text(&raw["transcript"]) }
            }),
            "conversation.item.input_audio_transcription.failed" => {
                item(raw).map(|item| ModelEvent::NotHeard { item, message: text(&raw["error"]["message"]) })
            }
            "input_audio_buffer.speech_started" => item(raw).map(|item| ModelEvent::SpeechStarted { item }),
            "input_audio_buffer.speech_stopped" => item(raw).map(|item| ModelEvent::SpeechStopped { item }),
            "input_audio_buffer.committed" => item(raw).map(|item| ModelEvent::AudioCommitted {
                item,
                after: raw["previous_item_id"].as_str().map(ItemId::from),
            }),
            "input_audio_buffer.timeout_triggered" => Some(ModelEvent::IdleTimeout),
            "rate_limits.updated" => Some(rate_limits(raw)),
            // Their content comes with other events too.
            "conversation.created"
            | "response.content_part.added"
            | "response.content_part.done"
            | "response.function_call_arguments.done"
            | "conversation.item.input_audio_transcription.segment"
            | "input_audio_buffer.cleared"
            | "output_audio_buffer.started"
            | "output_audio_buffer.stopped"
            | "output_audio_buffer.cleared" => return Read::Nothing,
            _ => None,
        };
        read.map_or(Read::Unknown, Read::Event)
    }

    fn output_item(&mut self, kind: &str, raw: &Value) -> Option<ModelEvent> {
        let response = response(raw)?;
        let mut item = read_item(&raw["item"])?;
        item.response = Some(response.clone());
        if kind.ends_with(".added") {
            item.status = ItemStatus::InProgress;
        } else if matches!(item.kind, LiveItemKind::Call { .. }) {
            if self.calls.len() >= MOST_ANSWERS {
                self.calls.pop_first();
            }
            self.calls.entry(response).or_default().push(item.clone());
        }
        Some(ModelEvent::Item { item, after: None })
    }

    fn response_started(&mut self, raw: &Value) -> Option<ModelEvent> {
        let place = match raw.get("conversation_id") {
            Some(Value::Null) if self.names_conversations => ResponsePlace::Beside,
            Some(Value::String(_)) => {
                self.names_conversations = true;
                ResponsePlace::InConversation
            }
            _ => ResponsePlace::InConversation,
        };
        Some(ModelEvent::ResponseStarted {
            response: ResponseId::from(raw["id"].as_str()?),
            asked_by: raw["metadata"][ASKED_BY].as_str().map(CommandId::from),
            place,
        })
    }

    fn response_ended(&mut self, raw: &Value) -> Option<ModelEvent> {
        let response = ResponseId::from(raw["id"].as_str()?);
        let mut calls = self.calls.remove(&response).unwrap_or_default();
        for item in raw["output"].as_array().into_iter().flatten().filter_map(read_item) {
            let is_known = calls.iter().any(|known| known.id == item.id || call_of(known) == call_of(&item));
            if matches!(item.kind, LiveItemKind::Call { .. }) && !is_known {
                calls.push(item);
            }
        }
        let details = &raw["status_details"];
        let reason = || text(&details["reason"]);
        let status = match raw["status"].as_str().unwrap_or("completed") {
            "completed" => ResponseStatus::Completed,
            "cancelled" => ResponseStatus::Cancelled,
            "failed" => ResponseStatus::Failed {
                code: text(&details["error"]["code"]),
                message: text(&details["error"]["message"]),
            },
            "incomplete" => ResponseStatus::Incomplete { reason: reason() },
            other => ResponseStatus::Incomplete { reason: other.to_owned() },
        };
        Some(ModelEvent::ResponseEnded { response, status, usage: usage(&raw["usage"]), calls })
    }
}

enum Read {
    Event(ModelEvent),
    Nothing,
    Unknown,
}

fn call_of(item: &LiveItem) -> Option<&CallId> {
    match &item.kind {
        LiveItemKind::Call { call, .. } => Some(call),
        _ => None,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn item(raw: &Value) -> Option<ItemId> {
    raw["item_id"].as_str().map(ItemId::from)
}

fn response(raw: &Value) -> Option<ResponseId> {
    raw["response_id"].as_str().map(ResponseId::from)
}

fn content(raw: &Value) -> u32 {
    raw["content_index"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or_default()
}

fn part(raw: &Value) -> Option<(ResponseId, ItemId, u32)> {
    Some((response(raw)?, item(raw)?, content(raw)))
}

fn audio(raw: &Value) -> Option<ModelEvent> {
    let (response, item, content) = part(raw)?;
    let bytes = BASE64.decode(raw["delta"].as_str()?.as_bytes()).ok()?;
    Some(ModelEvent::Audio { response, item, content, bytes })
}

fn words(raw: &Value, form: WordForm) -> Option<ModelEvent> {
    let (response, item, content) = part(raw)?;
    Some(ModelEvent::Words { response, item, content, delta: text(&raw["delta"]), form })
}

fn words_ended(raw: &Value, key: &str, form: WordForm) -> Option<ModelEvent> {
    let (response, item, content) = part(raw)?;
    Some(ModelEvent::WordsEnded { response, item, content, text: raw[key].as_str()?.to_owned(), form })
}

fn error(raw: &Value) -> ModelEvent {
    let code = raw["code"].as_str().or(raw["type"].as_str()).unwrap_or("error").to_owned();
    let message = text(&raw["message"]);
    let why = match code.as_str() {
        "conversation_already_has_active_response" | "response_already_active" => {
            RefusalKind::AlreadyAnswering
        }
        "response_cancel_not_active" => RefusalKind::NothingToCancel,
        _ if message.contains("already has an active response") => RefusalKind::AlreadyAnswering,
        _ => RefusalKind::Other,
    };
    let command = raw["event_id"].as_str().map(CommandId::from);
    ModelEvent::Refused { command, code, message, why }
}

fn usage(raw: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    raw.is_object().then(|| Usage {
        cached_tokens: count(&raw["input_token_details"]["cached_tokens"]),
        ..Usage::tokens(count(&raw["input_tokens"]), count(&raw["output_tokens"]))
    })
}

fn rate_limits(raw: &Value) -> ModelEvent {
    let limits = raw["rate_limits"].as_array().into_iter().flatten().map(|limit| RateLimit {
        name: text(&limit["name"]),
        limit: limit["limit"].as_u64().unwrap_or_default(),
        remaining: limit["remaining"].as_u64().unwrap_or_default(),
        reset_seconds: limit["reset_seconds"].as_f64().unwrap_or_default(),
    });
    ModelEvent::RateLimits(limits.collect())
}

/// An item as the provider writes it.
pub fn read_item(raw: &Value) -> Option<LiveItem> {
    let id = ItemId::from(raw["id"].as_str()?);
    let kind = match raw["type"].as_str()? {
        "message" => {
            let role = match raw["role"].as_str()? {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                _ => Role::System,
            };
            let parts = raw["content"].as_array().into_iter().flatten().filter_map(read_part).collect();
            LiveItemKind::Message { role, parts }
        }
        "function_call" => LiveItemKind::Call {
            call: CallId::from(raw["call_id"].as_str()?),
            name: text(&raw["name"]),
            arguments: text(&raw["arguments"]),
        },
        "function_call_output" => {
            LiveItemKind::Output { call: CallId::from(raw["call_id"].as_str()?), text: text(&raw["output"]) }
        }
        _ => LiveItemKind::Other { raw: raw.clone() },
    };
    let status = match raw["status"].as_str() {
        Some("in_progress") => ItemStatus::InProgress,
        Some("incomplete") => ItemStatus::Interrupted,
        _ => ItemStatus::Completed,
    };
    Some(LiveItem { status, ..LiveItem::new(id, kind) })
}

fn read_part(raw: &Value) -> Option<Part> {
    match raw["type"].as_str()? {
        "input_text" | "output_text" | "text" => Some(Part::text(text(&raw["text"]))),
        "input_audio" | "output_audio" | "audio" => {
            let transcript = raw["transcript"].as_str().map(str::to_owned);
            Some(Part::Audio { transcript, heard_ms: None })
        }
        "input_image" => Some(Part::Image { url: text(&raw["image_url"]) }),
        _ => None,
    }
}
