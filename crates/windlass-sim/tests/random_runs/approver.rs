//! The simulated approver: mostly truthful, sometimes wrong, and often late.

use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::CallPath,
};
use windlass::run::PausedRun;
use windlass::store::post_decision;
use windlass_sim::ProcessExit;

use crate::observer::WorldObserver;
use crate::process::ProcessOrigin;
use crate::simulated_run::SimulatedRun;

/// Number of rounds in which decisions may be omitted; later rounds decide everything.
const MAX_UNDECIDED_ROUNDS: u64 = 4;

impl SimulatedRun {
    /// Decides pending calls, and returns how the run continues.
    pub(crate) fn decide_pending(&mut self, mut paused: PausedRun) -> ProcessOrigin {
        self.approval_rounds += 1;
        let pending = paused.pending_calls();
        if pending.is_empty() {
            self.observer.report_violation("the run is paused and waits for nothing");
            return ProcessOrigin::Stored;
        }
        let sim = self.observer.sim.clone();
        let by_post = sim.chance(30);
        let mut posts = Vec::new();
        for pending in pending {
            if self.approval_rounds <= MAX_UNDECIDED_ROUNDS && sim.chance(25) {
                continue;
            }
            let (decision, reach) = self.observer.draw_decision(&pending);
            if by_post {
                // Sometimes the approver errs first, and corrects itself.
                if pending.reason == HoldReason::Approval && sim.chance(20) {
                    let first = match &decision {
                        Decision::Reject { .. } => Decision::Approve,
                        _ => Decision::Reject { message: Some("a mistake".to_owned()) },
                    };
                    posts.push((pending.path.clone(), first, DecisionScope::ThisCall));
                }
                posts.push((pending.path.clone(), decision, reach));
                continue;
            }
            if is_covered(&paused, &pending.path) {
                continue;
            }
            if sim.chance(10) {
                self.check_repeated_decision(paused.clone(), &pending);
            }
            if let Err(error) = paused.decide(pending.path.clone(), decision, reach) {
                self.observer.report_violation(format!(
                    "a decision about call {} does not count: {error}",
                    pending.path
                ));
            }
        }
        if by_post { self.post_decisions(posts) } else { self.continue_paused(paused) }
    }

    fn continue_paused(&self, mut paused: PausedRun) -> ProcessOrigin {
        let sim = &self.observer.sim;
        if sim.chance(5)
            && let Err(error) = paused.add_input("And one more thing.")
        {
            self.observer.report_violation(format!("input cannot be added: {error}"));
        }
        if let Some(standing) = paused.standing_decisions().first().filter(|_| sim.chance(10))
            && let Err(error) = paused.revoke(standing)
        {
            self.observer.report_violation(format!("a decision cannot be taken back: {error}"));
        }
        if sim.chance(60) {
            return ProcessOrigin::Paused(Box::new(paused));
        }
        match PausedRun::from_text(&paused.to_text()) {
            Ok(restored) => ProcessOrigin::Paused(Box::new(restored)),
            Err(error) => {
                self.observer.report_violation(format!("a saved run cannot be restored: {error}"));
                ProcessOrigin::Stored
            }
        }
    }

    /// Posts decisions to the store, where the next driver finds them.
    fn post_decisions(&self, posts: Vec<(CallPath, Decision, DecisionScope)>) -> ProcessOrigin {
        let lab = self.observer.clone();
        let posted = self.observer.sim.run_process(async move {
            for (path, decision, scope) in posts {
                let posted =
                    post_decision(&*lab.store, &lab.run, path.clone(), decision, scope, "somebody").await;
                // The disk may fail; the approver decides again later.
                if let Err(error) = posted
                    && !error.to_string().contains("disk")
                {
                    lab.report_violation(format!("a decision about call {path} cannot be posted: {error}"));
                }
            }
        });
        debug_assert_eq!(posted, ProcessExit::Completed(()));
        ProcessOrigin::Stored
    }

    /// Checks that a repeated decision is accepted and that a different one replaces it.
    fn check_repeated_decision(&self, mut paused: PausedRun, pending: &PendingCall) {
        if pending.reason != HoldReason::Approval {
            return;
        }
        let first = paused.approve(pending.path.clone());
        let again = paused.approve(pending.path.clone());
        let corrected = paused.reject(pending.path.clone());
        if first.is_err() || again.is_err() || corrected.is_err() {
            self.observer.report_violation(format!(
                "decisions about call {}: {first:?}, {again:?}, {corrected:?}",
                pending.path
            ));
        }
    }
}

impl WorldObserver {
    /// Draws the decision about a pending call.
    pub(crate) fn draw_decision(&self, pending: &PendingCall) -> (Decision, DecisionScope) {
        let sim = &self.sim;
        if pending.reason == HoldReason::InDoubt {
            return (self.draw_doubt_resolution(pending), DecisionScope::ThisCall);
        }
        if let HoldReason::Question(_) = &pending.reason {
            let answer = Decision::Answer { value: "this".into() };
            let decision = if sim.chance(80) { answer } else { Decision::Reject { message: None } };
            return (decision, DecisionScope::ThisCall);
        }
        let is_agent = pending.arguments_value().get("input").is_some();
        match sim.draw(|rng| rng.below(10)) {
            0 | 1 => (Decision::Reject { message: None }, DecisionScope::ThisCall),
            2 => (Decision::Reject { message: Some("not today".to_owned()) }, DecisionScope::ThisCall),
            3 => (Decision::Reject { message: None }, DecisionScope::ToolForRun),
            4 => (Decision::Approve, pending.max_approval_scope),
            5 if !is_agent => {
                let arguments = format!("{{\"n\":{}}}", sim.draw(|rng| rng.below(3)));
                (Decision::ApproveEdited { arguments }, DecisionScope::ThisCall)
            }
            _ => (Decision::Approve, DecisionScope::ThisCall),
        }
    }

    fn draw_doubt_resolution(&self, pending: &PendingCall) -> Decision {
        let sim = &self.sim;
        let happened = self.world.count_by_call(pending.path.clone()) > 0;
        let lies = sim.chance(self.spec.faults.lie_percent);
        match (sim.chance(25), happened != lies) {
            (true, _) => Decision::OutcomeUnknown,
            (false, true) => Decision::ConfirmExecuted { output: "it had happened".into() },
            (false, false) => {
                self.note_denied(&pending.path);
                Decision::ConfirmNotExecuted
            }
        }
    }
}

/// Returns true if a standing decision about another call has covered this one.
fn is_covered(paused: &PausedRun, path: &CallPath) -> bool {
    paused.pending_calls().iter().all(|pending| pending.path != *path)
}
