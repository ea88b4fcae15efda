//! Builds agents from their specifications, with the observer in every guardrail, hook and body.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::{Agent, Handoff, ToolUsePolicy};
use windlass::core::{decision::PersonQuestion, item::Item};
use windlass::guardrail::{
    GuardrailVerdict, InputGuardrail, OutputGuardrail, ToolGuardrailVerdict, ToolInputGuardrail,
    ToolOutputGuardrail,
};
use windlass::hook::{Hook, HookEvent};
use windlass::run::RunBuilder;
use windlass::tool::{ReceiptPolicy, ReceiptScope, ReconcileOutcome};
use windlass::{
    core::tool::ToolEffect,
    tool::{OnFailure, OnTimeout, Tool, ToolContext, ToolError},
};
use windlass_sim::SimModel;

use crate::model_replies;
use crate::observer::WorldObserver;
use crate::spec::{
    AgentSpec, ApprovalSpec, ConflictSpec, FailureSpec, NestedAgentSpec, ReconcileSpec, RunGuardrailSpec,
    ToolGuardrailSpec, ToolSpec, ToolUseSpec,
};
use crate::withheld::output_mark;

/// Builds the agents of a world; the first one starts the run.
pub(crate) fn build_agents(lab: &Arc<WorldObserver>) -> Vec<Agent> {
    let asked = lab.clone();
    let model = SimModel::new(&lab.sim, move |request, rng| {
        asked.check_model_input(request.input);
        model_replies::draw_reply(request, rng)
    });
    let model = model.failure_percent(lab.spec.faults.model_failure_percent);
    let mut built: Vec<Option<Agent>> = lab.spec.agents.iter().map(|_| None).collect();
    // An agent nests only later agents, so those are built first.
    for (at, spec) in lab.spec.agents.iter().enumerate().rev() {
        let agent = build_agent(lab, spec, &built).model(model.clone());
        built[at] = Some(agent);
    }
    built.into_iter().flatten().collect()
}

fn build_agent(lab: &Arc<WorldObserver>, spec: &AgentSpec, later: &[Option<Agent>]) -> Agent {
    let mut agent =
        Agent::new(spec.name.as_str()).hook(observing_hook(lab)).tool_use_policy(build_tool_use(lab, spec));
    agent = agent.dynamic_instructions({
        let lab = lab.clone();
        move |_| {
            let lab = lab.clone();
            async move {
                lab.random_delay(5).await;
                "Help.".to_owned()
            }
        }
    });
    agent = agent.tools(spec.tools.iter().map(|tool| build_function_tool(lab, tool)).collect::<Vec<_>>());
    for nested in &spec.nested_agents {
        if let Some(inner) = &later[nested.agent] {
            agent = agent.tools(build_agent_tool(lab, nested, inner));
        }
    }
    for to in &spec.handoffs {
        let mut handoff = Handoff::to_named(lab.spec.agents[to.agent].name.as_str());
        if let Some(filter) = lab.spec.additions.handoff_filter {
            handoff = handoff.filter_history(move |items| filter.apply(items));
        } else if to.filters_history {
            handoff = handoff.filter_history(|items| {
                items.into_iter().filter(|item| matches!(**item, Item::Message(_))).collect()
            });
        }
        let (lab, fails) = (lab.clone(), to.failure_percent);
        agent = agent.handoff(handoff.on_handoff(move |_| {
            let lab = lab.clone();
            async move {
                lab.random_delay(10).await;
                if lab.sim.chance(fails) { Err("nobody is there".to_owned()) } else { Ok(()) }
            }
        }));
    }
    for guard in &spec.input_guardrails {
        agent = agent.input_guardrail(input_guardrail(lab, guard));
    }
    for guard in &spec.output_guardrails {
        agent = agent.output_guardrail(output_guardrail(lab, guard));
    }
    if spec.hook_failure_percent > 0 {
        agent = agent.hook(failing_hook(lab, spec.hook_failure_percent));
    }
    agent
}

