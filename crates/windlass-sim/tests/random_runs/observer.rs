//! The observer: it instruments guardrails, hooks, bodies and the journal, and records every violation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::{AgentName, CallId, CallPath, RunId},
    item::Item,
    journal::{CallStatus, JournalEntry, JournalRecord},
    run::model_text,
};
use windlass::{core::tool::ToolEffect, tool::ToolContext};
use windlass_sim::{JournalAudit, Sim, SimStore, SimWorld, check_history};

use crate::coverage::{DECISION_BESIDE_BODY, NESTED_DECISION_BESIDE_BODY};
use crate::live_approver::LIVE_APPROVER;
use crate::simulated_run::run_id;
use crate::spec::{RunGuardrailSpec, ToolSpec, WorldSpec};
use crate::withheld::WithheldMarks;

/// The observer of one simulated world.
pub(crate) struct WorldObserver {
    pub(crate) sim: Sim,
    pub(crate) spec: WorldSpec,
    pub(crate) store: Arc<SimStore>,
    pub(crate) world: SimWorld,
    pub(crate) run: RunId,
    state: Mutex<ObserverState>,
}

/// The observations of one world.
#[derive(Default)]
struct ObserverState {
    violations: Vec<String>,
    audit: JournalAudit,
    record_count: u64,
    late_end_count: u64,
    crash_count: u64,
    /// Process number and record count of the last time each input guardrail of a tool allowed a call.
    allowed_calls: BTreeMap<(String, String), (u64, u64)>,
    /// Input guardrails that passed, by run.
    passed_guardrails: BTreeSet<(RunId, String)>,
    /// First agent of each run.
    first_agents: BTreeMap<RunId, AgentName>,
    /// Run at each path, and the runs with call activity or a model response.
    run_at_path: BTreeMap<Vec<CallId>, RunId>,
    runs_with_calls: BTreeSet<RunId>,
    answered_runs: BTreeSet<RunId>,
    /// Number of body starts of each call.
    body_counts: BTreeMap<String, u32>,
    /// Idempotency key and arguments of each call.
    call_keys: BTreeMap<String, (String, String)>,
    /// Running bodies of idempotent tools, by key.
    running_keys: BTreeMap<String, String>,
    /// Keys with a durable success.
    succeeded_keys: BTreeSet<String>,
    /// Record count at the last decision about each call.
    decided_at: BTreeMap<String, u64>,
    /// Number of false statements that a call did not happen.
    false_denials: BTreeMap<String, u64>,
    /// Number of call starts and ends that hooks received in this process.
    hook_starts: BTreeMap<String, u64>,
    hook_ends: BTreeMap<String, u64>,
    /// Records of settlements that hooks were told of, in any process.
    told_ends: BTreeSet<u64>,
    /// Records of settlements that hooks must have been told of when the run has ended, with the path of the call.
    due_ends: BTreeMap<u64, String>,
    /// Calls of open turns that started.
    started_calls: BTreeSet<String>,
    /// Number of bodies so far, and those of this process that run.
    body_count: u64,
    running_bodies: BTreeSet<u64>,
    /// The last decision about each call that was posted while a driver lived, with the number of its process.
    live_decisions: BTreeMap<String, (Decision, u64)>,
    /// True if a decision about one call may have been applied to others.
    has_standing_decisions: bool,
    marks: WithheldMarks,
    labels: BTreeSet<&'static str>,
}

/// A running body.
pub(crate) struct ObservedBody {
    observer: Arc<WorldObserver>,
    key: Option<String>,
    number: u64,
    process_number: u64,
}

impl WorldObserver {
    /// Creates the observer of a world that starts from these records.
    pub(crate) fn new(sim: &Sim, spec: WorldSpec, records: &[JournalRecord]) -> Arc<Self> {
        let latency = Duration::from_millis(spec.faults.store_latency_ms);
        let store = SimStore::with_records(sim, records).max_latency(latency);
        for (number, fault) in &spec.faults.write_faults {
            store.inject_fault(*number, *fault);
        }
        let (world, run) = (SimWorld::new(), run_id());
        let (sim, store) = (sim.clone(), Arc::new(store));
        let lab = Self { sim, spec, store, world, run, state: Mutex::default() };
        lab.check_new_records();
        lab.lock_state().due_ends.clear();
        // Calls in the given records had passed the guardrails of that time.
        let mut seen = lab.lock_state();
        for run in seen.first_agents.keys().cloned().collect::<Vec<_>>() {
            let (has_acted, was_answered) =
                (seen.runs_with_calls.contains(&run), seen.answered_runs.contains(&run));
            let guards = lab.required_guardrails(&seen, &run).into_iter();
            let passed = guards.filter(|guard| has_acted || (was_answered && guard.is_blocking));
            let passed: Vec<_> = passed.map(|guard| (run.clone(), guard.name.clone())).collect();
            seen.passed_guardrails.extend(passed);
        }
        drop(seen);
        Arc::new(lab)
    }

