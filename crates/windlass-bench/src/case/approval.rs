//! A run with a long history that waits for a person: paused, written, read, decided, resumed.

use serde_json::json;
use windlass::{Outcome, Paused};

use super::{Case, Report};
use crate::measure::{Clock, timed};
use crate::{Script, Then, agent, finished};

/// Calls in each turn of the history. Each call is two items, with its output.
const CALLS: usize = 5;

pub(super) async fn cycle(case: &Case, report: &Report) -> Result<(), String> {
    for round in 0..case.warmup + case.reps {
        let script = Script {
            turns: case.items / (2 * CALLS),
            calls: CALLS,
            then: Then::Approval,
            ..Script::default()
        };
        let before = agent(script.clone());
        let (pause, outcome) = timed(async { before.run("go").unlimited_turns().await }).await;
        let Outcome::Paused(paused) = outcome.map_err(|error| error.to_string())? else {
            return Err("the run did not pause".to_owned());
        };
        let clock = Clock::start();
        let text = paused.to_text();
        let write = clock.stop();
        drop((paused, before));
        // Whoever goes on is another process, and has made its agent before.
        let after = agent(script);
        let clock = Clock::start();
        let mut paused = Paused::from_text(&text).map_err(|error| error.to_string())?;
        let read = clock.stop();
        paused.approve("gated").map_err(|error| error.to_string())?;
        let (resume, outcome) = timed(async { after.resume(paused).unlimited_turns().await }).await;
        finished(outcome.map_err(|error| error.to_string())?)?;
        let Some(rep) = round.checked_sub(case.warmup) else { continue };
        report.row(json!({
            "rep": rep, "bytes": text.len(),
            "pause_s": pause.wall, "pause_cpu_s": pause.cpu,
            "serialise_s": write.wall, "serialise_cpu_s": write.cpu,
            "deserialise_s": read.wall, "deserialise_cpu_s": read.cpu,
            "resume_s": resume.wall, "resume_cpu_s": resume.cpu,
            "cycle_s": write.wall + read.wall + resume.wall,
            "cycle_cpu_s": write.cpu + read.cpu + resume.cpu,
        }));
    }
    Ok(())
}
