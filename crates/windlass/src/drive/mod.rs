//! The driver: executes the actions of the run state machine and records their results.
//!
//! Invariant: there is one path. Fresh, resumed, streamed and nested runs all go through [`Driver::drive`]. The
//! calls of one driver run as futures of one task, so the lock of the run state is never contended. Bodies that
//! are not known to be quick run in tasks of their own, so that a blocking body delays no other.

mod announce_again;
mod call;
mod call_effects;
mod finish;

mod given_response;
mod handoff;
mod model;
mod nested_agent;

mod startup;
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
    decision::PendingCall,
    failure::RunFailure,
    id::{AgentName, CallId, RunId},
    journal::{JournalEntry, RunCancelled, RunFailed},
    run::{ApplyError, Run, RunAction},
};

use crate::agent::{Agent, AgentGraph, ResolvedToolset};
use crate::artefact::RunArtefacts;
use crate::error::{ConfigError, RunError, StoreError, truncate_message};
use crate::event::{EventEmitter, RunEventKind};
use crate::guardrail::{ConcurrentGuardrails, panic_message};
use crate::hook::{Hook, HookError, HookEvent};
use crate::journal::{RecordedEntry, RunJournal, RunRecorder, WithheldOutputs};
use crate::lock_unpoisoned;
use crate::model::ModelError;
use crate::observe::{HookObservation, UnannouncedRecord};
use crate::receipts::KeyScopes;
use crate::run::{CancelSignal, ExitCallbacks, KeptResults, RunConfig, RunExit, RunRecord, RunResult};
use crate::store::PostedDecision;
use crate::tasks::{DecisionSignal, unless_stopped};
use crate::tool::{PreparedCall, RunContext};

pub(crate) use self::given_response::GivenResponse;
pub(crate) use self::startup::run_agent;
pub(crate) use crate::run::RunSource;

/// The state that the drivers of one run share: the outermost driver and those of nested agents.
struct SharedRunState<C> {
    app: Arc<C>,
    config: RunConfig<C>,
    journal: Arc<RunJournal>,
    recorder: RunRecorder,
    key_scopes: Arc<KeyScopes>,
    artefacts: Arc<RunArtefacts>,
    cancel: CancelSignal,
    draining_calls: Mutex<Vec<CallId>>,
    run_id: RunId,
    withheld: WithheldOutputs,
    /// Permits for the bodies of the whole run, nested agents included.
    body_permits: Option<Arc<Semaphore>>,
    decisions: DecisionSignal,
    /// True if a call may wait for a person.
    has_held_calls: AtomicBool,
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

