//! The calls of a turn: paired with their tools, begun in the model's order, executed concurrently up to a limit, and independent of each other.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Sleep;
use windlass_core::{
    failure::RunFailure,
    id::CallId,
    run::{CallFeatures, CallOutcome, CallResult, RunAction, StopMode, ToolNeed, TurnSchedule},
};

use super::Driver;
use crate::agent::{Agent, ResolvedToolset, check_nested_run};
use crate::event::EventEmitter;
use crate::receipts::BodyLimit;
use crate::run::{DriveError, ResolvedCall};
use crate::tasks::{DecisionSignal, TurnStop, yield_to_others};
use crate::tool::{PreparedCall, ToolBody, TurnContext};

/// Number of call starts or completions after which the driver yields to the runtime. Quick bodies then end
/// while few siblings are open, and a turn of many calls does not monopolise a thread.
const CALLS_PER_YIELD: usize = 64;

/// The state that the calls of one turn share.
pub(super) struct TurnExecution<C> {
    pub(super) agent: Agent<C>,
    pub(super) tools: Arc<ResolvedToolset<C>>,
    /// Signals that stop the calls of this turn: the run was cancelled, or a call ends it.
    pub(super) stop: TurnStop,
    /// Data that the tool contexts of the calls share.
    pub(super) context: Arc<TurnContext<C>>,
    /// Checks that the run has for every call.
    pub(super) features: CallFeatures,
    /// The watcher of the run, for reports about bodies.
    pub(super) events: Arc<EventEmitter>,
    /// The agent's limit on bodies at once.
    pub(super) body_limit: Option<Arc<BodyLimit>>,
    /// True if the run ends and the calls in flight are only closed.
    pub(super) is_closing: bool,
    /// True while calls are being started, each up to its body.
    pub(super) starting_calls: AtomicBool,
}

/// The future of the work on one call, by its position.
type CallFuture<'a> = BoxFuture<'a, (usize, Result<CallOutcome, DriveError>)>;

/// The event that wakes the loop that waits for running calls.
enum TurnWake {
    CallEnded(usize, Result<CallOutcome, DriveError>),
    /// No call has ended since the last yield.
    Nothing,
    /// Decisions were recorded, or it is time to look for some.
    LookForDecisions,
    /// The drain timeout after a failure has passed.
    Drained,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the open calls until each has settled or waits for a person.
    pub(super) async fn work_on_calls(&mut self) -> Result<(), DriveError> {
        self.wait_for_guardrails().await?;
        let turn = self.new_turn_execution(false).await?;
        let calls = self.resolve_calls(&turn)?;
        self.run_calls(calls, &turn).await?;
        self.tools = Some(turn.tools);
        if let RunAction::Fail(failure) = self.scope.with_run(|run| run.next()) {
            return Err(failure.into());
        }
        if self.scope.stop.is_cancelled() {
            return Err(DriveError::Cancelled);
        }
        self.scope.emitter.wait_until_handled().await;
        Ok(())
    }

