//! The calls of answers, carried out by runs: the same planner, guardrails, approvals, journal and receipts as anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::agent::Resolved;
use windlass::core::{AgentName, CallId, CallPath, Decision, Reach, RunId, ToolKey};
use windlass::model::Answer;
use windlass::run::CancelHandle;
use windlass::{DecideError, EventKind, Failure, Item, Outcome, Paused, Pending, RunBuilder, RunError};

use super::actor::Actor;
use crate::event::{ChangeCause, CloseReason, LiveError, LiveEvent};
use crate::history::LiveItem;
use crate::id::ResponseId;
use crate::journal::CallsRecord;
use crate::machine::{Batch, BatchEnd};

/// What the model is told of a call whose run could not be brought to an end here.
const NOT_KNOWN: &str = "It is not known what became of this call.";
/// What the model is told of a call that could not be planned.
const NOT_PLANNED: &str =
    "This call was not made, because the answer that it was part of could not be carried out.";

/// A run that carries out the calls of one answer.
pub(super) struct LiveRun {
    pub(super) agent: u32,
    response: ResponseId,
    calls: Vec<CallId>,
    pub(super) cancel: CancelHandle,
    /// It waits for a person.
    pub(super) paused: Option<Paused>,
    pub(super) is_running: bool,
    /// Calls that wait for a person, or did: each question once.
    asked: BTreeMap<(CallPath, u32), Question>,
}

/// A question to a person.
struct Question {
    pending: Pending,
    state: QuestionState,
}

enum QuestionState {
    Open,
    /// Answered while the run was busy with something else; it is told when it pauses again.
    Early {
        decision: Decision,
        reach: Reach,
        by: Option<String>,
    },
    Answered,
}

/// Something came of a run.
pub(super) enum Notice {
    Event {
        run: RunId,
        kind: EventKind,
    },
    Ended {
        run: RunId,
        outcome: Box<Result<Outcome, RunError>>,
    },
    /// An approval was waited for too long.
    Expired {
        run: RunId,
    },
}

