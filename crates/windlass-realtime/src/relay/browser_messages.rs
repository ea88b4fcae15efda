//! The messages of a browser and to it. Text of the model, of tools and of people is untrusted: every hidden character in
//! it is a visible escape, and the page shows it as text.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::decision::{Decision, HoldReason, PendingCall};
use windlass::core::item::{OutputContent, Role};
use windlass_text::{SafeText, StreamEscaper};

use super::call_display::CallDisplay;
use crate::event::{AfterDisconnect, RealtimeEvent};
use crate::history::{HistoryChange, RealtimeItem, RealtimeItemKind, RealtimeItemStatus};
use crate::id::ItemId;
use crate::model::ResponseStatus;

/// Number of items whose text is being escaped piece by piece.
const MAX_OPEN_TEXTS: usize = 64;

/// A message of a browser. Binary messages are audio in the session's input format.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum BrowserMessage {
    /// A text of the user.
    Text { text: String },
    /// The number of bytes of a track that were played.
    Played { track: u32, bytes: u64 },
    /// The user stops the model.
    Interrupt {},
    /// The user's turn has ended, if the application detects turns.
    Commit {},
    /// The audio that was sent and not committed is discarded, such as at a muted microphone.
    ClearAudio {},
    /// A decision on a call, named by the digest of its display.
    Decide {
        digest: String,
        decision: BrowserDecision,
        #[serde(default)]
        standing: bool,
    },
}

/// A decision of a browser's user.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum BrowserDecision {
    Approve {},
    Reject {
        #[serde(default)]
        message: Option<String>,
    },
    Answer {
        value: Value,
    },
    ConfirmExecuted {
        output: String,
    },
    ConfirmNotExecuted {},
    OutcomeUnknown {},
}

impl From<BrowserDecision> for Decision {
    fn from(decision: BrowserDecision) -> Self {
        match decision {
            BrowserDecision::Approve {} => Self::Approve,
            BrowserDecision::Reject { message } => {
                Self::Reject { message: message.filter(|message| !message.trim().is_empty()) }
            }
            BrowserDecision::Answer { value } => Self::Answer { value },
            BrowserDecision::ConfirmExecuted { output } => {
                Self::ConfirmExecuted { output: OutputContent::from(output.as_str()) }
            }
            BrowserDecision::ConfirmNotExecuted {} => Self::ConfirmNotExecuted,
            BrowserDecision::OutcomeUnknown {} => Self::OutcomeUnknown,
        }
    }
}

/// The visibility of tool calls for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallVisibility {
    Hidden,
    Shown,
}

/// An encoder of a session's events for a browser.
pub(super) struct BrowserEncoder {
    visibility: CallVisibility,
    open_texts: BTreeMap<(ItemId, TextSide), StreamEscaper>,
}

/// The author of a streamed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TextSide {
    User,
    Model,
}

impl BrowserEncoder {
    pub(super) fn new(visibility: CallVisibility) -> Self {
        Self { visibility, open_texts: BTreeMap::new() }
    }

    /// Encodes an event; `None` if the browser does not get it.
    pub(super) fn encode_event(&mut self, event: &RealtimeEvent) -> Option<Value> {
        Some(match event {
            RealtimeEvent::Connected => json!({ "type": "connected" }),
            RealtimeEvent::Disconnected { reason, next_step } => {
                let reconnects = *next_step == AfterDisconnect::Reconnects;
                json!({ "type": "disconnected", "reason": safe_line(reason), "reconnects": reconnects })
            }
            RealtimeEvent::Reconnected { attempts } => json!({ "type": "reconnected", "attempts": attempts }),
            RealtimeEvent::AgentChanged { from, to, .. } => {
                json!({ "type": "agent_changed", "from": safe_line(from.as_str()), "to": safe_line(to.as_str()) })
            }
            RealtimeEvent::TurnStarted { agent, .. } => {
                json!({ "type": "turn_started", "agent": safe_line(agent.as_str()) })
            }
            RealtimeEvent::TurnEnded { status, usage, metrics, .. } => json!({
                "type": "turn_ended",
                "status": response_status(status),
                "first_audio_ms": metrics.time_to_first_audio.map(|time| time.as_millis() as u64),
                "audio_ms": metrics.audio_duration.as_millis() as u64,
                "usage": usage.map(|usage| json!({
                    "input": { "text": usage.input.text, "audio": usage.input.audio, "image": usage.input.image },
                    "output": { "text": usage.output.text, "audio": usage.output.audio },
                })),
            }),
            RealtimeEvent::BudgetReached { budget, .. } => {
                json!({ "type": "budget_reached", "message": budget.to_string() })
            }
            RealtimeEvent::ResponseHeld => json!({ "type": "response_held" }),
            RealtimeEvent::OutputTextDelta { item, delta } => {
                json!({ "type": "text_delta", "item": safe_line(item.as_str()), "role": "assistant",
                    "delta": self.escape_delta(item, TextSide::Model, delta) })
            }
            RealtimeEvent::InputTranscriptDelta { item, delta } => {
                json!({ "type": "text_delta", "item": safe_line(item.as_str()), "role": "user",
                    "delta": self.escape_delta(item, TextSide::User, delta) })
            }
            RealtimeEvent::HistoryChanged(change) => return self.encode_change(change),
            RealtimeEvent::SpeechStarted => json!({ "type": "speech_started" }),
            RealtimeEvent::SpeechStopped => json!({ "type": "speech_stopped" }),
            RealtimeEvent::GuardrailTripped { guardrails, .. } => {
                let names: Vec<String> = guardrails.iter().map(|name| safe_line(name)).collect();
                json!({ "type": "guardrail_tripped", "guardrails": names })
            }
            RealtimeEvent::Error(error) => {
                json!({ "type": "error", "message": safe_prose(&error.to_string()) })
            }
            RealtimeEvent::Lagged { dropped_audio, dropped_events } => {
                json!({ "type": "lagged", "dropped_audio": dropped_audio, "dropped_events": dropped_events })
            }
            RealtimeEvent::Closed(reason) => {
                json!({ "type": "closed", "reason": safe_prose(&format!("{reason:?}")) })
            }
            RealtimeEvent::CallStarted { call, tool, agent } if self.visibility == CallVisibility::Shown => {
                json!({ "type": "call_started", "call": safe_line(call.as_str()),
                    "tool": safe_line(&tool.to_string()), "agent": safe_line(agent.as_str()) })
            }
            RealtimeEvent::CallProgress { call, progress } if self.visibility == CallVisibility::Shown => {
                json!({ "type": "call_progress", "call": safe_line(call.as_str()),
                    "progress": SafeText::from_json(&progress.to_string()).as_str() })
            }
            RealtimeEvent::CallSettled { call, status, output, .. }
                if self.visibility == CallVisibility::Shown =>
            {
                let status = serde_json::to_value(status).unwrap_or_default();
                json!({ "type": "call_settled", "call": safe_line(call.as_str()), "status": status,
                    "output": safe_prose(&output.text()) })
            }
            // Audio and held calls have messages of their own; the others are for applications.
            _ => return None,
        })
    }

