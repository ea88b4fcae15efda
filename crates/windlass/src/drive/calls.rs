//! The calls of a turn, side by side: so many at once, in the model's order, each independent of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_core::{CallId, CallSettled, Effect, Entry, Failure, How, SettleStep, Step, Work, text};

use super::call::CallEnd;
use super::prepare::{Again, Ready};
use super::{Driver, Halt};
use crate::agent::{Agent, Toolset};
use crate::run::{RunRecord, Settlement};

/// What the calls of one turn share.
pub(super) struct TurnWork<C> {
    pub(super) agent: Agent<C>,
    pub(super) tools: Arc<Toolset<C>>,
    /// Stops the calls of this turn: the run was cancelled, or one of them ends it.
    pub(super) stop: CancellationToken,
    /// Moves whenever a call of the turn settles or is held.
    pub(super) moved: watch::Sender<()>,
    /// Calls that were not begun, because the ones that they follow wait for a person.
    pub(super) deferred: Mutex<BTreeSet<CallId>>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the open calls until each has settled or waits for a person.
    pub(super) async fn work(&mut self, steps: Vec<Step>) -> Result<(), Halt> {
        self.guards_settled().await?;
        let name = self.run().agent().clone();
        let agent = self.agent(&name)?;
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => agent.toolset(&self.context(&name), &self.graph).await?,
        };
        let queue = self.with_tools(steps, &agent, &tools)?;
        let (stop, moved) = (self.stop.child_token(), watch::Sender::new(()));
        let turn = TurnWork { agent, tools, stop, moved, deferred: Mutex::default() };
        let failure = self.run_queue(queue, &turn).await?;
        self.tools = Some(turn.tools);
        if let Some(failure) = failure {
            return Err(Halt::Failure(failure));
        }
        if self.stop.is_cancelled() {
            return Err(Halt::Cancelled);
        }
        self.show_turn().await;
        Ok(())
    }

    /// Every call with its tool. Whatever is missing is found out here, before any of them runs.
    fn with_tools(
        &mut self,
        steps: Vec<Step>,
        agent: &Agent<C>,
        tools: &Toolset<C>,
    ) -> Result<Vec<(Step, Option<Ready<C>>)>, Halt> {
        let mut fresh: BTreeMap<CallId, Ready<C>> = std::mem::take(&mut self.ready);
        let mut queue = Vec::with_capacity(steps.len());
        for step in steps {
            let edited = match &step {
                Step::Run(runnable) => runnable.edited(),
                Step::Doubt(doubt) => doubt.edited(),
                Step::Gate(_) | Step::Invalid(_) | Step::Settle(_) => None,
            };
            let ready = match (&step, fresh.remove(step.call())) {
                (Step::Settle(_), _) => None,
                (_, Some(ready)) if edited.is_none() => Some(ready),
                (Step::Invalid(_), None) => self.again_unread(step.call(), tools),
                (_, _) => match self.again(step.call(), edited, agent, tools)? {
                    Again::Ready(ready) => Some(ready),
                    Again::Gone { how, text } => {
                        let settled = CallSettled::new(step.call().clone(), how, text);
                        queue.push((Step::Settle(SettleStep { settled }), None));
                        continue;
                    }
                },
            };
            queue.push((step, ready));
        }
        Ok(queue)
    }

    /// Runs the queue. Gives the failure that ends the run, if one does: of several, the first in the model's
    /// order, whichever came first.
    async fn run_queue(
        &self,
        queue: Vec<(Step, Option<Ready<C>>)>,
        turn: &TurnWork<C>,
    ) -> Result<Option<Failure>, Halt> {
        let limit = self.shared.config.concurrency.unwrap_or(usize::MAX);
        let mut queue = queue.into_iter().enumerate();
        let mut running = FuturesUnordered::new();
        let mut failure: Option<(usize, Failure)> = None;
        let mut broken = None;
        loop {
            while running.len() < limit && !turn.stop.is_cancelled() {
                let Some((place, (step, ready))) = queue.next() else { break };
                running.push(async move { (place, self.call(step, ready, turn).await) });
            }
            let Some((place, end)) = running.next().await else { break };
            match end {
                CallEnd::Settled | CallEnd::Held | CallEnd::Deferred | CallEnd::Left => {}
                CallEnd::Fatal(fatal) => {
                    if failure.as_ref().is_none_or(|(first, _)| place < *first) {
                        failure = Some((place, fatal));
                    }
                    turn.stop.cancel();
                }
                CallEnd::Broken(halt) => {
                    broken.get_or_insert(halt);
                    turn.stop.cancel();
                }
            }
        }
        if let Some(halt) = broken {
            return Err(halt);
        }
        for (_, (step, _)) in queue {
            self.settle_unstarted(step.call()).await?;
        }
        Ok(failure.map(|(_, failure)| failure))
    }

    /// A call that the end of the run kept from starting has its output too; one that waits for a person keeps
    /// waiting, unless the run ends.
    async fn settle_unstarted(&self, call: &CallId) -> Result<(), Halt> {
        if self.shared.cancel.hands_over() || self.locked(|run| run.is_settled(call) || run.waits(call)) {
            return Ok(());
        }
        let settled = CallSettled::new(call.clone(), How::Cancelled, text::CANCELLED);
        self.record(Entry::CallSettled(settled)).await
    }

    /// Shows watchers the outputs of a turn that has settled.
    async fn show_turn(&mut self) {
        if !self.emitter.is_watched() {
            return;
        }
        let outputs: Vec<_> = self.locked(|run| {
            if !run.is_between_turns() {
                return Vec::new();
            }
            let is_output = |part| part == windlass_core::Part::Output;
            let of_turn = run.produced().iter().rev().take_while(|one| is_output(one.part)).count();
            let from = run.produced().len() - of_turn;
            run.produced()[from..].to_vec()
        });
        self.show(outputs).await;
        self.emitter.settled().await;
    }
}

/// What became of the calls of the last turn of a cancelled run.
pub(super) fn settlement(record: &RunRecord) -> Settlement {
    let mut settlement = Settlement::default();
    let mut effects: BTreeMap<&CallId, Effect> = BTreeMap::new();
    let mut started: BTreeMap<&CallId, bool> = BTreeMap::new();
    let of_run = record.records.iter().filter(|record| record.path.is_empty()).map(|record| &record.entry);
    for entry in of_run {
        match entry {
            Entry::Answered(answered) => {
                settlement = Settlement::default();
                effects.clear();
                started.clear();
                for planned in &answered.calls {
                    if let Work::Body { effect, .. } = planned.work {
                        effects.insert(&planned.call, effect);
                        settlement.stopped.push(planned.call.clone());
                    }
                }
            }
            Entry::CallStarted(call) => {
                started.insert(&call.call, true);
            }
            Entry::CallSettled(settled) => {
                settlement.stopped.retain(|call| *call != settled.call);
                let is_once = effects.get(&settled.call) == Some(&Effect::Once);
                let list = match settled.how {
                    How::Cancelled if is_once && started.contains_key(&settled.call) => &mut settlement.in_doubt,
                    How::Cancelled => &mut settlement.stopped,
                    How::LeftRunning => &mut settlement.in_doubt,
                    _ => &mut settlement.finished,
                };
                list.push(settled.call.clone());
            }
            Entry::Cancelled(cancelled) => settlement.draining.clone_from(&cancelled.draining),
            _ => {}
        }
    }
    settlement
}
