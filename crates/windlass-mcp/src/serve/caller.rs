//! The client of a request: its identity, and the application's context for it.

use std::sync::Arc;

use hyper::http::request::Parts;
use rmcp::service::{RequestContext, RoleServer};
use windlass::core::canonical::Digest;
use windlass::core::id::RunId;

use super::SharedMcpServer;
use super::http_auth::McpClientIdentity;

/// Number of hexadecimal digits of an identity's digest in the id of a run.
const OWNER_DIGITS: usize = 16;

/// The client of a request.
pub(super) struct RequestCaller<C> {
    /// The application's context for this client.
    pub(super) context: Arc<C>,
    /// The start of the ids of this client's runs, which no other client's runs have.
    run_prefix: String,
}

impl<C: Send + Sync + 'static> RequestCaller<C> {
    pub(super) fn new(server: &SharedMcpServer<C>, request: &RequestContext<RoleServer>) -> Self {
        let head = request.extensions.get::<Parts>();
        let identity = head.and_then(|head| head.extensions.get::<McpClientIdentity>());
        let context = match (&server.client_context, identity) {
            (Some(context_for), Some(identity)) => context_for(identity),
            (None, _) | (_, None) => server.context.clone(),
        };
        let run_prefix = match identity {
            Some(identity) => {
                let digest = Digest::of_parts(&["mcp client", identity.name()]).to_string();
                format!("{}-", &digest[..OWNER_DIGITS])
            }
            None => String::new(),
        };
        Self { context, run_prefix }
    }

    /// Returns a new id for a run of this client. The id authorises access to the call's task, so it is unguessable.
    pub(super) fn new_run_id(&self) -> RunId {
        RunId::new(format!("{}{}", self.run_prefix, uuid::Uuid::new_v4()))
    }

    /// Returns the id of the run that an idempotency key identifies.
    pub(super) fn keyed_run_id(&self, tool: &str, key: &str) -> RunId {
        let digest = Digest::of_parts(&["mcp call", &self.run_prefix, tool, key]);
        RunId::new(format!("{}{digest}", self.run_prefix))
    }

    /// Returns true if a run belongs to this client.
    pub(super) fn owns(&self, run: &str) -> bool {
        run.starts_with(&self.run_prefix)
    }

    /// Returns the name under which a call without an idempotency key is parked.
    pub(super) fn parking_name(&self, tool: &str, arguments: &str) -> String {
        Digest::of_parts(&["mcp parked", &self.run_prefix, tool, arguments]).to_string()
    }
}
