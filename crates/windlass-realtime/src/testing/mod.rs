//! An in-process server for tests without a network, an API key or a microphone. It implements OpenAI's
//! Realtime API: it holds a conversation, rejects the commands that the provider rejects, detects speech, and
//! injects faults on request.
//!
//! [`LoopbackServer::client_model`] connects through a pipe, so that both sides follow a paused clock;
//! [`LoopbackServer::listen`] accepts any client over TCP. [`Misbehaviour`] draws the faults of a server from a seed, and
//! [`find_wire_violations`] checks the conduct of a client on the recorded events.

mod conversation;
mod fault;
mod invariants;
mod misbehaviour;
mod reply;
mod reply_steps;
mod server;
mod speech;

pub use fault::{FaultTrigger, WireFault};
pub use invariants::{count_unacknowledged_connections, find_wire_violations};
pub use misbehaviour::Misbehaviour;
pub use reply::{ConversationView, LoopbackReply, LoopbackReplyPart, ReplyFunction};
pub use server::{LoopbackServer, WireRecord, WireSender};
pub use speech::{SpeechTranscriber, tone};
