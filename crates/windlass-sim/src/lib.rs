//! Simulation for Windlass: what takes a person's patience and a machine's bad luck, in a millisecond.
//!
//! **One seed decides everything**: how long models, tools and stores take, what fails, where the process
//! crashes. The same seed decides it the same way again, so a race that was found once is found every time.
//!
//! - [`Sim`] is the machine: one thread, a clock that jumps to the next timer as soon as everybody waits, and
//!   draws from the seed. [`Sim::live`] is one life of a process on it; [`Sim::survive`] is a run through as many
//!   crashes as come.
//! - [`SimStore`] and [`SimSessions`] take their time, fail, and crash the process right before or right after
//!   what they write is durable. What is durable survives; what was in memory does not.
//! - [`SimModel`] answers the same conversation in the same way, in whichever process it is asked.
//! - [`World`] counts what tools did to it, by call and by idempotency key, across crashes.
//! - [`check_record`], [`check_journal`] and [`check_history`] say whether what must be true of every run is true
//!   of this one.
//! - [`check`] tries many [`Seeds`] and names the first that fails, with how to replay it.
//!
//! A tool of your own, under every crash between two journal entries:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use serde_json::json;
//! use windlass::prelude::*;
//! use windlass::Item;
//! use windlass_sim::{Begin, Fault, Seeds, Sim, SimModel, SimStore, World, check, check_record};
//!
//! fn agent(sim: &Sim, world: &World) -> Agent {
//!     let (sim_of_tool, world) = (sim.clone(), world.clone());
//!     // The tool under test. It must not happen twice, which is what a tool promises unless it says otherwise.
//!     let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
//!     let refund = Tool::dynamic("refund", "Gives the money back.", schema, move |ctx, _| {
//!         let (sim, world) = (sim_of_tool.clone(), world.clone());
//!         async move {
//!             sim.dawdle(Duration::from_secs(2)).await;
//!             world.effect(&ctx);
//!             sim.dawdle(Duration::from_secs(2)).await;
//!             Ok::<_, ToolError>("refunded")
//!         }
//!     });
//!     let model = SimModel::script(sim, [
//!         vec![Item::call("c1", "refund", "{}")],
//!         vec![Item::assistant("You have your money back.")],
//!     ]);
//!     Agent::new("desk").model(model).tools(refund)
//! }
//!
//! check(&Seeds::first(50), |seed| {
//!     let (sim, world) = (Sim::new(seed), World::new());
//!     let store = Arc::new(SimStore::new(&sim).longest(Duration::from_millis(20)));
//!     // Somewhere in its life the process crashes.
//!     let fault = sim.draw(|rng| *rng.pick(&[Fault::CrashBefore, Fault::CrashAfter]));
//!     store.at(sim.draw(|rng| rng.below(6)), fault);
//!
//!     let outcome = sim.survive(&store, "run", |begin| match begin {
//!         Begin::Fresh => agent(&sim, &world).run("My order never came."),
//!         Begin::Recovered { run, store } => agent(&sim, &world).recover(run, store),
//!     });
//!
//!     let outcome = outcome.expect("the run comes to an outcome");
//!     check_record(outcome.record()).expect("what must be true of every run");
//!     // Either the refund happened once, or a person is asked whether it did.
//!     assert!(world.by_call("c1") <= 1);
//!     assert!(world.by_call("c1") == 1 || outcome.is_paused());
//! });
//! ```
//!
//! What is not simulated: blocking bodies run on real threads, whose order no seed decides; and the time of day in
//! records is the real one, so that journals of one seed are equal but for [`windlass::core::Record::at`].

mod audit;
mod history;
mod model;
mod rng;
mod seeds;
mod session;
mod sim;
mod store;
mod world;

pub use audit::{Audit, Broken, check_journal, check_record};
pub use history::check_history;
pub use model::SimModel;
pub use rng::Rng;
pub use seeds::{Seeds, check};
pub use session::SimSessions;
pub use sim::{Begin, Life, Sim};
pub use store::{Fault, SimStore};
pub use world::{World, WorldEffect};
