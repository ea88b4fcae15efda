//! Encoding of Responses API requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use windlass::core::{
    id::CallId,
    item::{
        CallKind, CallOutput, ContentPart, Item, MediaSource, Message, OpaqueItem, OutputContent,
        OutputStatus, Role, ToolCall,
    },
};
use windlass::model::{ToolChoice, ToolDefinition, ToolKind};

use super::ConversationState;
use super::provider_calls::{encode_provider_call, encode_provider_output, parts_beside_output};
use crate::wire::{
    ItemOrigin, MediaLocation, RequestBase, RequestFields, chosen_tool_name, find_offered_tool,
    offered_tools, output_schema_name, since_last_response, to_wire_name, with_annotations,
};
use windlass_net::ReplaySafety;

/// The type of the provider's tool search.
const TOOL_SEARCH: &str = "tool_search";

/// The body of a request.
pub(super) struct ResponsesRequestBody<'a> {
    base: RequestBase<'a>,
    held_state: ProviderHeldState<'a>,
    /// The calls that have a wire format of their own, or data of the provider; their outputs depend on it.
    special_calls: BTreeMap<&'a CallId, &'a ToolCall>,
}

/// The part of the conversation that the provider stores.
#[derive(Clone, Copy)]
enum ProviderHeldState<'a> {
    Nothing,
    Response(&'a str),
    /// The response that the run was started to continue; the run has none of its own yet.
    ResponseBeforeRun(&'a str),
    Conversation {
        id: &'a str,
        has_previous_response: bool,
    },
}

/// The generation of the provider's computer tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComputerToolGeneration {
    /// The tool of the model `computer-use-preview`, whose calls have one action.
    Preview,
    /// Its successor, whose calls have several actions.
    Current,
}

impl<'a> ResponsesRequestBody<'a> {
    /// Returns the safety of sending the request twice: not if it advances a conversation that the provider stores.
    pub(super) fn replay_safety(&self) -> ReplaySafety {
        match self.held_state {
            ProviderHeldState::Nothing => ReplaySafety::Safe,
            ProviderHeldState::Response(_)
            | ProviderHeldState::ResponseBeforeRun(_)
            | ProviderHeldState::Conversation { .. } => ReplaySafety::Unsafe,
        }
    }

    pub(super) fn new(base: RequestBase<'a>, state: &'a ConversationState) -> Self {
        let request = base.request;
        // After a handoff or a fallback the id may come from another provider; it is not valid here.
        let previous = request.previous_response_id.filter(|id| is_own_response(id));
        let settings = request.settings;
        let in_conversation =
            |id| ProviderHeldState::Conversation { id, has_previous_response: previous.is_some() };
        // The run's own responses follow the one that its settings name.
        let held = match (&settings.conversation, &settings.previous_response_id, state) {
            (Some(id), _, _) => in_conversation(id.as_str()),
            (None, Some(given), _) => match (previous, request.previous_response_id) {
                (_, Some(last)) if last == given => ProviderHeldState::ResponseBeforeRun(given),
                (Some(previous), _) => ProviderHeldState::Response(previous),
                (None, None) => ProviderHeldState::Response(given),
                // The last response is another provider's, so this one lacks a part of the conversation.
                (None, Some(_)) => ProviderHeldState::Nothing,
            },
            (None, None, ConversationState::ClientManaged) => ProviderHeldState::Nothing,
            (None, None, ConversationState::PreviousResponse) => {
                previous.map_or(ProviderHeldState::Nothing, ProviderHeldState::Response)
            }
            (None, None, ConversationState::Conversation(id)) => in_conversation(id.as_str()),
        };
        let special = request.input.iter().filter_map(|item| match &**item {
            Item::Call(call) if call.kind != CallKind::Function || call.provider_data.is_some() => {
                Some((&call.id, call))
            }
            _ => None,
        });
        Self { base, held_state: held, special_calls: special.collect() }
    }

