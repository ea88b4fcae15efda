//! The renderer of a run, for a terminal or as JSON.

use std::collections::BTreeMap;

use serde_json::json;
use windlass::core::{
    id::{CallId, CallPath},
    item::Item,
    journal::{JournalEntry, JournalRecord},
};
use windlass::model::FinishReason;
use windlass::run::{CancelledRun, RunRecord};
use windlass::{
    event::{RunEvent, RunEventKind},
    run::RunResult,
};

use super::terminal_renderer::TerminalRenderer;
use super::{DriveOutcome, decision_prompts, json_output};
use crate::cli_error::CommandExit;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// A renderer of a run's events.
pub(super) struct RunRenderer {
    call_index: CallIndex,
    kind: RendererKind,
}

enum RendererKind {
    Terminal(Box<TerminalRenderer>),
    Json(Terminal),
}

/// The tools and arguments of a run's calls, by call path.
#[derive(Default)]
pub(super) struct CallIndex(BTreeMap<CallPath, (String, String)>);

impl CallIndex {
    fn record_call(&mut self, path: &[CallId], item: &Item) {
        if let Item::Call(call) = item {
            let at = CallPath::new(path, call.id.clone());
            self.0.insert(at, (call.name.clone(), call.arguments.clone()));
        }
    }

    /// Returns the tool and the arguments of a call.
    pub(super) fn tool_and_arguments(&self, path: &CallPath) -> (&str, &str) {
        self.0.get(path).map_or(("a call", ""), |(tool, arguments)| (tool, arguments))
    }
}

impl RunRenderer {
    pub(super) fn new(term: &Terminal, known: &[JournalRecord]) -> Self {
        let mut calls = CallIndex::default();
        for record in known {
            if let JournalEntry::ModelResponded(answered) = &record.entry {
                answered.items.iter().for_each(|item| calls.record_call(&record.path, item));
            }
        }
        let kind = match term.output_format() {
            OutputFormat::Text => RendererKind::Terminal(Box::new(TerminalRenderer::new(term.clone()))),
            OutputFormat::Json => RendererKind::Json(term.clone()),
        };
        Self { call_index: calls, kind }
    }

    pub(super) fn render_event(&mut self, event: &RunEvent) {
        if let RunEventKind::Item(produced) = &event.kind {
            self.call_index.record_call(&event.path, &produced.item);
        }
        match &mut self.kind {
            RendererKind::Terminal(human) => human.render_event(event, &self.call_index),
            RendererKind::Json(term) => {
                if let Some(value) = json_output::event_to_json(event) {
                    term.print_json(&value);
                }
            }
        }
    }

    /// Redraws the live lines.
    pub(super) fn draw_frame(&mut self) {
        if let RendererKind::Terminal(human) = &mut self.kind {
            human.draw_frame(&self.call_index);
        }
    }

    /// Clears the live lines and ends an unfinished line.
    pub(super) fn finish_output(&mut self) {
        if let RendererKind::Terminal(human) = &mut self.kind {
            human.finish_output();
        }
    }

    /// Shows that the run is being stopped.
    pub(super) fn show_stopping(&mut self) {
        if let RendererKind::Terminal(human) = &mut self.kind {
            human.show_stopping();
        }
    }

    /// Resets the state of the stream when the run ends or pauses.
    pub(super) fn reset_stream(&mut self, record: &RunRecord) {
        if let RendererKind::Terminal(human) = &mut self.kind {
            human.reset_stream(record);
        }
    }
}

/// Prints the outcome of a run and returns the exit of the command.
pub(super) fn report_outcome(term: &Terminal, driven: &DriveOutcome) -> CommandExit {
    let outcome = match driven {
        DriveOutcome::Outcome(outcome) => &**outcome,
        DriveOutcome::Interrupted => {
            match term.output_format() {
                OutputFormat::Json => term.print_json(&json!({ "type": "end", "status": "interrupted" })),
                OutputFormat::Text => {
                    let windlass = term.command_prefix();
                    term.eprint_line(format!("interrupted; `{windlass} resume` continues from the journal"));
                }
            }
            return CommandExit::Interrupted;
        }
    };
    let (status, exit) = match outcome {
        RunResult::Finished(_) => ("finished", CommandExit::Success),
        RunResult::Paused(_) => ("paused", CommandExit::WaitingForPerson),
        RunResult::Cancelled(_) => ("cancelled", CommandExit::Cancelled),
        RunResult::Detached(_) => ("detached", CommandExit::Cancelled),
    };
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json_output::outcome_to_json(status, outcome)),
        OutputFormat::Text => print_outcome(term, outcome),
    }
    exit
}

fn print_outcome(term: &Terminal, outcome: &RunResult) {
    let windlass = term.command_prefix();
    match outcome {
        RunResult::Finished(finished) => {
            if !term.is_stdout_terminal() {
                term.print_data(&format!("{}\n", finished.output));
            }
            if finished.record.finish_reason() == Some(&FinishReason::LengthLimit) {
                term.eprint_hint("the answer ended at the maximum of tokens and is cut off; raise `max_tokens` in [settings]");
            }
        }
        RunResult::Paused(paused) => {
            let run = paused.record().run_id();
            term.eprint_blank();
            term.eprint_line(styled![
                paint(TextStyle::Waiting, "?"),
                format!(" run {run} waits for a person:"),
            ]);
            for pending in paused.pending_calls() {
                let line = decision_prompts::pending_line(&pending, term.width().saturating_sub(3));
                term.eprint_line(styled!["  ", line]);
            }
            term.eprint_hint(format!(
                "`{windlass} resume {run}` prompts here; `{windlass} show {run}` shows the call in full, and `approve` and `reject` decide from any terminal"
            ));
        }
        RunResult::Cancelled(cancelled) => print_cancelled(term, cancelled),
        RunResult::Detached(left) => {
            let run = left.record().run_id();
            term.eprint_line(format!("run {run} was detached; `{windlass} resume {run}` resumes it"));
        }
    }
}

fn print_cancelled(term: &Terminal, cancelled: &CancelledRun) {
    let settlement = &cancelled.settlement;
    let parts: Vec<String> = [
        ("finished", &settlement.finished),
        ("stopped", &settlement.stopped),
        ("in doubt", &settlement.in_doubt),
        ("draining", &settlement.draining),
    ]
    .into_iter()
    .filter(|(_, calls)| !calls.is_empty())
    .map(|(what, calls)| format!("{} {what}", calls.len()))
    .collect();
    let of_calls = if parts.is_empty() { String::new() } else { format!("; calls: {}", parts.join(", ")) };
    let run = cancelled.record.run_id();
    term.eprint_line(styled![paint(TextStyle::Waiting, "■"), format!(" run {run} was cancelled{of_calls}"),]);
}
