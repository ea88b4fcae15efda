//! `windlass cancel`: ends a run that nobody drives.

use serde_json::json;
use windlass::model::ScriptedModel;
use windlass::store::paused;
use windlass::{Agent, Outcome};

use super::resume::wait_for_lease;
use crate::args::{Args, RunName};
use crate::problem::{Exit, Problem};
use crate::project::{Project, pick};
use crate::term::{Form, Term};

pub(crate) async fn run(args: &Args, cancel: &RunName, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let stored = pick(&*store, Some(&cancel.run), |_| true).await?;
    let known = paused(&*store, &stored.run).await?;
    let run = &stored.run;
    if known.record().state().end().is_some() {
        return Err(
            Problem::usage(format!("run {run} is over already")).hint("`windlass show` tells how it ended")
        );
    }
    wait_for_lease(term, &*store, run).await?;
    // Nothing is asked and nothing runs, so no more of the agent is needed than its name.
    let agent = Agent::new(known.record().state().agent().clone()).model(ScriptedModel::new([]));
    let mut builder = agent.recover(run.clone(), store.clone());
    if let Some(session) = known.record().state().session() {
        builder = builder.session(&windlass::Session::new(session.clone(), store.clone()));
    }
    builder.cancel_handle().now();
    match builder.await? {
        Outcome::Cancelled(cancelled) => {
            let doubt: Vec<&str> = cancelled.settlement.in_doubt.iter().map(|call| call.as_str()).collect();
            match term.form() {
                Form::Json => term.say_json(&json!({ "type": "cancelled", "run": run, "in_doubt": doubt })),
                Form::Human if doubt.is_empty() => term.say(format!("run {run} is cancelled")),
                Form::Human => {
                    term.say(format!(
                        "run {run} is cancelled; nobody knows whether {} happened",
                        doubt.join(", ")
                    ));
                }
            }
            Ok(Exit::Done)
        }
        _ => Err(Problem::new(format!("run {run} ended otherwise before it could be cancelled"))
            .hint("`windlass show` tells how")),
    }
}
