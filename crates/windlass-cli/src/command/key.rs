//! `windlass key`: the keys that authenticate decisions, and the user's own key that signs them.

use serde_json::json;
use windlass::core::authenticity::MacKeyring;

use crate::approver_identity::{approver_key_path, open_signer};
use crate::args::{CliArgs, KeyAction, KeyArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::run_driver::current_user;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) fn run(args: &CliArgs, asked: &KeyArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    if asked.action == KeyAction::Approver {
        return print_approver_key(term);
    }
    let project = CliProject::from_args(args)?;
    let source = project.key_source();
    let keys = match asked.action {
        KeyAction::Rotate => Some(source.rotate()?),
        KeyAction::Show | KeyAction::Approver => source.open()?,
    };
    let Some((keys, path)) = keys.as_deref().zip(source.path()) else {
        return Err(CliError::not_found(format!(
            "the store `{}` has no keys",
            project.store_place()
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

/// Prints the public half of the user's own key, and creates the key if there is none.
fn print_approver_key(term: &Terminal) -> Result<CommandExit, CliError> {
    let path = approver_key_path()?;
    let signer = open_signer(&path)?;
    let (key, name) = (signer.key(), current_user());
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "file": path, "key": key, "name": name })),
        OutputFormat::Text => {
            term.print_line(format!("your key is in {}; keep it to yourself", path.display()));
            term.print_line("an agent.toml with these lines lets your signature count:");
            term.print_line("");
            term.print_line("[approvers]");
            term.print_line(format!("{} = \"{key}\"", toml_key(&name)));
        }
    }
    Ok(CommandExit::Success)
}

/// Returns a name as a key of a TOML table.
fn toml_key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { json!(name).to_string() }
}
