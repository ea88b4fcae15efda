//! Scenarios for drivers: tools, calls, verdicts, decisions, stops and crashes, all drawn from one seed.

use std::collections::BTreeSet;

use windlass::core::tool::{ApprovalPolicy, ToolEffect};

use crate::SimRng;

/// A run that a driver has to drive. It is the same for every driver, because one seed decides all of it.
#[derive(Clone, Debug)]
pub struct DriverScenario {
    /// The seed.
    pub seed: u64,
    /// The tools of all agents.
    pub tools: Vec<ScenarioTool>,
    /// The calls of each model response. The response after the last has none: it ends the run.
    pub turns: Vec<Vec<ScenarioCall>>,
    /// Maximum number of bodies at once, those of nested agents included.
    pub max_concurrent_calls: usize,
    /// The stop of the run, if it has one.
    pub stop: Option<ScenarioStop>,
    /// Number of the last items that the input filter keeps beside the first; no filter if absent.
    pub filter_keeps: Option<usize>,
    pub(super) crashes: CrashPlan,
}

/// A tool of a scenario. Functions have one integer parameter, `n`; agents have one text parameter, `input`.
#[derive(Clone, Debug)]
pub struct ScenarioTool {
    /// The tool's name.
    pub name: String,
    /// True if the tool is a nested agent, which has the other tools.
    pub is_agent: bool,
    /// The tool's effect.
    pub effect: ToolEffect,
    /// The tool's approval policy: not required, required, or by [`super::DriverWorld::requires_approval`].
    pub approval: ApprovalPolicy,
    /// True if [`super::DriverWorld::check_input`] guards its calls.
    pub has_input_guardrail: bool,
    /// True if [`super::DriverWorld::check_output`] guards its outputs.
    pub has_output_guardrail: bool,
    /// True if its calls conflict: they run one after another.
    pub is_exclusive: bool,
    /// True if [`super::DriverWorld::reconcile`] knows whether a call took effect.
    pub can_reconcile: bool,
    /// Maximum number of attempts of a call whose body fails or, unless the effect is once, times out.
    pub max_attempts: u32,
    /// True if its bodies have a deadline.
    pub has_timeout: bool,
    /// True if identical calls share one result, as a receipt.
    pub shares_receipts: bool,
    /// True if a receipt expires before the next turn.
    pub receipts_expire: bool,
    /// True if a failure of its body that no retry follows ends the run. Timeouts do not.
    pub fails_run: bool,
    /// The turn with whose response the tool is switched off; never if absent. See
    /// [`super::DriverWorld::is_enabled`].
    pub switched_off_in: Option<usize>,
}

/// A call of a scenario. Ids are unique, also across nested agents.
#[derive(Clone, Debug)]
pub struct ScenarioCall {
    /// The call's id.
    pub id: String,
    /// Index of its tool.
    pub tool: usize,
    /// The argument. Identical calls have the same.
    pub n: u64,
    /// The calls of each response of the nested agent; empty for functions.
    pub nested: Vec<Vec<Self>>,
    pub(super) needs_approval: bool,
    pub(super) is_rejected: bool,
    pub(super) is_input_blocked: bool,
    pub(super) is_output_blocked: bool,
    /// True if the guardrail that blocks the call ends the run.
    pub(super) guardrail_fails_run: bool,
    pub(super) fails: bool,
    pub(super) asks: bool,
    pub(super) hangs: bool,
    /// Number of attempts that fail before one succeeds.
    pub(super) transient_failures: u32,
    /// The call that must begin before the body of this one returns.
    pub(super) waits_for: Option<String>,
}

/// A stop of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScenarioStop {
    /// The kind of stop.
    pub kind: StopKind,
    /// Number of the body or guardrail at which it is requested.
    pub(super) at_effect: u64,
}

/// The kind of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// The run is cancelled at once.
    Cancel,
    /// The run is cancelled when its turn has settled.
    CancelAfterTurn,
    /// The driver leaves, and another one continues the run.
    HandOver,
}

