//! A session that is under way, as the application holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass::agent::Agent;
use windlass::core::{CallPath, Decision, Reach, Role, RunId};
use windlass::{DecideError, Pending};

use super::close::CloseReport;
use super::events::{Fanout, LiveEvents};
use super::requests::{Edit, Request};
use crate::history::{History, Part};
use crate::id::ItemId;
use crate::machine::Answer;
use crate::metrics::SessionMetrics;

/// A session that is under way. Copies stand for the same one; when the last is dropped, the session is closed.
pub struct LiveSession<C = ()> {
    requests: mpsc::Sender<Request<C>>,
    shared: Arc<Shared>,
    closed: watch::Receiver<Option<Arc<CloseReport>>>,
    session: RunId,
}

/// What a session and its handles share.
pub(super) struct Shared {
    pub(super) fanout: Fanout,
    pub(super) closing: CancellationToken,
    /// It is left for later, and not ended.
    pub(super) leaving: AtomicBool,
    pub(super) dropped_input: AtomicU64,
}

/// The session has ended, so this was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct Ended;

impl<C: Send + Sync + 'static> LiveSession<C> {
    pub(super) fn new(
        requests: mpsc::Sender<Request<C>>,
        shared: Arc<Shared>,
        closed: watch::Receiver<Option<Arc<CloseReport>>>,
        session: RunId,
    ) -> Self {
        Self { requests, shared, closed, session }
    }

    /// The session's name.
    pub fn id(&self) -> &RunId {
        &self.session
    }

    /// Watches the session. The first watcher sees everything from the beginning, as far as it was kept.
    pub fn events(&self) -> LiveEvents {
        self.shared.fanout.watch()
    }

    /// The user writes something, and is answered.
    pub async fn say(&self, text: impl Into<String>) -> Result<ItemId, Ended> {
        self.message(Role::User, vec![Part::text(text)], Answer::Wanted).await
    }

    /// Somebody says something in writing, with pictures where there are any.
    pub async fn message(&self, role: Role, parts: Vec<Part>, answer: Answer) -> Result<ItemId, Ended> {
        self.ask(|reply| Request::Say { role, parts, answer, reply }).await
    }

    /// The user speaks: audio in the configured form, in pieces of any length. It never waits: a session that cannot
    /// keep up leaves pieces out, and counts them.
    pub fn hear(&self, audio: impl Into<Vec<u8>>) -> Result<(), Ended> {
        match self.requests.try_send(Request::Hear(audio.into())) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.shared.dropped_input.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended),
        }
    }

    /// The audio so far is a message of the user. It is answered, unless the server finds that out by itself.
    pub async fn commit_audio(&self) -> Result<(), Ended> {
        self.tell(Request::CommitAudio).await
    }

    /// The audio so far is forgotten.
    pub async fn clear_audio(&self) -> Result<(), Ended> {
        self.tell(Request::ClearAudio).await
    }

    /// The model is to answer. Where it answers already, it answers again afterwards.
    pub async fn respond(&self) -> Result<(), Ended> {
        self.tell(Request::Respond).await
    }

    /// The model is to stop, and is told what was heard of it.
    pub async fn interrupt(&self) -> Result<(), Ended> {
        self.tell(Request::Interrupt).await
    }

    /// So much of an item has been played: see [`crate::PlaybackSource::Reported`].
    pub async fn played(&self, item: &ItemId, content: u32, played_ms: u64) -> Result<(), Ended> {
        self.tell(Request::Played { item: item.clone(), content, played_ms }).await
    }

    /// Another agent is current from now on. An error says why not, and that the one before still is.
    pub async fn update_agent(&self, agent: Agent<C>) -> Result<Result<(), String>, Ended> {
        self.ask(|reply| Request::UpdateAgent { agent: Box::new(agent), reply }).await
    }

    /// The calls that wait for a person.
    pub async fn pending(&self) -> Result<Vec<Pending>, Ended> {
        self.ask(Request::Pending).await
    }

    /// The call may run.
    pub async fn approve(&self, call: impl Into<CallPath>) -> Result<Result<(), DecideError>, Ended> {
        self.decide(call, Decision::Approve, Reach::Call, None).await
    }

    /// The call may run, and so may every later call of the same tool by the same agent in this session.
    pub async fn approve_always(&self, call: impl Into<CallPath>) -> Result<Result<(), DecideError>, Ended> {
        self.decide(call, Decision::Approve, Reach::Always, None).await
    }

    /// The call may not run, and the model is told why.
    pub async fn reject(
        &self,
        call: impl Into<CallPath>,
        why: Option<String>,
    ) -> Result<Result<(), DecideError>, Ended> {
        self.decide(call, Decision::Reject { message: why }, Reach::Call, None).await
    }

    /// Makes any decision, in somebody's name.
    pub async fn decide(
        &self,
        call: impl Into<CallPath>,
        decision: Decision,
        reach: Reach,
        by: Option<String>,
    ) -> Result<Result<(), DecideError>, Ended> {
        let call = call.into();
        self.ask(|reply| Request::Decide { call, decision, reach, by, reply }).await
    }

    /// What was said so far, as far as it was heard.
    pub async fn history(&self) -> Result<History, Ended> {
        self.ask(Request::History).await
    }

    /// Takes an item out of the conversation. Says whether it was there.
    pub async fn delete_item(&self, item: &ItemId) -> Result<bool, Ended> {
        let edit = Edit::Delete(item.clone());
        self.ask(|reply| Request::Edit { edit, reply }).await.map(|done| done.is_some())
    }

    /// Puts a message into the conversation, behind an item or at the end.
    pub async fn insert_item(
        &self,
        role: Role,
        parts: Vec<Part>,
        after: Option<ItemId>,
    ) -> Result<Option<ItemId>, Ended> {
        let edit = Edit::Insert { role, parts, after };
        self.ask(|reply| Request::Edit { edit, reply }).await
    }

    /// Puts another message in place of an item. None where it was not there.
    pub async fn replace_item(
        &self,
        item: &ItemId,
        role: Role,
        parts: Vec<Part>,
    ) -> Result<Option<ItemId>, Ended> {
        let edit = Edit::Replace { item: item.clone(), role, parts };
        self.ask(|reply| Request::Edit { edit, reply }).await
    }

    /// Sends outputs again that the model did not take. No call runs again.
    pub async fn resend_outputs(&self) -> Result<(), Ended> {
        self.tell(Request::Resend).await
    }

    /// Sends something in the provider's own words. What comes of it is the caller's affair.
    pub async fn raw(&self, raw: serde_json::Value) -> Result<(), Ended> {
        self.tell(Request::Raw(raw)).await
    }

    /// How the session goes.
    pub async fn metrics(&self) -> Result<SessionMetrics, Ended> {
        self.ask(Request::Metrics).await
    }

    /// Ends the session: calls are cancelled, watchers get what is queued and are woken, and everything that the
    /// session holds is given back, within a bound. It may be called from anywhere and any number of times; everybody
    /// gets the same report.
    pub async fn close(&self) -> Arc<CloseReport> {
        self.shared.closing.cancel();
        self.closed().await
    }

    /// Ends the session here, to be resumed later or elsewhere: calls that wait for a person stay answerable, and those
    /// that run get a moment to finish.
    pub async fn leave(&self) -> Arc<CloseReport> {
        if !self.shared.closing.is_cancelled() {
            self.shared.leaving.store(true, Ordering::Relaxed);
        }
        self.close().await
    }

    /// Waits for the end of the session, whoever ends it.
    pub async fn closed(&self) -> Arc<CloseReport> {
        let mut closed = self.closed.clone();
        match closed.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            // The session's task is gone without a word: its runtime was stopped.
            Err(_) => Arc::default(),
        }
    }

    /// Whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    async fn tell(&self, request: Request<C>) -> Result<(), Ended> {
        self.requests.send(request).await.map_err(|_| Ended)
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request<C>) -> Result<T, Ended> {
        let (reply, answer) = oneshot::channel();
        self.tell(request(reply)).await?;
        answer.await.map_err(|_| Ended)
    }
}

impl<C> Clone for LiveSession<C> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            shared: self.shared.clone(),
            closed: self.closed.clone(),
            session: self.session.clone(),
        }
    }
}

impl<C> std::fmt::Debug for LiveSession<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveSession({})", self.session)
    }
}
