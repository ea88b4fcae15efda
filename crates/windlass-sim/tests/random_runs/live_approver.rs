//! A person who decides while a driver lives: beside running calls, also about those of nested agents, and with corrections.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::CallPath,
};
use windlass::error::DecisionError;
use windlass::store::{PostDecisionError, load_paused, post_decision};
use windlass_sim::{SimRng, SimStore};

use crate::coverage::{CORRECTION_TO_APPROVAL, CORRECTION_TO_REJECTION, CORRECTION_TOO_LATE};
use crate::observer::WorldObserver;

/// The name in which the person decides.
pub(crate) const LIVE_APPROVER: &str = "a person at work";
/// Time after which a driver that still runs a body has taken a decision. It looks at posted decisions every second.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// The acceptance of a posted decision.
enum PostOutcome {
    Accepted,
    /// An earlier decision about the call is taken.
    TooLate,
    /// The call waits no longer, or the run does not.
    NotPending,
}

impl WorldObserver {
    /// Decides about pending calls until the process ends. The person has a connection of its own to the store.
    pub(crate) async fn decide_while_running(self: Arc<Self>) {
        let store = Arc::new(self.store.for_other_process());
        let process = self.sim.process_number();
        let mut rng = SimRng::for_purpose(self.sim.seed().wrapping_add(process), "live approver");
        let mut nothing_pending_at = None;
        loop {
            tokio::time::sleep(Duration::from_millis(1 + rng.below(60))).await;
            let records = self.check_new_records();
            if nothing_pending_at == Some(records) {
                continue;
            }
            let Ok(paused) = load_paused(&*store, &self.run).await else { continue };
            let pending = paused.pending_calls();
            nothing_pending_at = pending.is_empty().then_some(records);
            for pending in pending {
                if rng.chance(self.spec.additions.live_decision_percent) {
                    self.decide_live(&store, &pending, &mut rng).await;
                }
            }
        }
    }

    /// Posts a decision. Sometimes the person errs first, and corrects the mistake.
    async fn decide_live(self: &Arc<Self>, store: &SimStore, pending: &PendingCall, rng: &mut SimRng) {
        let (decision, scope) = self.draw_decision(pending);
        if pending.reason != HoldReason::Approval || !rng.chance(30) {
            self.post_live(store, &pending.path, decision, scope).await;
            return;
        }
        let (first, label) = match &decision {
            Decision::Reject { .. } => (Decision::Approve, CORRECTION_TO_REJECTION),
            _ => (Decision::Reject { message: Some("a mistake".to_owned()) }, CORRECTION_TO_APPROVAL),
        };
        let posted = self.post_live(store, &pending.path, first, DecisionScope::ThisCall).await;
        let PostOutcome::Accepted = posted else { return };
        // The driver may take the decision meanwhile.
        if rng.chance(50) {
            tokio::time::sleep(Duration::from_millis(rng.below(10))).await;
        }
        match self.post_live(store, &pending.path, decision, scope).await {
            PostOutcome::Accepted => self.note_label(label),
            PostOutcome::TooLate => self.note_label(CORRECTION_TOO_LATE),
            PostOutcome::NotPending => {}
        }
    }

    async fn post_live(
        self: &Arc<Self>,
        store: &SimStore,
        path: &CallPath,
        decision: Decision,
        scope: DecisionScope,
    ) -> PostOutcome {
        let since = self.check_new_records();
        let posted =
            post_decision(store, &self.run, path.clone(), decision.clone(), scope, LIVE_APPROVER).await;
        match posted {
            Ok(()) => {
                self.note_accepted_post(path, decision, scope);
                tokio::spawn(self.clone().check_taken(path.clone(), since, self.running_bodies()));
                PostOutcome::Accepted
            }
            Err(PostDecisionError::AlreadyTaken(_)) => PostOutcome::TooLate,
            Err(
                PostDecisionError::Decide(DecisionError::NotPending(_) | DecisionError::NotApplicable(_))
                | PostDecisionError::Open(_),
            ) => PostOutcome::NotPending,
            Err(error) => {
                self.report_violation(format!("a decision about call {path} cannot be posted: {error}"));
                PostOutcome::NotPending
            }
        }
    }

    /// Checks that the driver has taken a decision, if a body that ran when it was posted still runs.
    async fn check_taken(self: Arc<Self>, path: CallPath, since: u64, bodies: Vec<u64>) {
        tokio::time::sleep(TAKEN_WITHIN).await;
        let still_runs = self.running_bodies().iter().any(|body| bodies.contains(body));
        if still_runs && self.is_pending_since(&path, since) {
            self.report_violation(format!("call {path} was decided, and still waits beside a running body"));
        }
    }
}
