//! Realtime sessions from the application's side: configured, started, driven, observed and closed.

mod actor;
mod agent_change;
mod budget_question;
mod budgeted_requests;
mod builder;
mod call_runs;
mod close;
mod connection;
mod decisions;
mod events;
mod evidence;
mod guardrail_checks;
mod handle;
mod outbox;
mod recovery;
mod redaction;
mod requests;

pub use builder::{GuardrailFailurePolicy, RealtimeSessionBuilder, ReconnectPolicy, SessionStartError};
pub use close::CloseReport;
pub use events::RealtimeEvents;
pub use evidence::HeldCallEvidence;
pub use handle::{RealtimeSession, SessionClosed, SessionRequestError};
