//! The ids of the scopes in which idempotency keys and receipts are shared.

use std::sync::Arc;

use windlass_core::{
    id::{AgentName, RunId, SessionId},
    idempotency::{KeyNonce, KeyScope},
};

use crate::error::ConfigError;
use crate::store::Store;
use crate::tool::{ReceiptScope, Tool};

/// The ids of the scopes that a run belongs to.
pub(crate) struct KeyScopes {
    /// The outermost run.
    run: RunId,
    nonce: Option<KeyNonce>,
    /// The conversation that the run is a part of, if it executes calls of a response from elsewhere.
    conversation: Option<RunId>,
    session: Option<SessionId>,
    /// True if the session is in the store of the run.
    is_session_in_store: bool,
    store: Option<Arc<dyn Store>>,
}

impl KeyScopes {
    pub(crate) fn new(
        run: RunId,
        nonce: Option<KeyNonce>,
        conversation: Option<RunId>,
        session: Option<SessionId>,
        is_session_in_store: bool,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let session = session.or_else(|| conversation.as_ref().map(|id| SessionId::new(id.as_str())));
        Self { run, nonce, conversation, session, is_session_in_store, store }
    }

    /// Returns the name under which the store of the run keeps the receipts of the session, if it has one. A session
    /// elsewhere may have the id of one of the store.
    pub(crate) fn session_receipts(&self) -> Option<String> {
        let kind = if self.is_session_in_store { "session" } else { "session elsewhere" };
        Some(format!("{kind}:{}", self.session.as_ref()?))
    }

    /// Returns the outermost run.
    pub(crate) fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the nonce of the outermost run.
    pub(crate) fn nonce(&self) -> Option<&KeyNonce> {
        self.nonce.as_ref()
    }

    /// Returns the scope in which a tool shares its receipts; `None` if it shares none, or if the run lacks the scope,
    /// which [`KeyScopes::check_tool`] refuses before the call starts.
    pub(crate) fn key_scope(&self, scope: ReceiptScope) -> Option<KeyScope<'_>> {
        match scope {
            ReceiptScope::Call => None,
            ReceiptScope::Run => Some(match &self.conversation {
                Some(conversation) => KeyScope::Run { run: conversation, nonce: None },
                None => KeyScope::Run { run: &self.run, nonce: self.nonce() },
            }),
            ReceiptScope::Session => {
                let store = self.store.as_ref().filter(|_| self.is_session_in_store);
                let store = store.map(|store| store.store_id());
                self.session.as_ref().map(|session| KeyScope::Session { session, store })
            }
            ReceiptScope::Store => self.store.as_ref().map(|store| KeyScope::Store(store.store_id())),
        }
    }

    /// Checks that the run has the scope in which a tool shares its receipts, and a store for its shared limits.
    pub(crate) fn check_tool<C: Send + Sync + 'static>(
        &self,
        agent: &AgentName,
        tool: &Tool<C>,
    ) -> Result<(), ConfigError> {
        let limit = tool.shared_limits.first().filter(|_| self.store.is_none());
        if let Some(limit) = limit.filter(|_| tool.enabled.static_value() != Some(false)) {
            return Err(ConfigError::SharedLimitUnavailable {
                tool: tool.key().to_string(),
                agent: agent.clone(),
                limit: limit.name().to_owned(),
            });
        }
        if !tool.shares_receipts() || tool.enabled.static_value() == Some(false) {
            return Ok(());
        }
        let has_store = self.store.is_some() || self.conversation.is_some();
        let missing = match tool.receipt_policy.scope {
            ReceiptScope::Session if self.session.is_none() => "session",
            ReceiptScope::Session if !has_store => "store",
            ReceiptScope::Store if self.store.is_none() => "store",
            ReceiptScope::Call | ReceiptScope::Run | ReceiptScope::Session | ReceiptScope::Store => {
                return Ok(());
            }
        };
        Err(ConfigError::ReceiptScopeUnavailable {
            tool: tool.key().to_string(),
            agent: agent.clone(),
            scope: tool.receipt_policy.scope,
            missing,
        })
    }
}
