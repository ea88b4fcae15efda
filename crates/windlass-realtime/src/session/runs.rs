//! The calls of answers, carried out by runs: the same planner, guardrails, approvals, journal and receipts as anywhere.

use std::sync::Arc;

use tokio::time::Instant;
use windlass::core::{CallId, RunId};
use windlass::model::Answer;
use windlass::run::CancelHandle;
use windlass::store::Posted;
use windlass::{EventKind, Failure, Item, Outcome, Paused, RunBuilder, RunError, StoreErrorKind};

use super::actor::Actor;
use super::decisions::Questions;
use crate::event::{ChangeCause, CloseReason, LiveError, LiveEvent};
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
    pub(super) questions: Questions,
    /// It is of an earlier life, whose driver may still own it: it is tried again until then.
    pub(super) recovery: Option<Recovery>,
}

/// A run of an earlier life, and until when it is tried to go on with it.
#[derive(Clone)]
pub(super) struct Recovery {
    pub(super) record: CallsRecord,
    pub(super) until: Instant,
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
    /// Somebody decided in the store.
    Posted {
        run: RunId,
        posted: Vec<Posted>,
    },
    /// A run that somebody else owned is tried again.
    Again {
        run: RunId,
    },
}

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn carry_out(&mut self, batch: Batch) {
        let Batch { run, response, agent, input, calls, usage } = batch;
        let ids: Vec<CallId> = calls.iter().filter_map(call_id).collect();
        let Some(resolved) = self.agents.get(&agent.number).cloned() else {
            let message = format!("agent `{}` is not known any more", agent.name);
            return self.give_up(&run, &response, ids, message);
        };
        let items = calls.into_iter().map(Arc::new).collect();
        let answer = Answer { items, usage, response_id: Some(response.to_string()), ..Answer::default() };
        let input = input.into_iter().map(Arc::new).collect();
        let builder = resolved.carry_out(input, answer, &self.setting.receipts).run_id(run.clone());
        let builder = match &self.plan.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        self.start(run, agent.number, response, ids, builder, None);
    }

    pub(super) fn start(
        &mut self,
        run: RunId,
        agent: u32,
        response: ResponseId,
        calls: Vec<CallId>,
        builder: RunBuilder<C>,
        recovery: Option<Recovery>,
    ) {
        // What has ended needs no keeping.
        while self.forwarders.try_join_next().is_some() {}
        let mut builder = builder.drain(self.plan.drain).event_buffer(64);
        if let Some(lease) = self.plan.lease {
            builder = builder.lease(lease);
        }
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
        let questions = self.runs.remove(&run).map(|before| before.questions).unwrap_or_default();
        self.runs.insert(
            run.clone(),
            LiveRun { agent, response, calls, cancel, paused: None, is_running: true, questions, recovery },
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

    pub(super) fn give_up(
        &mut self,
        run: &RunId,
        response: &ResponseId,
        calls: Vec<CallId>,
        message: String,
    ) {
        self.give_up_as(run, response, calls, message, NOT_KNOWN);
    }

    /// The calls of a run come to nothing here. `told` is what the model hears of each, `message` what watchers do.
    pub(super) fn give_up_as(
        &mut self,
        run: &RunId,
        response: &ResponseId,
        calls: Vec<CallId>,
        message: String,
        told: &str,
    ) {
        self.emit(LiveEvent::Error(LiveError::Calls { response: response.clone(), message }));
        let outputs = calls.into_iter().map(|call| (call, told.to_owned())).collect();
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
            Notice::Posted { run, posted } => self.posted(&run, posted),
            Notice::Again { .. } => {}
        }
    }

    fn run_event(&mut self, run: &RunId, kind: EventKind) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if let EventKind::CallStarted { call, .. } | EventKind::CallSettled { call, .. } = &kind {
            live.questions.settle(call);
        }
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
            Err(RunError::Store(error))
                if error.kind() == StoreErrorKind::Leased && self.is_tried_again(run) => {}
            Err(error) => {
                let Some(live) = self.runs.remove(run) else { return };
                self.give_up(run, &live.response, live.calls, error.to_string());
            }
        }
    }

    pub(super) fn go_on(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let Some(paused) = live.paused.take() else { return };
        let Some(resolved) = self.agents.get(&live.agent).cloned() else { return };
        let (agent, response, calls) = (live.agent, live.response.clone(), live.calls.clone());
        let builder = resolved.go_on(paused, &self.setting.receipts);
        let builder = match &self.plan.store {
            Some(store) => builder.store(store.clone()),
            None => builder,
        };
        self.start(run.clone(), agent, response, calls, builder, None);
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

pub(super) fn call_id(item: &Item) -> Option<CallId> {
    match item {
        Item::Call(call) => Some(call.id.clone()),
        _ => None,
    }
}
