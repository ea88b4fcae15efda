//! Every version of the format that was ever written can be read, and what was read adds up to the same run.
//!
//! The files in `golden/` are never changed. `docs/journal.md` says what to do when the format is.

#![allow(clippy::expect_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "golden files are on a disk")]

#[path = "golden/make.rs"]
mod make;
#[path = "golden/summary.rs"]
mod summary;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_core::{Decision, Entry, FORMAT_VERSION, How, Run, SavedError, from_text, time, to_text};

fn folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// The golden files of a version: their paths and texts.
fn files(version: u32) -> Vec<(PathBuf, String)> {
    let mut files: Vec<_> = std::fs::read_dir(folder(version))
        .expect("every version has golden files")
        .map(|file| file.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "windlass"))
        .map(|path| (path.clone(), read(&path)))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "version {version} has no golden files");
    files
}

fn every_file() -> impl Iterator<Item = (PathBuf, String)> {
    (1..=FORMAT_VERSION).flat_map(files)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares with what is checked in. What is not there yet is written, where that is asked for; what is there
/// is never overwritten.
fn compare_or_write(path: &Path, text: &str) {
    if !path.exists() && std::env::var_os("WINDLASS_WRITE_GOLDEN").is_some() {
        std::fs::write(path, text).expect("the folder can be written to");
    }
    assert_eq!(read(path), text, "{} is not what this version makes", path.display());
}

#[test]
fn this_version_writes_the_same_bytes() {
    for (name, records) in make::all() {
        compare_or_write(&folder(1).join(format!("{name}.windlass")), &to_text(&records));
    }
}

#[test]
fn every_file_adds_up_to_the_same_state() {
    for (path, text) in every_file() {
        let records = from_text(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let replay = Run::replay(&records).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        compare_or_write(&path.with_extension("txt"), &summary::of(&replay, &records));
        time::verify_text(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn every_file_is_written_back_as_it_was() {
    for (path, text) in files(FORMAT_VERSION) {
        let records = from_text(&text).expect("it is a saved run");
        assert_eq!(to_text(&records), text, "{}", path.display());
    }
}

#[test]
fn every_prefix_is_a_saved_run_too() {
    for (path, text) in every_file() {
        let records = from_text(&text).expect("it is a saved run");
        for upto in 1..=records.len() {
            let prefix = from_text(&to_text(&records[..upto])).expect("a prefix is a saved run");
            let replay = Run::replay(&prefix);
            assert!(replay.is_ok(), "{} up to {upto}: {replay:?}", path.display());
        }
    }
}

#[test]
fn a_newer_version_is_refused_with_its_number() {
    let newer = FORMAT_VERSION + 1;
    for (path, text) in every_file() {
        let (_, lines) = text.split_once('\n').expect("it has lines");
        let error = from_text(&format!("windlass {newer}\n{lines}")).expect_err("nobody knows it yet");
        assert!(matches!(error, SavedError::TooNew { found } if found == newer), "{}", path.display());
        assert!(error.to_string().contains(&format!("format {newer}")), "{error}");
    }
}

#[test]
fn any_changed_letter_is_found() {
    for (path, text) in every_file() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().skip(1) {
            let mut changed = lines.clone();
            let (hash, body) = line.split_once(' ').expect("a line has a hash");
            let other = format!("{hash} {}", body.replacen("\"at\":1", "\"at\":2", 1));
            changed[at] = &other;
            let error = time::verify_text(&changed.join("\n")).expect_err("it was changed");
            assert_eq!(error.seq(), Some(at as u64 - 1), "{} line {at}", path.display());
        }
    }
}

/// Where the format names one of several kinds, and every name there is.
const KINDS: &[(&str, &[&str])] = &[
    (
        "entry.type",
        &[
            "started",
            "answered",
            "answer_refused",
            "model_failed",
            "held",
            "decided",
            "revoked",
            "call_started",
            "call_settled",
            "call_ended_late",
            "handed_off",
            "went_on",
            "input_added",
            "finished",
            "failed",
            "cancelled",
        ],
    ),
    ("decision", &["approve", "approve_edited", "reject", "happened", "did_not_happen", "unknown", "answer"]),
    ("reach", &["call", "always"]),
    ("reason", &["approval", "in_doubt", "question"]),
    (
        "how",
        &[
            "succeeded",
            "failed",
            "timed_out",
            "left_running",
            "invalid",
            "missing",
            "ignored",
            "rejected",
            "guarded",
            "receipt",
            "cancelled",
            "reconciled",
            "unknown",
        ],
    ),
    (
        "failure",
        &[
            "turns_exhausted",
            "loop_detected",
            "misbehaviour",
            "model",
            "refused",
            "invalid_output",
            "tool",
            "invalid_arguments",
            "tool_timeout",
            "ended_by_call",
            "tool_input_guardrail",
            "tool_output_guardrail",
            "input_guardrail",
            "output_guardrail",
            "guardrail_failed",
            "hook",
            "handoff",
        ],
    ),
    ("misbehaviour", &["empty_call_id", "reused_call_id", "missing_tool"]),
    ("work", &["body", "invalid", "missing", "handoff", "ignored"]),
    ("body", &["function", "agent"]),
    ("effect", &["pure", "idempotent", "once"]),
    ("gate", &["open", "ask", "closed", "ask_each", "each"]),
    // What is left out stands for `run_again` and `ok`.
    ("after", &["stop_on_first", "stop_at", "ask"]),
    ("status", &["failed"]),
    ("key", &["bare", "namespaced", "deferred", "mcp"]),
    // What is left out stands for `function`.
    ("call.kind", &["computer", "hosted_mcp"]),
    ("role", &["system", "user", "assistant"]),
    ("item.type", &["message", "reasoning", "call", "output", "handoff", "hosted", "unknown"]),
    ("content.type", &["text", "refusal", "image", "file", "unknown"]),
    ("output", &["text", "parts"]),
    ("result", &["Ok", "Err"]),
];

#[test]
fn the_files_hold_everything_that_the_format_has() {
    let mut found = BTreeSet::new();
    for (_, text) in files(FORMAT_VERSION) {
        for line in text.lines().skip(1) {
            let (_, body) = line.split_once(' ').expect("a line has a hash");
            collect("record", &serde_json::from_str(body).expect("a record is JSON"), &mut found);
        }
    }
    for (place, names) in KINDS {
        let here: BTreeSet<&str> =
            found.iter().filter(|(where_, _)| where_ == place).map(|(_, name)| name.as_str()).collect();
        assert_eq!(here, names.iter().copied().collect(), "{place}");
    }
}

/// Notes what is named under each field: a text, or the one field of an object.
fn collect(field: &str, value: &Value, found: &mut BTreeSet<(String, String)>) {
    let named = match value {
        Value::String(name) => Some(name),
        Value::Object(fields) if fields.len() == 1 => fields.keys().next(),
        _ => None,
    };
    // A step after which another call comes has a call's id under the same name, and no golden call is named so.
    if let Some(name) = named.filter(|name| field != "after" || !name.starts_with('c')) {
        found.insert((field.to_owned(), name.clone()));
    }
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(kind)) = fields.get("type") {
                let holder = match field {
                    "items" | "history" | "input" | "message" => "item",
                    "content" | "parts" => "content",
                    other => other,
                };
                found.insert((format!("{holder}.type"), kind.clone()));
            }
            // What providers carry is theirs, and the output of an output item is told by its content.
            for (name, value) in fields.iter().filter(|(name, _)| *name != "raw") {
                let is_call = fields.get("type").is_some_and(|kind| kind == "call");
                let name = match name.as_str() {
                    "output" if !value.is_object() => "text",
                    "kind" if is_call => "call.kind",
                    name => name,
                };
                collect(name, value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(field, value, found)),
        _ => {}
    }
}

/// Does not compile where a kind is new: it needs a place in [`KINDS`] and in a golden file.
#[allow(dead_code, reason = "it is there to be compiled")]
fn new_kinds_need_golden_files(entry: &Entry, decision: &Decision, how: &How) {
    match entry {
        Entry::Started(_) | Entry::Answered(_) | Entry::AnswerRefused(_) | Entry::ModelFailed(_) => {}
        Entry::Held(_) | Entry::Decided(_) | Entry::Revoked(_) | Entry::CallStarted(_) => {}
        Entry::CallSettled(_) | Entry::CallEndedLate(_) | Entry::HandedOff(_) | Entry::WentOn => {}
        Entry::InputAdded(_) | Entry::Finished(_) | Entry::Failed(_) | Entry::Cancelled(_) => {}
    }
    match decision {
        Decision::Approve | Decision::ApproveEdited { .. } | Decision::Reject { .. } => {}
        Decision::Happened { .. } | Decision::DidNotHappen | Decision::Unknown => {}
        Decision::Answer { .. } => {}
    }
    match how {
        How::Succeeded | How::Failed | How::TimedOut | How::LeftRunning | How::Invalid | How::Missing => {}
        How::Ignored | How::Rejected | How::Guarded | How::Receipt | How::Cancelled => {}
        How::Reconciled | How::Unknown => {}
    }
}
