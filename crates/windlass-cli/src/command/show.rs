//! `windlass show`: shows what a run did and its pending calls.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::decision::PendingCall;
use windlass::core::inspect::{fork_origin, step_lines};
use windlass::core::journal::{JournalEntry, JournalRecord};
use windlass::core::usage::Usage;
use windlass::price::PriceList;
use windlass::run::PausedRun;
use windlass::store::{Store, StoredRun, load_paused};
use windlass_text::SafeText;

use super::decisions::{canonical_object, needs_approval};
use super::resume::current_time;
use super::runs::{format_age, status_label, status_name};
use crate::agent_file::AgentFile;
use crate::agent_path::agent_file_of_run;
use crate::args::{CliArgs, ShowArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run};
use crate::run_driver::{CallReview, StatusLabel, pending_to_json, review_stored_call};
use crate::terminal::{OutputFormat, StyledText, Terminal, TextStyle, format_arguments, paint, styled};

pub(crate) async fn run(args: &CliArgs, show: &ShowArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let project = CliProject::from_args(args)?;
    let store = project.open_existing().await?;
    let stored = find_run(&*store, show.run.as_deref(), |_| true).await?;
    let known = load_paused(&*store, &stored.run).await?;
    let file = match agent_file_of_run(&project, &*store, &stored.run).await {
        Ok(file) => file,
        Err(error) => {
            // The run can be read without its agent file, and is not decided or resumed with a file that is not believed.
            term.report_error(&error);
            None
        }
    };
    let currency = file.as_ref().map_or_else(|| PriceList::shipped().currency.clone(), AgentFile::currency);
    let pending = pending_calls(&known, show)?;
    let reviews = review_pending(project.local_path(), &*store, &stored, &pending, file.as_ref()).await?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&run_to_json(&stored, &known, &pending, &reviews, &currency)),
        OutputFormat::Text => {
            print_header(term, &stored, &known, &currency);
            if show.journal {
                print_journal(term, &known)
            } else {
                print_summary(term, known.record().journal())
            }
            print_pending(term, &stored, &pending, &reviews);
        }
    }
    Ok(CommandExit::Success)
}

/// Returns the calls that wait for a person, with the arguments that the user would approve.
fn pending_calls(known: &PausedRun, show: &ShowArgs) -> Result<Vec<PendingCall>, CliError> {
    let mut pending = known.pending_calls();
    let Some(arguments) = &show.arguments else { return Ok(pending) };
    let arguments = canonical_object(arguments)?;
    let is_named = |pending: &PendingCall| match &show.call {
        Some(named) => pending.path.to_string() == *named || pending.call().as_str() == named,
        None => needs_approval(pending),
    };
    let mut named = pending.iter_mut().filter(|pending| is_named(pending));
    match (named.next(), named.next()) {
        (Some(only), None) => only.arguments = arguments,
        (None, _) => return Err(CliError::not_found("no such call waits for a person")),
        (Some(_), Some(_)) => {
            return Err(CliError::usage("several calls wait for a person")
                .with_hint("--call names the one with these arguments"));
        }
    }
    Ok(pending)
}

/// Returns the reviews of the pending calls: what a person is shown before a decision, with its digest.
async fn review_pending(
    store_path: &Path,
    store: &dyn Store,
    stored: &StoredRun,
    pending: &[PendingCall],
    file: Option<&AgentFile>,
) -> Result<Vec<CallReview>, CliError> {
    let mut reviews = Vec::new();
    for pending in pending {
        reviews.push(review_stored_call(store_path, store, &stored.run, pending, file).await?);
    }
    Ok(reviews)
}

fn run_to_json(
    stored: &StoredRun,
    known: &PausedRun,
    pending: &[PendingCall],
    reviews: &[CallReview],
    currency: &str,
) -> Value {
    let record = known.record();
    let pending = pending
        .iter()
        .zip(reviews)
        .map(|(pending, review)| {
            let mut value = pending_to_json(pending);
            let lines = review.lines(None).iter().map(|line| line.plain().to_string()).collect::<Vec<_>>();
            value["display"] = lines.into();
            value["digest"] = review.digest().to_string().into();
            value
        })
        .collect::<Vec<_>>();
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
        "cost": record.usage().describe_cost(currency),
        "origin": fork_origin(record.journal()),
        "pending": pending,
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn print_header(term: &Terminal, stored: &StoredRun, known: &PausedRun, currency: &str) {
    let (status, meaning) = status_label(stored);
    let usage = known.record().usage();
    let mut facts =
        vec![format!("{} records", stored.record_count), format!("{} model requests", usage.requests)];
    if usage.total_tokens() > 0 {
        facts.push(format!("{} tokens", usage.total_tokens()));
        facts.extend(describe_cache_hits(usage));
    }
    facts.extend(usage.describe_cost(currency));
    term.print_line(styled![
        paint(TextStyle::Title, format!("run {}", stored.run)),
        " ",
        paint(meaning, status),
        "  ",
        paint(TextStyle::Faint, format!("{} · {}", stored.agent, facts.join(" · "))),
    ]);
}

/// Describes the share of the input that came from a prompt cache, if any did.
fn describe_cache_hits(usage: &Usage) -> Option<String> {
    let rate = usage.cache_hit_rate().filter(|rate| *rate > 0.0)?;
    Some(format!("{:.0} % of the input cached", rate * 100.0))
}

/// Prints the journal, one line per record.
fn print_journal(term: &Terminal, known: &PausedRun) {
    for line in step_lines(known.record().journal()) {
        term.print_wrapped(6, line.to_string());
    }
}

/// Prints the messages and calls of the run, without the records that only serve replay.
fn print_summary(term: &Terminal, records: &[JournalRecord]) {
    for record in records {
        let indent = "  ".repeat(record.path.len() + 1);
        for line in summary_lines(record, records) {
            let SummaryLine { mark, style, text, length } = line;
            let room = term.width().saturating_sub(indent.len() + 3);
            let text = match length {
                // A pipe gets all of it.
                SummaryLength::Shortened if term.is_stdout_terminal() => text.truncate(room),
                SummaryLength::Shortened | SummaryLength::Whole => text,
            };
            let line: StyledText = styled![indent.as_str(), paint(style, mark), " ", text];
            term.print_wrapped(indent.len() + 2, line);
        }
    }
}

/// A line of the summary.
struct SummaryLine {
    mark: &'static str,
    style: TextStyle,
    text: SafeText,
    length: SummaryLength,
}

/// The part of a line that a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SummaryLength {
    /// All of it, because it is about a decision.
    Whole,
    /// As much as fits one line.
    Shortened,
}

