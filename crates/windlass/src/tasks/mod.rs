//! The tasks in which bodies run, the wake-ups of the run that waits for them, and the signals that stop or wake its calls.

mod decision_signal;
mod run_waker;
mod running_body;
mod stop_signal;

pub(crate) use self::decision_signal::DecisionSignal;
pub(crate) use self::run_waker::{WokenRun, yield_to_others};
pub(crate) use self::running_body::{
    BodyAttempt, BodyExit, BodyFailure, PollMonitor, blocking_body_warning, record_late_end,
    redact_error_text,
};
pub(crate) use self::stop_signal::{CallStop, EndingFailure, TurnStop, sleep_or_pending, unless_stopped};
