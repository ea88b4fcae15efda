//! A worker: it takes runs from a queue and drives them, many at a time, until it is told to stop.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use windlass_core::id::{RunId, Timestamp};

use super::dispatch::{DispatchInbox, RunDispatch, SegmentDispatcher, relay_ready_runs};
use super::queue::{RunDeparture, RunQueue, TakenRun, TakenWork, WorkRequest, run_owner};
use super::registry::AgentRegistry;
use super::schedule::fire_schedules;
use super::segment::{
    EventWatcher, RunSegment, SegmentControl, SegmentEnd, SegmentLimit, SegmentResult, SegmentSettings,
};
use super::segment_store::SegmentStore;
use super::worker_metrics::WorkerMetrics;
use super::worker_peers::{OtherWorkers, RegularCheck, UnfiredSchedules};
use super::worker_pulse::WorkerPulse;
use crate::clock::RunClock;
use crate::error::{StoreError, StoreErrorKind};
use crate::event::RunEvent;
use crate::store::{DEFAULT_LEASE_DURATION, LeaseObserver, Store};

/// Default number of runs that a worker drives at a time.
const DEFAULT_CONCURRENCY: usize = 16;
/// Default time between two requests for work, if no hint comes.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Default time that running bodies get to finish when their run is left.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Default number of failures of a model in a row after which its run waits in the queue.
const DEFAULT_PROVIDER_ATTEMPTS: u32 = 3;
/// Time between two looks at the schedules.
const SCHEDULE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of times that the delay between two attempts to register a worker again doubles.
const MAX_REGISTRATION_DOUBLINGS: u32 = 6;
/// Longest time that a worker which stops waits for the store to retire it. Without it, the worker's lease expires.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of attempts to end a segment while the store fails.
const MAX_LEAVE_ATTEMPTS: u32 = 5;

/// The delays between the attempts of a run that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBackoff {
    /// Delay after the first failure; it doubles with every further one.
    pub base_delay: Duration,
    /// Maximum delay.
    pub max_delay: Duration,
}

impl Default for RetryBackoff {
    fn default() -> Self {
        Self { base_delay: Duration::from_secs(1), max_delay: Duration::from_secs(300) }
    }
}

impl RetryBackoff {
    /// Returns the delay after so many attempts, with a jitter that the run's id determines: between half of it and all.
    pub fn delay(&self, run: &RunId, attempts: u32) -> Duration {
        let doubled = self.base_delay.saturating_mul(1 << attempts.saturating_sub(1).min(20));
        let full = doubled.min(self.max_delay);
        let text = format!("{run} {attempts}");
        let byte = windlass_core::canonical::Digest::of_text(&text).as_bytes()[0];
        full / 2 + (full / 2) * u32::from(byte) / 255
    }
}

/// Stops a worker. Clones stop the same worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerStop {
    token: CancellationToken,
}

impl WorkerStop {
    /// Drains the worker: it takes no more runs and leaves those that it has. Calls that have not started do not start;
    /// running bodies get the drain timeout. Call it when the process gets SIGTERM.
    pub fn drain(&self) {
        self.token.cancel();
    }
}

/// The segments of a worker, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Segments after which the run had ended.
    pub ended: u64,
    /// Segments after which the run waited for a person.
    pub parked: u64,
    /// Segments after which the run was left for a later one.
    pub left: u64,
    /// Segments that failed.
    pub failed: u64,
    /// Runs that this build could not drive.
    pub declined: u64,
    /// Runs that another driver had, or whose session was busy.
    pub busy: u64,
    /// Runs that the worker lost to another driver.
    pub lost: u64,
}

impl WorkerReport {
    pub(super) fn count(&mut self, end: SegmentEnd) {
        let counter = match end {
            SegmentEnd::Ended => &mut self.ended,
            SegmentEnd::Parked => &mut self.parked,
            SegmentEnd::Left => &mut self.left,
            SegmentEnd::Failed => &mut self.failed,
            SegmentEnd::Declined => &mut self.declined,
            SegmentEnd::Busy => &mut self.busy,
            SegmentEnd::Lost => &mut self.lost,
        };
        *counter += 1;
    }
}

