//! The parts of the torture: competing workers, a decider, an outside world that records effects, a torturer that
//! injects faults from outside, and a verdict over the store and the outside world.
//!
//! The invariant of this crate: the oracle never reads from Windlass what it checks about Windlass. Effects are counted in
//! files that tool bodies write, decisions in the decider's own log, and messages in the orders that the workers were given.

pub mod agent;
pub mod database_server;
pub mod decider;
pub mod decision_log;
pub mod deployment;
pub mod fault;
pub mod files;
pub mod namespace;
pub mod network;
pub mod order;
pub mod outside;
pub mod plant;
pub mod process;
pub mod queue_worker;
pub mod session_edits;
pub mod shim;
pub mod tools;
pub mod torturer;
pub mod verdict;
pub mod worker;
