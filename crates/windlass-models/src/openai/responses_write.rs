//! Requests of the Responses API.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use windlass::core::{
    Call, CallId, CallKind, Content, Item, Media, Message, Output, OutputContent, OutputStatus, Role,
};
use windlass::model::{ModelRequest, OfferedKind, OfferedTool, ToolChoice};

use super::ServerState;
use crate::wire::{Fields, address, shape_name, unseen, wire_name, with_annotations};

/// The body of a request.
pub(crate) struct Body<'a> {
    request: ModelRequest<'a>,
    model: &'a str,
    held: Held<'a>,
    is_streamed: bool,
    /// Calls that are put in a way of their own, and so are their outputs.
    kinds: BTreeMap<&'a CallId, CallKind>,
}

/// What the provider holds already.
#[derive(Clone, Copy)]
enum Held<'a> {
    Nothing,
    Response(&'a str),
    Conversation { id: &'a str, has_begun: bool },
}

impl<'a> Body<'a> {
    pub(crate) fn new(
        request: ModelRequest<'a>,
        model: &'a str,
        state: &'a ServerState,
        is_streamed: bool,
    ) -> Self {
        // An id of another provider, from before a handoff or a fallback, means nothing here.
        let previous = request.previous_response.filter(|id| id.starts_with("resp"));
        let held = match state {
            ServerState::Ours => Held::Nothing,
            ServerState::PreviousResponse => previous.map_or(Held::Nothing, Held::Response),
            ServerState::Conversation(id) => Held::Conversation { id, has_begun: previous.is_some() },
        };
        let kinds = request.input.iter().filter_map(|item| match &**item {
            Item::Call(call) if call.kind != CallKind::Function => Some((&call.id, call.kind)),
            _ => None,
        });
        Self { request, model, held, is_streamed, kinds: kinds.collect() }
    }

    /// Whether the provider holds something that this request moves on.
    pub(crate) fn moves_state(&self) -> bool {
        !matches!(self.held, Held::Nothing)
    }

    fn input(&self) -> Vec<Input<'a>> {
        let items = match self.held {
            Held::Nothing | Held::Conversation { has_begun: false, .. } => self.request.input,
            Held::Response(_) | Held::Conversation { .. } => unseen(self.request.input),
        };
        items.iter().flat_map(|item| [self.item(item), self.said_beside(item)]).flatten().collect()
    }

    /// The output of a computer is a picture and nothing else: what is said beside it, such as that the call was
    /// refused, follows as a message.
    fn said_beside(&self, item: &'a Item) -> Option<Input<'a>> {
        let Item::Output(output) = item else { return None };
        let is_computer = self.kinds.get(&output.call) == Some(&CallKind::Computer);
        let text = output.content.text();
        (is_computer && !text.is_empty()).then(|| {
            let text = format!("[Of computer call {}] {text}", output.call);
            Input::Own(In::Message {
                role: "user",
                content: Parts::Text(text.into()),
                id: None,
                status: None,
            })
        })
    }

    fn item(&self, item: &'a Item) -> Option<Input<'a>> {
        match item {
            Item::Message(message) => Some(self.message(message)),
            Item::Reasoning(reasoning) => {
                let is_own = reasoning.raw.get("type").and_then(Value::as_str) == Some("reasoning");
                is_own.then_some(Input::Raw(&reasoning.raw))
            }
            Item::Call(call) => Some(self.call(call)),
            Item::Output(output) => Some(self.output(output)),
            Item::Handoff(handoff) => Some(Input::Own(In::FunctionCallOutput {
                call_id: handoff.call.as_str(),
                output: OutputText::Text(handoff.text().into()),
            })),
            // Items of other providers would be refused.
            Item::Hosted(carried) | Item::Unknown(carried) => {
                (!carried.kind.contains('.')).then_some(Input::Raw(&carried.raw))
            }
            _ => None,
        }
    }

    fn call(&self, call: &'a Call) -> Input<'a> {
        match call.kind {
            CallKind::Computer => Input::Made(computer_call(call, self.is_preview())),
            CallKind::HostedMcp => Input::Own(In::McpApprovalRequest {
                id: call.id.as_str(),
                server_label: call.namespace.as_deref().unwrap_or_default(),
                name: &call.name,
                arguments: &call.arguments,
            }),
            _ => Input::Own(In::FunctionCall {
                call_id: call.id.as_str(),
                name: wire_name(call.namespace.as_deref(), &call.name),
                arguments: &call.arguments,
                // Ids of other providers' items would be refused.
                id: call.item_id.as_deref().filter(|id| id.starts_with("fc")),
            }),
        }
    }

    fn is_preview(&self) -> bool {
        self.model.starts_with("computer-use-preview")
    }

    fn message(&self, message: &'a Message) -> Input<'a> {
        match message.role {
            Role::Assistant => {
                let parts = with_annotations(&message.content).filter_map(|(part, notes)| match part {
                    Content::Text { text } => Some(Part::OutputText {
                        text,
                        annotations: notes.cloned().unwrap_or_else(|| json!([])),
                    }),
                    Content::Refusal { text } => Some(Part::Refusal { refusal: text }),
                    Content::Unknown(carried) if !carried.kind.contains('.') => Some(Part::Raw(&carried.raw)),
                    _ => None,
                });
                match &message.item_id {
                    Some(id) => Input::Own(In::Message {
                        role: "assistant",
                        content: Parts::Parts(parts.collect()),
                        id: Some(id),
                        status: Some("completed"),
                    }),
                    // Only what the provider wrote itself may be put as such.
                    None => Input::Own(In::Message {
                        role: "assistant",
                        content: Parts::Text(message.text().into()),
                        id: None,
                        status: None,
                    }),
                }
            }
            role => {
                let content = match message.content.as_slice() {
                    [Content::Text { text }] => Parts::Text(text.into()),
                    parts => Parts::Parts(parts.iter().filter_map(input_part).collect()),
                };
                let role = if role == Role::System { "system" } else { "user" };
                Input::Own(In::Message { role, content, id: None, status: None })
            }
        }
    }

    fn output(&self, output: &'a Output) -> Input<'a> {
        let call_id = output.call.as_str();
        match self.kinds.get(&output.call) {
            Some(CallKind::HostedMcp) => {
                let approve = output.status == OutputStatus::Ok;
                let reason = (!approve).then(|| output.content.text());
                Input::Own(In::McpApprovalResponse { approval_request_id: call_id, approve, reason })
            }
            Some(CallKind::Computer) => Input::Made(computer_output(call_id, &output.content)),
            _ => {
                let output = match &output.content {
                    OutputContent::Text(text) => OutputText::Text(text.into()),
                    OutputContent::Parts(parts) => {
                        OutputText::Parts(parts.iter().filter_map(input_part).collect())
                    }
                };
                Input::Own(In::FunctionCallOutput { call_id, output })
            }
        }
    }

    fn tools(&self) -> Vec<Value> {
        let tools = self.request.tools.iter().chain(self.request.handoffs);
        tools.map(|tool| self.tool(tool)).collect()
    }

    fn tool(&self, tool: &OfferedTool) -> Value {
        match &tool.kind {
            OfferedKind::Function => json!({
                "type": "function",
                "name": wire_name(tool.namespace.as_deref(), &tool.name),
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }),
            OfferedKind::Computer(display) if self.is_preview() => json!({
                "type": "computer_use_preview",
                "display_width": display.width,
                "display_height": display.height,
                "environment": display.environment,
            }),
            OfferedKind::Computer(_) => json!({ "type": "computer" }),
            OfferedKind::Hosted(definition) => {
                let mut definition = (**definition).clone();
                if let Some(fields) = definition.as_object_mut() {
                    fields.remove("include");
                }
                definition
            }
        }
    }

    /// What the answer is to hold beyond the usual. A hosted tool says it in its definition, and it is a field of the
    /// request.
    fn include(&self) -> Vec<&str> {
        let hosted = self.request.tools.iter().filter_map(|tool| match &tool.kind {
            OfferedKind::Hosted(definition) => definition.get("include")?.as_array(),
            OfferedKind::Function | OfferedKind::Computer(_) => None,
        });
        let mut include: Vec<&str> = hosted.flatten().filter_map(Value::as_str).collect();
        if self.request.settings.extra.get("store") == Some(&Value::Bool(false)) {
            // What the provider does not keep it must be shown again, and only it can read it.
            include.push("reasoning.encrypted_content");
        }
        include.sort_unstable();
        include.dedup();
        include
    }

    fn tool_choice(&self) -> Option<Value> {
        let choice = self.request.settings.tool_choice.as_ref()?;
        let ToolChoice::Tool(name) = choice else { return Some(choice.as_str().into()) };
        let tools = self.request.tools.iter().chain(self.request.handoffs);
        let named = tools.into_iter().find(|tool| *tool.name == **name);
        Some(match named.map(|tool| &tool.kind) {
            Some(OfferedKind::Hosted(definition)) => {
                let kind = &definition["type"];
                match definition.get("server_label") {
                    Some(label) => json!({ "type": kind, "server_label": label }),
                    None => json!({ "type": kind }),
                }
            }
            Some(OfferedKind::Computer(_)) => json!({ "type": "computer" }),
            _ => {
                let namespace = named.and_then(|tool| tool.namespace.as_deref());
                json!({ "type": "function", "name": wire_name(namespace, name) })
            }
        })
    }
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let settings = self.request.settings;
        let mut fields = Fields::new(serializer, &settings.extra)?;
        fields.put("model", self.model)?;
        fields.put_some("instructions", self.request.instructions)?;
        fields.put("input", &self.input())?;
        let tools = self.tools();
        if !tools.is_empty() {
            fields.put("tools", &tools)?;
            fields.put_some("tool_choice", self.tool_choice())?;
            fields.put_some("parallel_tool_calls", settings.parallel_calls)?;
        }
        fields.put_some("temperature", settings.temperature)?;
        fields.put_some("top_p", settings.top_p)?;
        fields.put_some("max_output_tokens", settings.max_tokens)?;
        fields.put_some(
            "reasoning",
            settings.reasoning_effort.as_ref().map(|effort| json!({ "effort": effort })),
        )?;
        fields.put_some(
            "text",
            self.request.output.map(|shape| {
                json!({ "format": {
                    "type": "json_schema",
                    "name": shape_name(&shape.name),
                    "schema": shape.schema,
                    "strict": true,
                }})
            }),
        )?;
        match self.held {
            Held::Nothing => {}
            Held::Response(id) => fields.put("previous_response_id", id)?,
            Held::Conversation { id, .. } => fields.put("conversation", id)?,
        }
        let include = self.include();
        if !include.is_empty() {
            fields.put("include", &include)?;
        }
        if self.is_streamed {
            fields.put("stream", &true)?;
        }
        fields.end()
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Own(In<'a>),
    Raw(&'a Value),
    Made(Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum In<'a> {
    Message {
        role: &'static str,
        content: Parts<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<&'static str>,
    },
    FunctionCall {
        call_id: &'a str,
        name: Cow<'a, str>,
        arguments: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: OutputText<'a>,
    },
    McpApprovalRequest {
        id: &'a str,
        server_label: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
    McpApprovalResponse {
        approval_request_id: &'a str,
        approve: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Cow<'a, str>>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Parts<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

type OutputText<'a> = Parts<'a>;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    OutputText {
        text: &'a str,
        annotations: Value,
    },
    Refusal {
        refusal: &'a str,
    },
    InputText {
        text: &'a str,
    },
    InputImage {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_url: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_id: Option<&'a str>,
        detail: &'a str,
    },
    InputFile {
        #[serde(skip_serializing_if = "Option::is_none")]
        file_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_url: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_data: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<&'a str>,
    },
    #[serde(untagged)]
    Raw(&'a Value),
}

fn input_part(part: &Content) -> Option<Part<'_>> {
    match part {
        Content::Text { text } | Content::Refusal { text } => Some(Part::InputText { text }),
        Content::Image(media) => Some(Part::InputImage {
            image_url: address(media, "image/png"),
            file_id: media.file_id.as_deref(),
            detail: media.detail.as_deref().unwrap_or("auto"),
        }),
        Content::File(media) => Some(file(media)),
        Content::Unknown(carried) => (!carried.kind.contains('.')).then_some(Part::Raw(&carried.raw)),
        _ => None,
    }
}

fn file(media: &Media) -> Part<'_> {
    let is_data = media.url.as_deref().is_none_or(|url| url.starts_with("data:"));
    Part::InputFile {
        file_id: media.file_id.as_deref(),
        file_url: media.url.as_deref().filter(|_| !is_data),
        file_data: if is_data { address(media, "application/pdf") } else { None },
        filename: media.name.as_deref(),
    }
}

fn computer_call(call: &Call, is_preview: bool) -> Value {
    let mut item: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    // The preview has one action where its successor has several.
    if let (true, Some(fields)) = (is_preview, item.as_object_mut()) {
        let first = fields.remove("actions").and_then(|mut actions| Some(actions.get_mut(0)?.take()));
        fields.insert("action".to_owned(), first.unwrap_or_default());
    }
    item["type"] = "computer_call".into();
    item["call_id"] = call.id.as_str().into();
    item["status"] = "completed".into();
    if let Some(id) = &call.item_id {
        item["id"] = id.as_str().into();
    }
    item
}

/// One transparent pixel.
const EMPTY_PICTURE: &str = "data:image/png;base64,\
     iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn computer_output(call_id: &str, content: &OutputContent) -> Value {
    let parts = match content {
        OutputContent::Parts(parts) => parts.as_slice(),
        OutputContent::Text(_) => &[],
    };
    // A call that was refused has no picture, and the provider takes no output without one.
    let mut screenshot = json!({ "type": "computer_screenshot", "image_url": EMPTY_PICTURE });
    let mut item = json!({ "type": "computer_call_output", "call_id": call_id });
    for part in parts {
        match part {
            Content::Image(media) => {
                if let Some(url) = address(media, "image/png") {
                    screenshot["image_url"] = url.into();
                }
                if let Some(id) = &media.file_id {
                    screenshot = json!({ "type": "computer_screenshot", "file_id": id });
                }
            }
            Content::Unknown(carried) if carried.kind == "acknowledged_safety_checks" => {
                item["acknowledged_safety_checks"] = carried.raw.clone();
            }
            _ => {}
        }
    }
    item["output"] = screenshot;
    item
}
