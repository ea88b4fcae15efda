//! `windlass restore`: makes a store of a backup, in which calls that may have run since are in doubt.

use serde_json::json;
use windlass::store::{SqliteStore, mark_restored};

use crate::args::{CliArgs, RestoreArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &RestoreArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let place = project.store_place();
    let report = match (&asked.file, place.file()) {
        (Some(backup), Some(path)) => SqliteStore::restore(backup, path).await?,
        (Some(_), None) => {
            return Err(CliError::usage("the store is a database").with_hint(
                "restore it with its own tools, such as pg_restore, and then run `windlass restore` without a file",
            ));
        }
        (None, Some(_)) => mark_restored(&*project.open_existing().await?).await?,
        (None, None) => place.restore_database().await?,
    };
    let count = report.open_runs.len();
    match term.output_format() {
        OutputFormat::Json => {
            let skipped: Vec<_> = report.skipped_schedules.iter().map(|skipped| &skipped.name).collect();
            term.print_json(&json!({
                "type": "restore",
                "open_runs": report.open_runs,
                "buried_runs": report.buried_runs,
                "skipped_schedules": skipped,
            }));
        }
        OutputFormat::Text => {
            term.print_line(format!("{place} is restored; {count} runs were open at the time of the backup"));
            if count > 0 {
                term.eprint_line(
                    "their calls that may have run since are in doubt: `windlass resume` asks about them, and \
                     `windlass settle` answers",
                );
            }
            for run in &report.buried_runs {
                term.eprint_line(format!(
                    "run {run} was submitted before the backup and may have run since: it is a dead letter; if it did \
                     nothing, `windlass fleet revive {run}` makes it ready",
                ));
            }
            for skipped in &report.skipped_schedules {
                term.eprint_line(format!(
                    "schedule {} has skipped its times since the backup: their runs may have been submitted",
                    skipped.name,
                ));
            }
        }
    }
    Ok(CommandExit::Success)
}
