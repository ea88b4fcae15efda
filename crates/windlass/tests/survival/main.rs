//! Fault-tolerance tests: at least one for every row of `docs/guarantees.md`, on every surface where the fault
//! can occur. A test's name begins with its row. Rows in which no real time decides run on one thread, where the order of
//! events is the same every time, and on worker threads, where a seed decides in which order bodies end: a failing test prints
//! it.

#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod arguments;
mod busy;
mod deadlines;
mod decisions;
mod dispatch;
mod ends;
mod failures;
mod lives;
mod people;
mod state;
mod stop;
mod support;
mod table;
mod twice;
mod volume;
