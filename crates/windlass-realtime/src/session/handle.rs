//! The application's handle to a running session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass::agent::Agent;
use windlass::core::{
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::{AgentName, CallPath, RunId},
    item::Role,
};
use windlass::store::Store;
use windlass::{core::decision::PendingCall, error::DecisionError};

use super::close::CloseReport;
use super::events::{EventFanout, RealtimeEvents};
use super::requests::{DisplayedCall, HistoryEdit, RequestedDecision, SessionRequest};
use crate::audio::AudioFormat;
use crate::event::HeldCall;
use crate::history::{RealtimeContentPart, RealtimeHistory};
use crate::id::ItemId;
use crate::machine::{RawMessageResult, RespondWhen};
use crate::metrics::SessionMetrics;
use crate::model::ResponseOptions;

/// A handle to a running session. Clones refer to the same session; dropping the last one closes it.
///
/// # Cancel safety
///
/// Dropping the future of a request does not withdraw a request that was already sent.
pub struct RealtimeSession<C = ()> {
    requests: mpsc::Sender<SessionRequest<C>>,
    pub(super) shared: Arc<SharedSession>,
    close_report: watch::Receiver<Option<Arc<CloseReport>>>,
    session_id: RunId,
}

/// State shared by the actor and its handles.
pub(super) struct SharedSession {
    pub(super) fanout: EventFanout,
    pub(super) close_token: CancellationToken,
    /// True if the session ends here only to be resumed.
    pub(super) is_detaching: AtomicBool,
    /// True if the model has the configuration on an open connection, as the events say.
    pub(super) is_connected: AtomicBool,
    pub(super) dropped_input: AtomicU64,
    pub(super) input_format: AudioFormat,
    pub(super) output_format: AudioFormat,
    /// The store of the runs that execute calls.
    pub(super) store: Option<Arc<dyn Store>>,
}

/// The session has ended; the request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct SessionClosed;

