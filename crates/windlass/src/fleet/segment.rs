//! One segment of a run: a worker drives it until it is parked, a limit is reached, or it is ordered to leave.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use windlass_core::{
    id::{RunId, Timestamp},
    journal::{JournalEntry, JournalFormatError},
};

use super::deploy_check::load_start;
use super::provider_watch::{ProviderAbsence, ProviderWatch};
use super::queue::{NextStep, PostedOrder, QueueOrder, RunQueue, TakenRun};
use super::registry::DeployedAgent;
use super::segment_store::{LeaseRecord, SegmentStore};
use super::worker::RetryBackoff;
use crate::agent::AgentGraph;
use crate::error::{ConfigError, RunError, StoreError, StoreErrorKind};
use crate::event::{RunEvent, RunEventKind};
use crate::guardrail::panic_message;
use crate::lock_unpoisoned;
use crate::run::{CancelHandle, ModelRetryPolicy, OnStreamDrop, RetriesExhausted, RunBuilder, RunResult};
use crate::session::Session;
use crate::store::{LeaseObserver, OpenRunError, Store, load_paused};

/// Time until a run is tried again that another driver has, or whose session is busy.
const BUSY_DELAY: Duration = Duration::from_secs(1);
/// Time until a run is tried again whose values were sealed with a key that the worker does not have.
const MISSING_KEY_DELAY: Duration = Duration::from_secs(5);
/// Longest time that a run waits because its provider asked for it.
const MAX_PROVIDER_DELAY: Duration = Duration::from_secs(24 * 3600);

/// The limit of a segment. Whatever it is, finished calls are kept, no call is started after it, and running bodies get
/// the run's drain timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentLimit {
    /// The segment ends when the run waits for a person or has ended.
    #[default]
    Parked,
    /// The segment also ends after each turn, so that other runs get their turn.
    Turn,
    /// The segment also ends after this time.
    Deadline(Duration),
}

/// The end of a segment, for the report of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentEnd {
    /// The run has ended.
    Ended,
    /// The run waits for a person.
    Parked,
    /// The run was left for a later segment.
    Left,
    /// The segment failed, and the run is tried again.
    Failed,
    /// This build cannot drive the run.
    Declined,
    /// Another driver has the run, or its session is busy.
    Busy,
    /// The worker lost the run to another driver.
    Lost,
}

/// The orders for a segment, and the means to end it early.
#[derive(Debug, Default)]
pub(super) struct SegmentControl {
    orders: Mutex<Vec<PostedOrder>>,
    is_stopping: Mutex<bool>,
    changed: Notify,
}

impl SegmentControl {
    /// Replaces the orders of the run.
    pub(super) fn set_orders(&self, orders: Vec<PostedOrder>) {
        let mut known = lock_unpoisoned(&self.orders);
        if *known != orders {
            *known = orders;
            self.changed.notify_one();
        }
    }

    /// Makes the segment leave the run.
    pub(super) fn stop(&self) {
        *lock_unpoisoned(&self.is_stopping) = true;
        self.changed.notify_one();
    }

    fn orders(&self) -> Vec<PostedOrder> {
        lock_unpoisoned(&self.orders).clone()
    }

    fn is_stopping(&self) -> bool {
        *lock_unpoisoned(&self.is_stopping)
    }
}

/// The settings of the segments of a worker.
#[derive(Clone, Debug)]
pub(super) struct SegmentSettings {
    pub(super) limit: SegmentLimit,
    pub(super) lease_duration: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) backoff: RetryBackoff,
    pub(super) provider_attempts: u32,
    pub(super) observer: LeaseObserver,
    pub(super) event_watcher: Option<EventWatcher>,
}

/// A function that receives the events of a worker's runs.
#[derive(Clone)]
pub(super) struct EventWatcher(Arc<dyn Fn(&RunId, &RunEvent) + Send + Sync>);

