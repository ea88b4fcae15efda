//! Simulation for Windlass.
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
pub use sim::{Life, Sim};
pub use store::{Fault, SimStore};
pub use world::{World, WorldEffect};
