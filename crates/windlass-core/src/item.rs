//! Conversation items in a provider-independent form.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use crate::canonical::Digest;
use crate::id::{AgentName, CallId};
use crate::provenance::ContentSources;
use crate::tagged::deserialize_tagged;

/// One item of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Item {
    /// A message of the system, the user or the model.
    Message(Message),
    /// Reasoning of the model, sent back to the provider unchanged.
    Reasoning(ReasoningItem),
    /// A tool call that the model requested.
    Call(ToolCall),
    /// The output of a tool call.
    Output(CallOutput),
    /// The output of a call that handed control to another agent.
    Handoff(HandoffOutput),
    /// A tool call that the provider executed itself.
    HostedTool(OpaqueItem),
    /// An item of a type that this version does not know, preserved unchanged.
    Unknown(OpaqueItem),
}

deserialize_tagged!(Item {
    "message" => Message, Item::Message;
    "reasoning" => ReasoningItem, Item::Reasoning;
    "call" => ToolCall, Item::Call;
    "output" => CallOutput, Item::Output;
    "handoff" => HandoffOutput, Item::Handoff;
    "hosted_tool" => OpaqueItem, Item::HostedTool;
    "unknown" => OpaqueItem, Item::Unknown;
});

impl Item {
    /// Creates a user message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::Message(Message::new(Role::User, text))
    }

    /// Creates an assistant message.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Message(Message::new(Role::Assistant, text))
    }

    /// Creates a tool call of `name` with arguments as JSON text.
    pub fn call(id: impl Into<CallId>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self::Call(ToolCall {
            id: id.into(),
            name: name.into(),
            namespace: None,
            arguments: arguments.into(),
            item_id: None,
            kind: CallKind::Function,
            provider_data: None,
        })
    }
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the application.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message of the system, the user or the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content parts in order.
    pub content: Vec<ContentPart>,
    /// The provider's id of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// Sources of the text outside the conversation, such as those of a summary of tool outputs. Empty for the words of
    /// the user and of the model.
    #[serde(default, skip_serializing_if = "ContentSources::is_empty")]
    pub sources: ContentSources,
}

impl Message {
    /// Creates a message with one text part.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: vec![ContentPart::Text { text: text.into() }],
            item_id: None,
            sources: ContentSources::NONE,
        }
    }

    /// Adds sources of the text outside the conversation, for applications that quote a page or a file in a message.
    #[must_use]
    pub fn with_sources(mut self, sources: impl Into<ContentSources>) -> Self {
        self.sources.add(sources);
        self
    }

    /// Returns the text of all parts, concatenated.
    pub fn text(&self) -> String {
        join_text(&self.content)
    }

    /// Returns the model's refusal text, if the message is a refusal.
    pub fn refusal(&self) -> Option<&str> {
        self.content.iter().find_map(|part| match part {
            ContentPart::Refusal { text } => Some(text.as_str()),
            _ => None,
        })
    }
}

/// A part of a message or of a tool output.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContentPart {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// A refusal of the model.
    Refusal {
        /// The refusal text.
        text: String,
    },
    /// An image.
    Image(MediaSource),
    /// A file.
    File(MediaSource),
    /// A part of a type that this version does not know, preserved unchanged.
    Unknown(OpaqueItem),
}

/// The fields of a part that has a text only.
#[derive(Deserialize)]
struct TextFields {
    text: String,
}

deserialize_tagged!(ContentPart {
    "text" => TextFields, |fields| ContentPart::Text { text: fields.text };
    "refusal" => TextFields, |fields| ContentPart::Refusal { text: fields.text };
    "image" => MediaSource, ContentPart::Image;
    "file" => MediaSource, ContentPart::File;
    "unknown" => OpaqueItem, ContentPart::Unknown;
});

impl ContentPart {
    /// Creates a text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Returns the text of a part that has a text only.
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } | Self::Refusal { text } => Some(text),
            Self::Image(_) | Self::File(_) | Self::Unknown(_) => None,
        }
    }

    fn as_text_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Text { text } | Self::Refusal { text } => Some(text),
            Self::Image(_) | Self::File(_) | Self::Unknown(_) => None,
        }
    }
}

/// The location or the bytes of an image or a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MediaSource {
    /// URL, including `data:` URLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The provider's id of an uploaded file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
    /// The bytes in base64, if the item embeds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The media type, such as `image/png`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// File name for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Level of detail at which the model processes the image: `low`, `high` or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Reasoning of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasoningItem {
    /// Summary that may be shown to users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The provider's id of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// The provider's item, sent back unchanged.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub raw: Value,
    /// The provider that wrote the item, in the notation of [`ProviderData::origin`]. No other provider receives
    /// `raw`. Absent if the provider is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// Data that only the provider that wrote it can use, such as a signature. No other provider receives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProviderData {
    /// The API and the provider, such as `responses:api.openai.com`.
    pub origin: String,
    /// The fields of the provider's item that have no field of their own here.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

/// A tool call that the model requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id, assigned by the model.
    pub id: CallId,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The namespace, if the model gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The arguments as the model wrote them; expected to be JSON text, but not validated.
    pub arguments: String,
    /// The provider's id of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// The provider's call type, which also determines the form of the output.
    #[serde(default, skip_serializing_if = "CallKind::is_function")]
    pub kind: CallKind,
    /// Fields of the provider's item that are sent back with the call, such as a signature. They are stored as
    /// received, so they never contain the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_data: Option<Box<ProviderData>>,
}

