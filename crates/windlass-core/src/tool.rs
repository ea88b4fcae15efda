//! What the machine knows of a tool: its identity, its effect, its gate.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::item::{Call, CallKind};

/// A tool's canonical identity. Decisions and receipts belong to it, so two tools that merely share a name
/// never share an approval.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKey {
    /// A tool of the agent's own, known by its name.
    Bare(Arc<str>),
    /// A tool in a namespace.
    Namespaced {
        /// The namespace.
        namespace: Arc<str>,
        /// The name inside it.
        name: Arc<str>,
    },
    /// A tool that the provider loads when it is searched for.
    Deferred(Arc<str>),
    /// A tool of an MCP server.
    Mcp {
        /// The server's label.
        server: Arc<str>,
        /// The tool's name at that server.
        name: Arc<str>,
    },
}

impl ToolKey {
    /// A tool of the agent's own.
    pub fn bare(name: impl Into<Arc<str>>) -> Self {
        Self::Bare(name.into())
    }

    /// The key under which `call` looks for its tool. Lookup is exact: a namespaced tool is not found by its
    /// bare name, and a namespace equal to the name stands for a deferred tool.
    pub fn of_call(call: &Call) -> Self {
        if call.kind == CallKind::HostedMcp {
            let server = call.namespace.as_deref().unwrap_or_default().into();
            return Self::Mcp { server, name: call.name.as_str().into() };
        }
        match call.namespace.as_deref() {
            None => Self::Bare(call.name.as_str().into()),
            Some(namespace) if namespace == call.name => Self::Deferred(call.name.as_str().into()),
            Some(namespace) => {
                Self::Namespaced { namespace: namespace.into(), name: call.name.as_str().into() }
            }
        }
    }

    /// Its text form.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Bare(name) => Cow::Borrowed(name),
            Self::Namespaced { .. } | Self::Deferred(_) | Self::Mcp { .. } => Cow::Owned(self.to_string()),
        }
    }

    /// The last part: the tool's own name.
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
            Self::Mcp { server, name } => write!(f, "mcp:{server}/{name}"),
        }
    }
}

/// What running a tool does to the world, and so what may happen to a call that a crash interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It only looks. It may run again.
    Pure,
    /// Running it again with the same idempotency key changes nothing. It runs again with that key.
    Idempotent,
    /// It must not happen twice. After a crash it is in doubt until somebody says what happened.
    #[default]
    Once,
}

/// Whether a person must decide before a call may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Nobody is asked.
    #[default]
    Open,
    /// The tool's rule says, given the arguments.
    Ask,
    /// Always.
    Closed,
    /// As `Ask`, each time: an approval for good does not answer in the rule's place.
    AskEach,
    /// Always, and about this call alone: an approval for good does not cover it.
    Each,
}
