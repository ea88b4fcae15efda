//! Two runs side by side: how long they did the same, and what each did then.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::steps::{StepLine, one_line, steps};
use crate::entry::{Entry, Record, Started};
use crate::id::RunId;

/// How two runs differ. Their ids, their times, where they come from and which sessions they belong to are not
/// compared: they differ by nature.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// How many records they have in common, from the first on.
    pub common: u64,
    /// The first record in which they differ, where both go on.
    pub difference: Option<Difference>,
    /// What the first did from there on.
    pub first: Vec<StepLine>,
    /// What the second did from there on.
    pub second: Vec<StepLine>,
}

/// How two records differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Their number.
    pub seq: u64,
    /// Every field that differs.
    pub fields: Vec<FieldDifference>,
}

/// How two records differ in one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldDifference {
    /// Where it is: `output.text`, `calls[1].digest`.
    pub field: String,
    /// What the first has there.
    pub first: Option<Value>,
    /// What the second has there.
    pub second: Option<Value>,
}

impl Diff {
    /// Whether both runs did the same.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "both runs are the same, in {} records", self.common);
        }
        writeln!(f, "the first {} records are the same", self.common)?;
        if let Some(difference) = &self.difference {
            for field in &difference.fields {
                writeln!(f, "record {}: {field}", difference.seq)?;
            }
        }
        for (name, steps) in [("first", &self.first), ("second", &self.second)] {
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
        let shown = |value: &Value| one_line(&value.to_string());
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
pub fn diff(first: &[Record], second: &[Record]) -> Diff {
    let (of_first, of_second) = (run_of(first), run_of(second));
    let is_same = |(a, b): &(&Record, &Record)| {
        a.path == b.path
            && match (&a.entry, &b.entry) {
                (Entry::Started(a), Entry::Started(b)) => bare(a, of_first) == bare(b, of_second),
                (a, b) => a == b,
            }
    };
    let common = first.iter().zip(second).take_while(is_same).count();
    let difference = match (first.get(common), second.get(common)) {
        (Some(a), Some(b)) => {
            let fields = differences(&fields_of(a, of_first), &fields_of(b, of_second));
            Some(Difference { seq: common as u64, fields })
        }
        _ => None,
    };
    let rest = |records| steps(records).split_off(common);
    Diff { common: common as u64, difference, first: rest(first), second: rest(second) }
}

fn run_of(records: &[Record]) -> Option<&RunId> {
    records.first().and_then(|record| match &record.entry {
        Entry::Started(started) => Some(&started.run),
        _ => None,
    })
}

/// A start without what differs by nature. Of a nested agent's id, the part that says where it ran stays.
fn bare(started: &Started, run: Option<&RunId>) -> Started {
    let id = started.run.as_str();
    let rest = run.and_then(|run| id.strip_prefix(run.as_str())).unwrap_or(id);
    Started { run: rest.into(), session: None, origin: None, ..started.clone() }
}

/// The fields of a record that are compared.
fn fields_of(record: &Record, run: Option<&RunId>) -> Value {
    let entry = match &record.entry {
        Entry::Started(started) => Entry::Started(bare(started, run).into()),
        entry => entry.clone(),
    };
    let mut fields = serde_json::to_value(entry).unwrap_or_default();
    if let (Some(fields), false) = (fields.as_object_mut(), record.path.is_empty()) {
        fields.insert("path".to_owned(), record.path.iter().map(|call| call.as_str()).collect());
    }
    fields
}

fn differences(first: &Value, second: &Value) -> Vec<FieldDifference> {
    // Where two different things happened, their fields have nothing to do with each other.
    if first.get("type") != second.get("type") {
        let kind = |value: &Value| value.get("type").cloned();
        return vec![FieldDifference { field: "type".to_owned(), first: kind(first), second: kind(second) }];
    }
    let mut found = Vec::new();
    compare(String::new(), Some(first), Some(second), &mut found);
    found
}

fn compare(field: String, first: Option<&Value>, second: Option<&Value>, found: &mut Vec<FieldDifference>) {
    match (first, second) {
        (Some(a), Some(b)) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
                compare(inner, a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                compare(format!("{field}[{at}]"), a.get(at), b.get(at), found);
            }
        }
        (first, second) => {
            found.push(FieldDifference { field, first: first.cloned(), second: second.cloned() });
        }
    }
}
