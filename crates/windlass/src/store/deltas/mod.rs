//! The deltas of model responses, for followers in other processes.
//!
//! Invariant: deltas are a preview, and nothing depends on them. A driver writes them only while somebody follows its run,
//! never waits for them, and may leave some out; the journal has every response that is complete. The deltas of a response
//! that a follower reads have no gap and begin with its first one.

mod delta_feed;
mod delta_relay;
mod follower_registry;

use serde::{Deserialize, Serialize};
use windlass_core::id::{CallId, RunId};

pub use self::delta_feed::{DeltaFeed, DeltaOrigin};
pub(crate) use self::delta_relay::{DeltaRelay, RelayedResponse};
pub use self::follower_registry::FollowerRegistry;
use super::{Lease, StoreFuture};
use crate::event::RunEventKind;

/// The part of a store that carries deltas between processes. The suite in [`crate::testing`] checks the contract.
///
/// Everything in it is transient: a store may lose it in a crash.
pub trait DeltaStore: Send + Sync {
    /// Returns what this process knows about followers.
    fn followers(&self) -> &FollowerRegistry;

    /// Replaces the runs that a follower follows, and increments its beat. A follower without runs is removed.
    fn renew_follower<'a>(&'a self, follower: &'a str, runs: Vec<RunId>) -> StoreFuture<'a, ()>;

    /// Lists all followers. Those of processes that have ended stay until somebody removes them.
    fn list_followers(&self) -> StoreFuture<'_, Vec<StoredFollower>>;

    /// Removes a follower, unless it was renewed since it had this beat.
    fn remove_follower<'a>(&'a self, follower: &'a str, beat: u64) -> StoreFuture<'a, ()>;

    /// Writes a batch of deltas, and removes the batches of earlier epochs and those of this epoch before `first_kept`.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if the lease was
    /// taken over: no delta of an earlier driver follows those of a later one.
    fn publish_deltas<'a>(
        &'a self,
        lease: &'a Lease,
        batch: DeltaBatch,
        first_kept: u64,
    ) -> StoreFuture<'a, ()>;

    /// Loads the batches of a run after a position, in order; all of them without a position.
    fn load_deltas<'a>(
        &'a self,
        run: &'a RunId,
        after: Option<DeltaPosition>,
    ) -> StoreFuture<'a, Vec<DeltaBatch>>;

    /// Removes the batches of a run up to an epoch.
    fn remove_deltas<'a>(&'a self, run: &'a RunId, epoch: u64) -> StoreFuture<'a, ()>;
}

/// A follower as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFollower {
    /// Name of the follower, unique among all processes.
    pub name: String,
    /// Number of renewals. Whoever observes it decides on its own clock whether the follower still lives.
    pub beat: u64,
    /// The runs that it follows.
    pub runs: Vec<RunId>,
}

/// The place of a batch among those of its run: first by the epoch of the driver, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeltaPosition {
    /// Epoch of the lease under which the batch was written.
    pub epoch: u64,
    /// Number of the batch in this epoch.
    pub number: u64,
}

/// Some deltas of a run that were written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaBatch {
    /// The place of the batch.
    pub position: DeltaPosition,
    /// The deltas, as JSON.
    pub body: String,
}

/// A delta of a response that a model is writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDelta {
    /// Epoch of the lease of the driver that requested the response. A higher one voids the deltas of lower ones.
    #[serde(skip)]
    pub epoch: u64,
    /// Number of the response among those of the driver.
    pub response: u64,
    /// Number of the delta in the response, from 0 on.
    pub index: u64,
    /// Sequence number of the last record before the model was requested. A later record of the same path that ends the
    /// request supersedes the delta.
    pub base: u64,
    /// Calls that lead to the nested agent of the response; empty for the outer run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<CallId>,
    /// The text and its kind.
    #[serde(flatten)]
    pub content: DeltaContent,
}

/// The text of a delta, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeltaContent {
    /// A part of the response's text.
    Text(String),
    /// A part of the reasoning that may be shown.
    Reasoning(String),
    /// A part of a call's arguments.
    Arguments {
        /// Id of the call.
        call: CallId,
        /// The part.
        delta: String,
    },
    /// The deltas of the response before this one are void.
    Discarded,
}

impl DeltaContent {
    /// Returns the content of an event; `None` if it is no delta.
    pub(crate) fn of_event(kind: &RunEventKind) -> Option<Self> {
        match kind {
            RunEventKind::TextDelta { delta } => Some(Self::Text(delta.clone())),
            RunEventKind::ReasoningDelta { delta } => Some(Self::Reasoning(delta.clone())),
            RunEventKind::ArgumentsDelta { call, delta } => {
                Some(Self::Arguments { call: call.clone(), delta: delta.clone() })
            }
            RunEventKind::DeltasDiscarded => Some(Self::Discarded),
            _ => None,
        }
    }

    pub(crate) fn into_event(self) -> RunEventKind {
        match self {
            Self::Text(delta) => RunEventKind::TextDelta { delta },
            Self::Reasoning(delta) => RunEventKind::ReasoningDelta { delta },
            Self::Arguments { call, delta } => RunEventKind::ArgumentsDelta { call, delta },
            Self::Discarded => RunEventKind::DeltasDiscarded,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Arguments { delta: text, .. } => text,
            Self::Discarded => "",
        }
    }

    /// Appends a later delta of the same kind. Returns it if it is of another kind.
    fn append(&mut self, later: Self) -> Option<Self> {
        match (self, later) {
            (Self::Text(text), Self::Text(more)) | (Self::Reasoning(text), Self::Reasoning(more)) => {
                text.push_str(&more);
                None
            }
            (Self::Arguments { call, delta }, Self::Arguments { call: of, delta: more }) if *call == of => {
                delta.push_str(&more);
                None
            }
            (_, later) => Some(later),
        }
    }
}

/// The body of a batch.
#[derive(Serialize, Deserialize)]
struct BatchBody {
    /// Id of the publishing process's registry.
    publisher: String,
    deltas: Vec<LiveDelta>,
}
