//! The laboratory: watches guards, hooks, bodies and the journal while they happen, and notes what must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use windlass::core::{AgentName, CallId, CallPath, Decision, Entry, How, Item, Record, RunId, text};
use windlass::{Effect, ToolContext};
use windlass_sim::{Audit, Sim, SimStore, World, check_history};

use crate::life::run_id;
use crate::spec::{CancelSpec, RunGuardSpec, Spec, ToolSpec};

/// What is observed in one simulated world.
pub(crate) struct Lab {
    pub(crate) sim: Sim,
    pub(crate) spec: Spec,
    pub(crate) store: Arc<SimStore>,
    pub(crate) world: World,
    pub(crate) run: RunId,
    /// Whether the run was lost once before this world began.
    is_second: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    wrong: Vec<String>,
    audit: Audit,
    records: u64,
    crashes: u64,
    /// When each input guardrail of a tool allowed a call last: in which life, after how many records.
    allowed: BTreeMap<(String, String), (u64, u64)>,
    /// The guardrails of the input that passed, for each run.
    passed: BTreeSet<(RunId, String)>,
    /// The agent that each run began with.
    began: BTreeMap<RunId, AgentName>,
    /// The run at each place among nested agents, and the runs of which something came.
    places: BTreeMap<Vec<CallId>, RunId>,
    acted: BTreeSet<RunId>,
    answered: BTreeSet<RunId>,
    /// How often the body of each call began.
    bodies: BTreeMap<String, u32>,
    /// The key and the arguments of each call.
    keys: BTreeMap<String, (String, String)>,
    /// Calls whose arguments a person changed.
    edited: BTreeSet<String>,
    /// Bodies of idempotent tools that are under way, by key.
    under_way: BTreeMap<String, String>,
    /// Keys with a durable success.
    landed: BTreeSet<String>,
    /// After how many records each call was decided last.
    decided: BTreeMap<String, u64>,
    /// How often people wrongly said that a call did not happen.
    lies: BTreeMap<String, u64>,
    /// How often hooks were told of starts, and of ends, in this life.
    starts: BTreeMap<String, u64>,
    ends: BTreeMap<String, u64>,
}

/// A body under way.
pub(crate) struct Running {
    lab: Arc<Lab>,
    key: Option<String>,
    life: u64,
}

impl Lab {
    /// A world in which so much of the run has happened.
    pub(crate) fn new(sim: &Sim, spec: Spec, records: &[Record]) -> Arc<Self> {
        let latency = Duration::from_millis(spec.faults.store_latency_ms);
        let store = SimStore::holding(sim, records).longest(latency);
        for (number, fault) in &spec.faults.writings {
            store.at(*number, *fault);
        }
        let (world, run) = (World::new(), run_id());
        let (sim, store, is_second) = (sim.clone(), Arc::new(store), !records.is_empty());
        let lab = Self { sim, spec, store, world, run, is_second, seen: Mutex::default() };
        lab.look();
        // What was done before was done with the word of the guardrails that came before it.
        let mut seen = lab.seen();
        for run in seen.began.keys().cloned().collect::<Vec<_>>() {
            let (has_acted, was_answered) = (seen.acted.contains(&run), seen.answered.contains(&run));
            let guards = lab.guards_of(&seen, &run).into_iter();
            let passed = guards.filter(|guard| has_acted || (was_answered && guard.first));
            let passed: Vec<_> = passed.map(|guard| (run.clone(), guard.name.clone())).collect();
            seen.passed.extend(passed);
        }
        drop(seen);
        Arc::new(lab)
    }

    /// A life begins: what was in memory is gone.
    pub(crate) fn new_life(&self) {
        let mut seen = self.seen();
        seen.under_way.clear();
        seen.starts.clear();
        seen.ends.clear();
    }

    /// Something is as it must not be.
    pub(crate) fn wrong(&self, what: impl Into<String>) {
        self.seen().wrong.push(what.into());
    }

    /// What was found to be wrong.
    pub(crate) fn all_wrong(&self) -> Vec<String> {
        self.seen().wrong.clone()
    }

    /// The process crashes here, if the seed says so.
    pub(crate) async fn may_crash(&self) {
        let faults = &self.spec.faults;
        if faults.crashing > 0 && self.sim.chance(faults.crashing) && self.count_crash() {
            match self.sim.crash().await {}
        }
    }

    /// Whether another crash is due.
    pub(crate) fn count_crash(&self) -> bool {
        let mut seen = self.seen();
        seen.crashes += 1;
        seen.crashes <= self.spec.faults.crashes
    }

