//! `windlass work`: drives submitted runs until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::id::RunId;
use windlass::fleet::{AgentRegistry, DeployedAgent, SegmentEnd, Worker, WorkerReport, WorkerStop};

use super::{check_keys, find_agent};
use crate::agent_file::AgentFile;
use crate::agent_path::{AGENT_PATH_ARTEFACT, encode_agent_path};
use crate::args::{CliArgs, WorkArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::log_lines::print_warnings;
use crate::project::CliProject;
use crate::run_driver::SignalCounter;
use crate::store_place::ProjectStore;
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(args: &CliArgs, asked: &WorkArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let files = read_agents(args, &asked.agents)?;
    let first = files.first().ok_or_else(|| CliError::usage("no agent given"))?;
    let project = CliProject::of_agent_file(args, first.path(), term)?;
    print_warnings(term);
    // The handlers are installed before the worker takes its first run.
    let signals = SignalCounter::install()?;
    let queue = project.open_or_create().await?;
    let registry = deploy_agents(&project, &files, &queue).await?;
    for offer in registry.offers() {
        announce_agent(term, offer.agent.as_str(), &offer.build);
    }
    let watcher_term = term.clone();
    let worker = Worker::new(queue, registry)
        .concurrency(asked.concurrency)
        .drain_timeout(Duration::from_secs(asked.drain))
        .on_segment_end(move |run, end| print_segment_end(&watcher_term, run, end));
    let stop = worker.stop_handle();
    let working = async {
        match asked.until_idle {
            true => worker.run_until_idle().await,
            false => worker.run().await,
        }
    };
    tokio::select! {
        report = working => print_report(term, report?),
        () = drain_on_signals(term, signals, stop) => return Ok(CommandExit::Interrupted),
    }
    Ok(CommandExit::Success)
}

/// Reads the agent files, or that of the project if none is named.
pub(super) fn read_agents(
    args: &CliArgs,
    named: &[std::path::PathBuf],
) -> Result<Vec<Arc<AgentFile>>, CliError> {
    let named = match named {
        [] => vec![find_agent(args, None)?],
        named => named.iter().map(|named| find_agent(args, Some(named))).collect::<Result<_, _>>()?,
    };
    named.iter().map(|path| AgentFile::read(path).map(Arc::new)).collect()
}

/// Builds the agents of the files. Calls that need a person park their run.
pub(super) async fn deploy_agents(
    project: &CliProject,
    files: &[Arc<AgentFile>],
    store: &ProjectStore,
) -> Result<AgentRegistry, CliError> {
    let mut registry = AgentRegistry::new();
    for file in files {
        check_keys(project, file)?;
        let agent = file.build_agent(None).await?;
        if registry.find_agent(agent.name()).is_some() {
            return Err(CliError::usage(format!("several agents are named `{}`", file.name()))
                .with_hint("submitted runs name their agent: give each its own `name`"));
        }
        let (configured, keys) = (file.clone(), store.mac_keys().cloned());
        let deployed = DeployedAgent::new(agent).configure_submissions(move |run, submission| {
            // With the path of its agent file, the run can be shown and resumed by its id alone.
            let path = encode_agent_path(&submission.run, configured.path(), keys.as_deref());
            let run = configured.with_limits(run).artefact(AGENT_PATH_ARTEFACT, path);
            if submission.session.is_some() { configured.with_session_budget(run) } else { run }
        });
        registry = registry.deploy(deployed);
    }
    Ok(registry)
}

/// Drains the worker at the first signal, and returns at the second Ctrl-C.
async fn drain_on_signals(term: &Terminal, mut signals: SignalCounter, stop: WorkerStop) {
    use crate::run_driver::StopSignal;
    let mut is_draining = false;
    loop {
        match signals.next().await {
            StopSignal::Interrupt if is_draining => return,
            StopSignal::Interrupt | StopSignal::Terminate => {
                if !is_draining && term.output_format() == OutputFormat::Text {
                    term.eprint_line("draining: no more runs are taken, and running calls may finish");
                }
                is_draining = true;
                stop.drain();
            }
        }
    }
}

fn announce_agent(term: &Terminal, agent: &str, build: &str) {
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "agent_deployed", "agent": agent, "build": build }));
        }
        OutputFormat::Text => {
            let short = build.get(..12).unwrap_or(build);
            term.eprint_line(format!("working for {agent}, build {short}"));
        }
    }
}

fn print_segment_end(term: &Terminal, run: &RunId, end: SegmentEnd) {
    let (name, text) = match end {
        SegmentEnd::Ended => ("ended", "has ended"),
        SegmentEnd::Parked => ("parked", "waits for a person"),
        SegmentEnd::Left => ("left", "is left for a later segment"),
        SegmentEnd::Failed => ("failed", "failed; `windlass fleet queue` shows when it is tried again"),
        SegmentEnd::Declined => ("declined", "needs another build of its agent"),
        SegmentEnd::Busy => ("busy", "is busy: another process or run of its session goes first"),
        SegmentEnd::Lost => ("lost", "was taken over by another process"),
    };
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({ "type": "segment_ended", "run": run, "end": name })),
        OutputFormat::Text => term.eprint_line(format!("run {run} {text}")),
    }
}

fn print_report(term: &Terminal, report: WorkerReport) {
    let WorkerReport { ended, parked, left, failed, declined, busy, lost, .. } = report;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "worker_stopped", "ended": ended, "parked": parked, "left": left, "failed": failed,
            "declined": declined, "busy": busy, "lost": lost,
        })),
        OutputFormat::Text => term.eprint_line(format!(
            "segments: {ended} ended, {parked} parked, {left} left, {failed} failed, {declined} declined, {busy} busy, {lost} lost"
        )),
    }
}
