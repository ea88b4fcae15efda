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
    /// Other texts and calls, for conversations that went another way. The first that applies is used.
    #[serde(default, rename = "variant")]
    variants: Vec<ReplyVariant>,
}

/// Another text and other calls for a reply, if the output of an earlier call lacks a text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyVariant {
    /// Id of the earlier call.
    output_of: String,
    /// Text that its output lacks.
    lacks: String,
    #[serde(default)]
    text: String,
    #[serde(default, rename = "call")]
    calls: Vec<ScriptedCall>,
}

impl ScriptedReply {
    /// Returns the text and the calls of the reply in a conversation.
    fn in_conversation(&self, items: &[Arc<Item>]) -> (&str, &[ScriptedCall]) {
        let applies = |variant: &&ReplyVariant| {
            items.iter().any(|item| match &**item {
                Item::Output(output) => {
                    output.call.as_str() == variant.output_of
                        && !output.content.text().contains(&variant.lacks)
                }
                _ => false,
            })
        };
        match self.variants.iter().find(applies) {
            Some(variant) => (&variant.text, &variant.calls),
            None => (&self.text, &self.calls),
        }
    }
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

impl ScriptedCall {
    /// Returns the id of the call at a place of the script.
    fn id_at(&self, place: usize, number: usize) -> String {
        self.id.clone().unwrap_or_else(|| format!("call-{}-{}", place + 1, number + 1))
    }
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

#[cfg(feature = "talk")]
impl ScriptFileModel {
    /// Returns the text and the calls (id, tool and arguments) of the reply at a place of the script.
    pub(crate) fn reply_at(
        &self,
        place: usize,
        items: &[Arc<Item>],
    ) -> Option<(&str, Vec<(String, String, Value)>)> {
        let (text, calls) = self.answers.get(place)?.in_conversation(items);
        let calls = calls.iter().enumerate().map(|(number, call)| {
            (call.id_at(place, number), call.tool.clone(), Value::Object(call.arguments.clone()))
        });
        Some((text, calls.collect()))
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
        let (text, calls) = scripted.in_conversation(request.input);
        if deltas.is_watched() {
            let letters: Vec<char> = text.chars().collect();
            for chunk in letters.chunks(CHUNK_CHARS) {
                tokio::time::sleep(Duration::from_millis(scripted.chunk_delay_ms)).await;
                deltas.emit_text(chunk.iter().collect::<String>()).await;
            }
        }
        let mut items = Vec::new();
        if !text.is_empty() {
            items.push(Arc::new(Item::assistant(text)));
        }
        for (number, call) in calls.iter().enumerate() {
            let id = call.id_at(place, number);
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
