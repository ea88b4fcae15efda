//! Live sessions with speech and text models: a conversation that can be interrupted, with the tools, approvals,
//! guardrails and journals of every other run, and an end that is always clean.
//!
//! [`Realtime`] sets a session up, [`LiveSession`] is one, [`LiveEvents`] watches it. A live model is a
//! [`model::RealtimeModel`]; [`openai::OpenAi`] is one, and [`testing::Loopback`] is a server for it that needs no network.
//!
//! The guide has a page on it: `docs/guide/realtime.md`.

pub mod audio;
mod event;
mod history;
mod id;
mod journal;
mod machine;
mod metrics;
pub mod model;
pub mod openai;
mod session;
pub mod settings;
pub mod testing;

pub use event::{AudioChunk, ChangeCause, CloseReason, LiveError, LiveEvent, Retrying};
pub use history::{History, HistoryChange, ItemStatus, LiveItem, LiveItemKind, Part};
pub use id::{CommandId, ItemId, ResponseId};
pub use journal::{
    CallsRecord, FolderJournal, LIVE_FORMAT, LiveEntry, LiveJournal, LiveRecord, MemoryJournal,
};
pub use machine::{Answer, AudioRelease, FollowUp, PlaybackSource, ToolMode};
pub use metrics::{SessionMetrics, TurnMetrics};
pub use session::{
    CloseReport, Ended, EnterError, LiveEvents, LiveSession, OnGuardrailFailure, Realtime, Reconnect,
};

/// The samples of the guide compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/realtime.md")]
pub struct Guide;