    /// Clears the state that a new process loses.
    pub(crate) fn start_process(&self) {
        let mut seen = self.lock_state();
        seen.running_keys.clear();
        seen.running_bodies.clear();
        seen.hook_starts.clear();
        seen.hook_ends.clear();
    }

    /// Records a violation.
    pub(crate) fn report_violation(&self, what: impl Into<String>) {
        self.lock_state().violations.push(what.into());
    }

    /// Returns all violations.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock_state().violations.clone()
    }

    /// Crashes the process here if the seed decides so.
    pub(crate) async fn maybe_crash(&self) {
        let faults = &self.spec.faults;
        if faults.crash_percent > 0 && self.sim.chance(faults.crash_percent) && self.take_crash() {
            match self.sim.crash().await {}
        }
    }

    /// Counts a crash. Returns true if the limit allows it.
    pub(crate) fn take_crash(&self) -> bool {
        let mut seen = self.lock_state();
        seen.crash_count += 1;
        seen.crash_count <= self.spec.faults.max_crashes
    }

    pub(crate) async fn random_delay(&self, longest_ms: u64) {
        self.sim.random_delay(Duration::from_millis(longest_ms)).await;
    }

    /// Notes a text that must not have an output that a guardrail blocked.
    pub(crate) fn note_text(&self, place: &'static str, text: &str) {
        if self.spec.additions.marks_outputs {
            self.lock_state().marks.note_text(place, text);
        }
    }

    /// Reports the outputs that were withheld and are somewhere.
    pub(crate) fn report_leaks(&self) {
        let mut seen = self.lock_state();
        let leaks = seen.marks.leaks();
        seen.violations.extend(leaks);
    }

    /// Notes that a state was reached that the journal does not tell.
    pub(crate) fn note_label(&self, label: &'static str) {
        self.lock_state().labels.insert(label);
    }

    /// Returns the noted states.
    pub(crate) fn labels(&self) -> BTreeSet<&'static str> {
        self.lock_state().labels.clone()
    }

    /// Returns the numbers of the bodies that run.
    pub(crate) fn running_bodies(&self) -> Vec<u64> {
        self.lock_state().running_bodies.iter().copied().collect()
    }

    /// Returns true if a call waits for a person, and no record since the given one decided about it.
    pub(crate) fn is_pending_since(&self, path: &CallPath, since: u64) -> bool {
        self.check_new_records();
        let seen = self.lock_state();
        let is_decided = seen.decided_at.get(&path.to_string()).is_some_and(|at| *at > since);
        let pending = seen.audit.run().map(|run| run.pending_calls()).unwrap_or_default();
        !is_decided && pending.iter().any(|pending| pending.path == *path)
    }

    /// Notes a decision that the store accepted while a driver lived. It counts, unless a later one replaces it.
    pub(crate) fn note_accepted_post(&self, path: &CallPath, decision: Decision, scope: DecisionScope) {
        let mut seen = self.lock_state();
        seen.has_standing_decisions |= scope != DecisionScope::ThisCall;
        seen.live_decisions.insert(path.to_string(), (decision, self.sim.process_number()));
        drop(seen);
        self.check_new_records();
    }

    /// Returns the number of records without late ends, which may follow the end of a run.
    pub(crate) fn count_records_before_late_ends(&self) -> u64 {
        self.check_new_records() - self.lock_state().late_end_count
    }

    /// Checks all new durable records. Returns the number of records.
    pub(crate) fn check_new_records(&self) -> u64 {
        let mut seen = self.lock_state();
        for record in self.store.durable_records_from(&self.run, seen.record_count) {
            let process = self.sim.process_number();
            seen.apply_record(&record, process);
            if self.spec.additions.marks_outputs {
                let text = serde_json::to_string(&record).unwrap_or_default();
                seen.marks.note_text("the journal", &text);
            }
        }
        seen.record_count
    }

    /// Notes that an input guardrail of a tool allowed a call.
    pub(crate) fn note_allowed(&self, guard: &str, ctx: &ToolContext) {
        let records = self.check_new_records();
        let key = (ctx.call_path().to_string(), guard.to_owned());
        self.lock_state().allowed_calls.insert(key, (self.sim.process_number(), records));
    }

    /// Notes that an input guardrail of a run passed.
    pub(crate) fn note_passed(&self, guard: &str, run: &RunId) {
        self.lock_state().passed_guardrails.insert((run.clone(), guard.to_owned()));
    }

    /// Notes a hook's call start, and checks that the start is durable unless the arguments are invalid.
    pub(crate) fn note_hook_start(&self, ctx: &ToolContext) {
        self.check_new_records();
        let mut seen = self.lock_state();
        let arguments: Value = serde_json::from_str(ctx.arguments()).unwrap_or_default();
        let is_valid = arguments.get("n").is_some_and(Value::is_u64) || arguments.get("input").is_some();
        if is_valid && seen.audit.attempt_count(ctx.call_path().parent_calls(), ctx.call_path().call()) == 0 {
            seen.violations.push(format!(
                "hooks were told that call {} starts, and its start is not durable",
                ctx.call_path()
            ));
        }
        *seen.hook_starts.entry(ctx.call_path().to_string()).or_default() += 1;
    }

    /// Checks the model's input: it must not contain outputs of cancelled calls, whatever happened to the run.
    pub(crate) fn check_model_input(&self, input: &[Arc<Item>]) {
        let is_stopped = |item: &Arc<Item>| match &**item {
            Item::Output(output) => {
                [model_text::CANCELLED, model_text::EFFECT_UNKNOWN].contains(&&*output.content.text())
            }
            _ => false,
        };
        if input.iter().any(is_stopped) {
            self.report_violation("the model is told that its run was stopped");
        }
        if let Err(broken) = check_history(input) {
            self.report_violation(format!("the model is sent a broken history: {broken}"));
        }
        self.note_text("the input of a model", &format!("{input:?}"));
    }

    /// Notes that a body asked a person: its call has not ended, though this attempt has.
    pub(crate) fn note_question(&self, ctx: &ToolContext) {
        self.lock_state().hook_starts.remove(&ctx.call_path().to_string());
    }

    /// Notes that a hook was told of a settlement, for the first time or again.
    pub(crate) fn note_told_end(&self, ctx: &ToolContext, seq: u64) {
        let records = self.check_new_records();
        let mut seen = self.lock_state();
        seen.told_ends.insert(seq);
        if seq >= records {
            let path = ctx.call_path();
            seen.violations.push(format!("hooks were told of the end of call {path}, which is not durable"));
        }
    }

    /// Returns the calls whose end no hook was told of, in any process of a run that has ended.
    pub(crate) fn untold_ends(&self) -> Vec<String> {
        self.check_new_records();
        let seen = self.lock_state();
        let untold = seen.due_ends.iter().filter(|(seq, _)| !seen.told_ends.contains(seq));
        untold.map(|(_, path)| path.clone()).collect()
    }

    /// Notes a hook's call end.
    pub(crate) fn note_hook_end(&self, ctx: &ToolContext) {
        let records = self.check_new_records();
        let path = ctx.call_path().to_string();
        let mut seen = self.lock_state();
        *seen.hook_ends.entry(path.clone()).or_default() += 1;
        let (starts, ends) =
            (seen.hook_starts.get(&path).copied().unwrap_or_default(), seen.hook_ends[&path]);
        // The call of a nested agent may have started in an earlier process.
        if ends > starts.max(1) {
            seen.violations.push(format!(
                "call {path} ended {ends} times and started {starts} times ({records} records)"
            ));
        }
    }

    /// Returns the calls whose starts and ends differ in number in this process.
    pub(crate) fn calls_without_end(&self) -> Vec<String> {
        let seen = self.lock_state();
        let ends = |path: &String| seen.hook_ends.get(path).copied().unwrap_or_default();
        seen.hook_starts
            .iter()
            .filter(|(path, starts)| ends(path) != **starts)
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Notes that a person said that a call in doubt did not happen.
    pub(crate) fn note_denied(&self, path: &CallPath) {
        if self.world.count_by_call(path.clone()) > 0 {
            *self.lock_state().false_denials.entry(path.to_string()).or_default() += 1;
        }
    }

    /// Returns true if a person said wrongly that a call in doubt did not happen.
    pub(crate) fn was_denied(&self, path: &CallPath) -> bool {
        self.lock_state().false_denials.contains_key(&path.to_string())
    }

    /// Notes the start of a body, and checks everything that must precede it.
    pub(crate) fn begin_body(self: &Arc<Self>, tool: &ToolSpec, ctx: &ToolContext) -> ObservedBody {
        self.check_new_records();
        let path = ctx.call_path().to_string();
        let key = ctx.idempotency_key();
        let mut seen = self.lock_state();
        let bodies = seen.body_counts.entry(path.clone()).or_default();
        *bodies += 1;
        let bodies = *bodies;
        let starts = seen.audit.attempt_count(ctx.call_path().parent_calls(), ctx.call_path().call());
        if bodies > starts {
            seen.violations
                .push(format!("body {bodies} of call {path} began, and {starts} starts are durable"));
        }
        let decided = seen.decided_at.get(&path).copied().unwrap_or_default();
        for guard in &tool.input_guardrails {
            let allowed = seen.allowed_calls.get(&(path.clone(), guard.name.clone())).copied();
            if allowed.is_none_or(|(life, records)| life != self.sim.process_number() || records < decided) {
                seen.violations
                    .push(format!("call {path} runs, and guardrail {} has not allowed it", guard.name));
            }
        }
        for guard in self.required_guardrails(&seen, ctx.run_context().run_id()) {
            if !seen.passed_guardrails.contains(&(ctx.run_context().run_id().clone(), guard.name.clone())) {
                seen.violations.push(format!(
                    "call {path} runs, and guardrail {} of the input has not passed",
                    guard.name
                ));
            }
        }
        let arguments = ctx.arguments().to_owned();
        let known = seen.call_keys.insert(path.clone(), (key.clone(), arguments.clone()));
        if let Some((before, with)) = known
            && (before != key || with != arguments)
        {
            seen.violations
                .push(format!("call {path} ran as {before} with {with}, and now as {key} with {arguments}"));
        }
        let shares = tool.effect == ToolEffect::Idempotent && !tool.has_own_key;
        if shares {
            if seen.succeeded_keys.contains(&key) {
                seen.violations.push(format!("call {path} runs, and {key} has a receipt"));
            }
            if let Some(other) = seen.running_keys.insert(key.clone(), path.clone()) {
                seen.violations.push(format!("calls {path} and {other} both run as {key}"));
            }
        }
        seen.body_count += 1;
        let number = seen.body_count;
        seen.running_bodies.insert(number);
        ObservedBody {
            observer: self.clone(),
            key: shares.then_some(key),
            number,
            process_number: self.sim.process_number(),
        }
    }

    /// Records an effect of a call, and checks that an at-most-once call has only one.
    pub(crate) fn record_effect(&self, tool: &ToolSpec, ctx: &ToolContext) {
        self.world.record_effect(ctx);
        let path = ctx.call_path().to_string();
        let times = self.world.count_by_call(ctx.call_path().clone()) as u64;
        let mut seen = self.lock_state();
        let lies = seen.false_denials.get(&path).copied().unwrap_or_default();
        if tool.effect == ToolEffect::Once && times > 1 + lies {
            seen.violations.push(format!("call {path} must not happen twice, and took effect {times} times"));
        }
    }

    /// Returns the guardrails that must pass before any call of a run takes effect.
    fn required_guardrails(&self, seen: &ObserverState, run: &RunId) -> Vec<&RunGuardrailSpec> {
        let began = seen.first_agents.get(run);
        let agent =
            self.spec.agents.iter().find(|agent| began.is_some_and(|began| *began == agent.name.as_str()));
        let of_agent = agent.map(|agent| agent.input_guardrails.as_slice()).unwrap_or_default();
        let of_run = if *run == self.run { self.spec.run.input_guardrails.as_slice() } else { &[] };
        of_agent.iter().chain(of_run).collect()
    }

    fn lock_state(&self) -> MutexGuard<'_, ObserverState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ObserverState {
    fn apply_record(&mut self, record: &JournalRecord, process: u64) {
        self.record_count += 1;
        self.check_live_decision(record, process);
        if let Err(broken) = self.audit.apply_record(record) {
            self.violations.push(broken.to_string());
        }
        let path = |call: &CallId| CallPath::new(&record.path, call.clone()).to_string();
        if let JournalEntry::CallHeld(_)
        | JournalEntry::CallStarted(_)
        | JournalEntry::CallBodyEnded(_)
        | JournalEntry::CallSettled(_)
        | JournalEntry::HandoffRecorded(_) = record.entry
        {
            self.runs_with_calls.extend(self.run_at_path.get(&record.path).cloned());
        }
        if let JournalEntry::ModelResponded(_) | JournalEntry::ResponseRejected(_) = record.entry {
            self.answered_runs.extend(self.run_at_path.get(&record.path).cloned());
        }
        match &record.entry {
            JournalEntry::RunStarted(started) => {
                self.first_agents.insert(started.run.clone(), started.agent.clone());
                self.run_at_path.insert(record.path.clone(), started.run.clone());
                let history = started.history.items().unwrap_or_default();
                if let Err(broken) = check_history(history) {
                    self.violations.push(format!("the session is broken: {broken}"));
                }
            }
            JournalEntry::DecisionRecorded(decided) => {
                self.decided_at.insert(path(&decided.call), self.record_count);
                // The call now has other arguments, and a key of those.
                if matches!(decided.decision, Decision::ApproveEdited { .. }) {
                    self.call_keys.remove(&path(&decided.call));
                }
            }
            JournalEntry::CallStarted(started) => {
                self.started_calls.insert(path(&started.call));
            }
            JournalEntry::CallSettled(settled) if settled.status == CallStatus::Succeeded => {
                let path = path(&settled.call);
                if self.started_calls.remove(&path) {
                    self.due_ends.insert(record.seq, path.clone());
                }
                if let Some((key, _)) = self.call_keys.get(&path) {
                    self.succeeded_keys.insert(key.clone());
                }
            }
            JournalEntry::CallEndedLate(_) => self.late_end_count += 1,
            _ => {}
        }
        if let JournalEntry::CallSettled(settled) = &record.entry
            && settled.status == CallStatus::OutputWithheld
        {
            self.marks.note_withheld(path(&settled.call));
        }
    }

    /// Checks that the last decision that was accepted about a call is the one that counts.
    fn check_live_decision(&mut self, record: &JournalRecord, process: u64) {
        let path = |call: &CallId| CallPath::new(&record.path, call.clone()).to_string();
        match &record.entry {
            // The call waits anew.
            JournalEntry::CallHeld(held) => drop(self.live_decisions.remove(&path(&held.call))),
            JournalEntry::DecisionRecorded(decided) => {
                let by_live = decided.decided_by.as_deref() == Some(LIVE_APPROVER);
                let posted = self.live_decisions.get(&path(&decided.call));
                if !by_live {
                    self.has_standing_decisions |= decided.scope != DecisionScope::ThisCall;
                    self.live_decisions.remove(&path(&decided.call));
                } else if posted.is_some_and(|(_, at)| *at == process) && !self.running_bodies.is_empty() {
                    let is_nested = !record.path.is_empty();
                    self.labels.insert(DECISION_BESIDE_BODY);
                    self.labels.extend(is_nested.then_some(NESTED_DECISION_BESIDE_BODY));
                }
            }
            JournalEntry::CallStarted(started) => {
                self.check_outcome_of_decision(&path(&started.call), true);
            }
            JournalEntry::CallSettled(settled) if settled.status == CallStatus::Rejected => {
                self.check_outcome_of_decision(&path(&settled.call), false);
            }
            _ => {}
        }
    }

    fn check_outcome_of_decision(&mut self, path: &str, is_started: bool) {
        let Some((decision, _)) = self.live_decisions.get(path) else { return };
        let is_rejection = matches!(decision, Decision::Reject { .. });
        if is_rejection == is_started && !self.has_standing_decisions {
            let outcome = if is_started { "it started" } else { "it was rejected" };
            self.violations
                .push(format!("the last decision about call {path} is {decision:?}, and {outcome}"));
        }
    }
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        // A crash has already removed the body with its process.
        if self.process_number != self.observer.sim.process_number() {
            return;
        }
        let mut seen = self.observer.lock_state();
        seen.running_bodies.remove(&self.number);
        if let Some(key) = self.key.take() {
            seen.running_keys.remove(&key);
        }
    }
}
