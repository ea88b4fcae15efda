//! `windlass cancel`: cancels a run that no process is executing, or orders the cancellation of a submitted run.

use serde_json::json;
use windlass::core::id::{CallId, RunId};
use windlass::fleet::{QueueOrder, RunQueue};
use windlass::model::ScriptedModel;
use windlass::store::load_paused;
use windlass::{agent::Agent, run::RunResult};

use super::fleet::find_queued_run;
use super::resume::wait_for_lease;
use crate::args::{CliArgs, RunSelector};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::store_place::{ProjectStore, session_in_store};
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    cancel: &RunSelector,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing().await?;
    if let Some(queued) = find_queued_run(&*store, &cancel.run).await? {
        return order_cancellation(term, &*store, &queued.submission.run).await;
    }
    let stored = find_run(&*store, Some(&cancel.run), |_| true).await?;
    let run = &stored.run;
    let doubt = cancel_stored_run(term, &store, run).await?;
    let doubt: Vec<&str> = doubt.iter().map(|call| call.as_str()).collect();
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "run_cancelled", "run": run, "in_doubt": doubt }))
        }
        OutputFormat::Text if doubt.is_empty() => term.print_line(format!("run {run} is cancelled")),
        OutputFormat::Text => {
            term.print_line(format!("run {run} is cancelled; calls in doubt: {}", doubt.join(", ")));
        }
    }
    Ok(CommandExit::Success)
}

/// Cancels a run that no process executes, and returns its calls in doubt.
pub(super) async fn cancel_stored_run(
    term: &Terminal,
    store: &ProjectStore,
    run: &RunId,
) -> Result<Vec<CallId>, CliError> {
    let known = load_paused(&**store, run).await?;
    if known.record().outline().outcome().is_some() {
        return Err(CliError::usage(format!("run {run} has already ended"))
            .with_hint("`windlass show` shows how it ended"));
    }
    let observer = wait_for_lease(term, &**store, run).await?;
    // Neither the model nor a tool is called, so the agent needs only its name.
    let agent = Agent::new(known.record().outline().agent().clone()).model(ScriptedModel::new([]));
    let mut builder = agent.recover(run.clone(), store.clone()).lease_observer(&observer);
    if let Some(session) = known.record().outline().session() {
        builder = builder.session(&session_in_store(session.as_str(), store)?);
    }
    builder.cancel_handle().cancel();
    match builder.await? {
        RunResult::Cancelled(cancelled) => Ok(cancelled.settlement.in_doubt),
        _ => Err(CliError::new(format!("run {run} ended before it could be cancelled"))
            .with_hint("`windlass show` shows how it ended")),
    }
}

/// Posts the order to cancel a submitted run. The worker that has the run carries it out, or the next one that takes it.
async fn order_cancellation(
    term: &Terminal,
    queue: &dyn RunQueue,
    run: &RunId,
) -> Result<CommandExit, CliError> {
    queue.post_order(run, &QueueOrder::Cancel).await?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "cancel_ordered", "run": run })),
        OutputFormat::Text => term.print_line(format!("a worker cancels run {run}")),
    }
    Ok(CommandExit::Success)
}
