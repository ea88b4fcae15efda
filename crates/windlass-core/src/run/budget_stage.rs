//! The budget of a run: reservations before requests, questions to a person, and the last answer.

use serde_json::json;

use super::apply::ApplyError;
use super::{Run, RunPhase};
use crate::budget::{
    BudgetLedger, BudgetPosition, BudgetQuery, BudgetResource, BudgetVerdict, OnBudgetReached, ReachedBudget,
    nanos_of,
};
use crate::canonical::Digest;
use crate::decision::{Decision, DecisionScope, HoldReason, PendingCall, PersonQuestion, UntakenHold};
use crate::failure::RunFailure;
use crate::id::{AgentName, CallId, CallPath};
use crate::journal::{BudgetReached, DecisionRecorded, JournalEntry};
use crate::provenance::ContentSources;
use crate::schema::{describe_violations, validate};
use crate::tool::ToolKey;

/// Id of the pending call that stands for the question of a budget. No model makes a call of this id.
pub const BUDGET_CALL: &str = "windlass.budget";

/// Last id of the path under which the ledger keeps the reservation of a summary, beside that of the request that needs it.
pub const SUMMARY_REQUEST: &str = "windlass.summary";

/// The state of a run with respect to its budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum BudgetStage {
    /// Requests are sent as the budgets allow.
    #[default]
    Open,
    /// The model gives its last answer, without tools.
    Finishing(Box<ReachedBudget>),
    /// A person is asked for more.
    Asking(Box<BudgetHold>),
    /// No request is sent any more.
    Exhausted(Box<ReachedBudget>),
}

/// A question to a person about a budget.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BudgetHold {
    reached: ReachedBudget,
    question: PersonQuestion,
    /// Number of the question among those of this agent, from 1.
    number: u32,
}

impl BudgetHold {
    fn digest(&self) -> Digest {
        let schema = self.question.schema.as_ref().map(ToString::to_string).unwrap_or_default();
        Digest::of_parts(&["budget question", &self.question.text, &schema, &self.number.to_string()])
    }

    fn to_pending_call(&self, within: &[CallId], agent: &AgentName) -> PendingCall {
        let arguments = serde_json::to_value(&self.reached).unwrap_or_default();
        PendingCall {
            path: CallPath::new(within, BUDGET_CALL.into()),
            agent: agent.clone(),
            tool: ToolKey::bare(BUDGET_CALL),
            arguments: crate::canonical::canonical_json(&arguments),
            reason: HoldReason::Question(self.question.clone()),
            attempt: self.number,
            digest: self.digest(),
            expires_at: None,
            max_approval_scope: DecisionScope::ThisCall,
            last_driver_seen: None,
            context_sources: ContentSources::NONE,
            posted: None,
        }
    }
}

/// Returns the question to a person about a budget that is reached. The answer is the amount that is granted; 0 grants
/// nothing.
pub fn budget_question(reached: &ReachedBudget) -> PersonQuestion {
    let kind = match reached.resource {
        BudgetResource::Requests | BudgetResource::Tokens => "integer",
        BudgetResource::Cost | BudgetResource::Time => "number",
    };
    let unit = reached.resource.unit();
    let text = format!("{reached}. How many more {unit} may be spent? 0 ends the run.");
    PersonQuestion::new(text).with_schema(json!({ "type": kind, "minimum": 0 }))
}

impl Run {
    /// Returns the ledger of the run's budgets; `None` if it has none.
    pub fn budget_ledger(&self) -> Option<&BudgetLedger> {
        self.budget_ledger.as_deref()
    }

    /// Checks whether a request fits the budgets of the run, its session and its agents. This is the outermost run.
    pub fn check_budget(&self, query: &BudgetQuery<'_>) -> BudgetVerdict {
        let mut callers = Vec::new();
        let mut run = self;
        for nested in query.path.iter().map_while(|call| run_below(&mut run, call)) {
            callers.push(nested);
        }
        let last_answer = match &run.budget_stage {
            BudgetStage::Finishing(reached) => Some(&**reached),
            BudgetStage::Open | BudgetStage::Asking(_) | BudgetStage::Exhausted(_) => None,
        };
        let position = BudgetPosition { callers: &callers, last_answer };
        match &self.budget_ledger {
            Some(ledger) => ledger.check(query, position),
            None => BudgetLedger::default().check(query, position),
        }
    }

