//! The connection to the model: attached, lost and restored.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::actor::SessionActor;
use super::outbox::CommandOutbox;
use crate::event::{AfterDisconnect, CloseReason, RealtimeEvent};
use crate::model::{
    ModelEventSource, RealtimeConnection, RealtimeConnectionError, RealtimeModel, RealtimeModelEvent,
    Retryability,
};
use crate::settings::SessionConfiguration;

/// The result of a reconnection: a new connection and the number of attempts, or the last error.
pub(super) type ReconnectResult = Result<(RealtimeConnection, u32), RealtimeConnectionError>;

/// A future that resolves to the result of a reconnection.
pub(super) type ReconnectFuture = BoxFuture<'static, (ReconnectResult, ReconnectHistory)>;

/// The connection attempts, newest last. Invariant: attempts count within a window, whatever succeeded in between, and
/// those since the last acknowledged configuration count however long ago they were.
#[derive(Clone, Debug, Default)]
pub(super) struct ReconnectHistory {
    attempts: VecDeque<Instant>,
    /// Number of attempts, the newest ones, since the last acknowledged configuration.
    unacknowledged: usize,
}

impl ReconnectHistory {
    fn record_attempt(&mut self, now: Instant) {
        self.attempts.push_back(now);
        self.unacknowledged += 1;
    }

    /// Records that the model acknowledged a configuration on the newest connection.
    fn record_acknowledged(&mut self) {
        self.unacknowledged = 0;
    }

    /// Forgets the attempts that no longer count, and returns the number of the others.
    fn count_attempts(&mut self, now: Instant, window: Duration) -> u32 {
        while self.attempts.len() > self.unacknowledged
            && self.attempts.front().is_some_and(|at| now.saturating_duration_since(*at) >= window)
        {
            self.attempts.pop_front();
        }
        u32::try_from(self.attempts.len()).unwrap_or(u32::MAX)
    }
}

/// An input from the connection.
pub(super) enum ConnectionInput {
    /// The model sent an event.
    Event(Box<RealtimeModelEvent>),
    /// The connection was lost.
    Lost(RealtimeConnectionError),
    /// The model closed the connection in an orderly way.
    ClosedByProvider,
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    pub(super) fn attach_connection(&mut self, connection: RealtimeConnection) {
        let told_items = self.machine.history().items().len();
        self.outbox = Some(CommandOutbox::new(connection.commands, self.config.audio_buffer, told_items));
        self.model_events = Some(connection.events);
    }

    pub(super) fn on_connection_input(&mut self, input: ConnectionInput) {
        match input {
            ConnectionInput::Event(event) => {
                let now = self.elapsed();
                self.machine.advance_to(now).on_model_event(*event);
            }
            ConnectionInput::Lost(lost) => self.on_connection_lost(lost),
            ConnectionInput::ClosedByProvider => self.close_reason = Some(CloseReason::ClosedByProvider),
        }
    }

    /// Handles the loss of the connection: starts to reconnect, or ends the session.
    pub(super) fn on_connection_lost(&mut self, lost: RealtimeConnectionError) {
        if self.outbox.is_none() && self.model_events.is_none() {
            return;
        }
        self.outbox = None;
        self.model_events = None;
        if self.machine.is_connection_acknowledged() {
            self.reconnect_history.record_acknowledged();
        }
        let now = self.elapsed();
        self.machine.advance_to(now).on_disconnected();
        let policy = self.config.reconnect_policy;
        let next_step = match lost.retryability {
            Retryability::Retryable if policy.max_attempts > 0 && self.channels.ready_reply.is_none() => {
                AfterDisconnect::Reconnects
            }
            Retryability::Retryable | Retryability::Permanent => AfterDisconnect::SessionEnds,
        };
        let reason = lost.message.clone();
        self.emit_event(RealtimeEvent::Disconnected { reason, next_step });
        if next_step == AfterDisconnect::SessionEnds {
            self.close_reason.get_or_insert(CloseReason::ConnectionLost(lost.message));
            return;
        }
        let (model, timeout) = (self.context.model.clone(), self.config.ready_timeout);
        let configuration = self.machine.configuration();
        let mut history = std::mem::take(&mut self.reconnect_history);
        let window = policy.effective_window();
        let reconnect = async move {
            let mut last_error = lost;
            let mut attempt = 0;
            loop {
                let count = history.count_attempts(Instant::now(), window);
                if count >= policy.max_attempts {
                    let RealtimeConnectionError { message, retryability } = last_error;
                    let message = format!("{message} (connection attempts: {count})");
                    return (Err(RealtimeConnectionError { message, retryability }), history);
                }
                tokio::time::sleep(policy.delay_after(count)).await;
                attempt += 1;
                history.record_attempt(Instant::now());
                match connect_with_timeout(&*model, &configuration, timeout).await {
                    Ok(connection) => return (Ok((connection, attempt)), history),
                    Err(error) if error.retryability == Retryability::Permanent => {
                        return (Err(error), history);
                    }
                    Err(error) => {
                        tracing::debug!(%error, attempt, "a reconnection attempt failed");
                        last_error = error;
                    }
                }
            }
        };
        self.reconnect_future = Some(reconnect.boxed());
    }

    pub(super) fn on_reconnect_finished(&mut self, result: ReconnectResult) {
        match result {
            Ok((connection, attempts)) => {
                self.attach_connection(connection);
                let now = self.elapsed();
                self.machine.advance_to(now).on_connected(Some(attempts));
            }
            Err(error) => {
                let reason = error.to_string();
                self.emit_event(RealtimeEvent::Disconnected {
                    reason: reason.clone(),
                    next_step: AfterDisconnect::SessionEnds,
                });
                self.close_reason.get_or_insert(CloseReason::ConnectionLost(reason));
            }
        }
    }
}

/// Connects to the model. A connection attempt that exceeds the timeout fails and may be retried.
pub(super) async fn connect_with_timeout(
    model: &dyn RealtimeModel,
    configuration: &SessionConfiguration,
    timeout: Duration,
) -> Result<RealtimeConnection, RealtimeConnectionError> {
    let connected = tokio::time::timeout(timeout, model.connect(configuration)).await;
    connected.unwrap_or_else(|_| Err(RealtimeConnectionError::new("the connection attempt timed out")))
}

/// Waits for a write failure; `None` if there is no connection.
pub(super) async fn wait_write_failure(outbox: &mut Option<CommandOutbox>) -> Option<ConnectionInput> {
    let lost = &mut outbox.as_mut()?.connection_lost;
    // The writer ends without a report only if it is closed by the session.
    let ended = |_| RealtimeConnectionError::new("the connection's writer task ended");
    Some(ConnectionInput::Lost(lost.await.unwrap_or_else(ended)))
}

/// Waits for the next event of the model; `None` if there is no connection.
pub(super) async fn next_model_event(
    events: &mut Option<Box<dyn ModelEventSource>>,
) -> Option<ConnectionInput> {
    Some(match events.as_mut()?.next().await {
        Some(Ok(event)) => ConnectionInput::Event(Box::new(event)),
        Some(Err(lost)) => ConnectionInput::Lost(lost),
        None => ConnectionInput::ClosedByProvider,
    })
}

/// Waits for the result of the reconnection; `None` if none is in progress. Keeps the history of attempts.
pub(super) async fn wait_reconnect(
    reconnect: &mut Option<ReconnectFuture>,
    kept_history: &mut ReconnectHistory,
) -> Option<ReconnectResult> {
    let (result, history) = reconnect.as_mut()?.await;
    *reconnect = None;
    *kept_history = history;
    Some(result)
}
