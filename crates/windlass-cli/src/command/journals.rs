//! `windlass fork`, `diff`, `export` and `verify`: what can be done with a journal. All of it is replay.

use std::path::Path;

use serde_json::{Value, json};
use windlass::core::time::{Change, Verified, diff, verify, verify_text};
use windlass::core::{CallPath, Decision, Digest, How, OutputContent, Reach, RunId, to_text};
use windlass::store::{Store, fork, paused};

use super::resume::go_on;
use crate::args::{Args, DiffArgs, DriveArgs, ExportArgs, ForkArgs, ForkChange, VerifyArgs};
use crate::live::{AGENT_NOTE, person};
use crate::problem::{Exit, Problem};
use crate::project::{Project, new_run_id, pick};
use crate::term::{Form, Paint, Term, clip};

pub(crate) async fn fork_run(args: &Args, asked: &ForkArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let stored = pick(&*store, Some(&asked.run), |_| true).await?;
    let at = asked.at.unwrap_or(stored.records.saturating_sub(1));
    let id = asked.id.as_deref().map_or_else(new_run_id, RunId::from);
    let forked =
        fork(&*store, &stored.run, at, id.clone(), change(&asked.change)?).await.map_err(|error| {
            let hint = format!("`windlass show {} --journal` numbers the records", stored.run);
            Problem::new(error.to_string()).hint(hint)
        })?;
    if let Some(agent) = store.artefact(&stored.run, AGENT_NOTE).await? {
        store.keep_artefact(&id, AGENT_NOTE, &agent).await?;
    }
    match term.form() {
        Form::Json => {
            let value = json!({ "type": "fork", "run": id, "of": stored.run, "at": at, "records": forked.record().journal().len() });
            term.say_json(&value);
        }
        Form::Human => term.say(format!("run {id} is a fork of {} at record {at}", stored.run)),
    }
    if asked.resume {
        let drive = DriveArgs { model: None, yes: false, no_input: false };
        return go_on(args, term, store, &id, None, &drive).await;
    }
    if term.form() == Form::Human {
        term.note(format!(
            "{} `windlass resume {id}` goes on with it",
            term.paint().of(Paint::Note, "hint:")
        ));
    }
    Ok(Exit::Done)
}

fn change(asked: &ForkChange) -> Result<Change, Problem> {
    let decide = |call: &str, decision| Change::Decide {
        call: CallPath::from(call),
        decision,
        reach: Reach::Call,
        by: Some(person()),
    };
    Ok(match asked {
        ForkChange { approve: Some(call), .. } => decide(call, Decision::Approve),
        ForkChange { reject: Some(call), .. } => decide(call, Decision::Reject { message: None }),
        ForkChange { output: Some(output), .. } => {
            let Some((call, text)) = output.split_once('=') else {
                return Err(
                    Problem::usage("--output needs a call and a text").hint("write --output CALL=TEXT")
                );
            };
            let output = OutputContent::from(text);
            Change::Output { call: CallPath::from(call), how: How::Succeeded, output }
        }
        ForkChange { approve: None, reject: None, output: None } => Change::None,
    })
}

pub(crate) async fn diff_runs(args: &Args, asked: &DiffArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let mut journals = Vec::new();
    for named in [&asked.first, &asked.second] {
        let stored = pick(&*store, Some(named), |_| true).await?;
        journals.push(paused(&*store, &stored.run).await?.record().journal().to_vec());
    }
    let [first, second] = journals.as_slice() else { return Err(Problem::new("two runs are needed")) };
    let found = diff(first, second);
    match term.form() {
        Form::Json => {
            let fields = found.difference.iter().flat_map(|difference| &difference.fields);
            let fields: Vec<Value> = fields
                .map(|field| json!({ "field": field.field, "first": field.first, "second": field.second }))
                .collect();
            let lines = |steps: &[windlass::core::time::StepLine]| -> Vec<Value> {
                steps.iter().map(|step| json!({ "seq": step.seq, "text": step.text })).collect()
            };
            term.say_json(&json!({
                "common": found.common,
                "fields": fields,
                "first": lines(&found.first),
                "second": lines(&found.second),
            }));
        }
        Form::Human => {
            let width = term.width().saturating_sub(1);
            found.to_string().lines().for_each(|line| term.say(clip(line, width)));
        }
    }
    Ok(Exit::Done)
}

