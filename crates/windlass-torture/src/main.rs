//! Crash test with real processes: kills the process of a run at random crash points until every run has ended,
//! then compares the journals with the recorded effects.
//!
//! `windlass-torture --kills N --seed S` prints, last, `kills=N runs=N calls=N twice=0 lost=0 unfinished=0`,
//! and fails if one of the last three is not zero. The same seed makes the same choices. A quarter of the ends
//! are SIGTERM, after which a worker detaches from its run; those are not counted as kills.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use windlass_sim::SimRng;
use windlass_torture::crash_plan::{CrashPlan, KillSignal};
use windlass_torture::{crash_plan, verdict, worker};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("worker") => run_as_worker(&arguments[1..]),
        _ => TortureOptions::parse(&arguments).and_then(|options| torture(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The command-line options.
struct TortureOptions {
    kills: u64,
    seed: u64,
    folder: PathBuf,
}

impl TortureOptions {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let usage = || "usage: windlass-torture --kills N --seed S [--folder PATH]".to_owned();
        let mut options = Self { kills: 100, seed: 1, folder: std::env::temp_dir() };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(usage()) };
            match name.as_str() {
                "--kills" => options.kills = value.parse().map_err(|_| usage())?,
                "--seed" => options.seed = value.parse().map_err(|_| usage())?,
                "--folder" => options.folder = value.into(),
                _ => return Err(usage()),
            }
        }
        options.folder.push(format!("windlass-torture-{}-{}", std::process::id(), options.seed));
        Ok(options)
    }
}

/// Maximum number of kills per run; after that the run may finish.
const MAX_KILLS_PER_RUN: u64 = 12;
/// Maximum number of crash points before a worker ends.
const MAX_CRASH_POINTS: u64 = 24;

fn torture(options: &TortureOptions) -> Result<(), String> {
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    let mut runs = Vec::new();
    let mut kills = 0;
    while kills < options.kills {
        let run = format!("run-{}", runs.len());
        let agent_seed = SimRng::for_purpose(options.seed, &format!("agent of {run}")).next_u64();
        let mut rng = SimRng::for_purpose(options.seed, &format!("crashes of {run}"));
        let mut killed = 0;
        loop {
            let may_die = killed < MAX_KILLS_PER_RUN && kills < options.kills;
            let crash_point = may_die.then(|| rng.below(MAX_CRASH_POINTS));
            let signal = if rng.chance(25) { KillSignal::Sigterm } else { KillSignal::Sigkill };
            match run_worker(options, &run, agent_seed, crash_point, signal)? {
                WorkerExit::Killed => {
                    killed += 1;
                    kills += 1;
                }
                WorkerExit::Detached => {}
                WorkerExit::Finished => break,
            }
        }
        runs.push(run);
    }
    let runtime = build_runtime()?;
    let found = runtime.block_on(verdict::check_runs(&options.folder, &runs))?;
    let verdict::TortureVerdict { calls, twice, lost, unfinished } = found;
    println!(
        "kills={kills} runs={} calls={calls} twice={twice} lost={lost} unfinished={unfinished}",
        runs.len()
    );
    if twice + lost + unfinished > 0 {
        return Err(format!("the store and the ledger are kept in {}", options.folder.display()));
    }
    std::fs::remove_dir_all(&options.folder).map_err(|error| error.to_string())
}

/// The end of a worker.
enum WorkerExit {
    Killed,
    Detached,
    Finished,
}

/// Starts a worker on a run, and sends it the signal that it requests.
fn run_worker(
    options: &TortureOptions,
    run: &str,
    seed: u64,
    crash_point: Option<u64>,
    signal: KillSignal,
) -> Result<WorkerExit, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let crash_point = crash_point.map_or_else(|| "never".to_owned(), |point| point.to_string());
    let mut child = Command::new(program)
        .arg("worker")
        .arg(&options.folder)
        .args([run, &seed.to_string(), &crash_point])
        .arg(match signal {
            KillSignal::Sigkill => "killed",
            KillSignal::Sigterm => "stopped",
        })
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let Some(out) = child.stdout.take() else { return Err("the worker has no stdout".to_owned()) };
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let word = lines.find(|line| line == crash_plan::KILL_REQUEST || line == crash_plan::STOP_REQUEST);
    match word.as_deref() {
        Some(crash_plan::KILL_REQUEST) => child.kill().map_err(|error| error.to_string())?,
        Some(_) => {
            let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            told.map_err(|error| format!("`kill` cannot be run: {error}"))?;
        }
        None => {}
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match (word.as_deref(), status.success()) {
        (Some(crash_plan::KILL_REQUEST), _) => Ok(WorkerExit::Killed),
        (Some(_), true) => Ok(WorkerExit::Detached),
        (None, true) => Ok(WorkerExit::Finished),
        (_, false) => Err(format!("the worker of {run} failed; its seed is {seed}")),
    }
}

fn run_as_worker(arguments: &[String]) -> Result<(), String> {
    let [folder, run, seed, crash_point, signal] = arguments else {
        return Err("a worker takes five arguments".to_owned());
    };
    let seed = seed.parse().map_err(|_| format!("`{seed}` is not a seed"))?;
    let signal = if signal == "stopped" { KillSignal::Sigterm } else { KillSignal::Sigkill };
    build_runtime()?.block_on(worker::drive_run(
        Path::new(folder),
        run,
        seed,
        CrashPlan::after_points(crash_point.parse().ok(), signal),
    ))
}

fn build_runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}
