//! What the bank's book and the journal say, and whether they agree.

use std::path::Path;

use windlass::SqliteStore;
use windlass::core::time::{Verified, verify};
use windlass::core::{CallId, Entry, How, Item, RunId};
use windlass::store::Store;

use super::bank::{Bank, Payment};
use crate::problem::{Exit, Problem};

/// What there is to show.
pub(super) struct Proof {
    payments: Vec<Payment>,
    verified: Verified,
    /// The call that was cut short.
    call: Option<CallId>,
}

impl Proof {
    /// Reads the bank's book, and checks the journal of the run.
    pub(super) async fn read(folder: &Path, run: &str, invoice: &str) -> Result<Self, Problem> {
        let payments = Bank::of(folder).payments()?;
        let store = SqliteStore::open(folder.join(".windlass/windlass.db"))?;
        let lines = store.load(&RunId::from(run), 0).await?;
        let verified = verify(&lines).map_err(|error| Problem::new(error.to_string()).exits(Exit::Broken))?;
        let call = verified.records.iter().find_map(|record| match &record.entry {
            Entry::Answered(answered) => answered.items.iter().find_map(|item| match &**item {
                Item::Call(call) if call.arguments.contains(invoice) => Some(call.id.clone()),
                _ => None,
            }),
            _ => None,
        });
        Ok(Self { payments, verified, call })
    }

    pub(super) fn payments(&self) -> &[Payment] {
        &self.payments
    }

    /// The payment of an invoice.
    pub(super) fn paid(&self, invoice: &str) -> Option<&Payment> {
        self.payments.iter().find(|payment| payment.invoice == invoice)
    }

    /// Whether the journal says how the call that was cut short ended.
    pub(super) fn is_settled(&self) -> bool {
        self.settlement().is_some()
    }

    fn settlement(&self) -> Option<&How> {
        self.verified.records.iter().find_map(|record| match &record.entry {
            Entry::CallSettled(settled) if Some(&settled.call) == self.call.as_ref() => Some(&settled.how),
            _ => None,
        })
    }

    fn starts(&self) -> usize {
        let is_start = |entry: &Entry| matches!(entry, Entry::CallStarted(started) if Some(&started.call) == self.call.as_ref());
        self.verified.records.iter().filter(|record| is_start(&record.entry)).count()
    }

    /// What it shows, in lines; an error where it does not.
    pub(super) fn shown(&self) -> Result<Vec<String>, Problem> {
        let mut invoices: Vec<&str> = self.payments.iter().map(|payment| payment.invoice.as_str()).collect();
        invoices.sort_unstable();
        invoices.dedup();
        if invoices.len() != 3 || self.payments.len() != 3 {
            let message = format!(
                "{} payments of {} invoices, and there should be 3 of 3",
                self.payments.len(),
                invoices.len()
            );
            return Err(
                Problem::new(message).hint("please report this: it is what Windlass promises never to do")
            );
        }
        if self.starts() != 1 || self.settlement() != Some(&How::Reconciled) {
            let message = format!(
                "the payment was started {} times, and settled as {:?}",
                self.starts(),
                self.settlement()
            );
            return Err(
                Problem::new(message).hint("please report this: it is what Windlass promises never to do")
            );
        }
        Ok(vec![
            "three invoices, three payments: each exactly once".to_owned(),
            "the one that was cut short was started once, and settled by asking the bank".to_owned(),
            format!(
                "the journal is whole: {} records, each chained to the one before",
                self.verified.records.len()
            ),
        ])
    }
}