/// The instants at which processes crash, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct CrashPlan {
    /// Numbers of appends, over all processes, before which the process crashes.
    pub(super) before_append: BTreeSet<u64>,
    /// Numbers of appends after which the process crashes.
    pub(super) after_append: BTreeSet<u64>,
    /// Numbers of bodies and guardrails before whose effect the process crashes.
    pub(super) before_effect: BTreeSet<u64>,
    /// Numbers of bodies and guardrails after whose effect the process crashes.
    pub(super) after_effect: BTreeSet<u64>,
}

impl DriverScenario {
    /// Draws a scenario.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SimRng::for_purpose(seed, "driver scenario");
        let rng = &mut rng;
        let crashes = if rng.chance(50) { CrashPlan::draw(rng) } else { CrashPlan::default() };
        let stop = rng.chance(30).then(|| ScenarioStop::draw(rng));
        // A call in doubt waits for a person, and a run that is cancelled after its turn has none left to wait for.
        let stop = stop.filter(|stop| crashes.is_empty() || stop.kind != StopKind::CancelAfterTurn);
        let asks_people = stop.is_none_or(|stop| stop.kind != StopKind::CancelAfterTurn);
        let turn_count = 1 + rng.index(3);
        let mut tools: Vec<_> =
            (0..1 + rng.index(3)).map(|at| ScenarioTool::draw(rng, at, asks_people)).collect();
        for tool in &mut tools {
            // A tool that is switched off while its interrupted calls are repeated is another story.
            let is_switched = crashes.is_empty() && stop.is_none() && rng.chance(15);
            tool.switched_off_in = is_switched.then(|| rng.index(turn_count));
        }
        let functions = tools.len();
        if rng.chance(50) {
            tools.push(ScenarioTool::agent(rng, asks_people));
        }
        let mut turns: Vec<Vec<ScenarioCall>> = Vec::new();
        for turn in 0..turn_count {
            let mut calls: Vec<ScenarioCall> = Vec::new();
            for at in 0..1 + rng.index(4) {
                let id = format!("c{turn}{at}");
                let twins =
                    turns.iter().flatten().chain(&calls).filter(|call| tools[call.tool].shares_receipts);
                let twins: Vec<&ScenarioCall> = twins.collect();
                let call = match rng.chance(50) && !twins.is_empty() {
                    true => ScenarioCall { id, ..(*rng.pick(&twins)).clone() },
                    false => ScenarioCall::draw(rng, id, &tools, functions, asks_people),
                };
                calls.push(call);
            }
            turns.push(calls);
        }
        let mut scenario = Self {
            seed,
            tools,
            turns,
            max_concurrent_calls: 1 + rng.index(4),
            stop,
            filter_keeps: rng.chance(25).then(|| rng.index(6)),
            crashes,
        };
        let is_calm = scenario.has_quiet_processes() && !scenario.may_fail();
        if is_calm && asks_people && rng.chance(50) {
            scenario.add_live_decision(rng);
        }
        scenario
    }

    /// Returns a call of the scenario, at any depth.
    pub fn call(&self, id: &str) -> Option<&ScenarioCall> {
        self.all_calls().find(|call| call.id == id)
    }

    /// Returns the tool of a call.
    pub fn tool_of(&self, call: &ScenarioCall) -> &ScenarioTool {
        &self.tools[call.tool]
    }

    /// Returns the calls of the run and of its nested agents.
    pub(super) fn all_calls(&self) -> impl Iterator<Item = &ScenarioCall> {
        let nested = self.turns.iter().flatten().flat_map(|call| call.nested.iter().flatten());
        self.turns.iter().flatten().chain(nested)
    }

    /// Returns the responses of the agent that makes a call, with the index of the call's response.
    pub(super) fn script_of(&self, id: &str) -> Option<(&[Vec<ScenarioCall>], usize)> {
        let scripts = self.turns.iter().flatten().map(|call| call.nested.as_slice());
        std::iter::once(self.turns.as_slice()).chain(scripts).find_map(|turns| {
            let turn = turns.iter().position(|calls| calls.iter().any(|call| call.id == id))?;
            Some((turns, turn))
        })
    }

    /// Returns true if a call may end the run.
    fn may_fail(&self) -> bool {
        self.all_calls().any(|call| call.guardrail_fails_run || self.tool_of(call).fails_run)
    }

    /// Returns true if no process crashes and nothing stops the run.
    pub(super) fn has_quiet_processes(&self) -> bool {
        self.crashes.is_empty() && self.stop.is_none()
    }

    /// Makes a call wait for another call of its turn, which a person approves meanwhile.
    fn add_live_decision(&mut self, rng: &mut SimRng) {
        let tool = |approval| ScenarioTool {
            name: format!("live{}", if approval == ApprovalPolicy::Required { 1 } else { 0 }),
            is_agent: false,
            effect: ToolEffect::Once,
            approval,
            // The guardrail of the approved call runs after the approval.
            has_input_guardrail: approval == ApprovalPolicy::Required,
            has_output_guardrail: false,
            is_exclusive: false,
            can_reconcile: false,
            max_attempts: 1,
            has_timeout: false,
            shares_receipts: false,
            receipts_expire: false,
            fails_run: false,
            switched_off_in: None,
        };
        let at = self.tools.len();
        self.tools.extend([tool(ApprovalPolicy::NotRequired), tool(ApprovalPolicy::Required)]);
        self.max_concurrent_calls = self.max_concurrent_calls.max(2);
        let turn = rng.index(self.turns.len());
        let waiting = ScenarioCall {
            waits_for: Some("live1".to_owned()),
            ..ScenarioCall::plain("live0".to_owned(), at)
        };
        let approved =
            ScenarioCall { needs_approval: true, ..ScenarioCall::plain("live1".to_owned(), at + 1) };
        let place = rng.index(self.turns[turn].len() + 1);
        self.turns[turn]
            .splice(place..place, if rng.chance(50) { [waiting, approved] } else { [approved, waiting] });
    }
}