fn build_tool_use(lab: &Arc<WorldObserver>, spec: &AgentSpec) -> ToolUsePolicy {
    match spec.tool_use {
        ToolUseSpec::RunModelAgain => ToolUsePolicy::RunModelAgain,
        ToolUseSpec::StopOnFirstTool => ToolUsePolicy::StopOnFirstTool,
        ToolUseSpec::StopAtFirstTool => ToolUsePolicy::StopAtTools(vec![spec.tools[0].name.clone()]),
        ToolUseSpec::CustomFunction => {
            let lab = lab.clone();
            ToolUsePolicy::custom_function(move |_, results| {
                let lab = lab.clone();
                async move {
                    lab.random_delay(10).await;
                    lab.sim.chance(40).then(|| format!("{} results will do", results.len()))
                }
            })
        }
    }
}

/// Creates a hook that reports every call start and end to the observer.
fn observing_hook(lab: &Arc<WorldObserver>) -> Hook {
    let lab = lab.clone();
    Hook::new(move |moment| {
        let lab = lab.clone();
        async move {
            match &moment {
                HookEvent::CallStarted { ctx, .. } => lab.note_hook_start(ctx),
                HookEvent::CallEnded { ctx, info, is_repeated, output, .. } => {
                    lab.note_text("the output that a hook was told", &output.text());
                    lab.note_told_end(ctx, info.seq);
                    if !is_repeated {
                        lab.note_hook_end(ctx);
                    }
                }
                _ => {}
            }
            lab.maybe_crash().await;
            lab.random_delay(5).await;
            Ok(())
        }
    })
}

fn failing_hook(lab: &Arc<WorldObserver>, percent: u64) -> Hook {
    let lab = lab.clone();
    Hook::new(move |_| {
        let lab = lab.clone();
        async move {
            lab.random_delay(5).await;
            match lab.sim.draw(|rng| rng.below(100)) {
                draw if draw < percent => Err("the hook failed".into()),
                draw if draw < percent + 2 => panic_silently(),
                _ => Ok(()),
            }
        }
    })
}

pub(crate) fn input_guardrail(lab: &Arc<WorldObserver>, spec: &RunGuardrailSpec) -> InputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    let guardrail = InputGuardrail::new(&spec.name, move |ctx: windlass::tool::RunContext, _| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.random_delay(80).await;
            lab.maybe_crash().await;
            let verdict = run_verdict(&lab, guard.trip_percent)?;
            if verdict == GuardrailVerdict::Pass {
                lab.note_passed(&guard.name, ctx.run_id());
            }
            Ok(verdict)
        }
    });
    if spec.is_blocking { guardrail.blocking() } else { guardrail }
}

pub(crate) fn output_guardrail(lab: &Arc<WorldObserver>, spec: &RunGuardrailSpec) -> OutputGuardrail {
    let (lab, trips) = (lab.clone(), spec.trip_percent);
    OutputGuardrail::new(&spec.name, move |_, _| {
        let lab = lab.clone();
        async move {
            lab.random_delay(20).await;
            lab.maybe_crash().await;
            run_verdict(&lab, trips)
        }
    })
}

fn run_verdict(
    lab: &WorldObserver,
    trips: u64,
) -> Result<GuardrailVerdict, windlass::guardrail::GuardrailError> {
    match lab.sim.draw(|rng| rng.below(100)) {
        draw if draw < trips => Ok(GuardrailVerdict::Tripwire),
        draw if trips > 0 && draw < trips + 5 => Err("the guardrail failed".into()),
        draw if trips > 0 && draw < trips + 8 => panic_silently(),
        _ => Ok(GuardrailVerdict::Pass),
    }
}

fn tool_input_guardrail(lab: &Arc<WorldObserver>, spec: &ToolGuardrailSpec) -> ToolInputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    ToolInputGuardrail::new(&spec.name, move |ctx| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.random_delay(20).await;
            lab.maybe_crash().await;
            let verdict = tool_verdict(&lab, &guard)?;
            if verdict == ToolGuardrailVerdict::Allow {
                lab.note_allowed(&guard.name, &ctx);
            }
            Ok(verdict)
        }
    })
}

