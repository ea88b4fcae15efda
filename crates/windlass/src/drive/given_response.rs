//! A model response from an external source: the driver executes its calls and ends the run when they have
//! settled.

use std::sync::Arc;

use windlass_core::{
    id::RunId,
    item::Item,
    journal::{JournalEntry, RunFinished, ToolUsePolicyKind},
};

use super::Driver;
use super::model::AnsweredRequest;
use crate::agent::ResolvedToolset;
use crate::model::ModelResponse;
use crate::receipts::ReceiptCache;
use crate::run::DriveError;

/// A response that replaces a request to the model.
pub(crate) struct GivenResponse<C> {
    /// Response, if the run has not accepted it yet.
    pub(crate) response: Option<ModelResponse>,
    /// Tools that the model was offered.
    pub(crate) tools: Arc<ResolvedToolset<C>>,
    /// Receipts shared with other runs of the same conversation.
    pub(crate) receipt_cache: Arc<ReceiptCache>,
    /// The conversation, if it has an id.
    pub(crate) conversation: Option<RunId>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Returns true if this run has a given response. Nested agents request their own models.
    pub(super) fn has_given_response(&self) -> bool {
        self.scope.is_outermost() && self.shared.config.given_response.is_some()
    }

    /// Plans the given response, or ends the run if its calls have settled.
    pub(super) async fn take_given_response(&mut self) -> Result<(), DriveError> {
        let shared = self.shared.clone();
        let given = shared.config.given_response.as_ref();
        let answer = given.and_then(|given| given.response.clone()).unwrap_or_default();
        let has_calls = answer.items.iter().any(|item| matches!(&**item, Item::Call(_)));
        let tools = given
            .map(|given| given.tools.clone())
            .filter(|_| has_calls && self.scope.with_run(|run| run.turn()) == 0);
        let Some(tools) = tools else {
            return self
                .scope
                .record_entry(JournalEntry::RunFinished(RunFinished { output: String::new(), message: None }))
                .await;
        };
        let agent = self.find_agent(&self.scope.with_run(|run| run.agent().clone()))?;
        let policy = ToolUsePolicyKind::RunModelAgain;
        let request = AnsweredRequest { attempts: 1, requested_at: None, policy };
        self.accept_response(answer, request, &agent, tools).await
    }
}
