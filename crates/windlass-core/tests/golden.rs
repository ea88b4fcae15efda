//! Every version of the format can be read, and replays to the same state.
//!
//! Released golden files are never changed. `docs/journal.md` describes the procedure for a format change.

#![allow(clippy::expect_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "golden files are on a disk")]

#[path = "golden/make.rs"]
mod make;
#[path = "golden/summary.rs"]
mod summary;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use windlass_core::{
    decision::Decision,
    inspect,
    journal::{CallStatus, FORMAT_VERSION, JournalEntry, JournalFormatError, decode_journal, encode_journal},
    run::Run,
};

fn golden_folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// Returns the golden files of a version: their paths and texts.
fn golden_files(version: u32) -> Vec<(PathBuf, String)> {
    let mut files: Vec<_> = std::fs::read_dir(golden_folder(version))
        .expect("every version has golden files")
        .map(|file| file.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "windlass"))
        .map(|path| (path.clone(), read_text(&path)))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "version {version} has no golden files");
    files
}

fn all_golden_files() -> impl Iterator<Item = (PathBuf, String)> {
    (1..=FORMAT_VERSION).flat_map(golden_files)
}

fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares a text with the checked-in file. With `WINDLASS_WRITE_GOLDEN`, missing files are written; existing
/// files are never overwritten.
fn compare_or_write(path: &Path, text: &str) {
    if !path.exists() && std::env::var_os("WINDLASS_WRITE_GOLDEN").is_some() {
        std::fs::write(path, text).expect("the folder can be written to");
    }
    assert_eq!(read_text(path), text, "{} is not what this version makes", path.display());
}

#[test]
fn this_version_writes_the_same_bytes() {
    for (name, records) in make::golden_journals() {
        compare_or_write(&golden_folder(1).join(format!("{name}.windlass")), &encode_journal(&records));
    }
}

