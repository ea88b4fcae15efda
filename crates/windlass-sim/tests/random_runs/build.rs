//! From plain data to agents, with the laboratory's instruments in every guard, hook and body.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::{Agent, Handoff, ToolUse};
use windlass::core::{Item, Question};
use windlass::guardrail::{
    InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail, ToolVerdict, Verdict,
};
use windlass::hook::{Hook, Moment};
use windlass::tool::{Receipts, Reconciled, Scope};
use windlass::{Effect, OnFailure, OnTimeout, Tool, ToolContext, ToolError};
use windlass_sim::SimModel;

use crate::lab::Lab;
use crate::spec::{
    AgentSpec, ApprovalSpec, ConflictSpec, FailureSpec, NestedSpec, ReconcileSpec, RunGuardSpec,
    ToolGuardSpec, ToolSpec, ToolUseSpec,
};
use crate::talk;

/// The agents of a world, the one that begins first.
pub(crate) fn agents(lab: &Arc<Lab>) -> Vec<Agent> {
    let asked = lab.clone();
    let model = SimModel::new(&lab.sim, move |request, rng| {
        asked.asked(request.input);
        talk::reply(request, rng)
    });
    let model = model.failing(lab.spec.faults.model_failing);
    let mut built: Vec<Option<Agent>> = lab.spec.agents.iter().map(|_| None).collect();
    // An agent calls later ones only, so they are built first.
    for (at, spec) in lab.spec.agents.iter().enumerate().rev() {
        let agent = agent(lab, spec, &built).model(model.clone());
        built[at] = Some(agent);
    }
    built.into_iter().flatten().collect()
}

fn agent(lab: &Arc<Lab>, spec: &AgentSpec, later: &[Option<Agent>]) -> Agent {
    let mut agent = Agent::new(spec.name.as_str()).hook(watching(lab)).tool_use(tool_use(lab, spec));
    agent = agent.instructions_from({
        let lab = lab.clone();
        move |_| {
            let lab = lab.clone();
            async move {
                lab.dawdle(5).await;
                "Help.".to_owned()
            }
        }
    });
    agent = agent.tools(spec.tools.iter().map(|tool| function(lab, tool)).collect::<Vec<_>>());
    for nested in &spec.nested {
        if let Some(inner) = &later[nested.agent] {
            agent = agent.tools(agent_tool(lab, nested, inner));
        }
    }
    for to in &spec.handoffs {
        let mut handoff = Handoff::to_named(lab.spec.agents[to.agent].name.as_str());
        if to.filters {
            handoff = handoff.filter_history(|items| {
                items.into_iter().filter(|item| matches!(**item, Item::Message(_))).collect()
            });
        }
        let (lab, fails) = (lab.clone(), to.fails);
        agent = agent.handoff(handoff.on_handoff(move |_| {
            let lab = lab.clone();
            async move {
                lab.dawdle(10).await;
                if lab.sim.chance(fails) { Err("nobody is there".to_owned()) } else { Ok(()) }
            }
        }));
    }
    for guard in &spec.input_guards {
        agent = agent.input_guardrail(input_guard(lab, guard));
    }
    for guard in &spec.output_guards {
        agent = agent.output_guardrail(output_guard(lab, guard));
    }
    if spec.failing_hook > 0 {
        agent = agent.hook(failing(lab, spec.failing_hook));
    }
    agent
}

fn tool_use(lab: &Arc<Lab>, spec: &AgentSpec) -> ToolUse {
    match spec.tool_use {
        ToolUseSpec::RunAgain => ToolUse::RunAgain,
        ToolUseSpec::StopOnFirst => ToolUse::StopOnFirst,
        ToolUseSpec::StopAtFirstTool => ToolUse::StopAt(vec![spec.tools[0].name.clone()]),
        ToolUseSpec::Judge => {
            let lab = lab.clone();
            ToolUse::judge(move |_, results| {
                let lab = lab.clone();
                async move {
                    lab.dawdle(10).await;
                    lab.sim.chance(40).then(|| format!("{} results will do", results.len()))
                }
            })
        }
    }
}

/// Tells the laboratory of every start and every end.
fn watching(lab: &Arc<Lab>) -> Hook {
    let lab = lab.clone();
    Hook::new(move |moment| {
        let lab = lab.clone();
        async move {
            match &moment {
                Moment::CallStarted { ctx } => lab.told_start(ctx),
                Moment::CallEnded { ctx, .. } => lab.told_end(ctx),
                _ => {}
            }
            lab.may_crash().await;
            lab.dawdle(5).await;
            Ok(())
        }
    })
}

fn failing(lab: &Arc<Lab>, percent: u64) -> Hook {
    let lab = lab.clone();
    Hook::new(move |_| {
        let lab = lab.clone();
        async move {
            lab.dawdle(5).await;
            match lab.sim.draw(|rng| rng.below(100)) {
                draw if draw < percent => Err("the hook failed".into()),
                draw if draw < percent + 2 => quietly_panic(),
                _ => Ok(()),
            }
        }
    })
}

