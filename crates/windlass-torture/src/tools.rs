//! The tools of the tested agents. Their bodies act on the outside world, and on nothing else.

use std::time::Duration;

use serde_json::Value;
use windlass::core::decision::PersonQuestion;
use windlass::core::item::OutputContent;
use windlass::core::tool::ToolEffect;
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::tool::{ReceiptPolicy, ReceiptScope, ReconcileOutcome, Tool, ToolContext, ToolError};
use windlass_sim::SimRng;

use crate::deployment::{
    BaseArguments, BuildArguments, CallArguments, DeepenedArguments, ExtendedArguments, RewordedArguments,
    WorkerBuild,
};
use crate::order::RunOrder;
use crate::outside::{EffectReply, FenceRule, LedgerEffect, OutsideWorld};
use crate::plant::PlantedBug;

/// The context of the tools of a run.
pub struct TortureContext {
    /// The order that the run carries out.
    pub order: RunOrder,
    /// The outside world.
    pub world: OutsideWorld,
    /// Name of this process, for the ledger.
    pub actor: String,
}

/// Time after which the receipts of the tool `expiring_key` expire.
pub(crate) const RECEIPT_EXPIRY: Duration = Duration::from_millis(150);

/// The tools of a process: of one build, and with a bug if one is planted.
#[derive(Clone, Copy, Debug)]
pub struct ToolDeployment {
    /// The build.
    pub build: WorkerBuild,
    /// The planted bug.
    pub planted: Option<PlantedBug>,
}

/// Returns the text of a successful call.
pub fn success_text(run: &str, call: &str) -> String {
    format!("did {call} of {run}")
}

/// Returns the question that the tool `question` asks.
pub fn torture_question(what: &str) -> PersonQuestion {
    PersonQuestion::new(format!("What about {what}?"))
}

/// Creates the tools of an agent.
pub fn build_tools(deployment: ToolDeployment, names: &[&str]) -> Vec<Tool<TortureContext>> {
    let build = deployment.build;
    let create = match build {
        WorkerBuild::Base | WorkerBuild::Reduced => create_tool::<BaseArguments>,
        WorkerBuild::Reworded => create_tool::<RewordedArguments>,
        WorkerBuild::Extended => create_tool::<ExtendedArguments>,
        WorkerBuild::Deepened => create_tool::<DeepenedArguments>,
    };
    let is_there = |name: &&&str| !(build == WorkerBuild::Reduced && **name == "legacy");
    names.iter().filter(is_there).map(|name| create(name, deployment)).collect()
}

fn create_tool<A: BuildArguments>(name: &str, deployment: ToolDeployment) -> Tool<TortureContext> {
    let ToolDeployment { build, planted } = deployment;
    let description = match build {
        WorkerBuild::Reworded => "Carries something out, in other words.",
        _ => "Does something.",
    };
    let receipts = |scope| match (planted, scope) {
        (Some(PlantedBug::SharedKeys), ReceiptScope::Run) => {
            ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None }
        }
        _ => ReceiptPolicy { scope, expire_after: None },
    };
    let once = || {
        Tool::function(name, description, |ctx, arguments: A| act_once(ctx, arguments.into_call()))
            .effect(ToolEffect::Once)
    };
    let idempotent = |scope| {
        Tool::function(name, description, move |ctx, arguments: A| {
            transfer(ctx, scope, arguments.into_call())
        })
        .effect(ToolEffect::Idempotent)
        .receipt_policy(receipts(scope))
    };
    match name {
        "once" if planted == Some(PlantedBug::BlindRetries) => {
            once().reconcile(|_| async { ReconcileOutcome::NotExecuted })
        }
        "once" => once().reconcile(reconcile_by_ledger),
        "guarded" => once().reconcile(reconcile_by_ledger).output_guardrail(passing_guardrail()),
        "gated" => once().needs_approval().reconcile(shut_out_earlier_drivers),
        "key" => idempotent(ReceiptScope::Run),
        "gated_key" => idempotent(ReceiptScope::Run).needs_approval(),
        "session_key" => idempotent(ReceiptScope::Session),
        "store_key" => idempotent(ReceiptScope::Store),
        "expiring_key" => {
            let policy = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: Some(RECEIPT_EXPIRY) };
            idempotent(ReceiptScope::Store).receipt_policy(policy)
        }
        "look" => Tool::function(name, description, |_, arguments: A| async move {
            Ok::<_, ToolError>(format!("saw {}", arguments.into_call().what))
        })
        .effect(ToolEffect::Pure),
        "question" => {
            Tool::function(name, description, |ctx, arguments: A| ask_and_act(ctx, arguments.into_call()))
                .effect(ToolEffect::Once)
                .reconcile(shut_out_earlier_drivers)
        }
        // `asked` and `legacy`: a person settles the calls that are in doubt.
        _ => once().reconcile(shut_out_earlier_drivers),
    }
}

/// Records an effect that must happen once.
async fn act_once(ctx: ToolContext<TortureContext>, arguments: CallArguments) -> Result<String, ToolError> {
    let effect = describe_effect(&ctx, &arguments, None);
    act(&ctx, &effect).await
}

