//! The world of a driver under test: its journal, its model, its tools and the person, which outlive its crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use windlass::core::{
    decision::{AnsweredQuestion, Decision, HoldReason, PendingCall, PersonQuestion},
    id::{CallId, Timestamp},
    item::{Item, OutputContent},
    journal::{JournalEntry, JournalRecord},
    run::ReconcileReport,
};

use super::scenario::{DriverScenario, ScenarioCall, StopKind};
use crate::audit::{InvariantViolation, JournalAudit};
use crate::history::check_history;

/// Time that passes with each model response: longer than a receipt lives that expires.
pub const TURN_TIME_MS: u64 = 600_000;
/// Lifetime of a receipt that expires before the next turn.
pub const RECEIPT_LIFETIME_MS: u64 = 300_000;
/// Number of acts after which a process is taken for one that makes no progress.
const MAX_ACTS: u32 = 30_000;
/// Number of polls after which a waiting body gives up on the call that it waits for.
const MAX_POLLS: u32 = 300;

/// The process has crashed. The driver must return at once: nothing that it does has an effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessCrash;

/// The state of a body after its start or a poll.
#[derive(Clone, Debug, PartialEq)]
pub enum BodyStep {
    /// It returned this output.
    Returned(String),
    /// It failed with this error. The tool's limit of attempts says whether another attempt follows.
    Failed(String),
    /// It asks a person, and runs again with the answer.
    Asked(PersonQuestion),
    /// It does not return before its deadline.
    Hangs,
    /// It waits for another call. Poll it again with [`DriverWorld::poll_body`], and work on the other calls meanwhile.
    Waits,
}

/// The verdict of a guardrail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardrailStep {
    /// The call goes on.
    Pass,
    /// The call ends without its body, or without its output.
    Block,
    /// The call ends in this way, and its run fails.
    FailRun,
}

/// The world of one scenario. A driver calls it for everything outside its own memory, and it checks the driver's
/// conduct at each call.
#[derive(Debug)]
pub struct DriverWorld {
    pub(super) scenario: DriverScenario,
    state: Mutex<WorldState>,
}

#[derive(Debug, Default)]
pub(super) struct WorldState {
    pub(super) records: Vec<JournalRecord>,
    pub(super) audit: JournalAudit,
    append_count: u64,
    effect_count: u64,
    /// Calls whose input guardrail passed in this process, after their last body.
    pub(super) admitted: BTreeSet<String>,
    /// Outputs that their guardrails have not passed, by call.
    pub(super) withheld: BTreeMap<String, OutputContent>,
    /// Effects of each call: the idempotency keys of the bodies that took effect.
    pub(super) effects: BTreeMap<String, Vec<String>>,
    /// Attempts of each call whose body began.
    pub(super) bodies: BTreeSet<(String, u32)>,
    /// Calls whose body began in this process.
    pub(super) begun: BTreeSet<String>,
    /// Calls whose body returned or failed in this process.
    pub(super) returned: BTreeSet<String>,
    /// Calls that their input guardrail has blocked in this process.
    pub(super) refused: BTreeSet<String>,
    /// Calls whose output guardrail has run in this process.
    pub(super) released: BTreeSet<String>,
    /// Number of attempts of each call that failed for the moment.
    transient_failures: BTreeMap<String, u32>,
    /// Number of polls of each waiting body.
    polls: BTreeMap<String, u32>,
    /// The last model input, by the path of its agent.
    pub(super) sent: BTreeMap<Vec<CallId>, Vec<Arc<Item>>>,
    pub(super) stop: Option<StopKind>,
    running: usize,
    /// Number of acts of this process.
    acts: u32,
    is_crashed: bool,
    pub(super) violations: Vec<String>,
}

impl DriverWorld {
    pub(super) fn new(scenario: DriverScenario) -> Self {
        Self { scenario, state: Mutex::default() }
    }

    /// Returns the scenario.
    pub fn scenario(&self) -> &DriverScenario {
        &self.scenario
    }

    /// Returns the durable records. They are empty for the first process that gets as far as a record.
    pub fn records(&self) -> Vec<JournalRecord> {
        self.state().records.clone()
    }

    /// Returns the time, for drivers that have no clock of their own.
    pub fn now(&self) -> Timestamp {
        let state = self.state();
        let is_response = |record: &&JournalRecord| {
            matches!(record.entry, JournalEntry::ModelResponded(_)) && record.path.is_empty()
        };
        let turns = state.records.iter().filter(is_response).count() as u64;
        Timestamp(turns * TURN_TIME_MS + state.append_count)
    }