    /// Returns true if the next request is for the last answer, without tools.
    pub fn is_finishing(&self) -> bool {
        matches!(self.budget_stage, BudgetStage::Finishing(_))
    }

    /// Returns the failure of a run whose budget is exhausted.
    pub(super) fn budget_failure(&self) -> Option<RunFailure> {
        match (&self.budget_stage, &self.phase) {
            (BudgetStage::Exhausted(reached), RunPhase::AwaitingModel) => {
                Some(RunFailure::BudgetReached { reached: (**reached).clone() })
            }
            _ => None,
        }
    }

    /// Returns true if a person is asked about a budget of this run.
    pub(super) fn is_asking_for_budget(&self) -> bool {
        matches!(self.budget_stage, BudgetStage::Asking(_))
    }

    /// Returns the question about a budget of this run as a pending call.
    pub(super) fn pending_budget(&self, within: &[CallId]) -> Option<PendingCall> {
        match &self.budget_stage {
            BudgetStage::Asking(hold) => Some(hold.to_pending_call(within, &self.agent)),
            _ => None,
        }
    }

    /// Returns the hold of the question about a budget.
    pub(super) fn budget_hold(&self, call: &CallId) -> Option<UntakenHold> {
        match &self.budget_stage {
            BudgetStage::Asking(hold) if call.as_str() == BUDGET_CALL => {
                Some(UntakenHold { attempt: hold.number, posted_revision: 0 })
            }
            _ => None,
        }
    }

    /// Returns the digest that a decision about a call must carry.
    pub fn decision_digest(&self, call: &CallId) -> Option<Digest> {
        match &self.budget_stage {
            BudgetStage::Asking(hold) if call.as_str() == BUDGET_CALL => Some(hold.digest()),
            _ => self.call_digests.get(call).copied(),
        }
    }

    pub(super) fn apply_budget_reached(&mut self, reached: &BudgetReached) -> Result<(), ApplyError> {
        self.require_awaiting_model("budget_reached")?;
        let out_of_place = |reason| Err(ApplyError::UnexpectedEntry { entry: "budget_reached", reason });
        let is_last_answer = match self.budget_stage {
            BudgetStage::Open => false,
            BudgetStage::Finishing(_) => true,
            BudgetStage::Asking(_) | BudgetStage::Exhausted(_) => {
                return out_of_place("the budget was reached before");
            }
        };
        let budget = Box::new(reached.budget.clone());
        self.budget_stage = match (reached.reaction, &reached.question) {
            (OnBudgetReached::Fail, _) => BudgetStage::Exhausted(budget),
            // The last answer itself does not fit.
            (OnBudgetReached::Finish, _) if is_last_answer => BudgetStage::Exhausted(budget),
            (OnBudgetReached::Finish, _) => BudgetStage::Finishing(budget),
            (OnBudgetReached::AskPerson, Some(question)) => {
                self.budget_questions += 1;
                BudgetStage::Asking(Box::new(BudgetHold {
                    reached: *budget,
                    question: question.clone(),
                    number: self.budget_questions,
                }))
            }
            (OnBudgetReached::AskPerson, None) => return out_of_place("it has no question"),
        };
        Ok(())
    }

