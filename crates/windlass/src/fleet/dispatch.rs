//! Dispatch by an engine: it says when a worker drives which run. The queue decides if the run may be driven.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use windlass_core::id::{AgentName, RunId, Timestamp};

use super::queue::{AgentOffer, QueuedRun, QueuedState, ReadyRunsQuery, RunQueue};
use crate::error::StoreError;

/// Delay of the next attempt for a run that another worker has.
const TAKEN_DELAY: Duration = Duration::from_secs(1);
/// Delay of the next attempt for a run that this build has declined: a worker of another build may get it then.
const DECLINED_DELAY: Duration = Duration::from_secs(10);
/// Time between two looks at the ready runs that an engine may have forgotten.
const RELAY_INTERVAL: Duration = Duration::from_secs(2);
/// Time before a run that is still ready is relayed again.
const RELAY_AGAIN: Duration = Duration::from_secs(60);
/// Maximum number of ready runs in one look.
const MAX_RELAYED: u32 = 256;
/// Maximum number of woken runs that the relay leaves out of its looks. Beyond it, those woken first are looked at again.
const MAX_WOKEN: usize = 16_384;
/// Maximum number of requests that wait for a place in the worker, and as many again that it has not seen yet.
const MAX_WAITING_REQUESTS: usize = 1_024;

/// Wakes runs: says that a run may be driven, now or from a time on.
///
/// The row of the run in its queue decides if it is driven. So a needless wake-up has no effect, and a lost one only delays
/// the run until a worker relays it: see [`Worker::into_dispatched`](super::Worker::into_dispatched).
///
/// Every [`RunQueue`] implements it: its workers find ready runs and wake-up times by themselves.
pub trait RunDispatch: Send + Sync {
    /// Wakes a submitted run. Without a time, the run may be driven now.
    ///
    /// # Errors
    ///
    /// Returns an error if the run was not submitted, or the engine does not answer.
    fn wake_run<'a>(
        &'a self,
        run: &'a RunId,
        at: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<(), DispatchError>>;
}

impl<Q: RunQueue + ?Sized> RunDispatch for Q {
    fn wake_run<'a>(
        &'a self,
        run: &'a RunId,
        _at: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<(), DispatchError>> {
        async move {
            match self.load_queued_run(run).await? {
                Some(_) => Ok(()),
                None => Err(DispatchError::NotSubmitted { run: run.clone() }),
            }
        }
        .boxed()
    }
}

/// An error of dispatch. The run is as it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The run was not submitted to the queue.
    #[error("run `{run}` was not submitted")]
    NotSubmitted {
        /// The run.
        run: RunId,
    },
    /// Too many requests wait for the worker. Another worker may drive the run, or the same one later.
    #[error("the worker is busy")]
    WorkerBusy,
    /// The worker drains or has stopped. Another worker may drive the run.
    #[error("the worker takes no more runs")]
    WorkerStopped,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine failed or does not answer.
    #[error("the engine failed: {0}")]
    Engine(String),
}

/// The time at which an engine wakes a run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NextWake {
    /// At once.
    Now,
    /// At a time.
    At {
        /// The time.
        time: Timestamp,
    },
    /// After a decision or an order. Whoever posts it wakes the run.
    AfterSignal,
    /// Never: the run has ended, or is a dead letter that somebody must revive.
    Never,
}

/// The state of a run after a segment, for its engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// Agent that started the run.
    pub agent: AgentName,
    /// State of the run in the queue: see [`QueuedState::name`].
    pub state: String,
    /// Time at which the run is woken next.
    pub wake: NextWake,
}

