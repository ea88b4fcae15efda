//! The handler of notifications and requests that a server sends to the client.

// MCP deprecates roots and sampling, but servers of both protocol eras still use them.
#![expect(deprecated, reason = "servers of both eras use roots and sampling")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmcp::ClientHandler;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationCapability, FormElicitationCapability, Implementation,
    ListRootsResult, ProgressNotificationParam, UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

use super::in_flight::InFlightCalls;
use super::server_requests::ServerRequestPolicy;

/// The client handler, shared by a connection and the rmcp service that reads from it.
#[derive(Clone)]
pub(super) struct McpClientHandler {
    pub(super) server: Arc<str>,
    pub(super) requests: ServerRequestPolicy,
    pub(super) in_flight: Arc<InFlightCalls>,
    /// Number of `tools/list_changed` notifications received.
    pub(super) list_changed_count: Arc<AtomicU64>,
}

impl McpClientHandler {
    pub(super) fn new(server: Arc<str>, requests: ServerRequestPolicy) -> Self {
        Self { server, requests, in_flight: Arc::default(), list_changed_count: Arc::default() }
    }
}

impl ClientHandler for McpClientHandler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::builder().enable_elicitation().enable_tasks().build();
        capabilities.elicitation = Some(
            ElicitationCapability::new()
                .with_form(FormElicitationCapability::default())
                .with_url(UrlElicitationCapability::default()),
        );
        self.requests.add_capabilities(&mut capabilities);
        ClientConfig::new(capabilities, Implementation::new("windlass", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.in_flight.deliver_progress(params);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.list_changed_count.fetch_add(1, Ordering::Relaxed);
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let answered = self.in_flight.deliver_elicitation(request).await;
        Ok(answered.unwrap_or_else(|| ElicitResult::new(ElicitationAction::Cancel)))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(self.requests.list_roots())
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.requests.create_message(&self.server, params).await
    }
}
