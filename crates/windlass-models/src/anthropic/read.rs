//! Answers of the Messages API. A streamed answer is put together into the blocks that a plain one has, and both
//! become items in one place.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass::Usage;
use windlass::core::{Call, CallId, CallKind, Carried, Content, Item, Message, Reasoning, Role};
use windlass::model::{Answer, ModelRequest};

use super::write::{COMPUTER, OWN, computer_of};
use crate::error::{Fault, Told};
use crate::exchange::{Assemble, Piece, Progress, Protocol};
use crate::sse::SseEvent;
use crate::wire::{ANNOTATIONS, Text, own_name};

/// How answers to this request are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) request: ModelRequest<'a>,
}

impl<'a> Protocol for Reading<'a> {
    type Stream = Stream<'a>;

    fn read(&self, body: &[u8]) -> Result<Answer, Fault> {
        let text = std::str::from_utf8(body).map_err(unreadable)?;
        let message: WireMessage<'_> = serde_json::from_str(text).map_err(unreadable)?;
        if message.kind.as_str() == "error" {
            return Err(Fault::Told(Told::read(body)));
        }
        let mut stream = self.stream();
        let content = message.content.ok_or_else(|| unreadable("it has no `content`"))?;
        for raw in content {
            let block = Block::open(raw)?;
            stream.blocks.push(block);
        }
        stream.id = message.id.0.map(Cow::into_owned);
        stream.model = message.model.0.map(Cow::into_owned);
        stream.stop = message.stop_reason.0.map(Cow::into_owned);
        stream.tokens = message.usage;
        stream.answer()
    }

    fn stream(&self) -> Stream<'a> {
        Stream {
            request: self.request,
            id: None,
            model: None,
            blocks: Vec::new(),
            stop: None,
            tokens: None,
            is_done: false,
        }
    }
}

/// An answer on its way.
pub(crate) struct Stream<'a> {
    request: ModelRequest<'a>,
    id: Option<String>,
    model: Option<String>,
    blocks: Vec<Block>,
    stop: Option<String>,
    tokens: Option<Tokens>,
    is_done: bool,
}

enum Block {
    Text {
        text: String,
        citations: Vec<Value>,
    },
    /// With the other fields as they came.
    Thinking {
        text: String,
        signature: String,
        raw: Value,
    },
    Call {
        id: String,
        name: String,
        /// The family that the tool is a member of, if it is.
        toolset: String,
        input: String,
    },
    /// A call that the provider makes, or something that this version does not know.
    Other {
        raw: Value,
        input: String,
    },
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    model: Text<'a>,
    #[serde(borrow, default)]
    content: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(default)]
    usage: Option<Tokens>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

impl Tokens {
    /// What it cost. Cached tokens are counted apart by this provider, and among those read here.
    fn usage(&self) -> Usage {
        let (read, written) =
            (self.cache_read_input_tokens.unwrap_or(0), self.cache_creation_input_tokens.unwrap_or(0));
        let details = self.output_tokens_details.as_ref();
        Usage {
            cached_tokens: read,
            cache_written_tokens: written,
            reasoning_tokens: details.and_then(|details| details.thinking_tokens).unwrap_or(0),
            ..Usage::tokens(self.input_tokens.unwrap_or(0) + read + written, self.output_tokens.unwrap_or(0))
        }
    }

    /// Later counts hold all that came before.
    fn update(&mut self, later: Self) {
        let put = |place: &mut Option<u64>, later: Option<u64>| *place = later.or(*place);
        put(&mut self.input_tokens, later.input_tokens);
        put(&mut self.output_tokens, later.output_tokens);
        put(&mut self.cache_creation_input_tokens, later.cache_creation_input_tokens);
        put(&mut self.cache_read_input_tokens, later.cache_read_input_tokens);
        if later.output_tokens_details.is_some() {
            self.output_tokens_details = later.output_tokens_details;
        }
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(default)]
    index: usize,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<WireMessage<'a>>,
    #[serde(default)]
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    partial_json: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow, default)]
    signature: Text<'a>,
    #[serde(default)]
    citation: Option<Value>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
}

#[derive(Deserialize)]
struct WireBlock<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(default)]
    citations: Option<Vec<Value>>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    toolset_name: Text<'a>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

