//! Questions to a person (human in the loop) and their decisions: made through this session, standing for a
//! tool, or posted to the store by another process.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use windlass::core::{
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::{AgentName, CallPath, RunId},
    journal::{DecisionRecorded, DecisionRevoked, JournalEntry},
    tool::ToolKey,
};
use windlass::error::{DecisionError, StoreError, StoreErrorKind};
use windlass::run::{PausedRun, RunRecord};
use windlass::store::{
    ApproverSigner, DecisionReview, PostDecisionError, PostedDecision, Store, load_posted_decisions,
    post_reviewed_decision, post_signed_decision,
};

use super::actor::SessionActor;
use super::call_runs::{CallBatchRun, RunNotice};
use super::handle::SessionRequestError;
use super::requests::DisplayedCall;
use crate::event::{HeldCall, RealtimeEvent};

/// Interval at which the store is polled for decisions of other processes.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the store is polled for records that another driver wrote to a paused run.
const PAUSED_RUN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for posting a decision.
const POST_TIMEOUT: Duration = Duration::from_secs(90);
/// The decider of a posted decision that was made in nobody's name.
const UNNAMED_DECIDER: &str = "application";

/// A question: the path of its call, and the number of its hold.
pub(super) type QuestionKey = (CallPath, u32);
/// The receiver of the result of a decision.
pub(super) type DecisionReply = oneshot::Sender<Result<(), SessionRequestError>>;

/// The questions of one run. Each question is reported once.
#[derive(Default)]
pub(super) struct RunQuestions {
    questions: BTreeMap<QuestionKey, HumanQuestion>,
    /// Present while a question is open and there is a store in which others can answer it.
    store_watcher: Option<StoreWatcher>,
    /// The posted decisions that the session has reacted to.
    known_posts: Vec<PostedDecision>,
}

/// A question to a person.
struct HumanQuestion {
    pending: PendingCall,
    state: HumanQuestionState,
    /// True if the call has gone on, which is reported once.
    is_released: bool,
    /// True if the decision is taken, so that it cannot be corrected any more.
    is_decision_taken: bool,
}

/// The state of a question.
enum HumanQuestionState {
    Open,
    /// Decided through this session; the decision is on its way to the store.
    Posting,
    /// Decided while the run was executing other calls; applied when the run pauses again.
    DecidedEarly(MadeDecision),
    /// Decided in the store while the run was executing other calls; the run reads it when it continues.
    DecidedInStore,
    Answered,
}

/// A task that polls the store for what other processes do. Dropping it aborts the task.
pub(super) struct StoreWatcher(AbortHandle);

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

    /// Marks the questions about a call as answered: it has started or has its output. Returns true if the call was held
    /// until now.
    fn mark_answered(&mut self, call: &CallPath) -> bool {
        let mut was_held = false;
        for question in self.questions.values_mut().filter(|question| question.pending.path == *call) {
            question.state = HumanQuestionState::Answered;
            was_held |= !std::mem::replace(&mut question.is_released, true);
        }
        self.stop_watching_if_idle();
        was_held
    }

    /// Returns the calls that are held.
    fn held_calls(&self) -> BTreeSet<CallPath> {
        let held = self.questions.values().filter(|question| !question.is_released);
        held.map(|question| question.pending.path.clone()).collect()
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

    /// Posts the decision to the store, signed by the approver of the session if there is one. The driver of the run takes
    /// it while other calls of the run go on, and it is not lost with this process.
    async fn post(
        &self,
        store: &dyn Store,
        run: &RunId,
        question: &QuestionKey,
        signer: Option<&Arc<ApproverSigner>>,
    ) -> Result<(), PostDecisionError> {
        let (path, attempt) = question.clone();
        let review = DecisionReview {
            decided_by: self.decided_by.clone().unwrap_or_else(|| UNNAMED_DECIDER.to_owned()),
            displayed: self.displayed,
            attempt: Some(attempt),
        };
        let (decision, scope) = (self.decision.clone(), self.scope);
        match signer.filter(|_| self.decided_by.is_some()) {
            Some(signer) => post_signed_decision(store, run, path, decision, scope, review, signer).await,
            None => post_reviewed_decision(store, run, path, decision, scope, review).await,
        }
    }
}

