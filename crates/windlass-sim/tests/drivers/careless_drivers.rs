//! The kit finds each broken promise: drivers with one fault each fail on some scenario.

use windlass_sim::SeedList;
use windlass_sim::driver_check::{DriverScenario, check_driver};

use crate::SCENARIO_COUNT;
use crate::small_driver::SmallDriver;

/// A promise that a driver breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverFault {
    /// It runs the body first and records the start afterwards.
    StartsLate,
    /// It does not run input guardrails.
    SkipsInputGuardrails,
    /// It records the output before the output guardrails have run.
    RevealsOutputs,
    /// It executes a call in doubt again without asking.
    RepeatsDoubtfulCalls,
    /// It asks nobody and approves.
    ApprovesItself,
    /// It makes up new idempotency keys.
    ChangesKeys,
    /// It leaves withheld outputs behind.
    KeepsWithheldOutputs,
    /// It ignores the conflicts of calls.
    IgnoresConflicts,
    /// It starts a nested agent again that an earlier process has started.
    RestartsAgents,
    /// It does not hand the answer of a person to the body.
    ForgetsAnswers,
    /// It executes identical calls that share a result.
    RepeatsTwins,
    /// It answers calls with receipts that have expired.
    IgnoresExpiry,
    /// It goes on after a cancellation.
    IgnoresCancellation,
    /// It drops the result of a body that returned when the run was stopped.
    DiscardsResults,
    /// It stops calls that a cancellation after the turn lets finish.
    StopsInTheTurn,
    /// It settles open calls of a run that another driver continues.
    SettlesAtHandOver,
    /// It does not try a failed call again.
    NeverRetries,
    /// It tries a failed call more often than its tool allows.
    RetriesForever,
    /// It repeats a call that timed out and may have taken effect.
    RepeatsTimeouts,
    /// It looks at decisions only when nothing else is left to do.
    DecidesAtPauses,
    /// It runs tools that were switched off.
    IgnoresSwitches,
    /// It sends what an input filter left, with outputs that have no calls.
    SendsHalfPairs,
    /// It does not record what an input filter left.
    FiltersUnrecorded,
    /// It tells the model of a failure that ends the run.
    ForgetsFailures,
    /// It treats a guardrail that fails the run as one that blocks the call.
    SoftensGuardrails,
    /// It begins calls after a call before them has failed the run.
    GoesOnAfterFailure,
    /// It stops the calls before the one that failed the run.
    StopsEarlierSiblings,
    /// It ends a failed run while calls before the failed one run.
    AbandonsEarlierSiblings,
    /// It reports the failure that came first, instead of the first in the model's order.
    ReportsFirstInTime,
    /// It does not know of a cancellation after a crash.
    ForgetsCancellation,
}

/// Returns the first violation that the scenarios find in a driver with this fault.
fn first_violation(fault: DriverFault) -> Option<String> {
    // More scenarios are tried if the variable says so; fewer do not show every fault.
    let count = SeedList::from_zero(SCENARIO_COUNT).len().max(SCENARIO_COUNT);
    (0..count).find_map(|seed| {
        let checked = check_driver(&SmallDriver::with_fault(fault), DriverScenario::from_seed(seed));
        checked.err().map(|broken| broken.to_string())
    })
}

#[test]
fn every_fault_of_a_driver_is_found() {
    let faults = [
        (DriverFault::StartsLate, "without a durable start"),
        (DriverFault::SkipsInputGuardrails, "before its input guardrail had passed"),
        (DriverFault::RevealsOutputs, "is in the journal"),
        (DriverFault::RepeatsDoubtfulCalls, "took effect twice"),
        (DriverFault::ApprovesItself, "was rejected"),
        (DriverFault::ChangesKeys, "must have one idempotency key"),
        (DriverFault::KeepsWithheldOutputs, "was not erased"),
        (DriverFault::IgnoresConflicts, "conflict"),
        (DriverFault::RestartsAgents, "a nested agent began twice"),
        (DriverFault::ForgetsAnswers, "received the answers"),
        (DriverFault::RepeatsTwins, "has its receipt"),
        (DriverFault::IgnoresExpiry, "has an expired receipt"),
        (DriverFault::IgnoresCancellation, "cancelled"),
        (DriverFault::DiscardsResults, "returned"),
        (DriverFault::StopsInTheTurn, "was to finish its turn"),
        (DriverFault::SettlesAtHandOver, "that hands the run over cancelled something"),
        (DriverFault::NeverRetries, "was not tried again"),
        (DriverFault::RetriesForever, "more often than its tool allows"),
        (DriverFault::RepeatsTimeouts, "took effect twice"),
        (DriverFault::DecidesAtPauses, "did not begin while"),
        (DriverFault::IgnoresSwitches, "was switched off"),
        (DriverFault::SendsHalfPairs, "a broken history"),
        (DriverFault::FiltersUnrecorded, "is not what the journal says"),
        (DriverFault::ForgetsFailures, "must end the run"),
        (DriverFault::SoftensGuardrails, "must end the run"),
        (DriverFault::GoesOnAfterFailure, "began after the run had failed"),
        (DriverFault::StopsEarlierSiblings, "was stopped when a later call failed the run"),
        (DriverFault::AbandonsEarlierSiblings, "ran when a later call failed the run"),
        (DriverFault::ReportsFirstInTime, "the first in the model's order is"),
        (DriverFault::ForgetsCancellation, "after the run was cancelled"),
    ];
    for (fault, expected) in faults {
        let found = first_violation(fault);
        assert!(
            found.as_ref().is_some_and(|found| found.contains(expected)),
            "{fault:?} is not found as `{expected}`: {found:?}"
        );
    }
}
