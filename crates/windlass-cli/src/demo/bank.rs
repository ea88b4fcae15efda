//! The demo's bank: a file. It executes every payment it receives, without deduplication, so that a repeated
//! payment is visible.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A bank whose ledger is a CSV file.
#[derive(Clone, Debug)]
pub(super) struct DemoBank {
    ledger: PathBuf,
}

/// A payment in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BankPayment {
    /// The idempotency key that the caller sent.
    pub(super) idempotency_key: String,
    pub(super) to: String,
    pub(super) euros: u32,
    pub(super) invoice: String,
}

impl DemoBank {
    /// Returns the bank in the demo's folder.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { ledger: folder.join("bank/ledger.csv") }
    }

    /// Appends a payment to the ledger and syncs it to disk.
    pub(super) fn append_payment(&self, payment: &BankPayment) -> std::io::Result<()> {
        let BankPayment { idempotency_key: key, to, euros, invoice } = payment;
        let mut file = fs::File::options().create(true).append(true).open(&self.ledger)?;
        // One write per payment, because several calls may pay at once.
        file.write_all(format!("{key},{},{euros},{}\n", csv_cell(to), csv_cell(invoice)).as_bytes())?;
        file.sync_all()
    }

    /// Returns the payments, oldest first.
    pub(super) fn payments(&self) -> std::io::Result<Vec<BankPayment>> {
        let text = match fs::read_to_string(&self.ledger) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(text.lines().filter_map(parse_payment).collect())
    }
}

fn parse_payment(line: &str) -> Option<BankPayment> {
    let mut cells = line.split(',').map(str::to_owned);
    Some(BankPayment {
        idempotency_key: cells.next()?,
        to: cells.next()?,
        euros: cells.next()?.parse().ok()?,
        invoice: cells.next()?,
    })
}

/// Replaces the characters that would end a CSV cell.
fn csv_cell(text: &str) -> String {
    text.replace([',', '\n', '\r'], " ")
}
