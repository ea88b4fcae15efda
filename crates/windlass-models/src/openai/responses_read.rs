//! Answers of the Responses API, plain and streamed. A streamed answer is read from its last event, which holds all
//! of it; where a server leaves the items out there, from the events that ended each.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass::Usage;
use windlass::core::{Call, CallId, CallKind, Carried, Content, Item, Message, Reasoning, Role};
use windlass::model::{Answer, ModelRequest};

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
        read(text, &self.request, &[])
    }

    fn stream(&self) -> Stream<'a> {
        Stream { request: self.request, calls: Vec::new(), done: Vec::new(), answer: None }
    }
}

/// A streamed answer on its way.
pub(crate) struct Stream<'a> {
    request: ModelRequest<'a>,
    /// The ids of calls by the place of their items.
    calls: Vec<(u64, CallId)>,
    /// Items that are complete, as they came.
    done: Vec<Box<RawValue>>,
    answer: Option<Result<Answer, Fault>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    delta: Text<'a>,
    #[serde(default)]
    output_index: u64,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
}

impl Assemble for Stream<'_> {
    fn take(&mut self, event: SseEvent<'_>, pieces: Option<&mut Vec<Piece>>) -> Result<Progress, Fault> {
        if event.data == "[DONE]" {
            return Ok(if self.answer.is_some() { Progress::Done } else { Progress::None });
        }
        let parsed = match serde_json::from_str::<Event<'_>>(event.data) {
            Ok(parsed) => parsed,
            Err(error) => return unknown(event.data, &error),
        };
        match parsed.kind.as_str() {
            "response.output_text.delta" | "response.refusal.delta" => {
                if let (Some(pieces), Some(delta)) = (pieces, parsed.delta.0) {
                    pieces.push(Piece::Text(delta.into_owned()));
                }
            }
            "response.function_call_arguments.delta" => {
                if let (Some(pieces), Some(delta)) = (pieces, parsed.delta.0)
                    && let Some((_, call)) =
                        self.calls.iter().rev().find(|call| call.0 == parsed.output_index)
                {
                    pieces.push(Piece::Arguments(call.clone(), delta.into_owned()));
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                if let (Some(pieces), Some(delta)) = (pieces, parsed.delta.0) {
                    pieces.push(Piece::Reasoning(delta.into_owned()));
                }
            }
            "response.output_item.added" => {
                if let Some(item) = parsed.item
                    && let Ok(call) = serde_json::from_str::<OutCall<'_>>(item.get())
                    && let Some(id) = call.call_id.0
                {
                    self.calls.push((parsed.output_index, CallId::from(id.into_owned())));
                }
            }
            "response.output_item.done" => self.done.extend(parsed.item.map(ToOwned::to_owned)),
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let response = parsed.response.map_or("null", RawValue::get);
                self.answer = Some(read(response, &self.request, &self.done));
                return Ok(Progress::Done);
            }
            "error" => {
                let told: Value = serde_json::from_str(event.data).map_err(unreadable)?;
                return Err(Fault::Told(Told::from_value(&told)));
            }
            "keepalive" | "ping" => return Ok(Progress::None),
            "" if event.data.contains("\"error\"") => {
                let told: Value = serde_json::from_str(event.data).map_err(unreadable)?;
                return Err(Fault::Told(Told::from_value(&told)));
            }
            _ => {}
        }
        Ok(Progress::Some)
    }

    fn finish(self) -> Result<Option<Answer>, Fault> {
        self.answer.transpose()
    }
}

/// An event that is not what it is thought to be: of no account where its kind is not known.
fn unknown(data: &str, error: &serde_json::Error) -> Result<Progress, Fault> {
    match serde_json::from_str::<Tag<'_>>(data) {
        Ok(tag) if !tag.kind.as_str().starts_with("response.") => Ok(Progress::Some),
        _ => Err(unreadable(error)),
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    model: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(borrow, default)]
    incomplete_details: Option<Incomplete<'a>>,
    #[serde(borrow, default)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Incomplete<'a> {
    #[serde(borrow, default)]
    reason: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: u64,
    input_tokens_details: Option<InputDetails>,
    output_tokens: u64,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl Tokens {
    fn usage(&self) -> Usage {
        let input = self.input_tokens_details.as_ref();
        Usage {
            cached_tokens: input.and_then(|details| details.cached_tokens).unwrap_or(0),
            cache_written_tokens: input.and_then(|details| details.cache_write_tokens).unwrap_or(0),
            reasoning_tokens: self
                .output_tokens_details
                .as_ref()
                .and_then(|details| details.reasoning_tokens)
                .unwrap_or(0),
            ..Usage::tokens(self.input_tokens, self.output_tokens)
        }
    }
}