/// A worker: it takes runs from a queue and drives them.
///
/// ```
/// use std::sync::Arc;
///
/// use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
/// use windlass::prelude::*;
/// use windlass::store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let queue = Arc::new(MemoryStore::default());
/// let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
/// queue.submit_run(&RunSubmission::new("run-1", "host", "Hello"), Default::default()).await?;
/// let worker = Worker::new(queue, AgentRegistry::new().deploy(DeployedAgent::new(agent)));
/// let report = worker.run_until_idle().await?;
/// assert_eq!(report.ended, 1);
/// # Ok(()) }
/// ```
pub struct Worker<C = ()> {
    queue: Arc<dyn RunQueue>,
    registry: AgentRegistry<C>,
    concurrency: usize,
    poll_interval: Duration,
    settings: SegmentSettings,
    stop: WorkerStop,
    watcher: Option<SegmentWatcher>,
    metrics: WorkerMetrics,
}

/// The outcome of a segment, and the time that it has taken.
struct SegmentOutcome {
    end: SegmentEnd,
    is_handed_over: bool,
    lasted: Duration,
}

/// The segments that a worker drives under one name.
///
/// Invariant: a run has at most one segment. It is here until its task has ended, although the queue may offer it again as
/// soon as the task has left it.
#[derive(Default)]
struct ActiveSegments {
    tasks: JoinSet<SegmentOutcome>,
    by_run: BTreeMap<RunId, ActiveSegment>,
    /// Runs that the worker has handed over, and the time until which it leaves them to others.
    handed_over: BTreeMap<RunId, Instant>,
}

/// A segment whose task runs.
struct ActiveSegment {
    task: tokio::task::Id,
    control: Arc<SegmentControl>,
}

impl ActiveSegments {
    /// Returns the runs that the worker does not take.
    fn held_runs(&mut self, only: Option<&RunId>) -> Vec<RunId> {
        let now = Instant::now();
        self.handed_over.retain(|_, until| *until > now);
        // An engine that names a run has chosen this worker.
        let handed_over = self.handed_over.keys().filter(|run| Some(*run) != only);
        self.by_run.keys().chain(handed_over).cloned().collect()
    }

    /// Returns true if the worker drives nothing, and leaves nothing to others that it might have to take after all.
    fn is_idle(&self) -> bool {
        let now = Instant::now();
        self.tasks.is_empty() && self.handed_over.values().all(|until| *until <= now)
    }

    /// Removes the segment of a task that has ended, and returns its run.
    fn remove_task(&mut self, task: tokio::task::Id) -> Option<RunId> {
        let run = self.by_run.iter().find(|(_, segment)| segment.task == task)?.0.clone();
        self.by_run.remove(&run);
        Some(run)
    }
}

/// A function that is told about the ends of segments.
type SegmentWatcher = Box<dyn Fn(&RunId, SegmentEnd) + Send + Sync>;

/// The end of a worker's work under one name.
#[derive(PartialEq, Eq)]
enum WorkEnd {
    Stopped,
    /// Another worker has retired this one, which goes on under a new name.
    Retired,
}

/// The condition on which a worker stops by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdlePolicy {
    KeepWaiting,
    Stop,
}

