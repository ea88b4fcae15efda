//! The parts of the torture: a worker that dies when its time has come, an outside world that remembers, and a
//! verdict over both.

pub mod chance;
pub mod death;
pub mod ledger;
pub mod verdict;
pub mod worker;
pub mod world;
