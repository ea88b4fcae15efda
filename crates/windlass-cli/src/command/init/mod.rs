//! `windlass init`: makes a folder an agent with the user's own model, and shows a read, an approved edit, and a resume
//! after a crash.

mod first_steps;
mod model_choice;

use std::path::Path;

use serde_json::json;

use self::first_steps::FirstSteps;
use self::model_choice::{FoundModels, ModelChoice, ModelOrigin, find_models};
use super::quote_toml;
use crate::args::{CliArgs, InitArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::AGENT_FILE;
use crate::run_driver::SignalCounter;
use crate::shell_words::shell_path;
use crate::terminal::{LinePrompter, OutputFormat, PromptInput, Terminal, TextStyle, paint, styled};

const AGENT_TEMPLATE: &str = include_str!("agent.toml.in");
const SCRIPT: &str = include_str!("script.toml");
/// Name of the file with the answers of the scripted model.
const SCRIPT_FILE: &str = "scripted-answers.toml";
/// Name of the file that the agent reads and changes.
const STEPS_FILE: &str = "first-steps.md";
const STEPS: &str = include_str!("first-steps.md");

/// The hint if neither a key nor a server was found.
const NOTHING_FOUND: &str = "no API key and no local server was found. Set the key of a provider (`windlass models` lists \
                             them) or start ollama; until then the answers can come from a file";

pub(crate) async fn run(args: &CliArgs, init: &InitArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let folder = &init.folder;
    let agent_file = folder.join(AGENT_FILE);
    if agent_file.exists() {
        return Err(CliError::usage(format!("`{}` exists already", agent_file.display()))
            .with_hint("`windlass chat` talks to this agent; `windlass doctor` checks its setup"));
    }
    let choice = match &init.model {
        Some(model) => ModelChoice { model: model.clone(), origin: ModelOrigin::Named },
        None => choose_model(term, find_models().await).await?,
    };
    write_files(folder, &choice)?;
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "init", "file": agent_file, "model": choice.model }));
        }
        OutputFormat::Text => print_choice(term, folder, &choice),
    }
    if init.no_tour || !term.can_prompt() {
        print_next_steps(term, folder);
        return Ok(CommandExit::Success);
    }
    let exit = FirstSteps::new(args, term, folder, choice.is_scripted())?.show().await?;
    print_next_steps(term, folder);
    Ok(exit)
}

/// Lets the user choose a model. Without a terminal the first one is taken, and without any the scripted one.
async fn choose_model(term: &Terminal, found: FoundModels) -> Result<ModelChoice, CliError> {
    let FoundModels { choices: mut found, unnamed } = found;
    let scripted = ModelChoice { model: format!("scripted:{SCRIPT_FILE}"), origin: ModelOrigin::Scripted };
    let is_none_found = found.is_empty() && unnamed.is_empty();
    found.push(scripted.clone());
    if !term.can_prompt() {
        if is_none_found && term.output_format() == OutputFormat::Text {
            term.eprint_hint(NOTHING_FOUND);
        }
        return Ok(found.into_iter().next().unwrap_or(scripted));
    }
    if is_none_found {
        term.eprint_hint(NOTHING_FOUND);
    }
    term.eprint_line(paint(TextStyle::Title, "Which model shall the agent use?"));
    for (place, choice) in found.iter().enumerate() {
        let origin = paint(TextStyle::Faint, choice.origin.words());
        term.eprint_line(styled![
            "  ",
            paint(TextStyle::Title, (place + 1).to_string()),
            format!("  {}  ", choice.model),
            origin,
        ]);
    }
    for provider in unnamed {
        let line = format!("  {provider} is set up too: type `{provider}:` and the name of your deployment");
        term.eprint_line(paint(TextStyle::Faint, line));
    }
    let mut signals = SignalCounter::install()?;
    let mut prompter = LinePrompter::spawn_reader(None);
    loop {
        let prompt = "  Number, or another `provider:model` (Enter for 1) › ";
        let line = match prompter.read_line(term, prompt, &mut signals).await {
            PromptInput::Line(line) => line,
            PromptInput::EndOfInput | PromptInput::Interrupted => {
                term.eprint_blank();
                return Err(CliError::new("no model was chosen, and nothing was written")
                    .with_exit(CommandExit::Cancelled));
            }
        };
        let line = line.trim();
        let place = if line.is_empty() { Some(1) } else { line.parse::<usize>().ok() };
        match place.map(|place| found.get(place.wrapping_sub(1))) {
            Some(Some(choice)) => return Ok(choice.clone()),
            None if line.contains(':') => match check_model(line) {
                Ok(()) => return Ok(ModelChoice { model: line.to_owned(), origin: ModelOrigin::Named }),
                Err(problem) => term.report_error(&problem),
            },
            Some(None) | None => term.eprint_line(format!("  type a number from 1 to {}", found.len())),
        }
    }
}

/// Checks that a model that the user named can be created. No request is sent.
#[cfg(feature = "models")]
fn check_model(named: &str) -> Result<(), CliError> {
    crate::agent_file::model::network_model(named, &Default::default()).map(drop)
}

#[cfg(not(feature = "models"))]
fn check_model(_: &str) -> Result<(), CliError> {
    Ok(())
}

fn write_files(folder: &Path, choice: &ModelChoice) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| write_error(folder, &error))?;
    let name = folder.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let agent = AGENT_TEMPLATE
        .replace("{{name}}", &quote_toml(&name.unwrap_or_else(|| "agent".to_owned())))
        .replace("{{model}}", &quote_toml(&choice.model));
    let mut files = vec![(AGENT_FILE, agent), (STEPS_FILE, STEPS.to_owned())];
    if choice.is_scripted() {
        files.push((SCRIPT_FILE, SCRIPT.to_owned()));
    }
    for (name, text) in files {
        let path = folder.join(name);
        // A file of the user's with this name stays as it is.
        let created = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        match created.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(write_error(&path, &error)),
        }
    }
    Ok(())
}

fn write_error(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("`{}` cannot be written: {error}", path.display()))
}

fn print_choice(term: &Terminal, folder: &Path, choice: &ModelChoice) {
    let file = folder.join(AGENT_FILE);
    term.eprint_line(styled![
        paint(TextStyle::Success, "✓"),
        format!(" {}: reads files, and asks you before it changes one", file.display()),
    ]);
    let model = format!(" {} ({})", choice.model, choice.origin.words());
    term.eprint_line(styled![paint(TextStyle::Success, "✓"), model]);
    if choice.is_scripted() {
        term.eprint_hint(
            "another model is one line: `model` in the agent file; `windlass models` lists the providers",
        );
    }
}

fn print_next_steps(term: &Terminal, folder: &Path) {
    if term.output_format() != OutputFormat::Text {
        return;
    }
    let shown = shell_path(folder);
    term.eprint_blank();
    term.eprint_line(paint(TextStyle::Title, "Next"));
    for (command, about) in [
        (format!("windlass chat {shown}"), "a conversation with the agent"),
        (format!("windlass run {shown} \"a question\""), "one question"),
        (format!("windlass tools {shown}"), "its tools, and which of them ask you"),
        ("windlass new my-agent".to_owned(), "an agent as a Rust program"),
    ] {
        term.eprint_line(styled![format!("  {command}  "), paint(TextStyle::Faint, format!("# {about}"))]);
    }
}
