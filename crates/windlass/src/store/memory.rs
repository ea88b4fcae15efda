//! An in-memory store: it outlives runs, not the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use windlass_core::{
    id::{AgentName, CallPath, RunId, Timestamp},
    item::OutputContent,
    journal::JournalLine,
};

use super::{
    Durability, Lease, LeaseClaim, PostedDecision, ReceiptClaim, ReceiptKey, RunStatus, Store, StoreFuture,
    StoredRun, StoredSnapshot,
};
use crate::error::{StoreError, StoreErrorKind};

/// A store in memory: it outlives runs, not the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
}

#[derive(Debug, Default)]
struct MemoryState {
    runs: BTreeMap<RunId, MemoryRun>,
    receipts: BTreeMap<ReceiptKey, MemoryReceipt>,
    artefacts: BTreeMap<(RunId, String), String>,
    withheld: BTreeMap<(RunId, CallPath), OutputContent>,
}

#[derive(Debug)]
struct MemoryRun {
    agent: AgentName,
    status: RunStatus,
    epoch: u64,
    owner: Option<(String, Timestamp)>,
    lines: Vec<JournalLine>,
    inbox: Vec<PostedDecision>,
    snapshot: Option<StoredSnapshot>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

#[derive(Debug)]
enum MemoryReceipt {
    Claimed { owner: String, expires_at: Timestamp },
    Saved { output: OutputContent, expires_at: Option<Timestamp> },
}

impl MemoryStore {
    fn lock_state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes an operation synchronously and returns its result as a ready future.
    fn ready_result<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut MemoryState) -> Result<T, StoreError>,
    ) -> StoreFuture<'_, T> {
        std::future::ready(act(&mut self.lock_state())).boxed()
    }
}

impl MemoryState {
    fn run_mut(&mut self, run: &RunId) -> Result<&mut MemoryRun, StoreError> {
        self.runs.get_mut(run).ok_or_else(|| {
            StoreError::with_kind(StoreErrorKind::RunNotFound, format!("there is no run `{run}`"))
        })
    }

    fn owned_run_mut(&mut self, lease: &Lease) -> Result<&mut MemoryRun, StoreError> {
        let run = self.run_mut(&lease.run)?;
        if run.epoch == lease.epoch { Ok(run) } else { Err(StoreError::fenced_off(lease)) }
    }
}