    pub(crate) async fn dawdle(&self, longest_ms: u64) {
        self.sim.dawdle(Duration::from_millis(longest_ms)).await;
    }

    /// Reads what has become durable, and checks it record by record.
    pub(crate) fn look(&self) -> u64 {
        let mut seen = self.seen();
        for record in self.store.durable_from(&self.run, seen.records) {
            seen.take(&record);
        }
        seen.records
    }

    /// An input guardrail of a tool allowed a call.
    pub(crate) fn allowed(&self, guard: &str, ctx: &ToolContext) {
        let records = self.look();
        let key = (ctx.path().to_string(), guard.to_owned());
        self.seen().allowed.insert(key, (self.sim.life(), records));
    }

    /// A guardrail of a run's input passed.
    pub(crate) fn passed(&self, guard: &str, run: &RunId) {
        self.seen().passed.insert((run.clone(), guard.to_owned()));
    }

    /// A hook is told that a call starts: its start is durable, unless its arguments cannot be used.
    pub(crate) fn told_start(&self, ctx: &ToolContext) {
        self.look();
        let mut seen = self.seen();
        let arguments: Value = serde_json::from_str(ctx.arguments()).unwrap_or_default();
        let is_valid = arguments.get("n").is_some_and(Value::is_u64) || arguments.get("input").is_some();
        if is_valid && seen.audit.attempts(ctx.path().within(), ctx.path().call()) == 0 {
            seen.wrong.push(format!(
                "hooks were told that call {} starts, and its start is not durable",
                ctx.path()
            ));
        }
        *seen.starts.entry(ctx.path().to_string()).or_default() += 1;
    }

    /// The model is asked. That a run was stopped is nothing for it to read, unless the run was left in the middle
    /// of that: by a crash, or by a failing store, or for its approvals to be kept.
    pub(crate) fn asked(&self, input: &[Arc<Item>]) {
        let faults = &self.spec.faults;
        let is_kept =
            matches!(faults.cancel_at, Some((_, _, CancelSpec::KeepApprovals | CancelSpec::HandOver)));
        let is_hurt =
            self.is_second || faults.crashes > 0 || faults.store_failing > 0 || !faults.writings.is_empty();
        let is_stopped = |item: &Arc<Item>| match &**item {
            Item::Output(output) => output.content.text() == text::CANCELLED,
            _ => false,
        };
        if !is_kept && !is_hurt && input.iter().any(is_stopped) {
            self.wrong("the model is told that its run was stopped");
        }
    }

    /// The body of a call asks a person, and so its call has not ended, though it does not go on in this attempt.
    pub(crate) fn asks(&self, ctx: &ToolContext) {
        self.seen().starts.remove(&ctx.path().to_string());
    }

    /// A hook is told that a call has ended.
    pub(crate) fn told_end(&self, ctx: &ToolContext) {
        let records = self.look();
        let path = ctx.path().to_string();
        let mut seen = self.seen();
        *seen.ends.entry(path.clone()).or_default() += 1;
        let (starts, ends) = (seen.starts.get(&path).copied().unwrap_or_default(), seen.ends[&path]);
        // An agent's call may have started in an earlier life.
        if ends > starts.max(1) {
            seen.wrong.push(format!(
                "call {path} ended {ends} times and started {starts} times ({records} records)"
            ));
        }
    }

