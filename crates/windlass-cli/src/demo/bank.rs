//! The demo's bank: a file. It pays whatever it is told, as often as it is told, so whatever is done twice shows.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The bank's own book.
#[derive(Clone, Debug)]
pub(super) struct Bank {
    ledger: PathBuf,
}

/// A payment as the bank has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payment {
    /// The key that whoever asked for it gave.
    pub(super) key: String,
    pub(super) to: String,
    pub(super) euros: u32,
    pub(super) invoice: String,
}

impl Bank {
    /// The bank of a demo's folder.
    pub(super) fn of(folder: &Path) -> Self {
        Self { ledger: folder.join("bank/ledger.csv") }
    }

    /// Moves the money.
    pub(super) fn pay(&self, payment: &Payment) -> std::io::Result<()> {
        let Payment { key, to, euros, invoice } = payment;
        let mut file = fs::File::options().create(true).append(true).open(&self.ledger)?;
        // In one piece, because several may pay at once; and on the disk, because money is.
        file.write_all(format!("{key},{},{euros},{}\n", cell(to), cell(invoice)).as_bytes())?;
        file.sync_all()
    }

    /// What it has paid, oldest first.
    pub(super) fn payments(&self) -> std::io::Result<Vec<Payment>> {
        let text = match fs::read_to_string(&self.ledger) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(text.lines().filter_map(read).collect())
    }
}

fn read(line: &str) -> Option<Payment> {
    let mut cells = line.split(',').map(str::to_owned);
    Some(Payment {
        key: cells.next()?,
        to: cells.next()?,
        euros: cells.next()?.parse().ok()?,
        invoice: cells.next()?,
    })
}

/// A text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace([',', '\n', '\r'], " ")
}
