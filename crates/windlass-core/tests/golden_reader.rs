//! `docs/journal.md` is sufficient to write another reader: a Python reader written from it reads the golden
//! files and finds the same calls and outputs as this crate.

#![allow(clippy::expect_used)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "it reads files and starts Python"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use windlass_core::{
    canonical::Digest,
    decision::HoldReason,
    id::CallId,
    inspect,
    journal::{JournalEntry, JournalRecord, decode_journal},
    run::model_text,
    tool::ToolKey,
};

fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn golden_files() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(tests_folder().join("golden/v1")).expect("there are golden files");
    let mut files: Vec<PathBuf> = folder.map(|file| file.expect("it can be read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "windlass"));
    files.sort();
    files
}

/// Runs the reader; returns `None` if Python is not installed.
fn run_python_reader(file: &Path) -> Option<Output> {
    match Command::new("python3").arg(tests_folder().join("read_journal.py")).arg(file).output() {
        Ok(output) => Some(output),
        Err(_) => {
            // Written to stderr directly, because the test harness captures the output of passing tests.
            let words = "python3 is not here: the reader in Python was NOT run, the chain was checked in Rust alone\n";
            std::io::stderr().write_all(words.as_bytes()).expect("standard error can be written to");
            None
        }
    }
}

/// A call: its tool, its status and its output.
struct SettledSummary {
    tool: ToolKey,
    status: String,
    output: Option<Value>,
}

/// Returns the output that the reader is expected to print.
fn expected_output(records: &[JournalRecord], head: Digest) -> String {
    let mut order = Vec::new();
    let mut calls: BTreeMap<Vec<CallId>, SettledSummary> = BTreeMap::new();
    let mut open: BTreeMap<&[CallId], Vec<Vec<CallId>>> = BTreeMap::new();
    for record in records {
        let at = |call: &CallId| record.path.iter().cloned().chain([call.clone()]).collect::<Vec<CallId>>();
        let mut becomes = |call: &CallId, how: String, output: Option<Value>| {
            let told = calls.get_mut(&at(call)).expect("it was planned");
            (told.status, told.output) = (how, output);
        };
        match &record.entry {
            JournalEntry::ModelResponded(answered) => {
                let ids: Vec<_> = answered.calls.iter().map(|planned| at(&planned.call)).collect();
                for (id, planned) in ids.iter().zip(&answered.calls) {
                    let told =
                        SettledSummary { tool: planned.key.clone(), status: "open".to_owned(), output: None };
                    calls.insert(id.clone(), told);
                    order.push(id.clone());
                }
                open.insert(&record.path, ids);
            }
            JournalEntry::CallHeld(held) => {
                let reason = match &held.reason {
                    HoldReason::Approval => "approval".to_owned(),
                    HoldReason::InDoubt => "in_doubt".to_owned(),
                    HoldReason::Question(question) => format!("question: {}", question.text),
                    other => panic!("{other:?} is new"),
                };
                becomes(&held.call, format!("waits ({reason})"), None);
            }
            // The answer to the question of a budget is a decision, too, and no call.
            JournalEntry::DecisionRecorded(decided) if decided.call.as_str() == "windlass.budget" => {}
            JournalEntry::DecisionRecorded(decided) => becomes(&decided.call, "decided".to_owned(), None),
            JournalEntry::CallStarted(started) => becomes(&started.call, "started".to_owned(), None),
            JournalEntry::CallBodyEnded(ended) => {
                let how = serde_json::to_value(&ended.status).expect("it can be written");
                let how = how.as_str().expect("it is a word").to_owned();
                becomes(&ended.call, format!("withheld ({how})"), None);
            }
            JournalEntry::CallSettled(settled) => {
                let how = serde_json::to_value(&settled.status).expect("it can be written");
                let output = serde_json::to_value(&settled.output).expect("it can be written");
                becomes(&settled.call, how.as_str().expect("it is a word").to_owned(), Some(output));
            }
            JournalEntry::HandoffRecorded(handed) => {
                becomes(&handed.call, format!("handed off to {}", handed.to), None)
            }
            JournalEntry::RunFailed(_) | JournalEntry::RunCancelled(_) => {
                for id in open.get(&*record.path).into_iter().flatten() {
                    let told = calls.get_mut(id).expect("it was planned");
                    if told.output.is_none() && !told.status.starts_with("handed") {
                        let (status, text) = match told.status.starts_with("withheld") {
                            true => ("output_withheld", model_text::OUTPUT_NOT_CHECKED),
                            false => ("cancelled", model_text::CANCELLED),
                        };
                        let stopped = Value::from(text);
                        (told.status, told.output) = (status.to_owned(), Some(stopped));
                    }
                }
            }
            _ => {}
        }
    }
    let mut lines = String::new();
    for id in order {
        let SettledSummary { tool, status: how, output } = &calls[&id];
        let path: Vec<&str> = id.iter().map(CallId::as_str).collect();
        let output =
            output.as_ref().map_or_else(|| "null".to_owned(), windlass_core::canonical::canonical_json);
        lines.push_str(&format!("{}\t{tool}\tcovered\t{how}\t{output}\n", path.join("/")));
    }
    lines.push_str(&format!("records\t{}\t{head}\n", records.len()));
    lines
}

#[test]
fn a_reader_written_from_the_document_reads_every_golden_file() {
    for path in golden_files() {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let verified = inspect::verify_text(&text).expect("it is what was written");
        let Some(output) = run_python_reader(&path) else { continue };
        assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).expect("it prints UTF-8");
        assert_eq!(printed, expected_output(&verified.records, verified.head_hash), "{}", path.display());
    }
}

#[test]
fn the_reader_refuses_what_was_changed() {
    let text =
        std::fs::read_to_string(tests_folder().join("golden/v1/paused.windlass")).expect("it can be read");
    let finished =
        std::fs::read_to_string(tests_folder().join("golden/v1/finished.windlass")).expect("it can be read");
    let cases = [
        (
            finished.replacen("Good morning", "Good evening", 1),
            "the history of session session-7 is not what the run started with",
        ),
        (
            text.replacen("\"reason\":\"approval\"", "\"reason\":\"in_doubt\"", 1),
            "the saved run is not what was written",
        ),
        (text[..text.rfind("head ").expect("it ends with its hash")].to_owned(), "the saved run is cut off"),
        (text.replacen("windlass 1", "windlass 2", 1), "this run was saved in format 2"),
        (text.replacen("windlass 1", "anchor 1", 1), "this is not a saved run"),
    ];
    for (at, (changed, why)) in cases.iter().enumerate() {
        assert!(decode_journal(changed).is_err());
        let path = std::env::temp_dir().join(format!("windlass-reader-{}-{at}.windlass", std::process::id()));
        std::fs::write(&path, changed).expect("it can be written");
        let output = run_python_reader(&path);
        std::fs::remove_file(&path).expect("it was just written");
        let Some(output) = output else { continue };
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    }
}
