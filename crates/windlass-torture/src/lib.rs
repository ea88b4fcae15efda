//! The parts of the crash test: a worker that ends at crash points, an outside world that records effects, and
//! a verdict over both.

pub mod crash_plan;
pub mod effect_ledger;
pub mod verdict;
pub mod worker;
pub mod world;