fn tool_output_guardrail(lab: &Arc<WorldObserver>, spec: &ToolGuardrailSpec) -> ToolOutputGuardrail {
    let (lab, guard) = (lab.clone(), spec.clone());
    ToolOutputGuardrail::new(&spec.name, move |_, _| {
        let (lab, guard) = (lab.clone(), guard.clone());
        async move {
            lab.random_delay(20).await;
            lab.maybe_crash().await;
            tool_verdict(&lab, &guard)
        }
    })
}

fn tool_verdict(
    lab: &WorldObserver,
    guard: &ToolGuardrailSpec,
) -> Result<ToolGuardrailVerdict, windlass::guardrail::GuardrailError> {
    if !lab.sim.chance(guard.reject_percent) {
        return Ok(ToolGuardrailVerdict::Allow);
    }
    match lab.sim.draw(|rng| rng.below(8)) {
        0 if guard.may_stop_run => Ok(ToolGuardrailVerdict::FailRun),
        0 | 1 => Err("the guardrail failed".into()),
        2 => panic_silently(),
        3 | 4 => Ok(ToolGuardrailVerdict::ReplaceOutput("something else".into())),
        _ => Ok(ToolGuardrailVerdict::RejectCall("not like this".to_owned())),
    }
}

fn build_agent_tool(lab: &Arc<WorldObserver>, spec: &NestedAgentSpec, inner: &Agent) -> Tool {
    let tool = inner.as_tool(&format!("ask_{}", inner.name()), "Asks.").agent_max_turns(spec.max_turns);
    let tool = if spec.has_input_guardrail {
        let guard = ToolGuardrailSpec {
            name: format!("{}-guard", inner.name()),
            reject_percent: 10,
            may_stop_run: false,
        };
        tool.input_guardrail(tool_input_guardrail(lab, &guard))
    } else {
        tool
    };
    let tool = match spec.timeout_ms {
        Some(timeout) => tool.timeout(Duration::from_millis(timeout)),
        None => tool,
    };
    with_approval(lab, tool, spec.approval, ApprovalFrequency::UntilStandingDecision)
}

fn build_function_tool(lab: &Arc<WorldObserver>, spec: &ToolSpec) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": { "n": { "type": "integer" } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let (of_body, body_spec) = (lab.clone(), Arc::new(spec.clone()));
    let tool = if lab.spec.additions.blocking_tools.contains(&spec.name) {
        Tool::dynamic_blocking(&spec.name, "Does something.", schema, move |ctx, _| {
            run_blocking_body(&of_body, &body_spec, &ctx)
        })
    } else {
        Tool::dynamic(&spec.name, "Does something.", schema, move |ctx, _| {
            run_tool_body(of_body.clone(), body_spec.clone(), ctx)
        })
    };
    let asked = if spec.asks_each_time() {
        ApprovalFrequency::EachTime
    } else {
        ApprovalFrequency::UntilStandingDecision
    };
    let mut tool = with_approval(lab, tool.effect(spec.effect), spec.approval, asked);
    if spec.has_own_key {
        tool = tool.receipt_policy(ReceiptPolicy { scope: ReceiptScope::Call, ..ReceiptPolicy::default() });
    }
    if let Some(timeout) = spec.timeout_ms {
        let policy = if spec.timeout_fails_run { OnTimeout::FailRun } else { OnTimeout::TellModel };
        tool = tool.timeout(Duration::from_millis(timeout)).on_timeout(policy);
    }
    tool = tool.on_failure(match spec.on_failure {
        FailureSpec::Hide => OnFailure::HideError,
        FailureSpec::Show => OnFailure::ShowError,
        FailureSpec::Say => OnFailure::custom_message(|_, error| format!("it said {error}")),
        FailureSpec::Fail => OnFailure::FailRun,
    });
    if let Some(attempts) = spec.max_attempts {
        tool = tool.retry(attempts, Duration::from_millis(20));
    }
    if let Some(limit) = spec.concurrency {
        tool = tool.max_concurrent_calls(limit);
    }
    if let Some(budget) = spec.output_budget {
        tool = tool.max_output_bytes(budget);
    }
    if spec.toggles_enabled {
        let lab = lab.clone();
        tool = tool.enabled_if(move |_| !lab.sim.chance(20));
    }
    tool = match spec.conflict {
        ConflictSpec::None => tool,
        ConflictSpec::All => tool.conflict_key(|_: &Value| "all".to_owned()),
        ConflictSpec::ByArgument => tool.conflict_key(|value: &Value| value.to_string()),
    };
    for guard in &spec.input_guardrails {
        tool = tool.input_guardrail(tool_input_guardrail(lab, guard));
    }
    for guard in &spec.output_guardrails {
        tool = tool.output_guardrail(tool_output_guardrail(lab, guard));
    }
    with_reconcile(lab, tool, spec.reconcile)
}