impl Store for MemoryStore {
    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, Lease> {
        self.ready_result(|kept| {
            if kept.runs.contains_key(run) {
                return Err(StoreError::with_kind(
                    StoreErrorKind::AlreadyExists,
                    format!("there is a run `{run}` already"),
                ));
            }
            let kept_run = MemoryRun {
                agent: agent.clone(),
                status: RunStatus::Running,
                epoch: 1,
                owner: Some((claim.owner.to_owned(), claim.expires_at)),
                lines: Vec::new(),
                inbox: Vec::new(),
                snapshot: None,
                created_at: claim.now,
                updated_at: claim.now,
            };
            kept.runs.insert(run.clone(), kept_run);
            Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: 1 })
        })
    }

    fn acquire_lease<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreFuture<'a, Lease> {
        self.ready_result(|kept| {
            let kept_run = kept.run_mut(run)?;
            if let Some((owner, until)) = &kept_run.owner
                && *until > claim.now
                && owner != claim.owner
            {
                return Err(StoreError::lease_held(run, owner));
            }
            kept_run.epoch += 1;
            kept_run.owner = Some((claim.owner.to_owned(), claim.expires_at));
            Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: kept_run.epoch })
        })
    }

    fn renew_lease<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?.owner = Some((lease.owner.clone(), until));
            Ok(())
        })
    }

    fn release_lease<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if let Ok(run) = kept.owned_run_mut(lease) {
                run.owner = None;
            }
            Ok(())
        })
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        _: Durability,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            let next = run.lines.len() as u64;
            if next != at {
                return Err(StoreError::stale_read(&lease.run, next, at));
            }
            run.lines.extend(lines);
            Ok(())
        })
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let run = kept.owned_run_mut(lease)?;
            run.status = status;
            run.updated_at = now;
            Ok(())
        })
    }

    fn save_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?.snapshot = Some(snapshot);
            Ok(())
        })
    }

    fn load_snapshot<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredSnapshot>> {
        self.ready_result(|kept| Ok(kept.runs.get(run).and_then(|run| run.snapshot.clone())))
    }

    fn load_journal<'a>(&'a self, run: &'a RunId, from: u64) -> StoreFuture<'a, Vec<JournalLine>> {
        self.ready_result(|kept| {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let lines = kept.runs.get(run).and_then(|run| run.lines.get(from..));
            Ok(lines.map(<[JournalLine]>::to_vec).unwrap_or_default())
        })
    }

    fn list_runs(&self) -> StoreFuture<'_, Vec<StoredRun>> {
        self.ready_result(|kept| {
            let mut runs: Vec<StoredRun> = kept
                .runs
                .iter()
                .map(|(id, run)| StoredRun {
                    run: id.clone(),
                    agent: run.agent.clone(),
                    status: run.status,
                    record_count: run.lines.len() as u64,
                    owner: run.owner.clone(),
                    created_at: run.created_at,
                    updated_at: run.updated_at,
                })
                .collect();
            runs.sort_by(|a, b| (b.created_at, &b.run).cmp(&(a.created_at, &a.run)));
            Ok(runs)
        })
    }

    fn post_decision<'a>(&'a self, run: &'a RunId, posted: PostedDecision) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            let inbox = &mut kept.run_mut(run)?.inbox;
            match inbox.iter().find(|known| known.answers_same_question(&posted)) {
                Some(known) if known.decision.is_same_decision(&posted.decision) => Ok(()),
                Some(_) => Err(StoreError::already_decided(run, &posted.path)),
                None => {
                    inbox.push(posted);
                    Ok(())
                }
            }
        })
    }

    fn posted_decisions<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Vec<PostedDecision>> {
        self.ready_result(|kept| Ok(kept.runs.get(run).map(|run| run.inbox.clone()).unwrap_or_default()))
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.ready_result(|kept| {
            match kept.receipts.get(key) {
                Some(MemoryReceipt::Saved { output, expires_at: expires })
                    if expires.is_none_or(|expires| expires > claim.now) =>
                {
                    return Ok(ReceiptClaim::Completed(output.clone()));
                }
                Some(MemoryReceipt::Claimed { owner, expires_at: until })
                    if *until > claim.now && owner != claim.owner =>
                {
                    return Ok(ReceiptClaim::InProgress { expires_at: *until });
                }
                Some(MemoryReceipt::Saved { .. } | MemoryReceipt::Claimed { .. }) | None => {}
            }
            let claimed =
                MemoryReceipt::Claimed { owner: claim.owner.to_owned(), expires_at: claim.expires_at };
            kept.receipts.insert(key.clone(), claimed);
            Ok(ReceiptClaim::Acquired)
        })
    }

    fn save_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if matches!(kept.receipts.get(key), Some(MemoryReceipt::Claimed { owner: by, .. }) if by == owner)
            {
                kept.receipts.insert(
                    key.clone(),
                    MemoryReceipt::Saved { output: output.clone(), expires_at: expires },
                );
            }
            Ok(())
        })
    }

    fn save_withheld_output<'a>(
        &'a self,
        lease: &'a Lease,
        call: &'a CallPath,
        output: &'a OutputContent,
    ) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            kept.withheld.insert((lease.run.clone(), call.clone()), output.clone());
            Ok(())
        })
    }

    fn load_withheld_output<'a>(
        &'a self,
        run: &'a RunId,
        call: &'a CallPath,
    ) -> StoreFuture<'a, Option<OutputContent>> {
        self.ready_result(|kept| Ok(kept.withheld.get(&(run.clone(), call.clone())).cloned()))
    }

    fn erase_withheld_outputs<'a>(&'a self, lease: &'a Lease, except: &'a [CallPath]) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.owned_run_mut(lease)?;
            kept.withheld.retain(|(run, call), _| *run != lease.run || except.contains(call));
            Ok(())
        })
    }

    fn save_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            kept.artefacts.insert((run.clone(), name.to_owned()), text.to_owned());
            Ok(())
        })
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<String>> {
        self.ready_result(|kept| Ok(kept.artefacts.get(&(run.clone(), name.to_owned())).cloned()))
    }

    fn release_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreFuture<'a, ()> {
        self.ready_result(|kept| {
            if matches!(kept.receipts.get(key), Some(MemoryReceipt::Claimed { owner: by, .. }) if by == owner)
            {
                kept.receipts.remove(key);
            }
            Ok(())
        })
    }
}
