//! `windlass show`: what a run did, and what waits in it.

use serde_json::{Value, json};
use windlass::Paused;
use windlass::core::time::{origin, steps};
use windlass::core::{Entry, How, Record};
use windlass::store::{StoredRun, paused};

use super::runs::{painted, state};
use crate::args::{Args, ShowArgs};
use crate::live::{pending_json, pending_line};
use crate::problem::{Exit, Problem};
use crate::project::{Project, pick};
use crate::term::{Form, Paint, Term, clip, fields, one_line};

pub(crate) async fn run(args: &Args, show: &ShowArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let stored = pick(&*store, show.run.as_deref(), |_| true).await?;
    let known = paused(&*store, &stored.run).await?;
    match term.form() {
        Form::Json => term.say_json(&in_json(&stored, &known)),
        Form::Human => {
            head(term, &stored, &known);
            if show.journal {
                journal(term, &known)
            } else {
                story(term, known.record().journal())
            }
            tail(term, &stored, &known);
        }
    }
    Ok(Exit::Done)
}

fn in_json(stored: &StoredRun, known: &Paused) -> Value {
    let record = known.record();
    let lines = steps(record.journal());
    let steps = record.journal().iter().zip(&lines).map(|(record, line)| {
        json!({ "seq": line.seq, "at": line.at, "agent": line.agent, "text": line.text, "within": record.path, "entry": record.entry })
    });
    json!({
        "run": stored.run,
        "agent": stored.agent,
        "status": state(stored),
        "created": stored.created,
        "updated": stored.updated,
        "usage": record.usage(),
        "origin": origin(record.journal()),
        "pending": known.pending().iter().map(pending_json).collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

fn head(term: &Term, stored: &StoredRun, known: &Paused) {
    let paint = term.paint_out();
    let (status, meaning) = painted(stored);
    let usage = known.record().usage();
    let mut facts =
        vec![format!("{} records", stored.records), format!("{} questions to the model", usage.requests)];
    if usage.total_tokens() > 0 {
        facts.push(format!("{} tokens", usage.total_tokens()));
    }
    term.say(format!(
        "{} {}  {}",
        paint.of(Paint::Title, &format!("run {}", stored.run)),
        paint.of(meaning, status),
        paint.of(Paint::Faint, &format!("{} · {}", stored.agent, facts.join(" · ")))
    ));
}

/// The journal, one line for each record.
fn journal(term: &Term, known: &Paused) {
    for line in steps(known.record().journal()) {
        term.say(clip(&line.to_string(), term.width().saturating_sub(1)));
    }
}

/// What was said and what was done, without the book-keeping.
fn story(term: &Term, records: &[Record]) {
    for record in records {
        let indent = "  ".repeat(record.path.len() + 1);
        for line in told(record, records) {
            let (mark, meaning, text) = line;
            let text = clip(&text, term.width().saturating_sub(indent.len() + 3));
            term.say(format!("{indent}{} {text}", term.paint_out().of(meaning, mark)));
        }
    }
}

type Told = (&'static str, Paint, String);

fn told(record: &Record, records: &[Record]) -> Vec<Told> {
    let call_named = |id: &windlass::core::CallId| {
        let calls = records.iter().rev().filter(|other| other.path == record.path);
        let mut found = calls.filter_map(|other| match &other.entry {
            Entry::Answered(answered) => answered.items.iter().find_map(|item| match &**item {
                windlass::Item::Call(call) if call.id == *id => {
                    Some(format!("{}  {}", call.name, fields(&call.arguments)))
                }
                _ => None,
            }),
            _ => None,
        });
        found.next().unwrap_or_else(|| id.to_string())
    };
    match &record.entry {
        Entry::Started(started) => said(&started.input, "›", Paint::Note),
        Entry::InputAdded(added) => said(&added.items, "›", Paint::Note),
        Entry::Answered(answered) => said(&answered.items, "‹", Paint::Name),
        Entry::ModelFailed(failed) => {
            vec![("!", Paint::Wait, format!("the model failed: {}", one_line(&failed.error)))]
        }
        Entry::Held(held) => {
            vec![("?", Paint::Wait, format!("{}  waits for a person", call_named(&held.call)))]
        }
        Entry::Decided(decided) => {
            let line = steps(std::slice::from_ref(record)).pop().map(|line| line.text).unwrap_or_default();
            let line = line.replacen(&format!("call {} ", decided.call), "it ", 1);
            vec![("!", Paint::Note, line)]
        }
        Entry::CallStarted(started) if started.attempt > 1 => {
            vec![("↻", Paint::Name, format!("{}  attempt {}", call_named(&started.call), started.attempt))]
        }
        Entry::CallSettled(settled) => {
            let (mark, paint) =
                if settled.how.is_success() { ("✓", Paint::Good) } else { ("✗", Paint::Bad) };
            let how = match settled.how {
                How::Succeeded => String::new(),
                ref other => format!(" ({})", format!("{other:?}").to_lowercase()),
            };
            let output = one_line(&settled.output.text());
            vec![(mark, paint, format!("{}{how}  → {output}", call_named(&settled.call)))]
        }
        Entry::HandedOff(handed) => vec![("→", Paint::Name, format!("passes control to {}", handed.to))],
        Entry::Failed(failed) => {
            vec![("✗", Paint::Bad, format!("failed: {}", one_line(&failed.failure.to_string())))]
        }
        Entry::Cancelled(_) => vec![("■", Paint::Wait, "cancelled".to_owned())],
        _ => Vec::new(),
    }
}

fn said(items: &[std::sync::Arc<windlass::Item>], mark: &'static str, paint: Paint) -> Vec<Told> {
    let texts = items.iter().filter_map(|item| match &**item {
        windlass::Item::Message(message) => Some(one_line(&message.text())),
        _ => None,
    });
    texts.filter(|text| !text.is_empty()).map(|text| (mark, paint, text)).collect()
}

fn tail(term: &Term, stored: &StoredRun, known: &Paused) {
    let pending = known.pending();
    let paint = term.paint_out();
    if !pending.is_empty() {
        term.say(paint.of(Paint::Wait, "waits for a person:"));
        for call in &pending {
            term.say(format!("  {}", pending_line(call, term.width().saturating_sub(3))));
        }
    }
    let run = &stored.run;
    match state(stored) {
        "paused" => {
            term.note(format!("{} `windlass resume {run}` asks here", paint.of(Paint::Note, "hint:")))
        }
        "interrupted" => term.note(format!(
            "{} its process is gone; `windlass resume {run}` goes on with it",
            paint.of(Paint::Note, "hint:")
        )),
        _ => {}
    }
}
