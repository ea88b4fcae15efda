//! The calls in flight on a connection, and the progress and elicitations that the server sends for them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rmcp::model::{ElicitRequestParams, ElicitResult, ProgressNotificationParam, ProgressToken};
use tokio::sync::{Notify, mpsc, oneshot};

/// Maximum number of messages queued for one call, and of early progress notifications; the excess is dropped.
const MAX_QUEUED_MESSAGES: usize = 64;

/// A message from the server about a call before its result.
pub(super) enum ServerMessage {
    Progress(ProgressNotificationParam),
    /// An elicitation of this call; the server waits for its result.
    Elicitation(Box<ElicitRequestParams>, oneshot::Sender<ElicitResult>),
}

/// The registry of the calls in flight on one connection.
#[derive(Default)]
pub(super) struct InFlightCalls {
    table: Mutex<InFlightTable>,
    /// Notified whenever a call ends or a new elicitation waits.
    changed: Notify,
}

#[derive(Default)]
struct InFlightTable {
    calls: Vec<InFlightCall>,
    /// Number of elicitations that wait to be assigned to a call.
    waiting_elicitations: usize,
    /// Progress that arrived before its call was registered, which a fast server can cause.
    early_progress: VecDeque<ProgressNotificationParam>,
}

struct InFlightCall {
    token: ProgressToken,
    sender: mpsc::Sender<ServerMessage>,
    /// True if an elicitation was assigned to this call and its result is not known yet.
    has_elicitation: bool,
}

impl InFlightCalls {
    fn lock(&self) -> std::sync::MutexGuard<'_, InFlightTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
        inner.calls.push(InFlightCall { token, sender, has_elicitation: false });
        receiver
    }

    pub(super) fn unregister(&self, token: &ProgressToken) {
        self.lock().calls.retain(|call| call.token != *token);
        self.changed.notify_waiters();
    }

    pub(super) fn deliver_progress(&self, progress: ProgressNotificationParam) {
        let mut inner = self.lock();
        match inner.calls.iter().find(|call| call.token == progress.progress_token) {
            Some(call) => {
                let _full = call.sender.try_send(ServerMessage::Progress(progress));
            }
            None => {
                if inner.early_progress.len() == MAX_QUEUED_MESSAGES {
                    inner.early_progress.pop_front();
                }
                inner.early_progress.push_back(progress);
            }
        }
    }

    /// Returns the result of an elicitation, or `None` if no call is in flight that could have caused it.
    ///
    /// Legacy elicitations do not name their call. With several calls in flight, the elicitation waits until they are
    /// no more than the elicitations: a call that waits for an answer does not end, so the calls that remain are those
    /// that asked, and each of them gets one question.
    pub(super) async fn deliver_elicitation(&self, asked: ElicitRequestParams) -> Option<ElicitResult> {
        let waiting = WaitingElicitation::new(self);
        loop {
            let changed = self.changed.notified();
            match self.assign(&asked) {
                Assignment::Assigned(answered) => {
                    drop(waiting);
                    return answered.await.ok();
                }
                Assignment::NoCall => return None,
                Assignment::Ambiguous => changed.await,
            }
        }
    }

    fn assign(&self, asked: &ElicitRequestParams) -> Assignment {
        let mut inner = self.lock();
        let free = inner.calls.iter().filter(|call| !call.has_elicitation).count();
        if free > inner.waiting_elicitations {
            return Assignment::Ambiguous;
        }
        let Some(call) = inner.calls.iter_mut().find(|call| !call.has_elicitation) else {
            return Assignment::NoCall;
        };
        let (answer, answered) = oneshot::channel();
        match call.sender.try_send(ServerMessage::Elicitation(Box::new(asked.clone()), answer)) {
            Ok(()) => {
                call.has_elicitation = true;
                Assignment::Assigned(answered)
            }
            Err(_) => Assignment::NoCall,
        }
    }

    /// Marks the elicitation of a call as answered, so that the call can receive another.
    pub(super) fn end_elicitation(&self, token: &ProgressToken) {
        if let Some(call) = self.lock().calls.iter_mut().find(|call| call.token == *token) {
            call.has_elicitation = false;
        }
    }
}

/// The outcome of assigning an elicitation to a call.
enum Assignment {
    Assigned(oneshot::Receiver<ElicitResult>),
    /// Several calls may have caused the elicitation.
    Ambiguous,
    NoCall,
}

/// A guard that counts a waiting elicitation.
struct WaitingElicitation<'a>(&'a InFlightCalls);

impl<'a> WaitingElicitation<'a> {
    fn new(calls: &'a InFlightCalls) -> Self {
        calls.lock().waiting_elicitations += 1;
        calls.changed.notify_waiters();
        Self(calls)
    }
}

impl Drop for WaitingElicitation<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting_elicitations -= 1;
        self.0.changed.notify_waiters();
    }
}
