//! The specification of a random world: agents, tools, a run, and its faults.

use windlass::core::tool::ToolEffect;
use windlass_sim::{SimRng, WriteFault};

use crate::additions::AdditionSpec;

/// The specification of a world, as plain data.
#[derive(Debug)]
pub(crate) struct WorldSpec {
    pub(crate) agents: Vec<AgentSpec>,
    pub(crate) run: RunSpec,
    pub(crate) faults: FaultSpec,
    pub(crate) additions: AdditionSpec,
}

/// The specification of an agent.
#[derive(Debug)]
pub(crate) struct AgentSpec {
    pub(crate) name: String,
    pub(crate) tools: Vec<ToolSpec>,
    /// Agents that it calls as tools, by index.
    pub(crate) nested_agents: Vec<NestedAgentSpec>,
    /// Agents that it may hand off to, by index.
    pub(crate) handoffs: Vec<HandoffSpec>,
    pub(crate) input_guardrails: Vec<RunGuardrailSpec>,
    pub(crate) output_guardrails: Vec<RunGuardrailSpec>,
    pub(crate) tool_use: ToolUseSpec,
    pub(crate) hook_failure_percent: u64,
}

/// The specification of a nested agent.
#[derive(Debug)]
pub(crate) struct NestedAgentSpec {
    pub(crate) agent: usize,
    pub(crate) max_turns: u32,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) approval: ApprovalSpec,
    pub(crate) has_input_guardrail: bool,
}

/// The specification of a handoff.
#[derive(Debug)]
pub(crate) struct HandoffSpec {
    pub(crate) agent: usize,
    pub(crate) filters_history: bool,
    pub(crate) failure_percent: u64,
}

/// The specification of a run's guardrail.
#[derive(Clone, Debug)]
pub(crate) struct RunGuardrailSpec {
    pub(crate) name: String,
    pub(crate) is_blocking: bool,
    pub(crate) trip_percent: u64,
}

/// The tool-use behaviour of an agent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToolUseSpec {
    RunModelAgain,
    StopOnFirstTool,
    StopAtFirstTool,
    CustomFunction,
}

/// The specification of a function tool.
#[derive(Clone, Debug)]
pub(crate) struct ToolSpec {
    pub(crate) name: String,
    pub(crate) effect: ToolEffect,
    pub(crate) has_own_key: bool,
    pub(crate) approval: ApprovalSpec,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) timeout_fails_run: bool,
    pub(crate) on_failure: FailureSpec,
    pub(crate) max_attempts: Option<u32>,
    /// Percentage of bodies that fail.
    pub(crate) failure_percent: u64,
    pub(crate) hang_percent: u64,
    pub(crate) latency_ms: u64,
    pub(crate) input_guardrails: Vec<ToolGuardrailSpec>,
    pub(crate) output_guardrails: Vec<ToolGuardrailSpec>,
    pub(crate) conflict: ConflictSpec,
    pub(crate) concurrency: Option<usize>,
    pub(crate) reconcile: ReconcileSpec,
    pub(crate) toggles_enabled: bool,
    pub(crate) output_budget: Option<usize>,
}

/// The approval rule of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalSpec {
    Never,
    Always,
    /// Approval for arguments from this value on.
    FromArgument(u64),
    /// The approval rule panics.
    Panics,
}

/// The failure policy of a tool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailureSpec {
    Hide,
    Show,
    Say,
    Fail,
}

/// The specification of a tool's guardrail.
#[derive(Clone, Debug)]
pub(crate) struct ToolGuardrailSpec {
    pub(crate) name: String,
    /// Percentage of calls that it does not allow.
    pub(crate) reject_percent: u64,
    pub(crate) may_stop_run: bool,
}

/// The conflict rule of a tool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConflictSpec {
    None,
    All,
    ByArgument,
}

/// The reconcile function of a tool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReconcileSpec {
    None,
    Honest,
    Unknown,
}

/// The specification of a run.
#[derive(Debug)]
pub(crate) struct RunSpec {
    pub(crate) max_turns: Option<u32>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) early_guardrails: bool,
    pub(crate) missing_tool: MissingToolSpec,
    pub(crate) drain_ms: u64,
    pub(crate) input_guardrails: Vec<RunGuardrailSpec>,
    pub(crate) output_guardrails: Vec<RunGuardrailSpec>,
    pub(crate) has_session: bool,
    pub(crate) is_streamed: bool,
    pub(crate) has_failure_handler: bool,
    pub(crate) max_repetitions: u32,
    pub(crate) has_layers: bool,
}

/// The policy for unknown tools.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MissingToolSpec {
    Tell,
    Say,
    Fail,
}

