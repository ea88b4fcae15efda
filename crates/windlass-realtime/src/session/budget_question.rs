//! The question to a person about a budget. It is a call that asks, in a run of its own: so it is answered as every other
//! question, through the session, or by another process that sees the run in the store.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;
use windlass::agent::Agent;
use windlass::core::budget::ReachedBudget;
use windlass::core::decision::PersonQuestion;
use windlass::core::id::{AgentName, CallId, RunId};
use windlass::core::run::{BUDGET_CALL, RunItem, budget_question, granted_amount};
use windlass::core::{item::Item, tool::ToolEffect};
use windlass::error::RunError;
use windlass::model::ModelResponse;
use windlass::run::RunResult;
use windlass::tool::{Tool, ToolContext, ToolError};

use super::actor::SessionActor;
use super::recovery::recovery_time;
use crate::history::{RealtimeItem, RealtimeItemKind};
use crate::id::{ItemId, ResponseId};
use crate::journal::CallBatchRecord;
use crate::machine::BudgetQuestion;

/// Name of the tool that asks.
const ASKING_TOOL: &str = "raise_budget";

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Asks a person for more. A question of an earlier process is continued.
    pub(super) async fn ask_for_budget(&mut self, question: BudgetQuestion) {
        let BudgetQuestion { number, reached } = question;
        let run = RunId::from(format!("{}_budget_{number}", self.context.session_id));
        self.budget_question = Some((run.clone(), reached.clone()));
        let agent: Agent<C> = Agent::new(BUDGET_CALL).tool(asking_tool(reached));
        let (session, app) = (self.context.session_id.clone(), self.context.app_context.clone());
        let resolved = match agent.resolve_with_context(&session, app, &[]).await {
            Ok(resolved) => resolved,
            Err(error) => return self.end_budget_question(&run, 0, &error.to_string()),
        };
        let activation = self.next_activation;
        self.next_activation += 1;
        // A later question has another tool.
        self.resolved_agents.retain(|_, known| known.agent().name().as_str() != BUDGET_CALL);
        self.resolved_agents.insert(activation, resolved.clone());
        let call = CallId::from(format!("budget_{number}"));
        let item = RealtimeItem {
            agent: Some(AgentName::from(BUDGET_CALL)),
            ..RealtimeItem::new(
                ItemId::from(call.as_str()),
                RealtimeItemKind::Call {
                    call: call.clone(),
                    name: ASKING_TOOL.to_owned(),
                    arguments: "{}".to_owned(),
                },
            )
        };
        let response = ResponseId::from(call.as_str());
        if self.config.store.is_some() {
            let agent = AgentName::from(BUDGET_CALL);
            let record = CallBatchRecord { run, response, agent, calls: vec![item] };
            let deadline = Instant::now() + recovery_time(self.config.lease_duration);
            return self.recover_run(record, deadline).await;
        }
        let items = item.to_item().map(Arc::new).into_iter().collect();
        let answer = ModelResponse { items, ..ModelResponse::default() };
        let builder =
            resolved.execute_calls(Vec::new(), answer, &self.context.conversation).run_id(run.clone());
        self.start_run(run, activation, response, vec![call], builder, None);
    }

    /// Returns true if a run asks a person for more.
    pub(super) fn is_budget_question(&self, run: &RunId) -> bool {
        self.budget_question.as_ref().is_some_and(|(asking, _)| asking == run)
    }

    /// Handles the result of a run that asks a person for more, apart from its pause.
    pub(super) fn on_question_answered(&mut self, run: &RunId, outcome: Result<RunResult, RunError>) {
        let items = match outcome {
            Ok(RunResult::Finished(finished)) => finished.record.run_items(),
            Ok(RunResult::Cancelled(_)) => {
                return self.end_budget_question(run, 0, "the question was cancelled");
            }
            Ok(RunResult::Paused(_) | RunResult::Detached(_)) => return,
            Err(error) => return self.end_budget_question(run, 0, &error.to_string()),
        };
        let Some((_, reached)) = &self.budget_question else { return };
        let amount = answered_value(&items).map_or(0, |value| granted_amount(reached.resource, &value));
        self.end_budget_question(run, amount, "nobody granted more");
    }

    /// Ends the question about a budget with the granted amount; the reason is logged if it is 0.
    pub(super) fn end_budget_question(&mut self, run: &RunId, amount: u64, reason: &str) {
        self.remove_run(run);
        self.budget_question = None;
        if amount == 0 {
            tracing::info!(%run, reason, "the session ends, because its budget is reached");
        }
        let now = self.elapsed();
        self.machine.advance_to(now).on_budget_answer(amount);
    }
}

/// Creates the tool that asks a person for more, and returns the answer.
fn asking_tool<C: Send + Sync + 'static>(reached: ReachedBudget) -> Tool<C> {
    let unit = reached.resource.unit();
    let text = format!("{reached}. How many more {unit} may be spent? 0 ends the session.");
    let question = PersonQuestion { text, ..budget_question(&reached) };
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(
        ASKING_TOOL,
        "Asks a person for a larger budget.",
        schema,
        move |context: ToolContext<C>, _| {
            let answer = context.answer_to(&question).map(Value::to_string);
            let question = question.clone();
            async move { answer.ok_or_else(|| ToolError::ask_person(question)) }
        },
    )
    .effect(ToolEffect::Pure)
}

/// Returns the answer, which is the output of the only call. The text of a rejection is not a number.
fn answered_value(items: &[RunItem]) -> Option<Value> {
    items.iter().find_map(|produced| match &*produced.item {
        Item::Output(output) => serde_json::from_str(&output.content.text()).ok().filter(Value::is_number),
        _ => None,
    })
}
