//! Editing of a call's arguments: in the user's editor, or on a line of the terminal that has them already.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_text::escape_json;

use super::SignalCounter;
use crate::cli_error::CliError;
use crate::terminal::{DraftCheck, LinePrompter, PromptInput, Terminal, TextStyle, paint, styled};

/// Opens the arguments in the editor that `VISUAL` or `EDITOR` names and returns the edited text; `None` if the user left
/// it empty. Without an editor, the user edits them on the terminal, where `check` is applied at once.
pub(super) async fn edit_arguments(
    term: &Terminal,
    prompter: &mut LinePrompter,
    signals: &mut SignalCounter,
    arguments: &str,
    check: DraftCheck,
) -> Result<Option<String>, CliError> {
    let indented = serde_json::from_str::<Value>(arguments)
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| arguments.to_owned());
    let edited = match find_editor() {
        Some(editor) => {
            let file = DraftFile::create(&(escape_json(&indented) + "\n"))?;
            let path = file.0.clone();
            let status = tokio::task::spawn_blocking(move || run_editor(&editor, &path)).await;
            // Ctrl-C in the editor was meant for the editor.
            signals.discard_interrupts();
            match status {
                Ok(Ok(true)) => std::fs::read_to_string(&file.0)?,
                Ok(Ok(false)) | Err(_) => return Ok(None),
                Ok(Err(error)) => {
                    term.eprint_line(format!("  the editor cannot be started: {error}"));
                    return Ok(None);
                }
            }
        }
        None if term.can_edit() => {
            term.eprint_line(paint(
                TextStyle::Faint,
                "  Enter takes the arguments, an empty line goes back:",
            ));
            match prompter.edit_draft(term, "  ", &escape_json(arguments), check, signals).await {
                PromptInput::Line(line) => line,
                PromptInput::EndOfInput | PromptInput::Interrupted => return Ok(None),
            }
        }
        None => {
            term.eprint_line(styled!["  ", paint(TextStyle::Faint, escape_json(arguments))]);
            let prompt = "  New arguments, as JSON (Enter to go back): ";
            match prompter.read_line(term, prompt, signals).await {
                PromptInput::Line(line) => line,
                PromptInput::EndOfInput | PromptInput::Interrupted => return Ok(None),
            }
        }
    };
    Ok(Some(edited.trim().to_owned()).filter(|edited| !edited.is_empty()))
}

/// Returns the command line of the user's editor.
fn find_editor() -> Option<String> {
    let named = |variable| std::env::var(variable).ok().filter(|editor| !editor.trim().is_empty());
    named("VISUAL").or_else(|| named("EDITOR"))
}

/// Runs the editor on a file. Its command line may have arguments, so a shell reads it, as Git does.
fn run_editor(editor: &str, path: &Path) -> std::io::Result<bool> {
    let status = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{editor} \"$1\""))
        .arg("windlass")
        .arg(path)
        .status()?;
    Ok(status.success())
}

/// A private temporary file, which is deleted when it is dropped.
struct DraftFile(PathBuf);

impl DraftFile {
    fn create(text: &str) -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("windlass-{}.json", uuid::Uuid::now_v7()));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = Self(path);
        options.open(&file.0)?.write_all(text.as_bytes())?;
        Ok(file)
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        // The file may already be gone.
        let _removed = std::fs::remove_file(&self.0);
    }
}