impl SegmentReport {
    /// Describes a run that a worker with these offers has left, or could not take.
    fn describe(queued: &QueuedRun, offers: &[AgentOffer], now: Timestamp) -> Self {
        let later = |delay: Duration| {
            let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            NextWake::At { time: Timestamp(now.0.saturating_add(millis)) }
        };
        let agent = queued.submission.agent.clone();
        let can_drive = offers.iter().any(|offer| {
            offer.agent == agent && queued.declined_by.iter().all(|(build, _)| *build != offer.build)
        });
        let wake = match &queued.state {
            QueuedState::Ready if can_drive => NextWake::Now,
            QueuedState::Ready => later(DECLINED_DELAY),
            QueuedState::Taken { .. } => later(TAKEN_DELAY),
            QueuedState::Waiting { until } => NextWake::At { time: *until },
            QueuedState::Parked { wake_at: Some(time) } => NextWake::At { time: *time },
            QueuedState::Parked { wake_at: None } => NextWake::AfterSignal,
            QueuedState::Ended | QueuedState::DeadLetter => NextWake::Never,
        };
        Self { agent, state: queued.state.name().to_owned(), wake }
    }
}

/// The answer to a request for a segment.
type SegmentReply = oneshot::Sender<Result<SegmentReport, DispatchError>>;

/// An engine's request to drive a run for a segment.
struct SegmentRequest {
    run: RunId,
    reply: SegmentReply,
}

/// Passes the runs that an engine dispatches to the worker of this process. Clones reach the same worker.
#[derive(Clone)]
pub struct SegmentDispatcher {
    requests: mpsc::Sender<SegmentRequest>,
}

impl SegmentDispatcher {
    /// Creates a dispatcher and the inbox of its worker.
    pub(super) fn channel() -> (Self, DispatchInbox) {
        let (requests, inbox) = mpsc::channel(MAX_WAITING_REQUESTS);
        let inbox = DispatchInbox { requests: inbox, pending: VecDeque::new(), replies: BTreeMap::new() };
        (Self { requests }, inbox)
    }

    /// Drives a run for one segment, and returns when it is woken next. If the worker drives the run already, this attaches
    /// to its segment. A run that may not be driven now is not driven.
    ///
    /// # Cancellation safety
    ///
    /// The segment is driven by the worker: it goes on if this future is dropped, and a later call attaches to it.
    ///
    /// # Errors
    ///
    /// Returns [`DispatchError::WorkerStopped`] if the worker drains, and [`DispatchError::WorkerBusy`] if too many requests
    /// wait for it: another one may drive the run.
    pub async fn drive_segment(&self, run: &RunId) -> Result<SegmentReport, DispatchError> {
        let (reply, answer) = oneshot::channel();
        let request = SegmentRequest { run: run.clone(), reply };
        self.requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => DispatchError::WorkerBusy,
            TrySendError::Closed(_) => DispatchError::WorkerStopped,
        })?;
        answer.await.unwrap_or(Err(DispatchError::WorkerStopped))
    }
}

impl std::fmt::Debug for SegmentDispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentDispatcher")
    }
}

/// The requests of an engine to a worker.
pub(super) struct DispatchInbox {
    requests: mpsc::Receiver<SegmentRequest>,
    /// Requests for runs that the worker does not drive yet.
    pending: VecDeque<SegmentRequest>,
    /// Those who wait for the end of a segment.
    replies: BTreeMap<RunId, Vec<SegmentReply>>,
}

impl DispatchInbox {
    /// Waits for a request, and keeps it. Never resolves if there are no dispatchers left.
    ///
    /// Cancellation safe.
    pub(super) async fn receive(&mut self) {
        // Those who have dropped their requests ask again.
        self.pending.retain(|request| !request.reply.is_closed());
        if self.pending.len() >= MAX_WAITING_REQUESTS {
            return std::future::pending().await;
        }
        match self.requests.recv().await {
            Some(request) => match self.replies.get_mut(&request.run) {
                Some(replies) => {
                    replies.retain(|reply| !reply.is_closed());
                    if replies.len() < MAX_WAITING_REQUESTS {
                        replies.push(request.reply);
                    } else {
                        request.reply.send(Err(DispatchError::WorkerBusy)).ok();
                    }
                }
                None => self.pending.push_back(request),
            },
            None => std::future::pending().await,
        }
    }

