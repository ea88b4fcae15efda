//! The one way in which an entry becomes part of a run: applied to its state, redacted, given its place in the journal,
//! written with the items that the session lacks and the receipt that the store lacks, and observed.
//!
//! Invariant: the state of the run, the order of the records and the order of the events change together, before the
//! first await. Withheld outputs, which output guardrails have not passed yet, are in the store's place for drivers or in
//! the driver's memory, never in a record, an event or an export.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use windlass_core::{
    id::{CallId, CallPath},
    item::OutputContent,
    journal::{JournalEntry, JournalRecord, RunStarted},
    run::{ApplyError, Run},
};

use super::{EnqueuedEntry, PendingWrite, RunJournal};
use crate::error::{RunError, StoreError};
use crate::event::EventEmitter;
use crate::lock_unpoisoned;
use crate::lost_secrets::redact_answer;
use crate::observe::{HookObservation, LiveEvents};
use crate::receipts::{ReceiptCache, ReceiptDestination};
use crate::redaction::SecretRegistry;
use crate::session::{RunSession, SessionWrite};
use crate::store::{DerivedWrites, Durability};

/// The state of a run with its nested runs, and everything that its entries are recorded in. The drivers of nested agents
/// share it.
pub(crate) struct RunRecorder {
    run: Mutex<Run>,
    pub(crate) journal: Arc<RunJournal>,
    pub(crate) receipt_cache: Arc<ReceiptCache>,
    pub(crate) secrets: SecretRegistry,
    events: LiveEvents,
    session: Option<RunSession>,
}

/// An entry that was applied and has its place in the journal.
pub(crate) struct RecordedEntry<'a> {
    seq: u64,
    durability: Durability,
    writing: Option<PendingWrite<'a>>,
    for_hooks: Option<HookObservation>,
}

impl RunRecorder {
    pub(crate) fn new(
        run: Run,
        journal: Arc<RunJournal>,
        receipt_cache: Arc<ReceiptCache>,
        secrets: SecretRegistry,
        events: LiveEvents,
        session: Option<RunSession>,
    ) -> Self {
        Self { run: Mutex::new(run), journal, receipt_cache, secrets, events, session }
    }

