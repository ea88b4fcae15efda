//! A model response from an external source: the driver executes its calls and ends the run when they have
//! settled.

use std::sync::Arc;

use windlass_core::{
    item::Item,
    journal::{JournalEntry, ModelResponded, ResponseRejected, RunFinished, ToolUsePolicyKind},
    plan::ResponsePlan,
    usage::Usage,
};

use super::{DriveError, Driver, ReceiptCache};
use crate::agent::ResolvedToolset;
use crate::model::ModelResponse;

/// A response that replaces a request to the model.
pub(crate) struct GivenResponse<C> {
    /// Response, if the run has not accepted it yet.
    pub(crate) response: Option<ModelResponse>,
    /// Tools that the model was offered.
    pub(crate) tools: Arc<ResolvedToolset<C>>,
    /// Receipts shared with other runs of the same conversation.
    pub(crate) receipt_cache: Arc<ReceiptCache>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Returns true if this run has a given response. Nested agents request their own models.
    pub(super) fn has_given_response(&self) -> bool {
        self.parent_calls.is_empty() && self.shared.config.given_response.is_some()
    }

    /// Plans the given response, or ends the run if its calls have settled.
    pub(super) async fn take_given_response(&mut self) -> Result<(), DriveError> {
        let shared = self.shared.clone();
        let given = shared.config.given_response.as_ref();
        let answer = given.and_then(|given| given.response.clone()).unwrap_or_default();
        let has_calls = answer.items.iter().any(|item| matches!(&**item, Item::Call(_)));
        let tools = given
            .map(|given| given.tools.clone())
            .filter(|_| has_calls && self.with_run(|run| run.turn()) == 0);
        let Some(tools) = tools else {
            return self
                .record_entry(JournalEntry::RunFinished(RunFinished { output: String::new(), message: None }))
                .await;
        };
        let name = self.with_run(|run| run.agent().clone());
        let agent = self.find_agent(&name)?;
        let usage = answer.usage.unwrap_or_else(Usage::of_unknown_request);
        let items = answer.items.clone();
        let now = self.shared.journal.now();
        match self.accept_response(&answer, 1, (now, now), &agent, &tools).await {
            Ok(ResponsePlan { items, calls, duplicate_calls: repeated }) => {
                self.tools = Some(tools);
                self.shown_outputs.clear();
                let answered = ModelResponded {
                    agent: name,
                    items,
                    calls,
                    duplicate_calls: repeated,
                    tool_use_policy: ToolUsePolicyKind::RunModelAgain,
                    usage,
                    response_id: answer.response_id,
                    request_id: answer.request_id,
                    model: answer.model,
                };
                self.record_entry(JournalEntry::ModelResponded(answered.into())).await?;
                self.emitter.wait_until_handled().await;
                Ok(())
            }
            Err(halt @ (DriveError::RunFailed(_) | DriveError::Cancelled)) => {
                self.record_entry(JournalEntry::ResponseRejected(ResponseRejected {
                    agent: name,
                    items,
                    usage,
                }))
                .await?;
                Err(halt)
            }
            Err(halt @ DriveError::Aborted(_)) => Err(halt),
        }
    }
}
