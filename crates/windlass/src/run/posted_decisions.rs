//! Decisions that people posted in the store, and approvals that expired: how they become part of a run.

use windlass_core::{
    decision::{PendingCall, UntakenHold},
    id::{CallId, CallPath},
    journal::JournalEntry,
};

use super::{DriveError, RunScope};
use crate::error::RunError;
use crate::store::{PostedDecision, held_call};

/// The result of taking the decision about a call.
pub(crate) enum DecisionCheck {
    /// The decision is the last one, and no other is accepted any more.
    Current,
    /// A later decision was posted, and is recorded now.
    Corrected,
}

impl<C: Send + Sync + 'static> RunScope<C> {
    /// Applies the decisions posted in the store. Returns true if there were any.
    pub(crate) async fn apply_posted_decisions(&self) -> Result<bool, RunError> {
        if !self.is_outermost() {
            return Ok(false);
        }
        let mut took_any = false;
        let posted = self.recorder.journal.load_posted_decisions(&|path| Ok(self.held_call(path))).await?;
        self.emit_store_warnings().await;
        for PostedDecision { path, attempt, decision, .. } in posted {
            let is_posted = |one: &PendingCall| one.path == path && one.attempt == attempt;
            let is_pending = self.recorder.with_root(|run| run.pending_calls().iter().any(is_posted));
            let entry = JournalEntry::DecisionRecorded(decision);
            if is_pending {
                took_any |= self.recorder.record_decision(path.parent_calls(), entry).await?;
            }
        }
        Ok(took_any)
    }

    /// Rejects the pending calls whose approval has expired.
    pub(crate) async fn reject_expired_calls(&self) -> Result<(), RunError> {
        let now = self.recorder.journal.now();
        for (path, rejection) in self.recorder.with_root(|run| run.expired_rejections(now)) {
            self.recorder.record_decision(path.parent_calls(), rejection).await?;
        }
        Ok(())
    }

    /// Returns the hold of the call about which a store could have a later decision than the one that is about to be
    /// carried out.
    pub(crate) fn untaken_hold(&self, call: &CallId) -> Option<UntakenHold> {
        self.recorder.journal.store_and_lease()?;
        self.with_run(|run| run.untaken_hold(call))
    }

    /// Takes the decision about a call in the store. From then on no other is accepted. If a later one was posted, it is
    /// recorded and replaces the one before.
    pub(crate) async fn take_decision(
        &self,
        call: &CallId,
        hold: UntakenHold,
    ) -> Result<DecisionCheck, DriveError> {
        let path = self.call_path(call);
        let find = |path: &CallPath| Ok(self.held_call(path));
        let posted = self.recorder.journal.take_posted_decision(&path, hold.attempt, &find).await?;
        self.emit_store_warnings().await;
        match posted {
            Some(posted) if posted.decision.posted_revision > hold.posted_revision => {
                let entry = JournalEntry::DecisionRecorded(posted.decision);
                // One that does not fit the call changes nothing.
                match self.recorder.record_decision(&self.parent_calls, entry).await? {
                    true => Ok(DecisionCheck::Corrected),
                    false => Ok(DecisionCheck::Current),
                }
            }
            Some(_) | None => Ok(DecisionCheck::Current),
        }
    }

    /// Returns a call that waits, or whose decision can be corrected, as the journal has it.
    fn held_call(&self, path: &CallPath) -> Option<PendingCall> {
        let mut held = self.recorder.with_root(|run| held_call(run, path))?;
        self.recorder.secrets.redact_pending(&mut held);
        Some(held)
    }

    /// Emits the warnings about things in the store that are not authentic.
    async fn emit_store_warnings(&self) {
        for message in self.recorder.journal.take_warnings() {
            self.emit_warning(message).await;
        }
    }
}
