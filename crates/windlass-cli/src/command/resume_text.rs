//! `windlass resume FILE`: continues a run from its text.
//!
//! **Invariant:** no decision of a text that cannot be verified is carried out unless the user accepts all of them, at
//! the terminal or by a flag.

use std::path::Path;

use windlass::core::inspect::audit_records;
use windlass::core::journal::JournalEntry;
use windlass::run::{PausedRun, TextAuthenticity};

use super::run::announce_run;
use super::{build_driver, find_agent};
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, ResumeArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::run_driver::{SignalCounter, choice_prompt};
use crate::terminal::{LinePrompter, PromptInput, Terminal, styled};

/// Resumes the run of a text in the store of the agent's project.
pub(crate) async fn run(
    args: &CliArgs,
    resume: &ResumeArgs,
    path: &Path,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::new(format!("`{}` cannot be read: {error}", path.display())))?;
    let named = find_agent(args, resume.agent.as_deref())?;
    let file = AgentFile::read(&named)?;
    let project = CliProject::of_agent_file(args, file.path(), term)?;
    let paused = match project.key_source().open()? {
        Some(keys) => PausedRun::from_text_with_keys(&text, keys),
        None => PausedRun::from_text(&text),
    };
    let paused = paused.map_err(|error| {
        CliError::new(format!("{}: {error}", path.display())).with_exit(CommandExit::CorruptJournal)
    })?;
    if paused.record().outline().outcome().is_some() {
        return Err(CliError::usage(format!("run {} has ended", paused.record().run_id())));
    }
    let approvers = project.approvers()?;
    if let Some(approvers) = &approvers {
        let (run, records) = (paused.record().run_id(), paused.record().journal());
        approvers.verify_records(run, records).map_err(|error| {
            CliError::new(format!("{}: {error}", path.display())).with_exit(CommandExit::CorruptJournal)
        })?;
    }
    // The signatures of approvers vouch for decisions as well as a MAC does.
    if approvers.is_none() && !accept_decisions(&paused, resume, path, term).await? {
        term.eprint_line("nothing was executed");
        return Ok(CommandExit::WaitingForPerson);
    }
    let store = project.open_or_create().await?;
    let mut driving = build_driver(term, file, &project, store.clone(), &resume.drive).await?;
    announce_run(term, &driving.file, paused.record().run_id(), resume.drive.model.as_deref());
    let known = paused.record().journal().to_vec();
    let run = paused.record().run_id().clone();
    let builder = driving.file.with_limits(driving.agent.resume(paused).store(store));
    let driven = driving.drive_to_outcome(&run, builder, &known).await?;
    Ok(driven.report_outcome(term))
}

/// Asks whether the decisions of a text that cannot be verified count. A text without decisions needs no answer.
async fn accept_decisions(
    paused: &PausedRun,
    resume: &ResumeArgs,
    path: &Path,
    term: &Terminal,
) -> Result<bool, CliError> {
    let reason = match paused.text_authenticity() {
        Some(TextAuthenticity::Verified { .. }) => return Ok(true),
        Some(TextAuthenticity::NoMac) => "it has no MAC".to_owned(),
        Some(TextAuthenticity::UnknownKey { key }) => {
            format!("its MAC is of the key {key}, which is not here")
        }
        Some(_) | None => "there is no key".to_owned(),
    };
    let records = paused.record().journal();
    let is_decision = |entry: &JournalEntry| matches!(entry, JournalEntry::DecisionRecorded(_));
    if resume.trust_text || !records.iter().any(|record| is_decision(&record.entry)) {
        return Ok(true);
    }
    let shown = path.display();
    if !term.can_prompt() {
        return Err(CliError::usage(format!("the decisions in `{shown}` cannot be verified: {reason}"))
            .with_hint("pass --trust-text if you know who wrote the file"));
    }
    term.eprint_line(format!("The decisions in `{shown}` cannot be verified: {reason}. Somebody decided:"));
    for decision in audit_records(records) {
        term.eprint_line(format!("  {decision}"));
    }
    let mut signals = SignalCounter::install()?;
    let mut prompter = LinePrompter::spawn_reader(None);
    let prompt = styled!["  Go on with them? ", choice_prompt(&[("y", "es"), ("n", "o")]), " "];
    match prompter.read_decision(term, prompt, &mut signals).await {
        PromptInput::Line(line) => Ok(["y", "yes"].contains(&line.trim().to_lowercase().as_str())),
        PromptInput::EndOfInput | PromptInput::Interrupted => Ok(false),
    }
}
