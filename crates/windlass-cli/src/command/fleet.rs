//! `windlass fleet`: the queue and the workers of a store.

use serde_json::json;
use windlass::core::id::RunId;
use windlass::fleet::{AgentRegistry, QueueFilter, QueuedRun, QueuedState, RunQueue, RunVerdict, check_run};
use windlass::store::{LeaseOwner, RunQuery, RunStatus, list_all_runs};
use windlass_text::SafeText;

use super::work::{deploy_agents, read_agents};
use crate::args::{CliArgs, FleetAction, FleetArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Number of queued runs that are loaded at a time.
const PAGE_SIZE: u32 = 500;

pub(crate) async fn run(args: &CliArgs, asked: &FleetArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let queue = project.open_existing().await?;
    match &asked.action {
        FleetAction::Check { agents } => {
            let registry = deploy_agents(&project, &read_agents(args, agents)?, &queue).await?;
            check_runs(term, &*queue, &registry).await
        }
        FleetAction::Queue { limit } => print_queue(term, &*queue, *limit).await,
        FleetAction::Workers => print_workers(term, &*queue).await,
        FleetAction::Revive(selector) => revive_run(term, &*queue, &selector.run).await,
    }
}

/// Checks every unfinished run of the store.
async fn check_runs(
    term: &Terminal,
    store: &dyn RunQueue,
    registry: &AgentRegistry,
) -> Result<CommandExit, CliError> {
    let statuses = vec![RunStatus::Paused, RunStatus::Running];
    let runs = list_all_runs(store, RunQuery { statuses, ..RunQuery::default() }).await?;
    let (mut finishable, mut refused) = (0_u64, 0_u64);
    for stored in &runs {
        let (begun_by, problem) = match check_run(store, &stored.run, registry).await? {
            RunVerdict::Ended => continue,
            RunVerdict::SameBuild => (None, None),
            RunVerdict::OtherBuild { begun_by } => (begun_by, None),
            RunVerdict::CannotFinish { begun_by, reason } => (begun_by, Some(reason)),
        };
        match &problem {
            None => finishable += 1,
            Some(_) => refused += 1,
        }
        let begun_by = begun_by.map(|build| build.to_string());
        match (term.output_format(), problem) {
            (OutputFormat::Json, problem) => term.print_json(&json!({
                "run": stored.run, "agent": stored.agent, "begun_by": begun_by, "problem": problem,
            })),
            (OutputFormat::Text, None) => {}
            (OutputFormat::Text, Some(problem)) => {
                let line = format!("{}  {problem}", stored.run);
                term.print_line(SafeText::from_line(&line).truncate(term.width().saturating_sub(1)));
            }
        }
    }
    if term.output_format() == OutputFormat::Text {
        term.eprint_line(format!("{finishable} unfinished runs can be finished, {refused} cannot"));
    }
    if refused == 0 {
        return Ok(CommandExit::Success);
    }
    if term.output_format() == OutputFormat::Text {
        term.eprint_hint("keep workers of the build that began them until they have ended, or cancel them");
    }
    Ok(CommandExit::Failure)
}

/// Returns the submitted run with this id or unique id prefix that has not ended.
pub(crate) async fn find_queued_run(
    queue: &dyn RunQueue,
    named: &str,
) -> Result<Option<QueuedRun>, CliError> {
    if let Some(exact) = queue.load_queued_run(&RunId::from(named)).await? {
        return Ok(Some(exact).filter(|queued| queued.state != QueuedState::Ended));
    }
    let mut found = None;
    let mut after: Option<RunId> = None;
    loop {
        let page = queue.list_queued_runs(QueueFilter::Open, after.as_ref(), PAGE_SIZE).await?;
        let Some(last) = page.last() else { return Ok(found) };
        after = Some(last.submission.run.clone());
        for queued in page.into_iter().filter(|queued| queued.submission.run.as_str().starts_with(named)) {
            if let Some(other) = &found {
                let QueuedRun { submission, .. } = other;
                return Err(CliError::usage(format!("several run ids begin with `{named}`")).with_hint(
                    format!(
                        "for example `{}` and `{}`; type more characters",
                        submission.run, queued.submission.run
                    ),
                ));
            }
            found = Some(queued);
        }
    }
}

async fn print_queue(term: &Terminal, queue: &dyn RunQueue, limit: usize) -> Result<CommandExit, CliError> {
    let page = u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX);
    let mut runs = queue.list_queued_runs(QueueFilter::Open, None, page).await?;
    let has_more = runs.len() > limit;
    runs.truncate(limit);
    match term.output_format() {
        OutputFormat::Json => runs.iter().for_each(|queued| term.print_json(&queued_to_json(queued))),
        OutputFormat::Text if runs.is_empty() => term.eprint_line("the queue is empty"),
        OutputFormat::Text => {
            runs.iter().for_each(|queued| print_queued_run(term, queued));
            if has_more {
                term.eprint_line(format!(
                    "more than {limit} runs; `windlass fleet queue -n COUNT` lists more"
                ));
            }
        }
    }
    Ok(CommandExit::Success)
}