impl ToolCall {
    /// Returns the type of the call in the provider's notation, such as `shell_call`, if the kind is
    /// [`CallKind::ProviderDefined`].
    pub fn provider_type(&self) -> Option<&str> {
        match (self.kind, &self.provider_data) {
            (CallKind::ProviderDefined, Some(data)) => data.fields.get("type")?.as_str(),
            _ => None,
        }
    }
}

/// The provider's type of a tool call. All kinds are planned, approved, guarded and journalled in the same way;
/// they differ only in the provider's wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallKind {
    /// A function call with JSON arguments.
    #[default]
    Function,
    /// A computer-use call. The arguments are `{"actions": […], "pending_safety_checks": […]}`, and the output
    /// contains an image.
    Computer,
    /// An approval request for a tool of an MCP server that the provider calls itself. The namespace is the
    /// server's label. An output with status `ok` approves the call; any other output rejects it, with the text
    /// as the reason.
    HostedMcp,
    /// A call of a tool that the provider defines and the application executes: a shell, a patch, free text, a
    /// tool search. The arguments are the payload of the provider's item as a JSON object; free text is
    /// `{"input": "…"}`. [`ToolCall::provider_type`] returns the provider's type of the call.
    ProviderDefined,
}

impl CallKind {
    fn is_function(&self) -> bool {
        matches!(self, Self::Function)
    }
}

/// The output of a tool call, as the model receives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallOutput {
    /// The call's id.
    pub call: CallId,
    /// The content of the output.
    pub content: OutputContent,
    /// The status of the output.
    #[serde(default, skip_serializing_if = "OutputStatus::is_ok")]
    pub status: OutputStatus,
    /// Sources of the text outside the conversation: those that the tool declares, or that a nested agent read.
    #[serde(default, skip_serializing_if = "ContentSources::is_empty")]
    pub sources: ContentSources,
}

/// The status of a tool output. It is passed to providers that have a field for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStatus {
    /// The call succeeded.
    #[default]
    Ok,
    /// The call failed, timed out, was rejected or was cancelled.
    Failed,
}

impl OutputStatus {
    fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// The content of a tool output: text or content parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OutputContent {
    /// Plain text.
    Text(String),
    /// Text, images and files in order.
    Parts(Vec<ContentPart>),
}

impl<'de> Deserialize<'de> for OutputContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OutputVisitor)
    }
}

struct OutputVisitor;

impl<'de> de::Visitor<'de> for OutputVisitor {
    type Value = OutputContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OutputContent, E> {
        Ok(OutputContent::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<OutputContent, E> {
        Ok(OutputContent::Text(text))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, parts: A) -> Result<OutputContent, A::Error> {
        Vec::deserialize(de::value::SeqAccessDeserializer::new(parts)).map(OutputContent::Parts)
    }
}

impl OutputContent {
    /// Returns the concatenated text; images and files contribute none.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Parts(parts) => join_text(parts).into(),
        }
    }

    /// Returns the length of the text in bytes; images and files have none.
    pub fn text_len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => parts.iter().filter_map(ContentPart::as_text).map(str::len).sum(),
        }
    }

    /// Truncates the text to at most `max_bytes`, at a character boundary. Text parts after the cut are removed; images
    /// and files stay. Returns the length of the remaining text.
    pub fn truncate_text(&mut self, max_bytes: usize) -> usize {
        match self {
            Self::Text(text) => text.truncate(text.floor_char_boundary(max_bytes)),
            Self::Parts(parts) => {
                let mut room = Some(max_bytes);
                parts.retain_mut(|part| {
                    let Some(text) = part.as_text_mut() else { return true };
                    let Some(left) = room else { return false };
                    room = left.checked_sub(text.len());
                    if room.is_none() {
                        text.truncate(text.floor_char_boundary(left));
                    }
                    true
                });
            }
        }
        self.text_len()
    }

    /// Appends a line: to a text, or as a text part of its own.
    pub fn push_line(&mut self, line: &str) {
        match self {
            Self::Text(text) => {
                text.push('\n');
                text.push_str(line);
            }
            Self::Parts(parts) => parts.push(ContentPart::text(line)),
        }
    }

    /// Returns the digest of the content.
    pub fn digest(&self) -> Digest {
        match self {
            Self::Text(text) => Digest::of_parts(&["text", text]),
            Self::Parts(parts) => {
                Digest::of_parts(&["parts", &serde_json::to_string(parts).unwrap_or_default()])
            }
        }
    }
}

impl<T: Into<String>> From<T> for OutputContent {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// The output of a handoff from one agent to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandoffOutput {
    /// The call that requested the handoff.
    pub call: CallId,
    /// The agent that requested the handoff.
    pub from: AgentName,
    /// The agent that takes over.
    pub to: AgentName,
}

impl HandoffOutput {
    /// Returns the text that the model receives as the call's output.
    pub fn output_text(&self) -> String {
        format!("{{\"assistant\": {}}}", Value::from(self.to.as_str()))
    }
}

/// A provider-specific item, preserved unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpaqueItem {
    /// The provider's type name of the item.
    pub kind: String,
    /// The complete item as the provider sent it.
    pub raw: Value,
    /// The provider that wrote the item, in the notation of [`ProviderData::origin`]. No other provider receives
    /// the item. Absent if the provider is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

impl OpaqueItem {
    /// Creates an item whose provider is not known.
    pub fn new(kind: impl Into<String>, raw: impl Into<Value>) -> Self {
        Self { kind: kind.into(), raw: raw.into(), origin: None }
    }
}

fn join_text(parts: &[ContentPart]) -> String {
    parts.iter().filter_map(ContentPart::as_text).collect()
}
