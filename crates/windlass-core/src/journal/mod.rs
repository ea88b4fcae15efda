//! The journal: the entries that record a run, and the format that they are stored in.
//!
//! Invariant: the journal is the only source of a run's state. Entries are append-only, and every stored line is
//! chained to the one before it by a hash.

mod entry;
pub(crate) mod format;

pub use entry::{
    CallBodyEnded, CallEndedLate, CallHeld, CallSettled, CallStarted, CallStatus, DecisionRecorded,
    DecisionRevoked, FilteredInput, ForkOrigin, GuardrailOutcome, GuardrailRecord, GuardrailStage,
    HandoffRecorded, InputAdded, JournalEntry, JournalRecord, ModelInputFiltered, ModelRequestFailed,
    ModelResponded, ResponseRejected, RunCancelled, RunFailed, RunFinished, RunStarted, ToolUsePolicyKind,
};
pub use format::{
    FORMAT_VERSION, HashChain, JournalFormatError, JournalLine, decode_journal, decode_lines, encode_journal,
    encode_lines,
};
