//! Runs of a store that was restored from a backup.
//!
//! The journal of such a run ends at the backup, and the run may have gone on after it: nobody knows which calls it made
//! until the store was lost. Invariant: no call that may have taken effect in that time starts again before a person, or
//! the tool's reconcile function, says that it did not.

use super::call_slot::{CallSlot, CallSlotState, OpenTurn, UnrecordedStart};
use super::{Run, RunPhase};
use crate::decision::HoldReason;
use crate::plan::{BodyKind, CallDisposition};
use crate::tool::ToolEffect;

impl Run {
    /// Returns true if the run, or the run that it is nested in, comes from a backup.
    pub fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// Puts the open calls in doubt that may have started after the backup, nested ones too.
    pub(super) fn apply_restored(&mut self) {
        self.is_restored = true;
        let turn = match &mut self.phase {
            RunPhase::CallsOpen(turn) | RunPhase::HandoffPending(turn) => turn,
            RunPhase::AwaitingModel
            | RunPhase::ResultsPending(_)
            | RunPhase::OutputPending(_)
            | RunPhase::Ended(_) => return,
        };
        for slot in &mut turn.slots {
            slot.doubt_after_restore();
            if let Some(nested) = &mut slot.nested_run {
                nested.apply_restored();
            }
        }
    }
}

impl OpenTurn {
    /// Puts the calls of a response in doubt that the run may have made under other ids after the backup.
    pub(super) fn doubt_repeated_calls(&mut self) {
        for slot in &mut self.slots {
            match slot.planned.disposition {
                CallDisposition::Execute { body: BodyKind::Agent, .. } => {}
                // The same call under another id has another idempotency key.
                CallDisposition::Execute { effect: ToolEffect::Once | ToolEffect::Idempotent, .. } => {
                    slot.assume_started(UnrecordedStart::OtherCall);
                }
                CallDisposition::Execute { effect: ToolEffect::Pure, .. }
                | CallDisposition::InvalidArguments { .. }
                | CallDisposition::UnknownTool { .. }
                | CallDisposition::Handoff { .. }
                | CallDisposition::SurplusHandoff => {}
            }
        }
    }
}

impl CallSlot {
    fn doubt_after_restore(&mut self) {
        // The calls of an agent are in doubt one by one; a repeated idempotent call has the key that it had.
        let CallDisposition::Execute { effect: ToolEffect::Once, body: BodyKind::Function, .. } =
            self.planned.disposition
        else {
            return;
        };
        match &self.state {
            CallSlotState::Open => self.assume_started(UnrecordedStart::SameCall),
            CallSlotState::Held { reason, attempt: 0, .. } if **reason == HoldReason::Approval => {
                self.assume_started(UnrecordedStart::SameCall);
            }
            CallSlotState::Held { attempt, edited_arguments, .. }
            | CallSlotState::Approved { attempt, edited_arguments } => {
                let edited_arguments = edited_arguments.clone();
                self.state = CallSlotState::Running { attempt: attempt + 1, edited_arguments };
                self.held_attempt = None;
            }
            CallSlotState::OutputKnown { .. }
            | CallSlotState::Running { .. }
            | CallSlotState::BodyEnded { .. }
            | CallSlotState::Settled { .. } => {}
        }
    }

    /// Treats a call that nobody has approved as one that may have started.
    fn assume_started(&mut self, start: UnrecordedStart) {
        self.state = CallSlotState::Running { attempt: 1, edited_arguments: None };
        self.unrecorded_start = Some(start);
        (self.decision, self.has_standing_decision, self.held_attempt) = (None, false, None);
    }
}