/// The faults of a world.
#[derive(Debug)]
pub(crate) struct FaultSpec {
    pub(crate) model_failure_percent: u64,
    pub(crate) store_latency_ms: u64,
    pub(crate) store_failure_percent: u64,
    pub(crate) session_failure_percent: u64,
    /// Appends that crash or fail, by number.
    pub(crate) write_faults: Vec<(u64, WriteFault)>,
    /// Percentage of bodies, guardrails and hooks in which the process crashes.
    pub(crate) crash_percent: u64,
    /// Maximum number of crashes.
    pub(crate) max_crashes: u64,
    /// Process that crashes, and the time of the crash in milliseconds.
    pub(crate) crash_at: Option<(u64, u64)>,
    /// Process in which the run is cancelled, the time in milliseconds, and the kind of cancellation.
    pub(crate) cancel_at: Option<(u64, u64, CancelSpec)>,
    /// Percentage of announced calls at which a watcher cancels the run.
    pub(crate) watcher_cancel_percent: u64,
    /// Percentage of calls in doubt about which a person lies.
    pub(crate) lie_percent: u64,
}

/// The kind of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelSpec {
    Now,
    KeepApprovals,
    AfterTurn,
    Detach,
}

impl WorldSpec {
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut rng = SimRng::for_purpose(seed, "spec");
        let rng = &mut rng;
        let count = 1 + rng.index(4);
        let mut agents: Vec<AgentSpec> = (0..count).map(|at| AgentSpec::draw(rng, at, count)).collect();
        for at in 0..count {
            let handoffs = if rng.chance(35) { draw_handoffs(rng, at, &agents) } else { Vec::new() };
            agents[at].handoffs = handoffs;
        }
        Self {
            agents,
            run: RunSpec::draw(rng),
            faults: FaultSpec::draw(rng),
            additions: AdditionSpec::default(),
        }
    }
}

/// Draws handoffs to later agents, and to earlier ones without nested agents: so that nesting is bounded.
fn draw_handoffs(rng: &mut SimRng, from: usize, agents: &[AgentSpec]) -> Vec<HandoffSpec> {
    let may = |to: usize| to != from && (to > from || agents[to].nested_agents.is_empty());
    let to: Vec<usize> = (0..agents.len()).filter(|to| may(*to)).collect();
    let picked: Vec<usize> = to.into_iter().filter(|_| rng.chance(60)).collect();
    picked
        .into_iter()
        .map(|agent| HandoffSpec {
            agent,
            filters_history: rng.chance(20),
            failure_percent: if rng.chance(10) { 60 } else { 0 },
        })
        .collect()
}

impl AgentSpec {
    fn draw(rng: &mut SimRng, at: usize, count: usize) -> Self {
        let name = format!("agent{at}");
        let tools = (0..1 + rng.index(3)).map(|tool| ToolSpec::draw(rng, format!("t{at}{tool}"))).collect();
        let nested: Vec<usize> = (at + 1..count).filter(|_| rng.chance(45)).collect();
        let nested = nested
            .into_iter()
            .map(|agent| NestedAgentSpec {
                agent,
                max_turns: 1 + rng.below(4) as u32,
                timeout_ms: rng.chance(10).then(|| *rng.pick(&[1, 100, 400])),
                approval: ApprovalSpec::draw(rng),
                has_input_guardrail: rng.chance(15),
            })
            .collect();
        let tool_use = match rng.below(12) {
            0 => ToolUseSpec::StopOnFirstTool,
            1 => ToolUseSpec::StopAtFirstTool,
            2 => ToolUseSpec::CustomFunction,
            _ => ToolUseSpec::RunModelAgain,
        };
        Self {
            input_guardrails: draw_run_guardrails(rng, &format!("{name}-in")),
            output_guardrails: draw_run_guardrails(rng, &format!("{name}-out")),
            name,
            tools,
            nested_agents: nested,
            handoffs: Vec::new(),
            tool_use,
            hook_failure_percent: if rng.chance(8) { 5 } else { 0 },
        }
    }
}

fn draw_run_guardrails(rng: &mut SimRng, name: &str) -> Vec<RunGuardrailSpec> {
    let count = if rng.chance(25) { 1 + rng.index(2) } else { 0 };
    (0..count)
        .map(|at| RunGuardrailSpec {
            name: format!("{name}{at}"),
            is_blocking: rng.chance(40),
            trip_percent: if rng.chance(30) { 30 } else { 0 },
        })
        .collect()
}

impl ApprovalSpec {
    fn draw(rng: &mut SimRng) -> Self {
        match rng.below(10) {
            0 | 1 => Self::Always,
            2 | 3 => Self::FromArgument(rng.below(3)),
            4 if rng.chance(20) => Self::Panics,
            _ => Self::Never,
        }
    }
}

impl ToolSpec {
    /// Returns true if its bodies ask a person first. Derived from other draws, so that kept seeds keep their
    /// meaning.
    pub(crate) fn asks_person(&self) -> bool {
        self.latency_ms == 5 && self.failure_percent == 4
    }

    /// Returns true if its approvals are required every time. Derived from other draws, too.
    pub(crate) fn asks_each_time(&self) -> bool {
        self.latency_ms == 200
    }