    /// Encodes a change of the conversation.
    pub(super) fn encode_change(&mut self, change: &HistoryChange) -> Option<Value> {
        match change {
            HistoryChange::Added { item, after } => {
                let mut value = self.encode_item(item)?;
                value["after"] = after.as_ref().map(|after| safe_line(after.as_str())).into();
                Some(value)
            }
            HistoryChange::Updated(item) => self.encode_item(item),
            HistoryChange::Removed(item) => {
                Some(json!({ "type": "item_removed", "item": safe_line(item.as_str()) }))
            }
        }
    }

    /// Encodes an item of the conversation.
    pub(super) fn encode_item(&mut self, item: &RealtimeItem) -> Option<Value> {
        if item.status != RealtimeItemStatus::InProgress {
            self.open_texts.retain(|(open, _), _| *open != item.id);
        }
        let status = match item.status {
            RealtimeItemStatus::InProgress => "in_progress",
            RealtimeItemStatus::Completed => "completed",
            RealtimeItemStatus::Interrupted => "interrupted",
        };
        let mut value = json!({ "type": "item", "item": safe_line(item.id.as_str()), "status": status });
        match &item.kind {
            RealtimeItemKind::Message { role, .. } => {
                value["role"] = match role {
                    Role::System => "system",
                    Role::User => "user",
                    Role::Assistant => "assistant",
                }
                .into();
                value["text"] = safe_prose(&item.text()).into();
            }
            RealtimeItemKind::Call { call, name, arguments } if self.visibility == CallVisibility::Shown => {
                value["role"] = "call".into();
                value["call"] = safe_line(call.as_str()).into();
                value["tool"] = safe_line(name).into();
                value["text"] = SafeText::from_json(arguments).as_str().into();
            }
            RealtimeItemKind::Output { call, text } if self.visibility == CallVisibility::Shown => {
                value["role"] = "output".into();
                value["call"] = safe_line(call.as_str()).into();
                value["text"] = safe_prose(text).into();
            }
            _ => return None,
        }
        Some(value)
    }

    fn escape_delta(&mut self, item: &ItemId, side: TextSide, delta: &str) -> String {
        let key = (item.clone(), side);
        if self.open_texts.len() >= MAX_OPEN_TEXTS && !self.open_texts.contains_key(&key) {
            self.open_texts.pop_first();
        }
        self.open_texts.entry(key).or_default().escape(delta)
    }
}

/// Encodes a held call and its display.
pub(super) fn encode_held_call(
    run: &str,
    pending: &PendingCall,
    display: &CallDisplay,
    can_decide: bool,
) -> Value {
    let reason = match pending.reason {
        HoldReason::InDoubt => "in_doubt",
        HoldReason::Question(_) => "question",
        _ => "approval",
    };
    let lines: Vec<String> = display.lines.iter().map(|line| safe_prose(line)).collect();
    json!({
        "type": "call_held",
        "run": safe_line(run),
        "call": safe_line(pending.call().as_str()),
        "path": safe_line(&pending.path.to_string()),
        "tool": safe_line(&pending.tool.to_string()),
        "agent": safe_line(pending.agent.as_str()),
        "reason": reason,
        "lines": lines,
        "picture": display.picture,
        "digest": display.digest.to_string(),
        "offers_standing": display.offers_standing,
        "can_decide": can_decide,
    })
}

fn response_status(status: &ResponseStatus) -> &'static str {
    match status {
        ResponseStatus::Completed => "completed",
        ResponseStatus::Cancelled => "cancelled",
        ResponseStatus::Incomplete { .. } => "incomplete",
        ResponseStatus::Failed { .. } => "failed",
        ResponseStatus::Unknown => "unknown",
    }
}

/// Escapes a text for one line.
pub(super) fn safe_line(text: &str) -> String {
    SafeText::from_line(text).as_str().to_owned()
}

/// Escapes a text of one or more lines.
pub(super) fn safe_prose(text: &str) -> String {
    let mut escaper = StreamEscaper::default();
    let mut escaped = escaper.escape(text);
    escaped.push_str(escaper.finish());
    escaped
}
