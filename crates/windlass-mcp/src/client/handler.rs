//! What a server says without being asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmcp::ClientHandler;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, Implementation,
    ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

use super::flight::Flights;

/// Shared by a connection and the service that reads from it.
#[derive(Clone, Default)]
pub(super) struct Handler {
    pub(super) flights: Arc<Flights>,
    /// How often the server has said that its tools have changed.
    pub(super) changes: Arc<AtomicU64>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().enable_tasks().build();
        ClientConfig::new(capabilities, Implementation::new("windlass", env!("CARGO_PKG_VERSION")))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.flights.progress(params);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let declined = || ElicitResult::new(ElicitationAction::Decline);
        match self.flights.question(request) {
            Some(answered) => Ok(answered.await.unwrap_or_else(|_| declined())),
            None => Ok(declined()),
        }
    }
}