/// A decision for good, of this session.
pub(super) struct StandingDecision {
    agent: AgentName,
    tool: ToolKey,
    decision: Decision,
    by: Option<String>,
}

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn carry_out(&mut self, batch: Batch) {
        let Batch { run, response, agent, input, calls, usage } = batch;
        let Some(resolved) = self.agents.get(&agent.number).cloned() else { return };
        let ids = calls.iter().filter_map(call_id).collect();
        let items = calls.into_iter().map(Arc::new).collect();
        let answer = Answer { items, usage, response_id: Some(response.to_string()), ..Answer::default() };
        let input = input.into_iter().map(Arc::new).collect();
        let builder = resolved.carry_out(input, answer, &self.setting.receipts).run_id(run.clone());
        let builder = match &self.plan.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        self.start(run, agent.number, response, ids, builder);
    }

    fn start(
        &mut self,
        run: RunId,
        agent: u32,
        response: ResponseId,
        calls: Vec<CallId>,
        builder: RunBuilder<C>,
    ) {
        let mut builder = builder.drain(self.plan.drain).event_buffer(64);
        if let Some(limit) = self.plan.concurrency {
            builder = builder.concurrency(limit);
        }
        if self.plan.early_guardrails {
            builder = builder.early_guardrails();
        }
        if let Some(expiry) = self.plan.approval_expiry {
            builder = builder.approvals_expire_after(expiry);
        }
        for hook in &self.plan.hooks {
            builder = builder.hook(hook.clone());
        }
        let mut stream = builder.stream();
        let cancel = stream.cancel();
        let asked = self.runs.remove(&run).map(|before| before.asked).unwrap_or_default();
        self.runs.insert(
            run.clone(),
            LiveRun { agent, response, calls, cancel, paused: None, is_running: true, asked },
        );
        let notify = self.notify.clone();
        self.forwarders.spawn(async move {
            while let Some(event) = stream.next().await {
                // What happens inside nested agents is for the journal; approvals are told wherever they are.
                if event.path.is_empty() || matches!(event.kind, EventKind::Held(_)) {
                    let notice = Notice::Event { run: run.clone(), kind: event.kind };
                    if notify.send(notice).await.is_err() {
                        return;
                    }
                }
            }
            let outcome = Box::new(stream.outcome().await);
            let _ = notify.send(Notice::Ended { run, outcome }).await;
        });
    }

    /// Goes on with runs that an earlier life of this session left open.
    pub(super) async fn recover(&mut self, open: Vec<CallsRecord>) {
        for CallsRecord { run, response, agent, calls } in open {
            let ids: Vec<CallId> = calls.iter().filter_map(|item| call_id(&item.to_item()?)).collect();
            let resolved = match self.resolved_for(&agent).await {
                Ok(resolved) => resolved,
                Err(message) => {
                    self.give_up(&run, &response, ids, message);
                    continue;
                }
            };
            let number = *resolved.0;
            let resolved = resolved.1.clone();
            let items = calls.iter().filter_map(LiveItem::to_item).map(Arc::new).collect();
            let answer =
                Answer { items, usage: None, response_id: Some(response.to_string()), ..Answer::default() };
            let Some(store) = self.plan.store.clone() else {
                let message = "there is no store that its run could be in".to_owned();
                self.give_up(&run, &response, ids, message);
                continue;
            };
            let is_stored = match store.load(&run, 0).await {
                Ok(lines) => !lines.is_empty(),
                Err(error) => {
                    self.give_up(&run, &response, ids, error.to_string());
                    continue;
                }
            };
            let receipts = &self.setting.receipts;
            let builder = match is_stored {
                true => resolved.recover(run.clone(), store, answer, receipts),
                // The session wrote down that it would, and was gone before it did.
                false => resolved.carry_out(Vec::new(), answer, receipts).run_id(run.clone()).store(store),
            };
            self.start(run, number, response, ids, builder);
        }
    }

    /// An agent that was current in an earlier life.
    async fn resolved_for(&mut self, name: &AgentName) -> Result<(&u32, &Resolved<C>), String> {
        let known = |resolved: &Resolved<C>| resolved.agent().name() == name;
        if let Some(number) = self.agents.iter().find(|(_, agent)| known(agent)).map(|(number, _)| *number) {
            return self.agents.get_key_value(&number).ok_or_else(String::new);
        }
        let unknown = || format!("there is no agent `{name}` any more");
        let agent = match self.setting.root.name() == name {
            true => self.setting.root.clone(),
            false => {
                let mut reachable = self.agents.values().filter_map(|agent| agent.reachable(name));
                reachable.next().cloned().ok_or_else(unknown)?
            }
        };
        let (session, app) = (self.setting.session.clone(), self.setting.app.clone());
        let resolved =
            agent.resolve_with(&session, app, &self.plan.known).await.map_err(|error| error.to_string())?;
        let number = u32::MAX - u32::try_from(self.agents.len()).unwrap_or_default();
        self.agents.insert(number, resolved);
        self.agents.get_key_value(&number).ok_or_else(unknown)
    }

    fn give_up(&mut self, run: &RunId, response: &ResponseId, calls: Vec<CallId>, message: String) {
        self.emit(LiveEvent::Error(LiveError::Calls { response: response.clone(), message }));
        let outputs = calls.into_iter().map(|call| (call, NOT_KNOWN.to_owned())).collect();
        let now = self.now();
        self.machine.at(now).calls_settled(run, outputs, BatchEnd::Over);
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Event { run, kind } => self.run_event(&run, kind),
            Notice::Ended { run, outcome } => self.run_ended(&run, *outcome),
            Notice::Expired { run } => {
                let is_waiting = self.runs.get(&run).is_some_and(|live| live.paused.is_some());
                if is_waiting {
                    self.go_on(&run);
                }
            }
        }
    }

    fn run_event(&mut self, run: &RunId, kind: EventKind) {
        let Some(live) = self.runs.get(run) else { return };
        let Some(agent) = self.agents.get(&live.agent).map(|agent| agent.agent().name().clone()) else {
            return;
        };
        match kind {
            EventKind::Held(pending) => self.tell_held(run, *pending),
            EventKind::CallStarted { call, tool } => self.emit(LiveEvent::CallStarted { call, tool, agent }),
            EventKind::Progress { call, progress } => self.emit(LiveEvent::CallProgress { call, progress }),
            EventKind::CallSettled { call, how, output } => {
                self.emit(LiveEvent::CallSettled { call, how, output, agent });
            }
            EventKind::Warning { message } => tracing::warn!(%run, message, "a run warns"),
            _ => {}
        }
    }

    fn run_ended(&mut self, run: &RunId, outcome: Result<Outcome, RunError>) {
        let now = self.now();
        match outcome {
            Ok(Outcome::Paused(paused)) => {
                let outputs = outputs(&paused.record().items());
                self.machine.at(now).calls_settled(run, outputs, BatchEnd::Held);
                self.hold(run, paused);
            }
            Ok(Outcome::Finished(finished)) => {
                let items = finished.record.items();
                let Some(live) = self.runs.remove(run) else { return };
                self.machine.at(now).calls_settled(run, outputs(&items), BatchEnd::Over);
                let handoff = items.iter().find_map(|produced| match &*produced.item {
                    Item::Handoff(handoff) => Some(handoff.clone()),
                    _ => None,
                });
                if let Some(handoff) = handoff {
                    let from = self.agents.get(&live.agent);
                    match from.and_then(|from| from.reachable(&handoff.to)).cloned() {
                        Some(agent) => self.resolve(agent, ChangeCause::Handoff(handoff.call), None),
                        None => {
                            let message = "there is no such agent".to_owned();
                            self.machine.handoff_failed(&handoff.call, &handoff.to, message);
                        }
                    }
                }
            }
            Ok(Outcome::Cancelled(_) | Outcome::HandedOver(_)) => {
                if let Some(live) = self.runs.get_mut(run) {
                    live.is_running = false;
                }
            }
            Err(RunError::Failed(failed)) => {
                let Some(live) = self.runs.remove(run) else { return };
                let mut given = outputs(&failed.record.items());
                for call in live.calls {
                    if !given.iter().any(|(known, _)| *known == call) {
                        given.push((call, NOT_PLANNED.to_owned()));
                    }
                }
                let message = failed.failure.to_string();
                self.emit(LiveEvent::Error(LiveError::Calls { response: live.response, message }));
                self.machine.at(now).calls_settled(run, given, BatchEnd::Over);
                if !matches!(failed.failure, Failure::Misbehaviour(_)) {
                    self.end.get_or_insert(CloseReason::CallFailed(failed.failure));
                }
            }
            Err(error) => {
                let Some(live) = self.runs.remove(run) else { return };
                self.give_up(run, &live.response, live.calls, error.to_string());
            }
        }
    }

    /// A run waits for a person, unless what it waits for has been decided for good, or in the meantime.
    fn hold(&mut self, run: &RunId, mut paused: Paused) {
        let mut is_decided = false;
        for pending in paused.pending() {
            self.tell_held(run, pending.clone());
            let Some((decision, reach, by)) = self.decided_before(run, &pending) else { continue };
            if let Some(by) = by {
                paused.decide_as(by);
            }
            is_decided |= paused.decide(pending.path.clone(), decision, reach).is_ok();
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        live.is_running = false;
        live.paused = Some(paused);
        if is_decided {
            self.go_on(run);
        } else if let Some(expiry) = self.plan.approval_expiry {
            let (notify, run) = (self.notify.clone(), run.clone());
            self.forwarders.spawn(async move {
                tokio::time::sleep(expiry + Duration::from_millis(1)).await;
                let _ = notify.send(Notice::Expired { run }).await;
            });
        }
    }

    fn decided_before(
        &mut self,
        run: &RunId,
        pending: &Pending,
    ) -> Option<(Decision, Reach, Option<String>)> {
        if let Some((decision, by)) = self.standing_for(pending) {
            return Some((decision, Reach::Call, by));
        }
        let key = (pending.path.clone(), pending.attempt);
        let question = self.runs.get_mut(run)?.asked.get_mut(&key)?;
        match std::mem::replace(&mut question.state, QuestionState::Answered) {
            QuestionState::Early { decision, reach, by } => Some((decision, reach, by)),
            other => {
                question.state = other;
                None
            }
        }
    }

    /// Tells of a call that waits, once for each question, unless it has been decided for good.
    fn tell_held(&mut self, run: &RunId, pending: Pending) {
        if self.standing_for(&pending).is_some() {
            return;
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        let key = (pending.path.clone(), pending.attempt);
        if live.asked.contains_key(&key) {
            return;
        }
        live.asked.insert(key, Question { pending: pending.clone(), state: QuestionState::Open });
        self.emit(LiveEvent::CallHeld { pending: Box::new(pending) });
    }

    fn standing_for(&self, pending: &Pending) -> Option<(Decision, Option<String>)> {
        let is_it = |standing: &&StandingDecision| {
            standing.agent == pending.agent
                && standing.tool == pending.tool
                && pending.reason == windlass::core::HoldReason::Approval
        };
        self.standing
            .iter()
            .rev()
            .find(is_it)
            .map(|standing| (standing.decision.clone(), standing.by.clone()))
    }

    fn go_on(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let Some(paused) = live.paused.take() else { return };
        let Some(resolved) = self.agents.get(&live.agent).cloned() else { return };
        let (agent, response, calls) = (live.agent, live.response.clone(), live.calls.clone());
        let builder = resolved.go_on(paused, &self.setting.receipts);
        let builder = match &self.plan.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        self.start(run.clone(), agent, response, calls, builder);
    }

    pub(super) fn pending(&self) -> Vec<Pending> {
        let asked = self.runs.values().flat_map(|live| live.asked.values());
        let open = asked.filter(|question| matches!(question.state, QuestionState::Open));
        open.map(|question| question.pending.clone()).collect()
    }

    pub(super) fn decide(
        &mut self,
        call: &CallPath,
        decision: Decision,
        reach: Reach,
        by: Option<String>,
    ) -> Result<(), DecideError> {
        let is_it = |pending: &Pending| {
            pending.path == *call || (call.within().is_empty() && pending.call() == call.call())
        };
        let is_open =
            |question: &Question| matches!(question.state, QuestionState::Open) && is_it(&question.pending);
        let found = self.runs.iter().find_map(|(run, live)| {
            let (key, question) = live.asked.iter().find(|(_, question)| is_open(question))?;
            Some((run.clone(), key.clone(), question.pending.clone()))
        });
        let none = || DecideError::NotPending(call.clone());
        let Some((run, key, pending)) = found else { return Err(none()) };
        let live = self.runs.get_mut(&run).ok_or_else(none)?;
        let state = match live.paused.as_mut() {
            Some(paused) => {
                if let Some(by) = &by {
                    paused.decide_as(by.clone());
                }
                paused.decide(key.0.clone(), decision.clone(), reach)?;
                QuestionState::Answered
            }
            None => QuestionState::Early { decision: decision.clone(), reach, by: by.clone() },
        };
        if let Some(question) = live.asked.get_mut(&key) {
            question.state = state;
        }
        let is_paused = live.paused.is_some();
        if reach == Reach::Always {
            let Pending { agent, tool, .. } = pending;
            self.standing.push(StandingDecision { agent, tool, decision, by });
        }
        if is_paused {
            self.go_on(&run);
        }
        Ok(())
    }
}

/// The outputs among what a run produced, in the model's order. A handoff has its output when the other agent is
/// current.
fn outputs(items: &[windlass::core::Produced]) -> Vec<(CallId, String)> {
    let output = |produced: &windlass::core::Produced| match &*produced.item {
        Item::Output(output) => Some((output.call.clone(), output.content.text().into_owned())),
        _ => None,
    };
    items.iter().filter_map(output).collect()
}

fn call_id(item: &Item) -> Option<CallId> {
    match item {
        Item::Call(call) => Some(call.id.clone()),
        _ => None,
    }
}
