//! A run, driven and shown: events as they come, questions as they arise, and a stop on Ctrl-C.

mod decide;
mod human;
mod json;
mod signals;
mod view;

pub(crate) use decide::{pending_line, person};
pub(crate) use json::pending as pending_json;
pub(crate) use signals::{Signal, Signals};

use std::sync::Arc;
use std::time::Duration;

use windlass::core::{Record, RunId};
use windlass::run::Approvals;
use windlass::store::Store;
use windlass::{Agent, Outcome, Paused, RunBuilder, RunError, SqliteStore};

use self::decide::Decided;
use self::view::View;
use crate::agent_file::AgentFile;
use crate::problem::{Exit, Problem};
use crate::term::{Asker, Term};

/// How often what moves on the screen is drawn again.
const FRAME: Duration = Duration::from_millis(90);
/// The name under which a run's store keeps which file its agent came from.
pub(crate) const AGENT_NOTE: &str = ".agent";

/// Who answers where a call needs a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The person at the terminal.
    Ask,
    /// Yes, to every call that asks for approval.
    Yes,
    /// Nobody: the run waits.
    Leave,
}

/// Drives runs of one agent.
pub(crate) struct Driving {
    pub(crate) term: Term,
    pub(crate) file: AgentFile,
    pub(crate) agent: Agent,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) answers: Answers,
    pub(crate) asker: Asker,
    pub(crate) signals: Signals,
}

/// What driving came to.
pub(crate) enum Driven {
    /// The run came to this.
    Outcome(Box<Outcome>),
    /// The person left at once. The run is as a crash would leave it.
    Left,
}

/// Whether a person stopped what was watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    No,
    ByPerson,
}

impl Driving {
    /// Begins a run, or goes on with one, and sees it through as far as it goes here. `known` is what its journal
    /// holds already.
    pub(crate) async fn see_through(
        &mut self,
        run: &RunId,
        first: RunBuilder,
        known: &[Record],
    ) -> Result<Driven, Problem> {
        let mut view = View::new(&self.term, known);
        let mut builder = first;
        loop {
            let paused = match self.watch(run, builder, &mut view).await? {
                // A person who stops a run that waits wants to be asked later.
                (Driven::Outcome(outcome), Stopped::No) => match *outcome {
                    Outcome::Paused(paused) => paused,
                    other => return Ok(Driven::Outcome(Box::new(other))),
                },
                (driven, _) => return Ok(driven),
            };
            builder = match self.decide(paused).await? {
                Decided::GoOn(paused) => self.resumed(paused),
                Decided::Wait(paused) => return Ok(Driven::Outcome(Box::new(Outcome::Paused(paused)))),
            };
        }
    }

    /// A paused run of this agent, to be gone on with.
    fn resumed(&self, paused: Paused) -> RunBuilder {
        self.file.limited(self.agent.resume(paused).store(self.store.clone()))
    }

    async fn watch(
        &mut self,
        run: &RunId,
        builder: RunBuilder,
        view: &mut View,
    ) -> Result<(Driven, Stopped), Problem> {
        let mut stream = builder.stream();
        let cancel = stream.cancel();
        let mut frames = tokio::time::interval(FRAME);
        let mut is_noted = false;
        let mut stopped = Stopped::No;
        self.signals.forget();
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(event) => {
                        if !is_noted {
                            is_noted = true;
                            self.note_agent(run).await?;
                        }
                        view.event(&event);
                    }
                    None => break,
                },
                signal = self.signals.next() => match signal {
                    Signal::Interrupt if stopped == Stopped::ByPerson => {
                        view.rest();
                        return Ok((Driven::Left, stopped));
                    }
                    Signal::Interrupt => {
                        stopped = Stopped::ByPerson;
                        cancel.now_with(Approvals::Keep);
                        view.stopping();
                    }
                    Signal::Terminate => cancel.hand_over(),
                },
                _ = frames.tick() => view.frame(),
            }
        }
        view.rest();
        let outcome = stream.outcome().await;
        if let Err(RunError::Failed(failed)) = &outcome {
            view.ended(&failed.record);
        }
        let outcome = outcome?;
        view.ended(outcome.record());
        Ok((Driven::Outcome(Box::new(outcome)), stopped))
    }

    /// Notes which file the agent came from, so that the run can be gone on with by its id alone.
    async fn note_agent(&self, run: &RunId) -> Result<(), Problem> {
        let path = self.file.path().to_string_lossy();
        Ok(self.store.keep_artefact(run, AGENT_NOTE, &path).await?)
    }
}

impl Driven {
    /// Tells how it ended, and what the command's exit code is.
    pub(crate) fn told(self, term: &Term) -> Exit {
        view::told(term, &self)
    }
}