    fn encode_input(&self) -> Vec<ResponsesInput<'a>> {
        let items = match self.held_state {
            ProviderHeldState::Nothing
            | ProviderHeldState::ResponseBeforeRun(_)
            | ProviderHeldState::Conversation { has_previous_response: false, .. } => self.base.request.input,
            ProviderHeldState::Response(_) | ProviderHeldState::Conversation { .. } => {
                since_last_response(self.base.request.input)
            }
        };
        items
            .iter()
            .flat_map(|item| [self.encode_item(item), self.encode_message_beside(item)])
            .flatten()
            .collect()
    }

    /// Encodes the part of an output that its item type cannot hold as a user message: the text of a computer
    /// call's output, which may say that the call was rejected, or images of a shell.
    fn encode_message_beside(&self, item: &'a Item) -> Option<ResponsesInput<'a>> {
        let Item::Output(output) = item else { return None };
        let call = *self.special_calls.get(&output.call)?;
        if call.kind == CallKind::Computer {
            let text = output.content.text();
            return (!text.is_empty()).then(|| {
                let text = format!("[Of computer call {}] {text}", output.call);
                plain_message("user", ResponsesContent::Text(text.into()))
            });
        }
        let fields = self.provider_defined_fields(call)?;
        let parts = parts_beside_output(fields, output);
        let mut encoded = vec![json!({ "type": "input_text", "text": format!("[Of call {}]", output.call) })];
        let parts = parts.iter().filter_map(|part| encode_input_part(part, self.base.origin));
        encoded.extend(parts.filter_map(|part| serde_json::to_value(part).ok()));
        (encoded.len() > 1)
            .then(|| ResponsesInput::Built(json!({ "type": "message", "role": "user", "content": encoded })))
    }

    /// Returns the provider data of a call that this provider defined.
    fn provider_defined_fields(&self, call: &'a ToolCall) -> Option<&'a Map<String, Value>> {
        let fields = self.base.origin.own_fields(call)?;
        (call.kind == CallKind::ProviderDefined).then_some(fields)
    }

    fn encode_item(&self, item: &'a Item) -> Option<ResponsesInput<'a>> {
        match item {
            Item::Message(message) => Some(self.encode_message(message)),
            Item::Reasoning(reasoning) => {
                let is_own = reasoning.raw.get("type").and_then(Value::as_str) == Some("reasoning")
                    && self.base.origin.may_receive(reasoning.origin.as_deref());
                is_own.then_some(ResponsesInput::Raw(&reasoning.raw))
            }
            Item::Call(call) => Some(self.encode_call(call)),
            Item::Output(output) => Some(self.encode_output(output)),
            Item::Handoff(handoff) => Some(ResponsesInput::Typed(ResponsesInputItem::FunctionCallOutput {
                call_id: handoff.call.as_str(),
                output: ResponsesContent::Text(handoff.output_text().into()),
                caller: None,
            })),
            Item::HostedTool(item) | Item::Unknown(item) => {
                self.base.origin.raw_if_own(item).map(ResponsesInput::Raw)
            }
            _ => None,
        }
    }

    fn encode_call(&self, call: &'a ToolCall) -> ResponsesInput<'a> {
        if let Some(fields) = self.provider_defined_fields(call) {
            return ResponsesInput::Built(encode_provider_call(call, fields));
        }
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
                caller: self.base.origin.own_fields(call).and_then(|fields| fields.get("caller")),
                namespace: self.base.origin.own_fields(call).and_then(|fields| fields.get("namespace")),
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
                    ContentPart::Unknown(item) => encode_opaque_part(item, self.base.origin),
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
                    parts => ResponsesContent::Parts(self.encode_input_parts(parts)),
                };
                let role = if role == Role::System { "system" } else { "user" };
                plain_message(role, content)
            }
        }
    }

    fn encode_input_parts(&self, parts: &'a [ContentPart]) -> Vec<ResponsesContentPart<'a>> {
        parts.iter().filter_map(|part| encode_input_part(part, self.base.origin)).collect()
    }

    fn encode_output(&self, output: &'a CallOutput) -> ResponsesInput<'a> {
        let call_id = output.call.as_str();
        let content = match &output.content {
            OutputContent::Text(text) => ResponsesContent::Text(text.into()),
            OutputContent::Parts(parts) => ResponsesContent::Parts(self.encode_input_parts(parts)),
        };
        let call = self.special_calls.get(&output.call).copied();
        if let Some(call) = call
            && let Some(fields) = self.provider_defined_fields(call)
        {
            let content = serde_json::to_value(&content).unwrap_or_default();
            return ResponsesInput::Built(encode_provider_output(call, fields, output, content));
        }
        match call.map(|call| call.kind) {
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
                let fields = call.and_then(|call| self.base.origin.own_fields(call));
                let caller = fields.and_then(|fields| fields.get("caller"));
                ResponsesInput::Typed(ResponsesInputItem::FunctionCallOutput {
                    call_id,
                    output: content,
                    caller,
                })
            }
        }
    }

    fn encode_tools(&self) -> Vec<Value> {
        let request = &self.base.request;
        let mut tools: Vec<Value> = offered_tools(request).map(|tool| self.encode_tool(tool)).collect();
        if request.deferred_tools.is_empty() {
            return tools;
        }
        if !tools.iter().any(|tool| tool["type"] == TOOL_SEARCH) {
            tools.push(json!({ "type": TOOL_SEARCH }));
        }
        tools.extend(request.deferred_tools.iter().map(|tool| {
            let mut encoded = self.encode_tool(tool);
            encoded["defer_loading"] = true.into();
            encoded
        }));
        tools
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
            ToolKind::ProviderDefined(definition) => (**definition).clone(),
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
            ToolKind::Function | ToolKind::Computer(_) | ToolKind::ProviderDefined(_) => None,
        });
        let settings = self.base.request.settings;
        let mut include: Vec<&str> = hosted.flatten().filter_map(Value::as_str).collect();
        include.extend(settings.include.iter().map(String::as_str));
        if settings.store == Some(false) || settings.extra.get("store") == Some(&Value::Bool(false)) {
            // Reasoning that the provider does not store must be sent back, in encrypted form.
            include.push("reasoning.encrypted_content");
        }
        if settings.top_logprobs.is_some() {
            include.push("message.output_text.logprobs");
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
            Some(ToolKind::ProviderDefined(definition)) => match definition.get("name") {
                Some(name) => json!({ "type": definition["type"], "name": name }),
                None => json!({ "type": definition["type"] }),
            },
            Some(ToolKind::Computer(_)) => json!({ "type": "computer" }),
            Some(ToolKind::Function) | None => {
                json!({ "type": "function", "name": chosen_tool_name(request, name) })
            }
        })
    }
}

