//! The tasks in which bodies run, and the wake-ups of the run that waits for them.

mod run_waker;
mod running_body;

pub(crate) use self::run_waker::{WokenRun, yield_to_others};
pub(crate) use self::running_body::{BodyJoinError, PollMonitor, RunningBody};