impl ScenarioTool {
    fn draw(rng: &mut SimRng, at: usize, asks_people: bool) -> Self {
        let effect = *rng.pick(&[
            ToolEffect::Once,
            ToolEffect::Once,
            ToolEffect::Idempotent,
            ToolEffect::Idempotent,
            ToolEffect::Pure,
        ]);
        Self {
            name: format!("tool{at}"),
            is_agent: false,
            effect,
            approval: draw_approval(rng, asks_people),
            has_input_guardrail: rng.chance(30),
            has_output_guardrail: rng.chance(30),
            is_exclusive: rng.chance(20),
            can_reconcile: rng.chance(40),
            max_attempts: if rng.chance(40) { 2 + rng.index(2) as u32 } else { 1 },
            has_timeout: rng.chance(50),
            shares_receipts: effect == ToolEffect::Idempotent && rng.chance(70),
            receipts_expire: rng.chance(40),
            fails_run: rng.chance(20),
            switched_off_in: None,
        }
    }

    fn agent(rng: &mut SimRng, asks_people: bool) -> Self {
        Self {
            name: "helper".to_owned(),
            is_agent: true,
            effect: ToolEffect::Once,
            approval: match asks_people && rng.chance(30) {
                true => ApprovalPolicy::Required,
                false => ApprovalPolicy::NotRequired,
            },
            has_input_guardrail: rng.chance(30),
            has_output_guardrail: false,
            is_exclusive: false,
            can_reconcile: false,
            max_attempts: 1,
            has_timeout: false,
            shares_receipts: false,
            receipts_expire: false,
            fails_run: false,
            switched_off_in: None,
        }
    }
}

