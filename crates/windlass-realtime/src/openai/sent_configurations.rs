//! The configurations sent on one connection, to identify their acknowledgements. An acknowledgement does not name its
//! command, but it repeats the configuration that is in force.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use crate::id::CommandId;
use crate::sync::lock;

/// The configurations sent on one connection. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SentConfigurations {
    state: Arc<Mutex<SentState>>,
}

/// The configurations that were sent, and the fields that they have set.
#[derive(Debug, Default)]
struct SentState {
    /// Configurations without an acknowledgement, oldest first.
    unacknowledged: VecDeque<(CommandId, ConfigurationContent)>,
    /// Acknowledged configurations, newest last.
    acknowledged: VecDeque<AcknowledgedContent>,
    /// Fields that an earlier configuration has set, with their values.
    fields: Map<String, Value>,
}

/// A configuration as it was sent.
#[derive(Clone, Debug, PartialEq)]
struct ConfigurationContent {
    /// Every field.
    fields: Map<String, Value>,
    /// The fields that tell two configurations apart: without those that a provider accepts once, and without those that
    /// have the provider's default.
    identity: Map<String, Value>,
}

/// The content of an acknowledged configuration.
#[derive(Clone, Debug, PartialEq)]
struct AcknowledgedContent {
    sent: ConfigurationContent,
    /// The session as the provider repeated it.
    echo: Value,
}

/// The configuration that an acknowledgement belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// The configuration of this command.
    Identified(CommandId),
    /// The acknowledgement does not repeat a configuration.
    Unidentified,
    /// An acknowledgement that was repeated, or of a configuration that the session did not send.
    NotOurs,
}

/// Maximum number of unacknowledged configurations.
const MAX_UNACKNOWLEDGED: usize = 16;

/// Maximum number of acknowledgements that are remembered.
const MAX_ACKNOWLEDGED: usize = 64;

/// Fields that a provider accepts once per connection.
const ONCE_FIELDS: [&str; 1] = ["tracing"];

impl ConfigurationContent {
    fn of_session(session: &Value) -> Self {
        let fields = session.as_object().cloned().unwrap_or_default();
        let has_meaning = |(key, value): &(&String, &Value)| {
            !ONCE_FIELDS.contains(&key.as_str()) && **value != reset_value(key)
        };
        let identity = fields.iter().filter(has_meaning);
        Self { identity: identity.map(|(key, value)| (key.clone(), value.clone())).collect(), fields }
    }

    /// Returns true if the provider repeats this content. Fields that it does not mention are not compared.
    fn is_repeated_by(&self, echo: &Value) -> bool {
        self.fields.iter().all(|(key, sent)| echo.get(key).is_none_or(|echo| is_same_value(sent, echo)))
    }
}

/// Returns true if the provider repeats a value. It may add fields of its own to an object, or leave fields out.
fn is_same_value(sent: &Value, echo: &Value) -> bool {
    match (sent, echo) {
        (Value::Object(sent), Value::Object(echo)) => {
            sent.iter().all(|(key, value)| echo.get(key).is_none_or(|echo| is_same_value(value, echo)))
        }
        (Value::Array(sent), Value::Array(echo)) => {
            sent.len() == echo.len() && sent.iter().zip(echo).all(|(sent, echo)| is_same_value(sent, echo))
        }
        (Value::Number(sent), Value::Number(echo)) => sent.as_f64() == echo.as_f64(),
        (sent, echo) => sent == echo,
    }
}

impl SentState {
    /// Remembers an acknowledgement, so that it is not taken for that of another configuration if it is repeated.
    fn remember_acknowledged(&mut self, sent: ConfigurationContent, echo: Value) {
        let new = AcknowledgedContent { sent, echo };
        self.acknowledged.retain(|known| *known != new);
        if self.acknowledged.len() >= MAX_ACKNOWLEDGED {
            self.acknowledged.pop_front();
        }
        self.acknowledged.push_back(new);
    }

    /// Returns true if an acknowledgement cannot be a repeated one of another configuration: it was not seen before, or it
    /// was that of an equal configuration.
    fn is_new_for(
        &self,
        content: &ConfigurationContent,
        is_seen: impl Fn(&AcknowledgedContent) -> bool,
    ) -> bool {
        let mut seen = self.acknowledged.iter().filter(|known| is_seen(known)).peekable();
        seen.peek().is_none() || seen.any(|known| known.sent.identity == content.identity)
    }
}

impl SentConfigurations {
    /// Records a configuration that is about to be sent. Fields that an earlier configuration of this connection has set
    /// and this one does not mention are reset, because the provider would keep them; fields that a provider accepts
    /// once are not repeated.
    pub(super) fn record_sent(&self, command: &CommandId, session: &mut Value) {
        let mut state = lock(&self.state);
        if state.unacknowledged.len() >= MAX_UNACKNOWLEDGED {
            state.unacknowledged.pop_front();
        }
        if let Some(fields) = session.as_object_mut() {
            for (key, known) in &state.fields {
                match fields.get(key) {
                    None if ONCE_FIELDS.contains(&key.as_str()) => {}
                    None => {
                        fields.insert(key.clone(), reset_value(key));
                    }
                    Some(new) if ONCE_FIELDS.contains(&key.as_str()) && new == known => {
                        fields.remove(key);
                    }
                    Some(_) => {}
                }
            }
            for (key, value) in fields {
                state.fields.insert(key.clone(), value.clone());
            }
        }
        let content = ConfigurationContent::of_session(session);
        state.unacknowledged.push_back((command.clone(), content));
    }

    /// Identifies an acknowledgement by the configuration that it repeats.
    pub(super) fn acknowledge(&self, session: &Value) -> Acknowledgement {
        let mut state = lock(&self.state);
        if session["instructions"].is_null() && session["tools"].is_null() {
            return Acknowledgement::Unidentified;
        }
        let echo = session.clone();
        // Of several configurations with this content, the newest counts: all of them are in force. Two configurations may
        // differ in a field that the provider does not repeat; then the same words are no proof of the second one.
        let is_it = |(_, content): &(CommandId, ConfigurationContent)| content.is_repeated_by(&echo);
        if let Some((command, content)) = state.unacknowledged.iter().rfind(|sent| is_it(sent)).cloned() {
            if !state.is_new_for(&content, |known| known.echo == echo) {
                return Acknowledgement::NotOurs;
            }
            state.unacknowledged.retain(|sent| !is_it(sent));
            state.remember_acknowledged(content, echo);
            return Acknowledgement::Identified(command);
        }
        // A provider that changes what it repeats is believed if it can mean one configuration only.
        let (command, content) = match state.unacknowledged.make_contiguous() {
            [only] => only.clone(),
            _ => return Acknowledgement::NotOurs,
        };
        if !state.is_new_for(&content, |known| known.echo == echo || known.sent.is_repeated_by(&echo)) {
            return Acknowledgement::NotOurs;
        }
        state.unacknowledged.clear();
        state.remember_acknowledged(content, echo);
        Acknowledgement::Identified(command)
    }

    /// Forgets a configuration that the provider rejected.
    pub(super) fn forget_rejected(&self, command: &CommandId) {
        lock(&self.state).unacknowledged.retain(|(sent, _)| sent != command);
    }
}

/// Returns the value that resets a field of a session.
fn reset_value(key: &str) -> Value {
    match key {
        "instructions" => "".into(),
        "tool_choice" => "auto".into(),
        "max_output_tokens" => "inf".into(),
        "parallel_tool_calls" => true.into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
#[path = "sent_configurations_tests.rs"]
mod tests;
