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
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use windlass_core::{
    failure::RunFailure,
    id::{AgentName, CallId, RunId},
    journal::{JournalEntry, RunCancelled, RunFailed},
    run::RunAction,
};

use crate::agent::{Agent, AgentGraph, ResolvedToolset};
use crate::artefact::RunArtefacts;
use crate::error::{ConfigError, RunError};
use crate::event::RunEventKind;
use crate::guardrail::ConcurrentGuardrails;
use crate::journal::{RunJournal, RunRecorder, WithheldOutputs};
use crate::lock_unpoisoned;
use crate::model::ModelError;
use crate::observe::UnannouncedRecord;
use crate::receipts::KeyScopes;
use crate::run::{
    CancelSignal, DriveError, ExitCallbacks, KeptResults, RunConfig, RunExit, RunRecord, RunResult, RunScope,
};
use crate::tasks::DecisionSignal;
use crate::tool::PreparedCall;

pub(crate) use self::given_response::GivenResponse;
pub(crate) use self::startup::run_agent;
pub(crate) use crate::run::RunSource;

/// The state that the drivers of one run share: the outermost driver and those of nested agents.
struct SharedRunState<C> {
    config: RunConfig<C>,
    journal: Arc<RunJournal>,
    recorder: Arc<RunRecorder>,
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
    scope: RunScope<C>,
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

impl<C: Send + Sync + 'static> Driver<C> {
    /// Creates the driver of a run.
    fn new(shared: Arc<SharedRunState<C>>, graph: AgentGraph<C>, scope: RunScope<C>) -> Self {
        Self {
            shared,
            graph: Arc::new(graph),
            scope,
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
        let agent = self.scope.with_run(|run| run.agent().clone());
        self.scope.emitter.emit(RunEventKind::AgentUpdated { agent }).await;
        self.scope.emitter.wait_until_handled().await;
        if is_fresh && (!self.scope.stop.is_cancelled() || self.shared.cancel.is_detaching()) {
            self.scope.update_session().await?;
        }
        if !is_fresh {
            // A driver that crashed may not have written everything to the session.
            self.scope.update_session().boxed().await?;
            let unannounced = std::mem::take(&mut self.unannounced);
            self.announce_again(unannounced).boxed().await;
            // A decision that was posted before its call expired counts, although no driver applied it in time.
            self.scope.apply_posted_decisions().boxed().await?;
            self.scope.reject_expired_calls().boxed().await?;
        }
        self.drive().await
    }

    /// Drives the run until it pauses or ends.
    async fn drive(&mut self) -> Result<RunExit, RunError> {
        loop {
            let next = self.scope.with_run(|run| run.next());
            if self.scope.stop.is_cancelled()
                && !matches!(next, RunAction::Ended)
                && !self.pauses_instead_of_cancelling(&next)
            {
                if self.shared.cancel.is_detaching() {
                    self.scope.update_session().await?;
                    return Ok(RunExit::Detached);
                }
                self.end_cancelled().boxed().await?;
                continue;
            }
            if matches!(next, RunAction::RequestModel { .. } | RunAction::MaxTurnsReached { .. })
                && self.is_detaching_after_turn()
            {
                self.scope.update_session().boxed().await?;
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
                    self.scope.emitter.wait_until_handled().await;
                    // A watcher may cancel on what it was just shown.
                    if self.scope.stop.is_cancelled() && !pauses_instead {
                        continue;
                    }
                    if self.scope.apply_posted_decisions().boxed().await? {
                        continue;
                    }
                    self.scope.update_session().boxed().await?;
                    return Ok(RunExit::Paused);
                }
                RunAction::Ended => return Ok(RunExit::Ended),
            };
            match moved {
                Ok(()) => {
                    self.has_worked = true;
                    self.scope.save_turn_to_session().await?;
                    if self.scope.is_outermost()
                        && self.scope.with_run(|run| run.is_awaiting_model())
                        && let Some(snapshot) = self.shared.journal.mark_turn_boundary()
                    {
                        self.shared.journal.save_snapshot(snapshot).boxed().await;
                    }
                }
                // A call ended the run while it is handed over: the next driver ends it, with its open calls.
                Err(DriveError::RunFailed(_))
                    if self.shared.cancel.is_detaching()
                        && self.scope.with_run(|run| !run.calls_in_flight().is_empty()) =>
                {
                    return Ok(RunExit::Detached);
                }
                Err(DriveError::RunFailed(failure)) => {
                    self.end_run(JournalEntry::RunFailed(RunFailed { failure: *failure })).boxed().await?;
                }
                // The next action decides whether the run is cancelled, pauses instead, or is handed over.
                Err(DriveError::Cancelled) if self.scope.stop.is_cancelled() => {}
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
        self.scope.is_outermost() && self.has_worked && self.shared.cancel.is_due_after_turn()
    }

    /// Returns true if the driver of the outermost run is to leave it now that a turn has settled.
    fn is_detaching_after_turn(&self) -> bool {
        self.scope.is_outermost() && self.has_worked && self.shared.cancel.is_detaching_after_turn()
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
        match self.scope.record_entry(end).await {
            Ok(()) => self.scope.save_turn_to_session().await,
            Err(DriveError::Aborted(error)) => Err(*error),
            Err(DriveError::RunFailed(_) | DriveError::Cancelled) => Ok(()),
        }
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

    fn find_agent(&self, name: &AgentName) -> Result<Agent<C>, ConfigError> {
        self.graph.find_agent(name).cloned()
    }
}