    /// How often hooks were told of starts and ends in this life, for calls where the two differ.
    pub(crate) fn unended(&self) -> Vec<String> {
        let seen = self.seen();
        let ends = |path: &String| seen.ends.get(path).copied().unwrap_or_default();
        seen.starts
            .iter()
            .filter(|(path, starts)| ends(path) != **starts)
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// A person says that a call in doubt did not happen.
    pub(crate) fn denied(&self, path: &CallPath) {
        if self.world.by_call(path.clone()) > 0 {
            *self.seen().lies.entry(path.to_string()).or_default() += 1;
        }
    }

    /// The body of a call begins: everything that must come before has come.
    pub(crate) fn body_begins(self: &Arc<Self>, tool: &ToolSpec, ctx: &ToolContext) -> Running {
        self.look();
        let path = ctx.path().to_string();
        let key = ctx.idempotency_key();
        let mut seen = self.seen();
        let bodies = seen.bodies.entry(path.clone()).or_default();
        *bodies += 1;
        let bodies = *bodies;
        let starts = seen.audit.attempts(ctx.path().within(), ctx.path().call());
        if bodies > starts {
            seen.wrong.push(format!("body {bodies} of call {path} began, and {starts} starts are durable"));
        }
        let decided = seen.decided.get(&path).copied().unwrap_or_default();
        for guard in &tool.input_guards {
            let allowed = seen.allowed.get(&(path.clone(), guard.name.clone())).copied();
            if allowed.is_none_or(|(life, records)| life != self.sim.life() || records < decided) {
                seen.wrong.push(format!("call {path} runs, and guardrail {} has not allowed it", guard.name));
            }
        }
        for guard in self.guards_of(&seen, ctx.run().run_id()) {
            if !seen.passed.contains(&(ctx.run().run_id().clone(), guard.name.clone())) {
                seen.wrong.push(format!(
                    "call {path} runs, and guardrail {} of the input has not passed",
                    guard.name
                ));
            }
        }
        let arguments = ctx.arguments().to_owned();
        let known = seen.keys.insert(path.clone(), (key.clone(), arguments.clone()));
        if let Some((before, with)) = known
            && (before != key || with != arguments)
        {
            seen.wrong
                .push(format!("call {path} ran as {before} with {with}, and now as {key} with {arguments}"));
        }
        let shares = tool.effect == Effect::Idempotent && !tool.own_key;
        if shares {
            if seen.landed.contains(&key) {
                seen.wrong.push(format!("call {path} runs, and {key} has a receipt"));
            }
            if let Some(other) = seen.under_way.insert(key.clone(), path.clone()) {
                seen.wrong.push(format!("calls {path} and {other} both run as {key}"));
            }
        }
        Running { lab: self.clone(), key: shares.then_some(key), life: self.sim.life() }
    }

    /// A call takes effect.
    pub(crate) fn effect(&self, tool: &ToolSpec, ctx: &ToolContext) {
        self.world.effect(ctx);
        let path = ctx.path().to_string();
        let times = self.world.by_call(ctx.path().clone()) as u64;
        let mut seen = self.seen();
        let lies = seen.lies.get(&path).copied().unwrap_or_default();
        if tool.effect == Effect::Once && times > 1 + lies {
            seen.wrong.push(format!("call {path} must not happen twice, and took effect {times} times"));
        }
    }

    /// The guardrails that must have passed before anything of a run takes effect.
    fn guards_of(&self, seen: &Seen, run: &RunId) -> Vec<&RunGuardSpec> {
        let began = seen.began.get(run);
        let agent =
            self.spec.agents.iter().find(|agent| began.is_some_and(|began| *began == agent.name.as_str()));
        let of_agent = agent.map(|agent| agent.input_guards.as_slice()).unwrap_or_default();
        let of_run = if *run == self.run { self.spec.run.input_guards.as_slice() } else { &[] };
        of_agent.iter().chain(of_run).collect()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Seen {
    fn take(&mut self, record: &Record) {
        self.records += 1;
        if let Err(broken) = self.audit.record(record) {
            self.wrong.push(broken.to_string());
        }
        let path = |call: &CallId| CallPath::new(&record.path, call.clone()).to_string();
        if let Entry::Held(_) | Entry::CallStarted(_) | Entry::CallSettled(_) | Entry::HandedOff(_) =
            record.entry
        {
            self.acted.extend(self.places.get(&record.path).cloned());
        }
        if let Entry::Answered(_) | Entry::AnswerRefused(_) = record.entry {
            self.answered.extend(self.places.get(&record.path).cloned());
        }
        match &record.entry {
            Entry::Started(started) => {
                self.began.insert(started.run.clone(), started.agent.clone());
                self.places.insert(record.path.clone(), started.run.clone());
                if let Err(broken) = check_history(&started.history) {
                    self.wrong.push(format!("the session is broken: {broken}"));
                }
            }
            Entry::Decided(decided) => {
                self.decided.insert(path(&decided.call), self.records);
                // What runs from now on may have other arguments, and its result is nobody else's.
                if matches!(decided.decision, Decision::ApproveEdited { .. }) {
                    self.keys.remove(&path(&decided.call));
                    self.edited.insert(path(&decided.call));
                }
            }
            Entry::CallSettled(settled) if settled.how == How::Succeeded => {
                let path = path(&settled.call);
                if let Some((key, _)) = self.keys.get(&path).filter(|_| !self.edited.contains(&path)) {
                    self.landed.insert(key.clone());
                }
            }
            _ => {}
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A body that a crash took is gone with its life.
        if let Some(key) = self.key.take().filter(|_| self.life == self.lab.sim.life()) {
            self.lab.seen().under_way.remove(&key);
        }
    }
}