#[test]
fn every_file_adds_up_to_the_same_state() {
    for (path, text) in all_golden_files() {
        let records = decode_journal(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let replay = Run::replay(&records).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        compare_or_write(&path.with_extension("txt"), &summary::summarise_journal(&replay, &records));
        inspect::verify_text(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn every_file_is_written_back_as_it_was() {
    for (path, text) in golden_files(FORMAT_VERSION) {
        let records = decode_journal(&text).expect("it is a saved run");
        assert_eq!(encode_journal(&records), text, "{}", path.display());
    }
}

#[test]
fn every_prefix_is_a_saved_run_too() {
    for (path, text) in all_golden_files() {
        let records = decode_journal(&text).expect("it is a saved run");
        for upto in 1..=records.len() {
            let prefix = decode_journal(&encode_journal(&records[..upto])).expect("a prefix is a saved run");
            let replay = Run::replay(&prefix);
            assert!(replay.is_ok(), "{} up to {upto}: {replay:?}", path.display());
        }
    }
}

#[test]
fn a_newer_version_is_refused_with_its_number() {
    let newer = FORMAT_VERSION + 1;
    for (path, text) in all_golden_files() {
        let (_, lines) = text.split_once('\n').expect("it has lines");
        let error = decode_journal(&format!("windlass {newer}\n{lines}")).expect_err("nobody knows it yet");
        assert!(
            matches!(error, JournalFormatError::UnsupportedVersion { version } if version == newer),
            "{}",
            path.display()
        );
        assert!(error.to_string().contains(&format!("format {newer}")), "{error}");
    }
}

#[test]
fn any_changed_letter_is_found() {
    for (path, text) in all_golden_files() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().skip(1) {
            let mut changed = lines.clone();
            let other = if let Some(hash) = line.strip_prefix("head ") {
                format!("head {}{}", &hash[1..], &hash[..1])
            } else if line.starts_with("history ") {
                line.replacen("\"text\":\"", "\"text\":\"!", 1)
            } else {
                line.replacen("\"at\":1", "\"at\":2", 1)
            };
            changed[at] = &other;
            let error = inspect::verify_text(&changed.join("\n")).expect_err("it was changed");
            let is_found = match line.starts_with("history ") {
                true => error.first_bad_seq() == Some(0),
                false => matches!(error, JournalFormatError::HeadMismatch),
            };
            assert!(is_found, "{} line {at}: {error}", path.display());
        }
    }
}

/// The fields that name one of several kinds, with all their values.
const GOLDEN_KINDS: &[(&str, &[&str])] = &[
    (
        "record",
        &[
            "run_started",
            "model_responded",
            "response_rejected",
            "model_request_failed",
            "model_input_filtered",
            "history_compacted",
            "budget_reserved",
            "budget_reached",
            "call_held",
            "decision_recorded",
            "decision_revoked",
            "call_started",
            "call_body_ended",
            "call_settled",
            "call_ended_late",
            "handoff_recorded",
            "turn_continued",
            "output_rejected",
            "input_added",
            "run_restored",
            "run_finished",
            "run_failed",
            "run_cancelled",
        ],
    ),
    (
        "decision",
        &[
            "approve",
            "approve_edited",
            "reject",
            "confirm_executed",
            "confirm_not_executed",
            "outcome_unknown",
            "answer",
        ],
    ),
    ("scope", &["this_call", "tool_for_run", "run", "session", "agent"]),
    ("resource", &["requests", "tokens", "cost", "time"]),
    ("reaction", &["fail", "ask_person", "finish"]),
    // The default `fail` is not serialised.
    ("on_reached", &["ask_person", "finish"]),
    ("reason", &["approval", "in_doubt", "question", "near_context_window", "context_length_exceeded"]),
    (
        "status",
        &[
            "succeeded",
            "failed",
            "timed_out",
            "timed_out_still_running",
            "invalid_arguments",
            "unknown_tool",
            "surplus_handoff",
            "rejected",
            "blocked_by_guardrail",
            "output_withheld",
            "deduplicated",
            "cancelled",
            "reconciled",
            "outcome_unknown",
        ],
    ),
    (
        "failure",
        &[
            "max_turns_exceeded",
            "budget_reached",
            "loop_detected",
            "model_protocol_error",
            "model_request_failed",
            "model_refused",
            "invalid_output",
            "tool_failed",
            "invalid_arguments",
            "tool_timeout",
            "tool_input_guardrail_tripped",
            "tool_output_guardrail_tripped",
            "input_guardrail_tripped",
            "output_guardrail_tripped",
            "guardrail_failed",
            "hook_failed",
            "application_panicked",
            "handoff_failed",
        ],
    ),
    ("model_protocol_error", &["empty_call_id", "reused_call_id", "unknown_tool"]),
    ("disposition", &["execute", "invalid_arguments", "unknown_tool", "handoff", "surplus_handoff"]),
    // The default `function` is not serialised.
    ("body", &["agent"]),
    ("effect", &["pure", "idempotent", "once"]),
    // The default `not_required` is not serialised.
    ("approval_policy", &["by_rule", "required", "by_rule_each_time", "required_each_time"]),
    // The default `run_model_again` is not serialised.
    ("tool_use_policy", &["stop_on_first_tool", "stop_at_tools", "custom_function"]),
    ("key", &["bare", "namespaced", "deferred", "mcp"]),
    // The default `function` is not serialised.
    ("call.kind", &["computer", "hosted_mcp"]),
    ("role", &["system", "user", "assistant"]),
    ("item.type", &["message", "reasoning", "call", "output", "handoff", "hosted_tool", "unknown"]),
    ("content.type", &["text", "refusal", "image", "file", "unknown"]),
    ("output", &["text", "parts"]),
    ("input", &["history", "item"]),
    ("run_failure", &["tool_failed", "tool_output_guardrail_tripped"]),
];

#[test]
fn the_files_hold_everything_that_the_format_has() {
    let mut found = BTreeSet::new();
    for (_, text) in golden_files(FORMAT_VERSION) {
        for line in text.lines().skip(1).filter(|line| !line.starts_with("head ")) {
            let (field, json) = match line.strip_prefix("history ") {
                Some(item) => ("item", item),
                None => ("record", line),
            };
            collect_kinds(field, &serde_json::from_str(json).expect("a line is JSON"), &mut found);
        }
    }
    for (place, names) in GOLDEN_KINDS {
        let here: BTreeSet<&str> =
            found.iter().filter(|(where_, _)| where_ == place).map(|(_, name)| name.as_str()).collect();
        assert_eq!(here, names.iter().copied().collect(), "{place}");
    }
}

/// Collects the kinds that are named under each field: a text, or the only key of an object.
fn collect_kinds(field: &str, value: &Value, found: &mut BTreeSet<(String, String)>) {
    let named = match (field, value) {
        ("key", Value::String(_)) => Some("bare"),
        ("output", Value::String(_)) => Some("text"),
        ("output", Value::Array(_)) => Some("parts"),
        (_, Value::String(name)) => Some(name.as_str()),
        ("record", Value::Object(fields)) => {
            fields.keys().map(String::as_str).find(|name| !["at", "path"].contains(name))
        }
        (_, Value::Object(fields)) if fields.len() == 1 => fields.keys().next().map(String::as_str),
        _ => None,
    };
    if let Some(name) = named {
        found.insert((field.to_owned(), name.to_owned()));
    }
    if let ("execute", Value::String(effect)) = (field, value) {
        found.insert(("effect".to_owned(), effect.clone()));
    }
    if let ("calls", Value::Object(planned)) = (field, value) {
        let known = ["call", "key", "digest", "predecessor"];
        let disposition = planned.keys().find(|name| !known.contains(&name.as_str()));
        found.extend(disposition.map(|name| ("disposition".to_owned(), name.clone())));
    }
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(kind)) = fields.get("type") {
                let holder = match field {
                    "items" | "history" | "input" | "message" | "correction" => "item",
                    "content" | "output" => "content",
                    other => other,
                };
                found.insert((format!("{holder}.type"), kind.clone()));
            }
            // Opaque provider items are skipped, and an output item is described by its content.
            for (name, value) in fields.iter().filter(|(name, _)| *name != "raw") {
                let is_call = fields.get("type").is_some_and(|kind| kind == "call");
                let name = match name.as_str() {
                    "kind" if is_call => "call.kind",
                    name => name,
                };
                collect_kinds(name, value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_kinds(field, value, found)),
        _ => {}
    }
}

/// Fails to compile if a kind is added: the kind must be listed in [`GOLDEN_KINDS`] and occur in a golden file.
#[allow(dead_code, reason = "it is there to be compiled")]
fn new_kinds_need_golden_files(entry: &JournalEntry, decision: &Decision, how: &CallStatus) {
    match entry {
        JournalEntry::RunStarted(_)
        | JournalEntry::ModelResponded(_)
        | JournalEntry::ResponseRejected(_)
        | JournalEntry::ModelRequestFailed(_)
        | JournalEntry::ModelInputFiltered(_)
        | JournalEntry::HistoryCompacted(_) => {}
        JournalEntry::BudgetReserved(_) | JournalEntry::BudgetReached(_) => {}
        JournalEntry::CallHeld(_)
        | JournalEntry::DecisionRecorded(_)
        | JournalEntry::DecisionRevoked(_)
        | JournalEntry::CallStarted(_)
        | JournalEntry::CallBodyEnded(_) => {}
        JournalEntry::CallSettled(_)
        | JournalEntry::CallEndedLate(_)
        | JournalEntry::HandoffRecorded(_)
        | JournalEntry::TurnContinued
        | JournalEntry::OutputRejected(_) => {}
        JournalEntry::InputAdded(_)
        | JournalEntry::RunRestored(_)
        | JournalEntry::RunFinished(_)
        | JournalEntry::RunFailed(_)
        | JournalEntry::RunCancelled(_) => {}
    }
    match decision {
        Decision::Approve | Decision::ApproveEdited { .. } | Decision::Reject { .. } => {}
        Decision::ConfirmExecuted { .. } | Decision::ConfirmNotExecuted | Decision::OutcomeUnknown => {}
        Decision::Answer { .. } => {}
    }
    match how {
        CallStatus::Succeeded
        | CallStatus::Failed
        | CallStatus::TimedOut
        | CallStatus::TimedOutStillRunning
        | CallStatus::InvalidArguments
        | CallStatus::UnknownTool => {}
        CallStatus::SurplusHandoff
        | CallStatus::Rejected
        | CallStatus::BlockedByGuardrail
        | CallStatus::OutputWithheld
        | CallStatus::Deduplicated
        | CallStatus::Cancelled => {}
        CallStatus::Reconciled | CallStatus::OutcomeUnknown => {}
    }
}