fn draw_approval(rng: &mut SimRng, asks_people: bool) -> ApprovalPolicy {
    let drawn = *rng.pick(&[
        ApprovalPolicy::NotRequired,
        ApprovalPolicy::NotRequired,
        ApprovalPolicy::Required,
        ApprovalPolicy::ByRule,
    ]);
    if asks_people { drawn } else { ApprovalPolicy::NotRequired }
}

impl ScenarioCall {
    /// Returns true if its bodies return by themselves.
    pub(super) fn returns(&self) -> bool {
        !self.hangs && !self.asks && self.waits_for.is_none()
    }

    /// Creates a call that succeeds without further ado.
    fn plain(id: String, tool: usize) -> Self {
        Self {
            // The number is unique, so that no receipt answers the call by chance.
            n: id.bytes().fold(0, |sum, byte| sum * 128 + u64::from(byte)),
            id,
            tool,
            nested: Vec::new(),
            needs_approval: false,
            is_rejected: false,
            is_input_blocked: false,
            is_output_blocked: false,
            guardrail_fails_run: false,
            fails: false,
            asks: false,
            hangs: false,
            transient_failures: 0,
            waits_for: None,
        }
    }

    /// Draws a call. Agents come after the functions in `tools`; a call below them is drawn with functions only.
    fn draw(
        rng: &mut SimRng,
        id: String,
        tools: &[ScenarioTool],
        functions: usize,
        asks_people: bool,
    ) -> Self {
        let at = rng.index(tools.len());
        let tool = &tools[at];
        let needs_approval = match tool.approval {
            ApprovalPolicy::NotRequired => false,
            ApprovalPolicy::Required | ApprovalPolicy::RequiredEachTime => true,
            ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime => rng.chance(50),
        };
        let mut call = Self {
            needs_approval,
            is_rejected: needs_approval && rng.chance(30),
            is_input_blocked: tool.has_input_guardrail && rng.chance(25),
            is_output_blocked: tool.has_output_guardrail && rng.chance(40),
            guardrail_fails_run: rng.chance(25),
            ..Self::plain(id, at)
        };
        call.guardrail_fails_run &= call.is_input_blocked || call.is_output_blocked;
        if tool.is_agent {
            for turn in 0..1 + rng.index(2) {
                let calls = (0..1 + rng.index(3)).map(|at| {
                    let id = format!("{}n{turn}{at}", call.id);
                    Self::draw(rng, id, &tools[..functions], functions, asks_people)
                });
                let calls = calls.filter(|call| tools[call.tool].switched_off_in.is_none()).collect();
                call.nested.push(calls);
            }
            call.nested.retain(|calls| !calls.is_empty());
            return call;
        }
        match rng.below(10) {
            // A failed body may have taken effect, so it is not tried again here.
            0 | 7 => call.fails = tool.max_attempts == 1,
            1 | 6 => call.hangs = tool.has_timeout,
            2 | 3 => call.transient_failures = 1 + rng.index(3) as u32,
            4 | 5 if asks_people && !tool.shares_receipts => call.asks = true,
            _ => {}
        }
        call
    }
}

impl ScenarioStop {
    fn draw(rng: &mut SimRng) -> Self {
        let kind = *rng.pick(&[StopKind::Cancel, StopKind::CancelAfterTurn, StopKind::HandOver]);
        Self { kind, at_effect: rng.below(8) }
    }
}

impl CrashPlan {
    fn draw(rng: &mut SimRng) -> Self {
        let mut plan = Self::default();
        for _ in 0..1 + rng.index(3) {
            let (kind, number) = (rng.below(4), rng.below(30));
            match kind {
                0 => plan.before_append.insert(number),
                1 => plan.after_append.insert(number),
                2 => plan.before_effect.insert(number / 2),
                _ => plan.after_effect.insert(number / 2),
            };
        }
        plan
    }

    fn is_empty(&self) -> bool {
        let Self { before_append, after_append, before_effect, after_effect } = self;
        [before_append, after_append, before_effect, after_effect].iter().all(|instants| instants.is_empty())
    }
}
