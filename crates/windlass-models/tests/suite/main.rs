//! One suite for every adapter, against the fake provider: what is said well is understood, plain and streamed
//! alike, and what is said badly is an error that says so.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod errors;
mod items;
mod requests;
mod streams;
mod support;
