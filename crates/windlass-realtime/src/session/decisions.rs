//! Questions to a person (human in the loop) and their decisions: made through this session, standing for a
//! tool, or posted to the store by another process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use windlass::core::{
    authenticity::SignatureError,
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason},
    id::{AgentName, CallId, CallPath, RunId},
    tool::ToolKey,
};
use windlass::store::{ApproverSigner, PostedDecision, load_posted_decisions};
use windlass::{core::decision::PendingCall, error::DecisionError, run::PausedRun};

use super::actor::SessionActor;
use super::call_runs::RunNotice;
use super::requests::DisplayedCall;
use crate::event::{HeldCall, RealtimeEvent};

/// Interval at which the store is polled for decisions of other processes.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The questions of one run. Each question is reported once.
#[derive(Default)]
pub(super) struct RunQuestions {
    questions: BTreeMap<(CallPath, u32), HumanQuestion>,
    /// Present while a question is open and there is a store in which others can answer it.
    store_watcher: Option<StoreWatcher>,
}

/// A question to a person.
struct HumanQuestion {
    pending: PendingCall,
    state: HumanQuestionState,
}

/// The state of a question.
enum HumanQuestionState {
    Open,
    /// Decided while the run was executing other calls; applied when the run pauses again.
    DecidedEarly(MadeDecision),
    /// Decided in the store while the run was executing other calls; the run reads it when it continues.
    DecidedInStore,
    Answered,
}

/// A task that polls the store for decisions of other processes. Dropping it aborts the task.
struct StoreWatcher(AbortHandle);

impl Drop for StoreWatcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RunQuestions {
    fn open_questions(&self) -> impl Iterator<Item = &PendingCall> {
        let open =
            self.questions.values().filter(|question| matches!(question.state, HumanQuestionState::Open));
        open.map(|question| &question.pending)
    }

    /// Marks the questions about a call as answered: it has started or has its output.
    pub(super) fn mark_answered(&mut self, call: &CallId) {
        for question in self.questions.values_mut() {
            if question.pending.path.parent_calls().is_empty() && question.pending.call() == call {
                question.state = HumanQuestionState::Answered;
            }
        }
        self.stop_watching_if_idle();
    }

    /// Stops polling the store when no question is open.
    fn stop_watching_if_idle(&mut self) {
        if self.open_questions().next().is_none() {
            self.store_watcher = None;
        }
    }
}

/// A decision that was made through this session.
#[derive(Clone)]
pub(super) struct MadeDecision {
    pub(super) decision: Decision,
    pub(super) scope: DecisionScope,
    pub(super) decided_by: Option<String>,
    /// Digest of the text that was displayed to the person.
    pub(super) displayed: Option<Digest>,
}

impl MadeDecision {
    /// Applies the decision, signed by the approver of the session if there is one.
    fn apply_to(
        self,
        paused: &mut PausedRun,
        call: CallPath,
        signer: Option<&Arc<ApproverSigner>>,
    ) -> Result<(), DecisionError> {
        // Nobody signs what nobody has decided by name.
        paused.sign_with(signer.filter(|_| self.decided_by.is_some()).cloned());
        if let Some(decided_by) = self.decided_by {
            paused.decide_as(decided_by);
        }
        paused.display_as(self.displayed);
        paused.decide(call, self.decision, self.scope)
    }
}

/// A standing decision of this session: it applies to later calls of the same tool by the same agent.
pub(super) struct SessionDecision {
    agent: AgentName,
    tool: ToolKey,
    decision: Decision,
    decided_by: Option<String>,
}

/// Maximum number of standing decisions. The oldest one is forgotten first: a person is asked again.
const MAX_STANDING_DECISIONS: usize = 1024;

/// Adds a standing decision in place of an earlier one about the same tool of the same agent.
fn record_standing(standing: &mut Vec<SessionDecision>, new: SessionDecision) {
    standing.retain(|known| known.agent != new.agent || known.tool != new.tool);
    if standing.len() >= MAX_STANDING_DECISIONS {
        standing.remove(0);
    }
    standing.push(new);
}

