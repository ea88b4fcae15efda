//! A worker process: it recovers the run and drives it until the run ends or the worker is killed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason},
    journal::DecisionRecorded,
};
use windlass::store::{PostedDecision, SqliteStore, Store};
use windlass::{error::RunError, run::RunResult};

use crate::crash_plan::{CrashPlan, CrashPointStore};
use crate::effect_ledger::EffectLedger;
use crate::world::{TortureContext, seeded_agent};

/// Lease duration; a new worker waits this long for the run of a killed one.
const LEASE_DURATION: Duration = Duration::from_millis(150);

const SNAPSHOT_INTERVAL: u64 = 4;

/// Drives a run to its end.
///
/// # Errors
/// Returns the message of any error except a busy store.
pub async fn drive_run(folder: &Path, run: &str, seed: u64, death: CrashPlan) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let kept = SqliteStore::open(folder.join("torture.db")).map_err(|error| said(&error))?;
    // A small interval, so that most of these short runs still recover from a snapshot.
    let kept: Arc<dyn Store> = Arc::new(kept.with_snapshot_interval(SNAPSHOT_INTERVAL));
    let store: Arc<dyn Store> = Arc::new(CrashPointStore { inner: kept, crash_plan: death.clone() });
    let ledger = EffectLedger::in_file(folder.join("ledger.txt"));
    let world = Arc::new(TortureContext { ledger: ledger.clone(), crash_plan: death });
    let agent = seeded_agent(seed);
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| said(&error))?;
    loop {
        let is_known = !store.load_journal(&run.into(), 0).await.map_err(|error| said(&error))?.is_empty();
        let building = if is_known {
            agent.recover_with_context(run, store.clone(), world.clone())
        } else {
            agent.run_with_context("go", world.clone()).run_id(run).store(store.clone())
        };
        let building = building.lease_duration(LEASE_DURATION).unlimited_turns();
        let cancel = building.cancel_handle();
        let mut running = std::pin::pin!(building);
        let (ended, is_told) = tokio::select! {
            ended = &mut running => (ended, false),
            _ = terminated.recv() => {
                cancel.detach();
                (running.await, true)
            }
        };
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(RunError::Store(error)) if error.is_busy() => {
                tokio::time::sleep(LEASE_DURATION / 4).await;
                continue;
            }
            Err(error) => return Err(said(&error)),
        };
        match outcome {
            RunResult::Finished(_) => return Ok(()),
            RunResult::Paused(paused) => {
                for pending in paused.pending_calls() {
                    let decision = match pending.reason {
                        HoldReason::InDoubt => {
                            let call =
                                format!("{}:{}", nested_run_id(run, &pending.path.to_string()), pending.path);
                            let happened = ledger.contains_call(&call).map_err(|error| said(&error))?;
                            if happened {
                                Decision::ConfirmExecuted { output: format!("did {call}").into() }
                            } else {
                                Decision::ConfirmNotExecuted
                            }
                        }
                        _ => Decision::Approve,
                    };
                    let decided = DecisionRecorded {
                        call: pending.call().clone(),
                        digest: pending.digest,
                        decision,
                        scope: DecisionScope::ThisCall,
                        decided_by: Some("torturer".to_owned()),
                    };
                    // Posts the decision like an approver in another process; the next driver applies it.
                    let posted = PostedDecision {
                        path: pending.path.clone(),
                        attempt: pending.attempt,
                        decision: decided,
                    };
                    store.post_decision(&run.into(), posted).await.map_err(|error| said(&error))?;
                }
            }
            RunResult::Detached(_) if is_told => return Ok(()),
            // A busy machine may miss a lease renewal and lose the run; this worker then recovers it.
            RunResult::Detached(_) => {}
            RunResult::Cancelled(_) => return Err("the run was cancelled unexpectedly".to_owned()),
        }
    }
}

/// Returns the id of the run that a call belongs to: nested agents have their own runs.
fn nested_run_id(run: &str, path: &str) -> String {
    match path.rsplit_once('/') {
        Some((within, _)) => format!("{run}/{within}"),
        None => run.to_owned(),
    }
}
