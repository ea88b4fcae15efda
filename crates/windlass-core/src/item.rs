//! Items: what a conversation is made of, in no provider's dialect.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{AgentName, CallId};

/// One piece of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Item {
    /// What somebody said.
    Message(Message),
    /// The model's reasoning, carried back to it as it came.
    Reasoning(Reasoning),
    /// The model asks for a tool.
    Call(Call),
    /// What came of a call.
    Output(Output),
    /// What came of a call that passed control to another agent.
    Handoff(Handoff),
    /// A tool that the provider ran itself.
    Hosted(Carried),
    /// An item that this version does not know, carried through untouched.
    Unknown(Carried),
}

impl Item {
    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::Message(Message::new(Role::User, text))
    }

    /// A message of the model.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Message(Message::new(Role::Assistant, text))
    }

    /// A call of `name` with arguments as JSON text.
    pub fn call(id: impl Into<CallId>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self::Call(Call {
            id: id.into(),
            name: name.into(),
            namespace: None,
            arguments: arguments.into(),
            item_id: None,
            kind: CallKind::Function,
        })
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Standing orders, from the application.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// What it holds, in order.
    pub content: Vec<Content>,
    /// The provider's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, content: vec![Content::Text { text: text.into() }], item_id: None }
    }

    /// Its text, the parts joined.
    pub fn text(&self) -> String {
        joined_text(&self.content)
    }

    /// Why the model refused, where it did.
    pub fn refusal(&self) -> Option<&str> {
        self.content.iter().find_map(|part| match part {
            Content::Refusal { text } => Some(text.as_str()),
            _ => None,
        })
    }
}

/// A part of a message or of an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// The model declined to answer.
    Refusal {
        /// Its words.
        text: String,
    },
    /// A picture.
    Image(Media),
    /// A file.
    File(Media),
    /// A part that this version does not know, carried through untouched.
    Unknown(Carried),
}

impl Content {
    /// A part of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// Where the bytes of a picture or a file are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Media {
    /// An address, `data:` addresses included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The provider's id of an uploaded file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_id: Option<String>,
    /// The bytes in base64, where they travel with the item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The media type, such as `image/png`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// A name to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How closely a model should look: `low`, `high`, `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The model's reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// What may be shown of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The provider's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// The provider's item as it came, sent back untouched.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub raw: Value,
}

/// The model asks for a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The model's id of this call.
    pub id: CallId,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The namespace, where the model gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The arguments as the model wrote them: JSON text, or something that should have been.
    pub arguments: String,
    /// The provider's id of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// How the provider puts such a call, and expects its output.
    #[serde(default, skip_serializing_if = "CallKind::is_function")]
    pub kind: CallKind,
}

/// How a provider puts a call. All kinds are planned, decided, guarded and journalled in the same way; only what
/// the provider sends and is sent differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallKind {
    /// A function with JSON arguments.
    #[default]
    Function,
    /// Actions on a screen. The arguments are `{"actions": […], "pending_safety_checks": […]}`, and the output holds
    /// a picture.
    Computer,
    /// A tool of an MCP server that the provider calls itself, and asks about first. The namespace is the server's
    /// label. An output that is `ok` is the permission; any other is the refusal, with its reason.
    HostedMcp,
}

impl CallKind {
    fn is_function(&self) -> bool {
        matches!(self, Self::Function)
    }
}

/// What came of a call, as the model is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Which call.
    pub call: CallId,
    /// What it gave.
    pub content: OutputContent,
    /// Whether the call did what was asked.
    #[serde(default, skip_serializing_if = "OutputStatus::is_ok")]
    pub status: OutputStatus,
}

/// Whether a call did what was asked. Providers that have a flag for it are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStatus {
    /// It did.
    #[default]
    Ok,
    /// It failed, timed out, was refused or was stopped.
    Failed,
}

impl OutputStatus {
    fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// What a call gave: text, or parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputContent {
    /// Text.
    Text(String),
    /// Text, pictures and files in order.
    Parts(Vec<Content>),
}

impl OutputContent {
    /// Its text; pictures and files have none.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Parts(parts) => joined_text(parts).into(),
        }
    }
}

impl<T: Into<String>> From<T> for OutputContent {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// Control passed from one agent to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handoff {
    /// The call that asked for it.
    pub call: CallId,
    /// The agent that asked.
    pub from: AgentName,
    /// The agent that goes on.
    pub to: AgentName,
}

impl Handoff {
    /// What the models are told of it.
    pub fn text(&self) -> String {
        format!("{{\"assistant\": {}}}", Value::from(self.to.as_str()))
    }
}

/// A provider's own item, as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// The provider's name for its kind.
    pub kind: String,
    /// All of it.
    pub raw: Value,
}

fn joined_text(parts: &[Content]) -> String {
    parts
        .iter()
        .map(|part| match part {
            Content::Text { text } | Content::Refusal { text } => text.as_str(),
            Content::Image(_) | Content::File(_) | Content::Unknown(_) => "",
        })
        .collect()
}
