//! Realtime sessions with speech and text models: an interruptible conversation with the tools, approvals,
//! guardrails and journals of every other run, and a bounded, orderly close.
//!
//! [`RealtimeSessionBuilder`] configures a session, [`RealtimeSession`] is the handle to a running one, and
//! [`RealtimeEvents`] streams its events. A realtime model implements [`model::RealtimeModel`];
//! [`openai::OpenAiRealtime`] is one implementation, and [`testing::LoopbackServer`] is an in-process server
//! for it that needs no network.
//!
//! See the guide: `docs/guide/realtime.md`.

pub mod audio;
mod event;
mod history;
mod id;
mod journal;
mod json;
mod machine;
mod metrics;
pub mod model;
pub mod openai;
pub mod relay;
mod session;
pub mod settings;
mod sync;
pub mod testing;

#[cfg(test)]
mod fuzz_tests;

pub use event::{
    AfterDisconnect, AgentChangeCause, AudioChunk, CloseReason, HeldCall, RealtimeError, RealtimeEvent,
};
pub use history::{
    HistoryChange, RealtimeContentPart, RealtimeHistory, RealtimeItem, RealtimeItemKind, RealtimeItemStatus,
};
pub use id::{CommandId, ItemId, ResponseId};
pub use journal::{
    CallBatchRecord, FolderJournal, MemoryJournal, REALTIME_JOURNAL_FORMAT, RealtimeEntry, RealtimeJournal,
    ReplayedSession,
};
pub use machine::{AudioRelease, GuardrailFollowUp, PlaybackSource, RespondWhen, ToolCallMode};
pub use metrics::{SessionMetrics, TurnMetrics};
pub use session::{
    CloseReport, GuardrailFailurePolicy, HeldCallEvidence, RealtimeEvents, RealtimeSession,
    RealtimeSessionBuilder, ReconnectPolicy, SessionClosed, SessionRequestError, SessionStartError,
};
pub use windlass_net as net;
