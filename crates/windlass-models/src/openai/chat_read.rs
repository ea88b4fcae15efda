//! Answers of the Chat Completions API. Plain and streamed answers are put together by one struct, so that they
//! give the same items.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass::Usage;
use windlass::core::{Call, CallId, CallKind, Carried, Content, Item, Message, Reasoning, Role};
use windlass::model::{Answer, ModelRequest};

use crate::error::{Fault, Told};
use crate::exchange::{Assemble, Piece, Progress, Protocol};
use crate::sse::SseEvent;
use crate::wire::{ANNOTATIONS, Loose, Text, own_name};

/// The kind of reasoning that came by this protocol.
pub(super) const REASONING: &str = "chat.reasoning";
/// Fields of a call that this version does not know, carried beside it.
pub(super) const CALL_FIELDS: &str = "chat.call_fields";

/// How answers to this request are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) request: ModelRequest<'a>,
}

impl<'a> Protocol for Reading<'a> {
    type Stream = Stream<'a>;

    fn read(&self, body: &[u8]) -> Result<Answer, Fault> {
        let text = std::str::from_utf8(body).map_err(unreadable)?;
        let mut stream = self.stream();
        stream.chunk(text, None)?;
        if !stream.has_choice {
            return Err(Fault::Unreadable("it has no `choices`".to_owned()));
        }
        stream.answer()
    }

    fn stream(&self) -> Stream<'a> {
        Stream {
            request: self.request,
            id: None,
            model: None,
            thought: None,
            text: None,
            refusal: None,
            notes: Vec::new(),
            calls: Vec::new(),
            finish: None,
            usage: None,
            has_choice: false,
        }
    }
}

/// An answer on its way.
pub(crate) struct Stream<'a> {
    request: ModelRequest<'a>,
    id: Option<String>,
    model: Option<String>,
    /// Which field it came in, and what it says.
    thought: Option<(&'static str, String)>,
    text: Option<String>,
    refusal: Option<String>,
    notes: Vec<Value>,
    calls: Vec<PartCall>,
    finish: Option<String>,
    usage: Option<Usage>,
    has_choice: bool,
}

#[derive(Default)]
struct PartCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    fields: Map<String, Value>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    model: Text<'a>,
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(borrow, default, alias = "message")]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Loose<'a>,
    #[serde(borrow, default)]
    refusal: Text<'a>,
    #[serde(borrow, default)]
    reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    reasoning: Text<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    // JSON text; some servers send the JSON itself.
    arguments: Loose<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl Tokens {
    fn usage(&self) -> Usage {
        let prompt = self.prompt_tokens_details.as_ref();
        let completion = self.completion_tokens_details.as_ref();
        Usage {
            cached_tokens: prompt.and_then(|details| details.cached_tokens).unwrap_or(0),
            cache_written_tokens: prompt.and_then(|details| details.cache_write_tokens).unwrap_or(0),
            reasoning_tokens: completion.and_then(|details| details.reasoning_tokens).unwrap_or(0),
            ..Usage::tokens(self.prompt_tokens.unwrap_or(0), self.completion_tokens.unwrap_or(0))
        }
    }
}

impl Assemble for Stream<'_> {
    fn take(&mut self, event: SseEvent<'_>, pieces: Option<&mut Vec<Piece>>) -> Result<Progress, Fault> {
        if event.data == "[DONE]" {
            return Ok(if self.finish.is_some() { Progress::Done } else { Progress::None });
        }
        self.chunk(event.data, pieces)?;
        Ok(Progress::Some)
    }

    fn finish(self) -> Result<Option<Answer>, Fault> {
        // Servers that leave `[DONE]` out say that they have finished all the same.
        if self.finish.is_none() { Ok(None) } else { self.answer().map(Some) }
    }
}

