//! Encoding of Responses API requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use windlass::core::{
    id::CallId,
    item::{
        CallKind, CallOutput, ContentPart, Item, MediaSource, Message, OpaqueItem, OutputContent,
        OutputStatus, Role, ToolCall,
    },
};
use windlass::model::{ToolChoice, ToolDefinition, ToolKind};

use super::ConversationState;
use super::responses_decode::ResponsesDecoder;
use crate::client::ProtocolEncoder;
use crate::http::ReplaySafety;
use crate::wire::{
    ItemOrigin, MediaLocation, RequestBase, RequestFields, chosen_tool_name, find_offered_tool,
    offered_tools, output_schema_name, since_last_response, to_wire_name, with_annotations,
};

/// The body of a request.
pub(super) struct ResponsesRequestBody<'a> {
    base: RequestBase<'a>,
    held_state: ProviderHeldState<'a>,
    /// Kinds of the calls that are not function calls; they and their outputs have their own wire format.
    call_kinds: BTreeMap<&'a CallId, CallKind>,
}

/// The part of the conversation that the provider stores.
#[derive(Clone, Copy)]
enum ProviderHeldState<'a> {
    Nothing,
    Response(&'a str),
    Conversation { id: &'a str, has_previous_response: bool },
}

/// The generation of the provider's computer tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComputerToolGeneration {
    /// The tool of the model `computer-use-preview`, whose calls have one action.
    Preview,
    /// Its successor, whose calls have several actions.
    Current,
}

impl<'a> ProtocolEncoder for ResponsesRequestBody<'a> {
    const PATH: &'static str = "/responses";
    type Decoder = ResponsesDecoder<'a>;

    fn base(&self) -> &RequestBase<'_> {
        &self.base
    }

    fn decoder(&self) -> ResponsesDecoder<'a> {
        ResponsesDecoder::new(self.base.request)
    }

    /// A request that advances a conversation that the provider stores must not be sent twice.
    fn replay_safety(&self) -> ReplaySafety {
        match self.held_state {
            ProviderHeldState::Nothing => ReplaySafety::Safe,
            ProviderHeldState::Response(_) | ProviderHeldState::Conversation { .. } => ReplaySafety::Unsafe,
        }
    }
}

impl<'a> ResponsesRequestBody<'a> {
    pub(super) fn new(base: RequestBase<'a>, state: &'a ConversationState) -> Self {
        let request = base.request;
        // After a handoff or a fallback the id may come from another provider; it is not valid here.
        let previous = request.previous_response_id.filter(|id| id.starts_with("resp"));
        let held = match state {
            ConversationState::ClientManaged => ProviderHeldState::Nothing,
            ConversationState::PreviousResponse => {
                previous.map_or(ProviderHeldState::Nothing, ProviderHeldState::Response)
            }
            ConversationState::Conversation(id) => {
                ProviderHeldState::Conversation { id, has_previous_response: previous.is_some() }
            }
        };
        let kinds = request.input.iter().filter_map(|item| match &**item {
            Item::Call(call) if call.kind != CallKind::Function => Some((&call.id, call.kind)),
            _ => None,
        });
        Self { base, held_state: held, call_kinds: kinds.collect() }
    }