impl EventWatcher {
    pub(super) fn new(watcher: impl Fn(&RunId, &RunEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watcher))
    }

    /// Drives a run and passes its events on.
    async fn drive<C: Send + Sync + 'static>(
        self,
        run: RunId,
        builder: RunBuilder<C>,
    ) -> Result<RunResult, RunError> {
        let has_deltas = !builder.may_withhold_text();
        let mut stream = builder.on_stream_drop(OnStreamDrop::ContinueRun).stream();
        while let Some(event) = stream.next().await {
            let is_delta = matches!(
                event.kind,
                RunEventKind::TextDelta { .. }
                    | RunEventKind::ReasoningDelta { .. }
                    | RunEventKind::ArgumentsDelta { .. }
            );
            if has_deltas || !is_delta {
                (self.0)(&run, &event);
            }
        }
        stream.result().await
    }
}

impl std::fmt::Debug for EventWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventWatcher")
    }
}

/// The result of a segment.
pub(super) struct SegmentResult {
    pub(super) next: NextStep,
    pub(super) end: SegmentEnd,
    pub(super) lease: LeaseRecord,
    /// Number of the last order that was carried out.
    pub(super) orders_done: u64,
    /// True if the run was left for another worker, as it was ordered.
    pub(super) is_handed_over: bool,
}

/// The orders of a run that a segment has dealt with, by their number.
#[derive(Debug, Default)]
struct HandledOrders {
    /// Orders that are carried out, also if the segment fails.
    done: BTreeSet<u64>,
    /// Input that the run is continued with. The journal has it as soon as the run could be continued.
    added: BTreeSet<u64>,
}

impl HandledOrders {
    fn contains(&self, number: u64) -> bool {
        self.done.contains(&number) || self.added.contains(&number)
    }

    /// Returns the number of the last order before the first that was not carried out; 0 if there is none.
    fn last_done(&self, orders: &[PostedOrder], is_continued: bool) -> u64 {
        let is_done =
            |number: &u64| self.done.contains(number) || (is_continued && self.added.contains(number));
        orders.iter().map(|posted| posted.number).take_while(is_done).last().unwrap_or(0)
    }
}

/// One segment of a taken run.
pub(super) struct RunSegment<C> {
    pub(super) queue: Arc<dyn RunQueue>,
    pub(super) store: Arc<SegmentStore>,
    pub(super) deployed: DeployedAgent<C>,
    pub(super) taken: TakenRun,
    pub(super) settings: SegmentSettings,
    pub(super) control: Arc<SegmentControl>,
}