/// The frequency of approval requests of a tool.
#[derive(Clone, Copy)]
enum ApprovalFrequency {
    EachTime,
    UntilStandingDecision,
}

fn with_approval(lab: &Arc<WorldObserver>, tool: Tool, spec: ApprovalSpec, asked: ApprovalFrequency) -> Tool {
    match (spec, asked) {
        (ApprovalSpec::Never, _) => tool,
        (ApprovalSpec::Always, ApprovalFrequency::UntilStandingDecision) => tool.needs_approval(),
        (ApprovalSpec::Always, ApprovalFrequency::EachTime) => tool.needs_approval_each_time(),
        (ApprovalSpec::Panics, ApprovalFrequency::UntilStandingDecision) => {
            tool.needs_approval_if(|_: &Value| panic_silently())
        }
        (ApprovalSpec::Panics, ApprovalFrequency::EachTime) => {
            tool.needs_approval_each_time_if(|_: &Value| panic_silently())
        }
        (ApprovalSpec::FromArgument(least), asked) => {
            let lab = lab.clone();
            let rule = move |_, arguments: &Value| {
                let asks = arguments.get("n").and_then(Value::as_u64).is_none_or(|n| n >= least);
                let lab = lab.clone();
                async move {
                    lab.random_delay(10).await;
                    asks
                }
            };
            match asked {
                ApprovalFrequency::UntilStandingDecision => tool.needs_approval_if_async(rule),
                ApprovalFrequency::EachTime => tool.needs_approval_each_time_if_async(rule),
            }
        }
    }
}

fn with_reconcile(lab: &Arc<WorldObserver>, tool: Tool, spec: ReconcileSpec) -> Tool {
    let is_honest = match spec {
        ReconcileSpec::None => return tool,
        ReconcileSpec::Honest => true,
        ReconcileSpec::Unknown => false,
    };
    let lab = lab.clone();
    tool.reconcile(move |ctx| {
        let lab = lab.clone();
        async move {
            lab.random_delay(10).await;
            lab.maybe_crash().await;
            match lab.world.count_by_call(ctx.call_path().clone()) {
                _ if !is_honest => ReconcileOutcome::Unknown,
                0 => ReconcileOutcome::NotExecuted,
                _ => ReconcileOutcome::Executed("it had happened".into()),
            }
        }
    })
}

/// The point at which a body fails or panics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyFault {
    NoFault,
    FailsBefore,
    FailsAfter,
    PanicsBefore,
    PanicsAfter,
}

