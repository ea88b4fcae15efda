//! A conformance kit for drivers: says whether a driver of [`windlass::core::run::Run`] keeps the promises.
//!
//! A driver is everything around the state machine: it requests models, runs bodies and guardrails, asks people and
//! makes entries durable. The kit has the other side of all of it. [`DriverScenario`] draws a run from a seed: nested
//! agents, questions, identical calls, retries, timeouts, stops, failures that end the run, decisions while other calls
//! run, input filters, and crashes at any append and in any body or guardrail. [`DriverWorld`] is what the driver acts on, and checks its
//! conduct: that a start is durable before its body begins, that no effect occurs twice, that guardrails come first,
//! that a withheld output is in no record, that every call gets its own output. [`check_driver`] starts a process
//! after each crash and each hand-over, until the run has ended.
//!
//! `tests/drivers` checks the driver of `windlass`, and a second one of a few hundred lines.

mod conduct;
mod failing_run;
mod outcome;
mod scenario;
mod world;

pub use scenario::{DriverScenario, ScenarioCall, ScenarioStop, ScenarioTool, StopKind};
pub use world::{BodyStep, DriverWorld, GuardrailStep, ProcessCrash, RECEIPT_LIFETIME_MS, TURN_TIME_MS};

use std::sync::Arc;

use crate::audit::InvariantViolation;

/// Maximum number of processes for one run: more than a scenario has crashes.
const MAX_PROCESSES: usize = 20;

/// A driver under test.
pub trait TestedDriver {
    /// Drives the run of the world's scenario in one process: from its input, or from its durable records.
    ///
    /// # Errors
    ///
    /// Returns an error if the world said that the process crashes.
    fn drive(&self, world: &Arc<DriverWorld>) -> Result<(), ProcessCrash>;
}

/// Drives a scenario through all its crashes and checks the driver.
///
/// # Errors
///
/// Returns the first promise that the driver broke.
pub fn check_driver(driver: &dyn TestedDriver, scenario: DriverScenario) -> Result<(), InvariantViolation> {
    let world = Arc::new(DriverWorld::new(scenario));
    for _ in 0..MAX_PROCESSES {
        world.begin_process();
        let driven = driver.drive(&world);
        if let Some(broken) = world.first_violation() {
            return Err(broken);
        }
        if driven.is_ok() && world.take_hand_over() {
            continue;
        }
        if driven.is_ok() {
            world.check_end();
            return world.first_violation().map_or(Ok(()), Err);
        }
        if !world.is_crashed() {
            return Err(InvariantViolation::new("the driver gave up without a crash"));
        }
    }
    Err(InvariantViolation::new("the run does not end"))
}
