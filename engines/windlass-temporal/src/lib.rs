//! Runs of Windlass, dispatched by [Temporal](https://temporal.io).
//!
//! Invariant: the journal and the queue in Windlass's store are the truth. A workflow says when a worker drives a run; it
//! keeps nothing that the store does not have, so a repeated, needless or lost activity neither repeats nor loses an effect.
//!
//! A run is the workflow [`RunWorkflow`] with the run's id as its id. Each segment is one activity with a heartbeat, which
//! the worker of the process drives; an activity that is repeated in that process attaches to the segment. A workflow whose
//! run waits continues as new, so that neither its history nor its code grows old while a person thinks.
//!
//! Decisions are updates, orders are signals, and the search attributes `WindlassAgent` and `WindlassStatus` find runs.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use temporalio_client::{Client, ClientOptions, Connection, ConnectionOptions};
//! use windlass::fleet::{AgentRegistry, RunDispatch, RunQueue, RunSubmission, Worker};
//! use windlass::prelude::*;
//! use windlass::store::MemoryStore;
//! use windlass_temporal::{TemporalDispatch, TemporalService};
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = ConnectionOptions::new(url::Url::parse("http://127.0.0.1:7233")?).build();
//! let client = Client::new(Connection::connect(options).await?, ClientOptions::new("default").build())?;
//! let dispatch = TemporalDispatch::new(client, "agents");
//!
//! let store = Arc::new(MemoryStore::default());
//! let submission = RunSubmission::new("invoice-17", "clerk", "Pay invoice 17.");
//! store.submit_run(&submission, Default::default()).await?;
//! dispatch.wake_run(&submission.run, None).await?;
//!
//! let agent = Agent::new("clerk").model(ScriptedModel::new([ScriptedResponse::text("Paid.")]));
//! TemporalService::new(Worker::new(store, AgentRegistry::from(agent)), dispatch).serve().await?;
//! # Ok(()) }
//! ```

mod activities;
mod client;
mod run_workflow;
mod service;

pub use client::{TemporalDispatch, TemporalError};
pub use run_workflow::{AGENT_ATTRIBUTE, RunWorkflow, STATUS_ATTRIBUTE, WorkflowInput};
pub use service::TemporalService;
