//! Torture with real processes: several workers compete for the runs of one store, a decider decides about their calls,
//! and both are killed, stopped, frozen, redeployed and denied their clock and disk. An outside oracle judges.
//!
//! `windlass-torture --faults N --seed S --workers W --folder PATH [--store postgres]` prints one line,
//! `kills=… freezes=… clock_steps=… network_cuts=… redeploys=… runs=… calls=… twice=0 lost=0 forgotten=0 unapproved=0 unfinished=0`,
//! and fails if one of the last five is not zero. Then the folders of the failed rounds are kept, and stderr says why.
//! `--kills N` in place of `--faults N` counts kills only. The same seed makes the same choices; the machine decides which
//! instruction of a process a fault hits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use windlass_torture::decider::{DeciderSettings, decide};
use windlass_torture::files::RoundFolder;
use windlass_torture::queue_worker::work_from_queue;
use windlass_torture::torturer::{
    StoreBackend, TortureGoal, TortureOptions, TortureReport, open_world, torture,
};
use windlass_torture::worker::{WorkerSettings, work};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some(role @ ("worker" | "queue-worker" | "decider")) => run_role(role, &arguments[1..]),
        _ => parse_options(&arguments).and_then(|options| run_torture(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse_options(arguments: &[String]) -> Result<TortureOptions, String> {
    let usage = || {
        "usage: windlass-torture --faults N | --kills N --seed S [--workers W] [--folder PATH] [--except FAULT,…] [--plant BUG] [--store postgres]"
            .to_owned()
    };
    let mut options = TortureOptions {
        goal: TortureGoal::Faults(100),
        seed: 1,
        workers: 4,
        folder: std::env::temp_dir(),
        left_out: Vec::new(),
        planted: None,
        backend: StoreBackend::File,
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(usage()) };
        match name.as_str() {
            "--faults" => options.goal = TortureGoal::Faults(value.parse().map_err(|_| usage())?),
            "--kills" => options.goal = TortureGoal::Kills(value.parse().map_err(|_| usage())?),
            "--seed" => options.seed = value.parse().map_err(|_| usage())?,
            "--workers" => options.workers = value.parse().map_err(|_| usage())?,
            "--folder" => options.folder = PathBuf::from(value),
            "--except" => options.left_out = value.split(',').map(str::to_owned).collect(),
            "--plant" => options.planted = Some(value.parse()?),
            "--store" => {
                options.backend = match value.as_str() {
                    "file" => StoreBackend::File,
                    "postgres" => StoreBackend::Postgres,
                    _ => return Err(usage()),
                }
            }
            _ => return Err(usage()),
        }
    }
    if options.workers == 0 {
        return Err(usage());
    }
    options.folder.push(format!("windlass-torture-{}-{}", std::process::id(), options.seed));
    Ok(options)
}

fn run_torture(options: &TortureOptions) -> Result<(), String> {
    let report = torture(options, &build_runtime()?);
    let place = format!("seed {}; everything is kept in {}", options.seed, options.folder.display());
    let TortureReport { faults, runs, verdict } = report.map_err(|error| format!("{error}\n{place}"))?;
    eprintln!(
        "faults={} kills_in_store={} terminations={} full_disks={} failed_writes={} failed_syncs={} server_crashes={} expired_receipts={} cancelled_runs={} added_inputs={} session_edits={} forks={}",
        faults.total(),
        faults.kills_in_store,
        faults.terminations,
        faults.full_disks,
        faults.failed_write_calls,
        faults.failed_sync_calls,
        faults.server_crashes,
        verdict.expired_receipts,
        verdict.cancelled_runs,
        verdict.added_inputs,
        verdict.session_edits,
        verdict.forks,
    );
    println!(
        "kills={} freezes={} clock_steps={} network_cuts={} redeploys={} runs={runs} {verdict}",
        faults.kills, faults.freezes, faults.clock_steps, faults.network_cuts, faults.redeploys
    );
    if verdict.violations() > 0 {
        return Err(place);
    }
    std::fs::remove_dir_all(&options.folder).map_err(|error| error.to_string())
}

fn run_role(role: &str, arguments: &[String]) -> Result<(), String> {
    let [folder, decisions, rule, lease, seed, name, build, planted @ ..] = arguments else {
        return Err(format!("a {role} takes seven arguments or eight"));
    };
    let planted = planted.first().map(|bug| bug.parse()).transpose()?;
    let folder = RoundFolder::at(Path::new(folder)).seen_by(name);
    let world = open_world(folder.path(), rule == "fenced");
    let seed = seed.parse().map_err(|_| format!("`{seed}` is not a seed"))?;
    let lease = lease.parse().map_err(|_| format!("`{lease}` is not a duration"))?;
    let runtime = build_runtime()?;
    if role == "decider" {
        let has_corrections = decisions == "correcting";
        let name = name.clone();
        let settings = DeciderSettings { folder, world, name, seed, has_corrections, planted };
        return runtime.block_on(decide(settings));
    }
    let settings = WorkerSettings {
        folder,
        name: name.clone(),
        build: build.parse()?,
        lease_duration: Duration::from_millis(lease),
        world,
        seed,
        planted,
    };
    match role {
        "queue-worker" => runtime.block_on(work_from_queue(settings)),
        _ => runtime.block_on(work(settings)),
    }
}

fn build_runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}
