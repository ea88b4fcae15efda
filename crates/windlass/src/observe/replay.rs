//! The events of a stored run, derived from its records.

use windlass_core::journal::JournalRecord;
use windlass_core::run::{ReplayError, ReplayedRun};

use super::{Observations, RunObserver};
use crate::event::RunEvent;

/// Derives the events of a run from its records, one after the other: those that a watcher of the live run received,
/// each once, without the repetitions after a crash.
///
/// Deltas of the model's text, progress and warnings have no record and are left out. Secrets are placeholders, as in the
/// records.
///
/// ```
/// use windlass::event::{EventReplay, RunEventKind};
/// use windlass::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
/// let mut live = agent.run("Hello").stream();
/// let mut seen = Vec::new();
/// while let Some(event) = live.next().await {
///     if !matches!(event.kind, RunEventKind::TextDelta { .. }) {
///         seen.push(event);
///     }
/// }
/// let result = live.result().await?;
/// assert_eq!(EventReplay::events_of(result.record().journal())?, seen);
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct EventReplay {
    replay: Option<ReplayedRun>,
    observer: RunObserver,
}

impl EventReplay {
    /// Returns the events of all records of a run.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError`] if the records are not those of a run, from the first on.
    pub fn events_of(records: &[JournalRecord]) -> Result<Vec<RunEvent>, ReplayError> {
        let mut replay = Self::default();
        let mut events = Vec::new();
        for record in records {
            events.extend(replay.next_events(record)?);
        }
        Ok(events)
    }

    /// Returns the events of the next record. The first record is the first of the run.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError`] if the record is not the next of the run.
    pub fn next_events(&mut self, record: &JournalRecord) -> Result<Vec<RunEvent>, ReplayError> {
        Ok(self.next_observations(record)?.events)
    }

    /// Returns the observations of the next record.
    pub(super) fn next_observations(&mut self, record: &JournalRecord) -> Result<Observations, ReplayError> {
        let replay = match &mut self.replay {
            Some(replay) => {
                replay.apply_record(record)?;
                replay
            }
            none => none.insert(ReplayedRun::from_first_record(record)?),
        };
        Ok(self.observer.observe(record, &replay.run))
    }

    /// Creates a replay that continues after a snapshot; from the first record on without one.
    pub(super) fn after_snapshot(snapshot: Option<ReplayedRun>) -> Self {
        Self { replay: snapshot, observer: RunObserver::default() }
    }

    pub(super) fn into_observer(self) -> RunObserver {
        self.observer
    }
}

impl std::fmt::Debug for EventReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventReplay").finish_non_exhaustive()
    }
}
