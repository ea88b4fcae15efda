//! `windlass approve`, `reject`, `answer` and `settle`: decisions from any terminal. They are posted in the store, and
//! whoever drives the run takes them.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::{CallPath, Decision, HoldReason, OutputContent, Pending, Reach};
use windlass::store::{RunStatus, StoredRun, decide, paused};
use windlass::{Paused, SqliteStore};

use super::resume::go_on;
use super::runs::state;
use crate::args::{AnswerArgs, ApproveArgs, Args, DriveArgs, RejectArgs, SettleArgs, WaitingCall};
use crate::live::{pending_line, person};
use crate::problem::{Exit, Problem};
use crate::project::{Project, pick};
use crate::term::{Form, Paint, Term};

pub(crate) async fn approve(args: &Args, approve: &ApproveArgs, term: &Term) -> Result<Exit, Problem> {
    let decision = match &approve.arguments {
        Some(arguments) => Decision::ApproveEdited { arguments: canonical_object(arguments)? },
        None => Decision::Approve,
    };
    say(args, &approve.about, is_approval, decision, reach(approve.always), term).await
}

pub(crate) async fn reject(args: &Args, reject: &RejectArgs, term: &Term) -> Result<Exit, Problem> {
    let decision = Decision::Reject { message: reject.because.clone() };
    say(args, &reject.about, is_approval, decision, reach(reject.always), term).await
}

pub(crate) async fn answer(args: &Args, answer: &AnswerArgs, term: &Term) -> Result<Exit, Problem> {
    let AnswerArgs { run, call, value, by, resume } = answer;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value.as_str()));
    let about =
        WaitingCall { run: Some(run.clone()), call: Some(call.clone()), by: by.clone(), resume: *resume };
    let is_question = |pending: &Pending| matches!(pending.reason, HoldReason::Question(_));
    say(args, &about, is_question, Decision::Answer { value }, Reach::Call, term).await
}

pub(crate) async fn settle(args: &Args, settle: &SettleArgs, term: &Term) -> Result<Exit, Problem> {
    let decision = match (&settle.what.happened, settle.what.did_not_happen) {
        (Some(output), _) => Decision::Happened { output: OutputContent::from(output.as_str()) },
        (None, true) => Decision::DidNotHappen,
        (None, false) => Decision::Unknown,
    };
    let is_in_doubt = |pending: &Pending| pending.reason == HoldReason::InDoubt;
    say(args, &settle.about, is_in_doubt, decision, Reach::Call, term).await
}

fn is_approval(pending: &Pending) -> bool {
    pending.reason == HoldReason::Approval
}

fn reach(always: bool) -> Reach {
    if always { Reach::Always } else { Reach::Call }
}

fn canonical_object(text: &str) -> Result<String, Problem> {
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) => Ok(windlass::core::canonical(&value)),
        _ => Err(Problem::usage("the arguments are not a JSON object")
            .hint("write them as '{\"path\": \"notes.md\"}'")),
    }
}

async fn say(
    args: &Args,
    about: &WaitingCall,
    fits: impl Fn(&Pending) -> bool,
    decision: Decision,
    reach: Reach,
    term: &Term,
) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let waits = |run: &StoredRun| run.status == RunStatus::Paused;
    let stored = pick(&*store, about.run.as_deref(), waits).await?;
    let known = paused(&*store, &stored.run).await?;
    let call = the_call(&known, about.call.as_deref(), fits)?;
    let by = about.by.clone().unwrap_or_else(person);
    decide(&*store, &stored.run, call.clone(), decision.clone(), reach, by.clone()).await?;
    let run = &stored.run;
    match term.form() {
        Form::Json => term.say_json(
            &json!({ "type": "decided", "run": run, "call": call.to_string(), "decision": decision, "by": by }),
        ),
        Form::Human => {
            let mark = term.paint_out().of(Paint::Good, "✓");
            term.say(format!("{mark} {by} decided about {call} of run {run}"));
        }
    }
    if about.resume {
        return here(args, term, store, &stored).await;
    }
    if term.form() == Form::Human && state(&stored) != "running" {
        let hint = term.paint().of(Paint::Note, "hint:");
        term.note(format!("{hint} `windlass resume {run}` goes on with it"));
    }
    Ok(Exit::Done)
}

/// Goes on with the run here.
async fn here(args: &Args, term: &Term, store: Arc<SqliteStore>, run: &StoredRun) -> Result<Exit, Problem> {
    let drive = DriveArgs { model: None, yes: false, no_input: false };
    go_on(args, term, store, &run.run, None, &drive).await
}

fn the_call(
    known: &Paused,
    named: Option<&str>,
    fits: impl Fn(&Pending) -> bool,
) -> Result<CallPath, Problem> {
    if let Some(named) = named {
        return Ok(named.into());
    }
    let pending: Vec<Pending> = known.pending().into_iter().filter(fits).collect();
    match pending.as_slice() {
        [only] => Ok(only.path.clone()),
        [] => Err(Problem::not_found(format!("no such call waits in run {}", known.record().run_id()))
            .hint("`windlass show` lists what waits")),
        several => {
            let lines: Vec<String> =
                several.iter().map(|call| format!("\n  {}", pending_line(call, 100))).collect();
            Err(Problem::usage(format!("several calls wait:{}", lines.concat()))
                .hint("name the one that is meant after the run"))
        }
    }
}
