//! The handler of notifications and requests that a server sends to the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmcp::ClientHandler;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, Implementation,
    ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

use super::in_flight::InFlightCalls;

/// The client handler, shared by a connection and the rmcp service that reads from it.
#[derive(Clone, Default)]
pub(super) struct McpClientHandler {
    pub(super) in_flight: Arc<InFlightCalls>,
    /// Number of `tools/list_changed` notifications received.
    pub(super) list_changed_count: Arc<AtomicU64>,
}

impl ClientHandler for McpClientHandler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().enable_tasks().build();
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
        let declined = || ElicitResult::new(ElicitationAction::Decline);
        match self.in_flight.deliver_elicitation(request) {
            Some(answered) => Ok(answered.await.unwrap_or_else(|_| declined())),
            None => Ok(declined()),
        }
    }
}