/// The decision on a question at the time its run pauses.
enum PriorDecision {
    Undecided,
    /// Decided through this session.
    DecidedLocally(MadeDecision),
    /// Decided in the store.
    DecidedInStore,
}

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Handles a paused run: applies decisions that exist already and resumes the run, or waits for a person.
    pub(super) fn on_run_paused(&mut self, run: &RunId, mut paused: PausedRun) {
        let mut is_decided = false;
        for mut pending in paused.pending_calls() {
            self.limit_scope(run, &mut pending);
            self.report_held_call(run, pending.clone());
            match self.prior_decision(run, &pending) {
                PriorDecision::Undecided => {}
                PriorDecision::DecidedInStore => is_decided = true,
                PriorDecision::DecidedLocally(made) => {
                    let signer = self.config.signer.as_ref();
                    match made.apply_to(&mut paused, pending.path.clone(), signer) {
                        Ok(()) => is_decided = true,
                        Err(error) => {
                            tracing::warn!(%error, call = %pending.path, "a decision was not accepted");
                            self.reopen_question(run, pending);
                        }
                    }
                }
            }
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        live.is_running = false;
        live.paused = Some(paused);
        if is_decided {
            self.resume_run(run);
        } else if let Some(expiry) = self.config.approval_expiry {
            let (notify, run) = (self.notice_sender.clone(), run.clone());
            self.background_tasks.spawn(async move {
                tokio::time::sleep(expiry + Duration::from_millis(1)).await;
                let _ = notify.send(RunNotice::ApprovalExpired { run }).await;
            });
        }
    }

    fn prior_decision(&mut self, run: &RunId, pending: &PendingCall) -> PriorDecision {
        if let Some((decision, decided_by)) = self.standing_decision_for(pending) {
            let scope = DecisionScope::ThisCall;
            return PriorDecision::DecidedLocally(MadeDecision {
                decision,
                scope,
                decided_by,
                displayed: None,
            });
        }
        let key = (pending.path.clone(), pending.attempt);
        let question = self.runs.get_mut(run).and_then(|live| live.questions.questions.get_mut(&key));
        let Some(question) = question else { return PriorDecision::Undecided };
        match std::mem::replace(&mut question.state, HumanQuestionState::Answered) {
            HumanQuestionState::DecidedEarly(made) => PriorDecision::DecidedLocally(made),
            HumanQuestionState::DecidedInStore => PriorDecision::DecidedInStore,
            // A decision that was not accepted leaves the question open.
            HumanQuestionState::Open | HumanQuestionState::Answered => {
                question.state = HumanQuestionState::Open;
                PriorDecision::Undecided
            }
        }
    }

    /// Reports a held call, once per question, unless a standing decision applies.
    pub(super) fn report_held_call(&mut self, run: &RunId, mut pending: PendingCall) {
        self.limit_scope(run, &mut pending);
        if self.standing_decision_for(&pending).is_some() {
            return;
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        let key = (pending.path.clone(), pending.attempt);
        if live.questions.questions.contains_key(&key) {
            return;
        }
        live.questions
            .questions
            .insert(key, HumanQuestion { pending: pending.clone(), state: HumanQuestionState::Open });
        self.watch_store(run);
        self.emit_event(RealtimeEvent::CallHeld { run: run.clone(), pending: Box::new(pending) });
    }

    /// Opens a question again whose decision was not accepted.
    fn reopen_question(&mut self, run: &RunId, pending: PendingCall) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.questions.questions.remove(&(pending.path.clone(), pending.attempt));
        self.report_held_call(run, pending);
    }

    /// Starts to poll the store for decisions of other processes.
    fn watch_store(&mut self, run: &RunId) {
        let Some(store) = self.config.store.clone() else { return };
        let Some(live) = self.runs.get_mut(run).filter(|live| live.questions.store_watcher.is_none()) else {
            return;
        };
        let (notify, run) = (self.notice_sender.clone(), run.clone());
        let task = self.background_tasks.spawn(async move {
            let mut known = 0;
            loop {
                tokio::time::sleep(STORE_POLL_INTERVAL).await;
                match load_posted_decisions(&*store, &run).await.map(|posted| posted.authentic) {
                    Ok(posted) if posted.len() > known => {
                        known = posted.len();
                        if notify
                            .send(RunNotice::DecisionsPosted { run: run.clone(), decisions: posted })
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, %run, "cannot read posted decisions from the store")
                    }
                }
            }
        });
        live.questions.store_watcher = Some(StoreWatcher(task));
    }

    /// Handles decisions posted to the store. A paused run resumes now; a busy one reads them when it
    /// continues.
    pub(super) fn on_decisions_posted(&mut self, run: &RunId, posted: Vec<PostedDecision>) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let is_paused = live.paused.is_some();
        let mut is_new = false;
        for PostedDecision { path, attempt, decision: decided, .. } in posted {
            let Some(question) = live.questions.questions.get_mut(&(path, attempt)) else { continue };
            if matches!(question.state, HumanQuestionState::Answered | HumanQuestionState::DecidedInStore) {
                continue;
            }
            is_new = true;
            question.state =
                if is_paused { HumanQuestionState::Answered } else { HumanQuestionState::DecidedInStore };
            if decided.scope == DecisionScope::ToolForRun {
                let PendingCall { agent, tool, .. } = question.pending.clone();
                let (decision, decided_by) = (decided.decision, decided.decided_by);
                record_standing(
                    &mut self.standing_decisions,
                    SessionDecision { agent, tool, decision, decided_by },
                );
            }
        }
        live.questions.stop_watching_if_idle();
        if is_new && is_paused {
            self.resume_run(run);
        }
    }

    /// Returns true if an approval needs the signature of an approver.
    fn has_approvers(&self) -> bool {
        self.config.store.as_ref().is_some_and(|store| store.approvers().is_some())
    }

    /// Narrows the scope of a held call to that call, unless a standing approval can cover its tool. Every response is a run
    /// of its own, so that no run knows the standing approvals of the session; the rule that asked is not known here.
    fn limit_scope(&self, run: &RunId, pending: &mut PendingCall) {
        let agent = self.runs.get(run).and_then(|live| self.resolved_agents.get(&live.activation));
        if !agent.is_some_and(|agent| agent.has_standing_approvals(&pending.agent, &pending.tool)) {
            pending.max_approval_scope = DecisionScope::ThisCall;
        }
    }

    fn standing_decision_for(&self, pending: &PendingCall) -> Option<(Decision, Option<String>)> {
        // An approver signs the approval of one call of one run, and every response of the model is a run.
        let can_approve = !self.has_approvers();
        let is_it = |standing: &&SessionDecision| {
            standing.agent == pending.agent
                && standing.tool == pending.tool
                && pending.reason == HoldReason::Approval
                && (can_approve && pending.max_approval_scope == DecisionScope::ToolForRun
                    || matches!(standing.decision, Decision::Reject { .. }))
        };
        self.standing_decisions
            .iter()
            .rev()
            .find(is_it)
            .map(|standing| (standing.decision.clone(), standing.decided_by.clone()))
    }

    pub(super) fn held_calls(&self) -> Vec<HeldCall> {
        let held =
            |(run, pending): (&RunId, &PendingCall)| HeldCall { run: run.clone(), pending: pending.clone() };
        let runs = self.runs.iter();
        runs.flat_map(|(run, live)| live.questions.open_questions().map(move |pending| (run, pending)))
            .map(held)
            .collect()
    }

    /// Adds the application's message to a rejection without one.
    fn complete_rejection(&self, decision: Decision, pending: &PendingCall) -> Decision {
        match (decision, &self.config.rejection_message) {
            (Decision::Reject { message: None }, Some(write)) => {
                // A function that panics is replaced by the default text.
                let message = catch_unwind(AssertUnwindSafe(|| write(pending))).ok();
                Decision::Reject { message }
            }
            (decision, _) => decision,
        }
    }

    /// Applies a decision now if the run is paused, and otherwise when it pauses. A decision on a displayed call is
    /// about that hold of that call only.
    pub(super) fn decide(
        &mut self,
        call: &CallPath,
        mut made: MadeDecision,
        display: Option<DisplayedCall>,
    ) -> Result<(), DecisionError> {
        let is_it = |run: &RunId, pending: &PendingCall| match &display {
            Some(display) => {
                pending.path == *call
                    && *run == display.run
                    && pending.attempt == display.attempt
                    && pending.digest == display.call_digest
            }
            None => {
                pending.path == *call || (call.parent_calls().is_empty() && pending.call() == call.call())
            }
        };
        let found = self.runs.iter().find_map(|(run, live)| {
            let is_open = |question: &HumanQuestion| {
                matches!(question.state, HumanQuestionState::Open) && is_it(run, &question.pending)
            };
            let (key, question) = live.questions.questions.iter().find(|(_, question)| is_open(question))?;
            Some((run.clone(), key.clone(), question.pending.clone()))
        });
        let none = || DecisionError::NotPending(call.clone());
        let Some((run, key, pending)) = found else { return Err(none()) };
        made.decision = self.complete_rejection(made.decision, &pending);
        made.displayed = display.and_then(|display| display.displayed);
        let has_approvers = self.has_approvers();
        let live = self.runs.get_mut(&run).ok_or_else(none)?;
        let signer = self.config.signer.as_ref();
        let state = match live.paused.as_mut() {
            Some(paused) => {
                made.clone().apply_to(paused, key.0.clone(), signer)?;
                HumanQuestionState::Answered
            }
            // It would be refused when the run pauses.
            None if has_approvers
                && (signer.is_none() || made.decided_by.is_none())
                && !matches!(made.decision, Decision::Reject { .. }) =>
            {
                return Err(SignatureError::Missing.into());
            }
            None => HumanQuestionState::DecidedEarly(made.clone()),
        };
        if let Some(question) = live.questions.questions.get_mut(&key) {
            question.state = state;
        }
        live.questions.stop_watching_if_idle();
        let is_paused = live.paused.is_some();
        if made.scope == DecisionScope::ToolForRun {
            let PendingCall { agent, tool, .. } = pending;
            let MadeDecision { decision, decided_by, .. } = made;
            record_standing(
                &mut self.standing_decisions,
                SessionDecision { agent, tool, decision, decided_by },
            );
        }
        if is_paused {
            self.resume_run(&run);
        }
        Ok(())
    }
}
