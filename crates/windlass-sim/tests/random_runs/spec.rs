//! What a seed makes of a world: tools, agents, a run, and what will go wrong.

use windlass::Effect;
use windlass_sim::{Fault, Rng};

/// A whole world, as plain data.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) agents: Vec<AgentSpec>,
    pub(crate) run: RunSpec,
    pub(crate) faults: Faults,
}

#[derive(Debug)]
pub(crate) struct AgentSpec {
    pub(crate) name: String,
    pub(crate) tools: Vec<ToolSpec>,
    /// Agents that it calls as tools, by place.
    pub(crate) nested: Vec<NestedSpec>,
    /// Agents that it may hand over to, by place.
    pub(crate) handoffs: Vec<HandoffSpec>,
    pub(crate) input_guards: Vec<RunGuardSpec>,
    pub(crate) output_guards: Vec<RunGuardSpec>,
    pub(crate) tool_use: ToolUseSpec,
    pub(crate) failing_hook: u64,
}

#[derive(Debug)]
pub(crate) struct NestedSpec {
    pub(crate) agent: usize,
    pub(crate) turns: u32,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) approval: ApprovalSpec,
    pub(crate) input_guard: bool,
}

#[derive(Debug)]
pub(crate) struct HandoffSpec {
    pub(crate) agent: usize,
    pub(crate) filters: bool,
    pub(crate) fails: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct RunGuardSpec {
    pub(crate) name: String,
    pub(crate) first: bool,
    pub(crate) trips: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ToolUseSpec {
    RunAgain,
    StopOnFirst,
    StopAtFirstTool,
    Judge,
}

#[derive(Clone, Debug)]
pub(crate) struct ToolSpec {
    pub(crate) name: String,
    pub(crate) effect: Effect,
    pub(crate) own_key: bool,
    pub(crate) approval: ApprovalSpec,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) timeout_fails: bool,
    pub(crate) on_failure: FailureSpec,
    pub(crate) retries: Option<u32>,
    /// In how many of a hundred bodies something goes wrong.
    pub(crate) failing: u64,
    pub(crate) hanging: u64,
    pub(crate) latency_ms: u64,
    pub(crate) input_guards: Vec<ToolGuardSpec>,
    pub(crate) output_guards: Vec<ToolGuardSpec>,
    pub(crate) conflict: ConflictSpec,
    pub(crate) concurrency: Option<usize>,
    pub(crate) reconcile: ReconcileSpec,
    pub(crate) flickers: bool,
    pub(crate) budget: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalSpec {
    Never,
    Always,
    /// For arguments from here on.
    From(u64),
    /// The rule panics.
    Panics,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FailureSpec {
    Hide,
    Show,
    Say,
    Fail,
}

#[derive(Clone, Debug)]
pub(crate) struct ToolGuardSpec {
    pub(crate) name: String,
    /// In how many of a hundred cases it does not allow.
    pub(crate) strict: u64,
    pub(crate) stops: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ConflictSpec {
    None,
    All,
    ByArgument,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ReconcileSpec {
    None,
    Honest,
    Unknown,
}

#[derive(Debug)]
pub(crate) struct RunSpec {
    pub(crate) max_turns: Option<u32>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) early_guardrails: bool,
    pub(crate) missing: MissingSpec,
    pub(crate) drain_ms: u64,
    pub(crate) input_guards: Vec<RunGuardSpec>,
    pub(crate) output_guards: Vec<RunGuardSpec>,
    pub(crate) has_session: bool,
    pub(crate) streams: bool,
    pub(crate) handler: bool,
    pub(crate) loop_stop: u32,
    pub(crate) layered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MissingSpec {
    Tell,
    Say,
    Fail,
}

/// What will go wrong.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) model_failing: u64,
    pub(crate) store_latency_ms: u64,
    pub(crate) store_failing: u64,
    pub(crate) session_failing: u64,
    /// Which writings crash or fail.
    pub(crate) writings: Vec<(u64, Fault)>,
    /// In how many of a hundred bodies, guards and hooks the process crashes.
    pub(crate) crashing: u64,
    /// How many crashes there are at most.
    pub(crate) crashes: u64,
    /// The life in which the process crashes after so many milliseconds.
    pub(crate) crash_at: Option<(u64, u64)>,
    /// The life in which somebody cancels, after so many milliseconds.
    pub(crate) cancel_at: Option<(u64, u64, CancelSpec)>,
    /// In how many of a hundred cases a watcher cancels the run on seeing a call.
    pub(crate) watcher_stops: u64,
    /// In how many of a hundred cases a person says the opposite of what is true.
    pub(crate) lies: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelSpec {
    Now,
    KeepApprovals,
    AfterTurn,
    HandOver,
}

impl Spec {
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::for_purpose(seed, "spec");
        let rng = &mut rng;
        let count = 1 + rng.index(4);
        let mut agents: Vec<AgentSpec> = (0..count).map(|at| AgentSpec::of(rng, at, count)).collect();
        for at in 0..count {
            let handoffs = if rng.chance(35) { handoffs(rng, at, &agents) } else { Vec::new() };
            agents[at].handoffs = handoffs;
        }
        Self { agents, run: RunSpec::of(rng), faults: Faults::of(rng) }
    }
}

/// Agents may hand over to later ones, and back to such as call no agents: so that nesting has an end.
fn handoffs(rng: &mut Rng, from: usize, agents: &[AgentSpec]) -> Vec<HandoffSpec> {
    let may = |to: usize| to != from && (to > from || agents[to].nested.is_empty());
    let to: Vec<usize> = (0..agents.len()).filter(|to| may(*to)).collect();
    let picked: Vec<usize> = to.into_iter().filter(|_| rng.chance(60)).collect();
    picked
        .into_iter()
        .map(|agent| HandoffSpec {
            agent,
            filters: rng.chance(20),
            fails: if rng.chance(10) { 20 } else { 0 },
        })
        .collect()
}

impl AgentSpec {
    fn of(rng: &mut Rng, at: usize, count: usize) -> Self {
        let name = format!("agent{at}");
        let tools = (0..1 + rng.index(3)).map(|tool| ToolSpec::of(rng, format!("t{at}{tool}"))).collect();
        let nested: Vec<usize> = (at + 1..count).filter(|_| rng.chance(45)).collect();
        let nested = nested
            .into_iter()
            .map(|agent| NestedSpec {
                agent,
                turns: 1 + rng.below(4) as u32,
                timeout_ms: rng.chance(10).then(|| *rng.pick(&[1, 100, 400])),
                approval: ApprovalSpec::of(rng),
                input_guard: rng.chance(15),
            })
            .collect();
        let tool_use = match rng.below(12) {
            0 => ToolUseSpec::StopOnFirst,
            1 => ToolUseSpec::StopAtFirstTool,
            2 => ToolUseSpec::Judge,
            _ => ToolUseSpec::RunAgain,
        };
        Self {
            input_guards: run_guards(rng, &format!("{name}-in")),
            output_guards: run_guards(rng, &format!("{name}-out")),
            name,
            tools,
            nested,
            handoffs: Vec::new(),
            tool_use,
            failing_hook: if rng.chance(8) { 5 } else { 0 },
        }
    }
}

fn run_guards(rng: &mut Rng, name: &str) -> Vec<RunGuardSpec> {
    let count = if rng.chance(25) { 1 + rng.index(2) } else { 0 };
    (0..count)
        .map(|at| RunGuardSpec {
            name: format!("{name}{at}"),
            first: rng.chance(40),
            trips: if rng.chance(30) { 30 } else { 0 },
        })
        .collect()
}

impl ApprovalSpec {
    fn of(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0 | 1 => Self::Always,
            2 | 3 => Self::From(rng.below(3)),
            4 if rng.chance(20) => Self::Panics,
            _ => Self::Never,
        }
    }
}

impl ToolSpec {
    /// Whether its bodies ask a person first. It follows from what is drawn anyway, so that kept seeds stay what they
    /// are.
    pub(crate) fn asks(&self) -> bool {
        self.latency_ms == 5 && self.failing == 4
    }

    /// Whether what it asks a person about is asked each time. It follows from what is drawn anyway, too.
    pub(crate) fn asks_each_time(&self) -> bool {
        self.latency_ms == 200
    }

    fn of(rng: &mut Rng, name: String) -> Self {
        let effect =
            *rng.pick(&[Effect::Pure, Effect::Idempotent, Effect::Idempotent, Effect::Once, Effect::Once]);
        let timeout_ms = rng.chance(25).then(|| *rng.pick(&[0, 1, 20, 100]));
        Self {
            input_guards: tool_guards(rng, &format!("{name}-in")),
            output_guards: tool_guards(rng, &format!("{name}-out")),
            name,
            effect,
            own_key: rng.chance(15),
            approval: ApprovalSpec::of(rng),
            timeout_ms,
            timeout_fails: rng.chance(15),
            on_failure: match rng.below(10) {
                0 => FailureSpec::Fail,
                1 | 2 => FailureSpec::Show,
                3 | 4 => FailureSpec::Say,
                _ => FailureSpec::Hide,
            },
            retries: rng.chance(20).then(|| 2 + rng.below(2) as u32),
            failing: if rng.chance(35) { 40 } else { 4 },
            hanging: if rng.chance(15) { 30 } else { 0 },
            latency_ms: *rng.pick(&[0, 5, 50, 200]),
            conflict: match rng.below(8) {
                0 => ConflictSpec::All,
                1 => ConflictSpec::ByArgument,
                _ => ConflictSpec::None,
            },
            concurrency: rng.chance(15).then(|| 1 + rng.index(2)),
            reconcile: match rng.below(6) {
                0 | 1 => ReconcileSpec::Honest,
                2 => ReconcileSpec::Unknown,
                _ => ReconcileSpec::None,
            },
            flickers: rng.chance(4),
            budget: rng.chance(10).then(|| rng.index(12)),
        }
    }
}

fn tool_guards(rng: &mut Rng, name: &str) -> Vec<ToolGuardSpec> {
    let count = if rng.chance(25) { 1 + rng.index(2) } else { 0 };
    (0..count)
        .map(|at| ToolGuardSpec {
            name: format!("{name}{at}"),
            strict: if rng.chance(50) { 25 } else { 0 },
            stops: rng.chance(15),
        })
        .collect()
}

impl RunSpec {
    fn of(rng: &mut Rng) -> Self {
        Self {
            max_turns: rng.chance(90).then(|| 1 + rng.below(8) as u32),
            concurrency: rng.chance(40).then(|| 1 + rng.index(3)),
            early_guardrails: rng.chance(30),
            missing: match rng.below(8) {
                0 => MissingSpec::Fail,
                1 => MissingSpec::Say,
                _ => MissingSpec::Tell,
            },
            drain_ms: *rng.pick(&[0, 1, 50, 250]),
            input_guards: run_guards(rng, "run-in"),
            output_guards: run_guards(rng, "run-out"),
            has_session: rng.chance(30),
            streams: rng.chance(50),
            handler: rng.chance(20),
            loop_stop: if rng.chance(15) { 2 } else { 25 },
            layered: rng.chance(15),
        }
    }
}

impl Faults {
    /// The same, for a process that lives.
    pub(crate) fn without_crashes(&self) -> Self {
        Self { writings: Vec::new(), crashing: 0, crashes: 0, crash_at: None, cancel_at: None, ..*self }
    }

    fn of(rng: &mut Rng) -> Self {
        let crashes = if rng.chance(60) { rng.below(4) } else { 0 };
        let kinds = [Fault::CrashBefore, Fault::CrashAfter];
        let mut writings: Vec<_> = (0..crashes).map(|_| (rng.below(30), *rng.pick(&kinds))).collect();
        if rng.chance(8) {
            writings.push((rng.below(30), *rng.pick(&[Fault::Fail, Fault::FailAfter])));
        }
        let crashing = if crashes > 0 && rng.chance(40) { 4 } else { 0 };
        let crash_at = (crashes > 0 && rng.chance(25)).then(|| (1 + rng.below(3), rng.below(400)));
        let how = *rng.pick(&[
            CancelSpec::Now,
            CancelSpec::Now,
            CancelSpec::KeepApprovals,
            CancelSpec::AfterTurn,
            CancelSpec::HandOver,
        ]);
        let cancel_at = rng.chance(35).then(|| (1 + rng.below(3), rng.below(400), how));
        Self {
            model_failing: if rng.chance(15) { 25 } else { 0 },
            store_latency_ms: *rng.pick(&[0, 0, 3, 20]),
            store_failing: if rng.chance(4) { 2 } else { 0 },
            session_failing: if rng.chance(4) { 10 } else { 0 },
            writings,
            crashing,
            crashes,
            crash_at,
            cancel_at,
            watcher_stops: if rng.chance(5) { 20 } else { 0 },
            lies: if rng.chance(10) { 50 } else { 0 },
        }
    }
}
