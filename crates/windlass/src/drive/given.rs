//! An answer that is there already: its calls are carried out, and the run ends when they have settled.

use std::sync::Arc;

use windlass_core::{AfterTools, AnswerRefused, Answered, Entry, Finished, Item, Plan, Usage};

use super::{Driver, Halt, Ledger};
use crate::agent::Toolset;
use crate::model::Answer;

/// What stands in place of a model.
pub(crate) struct Given<C> {
    /// The answer, where the run has yet to take it in.
    pub(crate) answer: Option<Answer>,
    /// The tools that the model was offered.
    pub(crate) tools: Arc<Toolset<C>>,
    /// Receipts that this run shares with others of the same conversation.
    pub(crate) ledger: Arc<Ledger>,
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Whether the answer is there already. Agents inside calls ask their own models.
    pub(super) fn is_given(&self) -> bool {
        self.path.is_empty() && self.shared.config.given.is_some()
    }

    /// Plans the answer; or ends the run, where that was done and its calls have settled.
    pub(super) async fn take_given(&mut self) -> Result<(), Halt> {
        let shared = self.shared.clone();
        let given = shared.config.given.as_ref();
        let answer = given.and_then(|given| given.answer.clone()).unwrap_or_default();
        let has_calls = answer.items.iter().any(|item| matches!(&**item, Item::Call(_)));
        let tools = given.map(|given| given.tools.clone()).filter(|_| has_calls && self.run().turn() == 0);
        let Some(tools) = tools else {
            return self.record(Entry::Finished(Finished { output: String::new(), message: None })).await;
        };
        let name = self.run().agent().clone();
        let agent = self.agent(&name)?;
        let usage = answer.usage.unwrap_or_else(Usage::unknown);
        let items = answer.items.clone();
        match self.take_answer(answer.items, &agent, &tools).await {
            Ok(Plan { items, calls, repeated }) => {
                self.tools = Some(tools);
                self.shown.clear();
                let answered = Answered {
                    agent: name,
                    items,
                    calls,
                    repeated,
                    after: AfterTools::RunAgain,
                    usage,
                    response_id: answer.response_id,
                    request_id: answer.request_id,
                    model: answer.model,
                };
                self.record(Entry::Answered(answered.into())).await?;
                self.emitter.settled().await;
                Ok(())
            }
            Err(halt @ (Halt::Failure(_) | Halt::Cancelled)) => {
                self.record(Entry::AnswerRefused(AnswerRefused { agent: name, items, usage })).await?;
                Err(halt)
            }
            Err(halt @ Halt::Error(_)) => Err(halt),
        }
    }
}
