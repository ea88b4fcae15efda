//! Comparison of two runs: their common prefix, and the steps of each after it.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::steps::{StepLine, step_lines, truncate_to_line};
use crate::id::RunId;
use crate::journal::{CallStarted, JournalEntry, JournalRecord, RunStarted};

/// The differences between two runs. Run ids, times, fork origins and sessions are not compared.
#[derive(Clone, Debug, PartialEq)]
pub struct RunDiff {
    /// Number of leading records that are equal.
    pub common_records: u64,
    /// The first differing record, if both runs have one at that position.
    pub first_difference: Option<RecordDifference>,
    /// Steps of the first run after the common prefix.
    pub first_steps: Vec<StepLine>,
    /// Steps of the second run after the common prefix.
    pub second_steps: Vec<StepLine>,
}

/// The differences between two records.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordDifference {
    /// The sequence number of both records.
    pub seq: u64,
    /// All fields that differ.
    pub fields: Vec<FieldDifference>,
}

/// A field that differs between two records.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldDifference {
    /// Path of the field, such as `output.text` or `calls[1].digest`.
    pub field: String,
    /// Value in the first record.
    pub first: Option<Value>,
    /// Value in the second record.
    pub second: Option<Value>,
}

impl RunDiff {
    /// Returns true if the runs are equal.
    pub fn is_empty(&self) -> bool {
        self.first_steps.is_empty() && self.second_steps.is_empty()
    }
}

impl fmt::Display for RunDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "both runs are the same, in {} records", self.common_records);
        }
        writeln!(f, "the first {} records are the same", self.common_records)?;
        if let Some(difference) = &self.first_difference {
            for field in &difference.fields {
                writeln!(f, "record {}: {field}", difference.seq)?;
            }
        }
        for (name, steps) in [("first", &self.first_steps), ("second", &self.second_steps)] {
            if steps.is_empty() {
                writeln!(f, "the {name} run ends there")?;
                continue;
            }
            writeln!(f, "the {name} run goes on:")?;
            for step in steps {
                writeln!(f, "{step}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, first, second } = self;
        let shown = |value: &Value| truncate_to_line(&value.to_string());
        match (first, second) {
            (Some(first), Some(second)) => {
                write!(f, "`{field}` is {} in the first and {} in the second", shown(first), shown(second))
            }
            (Some(first), None) => write!(f, "`{field}` is in the first alone: {}", shown(first)),
            (None, Some(second)) => write!(f, "`{field}` is in the second alone: {}", shown(second)),
            (None, None) => write!(f, "`{field}` is in neither"),
        }
    }
}

/// Compares two runs record by record.
pub fn diff_runs(first: &[JournalRecord], second: &[JournalRecord]) -> RunDiff {
    let (of_first, of_second) = (run_id_of(first), run_id_of(second));
    let is_same = |(a, b): &(&JournalRecord, &JournalRecord)| {
        a.path == b.path
            && match (&a.entry, &b.entry) {
                (JournalEntry::RunStarted(a), JournalEntry::RunStarted(b)) => {
                    without_identity(a, of_first) == without_identity(b, of_second)
                }
                (JournalEntry::CallStarted(a), JournalEntry::CallStarted(b)) => {
                    without_origin(a) == without_origin(b)
                }
                (a, b) => a == b,
            }
    };
    let common = first.iter().zip(second).take_while(is_same).count();
    let difference = match (first.get(common), second.get(common)) {
        (Some(a), Some(b)) => {
            let fields = differing_fields(&entry_fields(a, of_first), &entry_fields(b, of_second));
            Some(RecordDifference { seq: common as u64, fields })
        }
        _ => None,
    };
    let rest = |records| step_lines(records).split_off(common);
    RunDiff {
        common_records: common as u64,
        first_difference: difference,
        first_steps: rest(first),
        second_steps: rest(second),
    }
}

fn run_id_of(records: &[JournalRecord]) -> Option<&RunId> {
    records.first().and_then(|record| match &record.entry {
        JournalEntry::RunStarted(started) => Some(&started.run),
        _ => None,
    })
}

/// Returns the start of a call without the run that it was made in.
fn without_origin(started: &CallStarted) -> CallStarted {
    CallStarted { is_inherited: false, ..started.clone() }
}

/// Returns the start entry without run id, nonce, session, origin and build. For a nested agent, the part of the id that
/// gives its path is kept.
fn without_identity(started: &RunStarted, run: Option<&RunId>) -> RunStarted {
    let id = started.run.as_str();
    let rest = run.and_then(|run| id.strip_prefix(run.as_str())).unwrap_or(id);
    let mut started = started.clone();
    // The items count, not the place that they are read from.
    if let Ok(inline) = started.history.to_inline() {
        started.history = inline;
    }
    RunStarted { run: rest.into(), key_nonce: None, session: None, origin: None, build: None, ..started }
}

/// Returns the fields of a record that are compared.
fn entry_fields(record: &JournalRecord, run: Option<&RunId>) -> Value {
    let entry = match &record.entry {
        JournalEntry::RunStarted(started) => JournalEntry::RunStarted(without_identity(started, run).into()),
        JournalEntry::CallStarted(started) => JournalEntry::CallStarted(without_origin(started)),
        entry => entry.clone(),
    };
    let mut fields = serde_json::to_value(entry).unwrap_or_default();
    if let (Some(fields), false) = (fields.as_object_mut(), record.path.is_empty()) {
        fields.insert("path".to_owned(), record.path.iter().map(|call| call.as_str()).collect());
    }
    fields
}

fn differing_fields(first: &Value, second: &Value) -> Vec<FieldDifference> {
    // The fields of different entry types are not comparable.
    if first.get("type") != second.get("type") {
        let kind = |value: &Value| value.get("type").cloned();
        return vec![FieldDifference { field: "type".to_owned(), first: kind(first), second: kind(second) }];
    }
    let mut found = Vec::new();
    collect_differences(String::new(), Some(first), Some(second), &mut found);
    found
}

fn collect_differences(
    field: String,
    first: Option<&Value>,
    second: Option<&Value>,
    found: &mut Vec<FieldDifference>,
) {
    match (first, second) {
        (Some(a), Some(b)) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
                collect_differences(inner, a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                collect_differences(format!("{field}[{at}]"), a.get(at), b.get(at), found);
            }
        }
        (first, second) => {
            found.push(FieldDifference { field, first: first.cloned(), second: second.cloned() });
        }
    }
}
