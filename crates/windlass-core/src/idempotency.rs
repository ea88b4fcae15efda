//! Idempotency keys: the identity of an effect for the systems that a tool calls.
//!
//! A key is derived once, when its call starts, and recorded in the `call_started` entry. Later attempts and forks of a
//! running call read it from there, so that a new build cannot change it. It contains no schema, description or default.

use crate::canonical::{Digest, ShortPartsHasher};
use crate::id::{AgentName, CallId, RunId, SessionId};
use crate::text_id;
use crate::tool::ToolKey;

text_id! {
    /// A key that a tool passes to the systems that it calls, so that they can detect a repeated effect.
    IdempotencyKey
}

text_id! {
    /// A random text that tells a run from every other run of the same id: an earlier one that was forgotten, or one in
    /// another store. The driver makes it, and the first record keeps it.
    KeyNonce
}

/// The recorded identity of a started call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallKey {
    /// The idempotency key of the call.
    pub idempotency_key: IdempotencyKey,
    /// Digest under which a successful output becomes a receipt; absent if the call leaves none.
    pub receipt_digest: Option<Digest>,
    /// Generation of the receipt and of the key. It rises when a receipt expires.
    pub generation: u32,
}

/// The scope within which identical calls share their idempotency key and their receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope<'a> {
    /// The calls of one run, including nested agents.
    Run {
        /// The outermost run.
        run: &'a RunId,
        /// The nonce of that run, if it has one.
        nonce: Option<&'a KeyNonce>,
    },
    /// The runs of one session.
    Session {
        /// Id of the session.
        session: &'a SessionId,
        /// The own id of the store, if it keeps both the session and the run. A session elsewhere is known by its id
        /// alone.
        store: Option<&'a str>,
    },
    /// The runs of one store, by the store's own id.
    Store(&'a str),
}

/// The identity of a call that shares its key with no other.
#[derive(Clone, Copy, Debug)]
pub struct UniqueCall<'a> {
    /// The outermost run.
    pub run: &'a RunId,
    /// The nonce of that run, if it has one.
    pub nonce: Option<&'a KeyNonce>,
    /// The number of the model response that made the call.
    pub turn: u32,
    /// The calls that lead to the nested agent of the call, outermost first.
    pub parent_calls: &'a [CallId],
    /// The call's id.
    pub call: &'a CallId,
    /// The agent that made the call.
    pub agent: &'a AgentName,
    /// The identity of the tool.
    pub tool: &'a ToolKey,
    /// Canonical JSON, without null parameters: see [`without_null_parameters`](crate::schema::without_null_parameters).
    pub arguments: &'a str,
}

impl IdempotencyKey {
    /// Derives the key of an operation in a scope. `operation` is the result of [`operation_digest`].
    pub fn derive(scope: KeyScope<'_>, operation: &Digest, generation: u32) -> Self {
        let (kind, id, part_of) = match scope {
            KeyScope::Run { run, nonce } => ("run", run.as_str(), nonce.map(KeyNonce::as_str)),
            KeyScope::Session { session, store } => ("session", session.as_str(), store),
            KeyScope::Store(store) => ("store", store, None),
        };
        let (operation, generation) = (operation.to_string(), generation.to_string());
        let parts = [kind, operation.as_str(), generation.as_str(), id];
        Self::from_digest(&match part_of {
            Some(part_of) => Digest::of_parts(&[&parts[..], &[part_of]].concat()),
            None => Digest::of_parts(&parts),
        })
    }

    /// Derives the key of a call that shares it with no other.
    pub fn of_unique_call(call: UniqueCall<'_>) -> Self {
        let (kind, owner, name) = tool_identity(call.tool);
        // Most calls have such a key, so its input is as short as an unambiguous one can be.
        let mut hasher = ShortPartsHasher::default();
        match call.nonce {
            None => hasher.add_text("call"),
            Some(nonce) => {
                hasher.add_text("call with nonce");
                hasher.add_text(nonce.as_str());
            }
        }
        hasher.add_text(call.run.as_str());
        hasher.add_number(call.turn);
        hasher.add_number(u32::try_from(call.parent_calls.len()).unwrap_or(u32::MAX));
        for parent in call.parent_calls {
            hasher.add_text(parent.as_str());
        }
        for part in [call.call.as_str(), call.agent.as_str(), kind, owner, name, call.arguments] {
            hasher.add_text(part);
        }
        Self::from_digest(&hasher.finish())
    }

    fn from_digest(digest: &Digest) -> Self {
        let hex = digest.to_hex();
        let mut text = *b"wl-00000000000000000000000000000000";
        text[3..].copy_from_slice(&hex[..32]);
        Self::new(String::from_utf8_lossy(&text).as_ref())
    }
}

/// Returns the digest of an operation: an agent, the identity of its tool, and the arguments. Receipts are stored under
/// it. `arguments` are canonical JSON, without null parameters: see [`without_null_parameters`](crate::schema::without_null_parameters).
pub fn operation_digest(agent: &AgentName, tool: &ToolKey, arguments: &str) -> Digest {
    let (kind, owner, name) = tool_identity(tool);
    Digest::of_parts(&[agent.as_str(), kind, owner, name, arguments])
}

/// Returns the kind of a tool's key, its namespace or server, and its name.
fn tool_identity(tool: &ToolKey) -> (&str, &str, &str) {
    match tool {
        ToolKey::Bare(name) => ("bare", "", name),
        ToolKey::Namespaced { namespace, name } => ("namespaced", namespace, name),
        ToolKey::Deferred(name) => ("deferred", "", name),
        ToolKey::Mcp { server, name, definition: _ } => ("mcp", server, name),
    }
}

#[cfg(test)]
#[path = "idempotency_tests.rs"]
mod tests;
