//! The tasks in which bodies run, the wake-ups of the run that waits for them, the signals that stop or wake its calls, and
//! the tasks that renew claims.

mod decision_signal;
mod late_end;
mod poll_watch;
mod renewal_task;
mod run_waker;
mod running_body;
mod stop_signal;

pub(crate) use self::decision_signal::DecisionSignal;
pub(crate) use self::late_end::record_late_end;
pub(crate) use self::poll_watch::{PollMonitor, blocking_body_warning};
pub(crate) use self::renewal_task::RenewalTask;
pub(crate) use self::run_waker::{WokenRun, yield_to_others};
pub(crate) use self::running_body::{BodyAttempt, BodyExit, BodyFailure, redact_error_text};
pub(crate) use self::stop_signal::{
    CallStop, DrainDeadline, EndingFailure, TurnStop, sleep_or_pending, unless_stopped,
};