    /// Applies an entry to the run at a path and enqueues it for the journal. [`RunRecorder::wait_recorded`] waits for the
    /// store. Only entries that `is_observed` have events. The receipt of a call that settles with one is written to
    /// `receipt_to`, with the entry.
    ///
    /// # Errors
    ///
    /// Returns an error if the state rejects the entry: a defect of the driver, after which the run must not continue.
    pub(crate) fn enqueue(
        &self,
        path: &[CallId],
        entry: JournalEntry,
        is_observed: bool,
        receipt_to: Option<ReceiptDestination>,
    ) -> Result<RecordedEntry<'_>, StoreError> {
        let before = match &entry {
            JournalEntry::ModelResponded(_) => self.session_write(path, |_| true),
            _ => None,
        };
        let settled_call = match &entry {
            JournalEntry::CallSettled(settled) if receipt_to.is_some() => Some(settled.call.clone()),
            _ => None,
        };
        let applied = lock_unpoisoned(&self.run).apply_at(path, &entry);
        let applied = applied.map_err(|why| self.invalid_entry_error(&why))?;
        let mut writes = DerivedWrites::default();
        if let Some(receipt) = applied.receipt {
            let now = self.journal.now();
            // The cache is in the process that has the secrets; the store is not.
            let stored = receipt_to.zip(settled_call).map(|(to, call)| {
                let output = self.secrets.redact_kept_output(path, &call, receipt.output.clone());
                to.receipt_write(output, now)
            });
            writes.receipts.extend(stored);
            self.receipt_cache.insert_receipt(receipt, now);
        }
        let session_write = before.or_else(|| self.session_write(path, |run| run.outcome().is_some()));
        writes.sessions.extend(session_write);
        writes.is_status_deferred = path.is_empty()
            && self.session.as_ref().is_some_and(|session| !session.is_in_store())
            && self.with_root(|run| run.outcome().is_some());
        let entry = self.secrets.redact_entry(path, entry);
        // Watchers see what the journal has, so that a live run and its replay look the same.
        let observed = is_observed.then(|| entry.clone());
        let EnqueuedEntry { seq, at, durability, writing } = self.journal.enqueue(path, entry, writes)?;
        let for_hooks = observed.and_then(|entry| {
            let record = JournalRecord { seq, at, path: path.to_vec(), entry };
            self.with_root(|root| self.events.observe(&record, root, &self.secrets))
        });
        Ok(RecordedEntry { seq, durability, writing, for_hooks })
    }

    /// Waits until an entry is durable, where its kind requires it, and delivers the events up to it to a watcher.
    pub(crate) async fn wait_recorded(
        &self,
        recorded: RecordedEntry<'_>,
        watcher: Option<&EventEmitter>,
    ) -> Result<Option<HookObservation>, StoreError> {
        if let Some(writing) = recorded.writing {
            writing.await?;
        }
        if let Some(watcher) = watcher.filter(|_| recorded.durability == Durability::Sync) {
            self.events.deliver(recorded.seq, watcher).await;
        }
        Ok(recorded.for_hooks)
    }

    /// Records a decision. Returns false if it does not fit the call any more.
    pub(crate) async fn record_decision(
        &self,
        path: &[CallId],
        entry: JournalEntry,
    ) -> Result<bool, StoreError> {
        if lock_unpoisoned(&self.run).apply_at(path, &entry).is_err() {
            return Ok(false);
        }
        // The run has the secrets that a person has given again; its journal has placeholders.
        let mut recorded = entry;
        redact_answer(&mut recorded);
        self.journal.append(path, recorded).await?;
        Ok(true)
    }

    /// Returns the items that the session in the run's store lacks, if the outermost run is one that `is_due`.
    fn session_write(&self, path: &[CallId], is_due: impl FnOnce(&Run) -> bool) -> Option<SessionWrite> {
        let session = self.session.as_ref().filter(|session| path.is_empty() && session.is_in_store())?;
        self.with_root(|run| is_due(run).then(|| session.take_missing_items(run, &self.secrets)))?
    }

    /// Writes the items of the last settled turn to a session that is not in the run's store.
    pub(crate) async fn save_turn_to_session(&self) -> Result<(), RunError> {
        match &self.session {
            Some(session) if !session.is_in_store() => self.update_session().await,
            Some(_) | None => Ok(()),
        }
    }

    /// Writes all that the session lacks of the run: at its start, when a driver takes over, and when it leaves.
    pub(crate) async fn update_session(&self) -> Result<(), RunError> {
        let Some(session) = &self.session else { return Ok(()) };
        let missing = self.with_root(|run| session.take_missing_items(run, &self.secrets));
        match missing {
            Some(write) => session.append_items(write).await.map_err(RunError::Session),
            None => Ok(()),
        }
    }

    /// Releases the session of a run that its driver leaves.
    pub(crate) async fn release_session(&self) {
        if let Some(session) = &self.session {
            session.release_hold().await;
        }
    }

    /// Returns the session of the run.
    pub(crate) fn session(&self) -> Option<&RunSession> {
        self.session.as_ref()
    }

    /// Returns the error for an entry that the run state rejected.
    pub(crate) fn invalid_entry_error(&self, why: &ApplyError) -> StoreError {
        let run = self.with_root(|run| run.id().clone());
        StoreError::new(format!("run `{run}` would become invalid: {why}"))
    }

    /// Reads the state of the run at a path.
    pub(crate) fn with_run<T>(&self, path: &[CallId], read: impl FnOnce(&Run) -> T) -> T {
        let root = lock_unpoisoned(&self.run);
        // The nested run exists as long as its call is open, which it is while a driver works on it.
        read(root.at_path(path).unwrap_or(&root))
    }

    /// Reads the state of the outermost run.
    pub(crate) fn with_root<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        read(&lock_unpoisoned(&self.run))
    }

    /// Takes the state of the run, for its result.
    pub(crate) fn take_run(&self) -> Run {
        let mut run = lock_unpoisoned(&self.run);
        let nothing = Run::start(RunStarted::new(run.id().clone(), run.agent().clone()));
        std::mem::replace(&mut *run, nothing)
    }
}

