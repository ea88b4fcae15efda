//! The pure heart of Windlass: a run is a state machine over an append-only journal.
//!
//! **Ask [`Run::next`] only when nothing that it asked for is still under way; carry out what it says;
//! record what came of it with [`Run::apply`]; ask again.** That is the whole contract of a driver.
//!
//! The crate does no I/O, reads no clock and makes no random choice: times, ids and results come in as
//! entries. So replaying the entries of a journal ([`Run::replay`]) gives the same run again, on any machine,
//! and whatever is true of a fresh run is true of a resumed one: they are the same code.
//!
//! ```
//! use windlass_core::{Entry, Next, Run, Started};
//!
//! let mut run = Run::start(Started {
//!     run: "run-1".into(),
//!     agent: "desk".into(),
//!     history: vec![],
//!     input: vec![std::sync::Arc::new(windlass_core::Item::user("hello"))],
//!     max_turns: Some(10),
//!     session: None,
//!     origin: None,
//! });
//! let Next::Model { agent, turn } = run.next() else { unreachable!() };
//! assert_eq!((agent.as_str(), turn), ("desk", 1));
//! ```
//!
//! Two rules hold in every state that can be reached, and [`Run::apply`] refuses what would break them: a call
//! that was rejected, or that waits for a decision, cannot start; and every call in the history of a settled
//! turn has exactly one output.

mod calls;
mod canonical;
mod decision;
mod entry;
mod failure;
#[cfg(test)]
mod golden;
mod id;
mod item;
mod plan;
mod rewrite;
mod run;
mod saved;
mod scan;
pub mod schema;
pub mod time;
mod tool;
mod usage;

pub use calls::CallMap;
pub use canonical::{Digest, canonical};
pub use decision::{Decision, HoldReason, Pending, Question, Reach, Reply, Standing, StandingVerdict};
pub use entry::{
    AfterTools, AnswerRefused, Answered, CallEndedLate, CallSettled, CallStarted, Cancelled, Decided, Entry,
    Failed, Finished, HandedOff, Held, How, InputAdded, ModelFailed, Origin, Record, Revoked, Started,
};
pub use failure::Failure;
pub use id::{AgentName, CallId, CallPath, RunId, SessionId, Timestamp};
pub use item::{
    Call, CallKind, Carried, Content, Handoff, Item, Media, Message, Output, OutputContent, OutputStatus,
    Reasoning, Role,
};
pub use plan::{BodyKind, FoundTool, Lookup, Misbehaviour, Plan, Planned, Unfit, Work, call_digest, plan};
pub use rewrite::{canonical_text, with_canonical_text};
pub use run::{
    Applied, Candidate, CandidateSource, Doubt, End, GateStep, Illegal, InvalidStep, Next, Part, Produced,
    Replay, ReplayError, Run, Runnable, SettleStep, Step, TurnResult, text,
};
pub use saved::{Chain, FORMAT_VERSION, Line, SavedError, from_text, lines_to_text, read_lines, to_text};
pub use tool::{Effect, Gate, ToolKey};
pub use usage::Usage;
