//! `windlass schedule`: runs that are submitted at the times of a calendar.

use serde_json::json;
use windlass::error::StoreError;
use windlass::fleet::{CronTimes, MissedTimes, RunQueue, RunSchedule, RunSubmission, StoredSchedule};
use windlass_text::SafeText;

use super::find_agent;
use super::resume::current_time;
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, MissedChoice, ScheduleAction, ScheduleArgs, ScheduledRunArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Maximum number of missed times that are made up for.
const MAX_MISSED_RUNS: u32 = 100;

pub(crate) async fn run(
    args: &CliArgs,
    asked: &ScheduleArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    match &asked.action {
        ScheduleAction::Add { name, times, missed, submission } => {
            add_schedule(args, term, (name, times, *missed), submission).await
        }
        ScheduleAction::List => {
            let queue = CliProject::from_args(args)?.open_existing().await?;
            list_schedules(term, &*queue).await
        }
        ScheduleAction::Remove { name } => {
            let queue = CliProject::from_args(args)?.open_existing().await?;
            remove_schedule(term, &*queue, name).await
        }
    }
}

async fn add_schedule(
    args: &CliArgs,
    term: &Terminal,
    (name, times, missed): (&str, &CronTimes, MissedChoice),
    asked: &ScheduledRunArgs,
) -> Result<CommandExit, CliError> {
    let file = AgentFile::read(&find_agent(args, Some(&asked.agent))?)?;
    let queue = CliProject::of_agent_file(args, file.path(), term)?.open_or_create().await?;
    let mut submission = RunSubmission::new(name, file.name(), asked.question.as_str())
        .tenant(&asked.tenant)
        .priority(asked.priority);
    if let Some(session) = &asked.session {
        submission = submission.session(session.as_str());
    }
    let schedule = RunSchedule::new(name, times.clone(), submission).missed(match missed {
        MissedChoice::Skip => MissedTimes::Skip,
        MissedChoice::Latest => MissedTimes::RunLatest,
        MissedChoice::All => MissedTimes::RunAll { limit: MAX_MISSED_RUNS },
    });
    let now = current_time();
    queue.save_schedule(&schedule, now).await?;
    let next = times.next_after(now);
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "schedule_added", "name": name, "next": next }));
        }
        OutputFormat::Text => {
            term.print_line(SafeText::from_line(&format!("schedule {name} is saved: {times} (UTC)")));
        }
    }
    Ok(CommandExit::Success)
}

async fn list_schedules(term: &Terminal, queue: &dyn RunQueue) -> Result<CommandExit, CliError> {
    let schedules = queue.list_schedules().await?;
    if schedules.is_empty() && term.output_format() == OutputFormat::Text {
        term.eprint_line("no schedules; `windlass schedule add` adds one");
    }
    for StoredSchedule { name, schedule, covered_until } in schedules {
        let schedule = match schedule {
            Ok(schedule) => schedule,
            Err(error) => {
                print_unreadable(term, &name, &error);
                continue;
            }
        };
        match term.output_format() {
            OutputFormat::Json => term.print_json(&json!({
                "name": schedule.name,
                "times": schedule.times,
                "agent": schedule.submission.agent,
                "missed": schedule.missed,
                "next": schedule.times.next_after(covered_until),
            })),
            OutputFormat::Text => {
                let rest = format!("{}  {}", schedule.times, schedule.submission.agent);
                term.print_line(styled![
                    paint(TextStyle::Name, SafeText::from_words(&schedule.name).truncate(24).pad(16)),
                    "  ",
                    SafeText::from_line(&rest).truncate(term.width().saturating_sub(20)),
                ]);
            }
        }
    }
    Ok(CommandExit::Success)
}

/// Prints a schedule that cannot be read, and is not fired.
fn print_unreadable(term: &Terminal, name: &str, error: &StoreError) {
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "name": name, "error": error.to_string() })),
        OutputFormat::Text => term.print_line(styled![
            paint(TextStyle::Name, SafeText::from_words(name).truncate(24).pad(16)),
            "  ",
            SafeText::from_line(&format!("cannot be read: {error}")),
        ]),
    }
}

async fn remove_schedule(term: &Terminal, queue: &dyn RunQueue, name: &str) -> Result<CommandExit, CliError> {
    if !queue.remove_schedule(name).await? {
        return Err(CliError::not_found(format!("there is no schedule `{name}`"))
            .with_hint("`windlass schedule list` lists the schedules"));
    }
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "schedule_removed", "name": name })),
        OutputFormat::Text => term.print_line(SafeText::from_line(&format!("schedule {name} is removed"))),
    }
    Ok(CommandExit::Success)
}
