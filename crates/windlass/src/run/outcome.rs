//! What a run came to.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use windlass_core::{AgentName, Entry, HoldReason, Item, Produced, Record, Run, RunId, Usage, lines_to_text};

use super::{Paused, Records, Settlement};

/// What a run came to.
#[derive(Debug)]
pub enum Outcome {
    /// It ended with an output.
    Finished(FinishedRun),
    /// It waits for a person.
    Paused(Paused),
    /// It was cancelled.
    Cancelled(CancelledRun),
    /// It was left in the middle, for another driver to go on with.
    HandedOver(Paused),
}

/// A run that ended with an output.
#[derive(Debug)]
pub struct FinishedRun {
    /// The output: text, or the JSON text of a typed output.
    pub output: String,
    /// What the run did.
    pub record: RunRecord,
}

/// A run that was cancelled.
#[derive(Debug)]
pub struct CancelledRun {
    /// What became of its calls.
    pub settlement: Settlement,
    /// What the run did.
    pub record: RunRecord,
}

impl Outcome {
    /// The final output; empty where the run has none.
    pub fn text(&self) -> &str {
        match self {
            Self::Finished(finished) => &finished.output,
            Self::Paused(_) | Self::Cancelled(_) | Self::HandedOver(_) => "",
        }
    }

    /// The final output as the agent's output type.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// What the run did.
    pub fn record(&self) -> &RunRecord {
        match self {
            Self::Finished(finished) => &finished.record,
            Self::Paused(paused) | Self::HandedOver(paused) => paused.record(),
            Self::Cancelled(cancelled) => &cancelled.record,
        }
    }

    /// The paused run, where it waits for a person.
    pub fn paused(self) -> Option<Paused> {
        match self {
            Self::Paused(paused) => Some(paused),
            Self::Finished(_) | Self::Cancelled(_) | Self::HandedOver(_) => None,
        }
    }

    /// Whether it waits for a person.
    pub fn is_paused(&self) -> bool {
        matches!(self, Self::Paused(_))
    }
}

/// What a run did: its journal, and what that adds up to.
#[derive(Clone, Debug)]
pub struct RunRecord {
    pub(crate) run: Run,
    pub(crate) records: Records,
    pub(crate) usage: Usage,
}

impl RunRecord {
    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        self.run.id()
    }

    /// The agent that was current last.
    pub fn last_agent(&self) -> &AgentName {
        self.run.agent()
    }

    /// What the run cost, nested agents included.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What the run produced, in order; of an open turn, the calls and the outputs that there are.
    pub fn items(&self) -> Vec<Produced> {
        let mut items = self.run.produced().to_vec();
        items.extend(self.run.produced_in_open_turn());
        items
    }

    /// The conversation as the model would see it next. Valid for a provider whenever no turn is open.
    pub fn history(&self) -> &[Arc<Item>] {
        self.run.history()
    }

    /// The journal.
    pub fn journal(&self) -> &[Record] {
        self.records.all()
    }

    /// The journal as text.
    pub fn to_text(&self) -> String {
        lines_to_text(self.records.lines())
    }

    /// The state that the journal adds up to.
    pub fn state(&self) -> &Run {
        &self.run
    }

    /// The calls of this run, not of nested agents, that waited or wait for approval, in order.
    pub fn approvals(&self) -> impl Iterator<Item = &windlass_core::CallId> {
        self.journal().iter().filter(|record| record.path.is_empty()).filter_map(|record| {
            match &record.entry {
                Entry::Held(held) if held.reason == HoldReason::Approval => Some(&held.call),
                _ => None,
            }
        })
    }
}