pub(crate) async fn export(args: &Args, asked: &ExportArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let stored = pick(&*store, asked.run.as_deref(), |_| true).await?;
    let known = paused(&*store, &stored.run).await?;
    let records = known.record().journal();
    let text = match term.form() {
        Form::Human => to_text(records),
        Form::Json => records.iter().map(|record| json!(record).to_string() + "\n").collect(),
    };
    match &asked.output {
        None => term.say_piece(&text),
        Some(path) => {
            std::fs::write(path, text)
                .map_err(|error| Problem::new(format!("`{}` cannot be written: {error}", path.display())))?;
            if term.form() == Form::Human {
                term.note(format!("run {} is in {}", stored.run, path.display()));
            }
        }
    }
    Ok(Exit::Done)
}

pub(crate) async fn verify_runs(args: &Args, asked: &VerifyArgs, term: &Term) -> Result<Exit, Problem> {
    if let Some(named) = &asked.run
        && Path::new(named).is_file()
    {
        let text = std::fs::read_to_string(named)
            .map_err(|error| Problem::new(format!("`{named}` cannot be read: {error}")))?;
        let verified = verify_text(&text).map_err(|error| broken(named, &error.to_string()))?;
        return report(term, named, &verified, asked.head.as_deref());
    }
    let store = Project::find(args)?.open()?;
    let runs = match &asked.run {
        Some(named) => vec![pick(&*store, Some(named), |_| true).await?],
        None => store.runs().await?,
    };
    let mut exit = Exit::Done;
    for stored in &runs {
        let lines = store.load(&stored.run, 0).await?;
        match verify(&lines) {
            Ok(verified) => {
                report(term, stored.run.as_str(), &verified, asked.head.as_deref())?;
            }
            Err(error) => {
                exit = Exit::Broken;
                term.problem(&broken(stored.run.as_str(), &error.to_string()));
            }
        }
    }
    Ok(exit)
}

fn broken(name: &str, why: &str) -> Problem {
    Problem::new(format!("{name}: {why}"))
        .exits(Exit::Broken)
        .hint("somebody changed it, or the disk did; a backup or an earlier export has what was written")
}

fn report(term: &Term, name: &str, verified: &Verified, head: Option<&str>) -> Result<Exit, Problem> {
    let Verified { records, head: found, decisions } = verified;
    if let Some(head) = head
        && !is_beginning(head, found)
    {
        return Err(broken(name, &format!("its last line has the hash {found}, and not {head}")));
    }
    match term.form() {
        Form::Json => {
            let decisions: Vec<Value> = decisions
                .iter()
                .map(|ruling| json!({ "seq": ruling.seq, "at": ruling.at, "agent": ruling.agent, "tool": ruling.tool.to_string(), "call": ruling.call.as_ref().map(ToString::to_string), "by": ruling.by, "text": ruling.to_string() }))
                .collect();
            let count = records.len();
            term.say_json(&json!({ "run": name, "ok": true, "records": count, "head": found.to_string(), "decisions": decisions }));
        }
        Form::Human => {
            let mark = term.paint_out().of(Paint::Good, "✓");
            term.say(format!("{mark} {name}: {} records are what was written", records.len()));
            term.say(format!("  the last has the hash {found}"));
            let width = term.width().saturating_sub(3);
            decisions.iter().for_each(|ruling| term.say(format!("  {}", clip(&ruling.to_string(), width))));
        }
    }
    Ok(Exit::Done)
}

fn is_beginning(noted: &str, head: &Digest) -> bool {
    noted.len() >= 8 && head.to_string().starts_with(noted)
}
