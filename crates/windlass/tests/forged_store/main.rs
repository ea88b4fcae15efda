//! Attacks on a store by somebody who can write to its file and does not have the key. Each attack is first seen to
//! work on the same store without keys.

#![expect(clippy::expect_used, clippy::panic, reason = "a failed precondition fails the test")]

mod journal;
mod posted;
mod signatures;
mod snapshot;
mod support;
mod text;
