//! `windlass resume`: resumes a run.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::core::{
    id::{RunId, Timestamp},
    run::RunEnd,
};
use windlass::store::{LeaseObserver, LeaseOwner, LeaseStanding, Store, load_paused};

use super::run::announce_run;
use super::{build_driver, find_agent, resume_text};
use crate::agent_file::AgentFile;
use crate::agent_path::{is_voice_run, recorded_agent_path};
use crate::args::{CliArgs, DriveArgs, ResumeArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run, is_resumable};
use crate::store_place::{ProjectStore, session_in_store};
use crate::terminal::{LiveLines, Terminal, TextStyle, format_duration, paint};

/// Interval at which the lease of another driver is polled.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn run(
    args: &CliArgs,
    resume: &ResumeArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    if let Some(path) = resume.run.as_deref().map(Path::new).filter(|path| path.is_file()) {
        return resume_text::run(args, resume, path, term).await;
    }
    let store = CliProject::from_args(args)?.open_existing().await?;
    let stored =
        find_run(&*store, resume.run.as_deref(), |stored| is_resumable(stored) && !is_voice_run(&stored.run))
            .await?;
    resume_run(args, term, store, &stored.run, resume.agent.clone(), &resume.drive).await
}

/// Resumes a run of the store.
pub(crate) async fn resume_run(
    args: &CliArgs,
    term: &Terminal,
    store: ProjectStore,
    run: &RunId,
    agent: Option<PathBuf>,
    drive: &DriveArgs,
) -> Result<CommandExit, CliError> {
    let known = load_paused(&*store, run).await?;
    if let Some(end) = known.record().outline().outcome() {
        let how = match end {
            RunEnd::Finished(_) => "finished",
            RunEnd::Failed(_) => "failed",
            RunEnd::Cancelled => "was cancelled",
        };
        return Err(CliError::usage(format!("run {run} has ended: it {how}")).with_hint(format!(
            "`windlass show {run}` shows it; `windlass fork {run}` branches off at any record"
        )));
    }
    if agent.is_none() && is_voice_run(run) {
        return Err(CliError::usage(format!(
            "run {run} has calls of a conversation of `windlass talk`, which goes on with them"
        ))
        .with_hint(format!(
            "if that conversation has ended, `windlass resume {run} --agent FILE` goes on with the run as text, and \
             `windlass cancel {run}` gives it up"
        )));
    }
    let project = CliProject::from_args(args)?;
    let named = match agent {
        Some(named) => Some(find_agent(args, Some(&named))?),
        None => recorded_agent_path(&project, &*store, run).await?.filter(|path| path.exists()),
    };
    let named = named.map_or_else(|| find_agent(args, None), Ok)?;
    let file = AgentFile::read(&named)?;
    let mut driving = build_driver(term, file, &project, store.clone(), drive).await?;
    announce_run(term, &driving.file, run, drive.model.as_deref());
    let observer = wait_for_lease(term, &*store, run).await?;
    let mut builder = driving.agent.recover(run.clone(), store.clone()).lease_observer(&observer);
    if let Some(session) = known.record().outline().session() {
        builder = builder.session(&session_in_store(session.as_str(), &store)?);
    }
    let builder = driving.file.with_limits(builder);
    let driven = driving.drive_to_outcome(run, builder, known.record().journal()).await?;
    Ok(driven.report_outcome(term))
}

/// Waits until the run has no driver, and says so meanwhile. Returns the observations, with which the run is taken over.
///
/// # Errors
///
/// Fails with [`CommandExit::RunLeased`] if the driver renews its lease.
pub(crate) async fn wait_for_lease(
    term: &Terminal,
    store: &dyn Store,
    run: &RunId,
) -> Result<LeaseObserver, CliError> {
    let observer = LeaseObserver::new();
    let mut lines = LiveLines::default();
    loop {
        let (lease, remaining, is_renewed) = match observer.observe(store, run).await? {
            LeaseStanding::Free | LeaseStanding::Abandoned(_) => {
                lines.clear(term);
                return Ok(observer);
            }
            LeaseStanding::Held { lease, remaining, is_renewed } => (lease, remaining, is_renewed),
        };
        let process = describe_owner(&lease.owner);
        if is_renewed {
            lines.clear(term);
            return Err(CliError::new(format!("run {run} is being executed by {process}"))
                .with_exit(CommandExit::RunLeased)
                .with_hint("wait for it, or stop it with Ctrl-C in its terminal; `windlass approve` and `reject` reach it"));
        }
        if term.can_redraw() {
            let left = format_duration(remaining);
            let note = format!("{process} may still be alive; its lease is over in {left}");
            lines.draw(term, &[paint(TextStyle::Faint, format!("  {note}"))]);
        }
        tokio::time::sleep(LEASE_POLL_INTERVAL.min(remaining)).await;
    }
}

/// Returns the process of a lease's owner for a message.
fn describe_owner(owner: &str) -> String {
    match LeaseOwner::parse(owner) {
        Some(owner) if owner.host().is_empty() => format!("process {}", owner.pid()),
        Some(owner) => format!("process {} on {}", owner.pid(), owner.host()),
        None => format!("`{owner}`"),
    }
}

/// Returns the current time.
pub(crate) fn current_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
