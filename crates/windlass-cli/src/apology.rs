//! What a person sees in place of a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::problem::{Exit, Problem};
use crate::term::Term;

/// The last panic: where, and what was said. The bodies of tools may panic too. The driver makes failed calls of
/// those, so nothing is printed when a panic begins, but when one has come through.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Does the work, and apologises where it panics.
pub(crate) fn instead_of_a_panic(
    term: &Term,
    work: impl FnOnce() -> Result<Exit, Problem>,
) -> Result<Exit, Problem> {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let said = panic.payload_as_str().unwrap_or("no message");
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{said} ({place})"));
    }));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let what = LAST.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        term.apologise(&what);
        Ok(Exit::Defect)
    })
}

#[cfg(test)]
#[path = "apology_tests.rs"]
mod tests;