fn read(text: &str, request: &ModelRequest<'_>, done: &[Box<RawValue>]) -> Result<Answer, Fault> {
    let response: Response<'_> = serde_json::from_str(text).map_err(unreadable)?;
    let usage = response.usage.as_ref().map(Tokens::usage);
    match response.status.as_str() {
        "completed" | "" => {}
        "incomplete" => {
            let reason = response.incomplete_details.map(|details| details.reason.as_str().to_owned());
            let reason =
                reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "incomplete".to_owned());
            return Err(Fault::Incomplete { reason, usage });
        }
        status => {
            let told = match response.error {
                Some(error) if !error.is_null() => Told::from_value(&error),
                _ => Told { message: format!("the answer is `{status}`"), ..Told::default() },
            };
            return Err(Fault::Told(Told { usage, ..told }));
        }
    }
    if let Some(error) = response.error.filter(|error| !error.is_null()) {
        return Err(Fault::Told(Told { usage, ..Told::from_value(&error) }));
    }
    let output = match response.output {
        Some(output) if !output.is_empty() || done.is_empty() => output,
        None if done.is_empty() => return Err(Fault::Unreadable("it has no `output`".to_owned())),
        _ => done.iter().map(|item| &**item).collect(),
    };
    let items = output.into_iter().map(|raw| item(raw, request).map(Arc::new));
    let own = |text: Text<'_>| text.0.map(Cow::into_owned);
    Ok(Answer {
        items: items.collect::<Result<_, _>>()?,
        usage,
        response_id: own(response.id),
        request_id: None,
        model: own(response.model),
    })
}

#[derive(Deserialize)]
struct OutMessage<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    content: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct OutPart<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(borrow, default)]
    refusal: Text<'a>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct OutCall<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    call_id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow, default)]
    namespace: Text<'a>,
    #[serde(borrow, default)]
    arguments: Text<'a>,
    #[serde(borrow, default)]
    server_label: Text<'a>,
}

fn item(raw: &RawValue, request: &ModelRequest<'_>) -> Result<Item, Fault> {
    let tag: Tag<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
    let own = |text: Text<'_>| text.0.map(Cow::into_owned);
    match tag.kind.as_str() {
        "message" => {
            let message: OutMessage<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
            let mut content = Vec::with_capacity(message.content.len());
            for raw in message.content {
                part(raw, &mut content)?;
            }
            Ok(Item::Message(Message { role: Role::Assistant, content, item_id: own(message.id) }))
        }
        "function_call" => {
            let call: OutCall<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
            let (namespace, name) = match own(call.namespace) {
                Some(namespace) => (Some(namespace), own(call.name).unwrap_or_default()),
                None => own_name(request, own(call.name).unwrap_or_default()),
            };
            Ok(Item::Call(Call {
                id: own(call.call_id).unwrap_or_default().into(),
                name,
                namespace,
                arguments: own(call.arguments).unwrap_or_default(),
                item_id: own(call.id),
                kind: CallKind::Function,
            }))
        }
        "mcp_approval_request" => {
            let call: OutCall<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
            Ok(Item::Call(Call {
                id: own(call.id).unwrap_or_default().into(),
                name: own(call.name).unwrap_or_default(),
                namespace: own(call.server_label),
                arguments: own(call.arguments).unwrap_or_default(),
                item_id: None,
                kind: CallKind::HostedMcp,
            }))
        }
        "computer_call" => computer(&value(raw)?),
        "reasoning" => Ok(reasoning(value(raw)?)),
        kind => {
            let carried = Carried { kind: kind.to_owned(), raw: value(raw)? };
            let is_hosted =
                kind.ends_with("_call") || matches!(kind, "mcp_list_tools" | "tool_search_output");
            Ok(if is_hosted { Item::Hosted(carried) } else { Item::Unknown(carried) })
        }
    }
}

fn part(raw: &RawValue, content: &mut Vec<Content>) -> Result<(), Fault> {
    let part: OutPart<'_> = serde_json::from_str(raw.get()).map_err(unreadable)?;
    match part.kind.as_str() {
        "output_text" | "text" => {
            content.push(Content::text(part.text.0.map(Cow::into_owned).unwrap_or_default()));
            if let Some(notes) = part.annotations.filter(|notes| !notes.is_empty()) {
                content.push(Content::Unknown(Carried { kind: ANNOTATIONS.to_owned(), raw: notes.into() }));
            }
        }
        "refusal" => {
            content.push(Content::Refusal { text: part.refusal.0.map(Cow::into_owned).unwrap_or_default() });
        }
        kind => content.push(Content::Unknown(Carried { kind: kind.to_owned(), raw: value(raw)? })),
    }
    Ok(())
}

fn computer(raw: &Value) -> Result<Item, Fault> {
    let text = |key: &str| raw.get(key).and_then(Value::as_str).map(str::to_owned);
    let actions = match (raw.get("actions"), raw.get("action")) {
        (Some(actions @ Value::Array(_)), _) => actions.clone(),
        (_, Some(action)) if !action.is_null() => json!([action]),
        _ => json!([]),
    };
    let checks = raw.get("pending_safety_checks").filter(|checks| checks.is_array()).cloned();
    let arguments =
        json!({ "actions": actions, "pending_safety_checks": checks.unwrap_or_else(|| json!([])) });
    Ok(Item::Call(Call {
        id: text("call_id").unwrap_or_default().into(),
        name: "computer".to_owned(),
        namespace: None,
        arguments: arguments.to_string(),
        item_id: text("id"),
        kind: CallKind::Computer,
    }))
}

fn reasoning(raw: Value) -> Item {
    let texts = |key: &str| -> Vec<&str> {
        let parts = raw.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()
    };
    let summary = match texts("summary") {
        summary if summary.is_empty() => texts("content").join("\n\n"),
        summary => summary.join("\n\n"),
    };
    let item_id = raw.get("id").and_then(Value::as_str).map(str::to_owned);
    Item::Reasoning(Reasoning { summary, item_id, raw })
}

fn value(raw: &RawValue) -> Result<Value, Fault> {
    serde_json::from_str(raw.get()).map_err(unreadable)
}

fn unreadable(error: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(error.to_string())
}
