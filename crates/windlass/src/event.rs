//! Events of a run. They are derived from the records of its journal; a live run interleaves them with deltas of the
//! model's response, progress and warnings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use serde_json::Value;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use windlass_core::{
    budget::{OnBudgetReached, ReachedBudget},
    decision::PendingCall,
    id::{AgentName, CallId},
    item::OutputContent,
    journal::{CallStatus, CompactionReason},
    run::RunItem,
    tool::ToolKey,
};

use crate::hook::{CallInfo, ModelResponseInfo};
use crate::store::{DeltaRelay, RelayedResponse};

pub use crate::observe::EventReplay;

/// An event of a live run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEvent {
    /// Sequence number of the record that the event stands for; for deltas, progress and warnings, which have no record,
    /// that of the last record whose events were delivered. It never decreases, except for repeated events.
    pub seq: u64,
    /// Calls that lead to the nested agent of the event; empty for the outer run.
    pub path: Vec<CallId>,
    /// True if an earlier process may have delivered this event. It had started the call before it ended, or it ended
    /// without notice before it could be certain that the event was delivered; then `seq` is that of the first delivery.
    pub is_repeated: bool,
    /// The kind of event and its data.
    pub kind: RunEventKind,
}

/// The kind of a [`RunEvent`] and its data.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunEventKind {
    /// An agent became current: at the start, after a resume, or after a handoff.
    AgentUpdated {
        /// The agent.
        agent: AgentName,
    },
    /// A delta of the response's text.
    TextDelta {
        /// The delta.
        delta: String,
    },
    /// A delta of the reasoning that may be shown.
    ReasoningDelta {
        /// The delta.
        delta: String,
    },
    /// A delta of a call's arguments.
    ArgumentsDelta {
        /// Id of the call.
        call: CallId,
        /// The delta.
        delta: String,
    },
    /// The run produced an item. Calls and messages come as the model writes them; outputs come in the model's
    /// order, when the turn has settled or paused.
    Item(RunItem),
    /// A call waits for a person.
    CallHeld(Box<PendingCall>),
    /// The body of a call starts.
    CallStarted {
        /// Id of the call.
        call: CallId,
        /// The tool.
        tool: ToolKey,
    },
    /// The body of a call reported progress.
    CallProgress {
        /// Id of the call.
        call: CallId,
        /// The reported value.
        progress: Value,
    },
    /// A call has its output. There is exactly one such event for every call that started, in the order of
    /// completion. A call that had not started when the run ended may have none.
    CallSettled {
        /// Id of the call.
        call: CallId,
        /// The status of the call.
        status: CallStatus,
        /// The output that the model sees.
        output: OutputContent,
        /// The attempts, times and guardrail verdicts of the call.
        info: Arc<CallInfo>,
    },
    /// The model responded. The items of the response follow.
    ModelResponded(Arc<ModelResponseInfo>),
    /// The history was compacted: later model requests have a shorter conversation.
    HistoryCompacted {
        /// The reason of the compaction.
        reason: CompactionReason,
        /// Estimated tokens of the request before.
        tokens_before: u64,
        /// Estimated tokens of the request after.
        tokens_after: u64,
    },
    /// A budget does not allow the next model request. If a person is asked for more, [`RunEventKind::CallHeld`] follows.
    BudgetReached {
        /// The budget.
        budget: ReachedBudget,
        /// The declared reaction.
        reaction: OnBudgetReached,
    },
    /// A model request failed, and the run waits for its next attempt.
    ModelRetryScheduled {
        /// Description of the failure.
        error: String,
        /// Delay before the next attempt.
        delay: Duration,
    },
    /// The deltas of the response that the model was writing are void: another model is asked for the response, or, in an
    /// [`EventFeed`](crate::store::EventFeed), its request failed or its driver was lost. For a request that failed, a live
    /// run has [`RunEventKind::ModelRetryScheduled`].
    DeltasDiscarded,
    /// A problem occurred that does not end the run.
    Warning {
        /// Description of the problem.
        message: String,
    },
}

/// A future that is pending only while the watcher's buffer is full.
pub(crate) type EmitFuture<'a> = OptionFuture<BoxFuture<'a, ()>>;

/// The sending side of a run's events. Without a watcher, events are dropped.
#[derive(Clone, Debug)]
pub(crate) struct EventEmitter {
    sender: Option<EventSender>,
    /// Sequence number of the last record whose events were delivered.
    seq: Arc<AtomicU64>,
    path: Arc<[CallId]>,
    /// The way to followers in other processes, if the run may have any.
    relay: Option<Arc<DeltaRelay>>,
    /// The response that the model is writing, if somebody follows the run.
    relayed: Option<Arc<RelayedResponse>>,
}

/// The channel to a watcher, with the number of sent events.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    channel: mpsc::Sender<RunEvent>,
    sent_count: Arc<AtomicU64>,
    progress: Arc<WatcherProgress>,
}

/// The receiving side of a run's events.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    channel: mpsc::Receiver<RunEvent>,
    received_count: u64,
    progress: Arc<WatcherProgress>,
}

/// The number of events that a watcher has handled.
#[derive(Debug, Default)]
struct WatcherProgress {
    handled_count: AtomicU64,
    advanced: Notify,
}

