//! `windlass talk`: its server, and the page in a real Chromium with a fake microphone.
//!
//! Without Chromium or espeak-ng, the tests that need them report that they did not run. `WINDLASS_SCREENSHOTS` names a
//! folder for the screenshots of the page.

#![cfg(feature = "talk")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod chromium;
mod page;
mod process;
mod server;

#[path = "../support/mod.rs"]
mod support;
