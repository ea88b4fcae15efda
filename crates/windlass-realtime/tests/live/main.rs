//! Realtime sessions through the public API, against the loopback server through a pipe, on a paused clock.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod agents;
mod attached;
mod bad_servers;
mod budgets;
mod certainty;
mod closes;
mod closing;
mod defects;
mod dispatch;
mod floods;
mod guardrails;
mod handoffs;
mod interruption;
mod lifecycle;
mod other_drivers;
mod people;
mod reconnect;
mod requests;
mod secrets;
mod support;
mod tools;
mod wire;
