//! `windlass forget`: deletes runs by name, or by age and status.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use windlass::core::id::{RunId, Timestamp};
use windlass::store::{RetentionPolicy, RunStatus, Store, apply_retention};

use crate::args::{CliArgs, ForgetArgs, StatusChoice};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &ForgetArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing().await?;
    let forgotten = match asked.older_than {
        Some(max_age) => {
            let mut policy = RetentionPolicy::ended_runs(max_age);
            if !asked.status.is_empty() {
                policy.statuses = asked.status.iter().map(|status| stored_status(*status)).collect();
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
            apply_retention(&*store, &policy, now).await?
        }
        None => forget_named(&*store, &asked.runs).await?,
    };
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "forgotten", "runs": forgotten })),
        OutputFormat::Text => {
            for run in &forgotten {
                term.print_line(format!("run {run} is forgotten"));
            }
            if forgotten.is_empty() {
                term.print_line("no run is that old");
            }
        }
    }
    Ok(CommandExit::Success)
}

/// Forgets runs by their ids. A run that has not ended is forgotten too, unless a process drives it.
async fn forget_named(store: &dyn Store, names: &[String]) -> Result<Vec<RunId>, CliError> {
    // Every name is looked up before anything is deleted.
    let mut found = Vec::new();
    for name in names {
        found.push(find_run(store, Some(name), |_| true).await?);
    }
    let mut forgotten = Vec::new();
    for stored in found {
        let abandoned = stored.lease.as_ref().filter(|lease| lease.is_owner_dead());
        store.forget_run(&stored.run, abandoned).await?;
        forgotten.push(stored.run);
    }
    Ok(forgotten)
}

fn stored_status(choice: StatusChoice) -> RunStatus {
    match choice {
        StatusChoice::Running => RunStatus::Running,
        StatusChoice::Paused => RunStatus::Paused,
        StatusChoice::Finished => RunStatus::Finished,
        StatusChoice::Failed => RunStatus::Failed,
        StatusChoice::Cancelled => RunStatus::Cancelled,
    }
}
