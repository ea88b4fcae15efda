//! One test suite for every adapter, against the fake provider: valid responses decode to the same items plain and
//! streamed, and invalid ones are errors of the right kind.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod details;
mod errors;
mod faults;
mod items;
mod numbered_calls;
mod provider_calls;
mod provider_data;
mod requests;
mod settings;
mod streams;
mod support;
