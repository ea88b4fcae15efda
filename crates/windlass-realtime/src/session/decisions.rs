//! What a person is asked, and what is decided about it: here, for good, or in the store by somebody else.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::AbortHandle;
use windlass::core::{AgentName, CallId, CallPath, Decision, HoldReason, Reach, RunId, ToolKey};
use windlass::store::Posted;
use windlass::{DecideError, Paused, Pending};

use super::actor::Actor;
use super::runs::Notice;
use crate::event::LiveEvent;

/// How often the store is asked whether somebody else has decided.
const LOOK: Duration = Duration::from_millis(200);

/// What a run asked people: each question once.
#[derive(Default)]
pub(super) struct Questions {
    asked: BTreeMap<(CallPath, u32), Question>,
    /// There while a question is open and there is a store that others can answer it in.
    listening: Option<Listening>,
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
    /// Answered in the store while the run was busy; it takes that when it goes on.
    Elsewhere,
    Answered,
}

/// A task that asks the store whether somebody else has decided. Dropping this ends it.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Questions {
    fn open(&self) -> impl Iterator<Item = &Pending> {
        let open = self.asked.values().filter(|question| matches!(question.state, QuestionState::Open));
        open.map(|question| &question.pending)
    }

    /// The call runs, or has its output: what was asked about it has been answered, by whomever.
    pub(super) fn settle(&mut self, call: &CallId) {
        for question in self.asked.values_mut() {
            if question.pending.path.within().is_empty() && question.pending.call() == call {
                question.state = QuestionState::Answered;
            }
        }
        self.rest();
    }

    fn rest(&mut self) {
        if self.open().next().is_none() {
            self.listening = None;
        }
    }
}

/// A decision for good, of this session.
pub(super) struct StandingDecision {
    agent: AgentName,
    tool: ToolKey,
    decision: Decision,
    by: Option<String>,
}

/// What is known of a question when its run pauses.
enum Before {
    Open,
    /// It was answered here.
    Here {
        decision: Decision,
        reach: Reach,
        by: Option<String>,
    },
    /// It was answered in the store.
    Elsewhere,
}

impl<C: Send + Sync + 'static> Actor<C> {
    /// A run waits for a person, unless what it waits for has been decided for good, or in the meantime.
    pub(super) fn hold(&mut self, run: &RunId, mut paused: Paused) {
        let mut is_decided = false;
        for pending in paused.pending() {
            self.tell_held(run, pending.clone());
            match self.decided_before(run, &pending) {
                Before::Open => {}
                Before::Elsewhere => is_decided = true,
                Before::Here { decision, reach, by } => {
                    if let Some(by) = by {
                        paused.decide_as(by);
                    }
                    match paused.decide(pending.path.clone(), decision, reach) {
                        Ok(()) => is_decided = true,
                        Err(error) => {
                            tracing::warn!(%error, call = %pending.path, "a decision does not count");
                            self.ask_again(run, pending);
                        }
                    }
                }
            }
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

    fn decided_before(&mut self, run: &RunId, pending: &Pending) -> Before {
        if let Some((decision, by)) = self.standing_for(pending) {
            return Before::Here { decision, reach: Reach::Call, by };
        }
        let key = (pending.path.clone(), pending.attempt);
        let question = self.runs.get_mut(run).and_then(|live| live.questions.asked.get_mut(&key));
        let Some(question) = question else { return Before::Open };
        match std::mem::replace(&mut question.state, QuestionState::Answered) {
            QuestionState::Early { decision, reach, by } => Before::Here { decision, reach, by },
            QuestionState::Elsewhere => Before::Elsewhere,
            // A decision that did not count leaves the question as it was.
            QuestionState::Open | QuestionState::Answered => {
                question.state = QuestionState::Open;
                Before::Open
            }
        }
    }

    /// Tells of a call that waits, once for each question, unless it has been decided for good.
    pub(super) fn tell_held(&mut self, run: &RunId, pending: Pending) {
        if self.standing_for(&pending).is_some() {
            return;
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        let key = (pending.path.clone(), pending.attempt);
        if live.questions.asked.contains_key(&key) {
            return;
        }
        live.questions.asked.insert(key, Question { pending: pending.clone(), state: QuestionState::Open });
        self.listen(run);
        self.emit(LiveEvent::CallHeld { pending: Box::new(pending) });
    }

    /// A decision that was taken did not count after all: the question is open as before.
    fn ask_again(&mut self, run: &RunId, pending: Pending) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.questions.asked.remove(&(pending.path.clone(), pending.attempt));
        self.tell_held(run, pending);
    }

    /// Asks the store from now on whether somebody else has decided.
    fn listen(&mut self, run: &RunId) {
        let Some(store) = self.plan.store.clone() else { return };
        let Some(live) = self.runs.get_mut(run).filter(|live| live.questions.listening.is_none()) else {
            return;
        };
        let (notify, run) = (self.notify.clone(), run.clone());
        let task = self.forwarders.spawn(async move {
            let mut known = 0;
            loop {
                tokio::time::sleep(LOOK).await;
                match store.posted(&run).await {
                    Ok(posted) if posted.len() > known => {
                        known = posted.len();
                        if notify.send(Notice::Posted { run: run.clone(), posted }).await.is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, %run, "the store does not say who decided"),
                }
            }
        });
        live.questions.listening = Some(Listening(task));
    }

    /// Somebody decided in the store. The run takes that when it goes on, which it does now where it only waits.
    pub(super) fn posted(&mut self, run: &RunId, posted: Vec<Posted>) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let is_paused = live.paused.is_some();
        let mut is_new = false;
        for Posted { path, attempt, decided } in posted {
            let Some(question) = live.questions.asked.get_mut(&(path, attempt)) else { continue };
            if matches!(question.state, QuestionState::Answered | QuestionState::Elsewhere) {
                continue;
            }
            is_new = true;
            question.state = if is_paused { QuestionState::Answered } else { QuestionState::Elsewhere };
            if decided.reach == Reach::Always {
                let Pending { agent, tool, .. } = question.pending.clone();
                let (decision, by) = (decided.decision, decided.by);
                self.standing.push(StandingDecision { agent, tool, decision, by });
            }
        }
        live.questions.rest();
        if is_new && is_paused {
            self.go_on(run);
        }
    }

    fn standing_for(&self, pending: &Pending) -> Option<(Decision, Option<String>)> {
        let is_it = |standing: &&StandingDecision| {
            standing.agent == pending.agent
                && standing.tool == pending.tool
                && pending.reason == HoldReason::Approval
                && (pending.reach == Reach::Always || matches!(standing.decision, Decision::Reject { .. }))
        };
        self.standing
            .iter()
            .rev()
            .find(is_it)
            .map(|standing| (standing.decision.clone(), standing.by.clone()))
    }

    pub(super) fn pending(&self) -> Vec<Pending> {
        self.runs.values().flat_map(|live| live.questions.open()).cloned().collect()
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
            let (key, question) = live.questions.asked.iter().find(|(_, question)| is_open(question))?;
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
        if let Some(question) = live.questions.asked.get_mut(&key) {
            question.state = state;
        }
        live.questions.rest();
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
