//! The first steps with a new agent: a read, an edit that waits for approval, a crash, and the resume that asks again.
//!
//! Each step runs the real command in a process of its own.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use windlass::core::id::RunId;
use windlass::store::{RunQuery, RunStatus, list_all_runs};

use super::{AGENT_FILE, STEPS_FILE};
use crate::args::CliArgs;
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::terminal::{Terminal, TextStyle, paint, styled};

const QUESTION: &str = "Read first-steps.md. Then tick its open box, by changing `[ ]` to `[x]`. Then say in one sentence what you did.";
/// Interval at which the store is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which the question is shown before the process is killed.
const KILL_DELAY: Duration = Duration::from_millis(1_500);

/// The tour of a new agent.
pub(super) struct FirstSteps<'a> {
    args: &'a CliArgs,
    term: &'a Terminal,
    folder: &'a Path,
    project: CliProject,
    is_scripted: bool,
}

impl<'a> FirstSteps<'a> {
    pub(super) fn new(
        args: &'a CliArgs,
        term: &'a Terminal,
        folder: &'a Path,
        is_scripted: bool,
    ) -> Result<Self, CliError> {
        let project = CliProject::of_agent_file(args, &folder.canonicalize()?.join(AGENT_FILE), term)?;
        Ok(Self { args, term, folder, project, is_scripted })
    }

    /// Shows the steps. A model that does not do what it is asked ends the tour early.
    pub(super) async fn show(&self) -> Result<CommandExit, CliError> {
        let run = new_run_id();
        let model = if self.is_scripted { "the scripted model" } else { "your model" };
        self.print_heading("1", &format!("The agent reads a file, and {model} asks to change it"));
        let mut child =
            self.start(&["run", &self.folder.to_string_lossy(), QUESTION, "--run-id", run.as_str()])?;
        if !self.wait_until_asked(&mut child, &run).await? {
            return self.explain_end(child.wait()?.code());
        }
        tokio::time::sleep(KILL_DELAY).await;
        if let Some(status) = child.try_wait()? {
            return self.explain_end(status.code());
        }
        let process = child.id();
        child.kill()?;
        child.wait()?;
        self.term.eprint_blank();
        self.print_heading("2", "The process is killed while it waits for you");
        self.term.eprint_labelled(styled![
            "  ",
            paint(TextStyle::Failure, "✗"),
            format!(" process {process} is dead: killed with kill -9, which no program can catch"),
        ]);
        self.print_heading("3", "Another process goes on from the journal, and asks you again");
        let folder = self.folder.to_string_lossy();
        let mut child = self.start(&["-C", &folder, "resume", run.as_str()])?;
        self.explain_end(child.wait()?.code())
    }

    /// Waits until the run waits for a person. Returns false if its process has ended.
    async fn wait_until_asked(&self, child: &mut Child, run: &RunId) -> Result<bool, CliError> {
        let store = self.project.open_or_create().await?;
        loop {
            let paused = RunQuery { statuses: vec![RunStatus::Paused], ..RunQuery::default() };
            if list_all_runs(&*store, paused).await?.iter().any(|stored| stored.run == *run) {
                return Ok(true);
            }
            if child.try_wait()?.is_some() {
                return Ok(false);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Says what the file shows, whatever the model claims.
    fn explain_end(&self, code: Option<i32>) -> Result<CommandExit, CliError> {
        let is_ticked =
            std::fs::read_to_string(self.folder.join(STEPS_FILE)).is_ok_and(|text| !text.contains("[ ]"));
        self.term.eprint_blank();
        match (code, is_ticked) {
            (Some(0), true) => self.term.eprint_line(styled![
                paint(TextStyle::Success, "✓"),
                format!(" the box in {STEPS_FILE} is ticked: the change happened once, after you approved it"),
            ]),
            (Some(0), false) => self.term.eprint_line(format!(
                "– {STEPS_FILE} is unchanged: the call was not approved, or the model did not make it. Small models often \
                 do not call tools"
            )),
            (Some(3), _) => self.term.eprint_line("– the change waits for you; `windlass resume` asks again"),
            _ => {
                self.term.eprint_line("– the run did not finish; the message above says why");
                self.term.eprint_hint("`windlass doctor` checks the setup, and `windlass resume` goes on with the run");
                return Ok(CommandExit::Failure);
            }
        }
        Ok(CommandExit::Success)
    }

    fn start(&self, words: &[&str]) -> Result<Child, CliError> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        if let Some(store) = &self.args.store {
            command.arg("--store").arg(store);
        }
        if let Some(keys) = &self.args.key_file {
            command.arg("--key-file").arg(keys);
        }
        let child = command.args(words).spawn();
        child.map_err(|error| CliError::new(format!("a second process cannot be started: {error}")))
    }

    fn print_heading(&self, number: &str, title: &str) {
        self.term.eprint_blank();
        self.term.eprint_line(styled![paint(TextStyle::Hint, number), " ", paint(TextStyle::Title, title)]);
    }
}