impl Stream<'_> {
    fn chunk(&mut self, data: &str, mut pieces: Option<&mut Vec<Piece>>) -> Result<(), Fault> {
        let chunk: Chunk<'_> = serde_json::from_str(data).map_err(unreadable)?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(Fault::Told(Told::from_value(&json!({ "error": error }))));
        }
        if let Some(usage) = chunk.usage {
            self.usage = Some(usage.usage());
        }
        keep(&mut self.id, chunk.id);
        keep(&mut self.model, chunk.model);
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.has_choice = true;
            if let Some(delta) = choice.delta {
                self.delta(delta, pieces.as_deref_mut());
            }
            if let Some(reason) = choice.finish_reason.0
                && !reason.is_empty()
            {
                self.finish = Some(reason.into_owned());
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, mut pieces: Option<&mut Vec<Piece>>) {
        let thought = match (delta.reasoning_content.0, delta.reasoning.0) {
            (Some(text), _) if !text.is_empty() => Some(("reasoning_content", text)),
            (_, Some(text)) if !text.is_empty() => Some(("reasoning", text)),
            _ => None,
        };
        if let Some((field, text)) = thought {
            self.thought.get_or_insert_with(|| (field, String::new())).1.push_str(&text);
            if let Some(pieces) = pieces.as_deref_mut() {
                pieces.push(Piece::Reasoning(text.into_owned()));
            }
        }
        let said = match delta.content {
            Loose::None => None,
            Loose::Text(text) => Some(text),
            Loose::Value(parts) => {
                let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                Some(Cow::Owned(texts.collect::<String>()))
            }
        };
        let refused = delta.refusal.0;
        for (place, text) in [(&mut self.text, said), (&mut self.refusal, refused)] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                place.get_or_insert_default().push_str(&text);
                if let Some(pieces) = pieces.as_deref_mut() {
                    pieces.push(Piece::Text(text.into_owned()));
                }
            }
        }
        self.notes.extend(delta.annotations.into_iter().flatten());
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, pieces.as_deref_mut());
        }
    }

    fn call(&mut self, call: ToolCall<'_>, pieces: Option<&mut Vec<Piece>>) {
        let id = call.id.as_str();
        // Some servers count every call as the first, and some do not count.
        let known = match call.index {
            Some(index) => self.calls.iter().rposition(|known| known.index == Some(index)),
            None if id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|known| known.id == id),
        };
        let is_another = |known: &PartCall| !id.is_empty() && !known.id.is_empty() && known.id != id;
        let known = known.filter(|at| !is_another(&self.calls[*at]));
        let at = known.unwrap_or_else(|| {
            self.calls.push(PartCall { index: call.index, ..PartCall::default() });
            self.calls.len() - 1
        });
        let answer = self.id.as_deref().unwrap_or("answer");
        let part = &mut self.calls[at];
        if part.id.is_empty() {
            part.id = match id {
                // Every call needs a name of its own, also where the server gives none.
                "" if part.name.is_empty() => format!("call_{answer}_{at}"),
                id => id.to_owned(),
            };
        }
        if let Some(extra) = call.extra_content {
            part.fields.insert("extra_content".to_owned(), extra);
        }
        let Some(function) = call.function else { return };
        if let Some(name) = function.name.0
            && part.name.is_empty()
        {
            part.name = name.into_owned();
        }
        let arguments = match function.arguments {
            Loose::None => None,
            Loose::Text(text) => Some(text),
            Loose::Value(value) => Some(Cow::Owned(value.to_string())),
        };
        if let Some(arguments) = arguments.filter(|arguments| !arguments.is_empty()) {
            part.arguments.push_str(&arguments);
            if let Some(pieces) = pieces {
                pieces.push(Piece::Arguments(CallId::from(part.id.as_str()), arguments.into_owned()));
            }
        }
    }

    fn answer(self) -> Result<Answer, Fault> {
        let finish = self.finish.as_deref().unwrap_or("stop");
        if matches!(finish, "length" | "content_filter") {
            return Err(Fault::Incomplete { reason: finish.to_owned(), usage: self.usage });
        }
        let mut items = Vec::new();
        if let Some((field, summary)) = self.thought {
            let raw = json!({ "type": REASONING, "field": field });
            items.push(Item::Reasoning(Reasoning { summary, item_id: None, raw }));
        }
        let mut content = Vec::new();
        content.extend(self.text.map(Content::text));
        if !self.notes.is_empty() {
            content.push(Content::Unknown(Carried { kind: ANNOTATIONS.to_owned(), raw: self.notes.into() }));
        }
        content.extend(self.refusal.map(|text| Content::Refusal { text }));
        if !content.is_empty() || self.calls.is_empty() {
            items.push(Item::Message(Message { role: Role::Assistant, content, item_id: None }));
        }
        for part in self.calls {
            let (namespace, name) = own_name(&self.request, part.name);
            // A call without arguments is sent as nothing at all by some.
            let arguments = if part.arguments.is_empty() { "{}".to_owned() } else { part.arguments };
            let id = CallId::from(part.id.as_str());
            items.push(Item::Call(Call {
                id,
                name,
                namespace,
                arguments,
                item_id: None,
                kind: CallKind::Function,
            }));
            if !part.fields.is_empty() {
                let raw = json!({ "call": part.id, "fields": part.fields });
                items.push(Item::Unknown(Carried { kind: CALL_FIELDS.to_owned(), raw }));
            }
        }
        Ok(Answer {
            items: items.into_iter().map(Arc::new).collect(),
            usage: self.usage,
            response_id: self.id,
            request_id: None,
            model: self.model,
        })
    }
}

fn keep(place: &mut Option<String>, text: Text<'_>) {
    if place.is_none()
        && let Some(text) = text.0
        && !text.is_empty()
    {
        *place = Some(text.into_owned());
    }
}

fn unreadable(error: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(error.to_string())
}