impl Assemble for Stream<'_> {
    fn take(&mut self, event: SseEvent<'_>, pieces: Option<&mut Vec<Piece>>) -> Result<Progress, Fault> {
        let parsed: Event<'_> = match serde_json::from_str(event.data) {
            Ok(parsed) => parsed,
            Err(error) => return unknown(event, &error),
        };
        match parsed.kind.as_str() {
            "content_block_delta" => {
                if let (Some(delta), Some(block)) = (parsed.delta, self.blocks.get_mut(parsed.index)) {
                    block.grow(delta, pieces);
                }
            }
            "content_block_start" => {
                let raw =
                    parsed.content_block.ok_or_else(|| unreadable("a block that starts is not there"))?;
                if parsed.index != self.blocks.len() {
                    return Err(unreadable("its blocks are not in order"));
                }
                self.blocks.push(Block::open(raw)?);
            }
            "message_start" => {
                if let Some(message) = parsed.message {
                    self.id = message.id.0.map(Cow::into_owned);
                    self.model = message.model.0.map(Cow::into_owned);
                    self.tokens = message.usage;
                }
            }
            "message_delta" => {
                if let Some(reason) = parsed.delta.and_then(|delta| delta.stop_reason.0) {
                    self.stop = Some(reason.into_owned());
                }
                if let Some(later) = parsed.usage {
                    self.tokens.get_or_insert_default().update(later);
                }
            }
            "message_stop" => {
                self.is_done = true;
                return Ok(Progress::Done);
            }
            "error" => return Err(Fault::Told(Told::read(event.data.as_bytes()))),
            "ping" => return Ok(Progress::None),
            _ => {}
        }
        Ok(Progress::Some)
    }

    fn finish(self) -> Result<Option<Answer>, Fault> {
        if self.is_done { self.answer().map(Some) } else { Ok(None) }
    }
}

/// An event that cannot be read: of no account where its name is not known.
fn unknown(event: SseEvent<'_>, error: &serde_json::Error) -> Result<Progress, Fault> {
    match event.name {
        Some("ping") => Ok(Progress::None),
        Some(name)
            if !name.starts_with("content_block") && !name.starts_with("message") && name != "error" =>
        {
            Ok(Progress::Some)
        }
        _ => Err(unreadable(error)),
    }
}

impl Block {
    fn open(raw: &RawValue) -> Result<Self, Fault> {
        let block: WireBlock<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
        let own = |text: Text<'_>| text.0.map(Cow::into_owned).unwrap_or_default();
        Ok(match block.kind.as_str() {
            "text" => Self::Text { text: own(block.text), citations: block.citations.unwrap_or_default() },
            "tool_use" => {
                // A streamed call starts with an empty object, and its input follows.
                let input = block.input.map_or("{}", RawValue::get);
                let input = if is_empty_object(input) { String::new() } else { input.to_owned() };
                let toolset = own(block.toolset_name);
                Self::Call { id: own(block.id), name: own(block.name), toolset, input }
            }
            "thinking" => {
                let mut raw: Value = serde_json::from_str(raw.get()).map_err(unreadable)?;
                let mut text = |key: &str| raw[key].take().as_str().unwrap_or_default().to_owned();
                Self::Thinking { text: text("thinking"), signature: text("signature"), raw }
            }
            _ => {
                let raw = serde_json::from_str(raw.get()).map_err(unreadable)?;
                Self::Other { raw, input: String::new() }
            }
        })
    }

    fn grow(&mut self, delta: Delta<'_>, pieces: Option<&mut Vec<Piece>>) {
        match self {
            Self::Text { text, citations } => {
                citations.extend(delta.citation);
                if let Some(more) = delta.text.0 {
                    text.push_str(&more);
                    if let Some(pieces) = pieces {
                        pieces.push(Piece::Text(more.into_owned()));
                    }
                }
            }
            Self::Thinking { text, signature, .. } => {
                signature.push_str(delta.signature.as_str());
                if let Some(more) = delta.thinking.0 {
                    text.push_str(&more);
                    if let Some(pieces) = pieces {
                        pieces.push(Piece::Reasoning(more.into_owned()));
                    }
                }
            }
            Self::Call { id, input, .. } => {
                if let Some(more) = delta.partial_json.0 {
                    input.push_str(&more);
                    if let Some(pieces) = pieces
                        && !more.is_empty()
                    {
                        pieces.push(Piece::Arguments(CallId::from(id.as_str()), more.into_owned()));
                    }
                }
            }
            Self::Other { input, .. } => {
                if delta.kind.as_str() == "input_json_delta" {
                    input.push_str(delta.partial_json.as_str());
                }
            }
        }
    }
}

fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).is_some_and(|text| text.trim().is_empty())
}

impl Stream<'_> {
    fn answer(self) -> Result<Answer, Fault> {
        let usage = self.tokens.as_ref().map(Tokens::usage);
        let stop = self.stop.as_deref().unwrap_or("end_turn");
        if matches!(stop, "max_tokens" | "model_context_window_exceeded") {
            return Err(Fault::Incomplete { reason: stop.to_owned(), usage });
        }
        let mut items: Vec<Item> = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            match block {
                Block::Text { text, citations } => {
                    let part = Content::text(text);
                    let notes = (!citations.is_empty()).then(|| {
                        Content::Unknown(Carried { kind: ANNOTATIONS.to_owned(), raw: citations.into() })
                    });
                    match items.last_mut() {
                        // Texts in a row are one message: citations cut it into blocks.
                        Some(Item::Message(message)) => {
                            message.content.push(part);
                            message.content.extend(notes);
                        }
                        _ => {
                            let content = [Some(part), notes].into_iter().flatten().collect();
                            items.push(Item::Message(Message {
                                role: Role::Assistant,
                                content,
                                item_id: None,
                            }));
                        }
                    }
                }
                Block::Thinking { text, signature, mut raw } => {
                    raw["thinking"] = text.as_str().into();
                    raw["signature"] = signature.into();
                    items.push(Item::Reasoning(Reasoning { summary: text, item_id: None, raw }));
                }
                Block::Call { id, name, toolset, input } => {
                    let mut arguments = if input.is_empty() { "{}".to_owned() } else { input };
                    let (namespace, name) = match computer_of(&self.request) {
                        Some(computer) if toolset == COMPUTER => {
                            arguments = with_action(&name, arguments);
                            (None, computer.to_owned())
                        }
                        _ => own_name(&self.request, name),
                    };
                    let id = CallId::from(id);
                    let kind = CallKind::Function;
                    items.push(Item::Call(Call { id, name, namespace, arguments, item_id: None, kind }));
                }
                Block::Other { mut raw, input } => {
                    if !input.is_empty() {
                        raw["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
                    }
                    items.push(other(raw));
                }
            }
        }
        if stop == "refusal" {
            let text = items.iter().filter_map(|item| match item {
                Item::Message(message) => Some(message.text()),
                _ => None,
            });
            let text: String = text.collect();
            let text = if text.is_empty() { "the model declined to answer".to_owned() } else { text };
            let content = vec![Content::Refusal { text }];
            items.retain(|item| !matches!(item, Item::Message(_) | Item::Call(_)));
            items.push(Item::Message(Message { role: Role::Assistant, content, item_id: None }));
        }
        Ok(Answer {
            items: items.into_iter().map(Arc::new).collect(),
            usage,
            response_id: self.id,
            request_id: None,
            model: self.model,
        })
    }
}

fn other(raw: Value) -> Item {
    let kind = raw["type"].as_str().unwrap_or("block").to_owned();
    if kind == "redacted_thinking" {
        return Item::Reasoning(Reasoning { summary: String::new(), item_id: None, raw });
    }
    let is_hosted = kind == "server_tool_use" || kind.ends_with("_tool_result") || kind == "mcp_tool_use";
    let carried = Carried { kind: format!("{OWN}{kind}"), raw };
    if is_hosted { Item::Hosted(carried) } else { Item::Unknown(carried) }
}

/// A call of a member of a family, as a call of the one tool that it stands for here. What is no object stays as it is,
/// and the model is told.
fn with_action(member: &str, arguments: String) -> String {
    match serde_json::from_str(&arguments) {
        Ok(Value::Object(mut input)) => {
            input.insert("action".to_owned(), member.into());
            Value::Object(input).to_string()
        }
        Ok(_) | Err(_) => arguments,
    }
}

fn unreadable(error: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(error.to_string())
}
