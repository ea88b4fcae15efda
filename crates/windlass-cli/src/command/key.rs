//! `windlass key`: the keys that authenticate decisions.

use serde_json::json;
use windlass::core::authenticity::MacKeyring;

use crate::args::{CliArgs, KeyAction, KeyArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) fn run(args: &CliArgs, asked: &KeyArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let source = project.key_source();
    let keys = match asked.action {
        KeyAction::Show => source.open()?,
        KeyAction::Rotate => Some(source.rotate()?),
    };
    let Some((keys, path)) = keys.as_deref().zip(source.path()) else {
        return Err(CliError::not_found(format!(
            "the store `{}` has no keys",
            project.store_path().display()
        ))
        .with_hint(
            "a store that is named by --store or WINDLASS_STORE has those of --key-file or WINDLASS_KEY_FILE",
        ));
    };
    print_keys(term, keys, path);
    Ok(CommandExit::Success)
}

/// Prints the ids of the keys, and no secret.
fn print_keys(term: &Terminal, keys: &MacKeyring, path: &std::path::Path) {
    match term.output_format() {
        OutputFormat::Json => {
            let earlier: Vec<_> = keys.earlier_ids().collect();
            term.print_json(&json!({ "file": path, "current": keys.current_id(), "earlier": earlier }));
        }
        OutputFormat::Text => {
            term.print_line(format!("the keys are in {}", path.display()));
            term.print_line(format!("  {} makes and verifies MACs", keys.current_id()));
            for id in keys.earlier_ids() {
                term.print_line(format!("  {id} verifies those that it made"));
            }
        }
    }
}
