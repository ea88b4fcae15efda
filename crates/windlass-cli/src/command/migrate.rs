//! `windlass migrate`: copies the runs, sessions and receipts of one store to another. The queue is not copied.

use serde_json::json;
use windlass::store::migrate_store;

use crate::args::{CliArgs, MigrateArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &MigrateArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    // What is not encrypted in the source is read as it is.
    let source = CliProject::of_store(&asked.from).with_encryption(args).open_existing().await?;
    let target = CliProject::of_store(&asked.to).with_encryption(args).open_or_create().await?;
    let report = migrate_store(&*source, &*target).await.map_err(|error| {
        CliError::new(error.to_string())
            .with_hint("what was copied stays; the same command continues the migration")
    })?;
    let driven = report.driven_runs.iter().map(|run| format!("run {run}"));
    let held = report.held_sessions.iter().map(|session| format!("session {session}"));
    let left: Vec<String> = driven.chain(held).collect();
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "migration",
            "copied_runs": report.copied_runs,
            "known_runs": report.known_runs,
            "driven_runs": report.driven_runs,
            "sessions": report.sessions,
            "held_sessions": report.held_sessions,
            "receipts": report.receipts,
            "artefacts": report.artefacts,
        })),
        OutputFormat::Text => {
            term.print_line(format!(
                "{} has {} runs more, {} were there; {} sessions, {} receipts, {} artefacts",
                CliProject::of_store(&asked.to).store_place(),
                report.copied_runs.len(),
                report.known_runs.len(),
                report.sessions,
                report.receipts,
                report.artefacts,
            ));
            term.eprint_line("drive each run from one of the stores only: both would make the same calls");
        }
    }
    if left.is_empty() {
        return Ok(CommandExit::Success);
    }
    Err(CliError::new(format!("these are being driven and were not copied: {}", left.join(", ")))
        .with_hint("the same command copies them when their drivers have stopped"))
}
