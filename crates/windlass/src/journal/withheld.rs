//! Withheld outputs: results of bodies whose output guardrails have not passed them yet.
//!
//! Invariant: they are in the store's place for drivers or in the driver's memory, never in a record, an event or an
//! export.

use std::collections::BTreeMap;
use std::sync::Mutex;

use windlass_core::id::CallPath;
use windlass_core::item::OutputContent;

use super::run_journal::RunJournal;
use crate::error::StoreError;
use crate::lock_unpoisoned;

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

    /// Writes the outputs that came with a resumed run to its store, so that they outlive this process.
    pub(crate) async fn save_brought_along(&self, journal: &RunJournal) -> Result<(), StoreError> {
        let Some((store, lease)) = journal.store_and_lease() else { return Ok(()) };
        for (call, output) in self.in_memory() {
            store.save_withheld_output(lease, &call, &output).await?;
        }
        Ok(())
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

    /// Erases the outputs that a process left behind when it ended right after a settlement. `withheld` are the calls
    /// that still wait for their guardrails.
    pub(crate) async fn erase_leftovers(
        &self,
        journal: &RunJournal,
        withheld: &[CallPath],
    ) -> Result<(), StoreError> {
        let Some((store, lease)) = journal.store_and_lease() else { return Ok(()) };
        let mut leftovers = store.list_withheld_outputs(&lease.run).await?;
        leftovers.retain(|call| !withheld.contains(call));
        if leftovers.is_empty() { Ok(()) } else { store.erase_withheld_outputs(lease, &leftovers).await }
    }

    /// Returns the outputs in memory, for a run that another driver continues.
    pub(crate) fn in_memory(&self) -> BTreeMap<CallPath, OutputContent> {
        lock_unpoisoned(&self.in_memory).clone()
    }
}
