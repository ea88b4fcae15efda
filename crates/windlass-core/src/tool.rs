//! Declared properties of a tool: identity, effect and approval policy.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::canonical::Digest;
use crate::item::{CallKind, ToolCall};

/// A tool's canonical identity. Decisions and receipts are bound to it, so tools with equal names do not share
/// approvals.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToolKey {
    /// A tool of the agent, identified by its name alone.
    Bare(Arc<str>),
    /// A tool in a namespace.
    Namespaced {
        /// The namespace.
        namespace: Arc<str>,
        /// The name within the namespace.
        name: Arc<str>,
    },
    /// A tool that the provider loads on demand through tool search.
    Deferred(Arc<str>),
    /// A tool of an MCP server.
    Mcp {
        /// The server's label.
        server: Arc<str>,
        /// The tool's name on that server.
        name: Arc<str>,
        /// Digest of the definition that the server gave. A decision about one definition does not cover another.
        /// Absent if the provider runs the tool, and its definition is not known here.
        definition: Option<Digest>,
    },
}

impl ToolKey {
    /// Creates the key of a tool of the agent.
    pub fn bare(name: impl Into<Arc<str>>) -> Self {
        Self::Bare(name.into())
    }

    /// Returns the key that `call` refers to. Lookup is exact: a namespaced tool is not found by its bare name,
    /// and a namespace equal to the name denotes a deferred tool.
    pub fn for_call(call: &ToolCall) -> Self {
        if call.kind == CallKind::HostedMcp {
            let server = call.namespace.as_deref().unwrap_or_default().into();
            return Self::Mcp { server, name: call.name.as_str().into(), definition: None };
        }
        match call.namespace.as_deref() {
            None => Self::Bare(call.name.as_str().into()),
            Some(namespace) if namespace == call.name => Self::Deferred(call.name.as_str().into()),
            Some(namespace) => {
                Self::Namespaced { namespace: namespace.into(), name: call.name.as_str().into() }
            }
        }
    }

    /// Returns the text form.
    pub fn to_text(&self) -> Cow<'_, str> {
        match self {
            Self::Bare(name) => Cow::Borrowed(name),
            Self::Namespaced { .. } | Self::Deferred(_) | Self::Mcp { .. } => Cow::Owned(self.to_string()),
        }
    }

    /// Returns the tool's own name, without namespace or server.
    pub fn name(&self) -> &str {
        match self {
            Self::Bare(name) | Self::Deferred(name) => name,
            Self::Namespaced { name, .. } | Self::Mcp { name, .. } => name,
        }
    }
}

impl fmt::Display for ToolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bare(name) => f.write_str(name),
            Self::Namespaced { namespace, name } => write!(f, "{namespace}.{name}"),
            Self::Deferred(name) => write!(f, "deferred:{name}"),
            Self::Mcp { server, name, .. } => write!(f, "mcp:{server}/{name}"),
        }
    }
}

/// The declared effect of a tool, which determines how a call is recovered after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEffect {
    /// The tool has no side effects. An interrupted call is executed again.
    Pure,
    /// Repetition with the same idempotency key has no further effect. An interrupted call is executed again
    /// with that key.
    Idempotent,
    /// The effect must not occur twice (at-most-once). An interrupted call is in doubt until a reconcile
    /// function or a person determines its outcome.
    #[default]
    Once,
}

/// The policy that determines whether a call requires approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// Approval is not required.
    #[default]
    NotRequired,
    /// The tool's rule decides from the arguments; a standing approval takes precedence over the rule.
    ByRule,
    /// Approval is required.
    Required,
    /// The tool has a rule that is evaluated for every call, even under a standing approval. A standing approval
    /// covers only the tool's other approval rule.
    ByRuleEachTime,
    /// Approval is required for every single call; a standing approval does not cover it.
    RequiredEachTime,
}

impl ApprovalPolicy {
    pub(crate) fn is_not_required(&self) -> bool {
        *self == Self::NotRequired
    }
}

/// A key that is more than a name, in its serialised form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum QualifiedKey {
    Namespaced {
        namespace: Arc<str>,
        name: Arc<str>,
    },
    Deferred(Arc<str>),
    Mcp {
        server: Arc<str>,
        name: Arc<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        definition: Option<Digest>,
    },
}

/// Writes a bare name as text, and every other key as an object.
impl Serialize for ToolKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let qualified = match self.clone() {
            Self::Bare(name) => return serializer.serialize_str(&name),
            Self::Namespaced { namespace, name } => QualifiedKey::Namespaced { namespace, name },
            Self::Deferred(name) => QualifiedKey::Deferred(name),
            Self::Mcp { server, name, definition } => QualifiedKey::Mcp { server, name, definition },
        };
        qualified.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ToolKeyVisitor)
    }
}

struct ToolKeyVisitor;

impl<'de> de::Visitor<'de> for ToolKeyVisitor {
    type Value = ToolKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tool's key")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<ToolKey, E> {
        Ok(ToolKey::bare(name))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ToolKey, A::Error> {
        let key = QualifiedKey::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(match key {
            QualifiedKey::Namespaced { namespace, name } => ToolKey::Namespaced { namespace, name },
            QualifiedKey::Deferred(name) => ToolKey::Deferred(name),
            QualifiedKey::Mcp { server, name, definition } => ToolKey::Mcp { server, name, definition },
        })
    }
}
