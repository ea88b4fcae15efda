//! `windlass runs`: lists the runs of a project.

use std::time::Duration;

use serde_json::json;
use windlass::price::PriceList;
use windlass::store::{
    LeaseOwner, RunQuery, RunStatus, Store, StoredLease, StoredRun, list_all_runs, load_paused,
};

use super::resume::current_time;
use crate::agent_path::agent_file_of_run;
use crate::args::{CliArgs, RunsArgs, StatusChoice};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::run_driver::pending_to_json;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};
use windlass_text::SafeText;

pub(crate) async fn run(args: &CliArgs, runs: &RunsArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let store = project.open_existing().await?;
    let mut found = list_all_runs(&*store, RunQuery::default()).await?;
    found.retain(|run| runs.status.is_none_or(|wanted| matches_status(run.status, wanted)));
    let more = found.len().saturating_sub(runs.limit);
    found.truncate(runs.limit);
    match term.output_format() {
        OutputFormat::Json => {
            for run in &found {
                term.print_json(&run_to_json(&project, &*store, run).await);
            }
        }
        OutputFormat::Text if found.is_empty() => term.eprint_line("no matching runs"),
        OutputFormat::Text => {
            print_table(term, &*store, &found).await;
            if more > 0 {
                term.eprint_line(format!(
                    "{more} older runs not shown; `windlass runs -n {}` lists them",
                    runs.limit + more
                ));
            }
        }
    }
    Ok(CommandExit::Success)
}

fn matches_status(status: RunStatus, wanted: StatusChoice) -> bool {
    matches!(
        (status, wanted),
        (RunStatus::Running, StatusChoice::Running)
            | (RunStatus::Paused, StatusChoice::Paused)
            | (RunStatus::Finished, StatusChoice::Finished)
            | (RunStatus::Failed, StatusChoice::Failed)
            | (RunStatus::Cancelled, StatusChoice::Cancelled)
    )
}

async fn run_to_json(project: &CliProject, store: &dyn Store, run: &StoredRun) -> serde_json::Value {
    // The costs can be read without the agent file: then they are in the currency of the shipped prices.
    let file = agent_file_of_run(project, store, &run.run).await.ok().flatten();
    let currency = file.map_or_else(|| PriceList::shipped().currency.clone(), |file| file.currency());
    let (pending, usage) = match load_paused(store, &run.run).await {
        Ok(paused) => (paused.pending_calls(), Some(*paused.record().usage())),
        Err(_) => (Vec::new(), None),
    };
    json!({
        "run": run.run,
        "agent": run.agent,
        "status": status_name(run),
        "records": run.record_count,
        "created": run.created_at,
        "updated": run.updated_at,
        "owner": run.lease.as_ref().map(lease_to_json),
        "pending": pending.iter().map(pending_to_json).collect::<Vec<_>>(),
        "usage": usage,
        "cost": usage.and_then(|usage| usage.describe_cost(&currency)),
    })
}

async fn print_table(term: &Terminal, store: &dyn Store, runs: &[StoredRun]) {
    let longest = |cell: &dyn Fn(&StoredRun) -> usize| runs.iter().map(cell).max().unwrap_or(0);
    let ids = longest(&|run| run.run.as_str().chars().count()).min(24);
    let agents = longest(&|run| run.agent.as_str().chars().count()).min(16);
    for run in runs {
        let known = load_paused(store, &run.run).await.ok();
        let (status, meaning) = match &known {
            Some(known) if is_decided(run, known) => ("decided", TextStyle::Name),
            Some(_) | None => status_label(run),
        };
        let asked = known.as_ref().map(first_message).unwrap_or_default();
        let cost =
            known.as_ref().map(|known| known.record().usage()).filter(|usage| usage.priced_requests > 0);
        let more = cost.map(|usage| if usage.unpriced_requests() > 0 { "+" } else { "" }).unwrap_or_default();
        let cost = cost.map(|usage| format!("${:.4}{more}", usage.cost())).unwrap_or_default();
        let age = format_age(Duration::from_millis(current_time().0.saturating_sub(run.updated_at.0)));
        let id = SafeText::from_words(run.run.as_str()).truncate(ids).pad(ids);
        let agent = SafeText::from_words(run.agent.as_str()).truncate(agents).pad(agents);
        let fixed = ids + agents + 45;
        let asked = asked.truncate(term.width().saturating_sub(fixed));
        term.print_line(styled![
            paint(TextStyle::Name, id),
            "  ",
            paint(meaning, SafeText::from_words(status).pad(13)),
            "  ",
            agent,
            "  ",
            paint(TextStyle::Faint, SafeText::from_words(&age).pad(11)),
            "  ",
            paint(TextStyle::Faint, SafeText::from_words(&cost).pad(9)),
            "  ",
            asked,
        ]);
    }
}

/// Returns true if the run waits for no further person: a decision is posted about each of its pending calls.
fn is_decided(run: &StoredRun, known: &windlass::run::PausedRun) -> bool {
    let pending = known.pending_calls();
    run.status == RunStatus::Paused && !pending.is_empty() && pending.iter().all(|call| call.posted.is_some())
}

/// Returns the first message of the run's input.
fn first_message(paused: &windlass::run::PausedRun) -> SafeText {
    let input = paused.record().state().input().iter().find_map(|item| match &**item {
        windlass::core::item::Item::Message(message) => Some(SafeText::from_words(&message.text())),
        _ => None,
    });
    input.unwrap_or_default()
}

/// Returns the status of a run for JSON output. An unfinished run without a live lease is `interrupted`.
pub(crate) fn status_name(run: &StoredRun) -> &'static str {
    match run.status {
        RunStatus::Running if has_live_lease(run) => "running",
        RunStatus::Running => "interrupted",
        RunStatus::Paused => "paused",
        RunStatus::Finished => "finished",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

/// Returns the status of a run for people, and its text style.
pub(crate) fn status_label(run: &StoredRun) -> (&'static str, TextStyle) {
    match run.status {
        RunStatus::Running if has_live_lease(run) => ("running", TextStyle::Name),
        RunStatus::Running => ("interrupted", TextStyle::Waiting),
        RunStatus::Paused => ("waits for you", TextStyle::Waiting),
        RunStatus::Finished => ("finished", TextStyle::Success),
        RunStatus::Failed => ("failed", TextStyle::Failure),
        RunStatus::Cancelled => ("cancelled", TextStyle::Faint),
    }
}

/// True if a driver holds the run and has not provably died. No clock is asked: it may be wrong.
fn has_live_lease(run: &StoredRun) -> bool {
    run.lease.as_ref().is_some_and(|lease| !lease.is_owner_dead())
}

fn lease_to_json(lease: &StoredLease) -> serde_json::Value {
    let owner = LeaseOwner::parse(&lease.owner);
    json!({
        "name": lease.owner,
        "process": owner.as_ref().map(LeaseOwner::pid),
        "host": owner.as_ref().map(LeaseOwner::host),
        "epoch": lease.epoch,
        "last_seen": lease.renewed_at,
        "is_dead": lease.is_owner_dead(),
    })
}

/// Formats an age approximately.
pub(crate) fn format_age(age: Duration) -> String {
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}