    async fn start_driving(&mut self, is_fresh: bool) -> Result<RunExit, RunError> {
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
    async fn drive(&mut self) -> Result<RunExit, RunError> {
        loop {
            let next = self.with_run(|run| run.next());
            if self.stop.is_cancelled()
                && !matches!(next, RunAction::Ended)
                && !self.pauses_instead_of_cancelling(&next)
            {
                if self.shared.cancel.is_detaching() {
                    self.update_session().await?;
                    return Ok(RunExit::Detached);
                }
                self.end_cancelled().boxed().await?;
                continue;
            }
            if matches!(next, RunAction::RequestModel { .. } | RunAction::MaxTurnsReached { .. })
                && self.is_detaching_after_turn()
            {
                self.update_session().boxed().await?;
                return Ok(RunExit::Detached);
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
                    return Ok(RunExit::Paused);
                }
                RunAction::Ended => return Ok(RunExit::Ended),
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
                    return Ok(RunExit::Detached);
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

    /// Returns true if the driver of the outermost run is to leave it now that a turn has settled.
    fn is_detaching_after_turn(&self) -> bool {
        self.parent_calls.is_empty() && self.has_worked && self.shared.cancel.is_detaching_after_turn()
    }

    /// Applies the decisions posted in the store. Returns true if there were any.
    async fn apply_posted_decisions(&self) -> Result<bool, RunError> {
        if !self.parent_calls.is_empty() {
            return Ok(false);
        }
        let mut took_any = false;
        let posted = self.shared.journal.load_posted_decisions().await?;
        self.emit_store_warnings().await;
        for PostedDecision { path, attempt, decision, .. } in posted {
            let is_posted = |one: &PendingCall| one.path == path && one.attempt == attempt;
            let is_pending = self.with_root(|run| run.pending_calls().iter().any(is_posted));
            let entry = JournalEntry::DecisionRecorded(decision);
            if is_pending {
                took_any |= self.shared.recorder.record_decision(path.parent_calls(), entry).await?;
            }
        }
        Ok(took_any)
    }

    /// Emits the warnings about things in the store that are not authentic.
    async fn emit_store_warnings(&self) {
        for message in self.shared.journal.take_warnings() {
            self.emit_warning(message).await;
        }
    }

    /// Rejects the pending calls whose approval has expired.
    async fn reject_expired_calls(&self) -> Result<(), RunError> {
        let now = self.shared.journal.now();
        for (path, rejection) in self.with_root(|run| run.expired_rejections(now)) {
            self.shared.recorder.record_decision(path.parent_calls(), rejection).await?;
        }
        Ok(())
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
        Ok(self.shared.recorder.enqueue(&self.parent_calls, entry, self.is_observed, None)?)
    }

    /// Emits a warning. Texts of the application may repeat the secrets of a call.
    async fn emit_warning(&self, message: String) {
        let message = self.shared.recorder.secrets.mask_text(message);
        self.emitter.emit(RunEventKind::Warning { message }).await;
    }

    /// Waits until an entry is durable, where its kind requires it, and delivers the events up to it.
    async fn wait_recorded(
        &self,
        recorded: RecordedEntry<'_>,
    ) -> Result<Option<HookObservation>, DriveError> {
        let watcher = self.is_observed.then_some(&self.emitter);
        Ok(self.shared.recorder.wait_recorded(recorded, watcher).await?)
    }

    /// Writes the items of the last settled turn to a session that is not in the run's store.
    async fn save_turn_to_session(&self) -> Result<(), RunError> {
        match self.parent_calls.is_empty() {
            true => self.shared.recorder.save_turn_to_session().await,
            false => Ok(()),
        }
    }

    /// Writes all that the session lacks of the run.
    async fn update_session(&self) -> Result<(), RunError> {
        match self.parent_calls.is_empty() {
            true => self.shared.recorder.update_session().await,
            false => Ok(()),
        }
    }

    /// Returns the error for an entry that the run state rejected: a defect of the driver, after which the run
    /// must not continue.
    fn invalid_entry_error(&self, why: &ApplyError) -> DriveError {
        self.shared.recorder.invalid_entry_error(why).into()
    }

    /// Returns the result of a run that this driver leaves.
    fn into_result(self: Box<Self>, exit: RunExit) -> Result<RunResult, RunError> {
        let recorder = &self.shared.recorder;
        let (records, usage) = self.shared.journal.take_records();
        let record = RunRecord { run: recorder.take_run(), records, usage };
        let kept = KeptResults {
            receipts: recorder.receipt_cache.all_receipts(),
            withheld: self.shared.withheld.in_memory(),
            session: recorder.session().map(|session| session.session().clone()),
            mac_keys: self.shared.config.store.as_ref().and_then(|store| store.mac_keys().cloned()),
        };
        RunResult::after_exit(exit, record, kept, self.model_error.map(|error| *error))
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
        self.shared.recorder.with_run(&self.parent_calls, read)
    }

    /// Reads the state of the outermost run.
    fn with_root<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        self.shared.recorder.with_root(read)
    }
}

/// Returns the result of application code, or an error if `stop` is cancelled first. A panic is a failure of the run.
async fn call_unless_stopped<F: Future>(
    stop: &CancellationToken,
    future: F,
) -> Result<F::Output, DriveError> {
    let called = unless_stopped(stop, AssertUnwindSafe(future).catch_unwind()).await;
    called.ok_or(DriveError::Cancelled)?.map_err(application_panicked)
}

/// Returns the failure of a run whose application code panicked.
fn application_panicked(panic: Box<dyn std::any::Any + Send>) -> DriveError {
    RunFailure::ApplicationPanicked { message: truncate_message(panic_message(&*panic)) }.into()
}
