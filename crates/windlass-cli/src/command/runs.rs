//! `windlass runs`: the runs of a project.

use std::time::Duration;

use serde_json::json;
use windlass::store::{RunStatus, Store, StoredRun, paused};

use super::resume::now;
use crate::args::{Args, RunsArgs, StatusChoice};
use crate::live::pending_json;
use crate::problem::{Exit, Problem};
use crate::project::Project;
use crate::term::{Form, Paint, Term, clip, one_line, pad};

pub(crate) async fn run(args: &Args, runs: &RunsArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let mut found = store.runs().await?;
    found.retain(|run| runs.status.is_none_or(|wanted| is(run.status, wanted)));
    let more = found.len().saturating_sub(runs.limit);
    found.truncate(runs.limit);
    match term.form() {
        Form::Json => {
            for run in &found {
                term.say_json(&in_json(&*store, run).await);
            }
        }
        Form::Human if found.is_empty() => term.note("there are no such runs"),
        Form::Human => {
            table(term, &*store, &found).await;
            if more > 0 {
                term.note(format!(
                    "and {more} older ones; `windlass runs -n {}` lists them",
                    runs.limit + more
                ));
            }
        }
    }
    Ok(Exit::Done)
}

fn is(status: RunStatus, wanted: StatusChoice) -> bool {
    matches!(
        (status, wanted),
        (RunStatus::Running, StatusChoice::Running)
            | (RunStatus::Paused, StatusChoice::Paused)
            | (RunStatus::Finished, StatusChoice::Finished)
            | (RunStatus::Failed, StatusChoice::Failed)
            | (RunStatus::Cancelled, StatusChoice::Cancelled)
    )
}

async fn in_json(store: &dyn Store, run: &StoredRun) -> serde_json::Value {
    let pending = match paused(store, &run.run).await {
        Ok(paused) => paused.pending(),
        Err(_) => Vec::new(),
    };
    json!({
        "run": run.run,
        "agent": run.agent,
        "status": state(run),
        "records": run.records,
        "created": run.created,
        "updated": run.updated,
        "owner": run.owner.as_ref().map(|(owner, until)| json!({ "name": owner, "until": until })),
        "pending": pending.iter().map(pending_json).collect::<Vec<_>>(),
    })
}

async fn table(term: &Term, store: &dyn Store, runs: &[StoredRun]) {
    let paint = term.paint_out();
    let longest = |cell: &dyn Fn(&StoredRun) -> usize| runs.iter().map(cell).max().unwrap_or(0);
    let ids = longest(&|run| run.run.as_str().chars().count()).min(24);
    let agents = longest(&|run| run.agent.as_str().chars().count()).min(16);
    for run in runs {
        let (status, meaning) = painted(run);
        let asked = paused(store, &run.run).await.ok().map(|paused| asked(&paused)).unwrap_or_default();
        let age = ago(Duration::from_millis(now().0.saturating_sub(run.updated.0)));
        let id = pad(&clip(run.run.as_str(), ids), ids);
        let agent = pad(&clip(run.agent.as_str(), agents), agents);
        let fixed = ids + agents + 34;
        let asked = clip(&asked, term.width().saturating_sub(fixed));
        term.say(format!(
            "{}  {}  {}  {}  {asked}",
            paint.of(Paint::Name, &id),
            paint.of(meaning, &pad(status, 13)),
            agent,
            paint.of(Paint::Faint, &pad(&age, 11)),
        ));
    }
}

/// What the run was asked.
fn asked(paused: &windlass::Paused) -> String {
    let input = paused.record().state().input().iter().find_map(|item| match &**item {
        windlass::Item::Message(message) => Some(one_line(&message.text())),
        _ => None,
    });
    input.unwrap_or_default()
}

/// The state of a run, as a machine is told it. A run that nobody drives and that has not ended was left behind.
pub(crate) fn state(run: &StoredRun) -> &'static str {
    match run.status {
        RunStatus::Running if is_driven(run) => "running",
        RunStatus::Running => "interrupted",
        RunStatus::Paused => "paused",
        RunStatus::Finished => "finished",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

/// The state of a run in a word for a person, and what it means.
pub(crate) fn painted(run: &StoredRun) -> (&'static str, Paint) {
    match run.status {
        RunStatus::Running if is_driven(run) => ("running", Paint::Name),
        RunStatus::Running => ("interrupted", Paint::Wait),
        RunStatus::Paused => ("waits for you", Paint::Wait),
        RunStatus::Finished => ("finished", Paint::Good),
        RunStatus::Failed => ("failed", Paint::Bad),
        RunStatus::Cancelled => ("cancelled", Paint::Faint),
    }
}

fn is_driven(run: &StoredRun) -> bool {
    run.owner.as_ref().is_some_and(|(_, until)| *until > now())
}

/// How long ago, roughly.
pub(crate) fn ago(age: Duration) -> String {
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}
