//! Runs of Windlass, dispatched by [Restate](https://restate.dev).
//!
//! Invariant: the journal and the queue in Windlass's store are the truth. Restate says when a process drives a run, and
//! repeats a handler whose process or connection died. It keeps nothing that the store does not have, so a repeated, needless
//! or lost invocation neither repeats nor loses an effect.
//!
//! A run is the virtual object [`OBJECT_NAME`] with the run's id as its key. Its exclusive handler `drive` drives one segment
//! in the worker of the process; a handler that Restate repeats attaches to the segment that is under way. The shared
//! handlers `submit`, `decide`, `cancel`, `revive` and `status` do not wait for a segment.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use windlass::fleet::{AgentRegistry, RunSubmission, Worker};
//! use windlass::prelude::*;
//! use windlass::store::MemoryStore;
//! use windlass_restate::{RestateClient, RestateService};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryStore::default());
//! let agent = Agent::new("clerk").model(ScriptedModel::new([ScriptedResponse::text("Paid.")]));
//! let client = RestateClient::new("http://127.0.0.1:8080")?;
//! client.submit_run(&RunSubmission::new("invoice-17", "clerk", "Pay invoice 17.")).await?;
//!
//! let service = RestateService::new(Worker::new(store, AgentRegistry::from(agent)), client);
//! service.serve(tokio::net::TcpListener::bind("127.0.0.1:9080").await?).await?;
//! # Ok(()) }
//! ```

mod client;
mod http;
mod request;
mod run_object;
mod service;

pub use client::{RestateClient, RestateError};
pub use request::RunState;
pub use run_object::OBJECT_NAME;
pub use service::RestateService;
