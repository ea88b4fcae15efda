//! The driver: executes the actions of the run state machine and records their results.
//!
//! Invariant: there is one path. Fresh, resumed, streamed and nested runs all go through [`Driver::drive`]. The
//! calls of one driver run as futures of one task, so the lock of the run state is never contended. Bodies run in tasks
//! or on threads of their own, so that a blocking body delays no other.

mod announce_again;
mod call;
mod finish;
mod handoff;
mod model;
mod nested_agent;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{
    budget::SpendingBudget,
    failure::RunFailure,
    id::AgentName,
    journal::{JournalEntry, RunCancelled, RunFailed},
    run::{RunAction, StopRequest},
};

use crate::agent::{Agent, AgentGraph, LoadedTools, ResolvedToolset};
use crate::context::ContextGauge;
use crate::error::{ConfigError, RunError};
use crate::event::{EventSender, RunEventKind};
use crate::guardrail::RunInputGuardrails;
use crate::model::ModelError;
use crate::observe::{UnannouncedRecord, trace_span::in_agent_span};
use crate::receipts::BodyLimit;
use crate::run::{
    CancelSignal, DriveError, ExitCallbacks, OpenedRun, RunConfig, RunExit, RunResult, RunScope,
    SharedRunState,
};
use crate::tasks::{EndingFailure, WokenRun};
use crate::tool::PreparedCalls;

pub(crate) use crate::run::RunSource;

/// Drives one run: the outermost, or one nested in a call.
struct Driver<C> {
    shared: Arc<SharedRunState<C>>,
    graph: Arc<AgentGraph<C>>,
    scope: RunScope<C>,
    /// The budgets of the agents that called this one.
    caller_budgets: Arc<[(AgentName, SpendingBudget)]>,
    /// Failure with which this run ends, before it is recorded.
    ending_failure: Arc<EndingFailure>,
    /// Agent whose start this driver has announced.
    announced_agent: Option<AgentName>,
    tools: Option<Arc<ResolvedToolset<C>>>,
    /// The limits on the bodies of the run's agents.
    agent_limits: BTreeMap<AgentName, Arc<BodyLimit>>,
    /// The deferred tools that the run has loaded.
    loaded_tools: LoadedTools,
    /// The relation between estimated tokens and those that the provider counted.
    context_gauge: ContextGauge,
    /// Prepared calls of the last model response.
    prepared_calls: PreparedCalls<C>,
    input_guardrails: RunInputGuardrails,
    model_error: Option<Box<ModelError>>,
    /// True once this driver has carried out an action of the run.
    has_worked: bool,
    /// Callbacks for the exit of this driver.
    at_end: ExitCallbacks,
    /// Records that the last driver of the run may not have announced.
    unannounced: Vec<UnannouncedRecord>,
}

/// Drives an agent's run from its source to an outcome.
pub(crate) fn run_agent<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: RunSource,
    app: Arc<C>,
    config: RunConfig<C>,
    cancel: CancelSignal,
    watched: Option<EventSender>,
) -> BoxFuture<'static, Result<RunResult, RunError>> {
    // Boxed separately, so that the state of the start-up is freed before the run is driven.
    let beginning = start_driver(agent, origin, app, config, cancel, watched).boxed();
    let run = in_agent_span(async move {
        let (mut driver, is_fresh) = beginning.await?;
        let shared = driver.shared.clone();
        let SharedRunState { withheld, journal, recorder, artefacts, config, .. } = &*shared;
        let withheld_calls = || recorder.with_root(|run| run.withheld_calls());
        let driven = async {
            for (name, body) in &config.artefacts {
                artefacts.save(name, body).boxed().await?;
            }
            if !is_fresh {
                withheld.restore(journal, &withheld_calls()).boxed().await.map_err(RunError::Store)?;
            }
            let driven = driver.start_driving(is_fresh).await;
            driver.at_end.run_callbacks(RunExit::of_driver(&driven)).boxed().await;
            let stop = driven?;
            if stop != RunExit::Ended {
                journal.mark_announced(driver.scope.is_observed).boxed().await;
                withheld.take_along(journal, withheld_calls()).boxed().await.map_err(RunError::Store)?;
            }
            recorder.release_session().boxed().await;
            let status = recorder.with_root(|run| stop.run_status(run));
            journal.release_run(status).await?;
            Ok(stop)
        }
        .await;
        match driven {
            Ok(stop) => shared.take_result(stop, driver.model_error),
            Err(error) => {
                recorder.release_session().boxed().await;
                journal.release_after_failure().boxed().await;
                Err(error)
            }
        }
    })
    .boxed();
    WokenRun::new(run).boxed()
}