/// Returns true if the id of a response comes from this API.
pub(super) fn is_own_response(id: &str) -> bool {
    id.starts_with("resp")
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
        let text_field = |name: &str, text: &Option<String>| {
            text.as_ref().map(|text| (name.to_owned(), Value::from(text.as_str())))
        };
        let mut reasoning = Map::new();
        reasoning.extend(text_field("effort", &settings.reasoning_effort));
        reasoning.extend(text_field("summary", &settings.reasoning_summary));
        fields.put_if_some("reasoning", (!reasoning.is_empty()).then_some(reasoning))?;
        let mut text = Map::new();
        text.extend(request.output_schema.map(|output| {
            let format = json!({
                "type": "json_schema",
                "name": output_schema_name(&output.name),
                "schema": output.schema,
                "strict": output.is_strict,
            });
            ("format".to_owned(), format)
        }));
        text.extend(text_field("verbosity", &settings.verbosity));
        fields.put_if_some("text", (!text.is_empty()).then_some(text))?;
        fields.put_if_some("top_logprobs", settings.top_logprobs)?;
        fields.put_if_some("max_tool_calls", settings.max_tool_calls)?;
        fields.put_if_some("truncation", settings.truncation.as_ref())?;
        fields.put_openai_settings(&self.base)?;
        match self.held_state {
            ProviderHeldState::Nothing => {}
            ProviderHeldState::Response(id) | ProviderHeldState::ResponseBeforeRun(id) => {
                fields.put("previous_response_id", id)?;
            }
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
        #[serde(skip_serializing_if = "Option::is_none")]
        caller: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a Value>,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: ResponsesContent<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        caller: Option<&'a Value>,
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

fn encode_input_part<'a>(part: &'a ContentPart, origin: ItemOrigin<'_>) -> Option<ResponsesContentPart<'a>> {
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
        ContentPart::Unknown(item) => encode_opaque_part(item, origin),
        _ => None,
    }
}

fn encode_opaque_part<'a>(item: &'a OpaqueItem, origin: ItemOrigin<'_>) -> Option<ResponsesContentPart<'a>> {
    origin.raw_if_own(item).map(ResponsesContentPart::Raw)
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
