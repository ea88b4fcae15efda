//! A contract check for a tool: its declared effect and its reconcile function, against a world of the user's own.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use windlass::agent::Agent;
use windlass::core::decision::HoldReason;
use windlass::core::item::Item;
use windlass::core::journal::{CallStatus, JournalEntry};
use windlass::core::plan::CallDisposition;
use windlass::core::tool::ToolEffect;
use windlass::run::RunResult;
use windlass::tool::Tool;

use crate::model::SimModel;
use crate::sim::{RunStart, Sim};
use crate::sweep::{CrashSweep, SweepReport};

/// Checks that a tool keeps the contract of its declared effect: one call of it is killed at every write of the journal
/// and at every await of its body, and recovered.
///
/// | declared effect | contract |
/// | --- | --- |
/// | `pure` | a call leaves the world as it was |
/// | `idempotent` | a call that is repeated with its key leaves the world as one call does |
/// | `once` | a call whose run finishes after a crash has taken effect exactly once; otherwise it is in doubt |
///
/// The third row tests the tool's reconcile function: it is asked after every crash, and whatever it reports must be true
/// of the world. A tool that needs approval is checked without its approval rule.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use serde_json::json;
/// use windlass::core::tool::ToolEffect;
/// use windlass::prelude::*;
/// use windlass_sim::{ContractCase, ToolContract};
///
/// // A bank that honours idempotency keys.
/// let report = ToolContract::new(json!({ "cents": 500 })).check(|_sim| {
///     let bank = Arc::new(Mutex::new(Vec::<String>::new()));
///     let schema = json!({ "type": "object", "properties": { "cents": { "type": "integer" } },
///         "required": ["cents"], "additionalProperties": false });
///     let ledger = bank.clone();
///     let pay = Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _| {
///         let ledger = ledger.clone();
///         async move {
///             tokio::task::yield_now().await;
///             let mut ledger = ledger.lock().unwrap();
///             let key = ctx.idempotency_key();
///             if !ledger.contains(&key) {
///                 ledger.push(key);
///             }
///             Ok::<_, ToolError>("paid")
///         }
///     });
///     ContractCase::new(pay.effect(ToolEffect::Idempotent), move || bank.lock().unwrap().len())
/// });
/// assert!(report.case_count > 5);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ToolContract {
    arguments: Value,
    sweep: CrashSweep,
}

/// A tool in a new world, and a function that observes the world.
pub struct ContractCase<S> {
    tool: Tool,
    observe: Box<dyn Fn() -> S>,
}

impl<S> ContractCase<S> {
    /// Creates a case. `observe` returns the state of the world as far as the tool can change it.
    pub fn new(tool: Tool, observe: impl Fn() -> S + 'static) -> Self {
        Self { tool, observe: Box::new(observe) }
    }
}

impl<S: fmt::Debug> fmt::Debug for ContractCase<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContractCase").field("state", &(self.observe)()).finish_non_exhaustive()
    }
}

impl ToolContract {
    /// Creates the check of a call with these arguments.
    pub fn new(arguments: Value) -> Self {
        Self { arguments, sweep: CrashSweep::new().max_crashes(2) }
    }

    /// Sets the sweep; the default has up to two crashes in a case.
    pub fn sweep(mut self, sweep: CrashSweep) -> Self {
        self.sweep = sweep;
        self
    }

    /// Checks the tool of `make`, which creates the tool and its world anew for each case.
    ///
    /// # Panics
    /// Panics if the call does not succeed without a crash, and at the first case that breaks the contract, with both states of the world, the crash points and the
    /// journal.
    pub fn check<S: PartialEq + fmt::Debug>(&self, make: impl Fn(&Sim) -> ContractCase<S>) -> SweepReport {
        let one_call: Mutex<Option<S>> = Mutex::new(None);
        self.sweep.check(|case| {
            let contract = make(case.sim());
            let before = (contract.observe)();
            let result = case.run(|start| {
                let agent = self.contract_agent(case.sim(), contract.tool.clone());
                match start {
                    RunStart::Fresh => agent.run("Call the tool."),
                    RunStart::Recovered { run, store } => agent.recover(run, store),
                }
            });
            let result = match result {
                Ok(result) => result,
                Err(error) => panic!("the run fails: {error}"),
            };
            assert!(!needs_approval(&result), "the tool needs approval; check it without its approval rule");
            let after = (contract.observe)();
            let mut one_call = one_call.lock().unwrap_or_else(PoisonError::into_inner);
            if declared_effect(&result) == Some(ToolEffect::Pure) {
                assert!(
                    after == before,
                    "a call of a pure tool changed the world: {before:?}, then {after:?}"
                );
            }
            match &*one_call {
                // The first case has no crash.
                None => {
                    assert_succeeded(&result);
                    *one_call = Some(after);
                }
                Some(_) if result.is_paused() => assert!(
                    declared_effect(&result) == Some(ToolEffect::Once),
                    "the run pauses, though its tool may be repeated"
                ),
                Some(expected) => {
                    assert!(
                        after == *expected,
                        "one call leaves {expected:?}; after the crash it is {after:?}"
                    );
                }
            }
        })
    }

    fn contract_agent(&self, sim: &Sim, tool: Tool) -> Agent {
        let call = Item::call("c1", tool.name(), self.arguments.to_string());
        let model = SimModel::scripted(sim, [vec![call], vec![Item::assistant("Done.")]]);
        Agent::new("contract").model(model).tool(tool)
    }
}

/// Asserts that the call was made. A call that the driver refuses leaves the world as it was in every case, which would
/// keep any contract.
fn assert_succeeded(result: &RunResult) {
    let settled = result.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((&settled.status, settled.output.text())),
        _ => None,
    });
    match settled {
        Some((CallStatus::Succeeded, _)) => {}
        Some((status, output)) => {
            panic!("the call does not succeed without a crash, so nothing is checked: {status:?}, {output}")
        }
        None => panic!("the call does not settle without a crash, so nothing is checked"),
    }
}

fn needs_approval(result: &RunResult) -> bool {
    let RunResult::Paused(paused) = result else { return false };
    paused.pending_calls().iter().any(|call| matches!(call.reason, HoldReason::Approval))
}

/// Returns the declared effect of the tool that the run called.
fn declared_effect(result: &RunResult) -> Option<ToolEffect> {
    result.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::ModelResponded(responded) => {
            responded.calls.iter().find_map(|call| match &call.disposition {
                CallDisposition::Execute { effect, .. } => Some(*effect),
                _ => None,
            })
        }
        _ => None,
    })
}
