//! `windlass approve`, `reject`, `answer` and `settle`: decisions from any terminal. They are posted to the
//! store, and the driver of the run applies them.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason, PendingCall},
    id::CallPath,
    item::OutputContent,
};
use windlass::store::{RunStatus, StoredRun, load_paused, post_decision};
use windlass::{run::PausedRun, store::SqliteStore};

use super::resume::resume_run;
use super::runs::status_name;
use crate::args::{AnswerArgs, ApproveArgs, CliArgs, DriveArgs, PendingCallArgs, RejectArgs, SettleArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::run_driver::{current_user, pending_line};
use crate::terminal::{OutputFormat, Terminal, TextStyle};

pub(crate) async fn approve(
    args: &CliArgs,
    approve: &ApproveArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let decision = match &approve.arguments {
        Some(arguments) => Decision::ApproveEdited { arguments: canonical_object(arguments)? },
        None => Decision::Approve,
    };
    decide_call(args, &approve.pending_call, needs_approval, decision, decision_scope(approve.always), term)
        .await
}

pub(crate) async fn reject(
    args: &CliArgs,
    reject: &RejectArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let decision = Decision::Reject { message: reject.because.clone() };
    decide_call(args, &reject.pending_call, needs_approval, decision, decision_scope(reject.always), term)
        .await
}

pub(crate) async fn answer(
    args: &CliArgs,
    answer: &AnswerArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let AnswerArgs { run, call, value, by, resume } = answer;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value.as_str()));
    let about =
        PendingCallArgs { run: Some(run.clone()), call: Some(call.clone()), by: by.clone(), resume: *resume };
    let is_question = |pending: &PendingCall| matches!(pending.reason, HoldReason::Question(_));
    decide_call(args, &about, is_question, Decision::Answer { value }, DecisionScope::ThisCall, term).await
}

pub(crate) async fn settle(
    args: &CliArgs,
    settle: &SettleArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let decision = match (&settle.settlement.happened, settle.settlement.did_not_happen) {
        (Some(output), _) => Decision::ConfirmExecuted { output: OutputContent::from(output.as_str()) },
        (None, true) => Decision::ConfirmNotExecuted,
        (None, false) => Decision::OutcomeUnknown,
    };
    let is_in_doubt = |pending: &PendingCall| pending.reason == HoldReason::InDoubt;
    decide_call(args, &settle.pending_call, is_in_doubt, decision, DecisionScope::ThisCall, term).await
}

fn needs_approval(pending: &PendingCall) -> bool {
    pending.reason == HoldReason::Approval
}

fn decision_scope(always: bool) -> DecisionScope {
    if always { DecisionScope::ToolForRun } else { DecisionScope::ThisCall }
}

fn canonical_object(text: &str) -> Result<String, CliError> {
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) => Ok(windlass::core::canonical::canonical_json(&value)),
        _ => Err(CliError::usage("the arguments are not a JSON object")
            .with_hint("write them as '{\"path\": \"notes.md\"}'")),
    }
}

/// Posts a decision about a pending call, and resumes the run if requested.
async fn decide_call(
    args: &CliArgs,
    about: &PendingCallArgs,
    fits: impl Fn(&PendingCall) -> bool,
    decision: Decision,
    reach: DecisionScope,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing()?;
    let waits = |run: &StoredRun| run.status == RunStatus::Paused;
    let stored = find_run(&*store, about.run.as_deref(), waits).await?;
    let known = load_paused(&*store, &stored.run).await?;
    let call = select_call(&known, about.call.as_deref(), fits)?;
    let by = about.by.clone().unwrap_or_else(current_user);
    post_decision(&*store, &stored.run, call.clone(), decision.clone(), reach, by.clone()).await?;
    let run = &stored.run;
    match term.output_format() {
        OutputFormat::Json => term.print_json(
            &json!({ "type": "decision_posted", "run": run, "call": call.to_string(), "decision": decision, "decided_by": by }),
        ),
        OutputFormat::Text => {
            let mark = term.stdout_colour().paint(TextStyle::Success, "✓");
            term.print_line(format!("{mark} {by} decided call {call} of run {run}"));
        }
    }
    if about.resume {
        return resume_here(args, term, store, &stored).await;
    }
    if term.output_format() == OutputFormat::Text && status_name(&stored) != "running" {
        let hint = term.stderr_colour().paint(TextStyle::Hint, "hint:");
        term.eprint_line(format!("{hint} `windlass resume {run}` resumes the run"));
    }
    Ok(CommandExit::Success)
}

/// Resumes the run in this process.
async fn resume_here(
    args: &CliArgs,
    term: &Terminal,
    store: Arc<SqliteStore>,
    run: &StoredRun,
) -> Result<CommandExit, CliError> {
    let drive = DriveArgs { model: None, yes: false, no_input: false };
    resume_run(args, term, store, &run.run, None, &drive).await
}

/// Returns the call with this id; without one, the only pending call that `fits`.
fn select_call(
    known: &PausedRun,
    named: Option<&str>,
    fits: impl Fn(&PendingCall) -> bool,
) -> Result<CallPath, CliError> {
    if let Some(named) = named {
        return Ok(named.into());
    }
    let pending: Vec<PendingCall> = known.pending_calls().into_iter().filter(fits).collect();
    match pending.as_slice() {
        [only] => Ok(only.path.clone()),
        [] => Err(CliError::not_found(format!("run {} has no such pending call", known.record().run_id()))
            .with_hint("`windlass show` lists the pending calls")),
        several => {
            let lines: Vec<String> =
                several.iter().map(|call| format!("\n  {}", pending_line(call, 100))).collect();
            Err(CliError::usage(format!("several calls are pending:{}", lines.concat()))
                .with_hint("give the id of the call after the run"))
        }
    }
}