/// An error from a request that the session can refuse: a decision or an agent change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionRequestError {
    /// The session has ended; the request was not executed.
    #[error(transparent)]
    Closed(#[from] SessionClosed),
    /// The decision was not accepted; the call is unchanged.
    #[error(transparent)]
    Decision(#[from] DecisionError),
    /// The decision could not be stored; the call still waits, unless the store took the decision and did not say so in
    /// time.
    #[error("the decision about call `{call}` could not be stored: {message}")]
    DecisionNotStored {
        /// The call.
        call: CallPath,
        /// The cause.
        message: String,
    },
    /// The response was not requested: too many requests are waiting, or there is no connection for a response outside
    /// the conversation.
    #[error("the response was not requested; hint: wait for the responses that were requested before")]
    NotRequested,
    /// The message was not sent: there is no connection, and the session does not know what the message does.
    #[error("the message was not sent, because the connection is lost; hint: send it after `Reconnected`")]
    NotConnected,
    /// The agent change failed; the previous agent stays current.
    #[error("agent `{agent}` cannot become current: {message}; the previous agent stays current")]
    AgentChange {
        /// The agent that did not become current.
        agent: AgentName,
        /// The cause.
        message: String,
    },
}

impl<C: Send + Sync + 'static> RealtimeSession<C> {
    pub(super) fn new(
        requests: mpsc::Sender<SessionRequest<C>>,
        shared: Arc<SharedSession>,
        close_report: watch::Receiver<Option<Arc<CloseReport>>>,
        session_id: RunId,
    ) -> Self {
        Self { requests, shared, close_report, session_id }
    }

    /// Returns the session id.
    pub fn id(&self) -> &RunId {
        &self.session_id
    }

    /// Subscribes to the session's events. The first subscriber receives the events from the start, as far as
    /// its queue holds them.
    pub fn events(&self) -> RealtimeEvents {
        self.shared.fanout.subscribe()
    }

    /// Sends a text message of the user and requests a response.
    ///
    /// # Errors
    ///
    /// This and all other requests return [`SessionClosed`] if the session has ended; decisions and agent
    /// changes return it as [`SessionRequestError::Closed`].
    pub async fn send_text(&self, text: impl Into<String>) -> Result<ItemId, SessionClosed> {
        self.send_message(Role::User, vec![RealtimeContentPart::text(text)], RespondWhen::Now).await
    }

    /// Sends a message of text and images.
    pub async fn send_message(
        &self,
        role: Role,
        parts: Vec<RealtimeContentPart>,
        respond: RespondWhen,
    ) -> Result<ItemId, SessionClosed> {
        self.request_reply(|reply| SessionRequest::SendMessage { role, parts, respond, reply }).await
    }

    /// Sends audio of the user, in the configured format and in chunks of any length. Never waits: chunks that
    /// the session cannot accept are dropped and counted.
    pub fn send_audio(&self, audio: impl Into<Vec<u8>>) -> Result<(), SessionClosed> {
        match self.requests.try_send(SessionRequest::AppendAudio(audio.into())) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.shared.dropped_input.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SessionClosed),
        }
    }

    /// Commits the audio sent so far as a message of the user. Requests a response unless the server does that
    /// by itself.
    pub async fn commit_audio(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::CommitAudio).await
    }

    /// Discards the audio sent and not committed.
    pub async fn clear_audio(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::ClearAudio).await
    }

    /// Requests a response. If one is active, the next one follows it.
    pub async fn request_response(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::RequestResponse).await
    }

    /// Requests a response now, even if the provider reports that the user is speaking. If a response is active, the
    /// next one follows it.
    pub async fn force_response(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::ForceResponse).await
    }

    /// Requests a response with options that apply to it only. It waits for its turn; a response outside the
    /// conversation is requested at once and reported by [`crate::RealtimeEvent::SideResponseEnded`].
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::NotRequested`] if too many requests are waiting, or if there is no connection for
    /// a response outside the conversation.
    pub async fn request_response_with(&self, options: ResponseOptions) -> Result<(), SessionRequestError> {
        let options = Box::new(options);
        let is_queued =
            self.request_reply(|reply| SessionRequest::RequestResponseWith { options, reply }).await?;
        is_queued.then_some(()).ok_or(SessionRequestError::NotRequested)
    }

    /// Interrupts the model, and truncates its speech to the part the user heard.
    pub async fn interrupt(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::Interrupt).await
    }

    /// Reports the playback position of an item; see [`crate::PlaybackSource::Reported`].
    pub async fn report_played(
        &self,
        item: &ItemId,
        content_index: u32,
        played_ms: u64,
    ) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::ReportPlayed { item: item.clone(), content_index, played_ms }).await
    }

    /// Reports the number of bytes of an item that were played, in the configured output format; see
    /// [`crate::PlaybackSource::Reported`].
    pub async fn report_played_bytes(
        &self,
        item: &ItemId,
        content_index: u32,
        bytes: u64,
    ) -> Result<(), SessionClosed> {
        let item = item.clone();
        self.send_request(SessionRequest::ReportPlayedBytes { item, content_index, bytes }).await
    }

    /// Makes another agent current, and returns when the model has accepted its configuration.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::AgentChange`] if the agent cannot be resolved, or if the model rejects or
    /// does not acknowledge its configuration.
    pub async fn update_agent(&self, agent: Agent<C>) -> Result<(), SessionRequestError> {
        let name = agent.name().clone();
        self.request_reply(|reply| SessionRequest::UpdateAgent { agent: Box::new(agent), reply })
            .await?
            .map_err(|message| SessionRequestError::AgentChange { agent: name, message })
    }

    /// Returns the calls that wait for a person's decision.
    pub async fn pending_calls(&self) -> Result<Vec<PendingCall>, SessionClosed> {
        Ok(self.held_calls().await?.into_iter().map(|held| held.pending).collect())
    }

    /// Returns the calls that wait for a person's decision, each with the run that executes it.
    pub async fn held_calls(&self) -> Result<Vec<HeldCall>, SessionClosed> {
        self.request_reply(SessionRequest::HeldCalls).await
    }

    /// Returns the format of the audio that [`send_audio`](Self::send_audio) takes.
    pub fn input_format(&self) -> AudioFormat {
        self.shared.input_format
    }

    /// Returns the format of the audio of [`RealtimeEvent::Audio`](crate::RealtimeEvent::Audio).
    pub fn output_format(&self) -> AudioFormat {
        self.shared.output_format
    }

    /// Approves a call. The id of a call inside a nested agent is enough if no other waiting call has it. If the session has
    /// a store, the decision is durable, or part of a run that goes on at once, when this returns.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::Decision`] if the call does not wait for this decision, or if several calls have this
    /// id, and [`SessionRequestError::DecisionNotStored`] if the store cannot be written.
    pub async fn approve(&self, call: impl Into<CallPath>) -> Result<(), SessionRequestError> {
        self.decide(call, Decision::Approve, DecisionScope::ThisCall, None).await
    }

    /// Approves a call and every later call of the same tool by the same agent in this session, except calls
    /// that require approval every time.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::Decision`] as [`approve`](Self::approve) does, and if the call requires
    /// approval every time.
    pub async fn approve_always(&self, call: impl Into<CallPath>) -> Result<(), SessionRequestError> {
        self.decide(call, Decision::Approve, DecisionScope::ToolForRun, None).await
    }

    /// Rejects a call; the model receives the message.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::Decision`] if the call does not wait for this decision.
    pub async fn reject(
        &self,
        call: impl Into<CallPath>,
        message: Option<String>,
    ) -> Result<(), SessionRequestError> {
        self.decide(call, Decision::Reject { message }, DecisionScope::ThisCall, None).await
    }

    /// Makes any decision on a call, in the name of `decided_by`.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::Decision`] if the call does not wait for this decision.
    pub async fn decide(
        &self,
        call: impl Into<CallPath>,
        decision: Decision,
        scope: DecisionScope,
        decided_by: Option<String>,
    ) -> Result<(), SessionRequestError> {
        self.request_decision(call.into(), decision, scope, decided_by, None).await
    }

    /// Makes a decision on a call as it was displayed to a person: on this hold of this call and on no other.
    /// `displayed` is the digest of the displayed text, which the journal records.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::Decision`] if the call no longer waits, or is not the call that was displayed.
    pub async fn decide_displayed(
        &self,
        call: &HeldCall,
        decision: Decision,
        scope: DecisionScope,
        decided_by: Option<String>,
        displayed: Option<Digest>,
    ) -> Result<(), SessionRequestError> {
        let HeldCall { run, pending } = call;
        let display = DisplayedCall {
            run: run.clone(),
            attempt: pending.attempt,
            call_digest: pending.digest,
            displayed,
        };
        self.request_decision(pending.path.clone(), decision, scope, decided_by, Some(display)).await
    }

    async fn request_decision(
        &self,
        call: CallPath,
        decision: Decision,
        scope: DecisionScope,
        decided_by: Option<String>,
        display: Option<DisplayedCall>,
    ) -> Result<(), SessionRequestError> {
        let decision = Box::new(RequestedDecision { call, decision, scope, decided_by, display });
        self.request_reply(|reply| SessionRequest::Decide { decision, reply }).await?
    }

    /// Returns the conversation so far, up to the part the user heard. It has the secrets that the model has.
    pub async fn history(&self) -> Result<RealtimeHistory, SessionClosed> {
        self.request_reply(SessionRequest::History).await
    }

    /// Returns the conversation so far without secrets, as the events and the journal have it.
    pub async fn redacted_history(&self) -> Result<RealtimeHistory, SessionClosed> {
        self.request_reply(SessionRequest::RedactedHistory).await
    }

    /// Deletes an item from the conversation. Returns true if it existed.
    pub async fn delete_item(&self, item: &ItemId) -> Result<bool, SessionClosed> {
        let edit = HistoryEdit::Delete(item.clone());
        self.request_reply(|reply| SessionRequest::EditHistory { edit, reply })
            .await
            .map(|done| done.is_some())
    }

    /// Inserts a message into the conversation, after an item or at the end.
    pub async fn insert_item(
        &self,
        role: Role,
        parts: Vec<RealtimeContentPart>,
        after: Option<ItemId>,
    ) -> Result<Option<ItemId>, SessionClosed> {
        let edit = HistoryEdit::Insert { role, parts, after };
        self.request_reply(|reply| SessionRequest::EditHistory { edit, reply }).await
    }

    /// Replaces an item by a new message. Returns `None` if the item did not exist.
    pub async fn replace_item(
        &self,
        item: &ItemId,
        role: Role,
        parts: Vec<RealtimeContentPart>,
    ) -> Result<Option<ItemId>, SessionClosed> {
        let edit = HistoryEdit::Replace { item: item.clone(), role, parts };
        self.request_reply(|reply| SessionRequest::EditHistory { edit, reply }).await
    }

    /// Sends again the outputs that the model rejected. No call runs again.
    pub async fn resend_outputs(&self) -> Result<(), SessionClosed> {
        self.send_request(SessionRequest::ResendOutputs).await
    }

    /// Sends a message in the provider's own format. A `response.create` waits for its turn, so that one response is
    /// active at a time, and gets the session's `event_id`; the session does not track the effects of other messages.
    ///
    /// # Errors
    ///
    /// Returns [`SessionRequestError::NotRequested`] as [`request_response_with`](Self::request_response_with) does, and
    /// [`SessionRequestError::NotConnected`] for another message while the connection is lost.
    pub async fn send_raw(&self, raw: serde_json::Value) -> Result<(), SessionRequestError> {
        match self.request_reply(|reply| SessionRequest::SendRaw { raw, reply }).await? {
            RawMessageResult::Accepted => Ok(()),
            RawMessageResult::TooManyRequests => Err(SessionRequestError::NotRequested),
            RawMessageResult::NotConnected => Err(SessionRequestError::NotConnected),
        }
    }

    /// Returns the totals of the session so far.
    pub async fn metrics(&self) -> Result<SessionMetrics, SessionClosed> {
        self.request_reply(SessionRequest::Metrics).await
    }

    /// Closes the session: cancels calls, ends the subscribers' streams after their queued events, and releases
    /// all resources within a bounded time. Idempotent and callable from anywhere, tools of the session
    /// included; every caller gets the same report.
    pub async fn close(&self) -> Arc<CloseReport> {
        self.shared.close_token.cancel();
        self.wait_closed().await
    }

    /// Ends the session in this process, to be resumed later or elsewhere. Calls that wait for a person can
    /// still be decided, and running calls get the drain timeout to finish.
    pub async fn detach(&self) -> Arc<CloseReport> {
        if !self.shared.close_token.is_cancelled() {
            self.shared.is_detaching.store(true, Ordering::Relaxed);
        }
        self.close().await
    }

    /// Waits for the end of the session, for whatever reason, and returns the report.
    pub async fn wait_closed(&self) -> Arc<CloseReport> {
        let mut closed = self.close_report.clone();
        match closed.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            // The actor was dropped without a report: its runtime was shut down.
            Err(_) => Arc::default(),
        }
    }

    /// Returns true if the session is connected to its model: false from
    /// [`RealtimeEvent::Disconnected`](crate::RealtimeEvent::Disconnected) to
    /// [`RealtimeEvent::Reconnected`](crate::RealtimeEvent::Reconnected), and after the end.
    pub fn is_connected(&self) -> bool {
        self.shared.is_connected.load(Ordering::Relaxed) && !self.is_closed()
    }

    /// Returns true if the session has ended.
    pub fn is_closed(&self) -> bool {
        self.close_report.borrow().is_some()
    }

    async fn send_request(&self, request: SessionRequest<C>) -> Result<(), SessionClosed> {
        self.requests.send(request).await.map_err(|_| SessionClosed)
    }

    async fn request_reply<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> SessionRequest<C>,
    ) -> Result<T, SessionClosed> {
        let (reply, answer) = oneshot::channel();
        self.send_request(request(reply)).await?;
        answer.await.map_err(|_| SessionClosed)
    }
}

impl<C> Clone for RealtimeSession<C> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            shared: self.shared.clone(),
            close_report: self.close_report.clone(),
            session_id: self.session_id.clone(),
        }
    }
}

impl<C> std::fmt::Debug for RealtimeSession<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RealtimeSession({})", self.session_id)
    }
}
