//! Drives a run in the terminal: renders its events, prompts for decisions, and cancels on Ctrl-C.

mod argument_editor;
mod call_review;
mod command_rule;
mod decision_prompts;
mod json_output;
mod review_pager;
mod run_renderer;
mod signals;
mod status_label;
mod terminal_renderer;

pub(crate) use call_review::CallReview;
pub(crate) use command_rule::is_command_tool;
pub(crate) use decision_prompts::{choice_prompt, current_user, pending_line};
pub(crate) use json_output::pending_to_json;
pub(crate) use review_pager::{PagerChoice, ReviewPager};
pub(crate) use signals::{SignalCounter, StopSignal};
pub(crate) use status_label::StatusLabel;

use std::sync::Arc;
use std::time::Duration;

use windlass::core::journal::JournalRecord;
use windlass::run::PendingApprovals;
use windlass::{
    agent::Agent,
    error::RunError,
    run::{PausedRun, RunBuilder, RunResult},
    store::SqliteStore,
};

use self::command_rule::CommandRule;
use self::decision_prompts::DecisionRound;
use self::run_renderer::RunRenderer;
use crate::agent_file::AgentFile;
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::{LinePrompter, Terminal};

/// Interval at which the live lines are redrawn.
const FRAME_INTERVAL: Duration = Duration::from_millis(90);
/// Name of the artefact that stores the path of a run's agent file.
pub(crate) const AGENT_PATH_ARTEFACT: &str = ".agent";

/// The approver of calls that need a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApproverMode {
    /// The user at the terminal is prompted.
    Prompt,
    /// Every call that requires approval is approved.
    ApproveAll,
    /// Nobody: the run pauses.
    Defer,
}

/// The driver of one agent's runs.
pub(crate) struct RunDriver {
    term: Terminal,
    pub(crate) file: AgentFile,
    pub(crate) agent: Agent,
    store: Arc<SqliteStore>,
    approver: ApproverMode,
    pub(crate) prompter: LinePrompter,
    pub(crate) signals: SignalCounter,
    /// The user's rules for later commands of a run. They last as long as this process.
    command_rules: Vec<CommandRule>,
}

/// The outcome of driving a run.
pub(crate) enum DriveOutcome {
    /// The run ended, paused or was detached.
    Outcome(Box<RunResult>),
    /// The user interrupted the command. The run is left as a crash would leave it.
    Interrupted,
}

/// The state of the user's request to stop a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopRequest {
    NotRequested,
    ByPerson,
}

impl RunDriver {
    /// Creates the driver of an agent's runs.
    pub(crate) fn new(
        term: &Terminal,
        file: AgentFile,
        agent: Agent,
        store: Arc<SqliteStore>,
        approver: ApproverMode,
    ) -> Result<Self, CliError> {
        Ok(Self {
            term: term.clone(),
            file,
            agent,
            store,
            approver,
            prompter: LinePrompter::spawn_reader(),
            signals: SignalCounter::install()?,
            command_rules: Vec::new(),
        })
    }

    /// Starts or resumes a run and drives it until it ends or nobody decides its pending calls. `known` holds
    /// the records that its journal already has.
    pub(crate) async fn drive_to_outcome(
        &mut self,
        first: RunBuilder,
        known: &[JournalRecord],
    ) -> Result<DriveOutcome, CliError> {
        let mut view = RunRenderer::new(&self.term, known);
        let mut builder = first;
        loop {
            let paused = match self.stream_run(builder, &mut view).await? {
                // A user who stopped the run is not prompted for its pending calls.
                (DriveOutcome::Outcome(outcome), StopRequest::NotRequested) => match *outcome {
                    RunResult::Paused(paused) => paused,
                    other => return Ok(DriveOutcome::Outcome(Box::new(other))),
                },
                (driven, _) => return Ok(driven),
            };
            builder = match self.decide_pending(paused).await? {
                DecisionRound::Resume(paused) => self.build_resumption(paused),
                DecisionRound::StayPaused(paused) => {
                    return Ok(DriveOutcome::Outcome(Box::new(RunResult::Paused(paused))));
                }
            };
        }
    }

    /// Builds the resumption of a paused run.
    fn build_resumption(&self, paused: PausedRun) -> RunBuilder {
        self.file.with_limits(self.agent.resume(paused).store(self.store.clone()))
    }

    async fn stream_run(
        &mut self,
        builder: RunBuilder,
        view: &mut RunRenderer,
    ) -> Result<(DriveOutcome, StopRequest), CliError> {
        // With the path of its agent file, the run can be resumed by its id alone.
        let path = self.file.path().to_string_lossy();
        let mut stream = builder.artefact(AGENT_PATH_ARTEFACT, path.as_bytes()).stream();
        let cancel = stream.cancel_handle();
        let mut frames = tokio::time::interval(FRAME_INTERVAL);
        let mut stopped = StopRequest::NotRequested;
        self.signals.discard_interrupts();
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(event) => {
                        view.render_event(&event);
                    }
                    None => break,
                },
                signal = self.signals.next() => match signal {
                    StopSignal::Interrupt if stopped == StopRequest::ByPerson => {
                        view.finish_output();
                        return Ok((DriveOutcome::Interrupted, stopped));
                    }
                    StopSignal::Interrupt => {
                        stopped = StopRequest::ByPerson;
                        cancel.cancel_with(PendingApprovals::Keep);
                        view.show_stopping();
                    }
                    StopSignal::Terminate => cancel.detach(),
                },
                _ = frames.tick() => view.draw_frame(),
            }
        }
        view.finish_output();
        let outcome = stream.result().await;
        if let Err(RunError::Failed(failed)) = &outcome {
            view.reset_stream(&failed.record);
        }
        let outcome = outcome?;
        view.reset_stream(outcome.record());
        Ok((DriveOutcome::Outcome(Box::new(outcome)), stopped))
    }
}

impl DriveOutcome {
    /// Prints the outcome and returns the exit of the command.
    pub(crate) fn report_outcome(self, term: &Terminal) -> CommandExit {
        run_renderer::report_outcome(term, &self)
    }
}
