//! Live sessions on the public path: against a server that speaks the protocol through a pipe, on a clock that jumps.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod agents;
mod defects;
mod dispatch;
mod guardrails;
mod interruption;
mod lifecycle;
mod people;
mod reconnect;
mod support;
mod tools;
mod wire;
