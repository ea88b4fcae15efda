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

/// The parts of a configuration that tell two agents apart.
#[derive(Clone, Debug, PartialEq)]
struct ConfigurationContent {
    instructions: Option<String>,
    tools: Option<Vec<Value>>,
}

/// The content of an acknowledged configuration.
#[derive(Clone, Debug, PartialEq)]
struct AcknowledgedContent {
    sent: ConfigurationContent,
    /// The content as the provider repeated it.
    echo: ConfigurationContent,
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
        let name = |tool: &Value| tool["name"].clone();
        Self {
            instructions: session["instructions"].as_str().map(str::to_owned),
            tools: session["tools"].as_array().map(|tools| tools.iter().map(name).collect()),
        }
    }

    /// Returns true if the provider repeats this content. Parts that one side does not mention are not compared.
    fn is_repeated_by(&self, echo: &Self) -> bool {
        let has_same = |sent: &Option<String>, echo: &Option<String>| match (sent, echo) {
            (Some(sent), Some(echo)) => sent == echo,
            _ => true,
        };
        let has_same_tools = match (&self.tools, &echo.tools) {
            (Some(sent), Some(echo)) => sent == echo,
            _ => true,
        };
        has_same(&self.instructions, &echo.instructions) && has_same_tools
    }
}

impl SentState {
    /// Remembers an acknowledgement, so that it is not taken for that of another configuration if it is repeated.
    fn remember_acknowledged(&mut self, sent: ConfigurationContent, echo: ConfigurationContent) {
        let new = AcknowledgedContent { sent, echo };
        self.acknowledged.retain(|known| *known != new);
        if self.acknowledged.len() >= MAX_ACKNOWLEDGED {
            self.acknowledged.pop_front();
        }
        self.acknowledged.push_back(new);
    }

    /// Returns true if a provider that changes what it repeats can mean this configuration: the acknowledgement was not
    /// seen before, or it was that of an equal configuration.
    fn can_mean(&self, content: &ConfigurationContent, echo: &ConfigurationContent) -> bool {
        let is_seen = |known: &&AcknowledgedContent| known.echo == *echo || known.sent.is_repeated_by(echo);
        let mut seen = self.acknowledged.iter().filter(is_seen).peekable();
        seen.peek().is_none() || seen.any(|known| known.sent == *content)
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
        let echo = ConfigurationContent::of_session(session);
        if echo.instructions.is_none() && echo.tools.is_none() {
            return Acknowledgement::Unidentified;
        }
        // Of several configurations with this content, the newest counts: all of them are in force.
        let is_it = |(_, content): &(CommandId, ConfigurationContent)| content.is_repeated_by(&echo);
        if let Some((command, content)) = state.unacknowledged.iter().rfind(|sent| is_it(sent)).cloned() {
            state.unacknowledged.retain(|sent| !is_it(sent));
            state.remember_acknowledged(content, echo);
            return Acknowledgement::Identified(command);
        }
        // A provider that changes what it repeats is believed if it can mean one configuration only.
        let (command, content) = match state.unacknowledged.make_contiguous() {
            [only] => only.clone(),
            _ => return Acknowledgement::NotOurs,
        };
        if !state.can_mean(&content, &echo) {
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