/// Creates the driver of a run. The flag is true if the run is new.
async fn start_driver<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: RunSource,
    app: Arc<C>,
    config: RunConfig<C>,
    cancel: CancelSignal,
    watched: Option<EventSender>,
) -> Result<(Box<Driver<C>>, bool), RunError> {
    let graph = AgentGraph::new(&agent, &config.known_agents)?;
    graph.check_models(config.model.as_ref())?;
    let opened = SharedRunState::open(&agent, &graph, origin, app, config, cancel, watched).await?;
    let OpenedRun { shared, scope, unannounced, is_fresh } = opened;
    let mut driver = Driver::new(shared, graph, scope);
    driver.tools = driver.shared.config.given_response.as_ref().map(|given| given.tools.clone());
    driver.unannounced = unannounced;
    Ok((Box::new(driver), is_fresh))
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Creates the driver of a run.
    fn new(shared: Arc<SharedRunState<C>>, graph: AgentGraph<C>, scope: RunScope<C>) -> Self {
        Self {
            shared,
            graph: Arc::new(graph),
            scope,
            caller_budgets: Arc::default(),
            ending_failure: Arc::default(),
            announced_agent: None,
            tools: None,
            agent_limits: BTreeMap::new(),
            loaded_tools: LoadedTools::default(),
            context_gauge: ContextGauge::default(),
            prepared_calls: PreparedCalls::default(),
            input_guardrails: RunInputGuardrails::default(),
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
            let moved = match self.next_action() {
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
                RunAction::Fail(failure @ RunFailure::BudgetReached { .. }) => {
                    self.fail_or_handle(failure).boxed().await
                }
                RunAction::Fail(failure) => Err(failure.into()),
                RunAction::Cancel => {
                    self.end_cancelled().boxed().await?;
                    continue;
                }
                RunAction::Leave => {
                    self.scope.update_session().boxed().await?;
                    return Ok(RunExit::Detached);
                }
                RunAction::Pause(_) => {
                    self.scope.emitter.wait_until_handled().await;
                    // A watcher may cancel on what it was just shown.
                    if !matches!(self.next_action(), RunAction::Pause(_))
                        || self.scope.apply_posted_decisions().boxed().await?
                    {
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
                    self.end_run(Some(*failure)).boxed().await?;
                }
                // The next action says whether the run is cancelled, pauses instead, or is handed over.
                Err(DriveError::Cancelled) => {}
                Err(DriveError::Aborted(error)) => return Err(*error),
            }
        }
    }

    fn next_action(&self) -> RunAction {
        let request = match self.scope.stop.is_cancelled() {
            true => Some(self.stop_request()),
            // One that came before the first turn of this driver lets that turn settle.
            false if self.scope.is_outermost() && self.has_worked => self.shared.cancel.request_after_turn(),
            false => None,
        };
        self.scope.with_run(|run| run.next_action(request))
    }

    /// Returns the request under which this run stops now. A later driver goes on if this one leaves the run or cannot
    /// continue, and after a pause: the run keeps its approvals and has some, and its stopped calls stay open.
    fn stop_request(&self) -> StopRequest {
        let cancel = &self.shared.cancel;
        let has_pending =
            || self.shared.recorder.with_root(|run| !run.is_cancelling() && !run.pending_calls().is_empty());
        let ends_with_failure = || self.ending_failure.get().is_some() || self.scope.is_any_run_failing();
        if cancel.is_detaching() || self.shared.is_aborted.load(Ordering::Relaxed) {
            StopRequest::Leave
        } else if cancel.keeps_approvals() && has_pending() && !ends_with_failure() {
            StopRequest::Pause
        } else {
            StopRequest::Cancel
        }
    }

    /// Ends a run that stops: as cancelled, unless a failure stopped it. All started calls have settled by now.
    async fn end_cancelled(&mut self) -> Result<(), RunError> {
        self.end_run(self.ending_failure.get()).await
    }

    /// Ends the run: as failed, or as cancelled if there is no failure.
    async fn end_run(&mut self, failure: Option<RunFailure>) -> Result<(), RunError> {
        // An observer that cannot be notified does not keep the run from ending.
        self.end_calls_in_flight(failure.as_ref()).await.or_else(DriveError::into_abort)?;
        let draining_calls = self.shared.take_draining_calls(&self.scope.parent_calls);
        let end = match failure {
            Some(failure) => JournalEntry::RunFailed(RunFailed { failure, draining_calls }),
            None => JournalEntry::RunCancelled(RunCancelled { draining_calls }),
        };
        self.scope.record_entry(end).await.or_else(DriveError::into_abort)?;
        self.scope.save_turn_to_session().await
    }

    fn find_agent(&self, name: &AgentName) -> Result<Agent<C>, ConfigError> {
        self.graph.find_agent(name).cloned()
    }

    /// Returns the agent that has control.
    fn current_agent(&self) -> Result<Agent<C>, ConfigError> {
        self.scope.with_run(|run| self.find_agent(run.agent()))
    }

    /// Resolves the tools of an agent for a turn.
    async fn resolve_tools(&self, agent: &Agent<C>) -> Result<Arc<ResolvedToolset<C>>, DriveError> {
        let ctx = self.scope.run_context(agent.name());
        Ok(self.scope.unless_stopped(agent.resolve_toolset(&ctx, &self.graph)).await??)
    }
}
