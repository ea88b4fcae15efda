//! A store in memory: it survives a run, not the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use windlass_core::{AgentName, Line, OutputContent, RunId, Timestamp};

use super::{
    Durability, Lease, LeaseClaim, Posted, ReceiptClaim, ReceiptKey, RunStatus, Snapshot, Store, StoreResult,
    StoredRun,
};
use crate::error::{StoreError, StoreErrorKind};

/// A store in memory: it survives a run, not the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: BTreeMap<RunId, KeptRun>,
    receipts: BTreeMap<ReceiptKey, Receipt>,
    artefacts: BTreeMap<(RunId, String), String>,
}

#[derive(Debug)]
struct KeptRun {
    agent: AgentName,
    status: RunStatus,
    epoch: u64,
    owner: Option<(String, Timestamp)>,
    lines: Vec<Line>,
    inbox: Vec<Posted>,
    snapshot: Option<Snapshot>,
    created: Timestamp,
    updated: Timestamp,
}

#[derive(Debug)]
enum Receipt {
    Claimed { owner: String, until: Timestamp },
    Kept { output: OutputContent, expires: Option<Timestamp> },
}

impl MemoryStore {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at once, as an answer that is ready.
    fn now<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Kept) -> Result<T, StoreError>,
    ) -> StoreResult<'_, T> {
        std::future::ready(act(&mut self.kept())).boxed()
    }
}

impl Kept {
    fn run(&mut self, run: &RunId) -> Result<&mut KeptRun, StoreError> {
        self.runs
            .get_mut(run)
            .ok_or_else(|| StoreError::of(StoreErrorKind::NoSuchRun, format!("there is no run `{run}`")))
    }

    fn owned(&mut self, lease: &Lease) -> Result<&mut KeptRun, StoreError> {
        let run = self.run(&lease.run)?;
        if run.epoch == lease.epoch { Ok(run) } else { Err(StoreError::fenced(lease)) }
    }
}

impl Store for MemoryStore {
    fn create<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, Lease> {
        self.now(|kept| {
            if kept.runs.contains_key(run) {
                return Err(StoreError::of(
                    StoreErrorKind::Exists,
                    format!("there is a run `{run}` already"),
                ));
            }
            let kept_run = KeptRun {
                agent: agent.clone(),
                status: RunStatus::Running,
                epoch: 1,
                owner: Some((claim.owner.to_owned(), claim.until)),
                lines: Vec::new(),
                inbox: Vec::new(),
                snapshot: None,
                created: claim.now,
                updated: claim.now,
            };
            kept.runs.insert(run.clone(), kept_run);
            Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: 1 })
        })
    }

    fn acquire<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease> {
        self.now(|kept| {
            let kept_run = kept.run(run)?;
            if let Some((owner, until)) = &kept_run.owner
                && *until > claim.now
                && owner != claim.owner
            {
                return Err(StoreError::leased(run, owner));
            }
            kept_run.epoch += 1;
            kept_run.owner = Some((claim.owner.to_owned(), claim.until));
            Ok(Lease { run: run.clone(), owner: claim.owner.to_owned(), epoch: kept_run.epoch })
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreResult<'a, ()> {
        self.now(|kept| {
            kept.owned(lease)?.owner = Some((lease.owner.clone(), until));
            Ok(())
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreResult<'a, ()> {
        self.now(|kept| {
            if let Ok(run) = kept.owned(lease) {
                run.owner = None;
            }
            Ok(())
        })
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<Line>,
        _: Durability,
    ) -> StoreResult<'a, ()> {
        self.now(|kept| {
            let run = kept.owned(lease)?;
            let next = run.lines.len() as u64;
            if next != at {
                return Err(StoreError::stale(&lease.run, next, at));
            }
            run.lines.extend(lines);
            Ok(())
        })
    }

    fn mark<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreResult<'a, ()> {
        self.now(|kept| {
            let run = kept.owned(lease)?;
            run.status = status;
            run.updated = now;
            Ok(())
        })
    }

    fn keep_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: Snapshot) -> StoreResult<'a, ()> {
        self.now(|kept| {
            kept.owned(lease)?.snapshot = Some(snapshot);
            Ok(())
        })
    }

    fn snapshot<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Option<Snapshot>> {
        self.now(|kept| Ok(kept.runs.get(run).and_then(|run| run.snapshot.clone())))
    }

    fn load<'a>(&'a self, run: &'a RunId, from: u64) -> StoreResult<'a, Vec<Line>> {
        self.now(|kept| {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let lines = kept.runs.get(run).and_then(|run| run.lines.get(from..));
            Ok(lines.map(<[Line]>::to_vec).unwrap_or_default())
        })
    }

    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>> {
        self.now(|kept| {
            let mut runs: Vec<StoredRun> = kept
                .runs
                .iter()
                .map(|(id, run)| StoredRun {
                    run: id.clone(),
                    agent: run.agent.clone(),
                    status: run.status,
                    records: run.lines.len() as u64,
                    owner: run.owner.clone(),
                    created: run.created,
                    updated: run.updated,
                })
                .collect();
            runs.sort_by(|a, b| (b.created, &b.run).cmp(&(a.created, &a.run)));
            Ok(runs)
        })
    }

    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()> {
        self.now(|kept| {
            let inbox = &mut kept.run(run)?.inbox;
            match inbox.iter().find(|known| known.is_about_the_same(&posted)) {
                Some(known) if known.decided.is_same(&posted.decided) => Ok(()),
                Some(_) => Err(StoreError::decided(run, &posted.path)),
                None => {
                    inbox.push(posted);
                    Ok(())
                }
            }
        })
    }

    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>> {
        self.now(|kept| Ok(kept.runs.get(run).map(|run| run.inbox.clone()).unwrap_or_default()))
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, ReceiptClaim> {
        self.now(|kept| {
            match kept.receipts.get(key) {
                Some(Receipt::Kept { output, expires })
                    if expires.is_none_or(|expires| expires > claim.now) =>
                {
                    return Ok(ReceiptClaim::Receipt(output.clone()));
                }
                Some(Receipt::Claimed { owner, until }) if *until > claim.now && owner != claim.owner => {
                    return Ok(ReceiptClaim::Busy { until: *until });
                }
                Some(Receipt::Kept { .. } | Receipt::Claimed { .. }) | None => {}
            }
            let claimed = Receipt::Claimed { owner: claim.owner.to_owned(), until: claim.until };
            kept.receipts.insert(key.clone(), claimed);
            Ok(ReceiptClaim::Mine)
        })
    }

    fn keep_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreResult<'a, ()> {
        self.now(|kept| {
            if matches!(kept.receipts.get(key), Some(Receipt::Claimed { owner: by, .. }) if by == owner) {
                kept.receipts.insert(key.clone(), Receipt::Kept { output: output.clone(), expires });
            }
            Ok(())
        })
    }

    fn keep_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreResult<'a, ()> {
        self.now(|kept| {
            kept.artefacts.insert((run.clone(), name.to_owned()), text.to_owned());
            Ok(())
        })
    }

    fn artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreResult<'a, Option<String>> {
        self.now(|kept| Ok(kept.artefacts.get(&(run.clone(), name.to_owned())).cloned()))
    }

    fn give_up_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreResult<'a, ()> {
        self.now(|kept| {
            if matches!(kept.receipts.get(key), Some(Receipt::Claimed { owner: by, .. }) if by == owner) {
                kept.receipts.remove(key);
            }
            Ok(())
        })
    }
}