impl WatcherProgress {
    fn advance_to(&self, taken: u64) {
        if self.handled_count.swap(taken, Ordering::Relaxed) != taken {
            self.advanced.notify_waiters();
        }
    }
}

/// Creates the channel between a run and its watcher. `buffer` is its capacity.
pub(crate) fn event_channel(buffer: usize) -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::channel(buffer);
    let pace: Arc<WatcherProgress> = Arc::default();
    let watched = EventSender { channel: sender, sent_count: Arc::default(), progress: pace.clone() };
    (watched, EventReceiver { channel: receiver, received_count: 0, progress: pace })
}

impl EventReceiver {
    /// Polls the next event. The poll marks all earlier events as handled.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RunEvent>> {
        self.progress.advance_to(self.received_count);
        let next = self.channel.poll_recv(cx);
        if matches!(next, Poll::Ready(Some(_))) {
            self.received_count += 1;
        }
        next
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        // Releases emitters that wait for this watcher.
        self.progress.advance_to(u64::MAX);
    }
}

impl EventEmitter {
    /// Creates the emitter of a run whose last record so far has the number `seq`.
    pub(crate) fn new(watcher: Option<EventSender>, seq: u64) -> Self {
        let seq = Arc::new(AtomicU64::new(seq));
        Self { sender: watcher, seq, path: [].into(), relay: None, relayed: None }
    }

    /// Sets the way to followers in other processes.
    pub(crate) fn with_relay(self, relay: Option<Arc<DeltaRelay>>) -> Self {
        Self { relay, ..self }
    }

    /// Returns the emitter of one model request. Its deltas reach followers in other processes, if there are any now. `base`
    /// is the sequence number of the last record.
    pub(crate) async fn for_model_request(&self, base: impl FnOnce() -> u64) -> Self {
        let relayed = match &self.relay {
            Some(relay) => relay.begin_response(&self.path, base()).boxed().await,
            None => None,
        };
        Self { relayed, ..self.clone() }
    }

    /// Returns an emitter for a nested agent, with the same watcher.
    pub(crate) fn for_nested_agent(&self, path: &[CallId]) -> Self {
        Self { path: path.into(), relayed: None, ..self.clone() }
    }

    /// Returns an emitter without a watcher.
    pub(crate) fn disabled() -> Self {
        Self::new(None, 0)
    }

    /// True if a watcher is connected, or somebody follows the model request of this emitter.
    pub(crate) fn is_watched(&self) -> bool {
        self.relayed.is_some() || self.sender.as_ref().is_some_and(|watcher| !watcher.channel.is_closed())
    }

    /// Sends an event. The returned future applies backpressure: it is pending while the watcher's buffer is
    /// full.
    pub(crate) fn emit(&self, kind: RunEventKind) -> EmitFuture<'_> {
        if let Some(relayed) = &self.relayed {
            relayed.push(&kind);
        }
        let Some(watcher) = &self.sender else { return None.into() };
        let waiting = match watcher.channel.try_send(self.build_event(kind)) {
            Ok(()) => {
                watcher.sent_count.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(TrySendError::Closed(_)) => None,
            Err(TrySendError::Full(event)) => Some(
                async move {
                    if watcher.channel.send(event).await.is_ok() {
                        watcher.sent_count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                .boxed(),
            ),
        };
        waiting.into()
    }

    /// Waits until the watcher's buffer has room for an event. Returns `None` if there is no watcher.
    pub(crate) async fn reserve(&self) -> Option<EventRoom<'_>> {
        let watcher = self.sender.as_ref()?;
        let permit = match watcher.channel.try_reserve() {
            Ok(permit) => permit,
            Err(TrySendError::Full(())) => watcher.channel.reserve().await.ok()?,
            Err(TrySendError::Closed(())) => return None,
        };
        Some(EventRoom { permit, emitter: self, watcher })
    }

    /// Waits until the watcher has handled all sent events or has disconnected. A watcher that cancels the run
    /// on an event thereby prevents the calls after it from starting.
    pub(crate) async fn wait_until_handled(&self) {
        if let Some(watcher) = &self.sender {
            let sent = watcher.sent_count.load(Ordering::Relaxed);
            loop {
                let moved = watcher.progress.advanced.notified();
                if watcher.progress.handled_count.load(Ordering::Relaxed) >= sent {
                    return;
                }
                moved.await;
            }
        }
    }

    fn build_event(&self, kind: RunEventKind) -> RunEvent {
        let seq = self.seq.load(Ordering::Relaxed);
        RunEvent { seq, path: self.path.to_vec(), is_repeated: false, kind }
    }
}

/// The room for one event in a watcher's buffer.
pub(crate) struct EventRoom<'a> {
    permit: mpsc::Permit<'a, RunEvent>,
    emitter: &'a EventEmitter,
    watcher: &'a EventSender,
}

impl EventRoom<'_> {
    /// Sends an event that is derived from a record.
    pub(crate) fn send(self, event: RunEvent) {
        self.emitter.seq.fetch_max(event.seq, Ordering::Relaxed);
        self.watcher.sent_count.fetch_add(1, Ordering::Relaxed);
        self.permit.send(event);
    }
}
