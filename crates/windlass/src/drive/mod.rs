//! The driver: executes the actions of the run state machine and records their results.
//!
//! Invariant: there is one path. Fresh, resumed, streamed and nested runs all go through [`Driver::drive`]. The
//! calls of one driver run as futures of one task, so the lock of the run state is never contended. Bodies that
//! are not known to be quick run in tasks of their own, so that a blocking body delays no other.

mod announce_again;
mod body;
mod call;
mod decision_signal;
mod finish;
mod gate;
mod given_response;
mod handoff;
mod input_guardrails;
mod model;
mod nested_agent;
mod output;
mod output_text;
mod prepare;
mod receipts;
mod run_session;
mod session_hold;
mod startup;
mod stop;
mod turn;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    decision::{Decision, DecisionScope, PendingCall},
    failure::RunFailure,
    id::{AgentName, CallId, RunId},
    journal::{DecisionRecorded, JournalEntry, JournalRecord, RunCancelled, RunFailed, RunStarted},
    run::{ApplyError, Run, RunAction, RunEnd},
};

use crate::agent::{Agent, AgentGraph, ResolvedToolset};
use crate::artefact::RunArtefacts;
use crate::error::{ConfigError, FailedRun, RunError, StoreError, truncate_message};
use crate::event::{EventEmitter, RunEventKind};
use crate::guardrail::panic_message;
use crate::hook::{Hook, HookError, HookEvent};
use crate::journal::{EnqueuedEntry, PendingWrite, RunJournal, WithheldOutputs};
use crate::lock_unpoisoned;
use crate::model::ModelError;
use crate::observe::{HookObservation, LiveEvents, UnannouncedRecord};
use crate::receipts::{KeyScopes, ReceiptCache};
use crate::redaction::SecretRegistry;
use crate::run::{
    CancelSettlement, CancelSignal, CancelledRun, ExitCallbacks, FinishedRun, KeptResults, PausedRun,
    RunConfig, RunRecord, RunResult,
};
use crate::session::SessionWrite;
use crate::store::{Durability, PostedDecision, RunStatus};
use crate::tool::RunContext;

use self::decision_signal::DecisionSignal;
use self::input_guardrails::ConcurrentGuardrails;
use self::prepare::PreparedCall;
use self::run_session::RunSession;

pub(crate) use self::given_response::GivenResponse;
pub(crate) use self::startup::run_agent;
pub(crate) use crate::run::RunSource;

/// The state that the drivers of one run share: the outermost driver and those of nested agents.
struct SharedRunState<C> {
    app: Arc<C>,
    config: RunConfig<C>,
    journal: Arc<RunJournal>,
    receipt_cache: Arc<ReceiptCache>,
    key_scopes: Arc<KeyScopes>,
    secrets: SecretRegistry,
    artefacts: Arc<RunArtefacts>,
    cancel: CancelSignal,
    draining_calls: Mutex<Vec<CallId>>,
    run_id: RunId,
    /// The run with its nested runs.
    run: Mutex<Run>,
    withheld: WithheldOutputs,
    /// Permits for the bodies of the whole run, nested agents included.
    body_permits: Option<Arc<Semaphore>>,
    decisions: DecisionSignal,
    /// True if a call may wait for a person.
    has_held_calls: AtomicBool,
    events: LiveEvents,
}

/// Drives one run: the outermost, or one nested in a call.
struct Driver<C> {
    shared: Arc<SharedRunState<C>>,
    graph: Arc<AgentGraph<C>>,
    /// Calls that contain this run; empty for the outermost.
    parent_calls: Arc<[CallId]>,
    run_id: RunId,
    emitter: EventEmitter,
    /// Token that cancels this run immediately.
    stop: CancellationToken,
    hooks: Vec<Hook<C>>,
    /// True if the run is watched, or one of its agents may have hooks.
    is_observed: bool,
    session: Option<RunSession>,
    /// Agent whose start this driver has announced.
    announced_agent: Option<AgentName>,
    tools: Option<Arc<ResolvedToolset<C>>>,
    /// Prepared calls of the last model response.
    prepared_calls: VecDeque<(CallId, PreparedCall<C>)>,
    /// Guardrails that run concurrently with the model, if any.
    concurrent_guardrails: Mutex<Option<Box<ConcurrentGuardrails>>>,
    has_run_guardrails: bool,
    model_error: Option<Box<ModelError>>,
    /// True once this driver has carried out an action of the run.
    has_worked: bool,
    /// Callbacks for the exit of this driver.
    at_end: ExitCallbacks,
    /// Records that the last driver of the run may not have announced.
    unannounced: Vec<UnannouncedRecord>,
}

