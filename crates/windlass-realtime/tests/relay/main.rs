//! Relays between a client's WebSocket and a session, against the test server and on a paused clock.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod browser;
mod decisions;
mod phone;
mod support;
