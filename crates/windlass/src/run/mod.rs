//! Runs from the outside: how to configure, stream, pause, decide, cancel and resume them.

mod budget_control;
mod builder;
mod cancel;
mod config;
mod drive_error;
mod exit;
mod input;
mod model_request;
mod model_retry;
mod open_run;
mod partial_output;
mod paused;
mod posted_decisions;
mod recorded_run;
mod records;
mod restored_call;
mod result;
mod run_scope;
mod settlement;
mod shared_state;
mod snapshot_records;
mod stream;
mod turn_limit;
mod unknown_tool;

pub use builder::RunBuilder;
pub use cancel::{CancelHandle, PendingApprovals, RunSettlement};
pub use config::{
    CallLayer, FailureHandlers, HandledFailure, InputFilter, LoopPolicy, ModelInput, ModelRetryPolicy,
    NextCall, OnSessionBusy, OnStreamDrop, OnUnknownTool, RetriesExhausted,
};
pub use exit::RunExit;
pub use input::IntoInput;
pub use partial_output::PartialOutput;
pub(crate) use paused::KeptResults;
pub use paused::{PausedRun, TextAuthenticity};
pub use result::{CancelledRun, FinishedRun, RunRecord, RunResult};
pub use stream::RunStream;

pub(crate) use budget_control::{BudgetControl, ReservedRequest, SummaryReservation, budgets_with};
pub(crate) use builder::RunSource;
pub(crate) use cancel::CancelSignal;
pub(crate) use config::{GivenResponse, RunConfig};
pub(crate) use drive_error::{DriveError, application_panicked, call_unless_stopped, panic_failure};
pub(crate) use exit::{ExitCallbacks, ExitRegistry};
pub(crate) use model_request::{ModelAnswer, ModelRequestParts, ModelRequester, known_usage};
pub(crate) use model_retry::jitter_fraction;
pub(crate) use open_run::{OpenRun, key_scopes, new_key_nonce, open_run};
pub(crate) use posted_decisions::DecisionCheck;
pub(crate) use recorded_run::RecordedRun;
pub(crate) use records::JournalRecords;
pub(crate) use restored_call::{ResolvedCall, read_saved_arguments};
pub(crate) use run_scope::RunScope;
pub(crate) use shared_state::{OpenedRun, SharedRunState};
pub(crate) use snapshot_records::{RecordSource, SnapshotRecords};
pub(crate) use turn_limit::TurnLimit;
