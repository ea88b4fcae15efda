//! The report that is shown instead of a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::cli_error::{CliError, CommandExit};
use crate::terminal::Terminal;

/// Message and location of the last panic. Tool bodies may panic too, and the driver turns those panics into
/// failed calls; so the hook only stores the message, and only a panic that reaches [`run_with_panic_report`]
/// is printed.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Runs the command and reports a panic as an internal error.
pub(crate) fn run_with_panic_report(
    term: &Terminal,
    work: impl FnOnce() -> Result<CommandExit, CliError>,
) -> Result<CommandExit, CliError> {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let said = panic.payload_as_str().unwrap_or("no message");
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{said} ({place})"));
    }));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let what = LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        term.report_panic(&what);
        Ok(CommandExit::InternalError)
    })
}

#[cfg(test)]
#[path = "panic_report_tests.rs"]
mod tests;