impl<C: Send + Sync + 'static> Worker<C> {
    /// Creates a worker for the agents of a registry.
    pub fn new(queue: Arc<dyn RunQueue>, registry: AgentRegistry<C>) -> Self {
        let settings = SegmentSettings {
            limit: SegmentLimit::default(),
            lease_duration: DEFAULT_LEASE_DURATION,
            drain_timeout: DEFAULT_DRAIN_TIMEOUT,
            backoff: RetryBackoff::default(),
            provider_attempts: DEFAULT_PROVIDER_ATTEMPTS,
            observer: LeaseObserver::new(),
            event_watcher: None,
        };
        Self {
            queue,
            registry,
            concurrency: DEFAULT_CONCURRENCY,
            poll_interval: DEFAULT_POLL_INTERVAL,
            settings,
            stop: WorkerStop::default(),
            watcher: None,
            metrics: WorkerMetrics::default(),
        }
    }

    /// Sets the number of runs that the worker drives at a time; the default is 16.
    #[must_use]
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = runs.max(1);
        self
    }

    /// Sets the time between two requests for work if no hint comes; the default is 200 ms. Orders from other processes
    /// arrive within it.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(Duration::from_millis(1));
        self
    }

    /// Sets the duration of the worker's lease: after so much time without a renewal, other workers take over its runs.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.settings.lease_duration = duration.max(Duration::from_millis(60));
        self
    }

    /// Sets the time that running bodies get to finish when their run is left; the default is 20 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain_timeout = timeout;
        self
    }

    /// Sets the limit of segments.
    #[must_use]
    pub fn segment_limit(mut self, limit: SegmentLimit) -> Self {
        self.settings.limit = limit;
        self
    }

    /// Sets the delays between the attempts of a run that fails.
    #[must_use]
    pub fn retry_backoff(mut self, backoff: RetryBackoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets the number of failures of a model in a row after which its run waits in the queue; the default is 3.
    #[must_use]
    pub fn provider_attempts(mut self, attempts: u32) -> Self {
        self.settings.provider_attempts = attempts.max(1);
        self
    }

    /// Sets a function that receives the events of all runs of this worker as they happen, with deltas and progress. It must
    /// not block: the run waits for it. Events of other workers do not reach it; the journal has them.
    ///
    /// Deltas are the text as the model writes it, before secrets are redacted and before output guardrails have checked
    /// it. So the runs whose agents have secret arguments, secret outputs or output guardrails have no deltas here.
    #[must_use]
    pub fn event_watcher(mut self, watcher: impl Fn(&RunId, &RunEvent) + Send + Sync + 'static) -> Self {
        self.settings.event_watcher = Some(EventWatcher::new(watcher));
        self
    }

    /// Sets a function that is called after each segment, in the task of the worker. It must not block.
    #[must_use]
    pub fn on_segment_end(mut self, watcher: impl Fn(&RunId, SegmentEnd) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// Returns the queue.
    pub fn queue(&self) -> &Arc<dyn RunQueue> {
        &self.queue
    }

    /// Returns the metrics of the worker, which change while it works.
    pub fn metrics(&self) -> WorkerMetrics {
        self.metrics.clone()
    }

    /// Returns a handle that stops the worker.
    pub fn stop_handle(&self) -> WorkerStop {
        self.stop.clone()
    }

    /// Works until the worker is told to drain.
    ///
    /// # Errors
    ///
    /// Returns the error of the store if the worker cannot be registered. Later errors are logged, and the worker tries
    /// again.
    pub async fn run(self) -> Result<WorkerReport, StoreError> {
        self.work(IdlePolicy::KeepWaiting, None).await
    }

    /// Works until there is nothing to take, or the worker is told to drain. Runs that wait for a person or for a time are
    /// left where they are.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Worker::run`].
    pub async fn run_until_idle(self) -> Result<WorkerReport, StoreError> {
        self.work(IdlePolicy::Stop, None).await
    }

    /// Turns the worker into one that an engine dispatches: it takes a run when the engine asks for it, and no other. The
    /// returned future works until the worker is told to drain; spawn it.
    ///
    /// Runs that stay ready for some seconds, because they were submitted or decided without the engine or because it has
    /// lost them, are woken through `relay`.
    ///
    /// # Errors
    ///
    /// The future returns the errors of [`Worker::run`].
    pub fn into_dispatched(
        self,
        relay: Arc<dyn RunDispatch>,
    ) -> (SegmentDispatcher, impl Future<Output = Result<WorkerReport, StoreError>> + Send) {
        let (dispatcher, inbox) = SegmentDispatcher::channel();
        let work = async move {
            let relaying =
                relay_ready_runs(self.queue.clone(), relay, self.registry.offers(), wall_clock_now);
            tokio::select! {
                report = self.work(IdlePolicy::KeepWaiting, Some(inbox)) => report,
                () = relaying => Ok(WorkerReport::default()),
            }
        };
        (dispatcher, work)
    }

    async fn work(
        self,
        idle: IdlePolicy,
        mut inbox: Option<DispatchInbox>,
    ) -> Result<WorkerReport, StoreError> {
        let mut report = WorkerReport::default();
        let mut pulse = WorkerPulse::start(self.queue.clone(), self.settings.lease_duration).await?;
        loop {
            self.metrics.note_start(pulse.name(), self.concurrency);
            let end = self.work_as(Arc::new(pulse), idle, &mut inbox, &mut report).await;
            if end == WorkEnd::Stopped {
                return Ok(report);
            }
            match self.register_again().await {
                Some(registered) => pulse = registered,
                None => return Ok(report),
            }
        }
    }

    /// Registers the worker under a new name after its lease was lost, as soon as the store takes it. Returns `None` if the
    /// worker is told to drain first.
    async fn register_again(&self) -> Option<WorkerPulse> {
        let mut attempt = 0;
        loop {
            match WorkerPulse::start(self.queue.clone(), self.settings.lease_duration).await {
                Ok(pulse) => return Some(pulse),
                Err(error) => tracing::warn!(%error, "the worker could not be registered again yet"),
            }
            attempt = (attempt + 1).min(MAX_REGISTRATION_DOUBLINGS);
            tokio::select! {
                () = self.stop.token.cancelled() => return None,
                () = tokio::time::sleep(self.poll_interval * (1 << attempt)) => {}
            }
        }
    }

    /// Works under one name.
    async fn work_as(
        &self,
        pulse: Arc<WorkerPulse>,
        idle: IdlePolicy,
        inbox: &mut Option<DispatchInbox>,
        report: &mut WorkerReport,
    ) -> WorkEnd {
        let mut others = OtherWorkers::default();
        let mut calendar = RegularCheck::default();
        let mut unfired = UnfiredSchedules::default();
        let mut active = ActiveSegments::default();
        while !self.stop.token.is_cancelled() && !pulse.is_lost() {
            if others.check.is_due(self.settings.lease_duration / 8)
                && self.run_until_stopped(others.retire_abandoned(&*self.queue, pulse.name())).await.is_none()
            {
                break;
            }
            if !active.by_run.is_empty() {
                look_for_followers(&self.queue);
            }
            if calendar.is_due(SCHEDULE_INTERVAL) {
                match self.run_until_stopped(fire_schedules(&*self.queue, wall_clock_now())).await {
                    Some(Ok(fired)) => unfired.report(pulse.name(), fired.failures),
                    Some(Err(error)) => {
                        tracing::warn!(worker = %pulse.name(), %error, "the schedules could not be fired");
                    }
                    None => break,
                }
            }
            let free = self.concurrency.saturating_sub(active.by_run.len());
            let limit = if inbox.is_some() { 0 } else { free };
            // Before the request: a run that becomes ready during it is not missed.
            let mut hint = self.queue.wait_for_work();
            let taken = self.run_until_stopped(self.take_work(pulse.name(), &mut active, limit, None)).await;
            let Some(taken) = taken else { break };
            let is_empty = taken.as_ref().is_ok_and(|work| work.runs.is_empty());
            match taken {
                Ok(work) => self.begin_segments(&mut active, &pulse, work),
                Err(error) if error.kind() == StoreErrorKind::Fenced => break,
                Err(error) => {
                    self.metrics.note_failed_request();
                    tracing::warn!(worker = %pulse.name(), %error, "no work could be taken");
                }
            }
            if let Some(inbox) = inbox {
                match self.run_until_stopped(self.take_dispatched(inbox, &mut active, &pulse)).await {
                    Some(WorkEnd::Stopped) => {}
                    Some(WorkEnd::Retired) | None => break,
                }
            }
            if is_empty && active.is_idle() && idle == IdlePolicy::Stop {
                self.queue.retire_worker(pulse.name(), None).await.ok();
                return WorkEnd::Stopped;
            }
            let receive = async {
                match inbox {
                    Some(inbox) => inbox.receive().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.stop.token.cancelled() => {}
                () = pulse.wait_until_lost() => {}
                Some(ended) = active.tasks.join_next_with_id() => {
                    self.note_end(ended, &mut active, report, inbox).await;
                    while let Some(ended) = active.tasks.try_join_next_with_id() {
                        self.note_end(ended, &mut active, report, inbox).await;
                    }
                }
                () = receive => {}
                () = &mut hint, if limit > 0 => {}
                () = tokio::time::sleep(self.poll_interval) => {}
            }
        }
        let is_retired = !self.stop.token.is_cancelled();
        for segment in active.by_run.values() {
            segment.control.stop();
        }
        while let Some(ended) = active.tasks.join_next_with_id().await {
            self.note_end(ended, &mut active, report, inbox).await;
        }
        match tokio::time::timeout(RETIRE_TIMEOUT, self.queue.retire_worker(pulse.name(), None)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(worker = %pulse.name(), %error, "the worker could not be retired");
            }
            Err(_) => {
                tracing::warn!(worker = %pulse.name(), "the store does not answer, so the lease expires")
            }
        }
        if !is_retired {
            return WorkEnd::Stopped;
        }
        self.metrics.note_retirement();
        WorkEnd::Retired
    }

    /// Awaits a request to the store. Returns `None` if the worker is told to drain first: a store that does not answer
    /// does not hold it up. Runs that such a request has taken are freed when the worker is retired.
    async fn run_until_stopped<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.token.cancelled() => None,
            result = request => Some(result),
        }
    }

    /// Takes the runs that the engine has asked for, as long as there is room. Returns `Retired` if the worker was retired.
    async fn take_dispatched(
        &self,
        inbox: &mut DispatchInbox,
        active: &mut ActiveSegments,
        pulse: &Arc<WorkerPulse>,
    ) -> WorkEnd {
        while active.by_run.len() < self.concurrency
            && let Some(run) = inbox.next_pending()
        {
            if !active.by_run.contains_key(&run) {
                match self.take_work(pulse.name(), active, 1, Some(run.clone())).await {
                    Ok(work) => self.begin_segments(active, pulse, work),
                    Err(error) if error.kind() == StoreErrorKind::Fenced => return WorkEnd::Retired,
                    Err(error) => {
                        self.metrics.note_failed_request();
                        inbox.answer_error(&run, &error);
                        continue;
                    }
                }
            }
            match active.by_run.contains_key(&run) {
                true => inbox.note_begin(&run),
                false => {
                    let offers = self.registry.offers();
                    inbox.answer_untaken(&run, &*self.queue, &offers, wall_clock_now()).await;
                }
            }
        }
        WorkEnd::Stopped
    }

    /// Begins the segments of newly taken runs, and passes all orders on.
    fn begin_segments(&self, active: &mut ActiveSegments, pulse: &Arc<WorkerPulse>, work: TakenWork) {
        let TakenWork { runs, orders } = work;
        self.metrics.note_taken(runs.len());
        let orders_of = |run: &RunId| orders.iter().filter(|order| order.run == *run).cloned().collect();
        for taken in runs {
            let run = taken.submission.run.clone();
            // A queue that offers a run while its segment ends offers it again after that.
            if active.by_run.contains_key(&run) {
                continue;
            }
            let control = Arc::new(SegmentControl::default());
            control.set_orders(orders_of(&run));
            if let Some(task) = self.spawn_segment(&mut active.tasks, taken, pulse, control.clone()) {
                active.by_run.insert(run, ActiveSegment { task, control });
            }
        }
        for (run, segment) in &active.by_run {
            segment.control.set_orders(orders_of(run));
        }
    }

    async fn take_work(
        &self,
        worker: &str,
        active: &mut ActiveSegments,
        limit: usize,
        only: Option<RunId>,
    ) -> Result<TakenWork, StoreError> {
        let request = WorkRequest {
            worker: worker.to_owned(),
            now: wall_clock_now(),
            held: Some(active.held_runs(only.as_ref())),
            offers: self.registry.offers(),
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            only,
        };
        self.queue.take_work(&request).await
    }

    async fn note_end(
        &self,
        ended: Result<(tokio::task::Id, SegmentOutcome), tokio::task::JoinError>,
        active: &mut ActiveSegments,
        report: &mut WorkerReport,
        inbox: &mut Option<DispatchInbox>,
    ) {
        let (task, outcome) = match ended {
            Ok((task, outcome)) => (task, outcome),
            Err(error) => {
                // The queue returns the run, which this worker still has there, with the next request.
                tracing::error!(%error, "a segment panicked");
                let (end, is_handed_over, lasted) = (SegmentEnd::Failed, false, Duration::ZERO);
                (error.id(), SegmentOutcome { end, is_handed_over, lasted })
            }
        };
        let Some(run) = active.remove_task(task) else { return };
        if outcome.is_handed_over {
            active.handed_over.insert(run.clone(), Instant::now() + self.settings.lease_duration);
        }
        report.count(outcome.end);
        self.metrics.note_segment(outcome.end, outcome.lasted);
        if let Some(watcher) = &self.watcher {
            watcher(&run, outcome.end);
        }
        if let Some(inbox) = inbox {
            inbox.answer_end(&run, &*self.queue, &self.registry.offers(), wall_clock_now()).await;
        }
    }

    /// Starts the task of a segment.
    fn spawn_segment(
        &self,
        tasks: &mut JoinSet<SegmentOutcome>,
        taken: TakenRun,
        pulse: &Arc<WorkerPulse>,
        control: Arc<SegmentControl>,
    ) -> Option<tokio::task::Id> {
        // Only offered agents are taken.
        let deployed = self.registry.find_agent(&taken.submission.agent)?.clone();
        let (queue, pulse) = (self.queue.clone(), pulse.clone());
        // The same for all segments of a run: one that could not be left does not shut the next one out.
        let owner = run_owner(pulse.name(), &taken.submission.run);
        let store = Arc::new(SegmentStore::new(queue.clone(), pulse.clone(), owner));
        let settings = self.settings.clone();
        let task = tasks.spawn(async move {
            let began = Instant::now();
            let (run, signals_seen) = (taken.submission.run.clone(), taken.signals);
            let segment = RunSegment { queue: queue.clone(), store, deployed, taken, settings, control };
            let result = segment.drive_caught(wall_clock_now).await;
            let SegmentResult { next, end, lease, orders_done, is_handed_over } = result;
            let departure = RunDeparture {
                worker: pulse.name().to_owned(),
                run: run.clone(),
                lease: lease.lease,
                status: lease.status,
                now: wall_clock_now(),
                signals_seen,
                orders_done,
                next,
            };
            let end = match leave_run(&*queue, &departure).await {
                Ok(()) => end,
                Err(error) if error.kind() == StoreErrorKind::Fenced => SegmentEnd::Lost,
                Err(error) => {
                    tracing::error!(%run, %error, "a segment could not be ended; the next request takes the run again");
                    SegmentEnd::Failed
                }
            };
            // A run that could not be left is still this worker's: nobody else may take it.
            let is_handed_over = is_handed_over && end == SegmentEnd::Left;
            SegmentOutcome { end, is_handed_over, lasted: began.elapsed() }
        });
        Some(task.id())
    }
}

