//! One life of a worker: it takes the run where it stands and goes on until the run has ended, or it dies.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{Decision, HoldReason, Reach};
use windlass::store::{SqliteStore, Store};
use windlass::{Outcome, RunError};

use crate::death::{Death, DeadlyStore};
use crate::ledger::Ledger;
use crate::world::{World, agent};

/// How long the store keeps a dead worker's place.
const LEASE: Duration = Duration::from_millis(400);

/// Drives a run to its end.
pub async fn live(folder: &Path, run: &str, seed: u64, moments: Option<u64>) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let death = Death::after(moments);
    let kept: Arc<dyn Store> = Arc::new(SqliteStore::open(folder.join("torture.db")).map_err(|error| said(&error))?);
    let store: Arc<dyn Store> = Arc::new(DeadlyStore { inner: kept, death: death.clone() });
    let ledger = Ledger::at(folder.join("ledger.txt"));
    let world = Arc::new(World { ledger: ledger.clone(), death });
    let agent = agent(seed);
    loop {
        let is_known = !store.load(&run.into(), 0).await.map_err(|error| said(&error))?.is_empty();
        let building = if is_known {
            agent.recover_with(run, store.clone(), world.clone())
        } else {
            agent.run_with("go", world.clone()).run_id(run).store(store.clone())
        };
        let outcome = match building.lease(LEASE).unlimited_turns().await {
            Ok(outcome) => outcome,
            Err(RunError::Store(error)) if error.is_busy() => {
                tokio::time::sleep(LEASE / 4).await;
                continue;
            }
            Err(error) => return Err(said(&error)),
        };
        match outcome {
            Outcome::Finished(_) => return Ok(()),
            Outcome::Paused(mut paused) => {
                for pending in paused.pending() {
                    let decision = match pending.reason {
                        HoldReason::InDoubt => {
                            let call = format!("{}:{}", nested_run(run, &pending.path.to_string()), pending.path);
                            let happened = ledger.has(&call).map_err(|error| said(&error))?;
                            if happened {
                                Decision::Happened { output: format!("did {call}").into() }
                            } else {
                                Decision::DidNotHappen
                            }
                        }
                        _ => Decision::Approve,
                    };
                    paused.decide(pending.path.clone(), decision, Reach::Call).map_err(|error| said(&error))?;
                }
                let resumed = agent.resume_with(paused, world.clone()).store(store.clone()).lease(LEASE);
                match resumed.unlimited_turns().await {
                    Ok(Outcome::Finished(_)) => return Ok(()),
                    Ok(_) => {}
                    Err(RunError::Store(error)) if error.is_busy() => tokio::time::sleep(LEASE / 4).await,
                    Err(error) => return Err(said(&error)),
                }
            }
            Outcome::Cancelled(_) | Outcome::HandedOver(_) => return Err("nobody cancelled this run".to_owned()),
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