/// An entry that was applied and has its place in the journal.
struct RecordedEntry<'a> {
    seq: u64,
    durability: Durability,
    writing: Option<PendingWrite<'a>>,
    for_hooks: Option<HookObservation>,
}

/// The reason why a driver leaves its loop.
enum DriveEnd {
    Paused,
    Ended,
    /// The run stays open for another driver.
    Detached,
}

/// The reason why a step of the driver did not complete.
enum DriveError {
    /// The run fails with this failure.
    RunFailed(Box<RunFailure>),
    /// The run was cancelled.
    Cancelled,
    /// This driver cannot continue; the run keeps its state.
    Aborted(Box<RunError>),
}

impl From<RunFailure> for DriveError {
    fn from(failure: RunFailure) -> Self {
        Self::RunFailed(failure.into())
    }
}

impl From<RunError> for DriveError {
    fn from(error: RunError) -> Self {
        Self::Aborted(error.into())
    }
}

impl From<ConfigError> for DriveError {
    fn from(error: ConfigError) -> Self {
        RunError::from(error).into()
    }
}

impl From<StoreError> for DriveError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Creates the driver of the run at the path of the emitter.
    fn new(
        shared: Arc<SharedRunState<C>>,
        graph: AgentGraph<C>,
        (parent_calls, run_id): (Arc<[CallId]>, RunId),
        emitter: EventEmitter,
        stop: CancellationToken,
        hooks: Vec<Hook<C>>,
    ) -> Self {
        Self {
            is_observed: emitter.is_watched() || !hooks.is_empty() || graph.has_hooks(),
            shared,
            graph: Arc::new(graph),
            parent_calls,
            run_id,
            emitter,
            stop,
            hooks,
            session: None,
            announced_agent: None,
            tools: None,
            prepared_calls: VecDeque::new(),
            concurrent_guardrails: Mutex::default(),
            has_run_guardrails: false,
            model_error: None,
            has_worked: false,
            at_end: ExitCallbacks::default(),
            unannounced: Vec::new(),
        }
    }

    async fn start_driving(&mut self, is_fresh: bool) -> Result<DriveEnd, RunError> {
        let agent = self.with_run(|run| run.agent().clone());
        self.emitter.emit(RunEventKind::AgentUpdated { agent }).await;
        self.emitter.wait_until_handled().await;
        if is_fresh && (!self.stop.is_cancelled() || self.shared.cancel.is_detaching()) {
            self.update_session().await?;
        }
        if !is_fresh {
            // A driver that crashed may not have written everything to the session.
            self.update_session().boxed().await?;
            let unannounced = std::mem::take(&mut self.unannounced);
            self.announce_again(unannounced).boxed().await;
            // A decision that was posted before its call expired counts, although no driver applied it in time.
            self.apply_posted_decisions().boxed().await?;
            self.reject_expired_calls().boxed().await?;
        }
        self.drive().await
    }

    /// Drives the run until it pauses or ends.
    async fn drive(&mut self) -> Result<DriveEnd, RunError> {
        loop {
            let next = self.with_run(|run| run.next());
            if self.stop.is_cancelled()
                && !matches!(next, RunAction::Ended)
                && !self.pauses_instead_of_cancelling(&next)
            {
                if self.shared.cancel.is_detaching() {
                    self.update_session().await?;
                    return Ok(DriveEnd::Detached);
                }
                self.end_cancelled().boxed().await?;
                continue;
            }
            let pauses_instead = self.pauses_instead_of_cancelling(&next);
            let moved = match next {
                RunAction::RequestModel { .. } | RunAction::MaxTurnsReached { .. }
                    if self.is_stopping_after_turn() =>
                {
                    Err(DriveError::Cancelled)
                }
                RunAction::RequestModel { .. } if self.has_given_response() => {
                    self.take_given_response().boxed().await
                }
                RunAction::RequestModel { turn, .. } => self.request_model(turn).boxed().await,
                RunAction::AdvanceCalls => self.work_on_calls().await,
                // Rare actions are boxed, so that they do not enlarge the future of every run.
                RunAction::MaxTurnsReached { max_turns } => {
                    self.fail_or_handle(RunFailure::MaxTurnsExceeded { max_turns }).boxed().await
                }
                RunAction::HandOff { call, from, to, arguments } => {
                    self.hand_off(call, from, to, arguments).boxed().await
                }
                RunAction::EvaluateResults { agent } => self.evaluate_results(&agent).boxed().await,
                RunAction::Finish(candidate) => self.finish_run(candidate).boxed().await,
                RunAction::Fail(failure) => Err(failure.into()),
                RunAction::Pause(_) => {
                    self.emitter.wait_until_handled().await;
                    // A watcher may cancel on what it was just shown.
                    if self.stop.is_cancelled() && !pauses_instead {
                        continue;
                    }
                    if self.apply_posted_decisions().boxed().await? {
                        continue;
                    }
                    self.update_session().boxed().await?;
                    return Ok(DriveEnd::Paused);
                }
                RunAction::Ended => return Ok(DriveEnd::Ended),
            };
            match moved {
                Ok(()) => {
                    self.has_worked = true;
                    self.save_turn_to_session().await?;
                    if self.parent_calls.is_empty()
                        && self.with_run(|run| run.is_awaiting_model())
                        && let Some(snapshot) = self.shared.journal.mark_turn_boundary()
                    {
                        self.shared.journal.save_snapshot(snapshot).boxed().await;
                    }
                }
                // A call ended the run while it is handed over: the next driver ends it, with its open calls.
                Err(DriveError::RunFailed(_))
                    if self.shared.cancel.is_detaching()
                        && self.with_run(|run| !run.calls_in_flight().is_empty()) =>
                {
                    return Ok(DriveEnd::Detached);
                }
                Err(DriveError::RunFailed(failure)) => {
                    self.end_run(JournalEntry::RunFailed(RunFailed { failure: *failure })).boxed().await?;
                }
                // The next action decides whether the run is cancelled, pauses instead, or is handed over.
                Err(DriveError::Cancelled) if self.stop.is_cancelled() => {}
                Err(DriveError::Cancelled) => self.end_cancelled().boxed().await?,
                Err(DriveError::Aborted(error)) => return Err(*error),
            }
        }
    }

    /// Returns true if a cancelled run pauses instead, because it keeps its approvals and nothing else is open.
    fn pauses_instead_of_cancelling(&self, next: &RunAction) -> bool {
        matches!(next, RunAction::Pause(_)) && self.shared.cancel.keeps_approvals()
    }

    /// Returns true if the outermost run is to stop now that a turn has settled. A request that came before the first
    /// turn of this driver lets that turn settle.
    fn is_stopping_after_turn(&self) -> bool {
        self.parent_calls.is_empty() && self.has_worked && self.shared.cancel.is_due_after_turn()
    }

    /// Applies the decisions posted in the store. Returns true if there were any.
    async fn apply_posted_decisions(&self) -> Result<bool, RunError> {
        if !self.parent_calls.is_empty() {
            return Ok(false);
        }
        let mut took_any = false;
        for PostedDecision { path, attempt, decision, .. } in
            self.shared.journal.load_posted_decisions().await?
        {
            let is_posted = |one: &PendingCall| one.path == path && one.attempt == attempt;
            let is_pending = self.with_root(|run| run.pending_calls().iter().any(is_posted));
            let entry = JournalEntry::DecisionRecorded(decision);
            if is_pending {
                took_any |= self.record_decision(path.parent_calls(), entry).await?;
            }
        }
        Ok(took_any)
    }

    /// Rejects the pending calls whose approval has expired.
    async fn reject_expired_calls(&self) -> Result<(), RunError> {
        let now = self.shared.journal.now();
        let pending = self.with_root(|run| run.pending_calls());
        for pending in pending.into_iter().filter(|pending| pending.is_expired(now)) {
            let entry = JournalEntry::DecisionRecorded(DecisionRecorded {
                call: pending.call().clone(),
                digest: pending.digest,
                decision: Decision::Reject {
                    message: Some(windlass_core::run::model_text::APPROVAL_EXPIRED.to_owned()),
                },
                scope: DecisionScope::ThisCall,
                decided_by: Some("expiry".to_owned()),
                displayed: None,
                posted_revision: 0,
            });
            self.record_decision(pending.path.parent_calls(), entry).await?;
        }
        Ok(())
    }

    /// Records a decision. Returns false if it does not fit the call any more.
    async fn record_decision(&self, path: &[CallId], entry: JournalEntry) -> Result<bool, RunError> {
        if lock_unpoisoned(&self.shared.run).apply_at(path, &entry).is_err() {
            return Ok(false);
        }
        self.shared.journal.append(path, entry).await?;
        Ok(true)
    }

    fn run_status(&self, stop: &DriveEnd) -> RunStatus {
        match (stop, self.with_run(|run| run.outcome().cloned())) {
            (DriveEnd::Paused, _) => RunStatus::Paused,
            (DriveEnd::Detached, _) | (DriveEnd::Ended, None) => RunStatus::Running,
            (DriveEnd::Ended, Some(RunEnd::Finished(_))) => RunStatus::Finished,
            (DriveEnd::Ended, Some(RunEnd::Failed(_))) => RunStatus::Failed,
            (DriveEnd::Ended, Some(RunEnd::Cancelled)) => RunStatus::Cancelled,
        }
    }

    /// Ends the run as cancelled. All started calls have settled by now.
    async fn end_cancelled(&mut self) -> Result<(), RunError> {
        let draining = std::mem::take(&mut *lock_unpoisoned(&self.shared.draining_calls));
        self.end_run(JournalEntry::RunCancelled(RunCancelled { draining_calls: draining })).await
    }

    async fn end_run(&mut self, end: JournalEntry) -> Result<(), RunError> {
        match self.end_calls_in_flight().await {
            // An observer that cannot be notified does not keep the run from ending.
            Ok(()) | Err(DriveError::RunFailed(_) | DriveError::Cancelled) => {}
            Err(DriveError::Aborted(error)) => return Err(*error),
        }
        match self.record_entry(end).await {
            Ok(()) => self.save_turn_to_session().await,
            Err(DriveError::Aborted(error)) => Err(*error),
            Err(DriveError::RunFailed(_) | DriveError::Cancelled) => Ok(()),
        }
    }

    /// Applies an entry to the run state, and waits until the journal has it and its events are delivered.
    async fn record_entry(&self, entry: JournalEntry) -> Result<(), DriveError> {
        self.wait_recorded(self.apply_and_enqueue(entry)?).await.map(|_| ())
    }

    /// Records an entry as [`Driver::record_entry`] does, and returns its observation for hooks.
    async fn record_observed(&self, entry: JournalEntry) -> Result<Option<HookObservation>, DriveError> {
        self.wait_recorded(self.apply_and_enqueue(entry)?).await
    }

    /// Applies an entry to the run state and enqueues it for the journal. [`Driver::wait_recorded`] waits for the store.
    fn apply_and_enqueue(&self, entry: JournalEntry) -> Result<RecordedEntry<'_>, DriveError> {
        let before = self.session_items_before(&entry);
        self.apply_and_enqueue_at(&self.parent_calls, entry, before)
    }

    /// Applies an entry to the run at a path as [`Driver::apply_and_enqueue`] does.
    fn apply_and_enqueue_at(
        &self,
        path: &[CallId],
        entry: JournalEntry,
        session_write: Option<SessionWrite>,
    ) -> Result<RecordedEntry<'_>, DriveError> {
        let applied = lock_unpoisoned(&self.shared.run).apply_at(path, &entry);
        let applied = applied.map_err(|why| self.invalid_entry_error(&why))?;
        if let Some(receipt) = applied.receipt {
            self.shared.receipt_cache.insert_receipt(receipt, self.shared.journal.now());
        }
        let session_write = session_write.or_else(|| self.session_items_at_end());
        // Watchers and hooks in this process see secrets, which the journal does not.
        let observed = self.is_observed.then(|| entry.clone());
        let entry = self.shared.secrets.redact_entry(path, entry);
        let EnqueuedEntry { seq, at, durability, writing } =
            self.shared.journal.enqueue(path, entry, session_write)?;
        let for_hooks = observed.and_then(|entry| {
            let record = JournalRecord { seq, at, path: path.to_vec(), entry };
            self.with_root(|root| self.shared.events.observe(&record, root))
        });
        Ok(RecordedEntry { seq, durability, writing, for_hooks })
    }

    /// Waits until an entry is durable, where its kind requires it, and delivers the events up to it.
    async fn wait_recorded(
        &self,
        recorded: RecordedEntry<'_>,
    ) -> Result<Option<HookObservation>, DriveError> {
        if let Some(writing) = recorded.writing {
            writing.await?;
        }
        if self.is_observed && recorded.durability == Durability::Sync {
            self.shared.events.deliver(recorded.seq, &self.emitter).await;
        }
        Ok(recorded.for_hooks)
    }

    /// Returns the error for an entry that the run state rejected: a defect of the driver, after which the run
    /// must not continue.
    fn invalid_entry_error(&self, why: &ApplyError) -> DriveError {
        StoreError::new(format!("run `{}` would become invalid: {why}", self.run_id)).into()
    }

    fn into_outcome(self: Box<Self>, stop: DriveEnd) -> Result<RunResult, RunError> {
        let run = {
            let mut run = lock_unpoisoned(&self.shared.run);
            let nothing = Run::start(RunStarted::new(self.shared.run_id.clone(), run.agent().clone()));
            std::mem::replace(&mut *run, nothing)
        };
        let (records, usage) = self.shared.journal.take_records();
        let end = run.outcome().cloned();
        let record = RunRecord { run, records, usage };
        let kept = KeptResults {
            receipts: self.shared.receipt_cache.all_receipts(),
            withheld: self.shared.withheld.in_memory(),
            session: self.session.as_ref().map(|session| session.session().clone()),
        };
        match (stop, end) {
            (DriveEnd::Paused, _) | (DriveEnd::Ended, None) => {
                Ok(RunResult::Paused(PausedRun::new(record, kept)))
            }
            (DriveEnd::Detached, _) => Ok(RunResult::Detached(PausedRun::new(record, kept))),
            (DriveEnd::Ended, Some(RunEnd::Finished(output))) => {
                Ok(RunResult::Finished(FinishedRun { output, record }))
            }
            (DriveEnd::Ended, Some(RunEnd::Failed(failure))) => {
                let model_error = self.model_error.map(|error| *error);
                Err(RunError::Failed(Box::new(FailedRun { failure, record, model_error })))
            }
            (DriveEnd::Ended, Some(RunEnd::Cancelled)) => {
                let settlement = CancelSettlement::from_record(&record);
                Ok(RunResult::Cancelled(CancelledRun { settlement, record }))
            }
        }
    }

    fn run_context(&self, agent: &AgentName) -> RunContext<C> {
        RunContext::new(
            self.shared.app.clone(),
            self.run_id.clone(),
            agent.clone(),
            self.parent_calls.clone(),
        )
    }

    fn find_agent(&self, name: &AgentName) -> Result<Agent<C>, ConfigError> {
        self.graph.find_agent(name).cloned()
    }

    /// Notifies the hooks of the run and of the agent concurrently, and waits for all. Returns `None` if there
    /// are no hooks.
    fn notify_hooks<'a>(
        &'a self,
        agent: &'a Agent<C>,
        moment: impl FnOnce() -> HookEvent<C>,
    ) -> Option<BoxFuture<'a, Result<(), HookError>>> {
        if !self.has_hooks(agent) {
            return None;
        }
        let moment = moment();
        let told = self.hooks.iter().chain(&agent.inner.hooks).map(move |hook| hook.notify(moment.clone()));
        let told = futures_util::future::join_all(told);
        Some(async move { told.await.into_iter().collect() }.boxed())
    }

    fn has_hooks(&self, agent: &Agent<C>) -> bool {
        !self.hooks.is_empty() || !agent.inner.hooks.is_empty()
    }

    /// Notifies the hooks as [`Driver::notify_hooks`] does, and fails the run if a hook fails.
    async fn notify_hooks_or_fail(
        &self,
        agent: &Agent<C>,
        moment: impl FnOnce() -> HookEvent<C>,
    ) -> Result<(), DriveError> {
        let mut name = "";
        let told = self.notify_hooks(agent, || {
            let moment = moment();
            name = moment.name();
            moment
        });
        let Some(told) = told else { return Ok(()) };
        self.unless_stopped(told).await?.map_err(|error| {
            RunFailure::HookFailed { hook: name.to_owned(), message: truncate_message(error.to_string()) }
                .into()
        })
    }

    /// Returns the result of application code, or an error if the run is cancelled first. A panic fails the run.
    async fn unless_stopped<F: Future>(&self, future: F) -> Result<F::Output, DriveError> {
        call_unless_stopped(&self.stop, future).await
    }

    /// Reads the state of the run that this driver drives.
    fn with_run<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        let root = lock_unpoisoned(&self.shared.run);
        // The nested run exists as long as its call is open, which it is while this driver works on it.
        read(root.at_path(&self.parent_calls).unwrap_or(&root))
    }

    /// Reads the state of the outermost run.
    fn with_root<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        read(&lock_unpoisoned(&self.shared.run))
    }
}

/// Returns the result of application code, or an error if `stop` is cancelled first. A panic is a failure of the run.
async fn call_unless_stopped<F: Future>(
    stop: &CancellationToken,
    future: F,
) -> Result<F::Output, DriveError> {
    let called = stop::unless_stopped(stop, AssertUnwindSafe(future).catch_unwind()).await;
    called.ok_or(DriveError::Cancelled)?.map_err(application_panicked)
}

/// Returns the failure of a run whose application code panicked.
fn application_panicked(panic: Box<dyn std::any::Any + Send>) -> DriveError {
    RunFailure::ApplicationPanicked { message: truncate_message(panic_message(&*panic)) }.into()
}
