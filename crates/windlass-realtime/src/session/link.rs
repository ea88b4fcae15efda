//! The connection: plugged in, lost, and made again.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::actor::Actor;
use super::outbox::Outbox;
use crate::event::{CloseReason, LiveEvent, Retrying};
use crate::model::{ConnectError, Connection, Lost, ModelEvent, ModelEvents, Retry};

/// A connection that is being made, and after how many tries it was.
pub(super) type Reconnecting = BoxFuture<'static, Result<(Connection, u32), ConnectError>>;

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn plug_in(&mut self, connection: Connection) {
        self.outbox = Some(Outbox::new(connection.commands, self.plan.audio_buffer));
        self.events = Some(connection.events);
    }

    /// The connection is gone: it is made again, or the session ends.
    pub(super) fn lost(&mut self, lost: Lost) {
        self.outbox = None;
        self.events = None;
        let now = self.now();
        self.machine.at(now).disconnected();
        let policy = self.plan.reconnect;
        let retrying = match lost.retry {
            Retry::MayHelp if policy.attempts > 0 && self.ends.ready.is_none() => Retrying::Yes,
            Retry::MayHelp | Retry::IsOfNoUse => Retrying::No,
        };
        self.emit(LiveEvent::Disconnected { reason: lost.message.clone(), retrying });
        if retrying == Retrying::No {
            self.end.get_or_insert(CloseReason::Lost(lost.message));
            return;
        }
        let (model, patience) = (self.setting.model.clone(), self.plan.patience);
        let first = self.machine.configuration();
        let trying = async move {
            let mut attempt = 0;
            loop {
                let wait = policy.base.saturating_mul(1 << attempt.min(16)).min(policy.longest);
                tokio::time::sleep(wait).await;
                attempt += 1;
                let tried = tokio::time::timeout(patience, model.connect(&first)).await;
                match tried.unwrap_or_else(|_| Err(ConnectError::new("it took too long to connect"))) {
                    Ok(connection) => return Ok((connection, attempt)),
                    Err(error) if attempt >= policy.attempts || error.retry == Retry::IsOfNoUse => {
                        return Err(error);
                    }
                    Err(error) => tracing::debug!(%error, attempt, "no connection yet"),
                }
            }
        };
        self.reconnecting = Some(trying.boxed());
    }

    pub(super) fn reconnected(&mut self, result: Result<(Connection, u32), ConnectError>) {
        self.reconnecting = None;
        match result {
            Ok((connection, attempts)) => {
                self.plug_in(connection);
                let now = self.now();
                self.machine.at(now).connected();
                self.machine.metrics_mut().reconnects += 1;
                self.emit(LiveEvent::Reconnected { attempts });
            }
            Err(error) => {
                let reason = error.to_string();
                self.emit(LiveEvent::Disconnected { reason: reason.clone(), retrying: Retrying::No });
                self.end.get_or_insert(CloseReason::Lost(reason));
            }
        }
    }
}

/// Why nothing can be written any more, once it is so.
pub(super) async fn written(outbox: &mut Option<Outbox>) -> Option<Lost> {
    let lost = &mut outbox.as_mut()?.lost;
    // The writer ends without a word only when it is told to.
    Some(lost.await.unwrap_or_else(|_| Lost::new("the writer of the connection is gone")))
}

/// What the model says next.
pub(super) async fn heard(
    events: &mut Option<Box<dyn ModelEvents>>,
) -> Option<Option<Result<ModelEvent, Lost>>> {
    Some(events.as_mut()?.next().await)
}

/// What came of connecting again.
pub(super) async fn tried(
    trying: &mut Option<Reconnecting>,
) -> Option<Result<(Connection, u32), ConnectError>> {
    Some(trying.as_mut()?.await)
}