/// Asks a person, and records an effect with the answer.
async fn ask_and_act(
    ctx: ToolContext<TortureContext>,
    arguments: CallArguments,
) -> Result<String, ToolError> {
    let question = torture_question(&arguments.what);
    let Some(answer) = ctx.answer_to(&question).cloned() else { return Err(ToolError::ask_person(question)) };
    let effect = describe_effect(&ctx, &arguments, Some(answer.clone()));
    Ok(format!("{}; answer {answer}", act(&ctx, &effect).await?))
}

async fn act(ctx: &ToolContext<TortureContext>, effect: &LedgerEffect) -> Result<String, ToolError> {
    pause(ctx, effect, "before").await;
    // No await inside: a body that is aborted has had its effect or will not have it.
    match ctx.app().world.record_effect(effect)? {
        EffectReply::Done => {}
        EffectReply::StaleFence => return Err(ToolError::visible("this driver was replaced")),
    }
    pause(ctx, effect, "after").await;
    Ok(success_text(&effect.run, &effect.call))
}

/// Transfers money at the bank, which honours the idempotency key.
async fn transfer(
    ctx: ToolContext<TortureContext>,
    scope: ReceiptScope,
    arguments: CallArguments,
) -> Result<String, ToolError> {
    let effect = describe_effect(&ctx, &arguments, None);
    pause(&ctx, &effect, "before").await;
    let operation = operation_name(&ctx.app().order, scope, &effect.agent, &effect.tool, &effect.arguments);
    ctx.app().world.transfer(&effect, operation)?;
    pause(&ctx, &effect, "after").await;
    Ok(format!("transferred {}", arguments.what))
}

/// Returns the identity of an idempotent operation, as its user understands it: equal operations have one effect.
pub fn operation_name(
    order: &RunOrder,
    scope: ReceiptScope,
    agent: &str,
    tool: &str,
    arguments: &Value,
) -> String {
    let scope = match scope {
        ReceiptScope::Call | ReceiptScope::Run => format!("run {}", order.run),
        ReceiptScope::Session => format!("session {}", order.session.as_deref().unwrap_or_default()),
        ReceiptScope::Store => "store".to_owned(),
    };
    format!("{scope}: {agent} {tool} {arguments}")
}

fn describe_effect(
    ctx: &ToolContext<TortureContext>,
    arguments: &CallArguments,
    answer: Option<Value>,
) -> LedgerEffect {
    LedgerEffect {
        tool: ctx.tool_key().name().to_owned(),
        run: ctx.app().order.run.clone(),
        call: ctx.call_path().to_string(),
        agent: ctx.agent().to_string(),
        key: ctx.idempotency_key(),
        fence: ctx.fence(),
        arguments: arguments.to_json(),
        answer,
        actor: ctx.app().actor.clone(),
    }
}

/// Waits for some milliseconds, so that kills and freezes fall into bodies, too. Many a body waits for long before it
/// acts: contenders then try all runs while it lasts, with their clocks at several settings. Where processes freeze, leases
/// are short, and so are the bodies: a busy machine must not take every run from its driver.
async fn pause(ctx: &ToolContext<TortureContext>, effect: &LedgerEffect, place: &str) {
    let mut rng = SimRng::for_purpose(0, &format!("{place} {} {}", effect.run, effect.call));
    let is_long = rng.chance(if place == "before" { 60 } else { 5 });
    let has_long_leases = ctx.app().world.fence_rule() == FenceRule::Ignore;
    let longest = if is_long && has_long_leases { 400_000 } else { 12_000 };
    tokio::time::sleep(Duration::from_micros(rng.below(longest))).await;
}

/// Asks the ledger about a call in doubt.
async fn reconcile_by_ledger(ctx: ToolContext<TortureContext>) -> ReconcileOutcome {
    let call = ctx.call_path().to_string();
    match has_effect(&ctx) {
        Ok(true) => {
            ReconcileOutcome::Executed(OutputContent::from(success_text(&ctx.app().order.run, &call)))
        }
        Ok(false) => ReconcileOutcome::NotExecuted,
        Err(_) => ReconcileOutcome::Unknown,
    }
}

/// Leaves a call in doubt to a person. Where fences count, the drivers before this one are shut out first: otherwise
/// a frozen one could act after the person has looked.
async fn shut_out_earlier_drivers(ctx: ToolContext<TortureContext>) -> ReconcileOutcome {
    if ctx.app().world.fence_rule() == FenceRule::RefuseStale {
        has_effect(&ctx).ok();
    }
    ReconcileOutcome::Unknown
}

fn has_effect(ctx: &ToolContext<TortureContext>) -> std::io::Result<bool> {
    let TortureContext { order, world, .. } = &**ctx.app();
    world.has_effect(order, &ctx.idempotency_key(), Some(ctx.fence()))
}

/// Creates a guardrail that passes every output, after a while: the output is withheld meanwhile.
fn passing_guardrail() -> ToolOutputGuardrail<TortureContext> {
    ToolOutputGuardrail::new("slow", |_: ToolContext<TortureContext>, _| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(ToolGuardrailVerdict::Allow)
    })
}