impl SummaryLine {
    fn whole(mark: &'static str, style: TextStyle, text: &str) -> Self {
        Self { mark, style, text: SafeText::from_line(text), length: SummaryLength::Whole }
    }

    fn shortened(mark: &'static str, style: TextStyle, text: &str) -> Self {
        Self { mark, style, text: SafeText::from_words(text), length: SummaryLength::Shortened }
    }
}

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
            let text = format!("model request failed: {}", failed.error);
            vec![SummaryLine::shortened("!", TextStyle::Waiting, &text)]
        }
        JournalEntry::CallHeld(held) => {
            let text = format!("{}  waits for a person", call_named(&held.call));
            vec![SummaryLine::whole("?", TextStyle::Waiting, &text)]
        }
        JournalEntry::DecisionRecorded(decided) => {
            let line =
                step_lines(std::slice::from_ref(record)).pop().map(|line| line.text).unwrap_or_default();
            let line = line.replacen(&format!("call {} ", decided.call), "it ", 1);
            vec![SummaryLine::whole("!", TextStyle::Hint, &line)]
        }
        JournalEntry::CallStarted(started) if started.attempt > 1 => {
            let text = format!("{}  attempt {}", call_named(&started.call), started.attempt);
            vec![SummaryLine::shortened("↻", TextStyle::Name, &text)]
        }
        JournalEntry::CallSettled(settled) => {
            let StatusLabel { mark, style, note } = StatusLabel::for_status(&settled.status);
            let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
            let text = format!("{}{note}  → {}", call_named(&settled.call), settled.output.text());
            vec![SummaryLine::shortened(mark, style, &text)]
        }
        JournalEntry::HandoffRecorded(handed) => {
            vec![SummaryLine::shortened("→", TextStyle::Name, &format!("hands off to {}", handed.to))]
        }
        JournalEntry::RunFailed(failed) => {
            let text = format!("failed: {}", failed.failure);
            vec![SummaryLine::shortened("✗", TextStyle::Failure, &text)]
        }
        JournalEntry::RunRestored(_) => {
            let text = "the store was restored from a backup; what the run did since is unknown";
            vec![SummaryLine::shortened("↺", TextStyle::Waiting, text)]
        }
        JournalEntry::RunCancelled(_) => {
            vec![SummaryLine::shortened("■", TextStyle::Waiting, "cancelled")]
        }
        _ => Vec::new(),
    }
}

fn message_lines(
    items: &[std::sync::Arc<windlass::core::item::Item>],
    mark: &'static str,
    style: TextStyle,
) -> Vec<SummaryLine> {
    let texts = items.iter().filter_map(|item| match &**item {
        windlass::core::item::Item::Message(message) => Some(message.text()),
        _ => None,
    });
    let texts = texts.filter(|text| !text.trim().is_empty());
    texts.map(|text| SummaryLine::shortened(mark, style, &text)).collect()
}

/// Describes the decision that is posted about a pending call: who decided, what, and when.
fn posted_line(pending: &PendingCall) -> Option<SafeText> {
    let posted = pending.posted.as_deref()?;
    let by = posted.decided_by.as_deref().unwrap_or("somebody");
    let age = format_age(Duration::from_millis(current_time().0.saturating_sub(posted.posted_at.0)));
    let what = posted.decision.describe();
    let text = format!("{by} posted {what} {age}; it is not taken yet, so another decision replaces it");
    Some(SafeText::from_line(&text))
}

/// Prints the pending calls in full, with the digests that decide about them from elsewhere.
fn print_pending(term: &Terminal, stored: &StoredRun, pending: &[PendingCall], reviews: &[CallReview]) {
    let width = term.is_stdout_terminal().then(|| term.width());
    for (pending, review) in pending.iter().zip(reviews) {
        term.print_line("");
        term.print_wrapped(
            2,
            paint(TextStyle::Waiting, format!("call {} waits for a person:", pending.path)),
        );
        review.lines(width).into_iter().for_each(|line| term.print_line(line));
        if let Some(posted) = posted_line(pending) {
            term.print_wrapped(2, styled!["  ", paint(TextStyle::Hint, posted)]);
        }
        term.print_line(format!("  digest {}", review.digest()));
    }
    let run = &stored.run;
    match status_name(stored) {
        "paused" => {
            let windlass = term.command_prefix();
            term.eprint_hint(format!(
                "`{windlass} resume {run}` prompts for the decision; `{windlass} approve --digest DIGEST` approves the call that is shown here"
            ));
        }
        "interrupted" => {
            term.eprint_hint(format!("its process has ended; `windlass resume {run}` resumes it"));
        }
        _ => {}
    }
}
