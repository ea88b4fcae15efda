//! Checks that the bank's ledger and the journal agree.

use std::collections::BTreeSet;
use std::path::Path;

use windlass::core::inspect::VerifiedJournal;
use windlass::core::{
    id::{CallId, RunId},
    item::Item,
    journal::{CallStatus, JournalEntry},
};
use windlass::store::verify_run;

use super::bank::{BankPayment, DemoBank};
use super::tools::APPROVAL_THRESHOLD;
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;

/// The evidence from the ledger and the journal.
pub(super) struct DemoProof {
    payments: Vec<BankPayment>,
    verified: VerifiedJournal,
    /// The call that was interrupted by the crash.
    interrupted_call: Option<CallId>,
}

impl DemoProof {
    /// Reads the bank's ledger and verifies the journal of the run.
    pub(super) async fn read(folder: &Path, run: &str, invoice: &str) -> Result<Self, CliError> {
        let payments = DemoBank::in_folder(folder).payments()?;
        let store = CliProject::of_folder(folder)?.open_existing().await?;
        let verified = verify_run(&*store, &RunId::from(run))
            .await
            .map_err(|error| CliError::new(error.to_string()).with_exit(CommandExit::CorruptJournal))?;
        let call = verified.records.iter().find_map(|record| match &record.entry {
            JournalEntry::ModelResponded(answered) => answered.items.iter().find_map(|item| match &**item {
                Item::Call(call) if call.arguments.contains(invoice) => Some(call.id.clone()),
                _ => None,
            }),
            _ => None,
        });
        Ok(Self { payments, verified, interrupted_call: call })
    }

    pub(super) fn payments(&self) -> &[BankPayment] {
        &self.payments
    }

    /// Returns the large payment, which was interrupted, with the arguments that were approved.
    pub(super) fn large_payment(&self) -> Option<&BankPayment> {
        self.payments.iter().find(|payment| payment.euros > APPROVAL_THRESHOLD)
    }

    /// Returns true if the journal records how the interrupted call ended.
    pub(super) fn is_settled(&self) -> bool {
        self.settled_status().is_some()
    }

    fn settled_status(&self) -> Option<&CallStatus> {
        self.verified.records.iter().find_map(|record| match &record.entry {
            JournalEntry::CallSettled(settled) if Some(&settled.call) == self.interrupted_call.as_ref() => {
                Some(&settled.status)
            }
            _ => None,
        })
    }

    fn start_count(&self) -> usize {
        let is_start = |entry: &JournalEntry| matches!(entry, JournalEntry::CallStarted(started) if Some(&started.call) == self.interrupted_call.as_ref());
        self.verified.records.iter().filter(|record| is_start(&record.entry)).count()
    }

    /// Returns the evidence as lines.
    ///
    /// # Errors
    ///
    /// Fails if a payment is missing or was made twice, or if the interrupted call was repeated.
    pub(super) fn evidence_lines(&self) -> Result<Vec<String>, CliError> {
        let keys = count_distinct(&self.payments, |payment| &payment.idempotency_key);
        if keys != 3 || self.payments.len() != 3 {
            let message = format!("found {} payments of {keys} calls, expected 3 of 3", self.payments.len());
            return Err(CliError::new(message)
                .with_hint("please report this: it is what Windlass promises never to do"));
        }
        if self.start_count() != 1 || self.settled_status() != Some(&CallStatus::Reconciled) {
            let status = self.settled_status().map_or_else(
                || "has no settlement".to_owned(),
                |status| format!("has the status {}", serde_json::json!(status)),
            );
            let message = format!("the payment was started {} times and {status}", self.start_count());
            return Err(CliError::new(message)
                .with_hint("please report this: it is what Windlass promises never to do"));
        }
        let paid = match count_distinct(&self.payments, |payment| &payment.invoice) {
            3 => "three invoices, three payments: each exactly once",
            // The person changed the number of the large invoice to that of a small one.
            _ => "three calls, three payments: each exactly once, with the arguments that you approved",
        };
        Ok(vec![
            paid.to_owned(),
            "the interrupted payment was started once, and settled by asking the bank".to_owned(),
            format!("the journal is intact: {} records in one hash chain", self.verified.records.len()),
        ])
    }
}

/// Returns the number of different values of a field.
fn count_distinct<'a>(payments: &'a [BankPayment], field: fn(&'a BankPayment) -> &'a String) -> usize {
    payments.iter().map(field).collect::<BTreeSet<_>>().len()
}
