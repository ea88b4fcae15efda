//! Notifications to a client about a running call: progress, if the client sent a progress token, and log
//! messages.

// MCP deprecates logging, but clients of both protocol eras still use it.
#![expect(deprecated, reason = "the legacy protocol has logging")]

use rmcp::model::{
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken, ProtocolVersion,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use serde_json::Value;
use windlass::event::RunEventKind;

/// The `_meta` key of the minimum log level in the modern protocol.
const LOG_LEVEL_META_KEY: &str = "io.modelcontextprotocol/logLevel";

/// A notifier that forwards the events of one call to the client.
#[derive(Clone)]
pub(super) struct ClientNotifier {
    peer: Peer<RoleServer>,
    progress_token: Option<ProgressToken>,
    /// The minimum level of log messages; none are sent if absent.
    min_level: Option<LoggingLevel>,
    logger: String,
    last_progress: Option<f64>,
}

impl ClientNotifier {
    /// Creates the notifier of one request. A legacy client sets the log level once per session, a modern one
    /// in each request.
    pub(super) fn new(
        context: &RequestContext<RoleServer>,
        for_session: Option<LoggingLevel>,
        logger: &str,
    ) -> Self {
        let level = if is_modern(context) {
            let asked = context.meta.get(LOG_LEVEL_META_KEY).cloned();
            asked.and_then(|level| serde_json::from_value(level).ok())
        } else {
            Some(for_session.unwrap_or(LoggingLevel::Info))
        };
        Self {
            peer: context.peer.clone(),
            progress_token: context.meta.get_progress_token(),
            min_level: level,
            logger: logger.to_owned(),
            last_progress: None,
        }
    }

    /// Forwards an event to the client and returns its progress message, if any.
    pub(super) async fn forward_event(&mut self, event: RunEventKind) -> Option<String> {
        match event {
            RunEventKind::CallProgress { progress, .. } => {
                let words = progress.get("message").and_then(Value::as_str).or_else(|| progress.as_str());
                let words = words.map(str::to_owned);
                match self.progress_token.clone() {
                    Some(token) => self.send_progress(token, &progress, words.clone()).await,
                    None => {
                        self.send_log(LoggingLevel::Info, words.as_deref().map_or(progress, Value::from))
                            .await
                    }
                }
                words
            }
            RunEventKind::Warning { .. } => {
                // The warning's text is for the operator, not for the client.
                self.send_log(LoggingLevel::Warning, "Something went wrong that the call survives.".into())
                    .await;
                None
            }
            _ => None,
        }
    }

    /// Sends a progress notification. MCP requires growing values, so a value below the last one is raised to it.
    async fn send_progress(&mut self, token: ProgressToken, progress: &Value, message: Option<String>) {
        let number = |key: &str| progress.get(key).and_then(Value::as_f64);
        let next = self.last_progress.map_or(0.0, |told| told + 1.0);
        let told = number("progress").or_else(|| progress.as_f64()).unwrap_or(next);
        let told = self.last_progress.map_or(told, |before| before.max(told));
        self.last_progress = Some(told);
        let mut params = ProgressNotificationParam::new(token, told);
        params.total = number("total");
        params.message = message;
        let _gone = self.peer.notify_progress(params).await;
    }

    async fn send_log(&self, level: LoggingLevel, data: Value) {
        if self.min_level.is_some_and(|least| level as u8 >= least as u8) {
            let message = LoggingMessageNotificationParam::new(level, data).with_logger(&*self.logger);
            let _gone = self.peer.notify_logging_message(message).await;
        }
    }
}

/// Returns true if a request uses the modern protocol.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}