pub(crate) fn input_guard(lab: &Arc<Lab>, spec: &RunGuardSpec) -> InputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    let guardrail = InputGuardrail::new(&spec.name, move |ctx: windlass::RunContext, _| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.dawdle(80).await;
            lab.may_crash().await;
            let verdict = run_verdict(&lab, guard.trips)?;
            if verdict == Verdict::Pass {
                lab.passed(&guard.name, ctx.run_id());
            }
            Ok(verdict)
        }
    });
    if spec.first { guardrail.first() } else { guardrail }
}

pub(crate) fn output_guard(lab: &Arc<Lab>, spec: &RunGuardSpec) -> OutputGuardrail {
    let (lab, trips) = (lab.clone(), spec.trips);
    OutputGuardrail::new(&spec.name, move |_, _| {
        let lab = lab.clone();
        async move {
            lab.dawdle(20).await;
            run_verdict(&lab, trips)
        }
    })
}

fn run_verdict(lab: &Lab, trips: u64) -> Result<Verdict, windlass::guardrail::GuardrailError> {
    match lab.sim.draw(|rng| rng.below(100)) {
        draw if draw < trips => Ok(Verdict::Trip),
        draw if trips > 0 && draw < trips + 5 => Err("the guardrail failed".into()),
        draw if trips > 0 && draw < trips + 8 => quietly_panic(),
        _ => Ok(Verdict::Pass),
    }
}

fn tool_input_guard(lab: &Arc<Lab>, spec: &ToolGuardSpec) -> ToolInputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    ToolInputGuardrail::new(&spec.name, move |ctx| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.dawdle(20).await;
            lab.may_crash().await;
            let verdict = tool_verdict(&lab, &guard)?;
            if verdict == ToolVerdict::Allow {
                lab.allowed(&guard.name, &ctx);
            }
            Ok(verdict)
        }
    })
}

fn tool_output_guard(lab: &Arc<Lab>, spec: &ToolGuardSpec) -> ToolOutputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    ToolOutputGuardrail::new(&spec.name, move |_, _| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.dawdle(20).await;
            tool_verdict(&lab, &guard)
        }
    })
}

fn tool_verdict(
    lab: &Lab,
    guard: &ToolGuardSpec,
) -> Result<ToolVerdict, windlass::guardrail::GuardrailError> {
    if !lab.sim.chance(guard.strict) {
        return Ok(ToolVerdict::Allow);
    }
    match lab.sim.draw(|rng| rng.below(8)) {
        0 if guard.stops => Ok(ToolVerdict::Stop),
        0 | 1 => Err("the guardrail failed".into()),
        2 => quietly_panic(),
        3 | 4 => Ok(ToolVerdict::Replace("something else".into())),
        _ => Ok(ToolVerdict::Reject("not like this".to_owned())),
    }
}

fn agent_tool(lab: &Arc<Lab>, spec: &NestedSpec, inner: &Agent) -> Tool {
    let tool = inner.as_tool(&format!("ask_{}", inner.name()), "Asks.").agent_turns(spec.turns);
    let tool = if spec.input_guard {
        let guard = ToolGuardSpec { name: format!("{}-guard", inner.name()), strict: 10, stops: false };
        tool.input_guardrail(tool_input_guard(lab, &guard))
    } else {
        tool
    };
    let tool = match spec.timeout_ms {
        Some(timeout) => tool.timeout(Duration::from_millis(timeout)),
        None => tool,
    };
    approval(lab, tool, spec.approval, Asked::UntilForGood)
}

fn function(lab: &Arc<Lab>, spec: &ToolSpec) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": { "n": { "type": "integer" } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let (of_body, body_spec) = (lab.clone(), Arc::new(spec.clone()));
    let tool = Tool::dynamic(&spec.name, "Does something.", schema, move |ctx, _| {
        body(of_body.clone(), body_spec.clone(), ctx)
    });
    let asked = if spec.asks_each_time() { Asked::EachTime } else { Asked::UntilForGood };
    let mut tool = approval(lab, tool.effect(spec.effect), spec.approval, asked);
    if spec.own_key {
        tool = tool.receipts(Receipts { scope: Scope::Call, ..Receipts::default() });
    }
    if let Some(timeout) = spec.timeout_ms {
        let policy = if spec.timeout_fails { OnTimeout::Fail } else { OnTimeout::Tell };
        tool = tool.timeout(Duration::from_millis(timeout)).on_timeout(policy);
    }
    tool = tool.on_failure(match spec.on_failure {
        FailureSpec::Hide => OnFailure::Hide,
        FailureSpec::Show => OnFailure::Show,
        FailureSpec::Say => OnFailure::say(|_, error| format!("it said {error}")),
        FailureSpec::Fail => OnFailure::Fail,
    });
    if let Some(attempts) = spec.retries {
        tool = tool.retry(attempts, Duration::from_millis(20));
    }
    if let Some(limit) = spec.concurrency {
        tool = tool.concurrency(limit);
    }
    if let Some(budget) = spec.budget {
        tool = tool.output_budget(budget);
    }
    if spec.flickers {
        let lab = lab.clone();
        tool = tool.enabled_if(move |_| !lab.sim.chance(20));
    }
    tool = match spec.conflict {
        ConflictSpec::None => tool,
        ConflictSpec::All => tool.conflict(|_: &Value| "all".to_owned()),
        ConflictSpec::ByArgument => tool.conflict(|value: &Value| value.to_string()),
    };
    for guard in &spec.input_guards {
        tool = tool.input_guardrail(tool_input_guard(lab, guard));
    }
    for guard in &spec.output_guards {
        tool = tool.output_guardrail(tool_output_guard(lab, guard));
    }
    reconcile(lab, tool, spec.reconcile)
}

