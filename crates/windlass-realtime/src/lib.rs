//! Live sessions.

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
