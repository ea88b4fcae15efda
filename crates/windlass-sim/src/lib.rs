//! Deterministic simulation testing for Windlass: hours of delays, failures, crashes and human decisions run in
//! milliseconds.
//!
//! **One seed decides everything**: the latency of models, tools and stores, every failure, and every crash of
//! the process. The same seed always produces the same schedule, so a race that was found once can be replayed.
//!
//! - [`Sim`] is the simulated machine: one thread, a clock that jumps to the next timer when every task waits,
//!   and a seeded random generator. [`Sim::run_process`] runs one process on it; [`Sim::run_through_crashes`]
//!   drives a run through all its crashes.
//! - [`SimStore`] and [`SimSessions`] delay, fail, and crash the process right before or right after a write is
//!   durable. Durable data survives a crash; data in memory does not.
//! - [`SimModel`] returns the same response to the same conversation, in every process.
//! - [`SimWorld`] counts the effects of tools by call and by idempotency key, across crashes.
//! - [`check_record`], [`check_journal`] and [`check_history`] check the invariants of every run.
//! - [`driver_check`] says whether a driver of the state machine, ours or another, keeps the promises.
//! - [`CrashSweep`] crashes a run at every write and at every await of a tool body; [`ToolContract`] checks the declared
//!   effect and the reconcile function of one tool in that way.
//! - [`check_seeds`] tries all seeds of a [`SeedList`] and reports the first failing one with the command to
//!   replay it.
//!
//! A test of your own tool, with a crash between any two journal entries:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use serde_json::json;
//! use windlass::prelude::*;
//! use windlass::core::item::Item;
//! use windlass_sim::{
//!     RunStart, SeedList, Sim, SimModel, SimStore, SimWorld, WriteFault, check_record, check_seeds,
//! };
//!
//! fn refund_agent(sim: &Sim, world: &SimWorld) -> Agent {
//!     let (sim_of_tool, world) = (sim.clone(), world.clone());
//!     // The tool under test. Its effect is at-most-once, which is the default.
//!     let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
//!     let refund = Tool::dynamic("refund", "Gives the money back.", schema, move |ctx, _| {
//!         let (sim, world) = (sim_of_tool.clone(), world.clone());
//!         async move {
//!             sim.random_delay(Duration::from_secs(2)).await;
//!             world.record_effect(&ctx);
//!             sim.random_delay(Duration::from_secs(2)).await;
//!             Ok::<_, ToolError>("refunded")
//!         }
//!     });
//!     let model = SimModel::scripted(sim, [
//!         vec![Item::call("c1", "refund", "{}")],
//!         vec![Item::assistant("You have your money back.")],
//!     ]);
//!     Agent::new("desk").model(model).tool(refund)
//! }
//!
//! check_seeds(&SeedList::from_zero(50), |seed| {
//!     let (sim, world) = (Sim::new(seed), SimWorld::new());
//!     let store = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
//!     // One of the first appends crashes the process.
//!     let fault = sim.draw(|rng| *rng.pick(&[WriteFault::CrashBefore, WriteFault::CrashAfter]));
//!     store.inject_fault(sim.draw(|rng| rng.below(6)), fault);
//!
//!     let result = sim.run_through_crashes(&store, "run", |start| match start {
//!         RunStart::Fresh => refund_agent(&sim, &world).run("My order never came."),
//!         RunStart::Recovered { run, store } => refund_agent(&sim, &world).recover(run, store),
//!     });
//!
//!     let result = result.expect("the run ends or pauses");
//!     check_record(result.record()).expect("the invariants hold");
//!     // Either the refund happened once, or a person must resolve the doubt.
//!     assert!(world.count_by_call("c1") <= 1);
//!     assert!(world.count_by_call("c1") == 1 || result.is_paused());
//! });
//! ```
//!
//! Two things are not simulated: blocking bodies run on real threads, whose order no seed decides; and the
//! timestamps of records are real, so journals of one seed are equal except for
//! [`windlass::core::journal::JournalRecord::at`].

mod audit;
mod crash_points;
pub mod driver_check;
mod history;
mod model;
mod rng;
mod seeds;
mod session;
mod sim;
mod store;
mod sweep;
mod tool_contract;
mod world;

pub use audit::{InvariantViolation, JournalAudit, check_journal, check_record};
pub use crash_points::CrashPoint;
pub use history::check_history;
pub use model::SimModel;
pub use rng::SimRng;
pub use seeds::{SeedList, check_seeds};
pub use session::SimSessions;
pub use sim::{ProcessExit, RunStart, Sim};
pub use store::{SimStore, WriteFault};
pub use sweep::{CrashSweep, SweepCase, SweepReport};
pub use tool_contract::{ContractCase, ToolContract};
pub use world::{RecordedEffect, SimWorld};
