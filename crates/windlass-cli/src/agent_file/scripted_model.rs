//! A model that replies from a file, for tests and demonstrations without API key and network.
//!
//! The next reply is derived from the conversation and not from a counter in memory, so a run that another
//! process resumes gets the same reply.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use windlass::core::{
    item::{Item, Role},
    usage::Usage,
};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};

use crate::cli_error::CliError;

/// Number of characters per streamed chunk.
const CHUNK_CHARS: usize = 3;

/// A model whose replies come from a file, in order.
#[derive(Debug)]
pub(crate) struct ScriptFileModel {
    answers: Vec<ScriptedReply>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    #[serde(default, rename = "answer")]
    answers: Vec<ScriptedReply>,
}

/// One reply: text, tool calls, or both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedReply {
    #[serde(default)]
    text: String,
    #[serde(default, rename = "call")]
    calls: Vec<ScriptedCall>,
    /// Delay before the reply, in milliseconds.
    #[serde(default)]
    delay_ms: u64,
    /// Delay before each streamed chunk, in milliseconds.
    #[serde(default)]
    chunk_delay_ms: u64,
    /// Error to return instead of a reply.
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    /// Id of the call; derived from its position in the script if absent.
    id: Option<String>,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl ScriptFileModel {
    /// Reads a script: TOML with `[[answer]]` tables, or one JSON object per line in a `.jsonl` file.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            CliError::not_found(format!("the script `{shown}` cannot be read: {error}"))
                .with_hint("`scripted:FILE` is relative to the agent file")
        })?;
        let wrong = |why: String| {
            CliError::new(format!("`{shown}` is not a valid script:\n{}", why.trim_end()))
                .with_hint("an answer has `text`, and `call`s with `tool` and `arguments`")
        };
        let is_json = path.extension().is_some_and(|extension| extension == "jsonl");
        let answers = if is_json {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines
                .map(|(place, line)| {
                    serde_json::from_str(line).map_err(|error| wrong(format!("line {}: {error}", place + 1)))
                })
                .collect::<Result<_, _>>()?
        } else {
            toml::from_str::<ScriptFile>(&text).map_err(|error| wrong(error.to_string()))?.answers
        };
        Ok(Self { answers })
    }
}

#[cfg(test)]
impl ScriptFileModel {
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }
}

impl Model for ScriptFileModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let place = count_replies(request.input);
        let Some(scripted) = self.answers.get(place) else {
            let count = self.answers.len();
            return Err(ModelError::new(format!("the script has only {count} answers")));
        };
        tokio::time::sleep(Duration::from_millis(scripted.delay_ms)).await;
        if let Some(error) = &scripted.error {
            return Err(ModelError::new(error.as_str()));
        }
        if deltas.is_watched() {
            let letters: Vec<char> = scripted.text.chars().collect();
            for chunk in letters.chunks(CHUNK_CHARS) {
                tokio::time::sleep(Duration::from_millis(scripted.chunk_delay_ms)).await;
                deltas.emit_text(chunk.iter().collect::<String>()).await;
            }
        }
        let mut items = Vec::new();
        if !scripted.text.is_empty() {
            items.push(Arc::new(Item::assistant(scripted.text.as_str())));
        }
        for (number, call) in scripted.calls.iter().enumerate() {
            let id = call.id.clone().unwrap_or_else(|| format!("call-{}-{}", place + 1, number + 1));
            let arguments = Value::Object(call.arguments.clone()).to_string();
            items.push(Arc::new(Item::call(id, call.tool.as_str(), arguments)));
        }
        let usage = Some(Usage::of_tokens(0, 0));
        Ok(ModelResponse { items, usage, ..ModelResponse::default() })
    }
}

/// Counts the model's replies in a conversation; consecutive items of the model are one reply.
fn count_replies(items: &[Arc<Item>]) -> usize {
    let mut answers = 0;
    let mut was_model = false;
    for item in items {
        let is_model = match &**item {
            Item::Message(message) => message.role == Role::Assistant,
            Item::Call(_) | Item::Reasoning(_) => true,
            _ => false,
        };
        answers += usize::from(is_model && !was_model);
        was_model = is_model;
    }
    answers
}
