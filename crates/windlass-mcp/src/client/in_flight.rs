//! The calls in flight on a connection, and the progress and elicitations that the server sends for them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rmcp::model::{ElicitRequestParams, ElicitResult, ProgressNotificationParam, ProgressToken};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of messages queued for one call, and of early progress notifications; the excess is dropped.
const MAX_QUEUED_MESSAGES: usize = 64;

/// A message from the server about a call before its result.
pub(super) enum ServerMessage {
    Progress(ProgressNotificationParam),
    /// An elicitation; the server waits for its result.
    Elicitation(Box<ElicitRequestParams>, oneshot::Sender<ElicitResult>),
}

/// The registry of the calls in flight on one connection.
#[derive(Default)]
pub(super) struct InFlightCalls(Mutex<InFlightTable>);

#[derive(Default)]
struct InFlightTable {
    calls: Vec<(ProgressToken, mpsc::Sender<ServerMessage>)>,
    /// Progress that arrived before its call was registered, which a fast server can cause.
    early_progress: VecDeque<ProgressNotificationParam>,
}

impl InFlightCalls {
    fn lock(&self) -> std::sync::MutexGuard<'_, InFlightTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call and returns the receiver of its messages.
    pub(super) fn register(&self, token: ProgressToken) -> mpsc::Receiver<ServerMessage> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let mut inner = self.lock();
        let (mine, others) = std::mem::take(&mut inner.early_progress)
            .into_iter()
            .partition(|early| early.progress_token == token);
        inner.early_progress = others;
        let mine: VecDeque<ProgressNotificationParam> = mine;
        for early in mine {
            let _full = sender.try_send(ServerMessage::Progress(early));
        }
        inner.calls.push((token, sender));
        receiver
    }

    pub(super) fn unregister(&self, token: &ProgressToken) {
        self.lock().calls.retain(|(other, _)| other != token);
    }

    pub(super) fn deliver_progress(&self, progress: ProgressNotificationParam) {
        let mut inner = self.lock();
        match inner.calls.iter().find(|(token, _)| *token == progress.progress_token) {
            Some((_, sender)) => {
                let _full = sender.try_send(ServerMessage::Progress(progress));
            }
            None => {
                if inner.early_progress.len() == MAX_QUEUED_MESSAGES {
                    inner.early_progress.pop_front();
                }
                inner.early_progress.push_back(progress);
            }
        }
    }

    /// Delivers an elicitation to the only call in flight. Returns `None` if there are several calls, because
    /// legacy elicitations do not name their call and the answer could go to the wrong one.
    pub(super) fn deliver_elicitation(
        &self,
        asked: ElicitRequestParams,
    ) -> Option<oneshot::Receiver<ElicitResult>> {
        let inner = self.lock();
        let [(_, sender)] = inner.calls.as_slice() else { return None };
        let (answer, answered) = oneshot::channel();
        sender.try_send(ServerMessage::Elicitation(Box::new(asked), answer)).ok()?;
        Some(answered)
    }
}
