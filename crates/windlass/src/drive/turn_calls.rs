//! The calls of a turn: started in the model's order, executed concurrently up to a limit, and independent of
//! each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    call_map::CallMap,
    failure::RunFailure,
    id::CallId,
    journal::{CallSettled, CallStatus, JournalEntry},
    run::{CallAction, CallSettlement, model_text},
};

use super::call_execution::CallOutcome;
use super::prepare::{PreparedCall, RestoredCall};
use super::{DriveError, Driver};
use crate::agent::{Agent, ResolvedToolset};
use crate::hook::AfterCall;
use crate::tool::TurnContext;

/// Number of call starts or completions after which the driver yields to the runtime. Quick bodies then end
/// while few siblings are open, and a turn of many calls does not monopolise a thread.
const CALLS_PER_YIELD: usize = 64;

/// An action for a call, and the prepared call if its tool was found.
type QueuedCall<C> = (CallAction, Option<PreparedCall<C>>);

/// The state that the calls of one turn share.
pub(super) struct TurnExecution<C> {
    pub(super) agent: Agent<C>,
    pub(super) tools: Arc<ResolvedToolset<C>>,
    /// Token that stops the calls of this turn: the run was cancelled, or a call ends it.
    pub(super) stop: CancellationToken,
    /// Data that the tool contexts of the calls share.
    pub(super) context: Arc<TurnContext<C>>,
    /// True while calls are being started, each up to its body.
    starting_calls: AtomicBool,
}

impl<C> TurnExecution<C> {
    /// Returns true while siblings are still being started. One of them may end the run, and then no unstarted
    /// body may run. The loop that starts the calls polls each of them again.
    pub(super) fn is_starting_calls(&self) -> bool {
        self.starting_calls.load(Ordering::Relaxed)
    }
}

/// The failure or error that ends a turn.
#[derive(Default)]
struct TurnAbort {
    /// First failure in the model's order.
    failure: Option<(usize, Box<RunFailure>)>,
    error: Option<DriveError>,
}

impl TurnAbort {
    fn record_outcome<C>(
        &mut self,
        (place, end): (usize, CallOutcome),
        queue: &mut CallQueue<C>,
        turn: &TurnExecution<C>,
    ) {
        match end {
            CallOutcome::Settled => queue.release(place),
            // A call behind a held call stays in the queue.
            CallOutcome::Held | CallOutcome::LeftOpen => {}
            CallOutcome::FailsRun(fatal) => {
                queue.release(place);
                if self.failure.as_ref().is_none_or(|(first, _)| place < *first) {
                    self.failure = Some((place, fatal));
                }
                turn.stop.cancel();
            }
            CallOutcome::Aborted(halt) => {
                self.error.get_or_insert(halt);
                turn.stop.cancel();
            }
        }
    }
}

/// The calls that have not started, by position in the model's order.
struct CallQueue<C> {
    calls: Vec<Option<QueuedCall<C>>>,
    /// Next position to start among calls without a predecessor.
    next_index: usize,
    /// Followers by the position of their predecessor.
    followers: BTreeMap<usize, usize>,
    /// Positions of all calls with a predecessor.
    blocked: BTreeSet<usize>,
    /// Positions whose predecessor has settled.
    released: BTreeSet<usize>,
}

impl<C> CallQueue<C> {
    fn new(queued: Vec<QueuedCall<C>>) -> Self {
        let (mut behind, mut waiting) = (BTreeMap::new(), BTreeSet::new());
        if queued.iter().any(|(step, _)| step.predecessor().is_some()) {
            let mut places = CallMap::default();
            for (place, (step, _)) in queued.iter().enumerate() {
                if let Some(before) = step.predecessor() {
                    behind.extend(places.get(before).map(|before| (*before, place)));
                    waiting.insert(place);
                }
                places.insert(step.call().clone(), place);
            }
        }
        let calls = queued.into_iter().map(Some).collect();
        Self { calls, next_index: 0, followers: behind, blocked: waiting, released: BTreeSet::new() }
    }