    fn encode_input(&self) -> Vec<ResponsesInput<'a>> {
        let items = match self.held_state {
            ProviderHeldState::Nothing
            | ProviderHeldState::Conversation { has_previous_response: false, .. } => self.base.request.input,
            ProviderHeldState::Response(_) | ProviderHeldState::Conversation { .. } => {
                since_last_response(self.base.request.input)
            }
        };
        items
            .iter()
            .flat_map(|item| [self.encode_item(item), self.encode_computer_text(item)])
            .flatten()
            .collect()
    }

    /// Encodes the text of a computer call's output as a user message. The output itself can only hold an image;
    /// the text may say that the call was rejected.
    fn encode_computer_text(&self, item: &'a Item) -> Option<ResponsesInput<'a>> {
        let Item::Output(output) = item else { return None };
        let is_computer = self.call_kinds.get(&output.call) == Some(&CallKind::Computer);
        let text = output.content.text();
        (is_computer && !text.is_empty()).then(|| {
            let text = format!("[Of computer call {}] {text}", output.call);
            plain_message("user", ResponsesContent::Text(text.into()))
        })
    }

    fn encode_item(&self, item: &'a Item) -> Option<ResponsesInput<'a>> {
        match item {
            Item::Message(message) => Some(self.encode_message(message)),
            Item::Reasoning(reasoning) => {
                let is_own = reasoning.raw.get("type").and_then(Value::as_str) == Some("reasoning");
                is_own.then_some(ResponsesInput::Raw(&reasoning.raw))
            }
            Item::Call(call) => Some(self.encode_call(call)),
            Item::Output(output) => Some(self.encode_output(output)),
            Item::Handoff(handoff) => Some(ResponsesInput::Typed(ResponsesInputItem::FunctionCallOutput {
                call_id: handoff.call.as_str(),
                output: ResponsesContent::Text(handoff.output_text().into()),
            })),
            Item::HostedTool(item) | Item::Unknown(item) => {
                ItemOrigin::Responses.raw_if_own(item).map(ResponsesInput::Raw)
            }
            _ => None,
        }
    }

    fn encode_call(&self, call: &'a ToolCall) -> ResponsesInput<'a> {
        match call.kind {
            CallKind::Computer => ResponsesInput::Built(encode_computer_call(call, self.computer_tool())),
            CallKind::HostedMcp => ResponsesInput::Typed(ResponsesInputItem::McpApprovalRequest {
                id: call.id.as_str(),
                server_label: call.namespace.as_deref().unwrap_or_default(),
                name: &call.name,
                arguments: &call.arguments,
            }),
            _ => ResponsesInput::Typed(ResponsesInputItem::FunctionCall {
                call_id: call.id.as_str(),
                name: to_wire_name(call.namespace.as_deref(), &call.name),
                arguments: &call.arguments,
                // The API rejects ids of other providers' items.
                id: call.item_id.as_deref().filter(|id| id.starts_with("fc")),
            }),
        }
    }

    fn computer_tool(&self) -> ComputerToolGeneration {
        if self.base.model.starts_with("computer-use-preview") {
            ComputerToolGeneration::Preview
        } else {
            ComputerToolGeneration::Current
        }
    }

    fn encode_message(&self, message: &'a Message) -> ResponsesInput<'a> {
        match message.role {
            Role::Assistant => {
                let parts = with_annotations(&message.content).filter_map(|(part, annotations)| match part {
                    ContentPart::Text { text } => Some(ResponsesContentPart::OutputText {
                        text,
                        annotations: annotations.cloned().unwrap_or_else(|| json!([])),
                    }),
                    ContentPart::Refusal { text } => Some(ResponsesContentPart::Refusal { refusal: text }),
                    ContentPart::Unknown(item) => encode_opaque_part(item),
                    _ => None,
                });
                match &message.item_id {
                    Some(id) => ResponsesInput::Typed(ResponsesInputItem::Message {
                        role: "assistant",
                        content: ResponsesContent::Parts(parts.collect()),
                        id: Some(id),
                        status: Some("completed"),
                    }),
                    // Only the provider's own messages may be sent in the output format.
                    None => plain_message("assistant", ResponsesContent::Text(message.text().into())),
                }
            }
            role => {
                let content = match message.content.as_slice() {
                    [ContentPart::Text { text }] => ResponsesContent::Text(text.into()),
                    parts => ResponsesContent::Parts(parts.iter().filter_map(encode_input_part).collect()),
                };
                let role = if role == Role::System { "system" } else { "user" };
                plain_message(role, content)
            }
        }
    }

    fn encode_output(&self, output: &'a CallOutput) -> ResponsesInput<'a> {
        let call_id = output.call.as_str();
        match self.call_kinds.get(&output.call) {
            Some(CallKind::HostedMcp) => {
                let approve = output.status == OutputStatus::Ok;
                let reason = (!approve).then(|| output.content.text());
                ResponsesInput::Typed(ResponsesInputItem::McpApprovalResponse {
                    approval_request_id: call_id,
                    approve,
                    reason,
                })
            }
            Some(CallKind::Computer) => {
                ResponsesInput::Built(encode_computer_output(call_id, &output.content))
            }
            _ => {
                let output = match &output.content {
                    OutputContent::Text(text) => ResponsesContent::Text(text.into()),
                    OutputContent::Parts(parts) => {
                        ResponsesContent::Parts(parts.iter().filter_map(encode_input_part).collect())
                    }
                };
                ResponsesInput::Typed(ResponsesInputItem::FunctionCallOutput { call_id, output })
            }
        }
    }

    fn encode_tools(&self) -> Vec<Value> {
        offered_tools(&self.base.request).map(|tool| self.encode_tool(tool)).collect()
    }

    fn encode_tool(&self, tool: &ToolDefinition) -> Value {
        match &tool.kind {
            ToolKind::Function => json!({
                "type": "function",
                "name": to_wire_name(tool.namespace.as_deref(), &tool.name),
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.is_strict,
            }),
            ToolKind::Computer(display) if self.computer_tool() == ComputerToolGeneration::Preview => json!({
                "type": "computer_use_preview",
                "display_width": display.width,
                "display_height": display.height,
                "environment": display.environment,
            }),
            ToolKind::Computer(_) => json!({ "type": "computer" }),
            ToolKind::Hosted(definition) => {
                let mut definition = (**definition).clone();
                if let Some(fields) = definition.as_object_mut() {
                    fields.remove("include");
                }
                definition
            }
        }
    }

    /// Returns the request's `include` field: the additional output that hosted tools ask for in their
    /// definitions, and encrypted reasoning if the provider stores nothing.
    fn include_fields(&self) -> Vec<&str> {
        let hosted = self.base.request.tools.iter().filter_map(|tool| match &tool.kind {
            ToolKind::Hosted(definition) => definition.get("include")?.as_array(),
            ToolKind::Function | ToolKind::Computer(_) => None,
        });
        let mut include: Vec<&str> = hosted.flatten().filter_map(Value::as_str).collect();
        if self.base.request.settings.extra.get("store") == Some(&Value::Bool(false)) {
            // Reasoning that the provider does not store must be sent back, in encrypted form.
            include.push("reasoning.encrypted_content");
        }
        include.sort_unstable();
        include.dedup();
        include
    }

    fn encode_tool_choice(&self) -> Option<Value> {
        let request = &self.base.request;
        let choice = request.settings.tool_choice.as_ref()?;
        let ToolChoice::Tool(name) = choice else { return Some(choice.as_str().into()) };
        Some(match find_offered_tool(request, name).map(|tool| &tool.kind) {
            Some(ToolKind::Hosted(definition)) => {
                let kind = &definition["type"];
                match definition.get("server_label") {
                    Some(label) => json!({ "type": kind, "server_label": label }),
                    None => json!({ "type": kind }),
                }
            }
            Some(ToolKind::Computer(_)) => json!({ "type": "computer" }),
            Some(ToolKind::Function) | None => {
                json!({ "type": "function", "name": chosen_tool_name(request, name) })
            }
        })
    }
}

impl Serialize for ResponsesRequestBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RequestBase { request, is_streamed, .. } = &self.base;
        let settings = request.settings;
        let mut fields = RequestFields::start(serializer, &self.base)?;
        fields.put_if_some("instructions", request.instructions)?;
        fields.put("input", &self.encode_input())?;
        let tools = self.encode_tools();
        fields.put_tools(&tools, self.encode_tool_choice())?;
        if !tools.is_empty() {
            fields.put_if_some("parallel_tool_calls", settings.parallel_tool_calls)?;
        }
        fields.put_sampling()?;
        fields.put_if_some("max_output_tokens", settings.max_tokens)?;
        fields.put_if_some(
            "reasoning",
            settings.reasoning_effort.as_ref().map(|effort| json!({ "effort": effort })),
        )?;
        fields.put_if_some(
            "text",
            request.output_schema.map(|output| {
                json!({ "format": {
                    "type": "json_schema",
                    "name": output_schema_name(&output.name),
                    "schema": output.schema,
                    "strict": true,
                }})
            }),
        )?;
        match self.held_state {
            ProviderHeldState::Nothing => {}
            ProviderHeldState::Response(id) => fields.put("previous_response_id", id)?,
            ProviderHeldState::Conversation { id, .. } => fields.put("conversation", id)?,
        }
        let include = self.include_fields();
        if !include.is_empty() {
            fields.put("include", &include)?;
        }
        if *is_streamed {
            fields.put("stream", &true)?;
        }
        fields.finish()
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ResponsesInput<'a> {
    Typed(ResponsesInputItem<'a>),
    Raw(&'a Value),
    Built(Value),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponsesInputItem<'a> {
    Message {
        role: &'static str,
        content: ResponsesContent<'a>,
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
        output: ResponsesContent<'a>,
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
enum ResponsesContent<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<ResponsesContentPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponsesContentPart<'a> {
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

/// Returns a message in the input format, which has no id.
fn plain_message<'a>(role: &'static str, content: ResponsesContent<'a>) -> ResponsesInput<'a> {
    ResponsesInput::Typed(ResponsesInputItem::Message { role, content, id: None, status: None })
}

fn encode_input_part(part: &ContentPart) -> Option<ResponsesContentPart<'_>> {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => {
            Some(ResponsesContentPart::InputText { text })
        }
        ContentPart::Image(media) => Some(ResponsesContentPart::InputImage {
            image_url: MediaLocation::of_image(media).map(MediaLocation::into_url),
            file_id: media.file_id.as_deref(),
            detail: media.detail.as_deref().unwrap_or("auto"),
        }),
        ContentPart::File(media) => Some(encode_file(media)),
        ContentPart::Unknown(item) => encode_opaque_part(item),
        _ => None,
    }
}

fn encode_opaque_part(item: &OpaqueItem) -> Option<ResponsesContentPart<'_>> {
    ItemOrigin::Responses.raw_if_own(item).map(ResponsesContentPart::Raw)
}

fn encode_file(media: &MediaSource) -> ResponsesContentPart<'_> {
    let (file_url, file_data) = match MediaLocation::of_file(media) {
        Some(MediaLocation::Url(url)) if !url.starts_with("data:") => (Some(url), None),
        location => (None, location.map(MediaLocation::into_url)),
    };
    ResponsesContentPart::InputFile {
        file_id: media.file_id.as_deref(),
        file_url,
        file_data,
        filename: media.name.as_deref(),
    }
}

fn encode_computer_call(call: &ToolCall, generation: ComputerToolGeneration) -> Value {
    let mut item: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    if let (ComputerToolGeneration::Preview, Some(fields)) = (generation, item.as_object_mut()) {
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
const EMPTY_IMAGE_URL: &str = "data:image/png;base64,\
     iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn encode_computer_output(call_id: &str, content: &OutputContent) -> Value {
    let parts = match content {
        OutputContent::Parts(parts) => parts.as_slice(),
        OutputContent::Text(_) => &[],
    };
    // A rejected call has no screenshot, and the API accepts no output without one.
    let mut screenshot = json!({ "type": "computer_screenshot", "image_url": EMPTY_IMAGE_URL });
    let mut item = json!({ "type": "computer_call_output", "call_id": call_id });
    for part in parts {
        match part {
            ContentPart::Image(media) => {
                if let Some(location) = MediaLocation::of_image(media) {
                    screenshot["image_url"] = location.into_url().into();
                }
                if let Some(id) = &media.file_id {
                    screenshot = json!({ "type": "computer_screenshot", "file_id": id });
                }
            }
            ContentPart::Unknown(checks) if checks.kind == "acknowledged_safety_checks" => {
                item["acknowledged_safety_checks"] = checks.raw.clone();
            }
            _ => {}
        }
    }
    item["output"] = screenshot;
    item
}