    /// Makes a record durable.
    ///
    /// # Errors
    ///
    /// Returns an error if the process crashes, before or after the record is durable.
    pub fn append(&self, record: JournalRecord) -> Result<(), ProcessCrash> {
        let mut state = self.enter()?;
        let number = state.append_count;
        state.append_count += 1;
        if self.scenario.crashes.before_append.contains(&number) {
            return state.crash();
        }
        self.check_record(&record, &mut state);
        state.records.push(record);
        if self.scenario.crashes.after_append.contains(&number) { state.crash() } else { Ok(()) }
    }

    /// Returns what the input filter leaves of a model input. It does not care about pairs of calls and outputs.
    pub fn filter_input(&self, items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        let Some(keeps) = self.scenario.filter_keeps else { return items };
        let from = items.len().saturating_sub(keeps).max(1);
        items.iter().take(1).chain(items.iter().skip(from)).cloned().collect()
    }

    /// Returns the model's response to an input. The first item says who asks: the run's input is `go`, and that of a
    /// nested agent is the id of its call.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn respond(&self, input: &[Arc<Item>]) -> Result<Vec<Item>, ProcessCrash> {
        let mut state = self.enter()?;
        if let Err(broken) = check_history(input) {
            state.violations.push(format!("the model was sent a broken history: {broken}"));
        }
        let asker = match input.first().map(|item| &**item) {
            Some(Item::Message(message)) => message.text(),
            _ => String::new(),
        };
        let nested = self.scenario.call(&asker);
        let path: Vec<CallId> = nested.iter().map(|call| CallId::from(call.id.as_str())).collect();
        self.check_request(&path, &mut state);
        state.sent.insert(path.clone(), input.to_vec());
        let turn = count_responses(&state.records, &path);
        let script = nested.map_or(&self.scenario.turns, |call| &call.nested);
        Ok(match script.get(turn) {
            Some(calls) => calls.iter().map(|call| self.call_item(call)).collect(),
            None => vec![Item::assistant(nested.map_or_else(|| "done".to_owned(), output_text))],
        })
    }

    fn call_item(&self, call: &ScenarioCall) -> Item {
        let tool = self.scenario.tool_of(call);
        let arguments = if tool.is_agent { json!({ "input": call.id }) } else { json!({ "n": call.n }) };
        Item::call(call.id.as_str(), tool.name.as_str(), arguments.to_string())
    }

    /// Evaluates the approval rule of a call's tool.
    pub fn requires_approval(&self, call: &CallId) -> bool {
        self.find(call).is_none_or(|call| call.needs_approval)
    }

    /// Returns true if a tool is enabled now.
    pub fn is_enabled(&self, tool: &str) -> bool {
        let Some(tool) = self.scenario.tools.iter().find(|one| one.name == tool) else { return false };
        tool.switched_off_in.is_none_or(|turn| count_responses(&self.state().records, &[]) <= turn)
    }

    /// Runs the input guardrail of a call's tool.
    ///
    /// # Errors
    ///
    /// Returns an error if the process crashes.
    pub fn check_input(&self, call: &CallId) -> Result<GuardrailStep, ProcessCrash> {
        let mut state = self.enter()?;
        self.act_between_crashes(&mut state, |state| {
            let step = self.guardrail_step(call, |call| call.is_input_blocked);
            match step {
                GuardrailStep::Pass => state.admitted.insert(call.to_string()),
                GuardrailStep::Block | GuardrailStep::FailRun => state.refused.insert(call.to_string()),
            };
            step
        })
    }

    fn guardrail_step(&self, call: &CallId, is_blocked: impl Fn(&ScenarioCall) -> bool) -> GuardrailStep {
        match self.find(call) {
            Some(call) if !is_blocked(call) => GuardrailStep::Pass,
            Some(call) if call.guardrail_fails_run => GuardrailStep::FailRun,
            Some(_) | None => GuardrailStep::Block,
        }
    }

    /// Notes that a body of this process begins. Its end is noted with [`DriverWorld::leave_body`].
    pub fn enter_body(&self, call: &CallId) {
        let mut state = self.state();
        self.check_body_start(call, &mut state);
        state.begun.insert(call.to_string());
        state.running += 1;
        if state.running > self.scenario.max_concurrent_calls {
            let running = state.running;
            state.violations.push(format!("{running} bodies ran at once"));
        }
    }

    /// Notes that a body of this process was dropped before it returned.
    pub fn abandon_body(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
    }

    /// Notes that a body of this process has returned. From here on its result must not be lost, if it took effect.
    pub fn leave_body(&self, call: &CallId) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        if !state.is_crashed && state.has_taken_effect(call) {
            state.returned.insert(call.to_string());
        }
    }

    /// Runs the body of a call: it takes effect, and returns, fails, asks, hangs or waits.
    ///
    /// # Errors
    ///
    /// Returns an error if the process crashes.
    pub fn run_body(
        &self,
        call: &CallId,
        idempotency_key: &str,
        answers: &[AnsweredQuestion],
    ) -> Result<BodyStep, ProcessCrash> {
        let mut state = self.enter()?;
        let Some(spec) = self.find(call) else {
            return Ok(BodyStep::Failed("there is no such call".to_owned()));
        };
        self.check_answers(spec, answers, &mut state);
        self.act_between_crashes(&mut state, |state| {
            if spec.asks && answers.is_empty() {
                return BodyStep::Asked(question_of(spec));
            }
            let failures = state.transient_failures.entry(call.to_string()).or_default();
            if *failures < spec.transient_failures {
                *failures += 1;
                return BodyStep::Failed("the tool is busy".to_owned());
            }
            state.effects.entry(call.to_string()).or_default().push(idempotency_key.to_owned());
            match spec {
                _ if spec.hangs => BodyStep::Hangs,
                _ if spec.fails => BodyStep::Failed("the tool failed".to_owned()),
                _ if spec.waits_for.is_some() => BodyStep::Waits,
                _ => BodyStep::Returned(output_text(spec)),
            }
        })
    }

    /// Polls a body that waits for another call.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn poll_body(&self, call: &CallId) -> Result<BodyStep, ProcessCrash> {
        let mut state = self.enter()?;
        let Some(spec) = self.find(call) else { return Ok(BodyStep::Hangs) };
        let awaited = spec.waits_for.clone().unwrap_or_default();
        let polls = state.polls.entry(call.to_string()).or_default();
        *polls += 1;
        let has_given_up = *polls > MAX_POLLS;
        if has_given_up && !state.begun.contains(&awaited) {
            let message = format!("call {awaited} was approved and did not begin while call {call} ran");
            state.violations.push(message);
        }
        Ok(match has_given_up || state.begun.contains(&awaited) {
            true => BodyStep::Returned(output_text(spec)),
            false => BodyStep::Waits,
        })
    }

    /// Returns the stop of the run, as soon as it is requested.
    pub fn requested_stop(&self) -> Option<StopKind> {
        self.state().stop
    }

    /// Keeps an output where only drivers read it.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn withhold(&self, call: &CallId, output: OutputContent) -> Result<(), ProcessCrash> {
        self.enter()?.withheld.insert(call.to_string(), output);
        Ok(())
    }

    /// Returns a withheld output.
    pub fn withheld(&self, call: &CallId) -> Option<OutputContent> {
        self.state().withheld.get(call.as_str()).cloned()
    }

    /// Returns the calls that have a withheld output.
    pub fn withheld_calls(&self) -> Vec<CallId> {
        self.state().withheld.keys().map(|call| call.as_str().into()).collect()
    }

    /// Erases the withheld outputs of these calls.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn erase_withheld(&self, calls: &[CallId]) -> Result<(), ProcessCrash> {
        let is_erased = |call: &String| calls.iter().any(|one| one.as_str() == call);
        self.enter()?.withheld.retain(|call, _| !is_erased(call));
        Ok(())
    }

    /// Runs the output guardrail of a call's tool: the output is released if it passes.
    ///
    /// # Errors
    ///
    /// Returns an error if the process crashes.
    pub fn check_output(&self, call: &CallId) -> Result<GuardrailStep, ProcessCrash> {
        let mut state = self.enter()?;
        let is_kept = state.withheld.contains_key(call.as_str());
        let is_recorded = state
            .records
            .iter()
            .any(|record| matches!(&record.entry, JournalEntry::CallBodyEnded(ended) if ended.call == *call));
        if !(is_kept && is_recorded) {
            state.violations.push(format!("the output of call {call} was checked before it was kept"));
        }
        self.act_between_crashes(&mut state, |state| {
            state.released.insert(call.to_string());
            self.guardrail_step(call, |call| call.is_output_blocked)
        })
    }

    /// Says whether an interrupted call took effect.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn reconcile(&self, call: &CallId) -> Result<ReconcileReport, ProcessCrash> {
        let state = self.enter()?;
        let spec = self.find(call).filter(|call| self.scenario.tool_of(call).can_reconcile);
        Ok(match spec {
            None => ReconcileReport::Unknown,
            Some(spec) if state.has_taken_effect(call) => ReconcileReport::Executed(output_text(spec).into()),
            Some(_) => ReconcileReport::NotExecuted,
        })
    }

    /// Returns the person's decision about a pending call, when the run waits for nothing else.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn decide(&self, pending: &PendingCall) -> Result<Decision, ProcessCrash> {
        let call = pending.call();
        let mut state = self.enter()?;
        let spec = self.find(call);
        Ok(match &pending.reason {
            HoldReason::InDoubt if state.has_taken_effect(call) => {
                Decision::ConfirmExecuted { output: spec.map(output_text).unwrap_or_default().into() }
            }
            HoldReason::InDoubt => Decision::ConfirmNotExecuted,
            HoldReason::Question(question) => {
                self.check_question(call, question, &mut state);
                Decision::Answer { value: spec.map(answer_of).unwrap_or_default() }
            }
            HoldReason::Approval => {
                if !spec.is_some_and(|call| call.needs_approval) {
                    state.violations.push(format!("a person was asked about call {call} for no reason"));
                }
                match spec {
                    Some(call) if !call.is_rejected => Decision::Approve,
                    _ => Decision::Reject { message: None },
                }
            }
            reason => {
                state.violations.push(format!("call {call} waits for {reason:?}"));
                Decision::Reject { message: None }
            }
        })
    }

    /// Returns the decision about a pending call that the person makes while other calls still run, if it is made.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has crashed.
    pub fn decide_live(&self, pending: &PendingCall) -> Result<Option<Decision>, ProcessCrash> {
        let call = pending.call().as_str();
        let is_awaited = {
            let state = self.enter()?;
            self.scenario
                .all_calls()
                .any(|one| one.waits_for.as_deref() == Some(call) && state.polls.contains_key(&one.id))
        };
        if is_awaited { self.decide(pending).map(Some) } else { Ok(None) }
    }

    /// Begins the next process.
    pub(super) fn begin_process(&self) {
        let mut state = self.state();
        state.is_crashed = false;
        state.running = 0;
        state.acts = 0;
        state.admitted.clear();
        state.begun.clear();
        state.returned.clear();
        state.refused.clear();
        state.released.clear();
        state.sent.clear();
    }

    /// Reports a violation that the driver's harness saw.
    pub fn report_violation(&self, what: impl Into<String>) {
        self.state().violations.push(what.into());
    }

    /// Returns the first violation so far.
    pub(super) fn first_violation(&self) -> Option<InvariantViolation> {
        self.state().violations.first().map(InvariantViolation::new)
    }

    /// Returns true if the process has crashed.
    pub fn is_crashed(&self) -> bool {
        self.state().is_crashed
    }

    pub(super) fn find(&self, call: &CallId) -> Option<&ScenarioCall> {
        self.scenario.call(call.as_str())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WorldState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.acts += 1;
        if state.acts == MAX_ACTS {
            state.violations.push("the driver makes no progress".to_owned());
            state.is_crashed = true;
        }
        state
    }

    /// Returns the state for an act of the driver. Nothing that a crashed process does has an effect.
    fn enter(&self) -> Result<MutexGuard<'_, WorldState>, ProcessCrash> {
        let state = self.state();
        if state.is_crashed { Err(ProcessCrash) } else { Ok(state) }
    }

    /// Performs an act of the driver, unless the process crashes before it. It may crash after it, too, and the act may
    /// be the one at which the run is to stop.
    fn act_between_crashes<T>(
        &self,
        state: &mut WorldState,
        act: impl FnOnce(&mut WorldState) -> T,
    ) -> Result<T, ProcessCrash> {
        let number = state.effect_count;
        state.effect_count += 1;
        if self.scenario.crashes.before_effect.contains(&number) {
            return state.crash();
        }
        if let Some(stop) = self.scenario.stop.filter(|stop| stop.at_effect == number) {
            state.stop = Some(stop.kind);
        }
        let done = act(state);
        if self.scenario.crashes.after_effect.contains(&number) { state.crash() } else { Ok(done) }
    }
}

impl WorldState {
    fn crash<T>(&mut self) -> Result<T, ProcessCrash> {
        self.is_crashed = true;
        Err(ProcessCrash)
    }

    /// Returns true if the run was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self.stop, Some(StopKind::Cancel | StopKind::CancelAfterTurn))
    }

    pub(super) fn has_taken_effect(&self, call: &CallId) -> bool {
        self.effects.contains_key(call.as_str())
    }
}

/// Returns the number of responses of the agent at a path.
pub(super) fn count_responses(records: &[JournalRecord], path: &[CallId]) -> usize {
    let is_response = |record: &&JournalRecord| {
        matches!(record.entry, JournalEntry::ModelResponded(_)) && record.path == path
    };
    records.iter().filter(is_response).count()
}

/// Returns the output of a call's body, or of its agent.
pub(super) fn output_text(call: &ScenarioCall) -> String {
    format!("the secret result of {}.", call.n)
}

/// Returns the question that a call asks.
pub(super) fn question_of(call: &ScenarioCall) -> PersonQuestion {
    PersonQuestion::new(format!("Which number has {}?", call.id))
}

/// Returns the person's answer to a call's question.
pub(super) fn answer_of(call: &ScenarioCall) -> serde_json::Value {
    call.n.into()
}
