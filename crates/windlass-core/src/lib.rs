//! The Windlass core: a run is a deterministic state machine over an append-only journal.
//!
//! **The driver calls [`Run::next`](run::Run::next) only when no requested action is still in progress, executes the returned
//! action, records its result with [`Run::apply`](run::Run::apply), and repeats.** This is the complete contract of a driver.
//!
//! The crate does no I/O, reads no clock and makes no random choice: times, ids and results are inputs,
//! recorded as entries. Replaying the entries of a journal ([`Run::replay`](run::Run::replay)) therefore reconstructs the same
//! run on any machine, and fresh and resumed runs execute the same code.
//!
//! ```
//! use std::sync::Arc;
//! use windlass_core::item::Item;
//! use windlass_core::journal::RunStarted;
//! use windlass_core::run::{Run, RunAction};
//!
//! let run = Run::start(RunStarted {
//!     run: "run-1".into(),
//!     agent: "desk".into(),
//!     history: Default::default(),
//!     input: vec![Arc::new(Item::user("hello"))],
//!     max_turns: Some(10),
//!     session: None,
//!     previous_response_id: None,
//!     key_nonce: None,
//!     origin: None,
//!     build: None,
//!     budget: None,
//!     session_budget: None,
//! });
//! let RunAction::RequestModel { agent, turn } = run.next() else { unreachable!() };
//! assert_eq!((agent.as_str(), turn), ("desk", 1));
//! ```
//!
//! Two invariants hold in every reachable state, and [`Run::apply`](run::Run::apply) refuses entries that would violate them: a
//! call that is rejected or held cannot start; and every call in the history of a settled turn has exactly one
//! output.

pub mod authenticity;
pub mod budget;
pub mod call_map;
pub mod canonical;
pub mod decision;
pub mod failure;
#[cfg(test)]
mod golden;
pub mod history;
pub mod id;
pub mod idempotency;
pub mod inspect;
pub mod item;
pub mod journal;
pub mod plan;
mod plan_format;
pub mod provenance;
pub mod run;
pub mod schema;
mod tagged;
pub mod tool;
pub mod usage;
