//! The journal: the entries that record a run, and the format that they are stored in.
//!
//! Invariant: the journal is the only source of a run's state. Entries are append-only, and every stored line is
//! chained to the one before it by a hash.

mod agent_build;
mod entry;
pub(crate) mod format;
mod head_mac;
mod record_body;
mod sealed;
mod start_history;
mod text_mac;
mod text_media;
mod unannounced;

pub use agent_build::AgentBuild;
pub use entry::{
    BudgetReached, BudgetReserved, CallBodyEnded, CallEndedLate, CallHeld, CallSettled, CallStarted,
    CallStatus, CompactionReason, DecisionRecorded, DecisionRevoked, FilteredInput, FinishReason, ForkOrigin,
    GuardrailOutcome, GuardrailRecord, GuardrailStage, HandoffRecorded, HistoryCompacted, InputAdded,
    JournalEntry, JournalRecord, ModelInputFiltered, ModelRequestFailed, ModelResponded, OutputRejected,
    RequestedModel, ResponseRejected, RunCancelled, RunFailed, RunFinished, RunRestored, RunStarted,
    ToolUsePolicyKind,
};
pub use format::{
    FORMAT_VERSION, HashChain, JournalFormatError, JournalLine, decode_journal, decode_lines, decode_record,
    encode_journal, encode_lines, encode_text, resolve_history,
};
pub use head_mac::{ForgedDecision, authenticate_records};
pub use sealed::{append_sealed_outputs, open_sealed_outputs};
pub use start_history::{HistoryError, HistoryReference, ItemRange, StartHistory, history_digest};
pub use text_mac::{append_text_mac, verify_text_mac};
pub use text_media::{append_text_media, read_text_media, stored_media_urls};
pub use unannounced::unannounced_records;
