//! Drives a run in the terminal: renders its events, prompts for decisions, and cancels on Ctrl-C.

mod argument_editor;
mod call_review;
mod command_rule;
mod decision_prompts;
mod edited_call;
mod evidence_display;
mod json_output;
mod provider_outage;
mod review_pager;
mod run_renderer;
mod signals;
mod status_label;
mod terminal_renderer;

pub(crate) use call_review::CallReview;
pub(crate) use command_rule::is_command_tool;
pub(crate) use decision_prompts::{choice_prompt, current_user, pending_line};
pub(crate) use evidence_display::review_stored_call;
pub(crate) use json_output::pending_to_json;
pub(crate) use review_pager::{PagerChoice, ReviewPager};
pub(crate) use signals::{SignalCounter, StopSignal};
pub(crate) use status_label::StatusLabel;

use std::path::PathBuf;
use std::time::Duration;

use windlass::core::{id::RunId, journal::JournalRecord};
use windlass::run::PendingApprovals;
use windlass::{
    agent::Agent,
    error::RunError,
    run::{PausedRun, RunBuilder, RunResult},
};

use self::command_rule::CommandRule;
use self::decision_prompts::DecisionRound;
use self::provider_outage::ProviderOutage;
use self::run_renderer::RunRenderer;
use crate::agent_file::AgentFile;
use crate::agent_path::{AGENT_PATH_ARTEFACT, encode_agent_path};
use crate::approver_identity::ApproverIdentity;
use crate::cli_error::{CliError, CommandExit};
use crate::store_place::ProjectStore;
use crate::terminal::{LinePrompter, Terminal};

/// Interval at which the live lines are redrawn.
const FRAME_INTERVAL: Duration = Duration::from_millis(90);

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
    store: ProjectStore,
    approver: ApproverMode,
    identity: ApproverIdentity,
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
    /// Creates the driver of an agent's runs. A conversation has a file with the history of its messages.
    pub(crate) fn new(
        term: &Terminal,
        file: AgentFile,
        agent: Agent,
        store: ProjectStore,
        approver: ApproverMode,
        identity: ApproverIdentity,
        history_file: Option<PathBuf>,
    ) -> Result<Self, CliError> {
        Ok(Self {
            term: term.clone(),
            file,
            agent,
            store,
            approver,
            identity,
            prompter: LinePrompter::spawn_reader(history_file),
            signals: SignalCounter::install()?,
            command_rules: Vec::new(),
        })
    }

    /// Starts or resumes a run and drives it until it ends or nobody decides its pending calls. `known` holds
    /// the records that its journal already has.
    pub(crate) async fn drive_to_outcome(
        &mut self,
        run: &RunId,
        first: RunBuilder,
        known: &[JournalRecord],
    ) -> Result<DriveOutcome, CliError> {
        let mut view = RunRenderer::new(&self.term, known);
        let mut builder = first;
        loop {
            let paused = match self.stream_run(run, builder, &mut view).await? {
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
        run: &RunId,
        builder: RunBuilder,
        view: &mut RunRenderer,
    ) -> Result<(DriveOutcome, StopRequest), CliError> {
        // With the path of its agent file, the run can be resumed by its id alone.
        let path = encode_agent_path(run, self.file.path(), self.store.mac_keys().map(|keys| &**keys));
        let mut stream = builder.artefact(AGENT_PATH_ARTEFACT, path).stream();
        let cancel = stream.cancel_handle();
        let mut frames = tokio::time::interval(FRAME_INTERVAL);
        let mut stopped = StopRequest::NotRequested;
        let mut outage = ProviderOutage::default();
        self.signals.discard_interrupts();
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(event) => {
                        outage.observe(&event.kind);
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
                    StopSignal::Terminate => {
                        outage.is_terminated = true;
                        cancel.detach();
                    }
                },
                _ = frames.tick() => view.draw_frame(),
                // The run stays as it is, for `resume`.
                () = outage.wait_longer_than(self.file.provider_wait()) => {
                    outage.is_given_up = true;
                    cancel.detach();
                }
            }
        }
        view.finish_output();
        let outcome = stream.result().await;
        if let Err(RunError::Failed(failed)) = &outcome {
            view.reset_stream(&failed.record);
        }
        let outcome = outcome?;
        if let (RunResult::Detached(left), Some(problem)) = (&outcome, outage.error_of_left_run()) {
            let (run, windlass) = (left.record().run_id(), self.term.command_prefix());
            return Err(CliError::new(format!("the model's provider is away: {problem}"))
                .with_hint(format!(
                    "nothing is lost: `{windlass} resume {run}` goes on where the run stopped"
                ))
                .with_exit(CommandExit::ProviderAway));
        }
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
