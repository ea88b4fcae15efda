//! The context window of a model: estimates of the tokens in a conversation, and compaction of a conversation that comes
//! close to the window.
//!
//! Invariant: a compacted conversation keeps pairs of calls and outputs, and all pinned items, in their order.

mod policy;
mod request_compaction;
mod shrink;
mod summary;
mod token_estimate;
mod window_list;

pub use policy::ContextPolicy;
pub(crate) use shrink::{ShrinkLimits, ShrunkHistory, shrink_history};
pub(crate) use summary::{ModelSummary, estimate_summary, removal_note, summarise, summary_item};
pub(crate) use token_estimate::{ContextGauge, estimate_item, estimate_text};
pub use window_list::{ContextWindowList, ContextWindowListError, ModelWindow};
