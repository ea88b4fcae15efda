//! A saved run as text: its journal, with the version of the format in front.

use serde::{Deserialize, Serialize};

use crate::entry::Record;

/// The version that this crate writes. It reads this one and every one before it.
pub const FORMAT_VERSION: u32 = 1;

/// Why a text is not a saved run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// It is not one at all.
    #[error("this is not a saved run: {0}")]
    NotASavedRun(#[source] serde_json::Error),
    /// It was written by a newer version of Windlass.
    #[error("this run was saved in format {found}, and this version reads formats up to {FORMAT_VERSION}")]
    TooNew {
        /// The format's version.
        found: u32,
    },
}

#[derive(Serialize)]
struct SavedRef<'a> {
    windlass: u32,
    records: &'a [Record],
}

#[derive(Deserialize)]
struct Saved {
    windlass: u32,
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Version {
    windlass: u32,
}

/// Writes a journal as the text of a saved run.
pub fn to_text(records: &[Record]) -> String {
    let saved = SavedRef { windlass: FORMAT_VERSION, records };
    // Entries hold text keys and finite numbers only, so they always print.
    serde_json::to_string(&saved).unwrap_or_default()
}

/// Reads the text of a saved run.
pub fn from_text(text: &str) -> Result<Vec<Record>, SavedError> {
    let read = serde_json::from_str::<Saved>(text);
    let version = match &read {
        Ok(saved) => saved.windlass,
        // A newer format need not parse; its version still does.
        Err(_) => serde_json::from_str::<Version>(text).map_err(SavedError::NotASavedRun)?.windlass,
    };
    if version > FORMAT_VERSION {
        return Err(SavedError::TooNew { found: version });
    }
    read.map(|saved| saved.records).map_err(SavedError::NotASavedRun)
}