    fn draw(rng: &mut SimRng, name: String) -> Self {
        let effect = *rng.pick(&[
            ToolEffect::Pure,
            ToolEffect::Idempotent,
            ToolEffect::Idempotent,
            ToolEffect::Once,
            ToolEffect::Once,
        ]);
        let timeout_ms = rng.chance(25).then(|| *rng.pick(&[0, 1, 20, 100]));
        Self {
            input_guardrails: draw_tool_guardrails(rng, &format!("{name}-in")),
            output_guardrails: draw_tool_guardrails(rng, &format!("{name}-out")),
            name,
            effect,
            has_own_key: rng.chance(15),
            approval: ApprovalSpec::draw(rng),
            timeout_ms,
            timeout_fails_run: rng.chance(15),
            on_failure: match rng.below(10) {
                0 => FailureSpec::Fail,
                1 | 2 => FailureSpec::Show,
                3 | 4 => FailureSpec::Say,
                _ => FailureSpec::Hide,
            },
            max_attempts: rng.chance(20).then(|| 2 + rng.below(2) as u32),
            failure_percent: if rng.chance(35) { 40 } else { 4 },
            hang_percent: if rng.chance(15) { 30 } else { 0 },
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
            toggles_enabled: rng.chance(4),
            output_budget: rng.chance(10).then(|| rng.index(12)),
        }
    }
}

fn draw_tool_guardrails(rng: &mut SimRng, name: &str) -> Vec<ToolGuardrailSpec> {
    let count = if rng.chance(25) { 1 + rng.index(2) } else { 0 };
    (0..count)
        .map(|at| ToolGuardrailSpec {
            name: format!("{name}{at}"),
            reject_percent: if rng.chance(50) { 25 } else { 0 },
            may_stop_run: rng.chance(15),
        })
        .collect()
}

impl RunSpec {
    fn draw(rng: &mut SimRng) -> Self {
        Self {
            max_turns: rng.chance(90).then(|| 1 + rng.below(8) as u32),
            concurrency: rng.chance(40).then(|| 1 + rng.index(3)),
            early_guardrails: rng.chance(30),
            missing_tool: match rng.below(8) {
                0 => MissingToolSpec::Fail,
                1 => MissingToolSpec::Say,
                _ => MissingToolSpec::Tell,
            },
            drain_ms: *rng.pick(&[0, 1, 50, 250]),
            input_guardrails: draw_run_guardrails(rng, "run-in"),
            output_guardrails: draw_run_guardrails(rng, "run-out"),
            has_session: rng.chance(30),
            is_streamed: rng.chance(50),
            has_failure_handler: rng.chance(20),
            max_repetitions: if rng.chance(50) { 2 } else { 25 },
            has_layers: rng.chance(15),
        }
    }
}

impl FaultSpec {
    /// Returns true if a process or a watcher cancels the run.
    pub(crate) fn may_cancel(&self) -> bool {
        self.watcher_cancel_percent > 0 || self.cancel_at.is_some_and(|(_, _, how)| how != CancelSpec::Detach)
    }

    /// Returns the same faults without crashes and cancellations.
    pub(crate) fn without_crashes(&self) -> Self {
        Self {
            write_faults: Vec::new(),
            crash_percent: 0,
            max_crashes: 0,
            crash_at: None,
            cancel_at: None,
            ..*self
        }
    }

    fn draw(rng: &mut SimRng) -> Self {
        let crashes = if rng.chance(60) { rng.below(4) } else { 0 };
        let kinds = [WriteFault::CrashBefore, WriteFault::CrashAfter];
        let mut writings: Vec<_> = (0..crashes).map(|_| (rng.below(30), *rng.pick(&kinds))).collect();
        if rng.chance(8) {
            writings.push((rng.below(30), *rng.pick(&[WriteFault::FailBefore, WriteFault::FailAfter])));
        }
        let crashing = if crashes > 0 && rng.chance(40) { 4 } else { 0 };
        let crash_at = (crashes > 0 && rng.chance(25)).then(|| (1 + rng.below(3), rng.below(400)));
        let how = *rng.pick(&[
            CancelSpec::Now,
            CancelSpec::Now,
            CancelSpec::KeepApprovals,
            CancelSpec::AfterTurn,
            CancelSpec::Detach,
        ]);
        let cancel_at = rng.chance(35).then(|| (1 + rng.below(3), rng.below(400), how));
        Self {
            model_failure_percent: if rng.chance(15) { 25 } else { 0 },
            store_latency_ms: *rng.pick(&[0, 0, 3, 20]),
            store_failure_percent: if rng.chance(4) { 2 } else { 0 },
            session_failure_percent: if rng.chance(4) { 10 } else { 0 },
            write_faults: writings,
            crash_percent: crashing,
            max_crashes: crashes,
            crash_at,
            cancel_at,
            watcher_cancel_percent: if rng.chance(5) { 20 } else { 0 },
            lie_percent: if rng.chance(10) { 50 } else { 0 },
        }
    }
}
