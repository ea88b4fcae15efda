//! A run with a long history that waits for an approval: paused, serialised, deserialised, approved, resumed.

use serde_json::json;
use windlass::run::{PausedRun, RunResult};

use super::{BenchCase, CaseReport};
use crate::measure::{BenchClock, measure_time};
use crate::{BenchScript, ScriptEnding, bench_agent, ensure_done};

/// Number of calls in each turn of the history. A call and its output are two items.
const CALLS_PER_TURN: usize = 5;

pub(super) async fn measure_approval_cycle(case: &BenchCase, report: &CaseReport) -> Result<(), String> {
    for round in 0..case.warmup + case.reps {
        let script = BenchScript {
            turns: case.items / (2 * CALLS_PER_TURN),
            calls: CALLS_PER_TURN,
            ending: ScriptEnding::Approval,
            ..BenchScript::default()
        };
        let before = bench_agent(script.clone());
        let (pause, outcome) = measure_time(async { before.run("go").unlimited_turns().await }).await;
        let RunResult::Paused(paused) = outcome.map_err(|error| error.to_string())? else {
            return Err("the run did not pause".to_owned());
        };
        let clock = BenchClock::start();
        let text = paused.to_text();
        let write = clock.stop();
        drop((paused, before));
        // In production another process resumes the run, and its agent already exists.
        let after = bench_agent(script);
        let clock = BenchClock::start();
        let mut paused = PausedRun::from_text(&text).map_err(|error| error.to_string())?;
        let read = clock.stop();
        paused.approve("gated").map_err(|error| error.to_string())?;
        let (resume, outcome) = measure_time(async { after.resume(paused).unlimited_turns().await }).await;
        ensure_done(outcome.map_err(|error| error.to_string())?)?;
        let Some(rep) = round.checked_sub(case.warmup) else { continue };
        report.print_row(json!({
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
