//! One life of a worker: it takes the run where it stands and goes on until the run has ended, or it dies.

use std::future::IntoFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use windlass::core::{Decided, Decision, HoldReason, Reach};
use windlass::store::{Posted, SqliteStore, Store};
use windlass::{Outcome, RunError};

use crate::death::{DeadlyStore, Death};
use crate::ledger::Ledger;
use crate::world::{World, agent};

/// How long the store keeps a dead worker's place.
const LEASE: Duration = Duration::from_millis(150);

const SNAPSHOTS_EVERY: u64 = 4;

/// Drives a run to its end.
pub async fn live(folder: &Path, run: &str, seed: u64, death: Death) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let kept = SqliteStore::open(folder.join("torture.db")).map_err(|error| said(&error))?;
    // Runs here are short: most of them go on from a snapshot all the same.
    let kept: Arc<dyn Store> = Arc::new(kept.with_snapshots_every(SNAPSHOTS_EVERY));
    let store: Arc<dyn Store> = Arc::new(DeadlyStore { inner: kept, death: death.clone() });
    let ledger = Ledger::at(folder.join("ledger.txt"));
    let world = Arc::new(World { ledger: ledger.clone(), death });
    let agent = agent(seed);
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| said(&error))?;
    loop {
        let is_known = !store.load(&run.into(), 0).await.map_err(|error| said(&error))?.is_empty();
        let building = if is_known {
            agent.recover_with(run, store.clone(), world.clone())
        } else {
            agent.run_with("go", world.clone()).run_id(run).store(store.clone())
        };
        let building = building.lease(LEASE).unlimited_turns();
        let cancel = building.cancel_handle();
        let mut running = std::pin::pin!(building.into_future());
        let (ended, is_told) = tokio::select! {
            ended = &mut running => (ended, false),
            _ = terminated.recv() => {
                cancel.hand_over();
                (running.await, true)
            }
        };
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(RunError::Store(error)) if error.is_busy() => {
                tokio::time::sleep(LEASE / 4).await;
                continue;
            }
            Err(error) => return Err(said(&error)),
        };
        match outcome {
            Outcome::Finished(_) => return Ok(()),
            Outcome::Paused(paused) => {
                for pending in paused.pending() {
                    let decision = match pending.reason {
                        HoldReason::InDoubt => {
                            let call =
                                format!("{}:{}", nested_run(run, &pending.path.to_string()), pending.path);
                            let happened = ledger.has(&call).map_err(|error| said(&error))?;
                            if happened {
                                Decision::Happened { output: format!("did {call}").into() }
                            } else {
                                Decision::DidNotHappen
                            }
                        }
                        _ => Decision::Approve,
                    };
                    let decided = Decided {
                        call: pending.call().clone(),
                        digest: pending.digest,
                        decision,
                        reach: Reach::Call,
                        by: Some("torturer".to_owned()),
                    };
                    // Posted, as somebody in another process would: whoever drives the run next takes it.
                    let posted = Posted { path: pending.path.clone(), attempt: pending.attempt, decided };
                    store.post(&run.into(), posted).await.map_err(|error| said(&error))?;
                }
            }
            Outcome::HandedOver(_) if is_told => return Ok(()),
            // A machine that is too busy for a sign of life loses the run to whoever comes next, which is this worker.
            Outcome::HandedOver(_) => {}
            Outcome::Cancelled(_) => return Err("nobody cancelled this run".to_owned()),
        }
    }
}

/// The id of the run that a call belongs to: agents inside calls have runs of their own.
fn nested_run(run: &str, path: &str) -> String {
    match path.rsplit_once('/') {
        Some((within, _)) => format!("{run}/{within}"),
        None => run.to_owned(),
    }
}
