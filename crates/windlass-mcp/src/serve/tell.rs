//! What a run tells while it goes on, as a client hears it: progress where it asked for that, and log messages.

// Logging is on its way out of the protocol, and clients of both lives still use it.
#![expect(deprecated, reason = "the earlier life of the protocol has logging")]

use rmcp::model::{
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken, ProtocolVersion,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use serde_json::Value;
use windlass::EventKind;

/// Under which key a client of the later life says what it wants to hear.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

pub(super) struct Teller {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    /// The least that a client wants to hear; it hears nothing where there is none.
    level: Option<LoggingLevel>,
    logger: String,
    told: Option<f64>,
}

impl Teller {
    /// For one request. A client of the earlier life says once for all its requests what it wants to hear.
    pub(super) fn new(
        context: &RequestContext<RoleServer>,
        for_session: Option<LoggingLevel>,
        logger: &str,
    ) -> Self {
        let level = if is_modern(context) {
            let asked = context.meta.get(LOG_LEVEL).cloned();
            asked.and_then(|level| serde_json::from_value(level).ok())
        } else {
            Some(for_session.unwrap_or(LoggingLevel::Info))
        };
        Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            level,
            logger: logger.to_owned(),
            told: None,
        }
    }

    /// Passes an event on, and gives its words.
    pub(super) async fn tell(&mut self, event: EventKind) -> Option<String> {
        match event {
            EventKind::Progress { progress, .. } => {
                let words = progress.get("message").and_then(Value::as_str).or_else(|| progress.as_str());
                let words = words.map(str::to_owned);
                match self.token.clone() {
                    Some(token) => self.progress(token, &progress, words.clone()).await,
                    None => {
                        self.log(LoggingLevel::Info, words.as_deref().map_or(progress, Value::from)).await
                    }
                }
                words
            }
            EventKind::Warning { .. } => {
                // Its words are the operator's.
                self.log(LoggingLevel::Warning, "Something went wrong that the call survives.".into()).await;
                None
            }
            _ => None,
        }
    }

    /// What a tool says of its progress may be anything, and what is sent must grow.
    async fn progress(&mut self, token: ProgressToken, progress: &Value, message: Option<String>) {
        let number = |key: &str| progress.get(key).and_then(Value::as_f64);
        let next = self.told.map_or(0.0, |told| told + 1.0);
        let told = number("progress").or_else(|| progress.as_f64()).unwrap_or(next);
        let told = self.told.map_or(told, |before| before.max(told));
        self.told = Some(told);
        let mut params = ProgressNotificationParam::new(token, told);
        params.total = number("total");
        params.message = message;
        let _gone = self.peer.notify_progress(params).await;
    }

    async fn log(&self, level: LoggingLevel, data: Value) {
        if self.level.is_some_and(|least| level as u8 >= least as u8) {
            let message = LoggingMessageNotificationParam::new(level, data).with_logger(&*self.logger);
            let _gone = self.peer.notify_logging_message(message).await;
        }
    }
}

/// Whether a request is of the later life of the protocol.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}