/// Keeps the knowledge about followers of runs fresh, so that no model request waits for it.
fn look_for_followers(queue: &Arc<dyn RunQueue>) {
    if let Some(deltas) = queue.deltas() {
        let store: Arc<dyn Store> = queue.clone();
        deltas.followers().request_look_if_old(&store);
    }
}

/// Returns the time of the wall clock, which each driver of a run reads, too. A clock that was read earlier may be ahead of
/// it, and would wake runs before their time.
fn wall_clock_now() -> Timestamp {
    RunClock::start().now()
}

/// Ends a segment. A store that fails is asked again a few times.
async fn leave_run(queue: &dyn RunQueue, departure: &RunDeparture) -> Result<(), StoreError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match queue.leave_run(departure).await {
            Err(error) if error.kind() != StoreErrorKind::Fenced && attempt < MAX_LEAVE_ATTEMPTS => {
                tracing::warn!(run = %departure.run, %error, "a segment could not be ended yet");
                tokio::time::sleep(Duration::from_millis(50 << attempt)).await;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::DEFAULT_MAX_ATTEMPTS;

    #[test]
    fn a_run_outlasts_a_provider_that_is_away_for_half_an_hour() {
        let backoff = RetryBackoff::default();
        for run in ["run-1", "invoice-17", "tidy@1794987000"].map(RunId::from) {
            let waited: Duration =
                (1..DEFAULT_MAX_ATTEMPTS).map(|attempts| backoff.delay(&run, attempts)).sum();
            assert!(waited >= Duration::from_secs(1_800), "{run}: {waited:?}");
            assert!(backoff.delay(&run, DEFAULT_MAX_ATTEMPTS) <= backoff.max_delay);
        }
    }
}