impl<C: Send + Sync + 'static> RunSegment<C> {
    /// Drives the run, and tries it again later if a function of the application panics, such as the one that makes its
    /// context. `now` returns the worker's time.
    pub(super) async fn drive_caught(self, now: impl Fn() -> Timestamp) -> SegmentResult {
        let (backoff, store) = (self.settings.backoff, self.store.clone());
        let (run, attempt) = (self.run_id().clone(), self.taken.attempt);
        let driven = AssertUnwindSafe(self.drive(&now)).catch_unwind().await;
        driven.unwrap_or_else(|panic| {
            let reason = format!("a function of the application panicked: {}", panic_message(&*panic));
            tracing::error!(%run, %reason, "a segment failed");
            let at = add_delay(now(), backoff.delay(&run, attempt));
            SegmentResult {
                next: NextStep::Retry { at, reason },
                end: SegmentEnd::Failed,
                lease: store.lease_record(),
                orders_done: 0,
                is_handed_over: false,
            }
        })
    }

    async fn drive(self, now: impl Fn() -> Timestamp) -> SegmentResult {
        if let Some(start_at) = self.taken.submission.start_at.filter(|time| *time > now())
            && self.is_before_start().await
        {
            // An order woke the run before its time. The first segment after that carries the order out.
            let next = NextStep::Wait { until: start_at };
            let lease = self.store.lease_record();
            return SegmentResult {
                next,
                end: SegmentEnd::Left,
                lease,
                orders_done: 0,
                is_handed_over: false,
            };
        }
        let watch = ProviderWatch::new(self.settings.provider_attempts);
        let mut handled = HandledOrders::default();
        let driven = match self.prepare(&mut handled).await {
            Ok(builder) => {
                let builder = builder.model_layer(watch.clone());
                let handle = builder.cancel_handle();
                self.drive_until_left(builder, handle, &watch, &mut handled).await
            }
            Err(error) => Err(error),
        };
        // A segment that failed may not have written the input: the next one looks for it in the journal.
        let orders_done = handled.last_done(&self.control.orders(), driven.is_ok());
        let lease = self.store.lease_record();
        let (next, end) = self.next_step(driven, watch.absence(), orders_done, now());
        let is_handed_over = end == SegmentEnd::Left && self.is_handed_over(orders_done);
        SegmentResult { next, end, lease, orders_done, is_handed_over }
    }

    /// Returns true if the run was ordered to another worker, and no other order waits.
    fn is_handed_over(&self, orders_done: u64) -> bool {
        let orders = self.control.orders();
        orders.iter().all(|posted| posted.number <= orders_done)
            && orders.iter().any(|posted| posted.order == QueueOrder::HandOver)
    }

    /// Returns true if the run has not started and nobody has cancelled it.
    async fn is_before_start(&self) -> bool {
        let is_cancelled = self.control.orders().iter().any(|posted| posted.order == QueueOrder::Cancel);
        let lease = self.queue.load_lease(self.run_id()).await;
        !is_cancelled && lease.is_err_and(|error| error.kind() == StoreErrorKind::RunNotFound)
    }

    fn run_id(&self) -> &RunId {
        &self.taken.submission.run
    }

    /// Builds the run: new, continued, or continued with the input that was ordered.
    async fn prepare(&self, handled: &mut HandledOrders) -> Result<RunBuilder<C>, RunError> {
        let submission = &self.taken.submission;
        let agent = &self.deployed.agent;
        let context = (self.deployed.context)(submission);
        let store: Arc<dyn Store> = self.store.clone();
        let is_new = match self.queue.load_lease(self.run_id()).await {
            Ok(_) => false,
            Err(error) if error.kind() == StoreErrorKind::RunNotFound => true,
            Err(error) => return Err(error.into()),
        };
        let builder = if is_new {
            let mut builder = agent
                .run_with_context(submission.input.clone(), context)
                .run_id(self.run_id().clone())
                .store(store.clone());
            if let Some(session) = &submission.session {
                let session = Session::in_run_store(session.clone(), &store).ok_or_else(|| {
                    RunError::Session(StoreError::new("the store of the queue keeps no sessions"))
                })?;
                builder = builder.session(&session);
            }
            builder
        } else {
            if self.deployed.releases.is_some() {
                let started = load_start(&*self.queue, self.run_id()).await?;
                let begun_by = started.and_then(|started| started.build);
                self.deployed.check_release(self.run_id(), begun_by.as_ref())?;
            }
            match self.add_ordered_input(handled).await? {
                Some(paused) => agent.resume_with_context(paused, context).store(store),
                None => agent.recover_with_context(self.run_id().clone(), store, context),
            }
        };
        let SegmentSettings { lease_duration, drain_timeout, observer, .. } = &self.settings;
        let DeployedAgent { build, known_agents, configure, .. } = &self.deployed;
        let mut builder = builder.drain_timeout(*drain_timeout).known_agents(known_agents.iter().cloned());
        if let Some(release) = &build.release {
            builder = builder.release(release.clone());
        }
        let builder = configure(builder, submission);
        // The driver tries as long as the worker lets it: a provider that is away does not end the run.
        let retry = ModelRetryPolicy {
            max_attempts: u32::MAX,
            max_delay: MAX_PROVIDER_DELAY,
            max_provider_delay: MAX_PROVIDER_DELAY,
            when_exhausted: RetriesExhausted::Leave,
            ..ModelRetryPolicy::default()
        };
        Ok(builder.lease_duration(*lease_duration).lease_observer(observer).model_retry(retry))
    }

    /// Loads the run with the input of its orders that its journal does not have; `None` if there is none to add.
    async fn add_ordered_input(
        &self,
        handled: &mut HandledOrders,
    ) -> Result<Option<crate::run::PausedRun>, RunError> {
        let orders = self.control.orders();
        let inputs: Vec<_> = orders
            .into_iter()
            .filter_map(|posted| match posted.order {
                QueueOrder::AddInput { items } => Some((posted.number, items)),
                QueueOrder::Cancel | QueueOrder::HandOver => None,
            })
            .collect();
        if inputs.is_empty() {
            return Ok(None);
        }
        let mut paused = load_paused(&*self.queue, self.run_id()).await.map_err(RunError::from)?;
        let recorded: Vec<u64> = paused
            .record()
            .read_journal()
            .map_err(|error: OpenRunError| RunError::from(error))?
            .iter()
            .filter_map(|record| match &record.entry {
                JournalEntry::InputAdded(added) => added.order,
                _ => None,
            })
            .collect();
        for (number, items) in inputs {
            // A run that has ended refuses input.
            match !recorded.contains(&number) && paused.add_ordered_input(items, number).is_ok() {
                true => handled.added.insert(number),
                false => handled.done.insert(number),
            };
        }
        Ok((!handled.added.is_empty()).then_some(paused))
    }

    /// Awaits the run, and makes the driver leave it when its limit, an order or the worker says so.
    async fn drive_until_left(
        &self,
        builder: RunBuilder<C>,
        handle: CancelHandle,
        watch: &ProviderWatch,
        handled: &mut HandledOrders,
    ) -> Result<RunResult, RunError> {
        let deadline = match self.settings.limit {
            SegmentLimit::Parked => None,
            SegmentLimit::Turn => {
                handle.detach_after_turn();
                None
            }
            SegmentLimit::Deadline(limit) => Some(tokio::time::Instant::now() + limit),
        };
        self.carry_out_orders(&handle, handled);
        let deadline = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let away = watch.wait_until_away();
        let builder = match &self.settings.event_watcher {
            Some(watcher) => watcher.clone().drive(self.run_id().clone(), builder).boxed(),
            None => builder.boxed(),
        };
        tokio::pin!(builder, deadline, away);
        let (mut is_due, mut is_away) = (false, false);
        loop {
            tokio::select! {
                biased;
                result = &mut builder => return result,
                () = self.control.changed.notified() => self.carry_out_orders(&handle, handled),
                () = &mut deadline, if !is_due => {
                    is_due = true;
                    handle.detach();
                }
                () = &mut away, if !is_away => {
                    is_away = true;
                    handle.detach();
                }
            }
        }
    }

    fn carry_out_orders(&self, handle: &CancelHandle, handled: &mut HandledOrders) {
        let orders = self.control.orders();
        let is_cancelled = orders.iter().any(|posted| posted.order == QueueOrder::Cancel);
        for posted in orders {
            match posted.order {
                // Carried out once the run has ended, which removes its orders. A run that was about to be left when the
                // order came is cancelled by the next segment.
                QueueOrder::Cancel => handle.cancel(),
                // A driver that leaves the run does not end it: the next one would find both orders again.
                QueueOrder::HandOver if is_cancelled => drop(handled.done.insert(posted.number)),
                QueueOrder::HandOver => {
                    handle.detach();
                    handled.done.insert(posted.number);
                }
                // The next segment adds it, after the turn has settled.
                QueueOrder::AddInput { .. } if !handled.contains(posted.number) => handle.detach_after_turn(),
                QueueOrder::AddInput { .. } => {}
            }
        }
        if self.control.is_stopping() {
            handle.detach();
        }
    }

    fn next_step(
        &self,
        driven: Result<RunResult, RunError>,
        away: Option<ProviderAbsence>,
        orders_done: u64,
        now: Timestamp,
    ) -> (NextStep, SegmentEnd) {
        let later = |delay: Duration| add_delay(now, delay);
        let retry_after = |reason: String, least: Duration| {
            let delay = self.settings.backoff.delay(self.run_id(), self.taken.attempt).max(least);
            (NextStep::Retry { at: later(delay), reason }, SegmentEnd::Failed)
        };
        let retry = |reason: String| retry_after(reason, Duration::ZERO);
        let decline = |reason: String| {
            let build = self.deployed.build.to_string();
            (NextStep::Decline { build, reason }, SegmentEnd::Declined)
        };
        match driven {
            Ok(RunResult::Finished(_) | RunResult::Cancelled(_)) | Err(RunError::Failed(_)) => {
                (NextStep::End, SegmentEnd::Ended)
            }
            Ok(RunResult::Paused(_) | RunResult::Detached(_))
                if self.control.orders().iter().any(|order| order.number > orders_done) =>
            {
                (NextStep::Ready, SegmentEnd::Left)
            }
            Ok(RunResult::Paused(paused)) => {
                // A hold whose time has come was not due on the driver's clock: the clocks differ.
                let wake_at = paused.pending_calls().iter().filter_map(|call| call.expires_at).min();
                let wake_at = wake_at.map(|time| if time <= now { later(BUSY_DELAY) } else { time });
                (NextStep::Park { wake_at }, SegmentEnd::Parked)
            }
            Ok(RunResult::Detached(_)) => match away {
                Some(absence) => retry_after(absence.reason, absence.asked_delay.min(MAX_PROVIDER_DELAY)),
                None => (NextStep::Ready, SegmentEnd::Left),
            },
            Err(RunError::Store(error) | RunError::Session(error)) => match error.kind() {
                StoreErrorKind::Fenced => (NextStep::Ready, SegmentEnd::Lost),
                StoreErrorKind::LeaseHeld | StoreErrorKind::SessionBusy | StoreErrorKind::Stale => {
                    let delay = error.retry_after().map_or(BUSY_DELAY, |delay| delay.min(BUSY_DELAY));
                    (NextStep::Wait { until: later(delay) }, SegmentEnd::Busy)
                }
                // Another worker has the key, or this one gets it: the attempt does not count.
                StoreErrorKind::UnknownKey => {
                    tracing::error!(run = %self.run_id(), %error, "a run cannot be opened and waits for its key");
                    (NextStep::Wait { until: later(MISSING_KEY_DELAY) }, SegmentEnd::Failed)
                }
                StoreErrorKind::UnsupportedVersion => decline(error.to_string()),
                StoreErrorKind::Corrupt => bury(error.to_string()),
                _ => retry(error.to_string()),
            },
            Err(RunError::Config(error)) if self.may_pass(&error) => retry(error.to_string()),
            // A worker of an older build meets a newer journal, or one that lacks a tool: others may drive the run.
            Err(RunError::Config(error)) => decline(error.to_string()),
            Err(RunError::Replay(error)) => decline(error.to_string()),
            Err(RunError::JournalFormat(
                error @ (JournalFormatError::UnsupportedVersion { .. }
                | JournalFormatError::MalformedRecord { .. }
                | JournalFormatError::Replay(_)),
            )) => decline(error.to_string()),
            Err(RunError::JournalFormat(error)) => bury(error.to_string()),
        }
    }
}

impl<C: Send + Sync + 'static> RunSegment<C> {
    /// Returns true if the same build may drive the run later: a function of the agent has failed, or a tool source that may
    /// be away. A tool that a source still lacks at the last attempt is gone, and a worker of another build may have it.
    fn may_pass(&self, error: &ConfigError) -> bool {
        match error {
            ConfigError::ToolSourceFailed { .. } | ConfigError::ResolveFailed { .. } => true,
            ConfigError::ToolRemoved { agent, .. } => {
                let DeployedAgent { agent: root, known_agents, .. } = &self.deployed;
                let graph = AgentGraph::new(root, known_agents);
                self.taken.attempt < self.taken.submission.max_attempts
                    && graph.is_ok_and(|graph| graph.has_sourced_tools(agent))
            }
            _ => false,
        }
    }
}

fn add_delay(time: Timestamp, delay: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)))
}

fn bury(reason: String) -> (NextStep, SegmentEnd) {
    (NextStep::Bury { reason }, SegmentEnd::Failed)
}