async fn run_tool_body(
    lab: Arc<WorldObserver>,
    spec: Arc<ToolSpec>,
    ctx: ToolContext,
) -> Result<String, ToolError> {
    let _running = lab.begin_body(&spec, &ctx);
    let trouble = draw_fault(&lab, &spec);
    lab.random_delay(spec.latency_ms).await;
    lab.maybe_crash().await;
    let question = PersonQuestion::new("Which?").with_schema(json!({ "enum": ["this", "that"] }));
    if spec.asks_person() && ctx.answer_to(&question).is_none() {
        lab.note_question(&ctx);
        return Err(ToolError::ask_person(question));
    }
    fail_if_due(trouble, BodyFault::FailsBefore, BodyFault::PanicsBefore)?;
    if spec.effect != ToolEffect::Pure {
        lab.record_effect(&spec, &ctx);
    }
    lab.maybe_crash().await;
    lab.random_delay(spec.latency_ms).await;
    if lab.sim.chance(spec.hang_percent) {
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    lab.maybe_crash().await;
    fail_if_due(trouble, BodyFault::FailsAfter, BodyFault::PanicsAfter)?;
    Ok(tool_output(&lab, &spec, &ctx))
}

/// Runs a body on its thread: it takes effect at once. Its time passes in the layer around it, in simulated time.
fn run_blocking_body(
    lab: &Arc<WorldObserver>,
    spec: &ToolSpec,
    ctx: &ToolContext,
) -> Result<String, ToolError> {
    let _running = lab.begin_body(spec, ctx);
    let trouble = draw_fault(lab, spec);
    fail_if_due(trouble, BodyFault::FailsBefore, BodyFault::PanicsBefore)?;
    if spec.effect != ToolEffect::Pure {
        lab.record_effect(spec, ctx);
    }
    fail_if_due(trouble, BodyFault::FailsAfter, BodyFault::PanicsAfter)?;
    Ok(tool_output(lab, spec, ctx))
}

/// Adds the layer around the bodies on threads. The machine waits for the thread within one poll, so that the seed decides
/// what comes after it. Then the call goes on in simulated time, and nobody can stop it: it may be given up on.
pub(crate) fn with_thread_layer(lab: &Arc<WorldObserver>, builder: RunBuilder) -> RunBuilder {
    let lab = lab.clone();
    builder.call_layer(move |ctx: ToolContext, next| {
        let lab = lab.clone();
        let specs = lab.spec.agents.iter().flat_map(|agent| &agent.tools);
        let names = &lab.spec.additions.blocking_tools;
        let mut specs = specs.filter(|spec| names.contains(&spec.name));
        let hangs = specs.find(|spec| *ctx.tool_key().name() == *spec.name).map(|spec| spec.hang_percent);
        async move {
            let Some(hang_percent) = hangs else { return next.run().await };
            let mut thread = pin!(next.run());
            let ended = poll_fn(|cx| {
                loop {
                    if let Poll::Ready(ended) = thread.as_mut().poll(cx) {
                        return Poll::Ready(ended);
                    }
                    std::thread::yield_now();
                }
            })
            .await;
            lab.random_delay(50).await;
            if lab.sim.chance(hang_percent) {
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            ended
        }
    })
}

fn tool_output(lab: &WorldObserver, spec: &ToolSpec, ctx: &ToolContext) -> String {
    let output = format!("{} did {}", spec.name, ctx.arguments());
    match lab.spec.additions.marks_outputs {
        true => format!("{} {output}", output_mark(ctx.call_path())),
        false => output,
    }
}

fn draw_fault(lab: &WorldObserver, spec: &ToolSpec) -> BodyFault {
    if !lab.sim.chance(spec.failure_percent) {
        return BodyFault::NoFault;
    }
    // A retry of a body that has taken effect would repeat it, so the author of an at-most-once tool with
    // `retry` avoids failures after the effect.
    let takes_care = spec.effect == ToolEffect::Once && spec.max_attempts.is_some();
    match lab.sim.draw(|rng| rng.below(4)) {
        0 => BodyFault::FailsBefore,
        1 => BodyFault::PanicsBefore,
        2 if !takes_care => BodyFault::FailsAfter,
        3 if !takes_care => BodyFault::PanicsAfter,
        _ => BodyFault::FailsBefore,
    }
}

fn fail_if_due(trouble: BodyFault, fails: BodyFault, panics: BodyFault) -> Result<(), ToolError> {
    if trouble == panics {
        panic_silently::<()>();
    }
    if trouble == fails { Err(ToolError::visible("it did not work")) } else { Ok(()) }
}

/// Panics without the panic hook: thousands of seeds would flood the output.
fn panic_silently<T>() -> T {
    std::panic::resume_unwind(Box::new("a simulated panic"))
}
