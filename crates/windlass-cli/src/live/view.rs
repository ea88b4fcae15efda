//! What a watcher is shown of a run.

use std::collections::BTreeMap;

use serde_json::json;
use windlass::core::{CallId, CallPath, Entry, Item, Record};
use windlass::run::{CancelledRun, RunRecord};
use windlass::{Event, EventKind, Outcome};

use super::human::Human;
use super::{Driven, decide, json};
use crate::problem::Exit;
use crate::term::{Form, Paint, Term};

/// A run on the screen, or in lines for a machine.
pub(super) struct View {
    calls: Calls,
    kind: Kind,
}

enum Kind {
    Human(Human),
    Json(Term),
}

/// What is known of the calls of a run: their tool and their arguments.
#[derive(Default)]
pub(super) struct Calls(BTreeMap<CallPath, (String, String)>);

impl Calls {
    fn learn(&mut self, path: &[CallId], item: &Item) {
        if let Item::Call(call) = item {
            let at = CallPath::new(path, call.id.clone());
            self.0.insert(at, (call.name.clone(), call.arguments.clone()));
        }
    }

    /// The tool and the arguments of a call.
    pub(super) fn of(&self, path: &CallPath) -> (&str, &str) {
        self.0.get(path).map_or(("a call", ""), |(tool, arguments)| (tool, arguments))
    }
}

impl View {
    pub(super) fn new(term: &Term, known: &[Record]) -> Self {
        let mut calls = Calls::default();
        for record in known {
            if let Entry::Answered(answered) = &record.entry {
                answered.items.iter().for_each(|item| calls.learn(&record.path, item));
            }
        }
        let kind = match term.form() {
            Form::Human => Kind::Human(Human::new(term.clone())),
            Form::Json => Kind::Json(term.clone()),
        };
        Self { calls, kind }
    }

    pub(super) fn event(&mut self, event: &Event) {
        if let EventKind::Item(produced) = &event.kind {
            self.calls.learn(&event.path, &produced.item);
        }
        match &mut self.kind {
            Kind::Human(human) => human.event(event, &self.calls),
            Kind::Json(term) => {
                if let Some(value) = json::event(event) {
                    term.say_json(&value);
                }
            }
        }
    }

    /// Draws what moves.
    pub(super) fn frame(&mut self) {
        if let Kind::Human(human) = &mut self.kind {
            human.frame(&self.calls);
        }
    }

    /// Leaves the screen in order: what moved is gone, and the next line begins at its beginning.
    pub(super) fn rest(&mut self) {
        if let Kind::Human(human) = &mut self.kind {
            human.rest();
        }
    }

    /// The person wants the turn to stop.
    pub(super) fn stopping(&mut self) {
        if let Kind::Human(human) = &mut self.kind {
            human.stopping();
        }
    }

    /// The run has come to an end here, or to a pause.
    pub(super) fn ended(&mut self, record: &RunRecord) {
        if let Kind::Human(human) = &mut self.kind {
            human.ended(record);
        }
    }
}

/// Tells what driving a run came to.
pub(super) fn told(term: &Term, driven: &Driven) -> Exit {
    let outcome = match driven {
        Driven::Outcome(outcome) => &**outcome,
        Driven::Left => {
            match term.form() {
                Form::Json => term.say_json(&json!({ "type": "end", "status": "left" })),
                Form::Human => term.note("left at once; `windlass resume` goes on where the journal ends"),
            }
            return Exit::Left;
        }
    };
    let (status, exit) = match outcome {
        Outcome::Finished(_) => ("finished", Exit::Done),
        Outcome::Paused(_) => ("paused", Exit::Waits),
        Outcome::Cancelled(_) => ("cancelled", Exit::Cancelled),
        Outcome::HandedOver(_) => ("handed_over", Exit::Cancelled),
    };
    match term.form() {
        Form::Json => term.say_json(&json::end(status, outcome)),
        Form::Human => tell_person(term, outcome),
    }
    exit
}

fn tell_person(term: &Term, outcome: &Outcome) {
    let paint = term.paint();
    match outcome {
        Outcome::Finished(finished) => {
            if !term.answers_on_screen() {
                term.say(&finished.output);
            }
        }
        Outcome::Paused(paused) => {
            let run = paused.record().run_id();
            term.note(format!("\n{} run {run} waits for a person:", paint.of(Paint::Wait, "?")));
            for pending in paused.pending() {
                term.note(format!("  {}", decide::pending_line(&pending, term.width().saturating_sub(2))));
            }
            term.note(format!(
                "{} `windlass resume {run}` asks here; `windlass approve {run}` and `windlass reject {run}` decide from anywhere",
                paint.of(Paint::Note, "hint:")
            ));
        }
        Outcome::Cancelled(cancelled) => tell_cancelled(term, cancelled),
        Outcome::HandedOver(left) => {
            let run = left.record().run_id();
            term.note(format!("run {run} was left where it stands; `windlass resume {run}` goes on with it"));
        }
    }
}

fn tell_cancelled(term: &Term, cancelled: &CancelledRun) {
    let settlement = &cancelled.settlement;
    let parts: Vec<String> = [
        ("finished", &settlement.finished),
        ("stopped", &settlement.stopped),
        ("in doubt", &settlement.in_doubt),
        ("still ending", &settlement.draining),
    ]
    .into_iter()
    .filter(|(_, calls)| !calls.is_empty())
    .map(|(what, calls)| format!("{} {what}", calls.len()))
    .collect();
    let of_calls = if parts.is_empty() { String::new() } else { format!("; calls: {}", parts.join(", ")) };
    let run = cancelled.record.run_id();
    term.note(format!("{} run {run} was cancelled{of_calls}", term.paint().of(Paint::Wait, "■")));
}
