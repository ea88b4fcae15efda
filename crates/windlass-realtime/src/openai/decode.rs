//! Decoding of the provider's events. Unknown events are passed on unchanged; no event ends the session.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use serde_json::Value;
use windlass::core::usage::Usage;
use windlass::core::{id::CallId, item::Role};

use super::encode::REQUESTED_BY_KEY;
use super::sent_configurations::{Acknowledgement, SentConfigurations};
use crate::history::{RealtimeContentPart, RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::{CommandId, ItemId, ResponseId};
use crate::model::{
    ModalityTokens, OutputTextKind, RealtimeModelEvent, RealtimeRateLimit, RealtimeUsage, RejectionKind,
    RejectionSubject, ResponseScope, ResponseStatus,
};

/// Maximum number of open responses with calls; a server that starts more has never ended the others.
const MAX_OPEN_RESPONSES: usize = 64;

/// A decoder for the events of one connection.
#[derive(Debug, Default)]
pub struct RealtimeEventDecoder {
    /// Calls of open responses. Some servers do not repeat them in `response.done`.
    open_calls: BTreeMap<ResponseId, Vec<RealtimeItem>>,
    /// True if the server reports the conversation of a response, so that a null id means out of band.
    reports_conversation: bool,
    sent_configurations: SentConfigurations,
}

impl RealtimeEventDecoder {
    /// Creates a decoder that matches acknowledgements with these configurations.
    pub(super) fn with_sent_configurations(sent_configurations: SentConfigurations) -> Self {
        Self { sent_configurations, ..Self::default() }
    }

    /// Decodes a message; `None` if it carries nothing new.
    pub fn decode(&mut self, text: &str) -> Option<RealtimeModelEvent> {
        let raw: Value = match serde_json::from_str(text) {
            Ok(raw) => raw,
            Err(error) => {
                let message: String = text.chars().take(200).collect();
                tracing::warn!(%error, message, "a message of the provider is not JSON");
                return Some(RealtimeModelEvent::Unknown {
                    kind: "unreadable".to_owned(),
                    raw: message.into(),
                });
            }
        };
        let kind = raw["type"].as_str().unwrap_or_default().to_owned();
        let read = self.decode_event(&kind, &raw);
        match read {
            DecodedEvent::Event(event) => Some(*event),
            DecodedEvent::Ignored => None,
            DecodedEvent::Unknown => Some(RealtimeModelEvent::Unknown { kind, raw }),
        }
    }

    fn decode_event(&mut self, kind: &str, raw: &Value) -> DecodedEvent {
        let read = match kind {
            "session.created" => {
                Some(RealtimeModelEvent::SessionCreated { session: string_value(&raw["session"]["id"]) })
            }
            "session.updated" => match self.sent_configurations.acknowledge(&raw["session"]) {
                Acknowledgement::Identified(command) => {
                    Some(RealtimeModelEvent::ConfigurationApplied { command: Some(command) })
                }
                Acknowledgement::Unidentified => {
                    Some(RealtimeModelEvent::ConfigurationApplied { command: None })
                }
                Acknowledgement::NotOurs => return DecodedEvent::Ignored,
            },
            "error" => {
                let rejected = decode_error(&raw["error"]);
                if let RealtimeModelEvent::CommandRejected { command: Some(command), .. } = &rejected {
                    self.sent_configurations.forget_rejected(command);
                }
                Some(rejected)
            }
            "response.created" => self.decode_response_created(&raw["response"]),
            "response.done" => self.decode_response_done(&raw["response"]),
            "response.output_audio.delta" => decode_audio_delta(raw),
            "response.output_audio.done" => part_location(raw).map(|(response, item, content_index)| {
                RealtimeModelEvent::AudioEnded { response, item, content_index }
            }),
            "response.output_audio_transcript.delta" => {
                decode_text_delta(raw, OutputTextKind::AudioTranscript)
            }
            "response.output_text.delta" => decode_text_delta(raw, OutputTextKind::PlainText),
            "response.output_audio_transcript.done" => {
                decode_text_done(raw, "transcript", OutputTextKind::AudioTranscript)
            }
            "response.output_text.done" => decode_text_done(raw, "text", OutputTextKind::PlainText),
            "response.function_call_arguments.delta" => {
                response_id(raw).map(|response| RealtimeModelEvent::ArgumentsDelta {
                    response,
                    call: CallId::from(string_value(&raw["call_id"])),
                    delta: string_value(&raw["delta"]),
                })
            }
            "response.output_item.added" | "response.output_item.done" => self.decode_output_item(kind, raw),
            "conversation.item.added"
            | "conversation.item.done"
            | "conversation.item.created"
            | "conversation.item.retrieved" => {
                decode_item(&raw["item"]).map(|item| RealtimeModelEvent::ItemChanged {
                    item,
                    after: raw["previous_item_id"].as_str().map(ItemId::from),
                })
            }
            "conversation.item.deleted" => item_id(raw).map(|item| RealtimeModelEvent::ItemDeleted { item }),
            "conversation.item.truncated" => {
                let heard_ms = raw["audio_end_ms"].as_u64().unwrap_or_default();
                item_id(raw).map(|item| RealtimeModelEvent::ItemTruncated { item, heard_ms })
            }
            "conversation.item.input_audio_transcription.delta" => {
                item_id(raw).map(|item| RealtimeModelEvent::InputTranscriptDelta {
                    item,
                    content_index: content_index(raw),
                    delta: string_value(&raw["delta"]),
                })
            }
            "conversation.item.input_audio_transcription.completed" => {
                item_id(raw).map(|item| RealtimeModelEvent::InputTranscriptCompleted {
                    item,
                    content_index: content_index(raw),
                    text: string_value(&raw["transcript"]),
                })
            }
            "conversation.item.input_audio_transcription.failed" => {
                item_id(raw).map(|item| RealtimeModelEvent::InputTranscriptFailed {
                    item,
                    message: string_value(&raw["error"]["message"]),
                })
            }
            "input_audio_buffer.speech_started" => {
                item_id(raw).map(|item| RealtimeModelEvent::SpeechStarted { item })
            }
            "input_audio_buffer.speech_stopped" => {
                item_id(raw).map(|item| RealtimeModelEvent::SpeechStopped { item })
            }
            "input_audio_buffer.committed" => item_id(raw).map(|item| RealtimeModelEvent::AudioCommitted {
                item,
                after: raw["previous_item_id"].as_str().map(ItemId::from),
            }),
            "input_audio_buffer.cleared" => Some(RealtimeModelEvent::AudioCleared),
            "input_audio_buffer.timeout_triggered" => Some(RealtimeModelEvent::IdleTimeout),
            "rate_limits.updated" => Some(decode_rate_limits(raw)),
            // Their content is repeated by other events.
            "conversation.created"
            | "response.content_part.added"
            | "response.content_part.done"
            | "response.function_call_arguments.done"
            | "conversation.item.input_audio_transcription.segment"
            | "output_audio_buffer.started"
            | "output_audio_buffer.stopped"
            | "output_audio_buffer.cleared" => return DecodedEvent::Ignored,
            _ => None,
        };
        read.map_or(DecodedEvent::Unknown, |event| DecodedEvent::Event(Box::new(event)))
    }

    fn decode_output_item(&mut self, kind: &str, raw: &Value) -> Option<RealtimeModelEvent> {
        let response = response_id(raw)?;
        let mut item = decode_item(&raw["item"])?;
        item.response = Some(response.clone());
        if kind.ends_with(".added") {
            item.status = RealtimeItemStatus::InProgress;
        } else if matches!(item.kind, RealtimeItemKind::Call { .. }) {
            if self.open_calls.len() >= MAX_OPEN_RESPONSES {
                self.open_calls.pop_first();
            }
            self.open_calls.entry(response).or_default().push(item.clone());
        }
        Some(RealtimeModelEvent::ItemChanged { item, after: None })
    }

    fn decode_response_created(&mut self, raw: &Value) -> Option<RealtimeModelEvent> {
        let scope = match raw.get("conversation_id") {
            Some(Value::Null) if self.reports_conversation => ResponseScope::OutOfBand,
            Some(Value::String(_)) => {
                self.reports_conversation = true;
                ResponseScope::InConversation
            }
            _ => ResponseScope::InConversation,
        };
        Some(RealtimeModelEvent::ResponseStarted {
            response: ResponseId::from(raw["id"].as_str()?),
            requested_by: raw["metadata"][REQUESTED_BY_KEY].as_str().map(CommandId::from),
            scope,
        })
    }

    fn decode_response_done(&mut self, raw: &Value) -> Option<RealtimeModelEvent> {
        let response = ResponseId::from(raw["id"].as_str()?);
        let mut calls = self.open_calls.remove(&response).unwrap_or_default();
        for item in raw["output"].as_array().into_iter().flatten().filter_map(decode_item) {
            let is_known =
                calls.iter().any(|known| known.id == item.id || call_id_of(known) == call_id_of(&item));
            if matches!(item.kind, RealtimeItemKind::Call { .. }) && !is_known {
                calls.push(item);
            }
        }
        let details = &raw["status_details"];
        let reason = || string_value(&details["reason"]);
        let status = match raw["status"].as_str().unwrap_or("completed") {
            "completed" => ResponseStatus::Completed,
            "cancelled" => ResponseStatus::Cancelled,
            "failed" => ResponseStatus::Failed {
                code: string_value(&details["error"]["code"]),
                message: string_value(&details["error"]["message"]),
            },
            "incomplete" => ResponseStatus::Incomplete { reason: reason() },
            other => ResponseStatus::Incomplete { reason: other.to_owned() },
        };
        Some(RealtimeModelEvent::ResponseEnded {
            response,
            status,
            usage: decode_usage(&raw["usage"]),
            calls,
        })
    }
}

/// The result of decoding one event.
enum DecodedEvent {
    Event(Box<RealtimeModelEvent>),
    Ignored,
    Unknown,
}

fn call_id_of(item: &RealtimeItem) -> Option<&CallId> {
    match &item.kind {
        RealtimeItemKind::Call { call, .. } => Some(call),
        _ => None,
    }
}

fn string_value(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn item_id(raw: &Value) -> Option<ItemId> {
    raw["item_id"].as_str().map(ItemId::from)
}

fn response_id(raw: &Value) -> Option<ResponseId> {
    raw["response_id"].as_str().map(ResponseId::from)
}

fn content_index(raw: &Value) -> u32 {
    raw["content_index"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or_default()
}

fn part_location(raw: &Value) -> Option<(ResponseId, ItemId, u32)> {
    Some((response_id(raw)?, item_id(raw)?, content_index(raw)))
}

fn decode_audio_delta(raw: &Value) -> Option<RealtimeModelEvent> {
    let (response, item, content_index) = part_location(raw)?;
    let bytes = BASE64.decode(raw["delta"].as_str()?.as_bytes()).ok()?;
    Some(RealtimeModelEvent::AudioDelta { response, item, content_index, bytes })
}

fn decode_text_delta(raw: &Value, kind: OutputTextKind) -> Option<RealtimeModelEvent> {
    let (response, item, content_index) = part_location(raw)?;
    Some(RealtimeModelEvent::OutputTextDelta {
        response,
        item,
        content_index,
        delta: string_value(&raw["delta"]),
        kind,
    })
}

fn decode_text_done(raw: &Value, key: &str, kind: OutputTextKind) -> Option<RealtimeModelEvent> {
    let (response, item, content_index) = part_location(raw)?;
    Some(RealtimeModelEvent::OutputTextEnded {
        response,
        item,
        content_index,
        text: raw[key].as_str()?.to_owned(),
        kind,
    })
}

fn decode_error(raw: &Value) -> RealtimeModelEvent {
    let code = raw["code"].as_str().or(raw["type"].as_str()).unwrap_or("error").to_owned();
    let message = string_value(&raw["message"]);
    let kind = match code.as_str() {
        "conversation_already_has_active_response" | "response_already_active" => {
            RejectionKind::ResponseAlreadyActive
        }
        "response_cancel_not_active" => RejectionKind::NothingToCancel,
        _ if message.contains("already has an active response") => RejectionKind::ResponseAlreadyActive,
        _ => RejectionKind::Other,
    };
    let command = raw["event_id"].as_str().filter(|id| !id.is_empty()).map(CommandId::from);
    let parameter = raw["param"].as_str().unwrap_or_default();
    let subject = match parameter.split(['.', '[']).next().unwrap_or_default() {
        "session" => RejectionSubject::Configuration,
        "item" | "previous_item_id" => RejectionSubject::Item,
        "response" => RejectionSubject::Response,
        _ => RejectionSubject::Unspecified,
    };
    RealtimeModelEvent::CommandRejected { command, code, message, kind, subject }
}

fn decode_usage(raw: &Value) -> Option<RealtimeUsage> {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let by_modality = |details: &Value| ModalityTokens {
        text: count(&details["text_tokens"]),
        audio: count(&details["audio_tokens"]),
        image: count(&details["image_tokens"]),
    };
    let input = &raw["input_token_details"];
    raw.is_object().then(|| RealtimeUsage {
        total: Usage {
            cached_tokens: count(&input["cached_tokens"]),
            audio_input_tokens: count(&input["audio_tokens"]),
            audio_output_tokens: count(&raw["output_token_details"]["audio_tokens"]),
            ..Usage::of_tokens(count(&raw["input_tokens"]), count(&raw["output_tokens"]))
        },
        input: by_modality(input),
        cached: by_modality(&input["cached_tokens_details"]),
        output: by_modality(&raw["output_token_details"]),
    })
}

fn decode_rate_limits(raw: &Value) -> RealtimeModelEvent {
    let limits = raw["rate_limits"].as_array().into_iter().flatten().map(|limit| RealtimeRateLimit {
        name: string_value(&limit["name"]),
        limit: limit["limit"].as_u64().unwrap_or_default(),
        remaining: limit["remaining"].as_u64().unwrap_or_default(),
        reset_seconds: limit["reset_seconds"].as_f64().unwrap_or_default(),
    });
    RealtimeModelEvent::RateLimits(limits.collect())
}

/// Decodes an item of the provider.
pub fn decode_item(raw: &Value) -> Option<RealtimeItem> {
    let id = ItemId::from(raw["id"].as_str()?);
    let kind = match raw["type"].as_str()? {
        "message" => {
            let role = match raw["role"].as_str()? {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                _ => Role::System,
            };
            let parts = raw["content"].as_array().into_iter().flatten().filter_map(decode_part).collect();
            RealtimeItemKind::Message { role, parts }
        }
        "function_call" => RealtimeItemKind::Call {
            call: CallId::from(raw["call_id"].as_str()?),
            name: string_value(&raw["name"]),
            arguments: string_value(&raw["arguments"]),
        },
        "function_call_output" => RealtimeItemKind::Output {
            call: CallId::from(raw["call_id"].as_str()?),
            text: string_value(&raw["output"]),
        },
        _ => RealtimeItemKind::Other { raw: raw.clone() },
    };
    let status = match raw["status"].as_str() {
        Some("in_progress") => RealtimeItemStatus::InProgress,
        Some("incomplete") => RealtimeItemStatus::Interrupted,
        _ => RealtimeItemStatus::Completed,
    };
    Some(RealtimeItem { status, ..RealtimeItem::new(id, kind) })
}

fn decode_part(raw: &Value) -> Option<RealtimeContentPart> {
    match raw["type"].as_str()? {
        "input_text" | "output_text" | "text" => Some(RealtimeContentPart::text(string_value(&raw["text"]))),
        "input_audio" | "output_audio" | "audio" => {
            let transcript = raw["transcript"].as_str().map(str::to_owned);
            Some(RealtimeContentPart::Audio { transcript, heard_ms: None })
        }
        "input_image" => Some(RealtimeContentPart::Image { url: string_value(&raw["image_url"]) }),
        _ => None,
    }
}