/// How often a person is asked about what a tool asks about.
#[derive(Clone, Copy)]
enum Asked {
    EachTime,
    UntilForGood,
}

fn approval(lab: &Arc<Lab>, tool: Tool, spec: ApprovalSpec, asked: Asked) -> Tool {
    match (spec, asked) {
        (ApprovalSpec::Never, _) => tool,
        (ApprovalSpec::Always, Asked::UntilForGood) => tool.approve_always(),
        (ApprovalSpec::Always, Asked::EachTime) => tool.approve_each(),
        (ApprovalSpec::Panics, Asked::UntilForGood) => tool.approve_if(|_: &Value| quietly_panic()),
        (ApprovalSpec::Panics, Asked::EachTime) => tool.approve_each_if(|_: &Value| quietly_panic()),
        (ApprovalSpec::From(least), asked) => {
            let lab = lab.clone();
            let rule = move |_, arguments: &Value| {
                let asks = arguments.get("n").and_then(Value::as_u64).is_none_or(|n| n >= least);
                let lab = lab.clone();
                async move {
                    lab.dawdle(10).await;
                    asks
                }
            };
            match asked {
                Asked::UntilForGood => tool.approve_when(rule),
                Asked::EachTime => tool.approve_each_when(rule),
            }
        }
    }
}

fn reconcile(lab: &Arc<Lab>, tool: Tool, spec: ReconcileSpec) -> Tool {
    let is_honest = match spec {
        ReconcileSpec::None => return tool,
        ReconcileSpec::Honest => true,
        ReconcileSpec::Unknown => false,
    };
    let lab = lab.clone();
    tool.reconcile(move |ctx| {
        let lab = lab.clone();
        async move {
            lab.dawdle(10).await;
            lab.may_crash().await;
            match lab.world.by_call(ctx.path().clone()) {
                _ if !is_honest => Reconciled::Unknown,
                0 => Reconciled::DidNotHappen,
                _ => Reconciled::Happened("it had happened".into()),
            }
        }
    })
}

/// Where a body goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    FailsBefore,
    FailsAfter,
    PanicsBefore,
    PanicsAfter,
}

async fn body(lab: Arc<Lab>, spec: Arc<ToolSpec>, ctx: ToolContext) -> Result<String, ToolError> {
    let _running = lab.body_begins(&spec, &ctx);
    let trouble = trouble(&lab, &spec);
    lab.dawdle(spec.latency_ms).await;
    lab.may_crash().await;
    let question = Question::new("Which?").schema(json!({ "enum": ["this", "that"] }));
    if spec.asks() && ctx.reply(&question).is_none() {
        lab.asks(&ctx);
        return Err(ToolError::ask(question));
    }
    fail_if(trouble, Trouble::FailsBefore, Trouble::PanicsBefore)?;
    if spec.effect != Effect::Pure {
        lab.effect(&spec, &ctx);
    }
    lab.may_crash().await;
    lab.dawdle(spec.latency_ms).await;
    if lab.sim.chance(spec.hanging) {
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    lab.may_crash().await;
    fail_if(trouble, Trouble::FailsAfter, Trouble::PanicsAfter)?;
    Ok(format!("{} did {}", spec.name, ctx.arguments()))
}

fn trouble(lab: &Lab, spec: &ToolSpec) -> Trouble {
    if !lab.sim.chance(spec.failing) {
        return Trouble::None;
    }
    // Trying a body again that has taken effect is what its author asked for with `retry`: authors of tools
    // that must not happen twice take care not to.
    let takes_care = spec.effect == Effect::Once && spec.retries.is_some();
    match lab.sim.draw(|rng| rng.below(4)) {
        0 => Trouble::FailsBefore,
        1 => Trouble::PanicsBefore,
        2 if !takes_care => Trouble::FailsAfter,
        3 if !takes_care => Trouble::PanicsAfter,
        _ => Trouble::FailsBefore,
    }
}

fn fail_if(trouble: Trouble, fails: Trouble, panics: Trouble) -> Result<(), ToolError> {
    if trouble == panics {
        quietly_panic::<()>();
    }
    if trouble == fails { Err(ToolError::tell("it did not work")) } else { Ok(()) }
}

/// Panics without the hook that prints: thousands of seeds would fill the screen.
fn quietly_panic<T>() -> T {
    std::panic::resume_unwind(Box::new("a simulated panic"))
}