/// The withheld outputs of a run, by call.
#[derive(Default)]
pub(crate) struct WithheldOutputs {
    in_memory: Mutex<BTreeMap<CallPath, OutputContent>>,
}

impl WithheldOutputs {
    /// Creates the withheld outputs of a run that is resumed.
    pub(crate) fn new(kept: BTreeMap<CallPath, OutputContent>) -> Self {
        Self { in_memory: Mutex::new(kept) }
    }

    /// Keeps an output: in the store, or in memory if the run has none.
    pub(crate) async fn save(
        &self,
        journal: &RunJournal,
        call: &CallPath,
        output: OutputContent,
    ) -> Result<(), StoreError> {
        match journal.store_and_lease() {
            Some((store, lease)) => store.save_withheld_output(lease, call, &output).await,
            None => {
                lock_unpoisoned(&self.in_memory).insert(call.clone(), output);
                Ok(())
            }
        }
    }

    /// Loads the output of a call, if it was kept.
    pub(crate) async fn load(
        &self,
        journal: &RunJournal,
        call: &CallPath,
    ) -> Result<Option<OutputContent>, StoreError> {
        if let Some(output) = lock_unpoisoned(&self.in_memory).get(call).cloned() {
            return Ok(Some(output));
        }
        match journal.store_and_lease() {
            Some((store, lease)) => store.load_withheld_output(&lease.run, call).await,
            None => Ok(None),
        }
    }

    /// Makes the store of a resumed run have exactly the outputs of the calls that still wait for their guardrails: writes
    /// those that came with the run, so that they outlive this process, and erases those that a process left behind when it
    /// ended right after a settlement.
    pub(crate) async fn restore(
        &self,
        journal: &RunJournal,
        withheld: &[CallPath],
    ) -> Result<(), StoreError> {
        let Some((store, lease)) = journal.store_and_lease() else { return Ok(()) };
        for (call, output) in self.in_memory() {
            store.save_withheld_output(lease, &call, &output).await?;
        }
        let mut leftovers = store.list_withheld_outputs(&lease.run).await?;
        leftovers.retain(|call| !withheld.contains(call));
        if leftovers.is_empty() { Ok(()) } else { store.erase_withheld_outputs(lease, &leftovers).await }
    }

    /// Loads the outputs of these calls from the store, for a run that is moved elsewhere.
    pub(crate) async fn take_along(
        &self,
        journal: &RunJournal,
        calls: Vec<CallPath>,
    ) -> Result<(), StoreError> {
        for call in calls {
            if let Some(output) = self.load(journal, &call).await? {
                lock_unpoisoned(&self.in_memory).insert(call, output);
            }
        }
        Ok(())
    }

    /// Erases the output of a call that has settled.
    pub(crate) async fn erase(&self, journal: &RunJournal, call: CallPath) -> Result<(), StoreError> {
        lock_unpoisoned(&self.in_memory).remove(&call);
        match journal.store_and_lease() {
            Some((store, lease)) => store.erase_withheld_outputs(lease, &[call]).await,
            None => Ok(()),
        }
    }

    /// Returns the outputs in memory, for a run that another driver continues.
    pub(crate) fn in_memory(&self) -> BTreeMap<CallPath, OutputContent> {
        lock_unpoisoned(&self.in_memory).clone()
    }
}
