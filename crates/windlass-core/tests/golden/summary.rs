//! A run's state as plain text, for the snapshots beside the golden files.

use std::fmt::Write;

use windlass_core::{
    id::CallId,
    item::Item,
    journal::{JournalEntry, JournalRecord},
    run::{CallEffect, CallProgress, CallReceipt, ReplayedRun, Run, RunAction, RunEnd, TurnSchedule},
};

/// Returns the state after a journal as text, including nested agents.
pub(crate) fn summarise_journal(replay: &ReplayedRun, records: &[JournalRecord]) -> String {
    let mut text = String::new();
    write_run(&mut text, "", &replay.run).expect("a string can be written to");
    for (digest, CallReceipt { output, .. }) in &replay.receipts {
        writeln!(text, "receipt {}: {:?}", digest.short_hex(), output.text())
            .expect("a string can be written to");
    }
    for record in records {
        let JournalEntry::RunStarted(_) = record.entry else { continue };
        let nested = replay.run.at_path(&record.path);
        if let (Some(nested), false) = (nested, record.path.is_empty()) {
            write_run(&mut text, "  ", nested).expect("a string can be written to");
        }
    }
    text
}

fn write_run(text: &mut String, indent: &str, run: &Run) -> std::fmt::Result {
    writeln!(text, "{indent}run {}", run.id())?;
    writeln!(text, "{indent}agent {}, turn {}, repeats {}", run.agent(), run.turn(), run.repeat_count())?;
    writeln!(text, "{indent}next {}", describe_next(run))?;
    if let Some(end) = run.outcome() {
        let end = match end {
            RunEnd::Finished(output) => format!("finished {output:?}"),
            RunEnd::Failed(failure) => format!("failed {failure}"),
            RunEnd::Cancelled => "cancelled".to_owned(),
        };
        writeln!(text, "{indent}end {end}")?;
    }
    for pending in run.pending_calls() {
        let until = pending.expires_at.map_or_else(String::new, |expires| format!(" until {}", expires.0));
        let (digest, reason) = (pending.digest.short_hex(), &pending.reason);
        writeln!(
            text,
            "{indent}pending {} {} {} {reason:?}{until} {digest}",
            pending.path, pending.tool, pending.arguments
        )?;
    }
    for path in run.withheld_calls() {
        let digest = run.at_path(path.parent_calls()).and_then(|run| run.withheld_output(path.call()));
        let digest = digest.map_or_else(String::new, |digest| digest.short_hex());
        writeln!(text, "{indent}withheld {path} {digest}")?;
    }
    for standing in run.standing_decisions() {
        writeln!(text, "{indent}standing {} {} {:?}", standing.agent, standing.tool, standing.verdict)?;
    }
    let usage = run.usage();
    writeln!(
        text,
        "{indent}usage requests {} unknown {} input {} cached {} output {} reasoning {}",
        usage.requests,
        usage.unknown_requests,
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens
    )?;
    if let Some(ledger) = run.budget_ledger() {
        let (spent, reserved, session) = (ledger.spent(), ledger.reserved(), ledger.spent_by_session());
        writeln!(text, "{indent}spent {spent:?}")?;
        writeln!(text, "{indent}reserved {reserved:?}")?;
        writeln!(text, "{indent}spent by the session {session:?}")?;
    }
    for item in run.history() {
        writeln!(text, "{indent}history {}", describe_item(item))?;
    }
    if run.turn() > 0 {
        let count = run.last_model_input().len();
        writeln!(text, "{indent}items in the last request {count}")?;
    }
    for produced in run.items().iter().chain(&run.open_turn_items()) {
        writeln!(
            text,
            "{indent}produced by {} as {:?}: {}",
            produced.agent,
            produced.kind,
            describe_item(&produced.item)
        )?;
    }
    for item in run.session_items(0) {
        writeln!(text, "{indent}for the session {}", describe_item(&item))?;
    }
    Ok(())
}

fn describe_next(run: &Run) -> String {
    match run.next() {
        RunAction::RequestModel { agent, turn } => format!("model of {agent} for turn {turn}"),
        RunAction::MaxTurnsReached { max_turns } => format!("exhausted after {max_turns}"),
        RunAction::AdvanceCalls => {
            let mut schedule = TurnSchedule::new(run, usize::MAX);
            let ready = std::iter::from_fn(|| schedule.begin_call(run));
            let steps: Vec<String> = ready.map(|(_, call)| describe_first_effect(run, &call)).collect();
            format!("calls {}", steps.join(", "))
        }
        RunAction::HandOff { call, from, to, arguments } => {
            format!("hand off {call} {from} {to} {arguments}")
        }
        RunAction::EvaluateResults { agent } => format!("judge of {agent}"),
        RunAction::Finish(candidate) => format!("finish {:?} from {:?}", candidate.output, candidate.source),
        RunAction::Fail(failure) => format!("fail {failure}"),
        RunAction::Pause(pending) => format!("pause for {}", pending.len()),
        RunAction::Cancel => "cancel".to_owned(),
        RunAction::Leave => "leave".to_owned(),
        RunAction::Ended => "over".to_owned(),
    }
}

fn describe_first_effect(run: &Run, call: &CallId) -> String {
    match run.next_effect(call, &CallProgress::default()) {
        CallEffect::EvaluateApprovalRule { .. } => format!("gate {call}"),
        CallEffect::Hold(reason) => format!("hold {call} {reason:?}"),
        CallEffect::Start(runnable) => format!("run {call} attempt {}", runnable.attempt()),
        CallEffect::RunBody(runnable) => format!("go on {call} attempt {}", runnable.attempt()),
        CallEffect::ReportInvalidArguments { .. } => format!("invalid {call}"),
        CallEffect::RunOutputGuardrails { status, .. } => format!("check {call} {status:?}"),
        CallEffect::Settle(result) => format!("settle {call} {:?}", result.status),
        CallEffect::Reconcile => format!("doubt {call}"),
        other => format!("{call} {other:?}"),
    }
}

fn describe_item(item: &Item) -> String {
    serde_json::to_string(item).expect("an item can be written")
}
