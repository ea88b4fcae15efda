//! The verdict: journals compared with the outside world.

use std::collections::BTreeMap;
use std::path::Path;

use windlass::core::{
    id::CallId,
    journal::{CallStatus, JournalEntry, JournalRecord, decode_lines},
    plan::CallDisposition,
    run::Run,
};
use windlass::store::{SqliteStore, Store};
use windlass_sim::check_history;

use crate::effect_ledger::EffectLedger;

/// The verdict over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TortureVerdict {
    /// Total number of calls.
    pub calls: u64,
    /// Number of calls with a duplicate effect or with different idempotency keys.
    pub twice: u64,
    /// Number of calls that succeeded in the journal and have no effect in the outside world.
    pub lost: u64,
    /// Number of runs that did not end, or whose history is invalid.
    pub unfinished: u64,
}

/// Compares the journals in a folder with its ledger.
///
/// # Errors
/// Returns the message of a store, ledger, format or replay error.
pub async fn check_runs(folder: &Path, runs: &[String]) -> Result<TortureVerdict, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let store = SqliteStore::open(folder.join("torture.db")).map_err(|error| said(&error))?;
    let deeds =
        EffectLedger::in_file(folder.join("ledger.txt")).load_entries().map_err(|error| said(&error))?;
    let mut verdict = TortureVerdict::default();
    let mut by_call: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for deed in &deeds {
        by_call.entry((&deed.tool, &deed.call)).or_default().push(&deed.key);
    }
    for ((tool, call), keys) in &by_call {
        let is_wrong = match *tool {
            "key" => keys.iter().any(|key| key != &keys[0]),
            _ => keys.len() > 1,
        };
        if is_wrong {
            eprintln!("{tool} has {} ledger entries for {call}, with keys {keys:?}", keys.len());
            verdict.twice += 1;
        }
    }
    for run in runs {
        let lines = store.load_journal(&run.as_str().into(), 0).await.map_err(|error| said(&error))?;
        let records = decode_lines(&lines).map_err(|error| format!("{run}: {error}"))?;
        let replay = Run::replay(&records).map_err(|error| format!("{run}: {error}"))?;
        let violation = match replay.run.outcome() {
            None => Some("it did not end".to_owned()),
            Some(_) => check_history(replay.run.history()).err().map(|violation| violation.to_string()),
        };
        if let Some(violation) = violation {
            eprintln!("{run}: {violation}: {}", replay.run.summary());
            verdict.unfinished += 1;
        }
        count_calls(run, &records, &by_call, &mut verdict);
    }
    Ok(verdict)
}

fn count_calls(
    run: &str,
    records: &[JournalRecord],
    done: &BTreeMap<(&str, &str), Vec<&str>>,
    verdict: &mut TortureVerdict,
) {
    let mut tools: BTreeMap<(&[CallId], &CallId), &str> = BTreeMap::new();
    for record in records {
        match &record.entry {
            JournalEntry::ModelResponded(answered) => {
                for planned in &answered.calls {
                    verdict.calls += 1;
                    if matches!(planned.disposition, CallDisposition::Execute { .. }) {
                        tools.insert((&record.path, &planned.call), planned.key.name());
                    }
                }
            }
            JournalEntry::CallSettled(settled)
                if matches!(settled.status, CallStatus::Succeeded | CallStatus::Reconciled) =>
            {
                let Some(tool) = tools.get(&(record.path.as_slice(), &settled.call)) else { continue };
                if matches!(*tool, "look" | "helper") {
                    continue;
                }
                let path: Vec<&str> = record.path.iter().map(CallId::as_str).collect();
                let (of_run, path) = match path.as_slice() {
                    [] => (run.to_owned(), settled.call.to_string()),
                    within => {
                        let within = within.join("/");
                        (format!("{run}/{within}"), format!("{within}/{}", settled.call))
                    }
                };
                let name = format!("{of_run}:{path}");
                if !done.contains_key(&(*tool, name.as_str())) {
                    eprintln!("{tool} succeeded for {name}, but the ledger has no entry");
                    verdict.lost += 1;
                }
            }
            _ => {}
        }
    }
}
