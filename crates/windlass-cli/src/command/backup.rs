//! `windlass backup`: copies the store while runs go on.

use serde_json::json;

use crate::args::{BackupArgs, CliArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &BackupArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing_file()?;
    store.backup(&asked.file).await?;
    let size = std::fs::metadata(&asked.file).map(|copy| copy.len()).unwrap_or_default();
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "backup": asked.file, "bytes": size })),
        OutputFormat::Text => {
            term.print_line(format!("{} has a copy of the store, {size} bytes", asked.file.display()));
            term.eprint_line(
                "`windlass restore` makes a store of it: calls that may have run since are in doubt then",
            );
        }
    }
    Ok(CommandExit::Success)
}