    async fn new_turn_execution(&mut self, is_closing: bool) -> Result<TurnExecution<C>, DriveError> {
        let agent = self.current_agent()?;
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => self.resolve_tools(&agent).boxed().await?,
        };
        let stop = TurnStop::new(&self.scope.stop, self.scope.drain.clone());
        let context = Arc::new(self.turn_context(&agent, &stop));
        let features = CallFeatures {
            checks_before_approval: self.shared.config.pre_approval_guardrails,
            has_permits: self.shared.body_limit.is_some() || agent.inner.max_concurrent_calls.is_some(),
            is_observed: self.scope.has_hooks(&agent),
            ..CallFeatures::default()
        };
        let starting_calls = AtomicBool::new(false);
        let body_limit = agent.inner.max_concurrent_calls.map(|limit| {
            let known = self.agent_limits.entry(agent.name().clone());
            known.or_insert_with(|| BodyLimit::new(limit)).clone()
        });
        let events = Arc::new(self.scope.emitter.clone());
        Ok(TurnExecution {
            features,
            agent,
            tools,
            stop,
            context,
            events,
            body_limit,
            is_closing,
            starting_calls,
        })
    }

    /// Returns the data that the tool contexts of a turn's calls share.
    pub(super) fn turn_context(&self, agent: &Agent<C>, stop: &TurnStop) -> TurnContext<C> {
        TurnContext {
            run_context: self.scope.run_context(agent.name()),
            parent_calls: self.scope.parent_calls.clone(),
            cancel_token: stop.token().clone(),
            is_observed: self.scope.has_hooks(agent) || self.scope.emitter.is_watched(),
            artefacts: self.shared.artefacts.clone(),
            exit_registry: self.at_end.registry(),
            number: self.scope.with_run(|run| run.turn()),
            key_scopes: self.shared.key_scopes.clone(),
            ownership: self.shared.journal.ownership(),
        }
    }

    /// Pairs every call that can make progress with its tool. Missing tools are detected before any call runs.
    fn resolve_calls(&mut self, turn: &TurnExecution<C>) -> Result<Vec<Option<ResolvedCall<C>>>, DriveError> {
        let mut fresh = std::mem::take(&mut self.prepared_calls);
        let calls = self.scope.with_run(|run| run.turn_calls());
        let mut resolved = Vec::with_capacity(calls.len());
        for (call, is_idle) in calls {
            resolved.push(match is_idle {
                true => None,
                false => Some(self.resolve_call(&call, fresh.take(&call), turn)?),
            });
        }
        Ok(resolved)
    }

    /// Pairs a call with its tool.
    fn resolve_call(
        &self,
        call: &CallId,
        fresh: Option<PreparedCall<C>>,
        turn: &TurnExecution<C>,
    ) -> Result<ResolvedCall<C>, DriveError> {
        match (self.scope.with_run(|run| run.tool_need(call)), fresh) {
            (ToolNeed::None, _) => Ok(ResolvedCall::WithoutTool),
            (ToolNeed::Required { has_edited_arguments: false } | ToolNeed::IfPresent, Some(fresh)) => {
                Ok(ResolvedCall::WithTool(fresh))
            }
            (ToolNeed::IfPresent, None) => Ok(self.scope.restore_unchecked_call(call, &turn.tools).into()),
            (ToolNeed::Required { .. }, _) => {
                let config = &self.shared.config;
                let restored =
                    self.scope.restore_call(call, &turn.agent, &turn.tools, &config.on_unknown_tool)?;
                let inside = self.scope.with_run(|run| run.nested_run(call).cloned());
                if let (ResolvedCall::WithTool(prepared), Some(child)) = (&restored, inside)
                    && let ToolBody::Agent(nested) = &prepared.tool.body
                {
                    let agent = self.graph.target_agent(&nested.target)?;
                    check_nested_run(&child, agent, &config.known_agents, &self.scope.call_path(call))?;
                }
                Ok(restored)
            }
        }
    }

    /// Runs the calls of the turn. Returns when no call is in progress and none can begin.
    async fn run_calls(
        &self,
        mut resolved: Vec<Option<ResolvedCall<C>>>,
        turn: &TurnExecution<C>,
    ) -> Result<(), DriveError> {
        let limits = [self.shared.config.max_concurrent_calls, turn.agent.inner.max_concurrent_calls];
        let limit = limits.into_iter().flatten().min().unwrap_or(usize::MAX);
        let mut schedule = self.scope.with_run(|run| TurnSchedule::new(run, limit));
        let mut running: FuturesUnordered<CallFuture<'_>> = FuturesUnordered::new();
        // The outermost driver looks for decisions itself, and announces them to those of nested agents.
        let is_nested = !self.scope.is_outermost();
        let mut decisions = match is_nested {
            true => self.shared.decisions.subscribe(),
            false => DecisionSignal::poll_store(self.shared.journal.ownership()),
        };
        let mut drain: Option<Pin<Box<Sleep>>> = None;
        let mut aborted = None;
        loop {
            let mut begun = 0;
            turn.starting_calls.store(true, Ordering::Relaxed);
            while begun < CALLS_PER_YIELD && !turn.stop.is_stopping() && aborted.is_none() {
                let Some((place, call)) = self.scope.with_run(|run| schedule.begin_call(run)) else { break };
                let found = match resolved.get_mut(place).and_then(Option::take) {
                    Some(found) => Ok(found),
                    // A decision came while its siblings ran.
                    None => self.resolve_call(&call, None, turn),
                };
                begun += 1;
                let ended = match found {
                    Ok(found) => {
                        // The set keeps one more in reserve, so those that it holds are small.
                        let mut call = self.execute_call(place, call, found, turn).boxed();
                        match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                            Poll::Ready((_, ended)) => ended,
                            Poll::Pending => {
                                running.push(call);
                                continue;
                            }
                        }
                    }
                    Err(error) => Err(error),
                };
                self.end_work(place, ended, &mut schedule, &mut aborted, turn);
            }
            turn.starting_calls.store(false, Ordering::Relaxed);
            let mut ended_count = 0;
            while ended_count < CALLS_PER_YIELD && !running.is_empty() {
                if turn.stop.has_failed() && drain.is_none() && !turn.stop.token().is_cancelled() {
                    drain = Some(Box::pin(tokio::time::sleep(self.scope.drain.timeout())));
                }
                let waits = begun < CALLS_PER_YIELD && ended_count == 0;
                let woken = poll_fn(|cx| {
                    if let Poll::Ready(Some((place, ended))) = running.poll_next_unpin(cx) {
                        return Poll::Ready(TurnWake::CallEnded(place, ended));
                    }
                    if let Some(timer) = &mut drain
                        && timer.as_mut().poll(cx).is_ready()
                    {
                        return Poll::Ready(TurnWake::Drained);
                    }
                    // A call inside a nested agent may have been held just now.
                    let looks =
                        self.shared.has_held_calls.load(Ordering::Relaxed) && !turn.stop.is_stopping();
                    if decisions.poll_due(looks, cx) {
                        return Poll::Ready(TurnWake::LookForDecisions);
                    }
                    if waits { Poll::Pending } else { Poll::Ready(TurnWake::Nothing) }
                });
                match woken.await {
                    TurnWake::CallEnded(place, ended) => {
                        ended_count += 1;
                        self.end_work(place, ended, &mut schedule, &mut aborted, turn);
                    }
                    TurnWake::Nothing => break,
                    TurnWake::Drained => {
                        drain = None;
                        turn.stop.stop_all();
                    }
                    TurnWake::LookForDecisions => {
                        if !is_nested && let Err(error) = self.look_for_decisions().boxed().await {
                            self.stop_after_error(&error, turn);
                            aborted.get_or_insert(error);
                        }
                        self.scope.with_run(|run| schedule.refresh(run));
                        break;
                    }
                }
            }
            if begun == 0 && running.is_empty() {
                break;
            }
            if begun == CALLS_PER_YIELD || ended_count == CALLS_PER_YIELD {
                yield_to_others().await;
            }
        }
        match aborted {
            Some(error) => Err(error),
            None if turn.stop.is_stopping() => self.close_unstarted_calls(turn).boxed().await,
            None => Ok(()),
        }
    }

    /// Takes in the end of the work on a call.
    fn end_work(
        &self,
        place: usize,
        ended: Result<CallOutcome, DriveError>,
        schedule: &mut TurnSchedule,
        aborted: &mut Option<DriveError>,
        turn: &TurnExecution<C>,
    ) {
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(error) => {
                self.stop_after_error(&error, turn);
                aborted.get_or_insert(error);
                CallOutcome::LeftOpen
            }
        };
        self.scope.with_run(|run| schedule.end_call(place, outcome, run));
    }

    /// Stops the calls of a turn after an error of the driver.
    fn stop_after_error(&self, error: &DriveError, turn: &TurnExecution<C>) {
        match error {
            DriveError::RunFailed(failure) => self.ending_failure.set(failure),
            DriveError::Cancelled => {}
            DriveError::Aborted(_) => self.shared.is_aborted.store(true, Ordering::Relaxed),
        }
        turn.stop.stop_all();
    }

    /// Applies the decisions that were posted while calls run, and wakes the drivers of nested agents.
    async fn look_for_decisions(&self) -> Result<(), DriveError> {
        if self.scope.apply_posted_decisions().await? {
            self.shared.decisions.announce();
        }
        let has_held_calls = self.scope.with_run(|run| !run.pending_calls().is_empty());
        self.shared.has_held_calls.store(has_held_calls, Ordering::Relaxed);
        Ok(())
    }

    /// Settles the calls that the end of the run kept from starting. A call that waits for a person keeps waiting, unless
    /// the run ends.
    async fn close_unstarted_calls(&self, turn: &TurnExecution<C>) -> Result<(), DriveError> {
        turn.stop.stop_all();
        if self.stop_mode() == StopMode::HandOver {
            return Ok(());
        }
        let calls = self.scope.with_run(|run| run.turn_calls());
        for (place, (call, is_idle)) in calls.into_iter().enumerate() {
            if is_idle || self.scope.with_run(|run| run.has_call_started(&call)) {
                continue;
            }
            let found = ResolvedCall::Unavailable(CallResult::cancelled());
            self.execute_call(place, call, found, turn).await.1?;
        }
        Ok(())
    }

    /// Settles the calls in flight of a run that ends: waiting nested agents, withheld outputs, and calls that an earlier
    /// driver started. Every announced start gets its announced end.
    pub(super) async fn end_calls_in_flight(
        &mut self,
        failure: Option<&RunFailure>,
    ) -> Result<(), DriveError> {
        let begun = self.scope.with_run(|run| run.calls_in_flight());
        if begun.is_empty() {
            return Ok(());
        }
        let turn = self.new_turn_execution(true).await?;
        if let Some(failure) = failure {
            self.ending_failure.set(failure);
        }
        turn.stop.stop_all();
        let closing = begun.into_iter().map(|call| {
            let found = self.scope.restore_unchecked_call(&call, &turn.tools).into();
            self.execute_call(0, call, found, &turn).map(|(_, ended)| ended)
        });
        // One that does not come back takes no time from the others.
        join_all(closing).await.into_iter().try_for_each(|ended| ended.map(drop))?;
        self.tools = Some(turn.tools);
        Ok(())
    }
}
