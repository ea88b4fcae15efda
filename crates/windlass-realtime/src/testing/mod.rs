//! A server that speaks the protocol, for tests without a network, a key or a microphone. It holds a real
//! conversation, objects to what the provider objects to, hears when somebody speaks, and misbehaves as it is told.
//!
//! Over [`Loopback::model`] it is reached through a pipe, so that a paused clock is followed on both sides; over
//! [`Loopback::listen`] through TCP, so that any client can talk to it.

mod conversation;
mod ear;
mod fault;
mod reply;
mod saying;
mod serve;

pub use ear::{Ear, tone};
pub use fault::{Fault, Moment};
pub use reply::{Answering, Reply, ReplyPart, Said};
pub use serve::{From, Loopback, Seen};
