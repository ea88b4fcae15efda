//! Decisions as the requests of an engine, which may be repeated.

use serde::{Deserialize, Serialize};
use windlass_core::{
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::{CallPath, RunId},
};

use crate::store::{DecisionReview, PostDecisionError, Store, post_reviewed_decision};

/// A decision about a call, as a value that an engine passes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRequest {
    /// The call.
    pub call: CallPath,
    /// The decision.
    pub decision: Decision,
    /// Calls that the decision covers.
    #[serde(default)]
    pub scope: DecisionScope,
    /// Name of the person or policy that decided.
    pub decided_by: String,
    /// Digest of the text that was displayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displayed: Option<Digest>,
    /// Number of the hold that was displayed. A decision about another hold of the call is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl DecisionRequest {
    /// Creates a decision about one call, in the name of `decided_by`.
    pub fn new(call: impl Into<CallPath>, decision: Decision, decided_by: impl Into<String>) -> Self {
        Self {
            call: call.into(),
            decision,
            scope: DecisionScope::default(),
            decided_by: decided_by.into(),
            displayed: None,
            attempt: None,
        }
    }

    /// Posts the decision: see [`post_reviewed_decision`]. Posting the same again has no effect, also after the driver has
    /// taken it.
    ///
    /// # Errors
    ///
    /// Returns [`PostDecisionError::AlreadyTaken`] if another decision is taken.
    pub async fn post(&self, store: &dyn Store, run: &RunId) -> Result<(), PostDecisionError> {
        let review = DecisionReview {
            decided_by: self.decided_by.clone(),
            displayed: self.displayed,
            attempt: self.attempt,
        };
        let (call, decision) = (self.call.clone(), self.decision.clone());
        match post_reviewed_decision(store, run, call, decision, self.scope, review).await {
            Err(PostDecisionError::AlreadyTaken(taken))
                if taken.decision == self.decision && taken.decided_by.as_ref() == Some(&self.decided_by) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}
