//! Withheld outputs: results of bodies whose output guardrails have not passed them yet.
//!
//! Invariant: they are in the store's place for drivers or in the driver's memory, never in a record, an event or an
//! export.

use std::collections::BTreeMap;
use std::sync::Mutex;

use windlass_core::id::CallPath;
use windlass_core::item::OutputContent;

use super::lock_unpoisoned;
use super::run_journal::RunJournal;
use crate::error::StoreError;

/// The withheld outputs of a run, by call.
#[derive(Default)]
pub(super) struct WithheldOutputs {
    in_memory: Mutex<BTreeMap<CallPath, OutputContent>>,
}

impl WithheldOutputs {
    /// Creates the withheld outputs of a run that is resumed.
    pub(super) fn new(kept: BTreeMap<CallPath, OutputContent>) -> Self {
        Self { in_memory: Mutex::new(kept) }
    }

    /// Keeps an output: in the store, or in memory if the run has none.
    pub(super) async fn save(
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
    pub(super) async fn load(
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

    /// Erases all outputs except those of these calls.
    pub(super) async fn retain(&self, journal: &RunJournal, kept: &[CallPath]) -> Result<(), StoreError> {
        lock_unpoisoned(&self.in_memory).retain(|call, _| kept.contains(call));
        match journal.store_and_lease() {
            Some((store, lease)) => store.erase_withheld_outputs(lease, kept).await,
            None => Ok(()),
        }
    }

    /// Returns the outputs in memory, for a run that another driver continues.
    pub(super) fn in_memory(&self) -> BTreeMap<CallPath, OutputContent> {
        lock_unpoisoned(&self.in_memory).clone()
    }
}