fn print_queued_run(term: &Terminal, queued: &QueuedRun) {
    let (state, style) = match &queued.state {
        QueuedState::Ready => ("ready", TextStyle::Name),
        QueuedState::Waiting { .. } => ("waits", TextStyle::Faint),
        QueuedState::Taken { .. } => ("running", TextStyle::Name),
        QueuedState::Parked { .. } => ("waits for you", TextStyle::Waiting),
        QueuedState::Ended => ("ended", TextStyle::Success),
        QueuedState::DeadLetter => ("dead letter", TextStyle::Failure),
    };
    let mut details = vec![queued.submission.agent.to_string()];
    if !queued.submission.tenant.is_empty() {
        details.push(format!("tenant {}", queued.submission.tenant));
    }
    if queued.attempt > 0 {
        details.push(format!("attempt {} of {}", queued.attempt, queued.submission.max_attempts));
    }
    details.extend(queued.reason.clone());
    details.extend(
        queued.declined_by.iter().map(|(build, reason)| {
            format!("declined by build {}: {reason}", build.get(..12).unwrap_or(build))
        }),
    );
    let details = SafeText::from_line(&details.join(" · "));
    term.print_line(styled![
        paint(TextStyle::Name, SafeText::from_words(queued.submission.run.as_str()).truncate(24).pad(12)),
        "  ",
        paint(style, SafeText::from_words(state).pad(13)),
        "  ",
        details.truncate(term.width().saturating_sub(32)),
    ]);
}

fn queued_to_json(queued: &QueuedRun) -> serde_json::Value {
    let (state, time, worker) = match &queued.state {
        QueuedState::Ready => ("ready", None, None),
        QueuedState::Waiting { until } => ("waiting", Some(*until), None),
        QueuedState::Taken { worker } => ("taken", None, Some(worker)),
        QueuedState::Parked { wake_at } => ("parked", *wake_at, None),
        QueuedState::Ended => ("ended", None, None),
        QueuedState::DeadLetter => ("dead_letter", None, None),
    };
    let declined: Vec<_> = queued
        .declined_by
        .iter()
        .map(|(build, reason)| json!({ "build": build, "reason": reason }))
        .collect();
    json!({
        "run": queued.submission.run,
        "agent": queued.submission.agent,
        "tenant": queued.submission.tenant,
        "priority": queued.submission.priority,
        "state": state,
        "wakes_at": time,
        "worker": worker,
        "attempt": queued.attempt,
        "max_attempts": queued.submission.max_attempts,
        "reason": queued.reason,
        "declined_by": declined,
    })
}

async fn print_workers(term: &Terminal, queue: &dyn RunQueue) -> Result<CommandExit, CliError> {
    let workers = queue.list_workers().await?;
    if workers.is_empty() && term.output_format() == OutputFormat::Text {
        term.eprint_line("no workers; `windlass work` starts one");
    }
    for lease in workers {
        let owner = LeaseOwner::parse(&lease.owner);
        match term.output_format() {
            OutputFormat::Json => term.print_json(&json!({
                "worker": lease.owner,
                "process": owner.as_ref().map(LeaseOwner::pid),
                "host": owner.as_ref().map(LeaseOwner::host),
                "last_seen": lease.renewed_at,
                "is_dead": lease.is_owner_dead(),
            })),
            OutputFormat::Text => {
                let process = match &owner {
                    Some(owner) if owner.host().is_empty() => format!("process {}", owner.pid()),
                    Some(owner) => format!("process {} on {}", owner.pid(), owner.host()),
                    None => lease.owner.clone(),
                };
                let end = if lease.is_owner_dead() { ", which has died" } else { "" };
                term.print_line(SafeText::from_line(&format!("{process}{end}")));
            }
        }
    }
    Ok(CommandExit::Success)
}

async fn revive_run(term: &Terminal, queue: &dyn RunQueue, named: &str) -> Result<CommandExit, CliError> {
    let queued = find_queued_run(queue, named).await?.ok_or_else(|| {
        CliError::not_found(format!("there is no run `{named}` in the queue"))
            .with_hint("`windlass fleet queue` lists the submitted runs")
    })?;
    let run = &queued.submission.run;
    queue.revive_run(run).await?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "revived", "run": run })),
        OutputFormat::Text => term.print_line(format!("run {run} is ready again")),
    }
    Ok(CommandExit::Success)
}