    /// Applies the answer of a person to the question about a budget. Returns the granted amount with the budget.
    pub(super) fn apply_budget_answer(
        &mut self,
        decided: &DecisionRecorded,
    ) -> Result<Option<(ReachedBudget, u64)>, ApplyError> {
        let call = || decided.call.clone();
        let BudgetStage::Asking(hold) = &self.budget_stage else {
            return Err(ApplyError::UnknownCall(call()));
        };
        if hold.digest() != decided.digest {
            return Err(ApplyError::DigestMismatch(call()));
        }
        let amount = match &decided.decision {
            Decision::Reject { .. } => 0,
            Decision::Answer { value } => {
                let schema = hold.question.schema.as_ref();
                let problems = schema.map(|schema| validate(schema, value)).unwrap_or_default();
                if !problems.is_empty() {
                    let problems = describe_violations(&problems);
                    return Err(ApplyError::InvalidAnswer { call: call(), problems });
                }
                granted_amount(hold.reached.resource, value)
            }
            _ => {
                let waiting_for = "for an answer to its question";
                return Err(ApplyError::DecisionNotApplicable { call: call(), waiting_for });
            }
        };
        let reached = hold.reached.clone();
        if amount == 0 {
            self.budget_stage = BudgetStage::Exhausted(Box::new(reached));
            return Ok(None);
        }
        self.budget_stage = BudgetStage::Open;
        Ok(Some((reached, amount)))
    }

    /// Notes that the model has answered: a last answer ends the requests.
    pub(super) fn note_answer(&mut self) {
        if let BudgetStage::Finishing(reached) = &self.budget_stage {
            self.budget_stage = BudgetStage::Exhausted(reached.clone());
        }
    }

    /// Keeps the ledger of the outermost run after an entry was applied at a path. `agents` are the agents on the way there.
    pub(super) fn note_spending(
        &mut self,
        path: &[CallId],
        agents: Vec<AgentName>,
        entry: &JournalEntry,
        granted: Option<(ReachedBudget, u64)>,
    ) {
        if let JournalEntry::BudgetReserved(reserved) = entry {
            let ledger = self.budget_ledger.get_or_insert_default();
            let of_summary = reserved.is_summary.then(|| summary_path(path));
            ledger.reserve(
                of_summary.as_deref().unwrap_or(path),
                agents,
                reserved.estimate,
                reserved.active_ms,
            );
            return;
        }
        let Some(ledger) = &mut self.budget_ledger else { return };
        // A driver that takes over starts from the last time that is recorded.
        ledger.note_time(entry.active_ms());
        if let JournalEntry::ModelResponded(answered) = entry {
            ledger.note_model(answered.model.as_deref());
        }
        match entry {
            JournalEntry::ModelResponded(_)
            | JournalEntry::ResponseRejected(_)
            | JournalEntry::ModelRequestFailed(_) => ledger.spend(path, &agents, &entry.model_usage(), true),
            JournalEntry::HistoryCompacted(compacted) => {
                if let Some(usage) = &compacted.summary_usage {
                    ledger.spend(&summary_path(path), &agents, usage, true);
                }
            }
            JournalEntry::CallSettled(settled) => ledger.close_call(path, &settled.call),
            _ => {}
        }
        if let Some((reached, amount)) = granted {
            ledger.grant(&reached, amount);
        }
    }

    /// Returns the agents on the way to a nested run, without repetitions.
    pub(super) fn agents_on_path(&self, path: &[CallId]) -> Vec<AgentName> {
        let mut agents = vec![self.agent.clone()];
        let mut run = self;
        for call in path {
            let Some(nested) = run.nested_run(call) else { break };
            run = nested;
            if !agents.contains(&run.agent) {
                agents.push(run.agent.clone());
            }
        }
        agents
    }
}

/// Returns the path under which the ledger keeps the reservation of a summary for the agent at a path.
pub fn summary_path(path: &[CallId]) -> Vec<CallId> {
    let mut summary = path.to_vec();
    summary.push(SUMMARY_REQUEST.into());
    summary
}

/// Moves on to the run inside a call, and returns the agent that made the call.
fn run_below(run: &mut &Run, call: &CallId) -> Option<AgentName> {
    let caller = *run;
    *run = caller.nested_run(call)?;
    Some(caller.agent.clone())
}

/// Returns the amount that an answer to [`budget_question`] grants, in the unit of the ledger.
pub fn granted_amount(resource: BudgetResource, value: &serde_json::Value) -> u64 {
    let number = value.as_f64().unwrap_or(0.0);
    match resource {
        BudgetResource::Requests | BudgetResource::Tokens => value.as_u64().unwrap_or(number as u64),
        BudgetResource::Cost => nanos_of(number),
        BudgetResource::Time => (number * 1e3).round() as u64,
    }
}
