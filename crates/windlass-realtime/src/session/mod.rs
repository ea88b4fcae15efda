//! A live session from the outside: set up, entered, spoken to, watched and closed.

mod actor;
mod builder;
mod change;
mod close;
mod decisions;
mod events;
mod handle;
mod keep;
mod link;
mod look;
mod outbox;
mod recover;
mod requests;
mod runs;

pub use builder::{EnterError, OnGuardrailFailure, Realtime, Reconnect};
pub use close::CloseReport;
pub use events::LiveEvents;
pub use handle::{Ended, LiveSession};
