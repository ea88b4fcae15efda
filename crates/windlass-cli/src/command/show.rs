//! `windlass show`: shows what a run did and its pending calls.

use serde_json::{Value, json};
use windlass::core::inspect::{fork_origin, step_lines};
use windlass::core::journal::{JournalEntry, JournalRecord};
use windlass::run::PausedRun;
use windlass::store::{StoredRun, load_paused};

use super::runs::{status_label, status_name};
use crate::args::{CliArgs, ShowArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::run_driver::{StatusLabel, pending_line, pending_to_json};
use crate::terminal::{OutputFormat, Terminal, TextStyle, format_arguments, to_one_line, truncate_to_width};

pub(crate) async fn run(args: &CliArgs, show: &ShowArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing()?;
    let stored = find_run(&*store, show.run.as_deref(), |_| true).await?;
    let known = load_paused(&*store, &stored.run).await?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&run_to_json(&stored, &known)),
        OutputFormat::Text => {
            print_header(term, &stored, &known);
            if show.journal {
                print_journal(term, &known)
            } else {
                print_summary(term, known.record().journal())
            }
            print_pending(term, &stored, &known);
        }
    }
    Ok(CommandExit::Success)
}

fn run_to_json(stored: &StoredRun, known: &PausedRun) -> Value {
    let record = known.record();
    let lines = step_lines(record.journal());
    let steps = record.journal().iter().zip(&lines).map(|(record, line)| {
        json!({ "seq": line.seq, "at": line.at, "agent": line.agent, "text": line.text, "within": record.path, "entry": record.entry })
    });
    json!({
        "run": stored.run,
        "agent": stored.agent,
        "status": status_name(stored),
        "created": stored.created_at,
        "updated": stored.updated_at,
        "usage": record.usage(),
        "origin": fork_origin(record.journal()),
        "pending": known.pending_calls().iter().map(pending_to_json).collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn print_header(term: &Terminal, stored: &StoredRun, known: &PausedRun) {
    let paint = term.stdout_colour();
    let (status, meaning) = status_label(stored);
    let usage = known.record().usage();
    let mut facts =
        vec![format!("{} records", stored.record_count), format!("{} model requests", usage.requests)];
    if usage.total_tokens() > 0 {
        facts.push(format!("{} tokens", usage.total_tokens()));
    }
    term.print_line(format!(
        "{} {}  {}",
        paint.paint(TextStyle::Title, &format!("run {}", stored.run)),
        paint.paint(meaning, status),
        paint.paint(TextStyle::Faint, &format!("{} · {}", stored.agent, facts.join(" · ")))
    ));
}

/// Prints the journal, one line per record.
fn print_journal(term: &Terminal, known: &PausedRun) {
    for line in step_lines(known.record().journal()) {
        term.print_line(truncate_to_width(&line.to_string(), term.width().saturating_sub(1)));
    }
}

/// Prints the messages and calls of the run, without the records that only serve replay.
fn print_summary(term: &Terminal, records: &[JournalRecord]) {
    for record in records {
        let indent = "  ".repeat(record.path.len() + 1);
        for line in summary_lines(record, records) {
            let (mark, meaning, text) = line;
            let text = truncate_to_width(&text, term.width().saturating_sub(indent.len() + 3));
            term.print_line(format!("{indent}{} {text}", term.stdout_colour().paint(meaning, mark)));
        }
    }
}

/// A mark, its style and a text.
type SummaryLine = (&'static str, TextStyle, String);

fn summary_lines(record: &JournalRecord, records: &[JournalRecord]) -> Vec<SummaryLine> {
    let call_named = |id: &windlass::core::id::CallId| {
        let calls = records.iter().rev().filter(|other| other.path == record.path);
        let mut found = calls.filter_map(|other| match &other.entry {
            JournalEntry::ModelResponded(answered) => answered.items.iter().find_map(|item| match &**item {
                windlass::core::item::Item::Call(call) if call.id == *id => {
                    Some(format!("{}  {}", call.name, format_arguments(&call.arguments)))
                }
                _ => None,
            }),
            _ => None,
        });
        found.next().unwrap_or_else(|| id.to_string())
    };
    match &record.entry {
        JournalEntry::RunStarted(started) => message_lines(&started.input, "›", TextStyle::Hint),
        JournalEntry::InputAdded(added) => message_lines(&added.items, "›", TextStyle::Hint),
        JournalEntry::ModelResponded(answered) => message_lines(&answered.items, "‹", TextStyle::Name),
        JournalEntry::ModelRequestFailed(failed) => {
            vec![("!", TextStyle::Waiting, format!("model request failed: {}", to_one_line(&failed.error)))]
        }
        JournalEntry::CallHeld(held) => {
            vec![("?", TextStyle::Waiting, format!("{}  waits for a person", call_named(&held.call)))]
        }
        JournalEntry::DecisionRecorded(decided) => {
            let line =
                step_lines(std::slice::from_ref(record)).pop().map(|line| line.text).unwrap_or_default();
            let line = line.replacen(&format!("call {} ", decided.call), "it ", 1);
            vec![("!", TextStyle::Hint, line)]
        }
        JournalEntry::CallStarted(started) if started.attempt > 1 => {
            vec![(
                "↻",
                TextStyle::Name,
                format!("{}  attempt {}", call_named(&started.call), started.attempt),
            )]
        }
        JournalEntry::CallSettled(settled) => {
            let StatusLabel { mark, style, note } = StatusLabel::for_status(&settled.status);
            let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
            let output = to_one_line(&settled.output.text());
            vec![(mark, style, format!("{}{note}  → {output}", call_named(&settled.call)))]
        }
        JournalEntry::HandoffRecorded(handed) => {
            vec![("→", TextStyle::Name, format!("hands off to {}", handed.to))]
        }
        JournalEntry::RunFailed(failed) => {
            vec![("✗", TextStyle::Failure, format!("failed: {}", to_one_line(&failed.failure.to_string())))]
        }
        JournalEntry::RunCancelled(_) => vec![("■", TextStyle::Waiting, "cancelled".to_owned())],
        _ => Vec::new(),
    }
}

fn message_lines(
    items: &[std::sync::Arc<windlass::core::item::Item>],
    mark: &'static str,
    paint: TextStyle,
) -> Vec<SummaryLine> {
    let texts = items.iter().filter_map(|item| match &**item {
        windlass::core::item::Item::Message(message) => Some(to_one_line(&message.text())),
        _ => None,
    });
    texts.filter(|text| !text.is_empty()).map(|text| (mark, paint, text)).collect()
}

fn print_pending(term: &Terminal, stored: &StoredRun, known: &PausedRun) {
    let pending = known.pending_calls();
    let paint = term.stdout_colour();
    if !pending.is_empty() {
        term.print_line(paint.paint(TextStyle::Waiting, "waits for a person:"));
        for call in &pending {
            term.print_line(format!("  {}", pending_line(call, term.width().saturating_sub(3))));
        }
    }
    let run = &stored.run;
    match status_name(stored) {
        "paused" => term.eprint_line(format!(
            "{} `windlass resume {run}` prompts for the decision",
            paint.paint(TextStyle::Hint, "hint:")
        )),
        "interrupted" => term.eprint_line(format!(
            "{} its process has ended; `windlass resume {run}` resumes it",
            paint.paint(TextStyle::Hint, "hint:")
        )),
        _ => {}
    }
}
