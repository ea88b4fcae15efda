//! A run's state in plain text, for the snapshots beside the golden files.

use std::fmt::Write;

use windlass_core::{End, Entry, Item, Next, Record, Replay, Run, Step};

/// The state that a journal adds up to, nested agents included.
pub(crate) fn of(replay: &Replay, records: &[Record]) -> String {
    let mut text = String::new();
    write_run(&mut text, "", &replay.run).expect("a string can be written to");
    for (digest, (output, _)) in &replay.receipts {
        writeln!(text, "receipt {}: {:?}", digest.short(), output.text())
            .expect("a string can be written to");
    }
    for record in records {
        let Entry::Started(_) = record.entry else { continue };
        let nested = record.path.iter().try_fold(&replay.run, |run, call| run.child(call));
        if let (Some(nested), false) = (nested, record.path.is_empty()) {
            write_run(&mut text, "  ", nested).expect("a string can be written to");
        }
    }
    text
}

fn write_run(text: &mut String, indent: &str, run: &Run) -> std::fmt::Result {
    writeln!(text, "{indent}run {}", run.id())?;
    writeln!(text, "{indent}agent {}, turn {}, repeats {}", run.agent(), run.turn(), run.repeats())?;
    writeln!(text, "{indent}next {}", next(run))?;
    if let Some(end) = run.end() {
        let end = match end {
            End::Finished(output) => format!("finished {output:?}"),
            End::Failed(failure) => format!("failed {failure}"),
            End::Cancelled => "cancelled".to_owned(),
        };
        writeln!(text, "{indent}end {end}")?;
    }
    for pending in run.pending() {
        let until = pending.expires.map_or_else(String::new, |expires| format!(" until {}", expires.0));
        let (digest, reason) = (pending.digest.short(), &pending.reason);
        writeln!(
            text,
            "{indent}pending {} {} {} {reason:?}{until} {digest}",
            pending.path, pending.tool, pending.arguments
        )?;
    }
    for standing in run.standing() {
        writeln!(text, "{indent}standing {} {} {:?}", standing.agent, standing.tool, standing.verdict)?;
    }
    let usage = run.usage();
    writeln!(
        text,
        "{indent}usage requests {} unknown {} input {} cached {} output {} reasoning {}",
        usage.requests,
        usage.unknown,
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens
    )?;
    for item in run.history() {
        writeln!(text, "{indent}history {}", line(item))?;
    }
    for produced in run.produced().iter().chain(&run.produced_in_open_turn()) {
        writeln!(
            text,
            "{indent}produced by {} as {:?}: {}",
            produced.agent,
            produced.part,
            line(&produced.item)
        )?;
    }
    for item in run.for_session(0) {
        writeln!(text, "{indent}for the session {}", line(&item))?;
    }
    Ok(())
}

fn next(run: &Run) -> String {
    match run.next() {
        Next::Model { agent, turn } => format!("model of {agent} for turn {turn}"),
        Next::Exhausted { max_turns } => format!("exhausted after {max_turns}"),
        Next::Calls(steps) => {
            let steps: Vec<String> = steps.iter().map(step).collect();
            format!("calls {}", steps.join(", "))
        }
        Next::HandOff { call, from, to, arguments } => format!("hand off {call} {from} {to} {arguments}"),
        Next::Judge { agent } => format!("judge of {agent}"),
        Next::Finish(candidate) => format!("finish {:?} from {:?}", candidate.output, candidate.source),
        Next::Fail(failure) => format!("fail {failure}"),
        Next::Pause(pending) => format!("pause for {}", pending.len()),
        Next::Over => "over".to_owned(),
    }
}

fn step(step: &Step) -> String {
    let after = step.after().map_or_else(String::new, |call| format!(" after {call}"));
    match step {
        Step::Gate(step) => format!("gate {}{after}", step.call()),
        Step::Run(step) => format!("run {} attempt {}{after}", step.call(), step.attempt()),
        Step::Invalid(step) => format!("invalid {}", step.call),
        Step::Settle(step) => format!("settle {} {:?}", step.settled.call, step.settled.how),
        Step::Doubt(step) => format!("doubt {} attempt {}", step.call, step.attempt),
    }
}

fn line(item: &Item) -> String {
    serde_json::to_string(item).expect("an item can be written")
}
