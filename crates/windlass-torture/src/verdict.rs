//! What came of it: journals against the outside world.

use std::collections::BTreeMap;
use std::path::Path;

use windlass::core::{CallId, Entry, How, Item, Record, Run, Work, read_lines};
use windlass::store::{SqliteStore, Store};

use crate::ledger::Ledger;

/// What came of all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Calls in all.
    pub calls: u64,
    /// Effects that must not happen twice, and did; keys that were not the same; decisions that were passed over.
    pub twice: u64,
    /// Calls that the journal says were done and the outside world knows nothing of.
    pub lost: u64,
    /// Runs that did not end, or whose history is not valid.
    pub unfinished: u64,
}

/// Looks at everything that is left in a folder.
pub async fn verdict(folder: &Path, runs: &[String]) -> Result<Verdict, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let store = SqliteStore::open(folder.join("torture.db")).map_err(|error| said(&error))?;
    let deeds = Ledger::at(folder.join("ledger.txt")).deeds().map_err(|error| said(&error))?;
    let mut verdict = Verdict::default();
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
            eprintln!("{tool} was done {} times for {call}, with keys {keys:?}", keys.len());
            verdict.twice += 1;
        }
    }
    for run in runs {
        let lines = store.load(&run.as_str().into(), 0).await.map_err(|error| said(&error))?;
        let records = read_lines(&lines).map_err(|error| format!("{run}: {error}"))?;
        let replay = Run::replay(&records).map_err(|error| format!("{run}: {error}"))?;
        if replay.run.end().is_none() || !is_valid(replay.run.history()) {
            eprintln!("{run} did not end well: {}", replay.run.summary());
            verdict.unfinished += 1;
        }
        count(run, &records, &by_call, &mut verdict);
    }
    Ok(verdict)
}

fn count(run: &str, records: &[Record], done: &BTreeMap<(&str, &str), Vec<&str>>, verdict: &mut Verdict) {
    let mut tools: BTreeMap<(&[CallId], &CallId), &str> = BTreeMap::new();
    for record in records {
        match &record.entry {
            Entry::Answered(answered) => {
                for planned in &answered.calls {
                    verdict.calls += 1;
                    if matches!(planned.work, Work::Body { .. }) {
                        tools.insert((&record.path, &planned.call), planned.key.name());
                    }
                }
            }
            Entry::CallSettled(settled) if matches!(settled.how, How::Succeeded | How::Reconciled) => {
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
                    eprintln!("{tool} is settled for {name} and was never done");
                    verdict.lost += 1;
                }
            }
            _ => {}
        }
    }
}

/// Whether every call has exactly one output, before the model speaks again.
fn is_valid(history: &[std::sync::Arc<Item>]) -> bool {
    let mut open: Vec<&CallId> = Vec::new();
    for item in history {
        match &**item {
            Item::Call(call) => open.push(&call.id),
            Item::Output(output) => match open.iter().position(|call| **call == output.call) {
                Some(place) => {
                    open.remove(place);
                }
                None => return false,
            },
            Item::Message(_) if !open.is_empty() => return false,
            _ => {}
        }
    }
    open.is_empty()
}