    /// Returns the first call in the model's order that may start.
    fn pop(&mut self) -> Option<(usize, QueuedCall<C>)> {
        while self.blocked.contains(&self.next_index) {
            self.next_index += 1;
        }
        let place = match self.released.first() {
            Some(released) if *released < self.next_index || self.next_index >= self.calls.len() => *released,
            _ => self.next_index,
        };
        if !self.released.remove(&place) {
            self.next_index += 1;
        }
        let queued = self.calls.get_mut(place)?.take()?;
        if self.next_index == self.calls.len() && self.blocked.is_empty() {
            // Nothing comes any more, and the calls may run for long.
            self.calls = Vec::new();
        }
        Some((place, queued))
    }

    /// Allows the follower of this call to start.
    fn release(&mut self, place: usize) {
        self.released.extend(self.followers.remove(&place));
    }
}

/// Removes and returns a prepared call. Calls mostly come in the order in which they were prepared.
fn take_prepared<C>(
    fresh: &mut VecDeque<(CallId, PreparedCall<C>)>,
    call: &CallId,
) -> Option<PreparedCall<C>> {
    let place = fresh.iter().position(|(one, _)| one == call)?;
    fresh.remove(place).map(|(_, ready)| ready)
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Executes the open calls until each has settled or waits for a person.
    pub(super) async fn work_on_calls(&mut self, steps: Vec<CallAction>) -> Result<(), DriveError> {
        self.wait_for_guardrails().await?;
        let turn = self.new_turn_execution().await?;
        let queue = self.resolve_tools(steps, &turn.agent, &turn.tools)?;
        let failure = self.run_queue(queue, &turn).await?;
        self.tools = Some(turn.tools);
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        if self.stop.is_cancelled() {
            return Err(DriveError::Cancelled);
        }
        self.emit_turn_outputs().await;
        Ok(())
    }

    async fn new_turn_execution(&mut self) -> Result<TurnExecution<C>, DriveError> {
        let name = self.run().agent().clone();
        let agent = self.find_agent(&name)?;
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => {
                self.unless_stopped(agent.resolve_toolset(&self.run_context(&name), &self.graph))
                    .boxed()
                    .await??
            }
        };
        let stop = self.stop.child_token();
        let around = Arc::new(TurnContext {
            run_context: self.run_context(&name),
            parent_calls: self.parent_calls.clone(),
            cancel_token: stop.clone(),
            emitter: self.emitter.for_body(),
            artefacts: self.shared.artefacts.clone(),
            exit_registry: self.at_end.registry(),
            inherited_calls: self.run().inherited_calls().clone(),
        });
        Ok(TurnExecution { agent, tools, stop, context: around, starting_calls: AtomicBool::new(false) })
    }

    /// Pairs every call with its tool. Missing tools are detected before any call runs.
    fn resolve_tools(
        &mut self,
        steps: Vec<CallAction>,
        agent: &Agent<C>,
        tools: &ResolvedToolset<C>,
    ) -> Result<Vec<QueuedCall<C>>, DriveError> {
        let mut fresh = std::mem::take(&mut self.prepared_calls);
        let mut queue = Vec::with_capacity(steps.len());
        for step in steps {
            let edited = step.edited_arguments();
            let ready = match (&step, take_prepared(&mut fresh, step.call())) {
                (CallAction::Settle(_), _) => None,
                (_, Some(ready)) if edited.is_none() => Some(ready),
                (CallAction::ReportInvalidArguments(_), None) => {
                    self.restore_unchecked_call(step.call(), tools)
                }
                (_, _) => match self.restore_call(step.call(), edited, agent, tools)? {
                    RestoredCall::Prepared(ready) => Some(ready),
                    RestoredCall::Unavailable { status: how, message: text } => {
                        let settled = CallSettled::new(step.call().clone(), how, text);
                        queue.push((CallAction::Settle(CallSettlement { settled }), None));
                        continue;
                    }
                },
            };
            queue.push((step, ready));
        }
        Ok(queue)
    }

    /// Runs the queue, each call after its predecessor. Returns the failure that ends the run, if any; of
    /// several, the first in the model's order.
    async fn run_queue(
        &self,
        queue: Vec<QueuedCall<C>>,
        turn: &TurnExecution<C>,
    ) -> Result<Option<RunFailure>, DriveError> {
        let limit = self.shared.config.max_concurrent_calls.unwrap_or(usize::MAX);
        let mut queue = CallQueue::new(queue);
        let mut running = FuturesUnordered::new();
        let mut ends = TurnAbort::default();
        loop {
            let (mut begun, mut ended_at_once) = (0, Vec::new());
            turn.starting_calls.store(true, Ordering::Relaxed);
            while begun < CALLS_PER_YIELD && running.len() < limit && !turn.stop.is_cancelled() {
                let Some((place, (step, found))) = queue.pop() else { break };
                // The set keeps one more in reserve, so those that it holds are small.
                let mut call = self.execute_call(place, step, found, turn).boxed();
                match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    Poll::Ready(end) => ended_at_once.push(end),
                    Poll::Pending => running.push(call),
                }
                begun += 1;
            }
            turn.starting_calls.store(false, Ordering::Relaxed);
            for end in ended_at_once {
                ends.record_outcome(end, &mut queue, turn);
            }
            let mut ended = 0;
            while ended < CALLS_PER_YIELD {
                let waits = begun < CALLS_PER_YIELD && ended == 0;
                let next = poll_fn(|cx| match running.poll_next_unpin(cx) {
                    Poll::Pending if waits => Poll::Pending,
                    Poll::Pending => Poll::Ready(None),
                    ready => ready,
                });
                let Some(end) = next.await else { break };
                ended += 1;
                ends.record_outcome(end, &mut queue, turn);
            }
            if begun == 0 && ended == 0 {
                break;
            }
            if begun == CALLS_PER_YIELD || ended == CALLS_PER_YIELD {
                tokio::task::yield_now().await;
            }
        }
        if let Some(halt) = ends.error {
            return Err(halt);
        }
        while let Some((place, call)) = queue.pop().map(|(place, (step, _))| (place, step.call().clone())) {
            self.settle_unstarted(&call).boxed().await?;
            queue.release(place);
        }
        Ok(ends.failure.map(|(_, failure)| *failure))
    }

    /// Settles a call that the end of the run kept from starting. A call that waits for a person keeps waiting,
    /// unless the run ends.
    async fn settle_unstarted(&self, call: &CallId) -> Result<(), DriveError> {
        if self.shared.cancel.is_detaching()
            || self.with_run(|run| run.is_call_settled(call) || run.is_call_waiting(call))
        {
            return Ok(());
        }
        let settled = CallSettled::new(call.clone(), CallStatus::Cancelled, model_text::CANCELLED);
        self.record_entry(JournalEntry::CallSettled(settled)).await
    }

    /// Settles the calls in flight of a run that ends: waiting nested agents, and calls that an earlier driver
    /// started. Every announced start gets its announced end.
    pub(super) async fn end_calls_in_flight(&mut self) -> Result<(), DriveError> {
        let begun = self.run().calls_in_flight();
        if begun.is_empty() {
            return Ok(());
        }
        let turn = self.new_turn_execution().await?;
        turn.stop.cancel();
        for call in begun {
            let (has_agent, has_asked) =
                self.with_run(|run| (run.nested_run(&call).is_some(), run.has_asked_question(&call)));
            let work = self
                .restore_unchecked_call(&call, &turn.tools)
                .map(|ready| self.new_execution(&call, ready, &turn));
            let settled = CallSettled::new(call, CallStatus::Cancelled, model_text::CANCELLED);
            match work {
                Some(work) if has_agent => drop(self.resume_nested_agent(&work).boxed().await?),
                // It was told to have started when it asked, by this driver or by an earlier one.
                Some(work) if has_asked => {
                    self.settle_call(Some((&work, AfterCall::RunEnds)), settled).await?
                }
                Some(_) | None => self.settle_call(None, settled).await?,
            }
        }
        self.tools = Some(turn.tools);
        Ok(())
    }

    /// Emits the outputs of a settled turn to watchers.
    async fn emit_turn_outputs(&mut self) {
        if !self.emitter.is_watched() {
            return;
        }
        let outputs: Vec<_> = self.with_run(|run| {
            if !run.is_between_turns() {
                return Vec::new();
            }
            let is_output = |part| part == windlass_core::run::RunItemKind::CallOutput;
            let of_turn = run.items().iter().rev().take_while(|one| is_output(one.kind)).count();
            let from = run.items().len() - of_turn;
            run.items()[from..].to_vec()
        });
        self.emit_outputs(outputs).await;
        self.emitter.wait_until_handled().await;
    }
}
