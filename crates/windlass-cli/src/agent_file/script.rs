//! A model that answers from a file: for tests and demonstrations, with no key and no network.
//!
//! Which answer is next follows from the conversation, not from a counter in memory. So a run that is gone on with
//! by another process gets the answer that the first would have got.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use windlass::core::{Item, Role, Usage};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};

use crate::problem::Problem;

/// How much text comes at once when it is streamed, in characters.
const PIECE: usize = 3;

/// The answers of a file, in their order.
#[derive(Debug)]
pub(crate) struct Script {
    answers: Vec<Scripted>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    #[serde(default, rename = "answer")]
    answers: Vec<Scripted>,
}

/// One answer: some text, some calls, or both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scripted {
    #[serde(default)]
    text: String,
    #[serde(default, rename = "call")]
    calls: Vec<ScriptedCall>,
    /// How long the model thinks first.
    #[serde(default)]
    after_ms: u64,
    /// How long each piece of text takes.
    #[serde(default)]
    piece_ms: u64,
    /// An error in place of an answer.
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    /// The call's id; without one, it follows from the place in the script.
    id: Option<String>,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl Script {
    /// Reads a script: TOML with `[[answer]]` tables, or one JSON object a line in a file called `….jsonl`.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Problem::not_found(format!("the script `{shown}` cannot be read: {error}"))
                .hint("`scripted:FILE` is looked for beside the agent's file")
        })?;
        let wrong = |why: String| {
            Problem::new(format!("`{shown}` is not a script of answers:\n{}", why.trim_end()))
                .hint("an answer has `text`, and `call`s with `tool` and `arguments`")
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
impl Script {
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }
}

impl Model for Script {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let place = answers_in(request.input);
        let Some(scripted) = self.answers.get(place) else {
            let count = self.answers.len();
            return Err(ModelError::new(format!("the script has {count} answers, and none is left")));
        };
        tokio::time::sleep(Duration::from_millis(scripted.after_ms)).await;
        if let Some(error) = &scripted.error {
            return Err(ModelError::new(error.as_str()));
        }
        if deltas.wanted() {
            let letters: Vec<char> = scripted.text.chars().collect();
            for piece in letters.chunks(PIECE) {
                tokio::time::sleep(Duration::from_millis(scripted.piece_ms)).await;
                deltas.text(piece.iter().collect::<String>()).await;
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
        let usage = Some(Usage::tokens(0, 0));
        Ok(Answer { items, usage, ..Answer::default() })
    }
}

/// How often the model has answered in a conversation: what it says without anybody else in between is one answer.
fn answers_in(items: &[Arc<Item>]) -> usize {
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