/// A decision after the attempt to post it.
pub(super) struct DecisionPost {
    run: RunId,
    question: QuestionKey,
    made: MadeDecision,
    result: Result<(), PostDecisionError>,
    reply: DecisionReply,
}

impl DecisionPost {
    /// Tells the caller the result. The caller may have stopped waiting.
    pub(super) fn report_result(self) {
        let result = self.result.map_err(|error| refused_post(&self.question.0, error));
        let _ = self.reply.send(result);
    }
}

/// Converts the error of a decision that was not posted.
fn refused_post(call: &CallPath, error: PostDecisionError) -> SessionRequestError {
    let refused = match error {
        PostDecisionError::Decide(error) => error,
        PostDecisionError::Signature(reason) => reason.into(),
        // Another decision was taken before.
        PostDecisionError::AlreadyTaken(_) => DecisionError::NotPending(call.clone()),
        PostDecisionError::Store(error) if error.kind() == StoreErrorKind::AlreadyDecided => {
            DecisionError::NotPending(call.clone())
        }
        error => {
            return SessionRequestError::DecisionNotStored { call: call.clone(), message: error.to_string() };
        }
    };
    refused.into()
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

/// Returns true if a decision about the call cannot be corrected any more.
fn is_decision_taken(record: &RunRecord, call: &CallPath) -> bool {
    let run = record.outline().at_path(call.parent_calls());
    let is_correctable = run.is_some_and(|run| run.correctable_call(call.call()).is_some());
    !is_correctable && !record.outline().pending_calls().iter().any(|pending| pending.path == *call)
}

/// Returns the decision about a call if it stands for later calls of the tool: the last one that the run has recorded, and
/// that was not revoked.
fn find_standing<'a>(record: &'a RunRecord, pending: &PendingCall) -> Option<&'a DecisionRecorded> {
    let parents = pending.path.parent_calls();
    let of_run = record.journal().iter().rev().filter(|record| record.path == parents);
    let last = of_run.map(|record| &record.entry).find(|entry| match entry {
        JournalEntry::DecisionRecorded(made) => {
            let is_of_approval = matches!(
                made.decision,
                Decision::Approve | Decision::ApproveEdited { .. } | Decision::Reject { .. }
            );
            made.call == *pending.call() && is_of_approval
        }
        JournalEntry::DecisionRevoked(DecisionRevoked { agent, tool, .. }) => {
            *agent == pending.agent && *tool == pending.tool
        }
        _ => false,
    })?;
    match last {
        JournalEntry::DecisionRecorded(made) => {
            Some(made).filter(|made| made.scope == DecisionScope::ToolForRun)
        }
        _ => None,
    }
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
        self.record_standing_decisions(run, paused.record());
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
        live.recovery = None;
        live.paused = Some(paused);
        if is_decided {
            return self.resume_run(run);
        }
        if live.questions.open_questions().next().is_some() {
            self.watch_store(run);
        }
        self.watch_paused_run(run);
        if let Some(expiry) = self.config.approval_expiry {
            let (notify, run) = (self.notice_sender.clone(), run.clone());
            self.background_tasks.spawn(async move {
                tokio::time::sleep(expiry + Duration::from_millis(1)).await;
                let _ = notify.send(RunNotice::ApprovalExpired { run }).await;
            });
        }
    }

    /// Handles a call that goes on: it has started or has its output.
    pub(super) fn release_call(&mut self, run: &RunId, call: &CallPath) {
        if self.runs.get_mut(run).is_some_and(|live| live.questions.mark_answered(call)) {
            self.emit_event(RealtimeEvent::CallReleased { run: run.clone(), call: call.clone() });
        }
    }

    /// Removes a run that has ended. Its held calls no longer wait.
    pub(super) fn remove_run(&mut self, run: &RunId) -> Option<CallBatchRun> {
        let live = self.runs.remove(run)?;
        for call in live.questions.held_calls() {
            self.emit_event(RealtimeEvent::CallReleased { run: run.clone(), call });
        }
        Some(live)
    }

    /// Returns the decision on a question of a run that has paused. One about the call itself precedes a standing one.
    fn prior_decision(&mut self, run: &RunId, pending: &PendingCall) -> PriorDecision {
        let standing = self.standing_decision_for(pending);
        let key = (pending.path.clone(), pending.attempt);
        let question = self.runs.get_mut(run).and_then(|live| live.questions.questions.get_mut(&key));
        if let Some(question) = question {
            match std::mem::replace(&mut question.state, HumanQuestionState::Answered) {
                HumanQuestionState::DecidedEarly(made) => return PriorDecision::DecidedLocally(made),
                HumanQuestionState::DecidedInStore => return PriorDecision::DecidedInStore,
                // The run is resumed when the store has the decision.
                HumanQuestionState::Posting => {
                    question.state = HumanQuestionState::Posting;
                    return PriorDecision::Undecided;
                }
                // A decision that was not accepted leaves the question open.
                HumanQuestionState::Open | HumanQuestionState::Answered if standing.is_none() => {
                    question.state = HumanQuestionState::Open;
                }
                HumanQuestionState::Open | HumanQuestionState::Answered => {}
            }
        }
        let Some((decision, decided_by)) = standing else { return PriorDecision::Undecided };
        let scope = DecisionScope::ThisCall;
        PriorDecision::DecidedLocally(MadeDecision { decision, scope, decided_by, displayed: None })
    }

    /// Records the decisions of a run that stand for later calls of the session. One that can still be corrected does not
    /// stand yet: its correction may be the opposite.
    pub(super) fn record_standing_decisions(&mut self, run: &RunId, record: &RunRecord) {
        let Some(live) = self.runs.get_mut(run) else { return };
        for question in live.questions.questions.values_mut() {
            let HumanQuestion { pending, is_decision_taken: is_taken, .. } = question;
            let is_new = !*is_taken && pending.reason == HoldReason::Approval;
            if !is_new || !is_decision_taken(record, &pending.path) {
                continue;
            }
            *is_taken = true;
            let Some(made) = find_standing(record, pending) else { continue };
            let (agent, tool) = (pending.agent.clone(), pending.tool.clone());
            let (decision, decided_by) = (made.decision.clone(), made.decided_by.clone());
            record_standing(
                &mut self.standing_decisions,
                SessionDecision { agent, tool, decision, decided_by },
            );
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
        let question = HumanQuestion {
            pending: pending.clone(),
            state: HumanQuestionState::Open,
            is_released: false,
            is_decision_taken: false,
        };
        live.questions.questions.insert(key, question);
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
        let mut known = live.questions.known_posts.clone();
        let task = self.background_tasks.spawn(async move {
            loop {
                tokio::time::sleep(STORE_POLL_INTERVAL).await;
                match load_posted_decisions(&*store, &run).await.map(|posted| posted.authentic) {
                    Ok(posted) if posted != known => {
                        known.clone_from(&posted);
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

    /// Watches the store for another driver that goes on with a paused run.
    fn watch_paused_run(&mut self, run: &RunId) {
        let Some(store) = self.config.store.clone() else { return };
        let Some(live) = self.runs.get_mut(run).filter(|live| live.paused_run_watcher.is_none()) else {
            return;
        };
        let Some(paused) = &live.paused else { return };
        let (notify, run, record_count) =
            (self.notice_sender.clone(), run.clone(), paused.record().record_count());
        let task = self.background_tasks.spawn(async move {
            loop {
                tokio::time::sleep(PAUSED_RUN_POLL_INTERVAL).await;
                match store.load_journal_page(&run, record_count, 1).await {
                    Ok(later) if later.is_empty() => {}
                    Ok(_) => {
                        let _ = notify.send(RunNotice::PausedRunAdvanced { run, record_count }).await;
                        return;
                    }
                    Err(error) => tracing::debug!(%error, %run, "cannot read a paused run from the store"),
                }
            }
        });
        live.paused_run_watcher = Some(StoreWatcher(task));
    }

    /// Handles records that another driver wrote to a run that had paused after `record_count` records.
    pub(super) fn on_paused_run_advanced(&mut self, run: &RunId, record_count: u64) {
        let paused = self.runs.get(run).and_then(|live| live.paused.as_ref());
        // This process may have resumed the run itself meanwhile.
        if paused.is_some_and(|paused| paused.record().record_count() == record_count) {
            self.follow_other_driver(run, "another process has gone on with the run");
        }
    }

    /// Handles decisions posted to the store. A paused run resumes now; a busy one takes them by itself.
    pub(super) fn on_decisions_posted(&mut self, run: &RunId, posted: Vec<PostedDecision>) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let is_paused = live.paused.is_some();
        let mut is_new = false;
        live.questions.known_posts.clone_from(&posted);
        for PostedDecision { path, attempt, .. } in posted {
            let Some(question) = live.questions.questions.get_mut(&(path, attempt)) else { continue };
            if !matches!(question.state, HumanQuestionState::Open | HumanQuestionState::DecidedEarly(_)) {
                continue;
            }
            is_new = true;
            question.state =
                if is_paused { HumanQuestionState::Answered } else { HumanQuestionState::DecidedInStore };
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

    /// Finds the open question that a decision is about. A decision on a displayed call is about that hold of that call only.
    /// A path without parents also names a call inside a nested agent, if no other open question fits.
    fn find_question(
        &self,
        call: &CallPath,
        display: Option<&DisplayedCall>,
    ) -> Result<(RunId, PendingCall), DecisionError> {
        let runs = self.runs.iter();
        let open: Vec<(&RunId, &PendingCall)> = runs
            .flat_map(|(run, live)| live.questions.open_questions().map(move |pending| (run, pending)))
            .collect();
        let is_displayed = |(run, pending): &(&RunId, &PendingCall)| {
            display.is_none_or(|display| {
                **run == display.run
                    && pending.attempt == display.attempt
                    && pending.digest == display.call_digest
            })
        };
        // The newest hold of the call is the last one.
        let exact = open.iter().rfind(|one| one.1.path == *call && is_displayed(one));
        if let Some((run, pending)) = exact {
            return Ok(((*run).clone(), (*pending).clone()));
        }
        let is_short = display.is_none() && call.parent_calls().is_empty();
        let mut nested = open.iter().filter(|(_, pending)| is_short && pending.call() == call.call());
        match (nested.next(), nested.next()) {
            (Some((run, pending)), None) => Ok(((*run).clone(), (*pending).clone())),
            (Some(_), Some(_)) => Err(DecisionError::AmbiguousCall(call.clone())),
            (None, _) => Err(DecisionError::NotPending(call.clone())),
        }
    }

    /// Makes a decision. While a run with a store is executing other calls, the decision is posted to the store, where the
    /// driver of the run takes it at once. The reply follows when the decision counts.
    pub(super) fn decide(
        &mut self,
        call: &CallPath,
        mut made: MadeDecision,
        display: Option<DisplayedCall>,
        reply: DecisionReply,
    ) {
        let (run, pending) = match self.find_question(call, display.as_ref()) {
            Ok(found) => found,
            Err(error) => {
                let _ = reply.send(Err(error.into()));
                return;
            }
        };
        made.decision = self.complete_rejection(made.decision, &pending);
        made.displayed = display.and_then(|display| display.displayed);
        let question = (pending.path, pending.attempt);
        let is_paused = self.runs.get(&run).is_some_and(|live| live.paused.is_some());
        match self.config.store.clone() {
            Some(store) if !is_paused => self.start_post(store, run, question, made, reply),
            _ => {
                let _ = reply.send(self.apply_decision(&run, &question, made).map_err(Into::into));
            }
        }
    }

    /// Applies a decision now if the run is paused, and otherwise when it pauses.
    fn apply_decision(
        &mut self,
        run: &RunId,
        question: &QuestionKey,
        made: MadeDecision,
    ) -> Result<(), DecisionError> {
        let none = || DecisionError::NotPending(question.0.clone());
        let live = self.runs.get_mut(run).ok_or_else(none)?;
        let known = live.questions.questions.get_mut(question).ok_or_else(none)?;
        let is_paused = live.paused.is_some();
        known.state = match live.paused.as_mut() {
            Some(paused) => {
                made.apply_to(paused, question.0.clone(), self.config.signer.as_ref())?;
                HumanQuestionState::Answered
            }
            None => HumanQuestionState::DecidedEarly(made),
        };
        live.questions.stop_watching_if_idle();
        if is_paused {
            self.resume_run(run);
        }
        Ok(())
    }

    /// Starts to post a decision to the store.
    fn start_post(
        &mut self,
        store: Arc<dyn Store>,
        run: RunId,
        question: QuestionKey,
        made: MadeDecision,
        reply: DecisionReply,
    ) {
        let known = self.runs.get_mut(&run).and_then(|live| live.questions.questions.get_mut(&question));
        if let Some(known) = known {
            known.state = HumanQuestionState::Posting;
        }
        let (notify, signer) = (self.notice_sender.clone(), self.config.signer.clone());
        self.background_tasks.spawn(async move {
            let posting = made.post(&*store, &run, &question, signer.as_ref());
            let late = |_| Err(StoreError::new("the store did not take it in time").into());
            let result = tokio::time::timeout(POST_TIMEOUT, posting).await.unwrap_or_else(late);
            let post = Box::new(DecisionPost { run, question, made, result, reply });
            let _ = notify.send(RunNotice::DecisionPosted(post)).await;
        });
    }

    /// Handles a decision that was posted, or could not be.
    pub(super) fn on_decision_posted(&mut self, post: DecisionPost) {
        let DecisionPost { run, question, made, result, reply } = post;
        let result = match result {
            Ok(()) => {
                self.mark_posted(&run, &question);
                Ok(())
            }
            // The store takes no secrets. This process has them.
            Err(PostDecisionError::Decide(DecisionError::InvalidArguments(_)))
                if self.is_posting(&run, &question) =>
            {
                self.apply_decision(&run, &question, made).map_err(Into::into)
            }
            Err(error) => Err(refused_post(&question.0, error)),
        };
        if result.is_err() && self.is_posting(&run, &question) {
            self.open_again(&run, &question);
        }
        let _ = reply.send(result);
    }

    fn is_posting(&self, run: &RunId, question: &QuestionKey) -> bool {
        let known = self.runs.get(run).and_then(|live| live.questions.questions.get(question));
        known.is_some_and(|known| matches!(known.state, HumanQuestionState::Posting))
    }

    /// Records that the store has a decision. A run that has paused meanwhile is resumed with it.
    fn mark_posted(&mut self, run: &RunId, question: &QuestionKey) {
        // The driver may have taken it already.
        if !self.is_posting(run, question) {
            return;
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        let is_paused = live.paused.is_some();
        if let Some(known) = live.questions.questions.get_mut(question) {
            known.state =
                if is_paused { HumanQuestionState::Answered } else { HumanQuestionState::DecidedInStore };
        }
        live.questions.stop_watching_if_idle();
        if is_paused {
            self.resume_run(run);
        }
    }

    /// Opens a question again whose decision was not posted. Another process may have decided it meanwhile.
    fn open_again(&mut self, run: &RunId, question: &QuestionKey) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if let Some(known) = live.questions.questions.get_mut(question) {
            known.state = HumanQuestionState::Open;
        }
        live.questions.known_posts.clear();
        live.questions.store_watcher = None;
        self.watch_store(run);
    }
}