    /// Returns the next run to take.
    pub(super) fn next_pending(&self) -> Option<RunId> {
        self.pending.front().map(|request| request.run.clone())
    }

    /// Notes that the worker drives a run: all who asked for it wait for the end of its segment.
    pub(super) fn note_begin(&mut self, run: &RunId) {
        let (attached, rest) = std::mem::take(&mut self.pending).into_iter().partition(|one| one.run == *run);
        self.pending = rest;
        let attached: VecDeque<SegmentRequest> = attached;
        self.replies.entry(run.clone()).or_default().extend(attached.into_iter().map(|one| one.reply));
    }

    /// Answers those who asked for a run that the worker could not take.
    pub(super) async fn answer_untaken(
        &mut self,
        run: &RunId,
        queue: &dyn RunQueue,
        offers: &[AgentOffer],
        now: Timestamp,
    ) {
        self.note_begin(run);
        self.answer_end(run, queue, offers, now).await;
    }

    /// Answers those who wait for the end of a segment.
    pub(super) async fn answer_end(
        &mut self,
        run: &RunId,
        queue: &dyn RunQueue,
        offers: &[AgentOffer],
        now: Timestamp,
    ) {
        let answer = match queue.load_queued_run(run).await {
            Ok(Some(queued)) => Ok(SegmentReport::describe(&queued, offers, now)),
            Ok(None) => Err(DispatchError::NotSubmitted { run: run.clone() }),
            Err(error) => Err(error.into()),
        };
        for reply in self.replies.remove(run).unwrap_or_default() {
            // A caller that was dropped asks again.
            reply.send(answer.clone()).ok();
        }
    }

    /// Answers those who asked for a run with an error.
    pub(super) fn answer_error(&mut self, run: &RunId, error: &StoreError) {
        self.note_begin(run);
        for reply in self.replies.remove(run).unwrap_or_default() {
            reply.send(Err(error.clone().into())).ok();
        }
    }
}

/// Wakes the runs that stay ready although nobody drives them: those that were submitted, decided or scheduled without the
/// engine, and those whose wake-up the engine has lost. Never returns.
///
/// Only runs that the worker can drive are woken. Each look leaves out those that were woken a short time ago, so that runs
/// for which the engine has no room do not hide the others.
pub(super) async fn relay_ready_runs(
    queue: Arc<dyn RunQueue>,
    dispatch: Arc<dyn RunDispatch>,
    offers: Vec<AgentOffer>,
    now: impl Fn() -> Timestamp,
) {
    let mut seen: BTreeSet<RunId> = BTreeSet::new();
    let mut woken: BTreeMap<RunId, Instant> = BTreeMap::new();
    loop {
        tokio::time::sleep(RELAY_INTERVAL).await;
        woken.retain(|_, at| at.elapsed() < RELAY_AGAIN);
        while woken.len() > MAX_WOKEN
            && let Some(first) = woken.iter().min_by_key(|(_, at)| **at).map(|(run, _)| run.clone())
        {
            woken.remove(&first);
        }
        let except = woken.keys().cloned().collect();
        let query = ReadyRunsQuery { now: now(), offers: offers.clone(), except, limit: MAX_RELAYED };
        let ready = match queue.list_ready_runs(&query).await {
            Ok(ready) => ready,
            Err(error) => {
                tracing::warn!(%error, "the ready runs cannot be listed");
                continue;
            }
        };
        let ready: BTreeSet<RunId> = ready.into_iter().collect();
        // The wake-up of a run that is seen for the first time may be on the way.
        for run in ready.intersection(&seen) {
            match dispatch.wake_run(run, None).await {
                Ok(()) => {
                    woken.insert(run.clone(), Instant::now());
                }
                Err(error) => tracing::warn!(%run, %error, "a ready run could not be woken"),
            }
        }
        seen = ready;
    }
}
