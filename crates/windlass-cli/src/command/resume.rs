//! `windlass resume`: resumes a run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::core::{
    id::{RunId, Timestamp},
    run::RunEnd,
};
use windlass::store::SqliteStore;
use windlass::store::{Store, StoredRun, load_paused};

use super::run::announce_run;
use super::{build_driver, default_agent};
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, DriveArgs, ResumeArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, find_run, is_resumable};
use crate::run_driver::AGENT_PATH_ARTEFACT;
use crate::terminal::{LiveLines, Terminal, TextStyle, format_duration};

/// Interval at which the lease of another driver is polled.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time to wait for a lease to expire.
const MAX_LEASE_WAIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(
    args: &CliArgs,
    resume: &ResumeArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing()?;
    let stored = find_run(&*store, resume.run.as_deref(), is_resumable).await?;
    resume_run(args, term, store, &stored.run, resume.agent.clone(), &resume.drive).await
}

/// Resumes a run of the store.
pub(crate) async fn resume_run(
    args: &CliArgs,
    term: &Terminal,
    store: Arc<SqliteStore>,
    run: &RunId,
    agent: Option<PathBuf>,
    drive: &DriveArgs,
) -> Result<CommandExit, CliError> {
    let known = load_paused(&*store, run).await?;
    if let Some(end) = known.record().state().outcome() {
        let how = match end {
            RunEnd::Finished(_) => "finished",
            RunEnd::Failed(_) => "failed",
            RunEnd::Cancelled => "was cancelled",
        };
        return Err(CliError::usage(format!("run {run} has ended: it {how}")).with_hint(format!(
            "`windlass show {run}` shows it; `windlass fork {run}` branches off at any record"
        )));
    }
    let noted =
        store.load_artefact(run, AGENT_PATH_ARTEFACT).await?.map(PathBuf::from).filter(|path| path.exists());
    let named = match agent.or(noted) {
        Some(named) => named,
        None => default_agent(args)?,
    };
    let file = AgentFile::read(&named)?;
    let mut driving = build_driver(term, file, store.clone(), drive).await?;
    announce_run(term, &driving.file, run, drive.model.as_deref());
    wait_for_lease(term, &*store, run).await?;
    let mut builder = driving.agent.recover(run.clone(), store.clone());
    if let Some(session) = known.record().state().session() {
        builder = builder.session(&windlass::session::Session::new(session.clone(), store));
    }
    let builder = driving.file.with_limits(builder);
    let driven = driving.drive_to_outcome(run, builder, known.record().journal()).await?;
    Ok(driven.report_outcome(term))
}

/// Waits until the lease of the run's previous driver has expired.
///
/// # Errors
///
/// Fails with [`CommandExit::RunLeased`] if the driver renews its lease.
pub(crate) async fn wait_for_lease(term: &Terminal, store: &dyn Store, run: &RunId) -> Result<(), CliError> {
    let Some((owner, until)) = lease_owner(store, run).await? else { return Ok(()) };
    let left = until.0.saturating_sub(current_time().0);
    if left == 0 {
        return Ok(());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_millis(left).min(MAX_LEASE_WAIT);
    let mut lines = LiveLines::default();
    let busy = || {
        CliError::new(format!("run {run} is being executed by process {}", process_of_owner(&owner)))
            .with_exit(CommandExit::RunLeased)
            .with_hint("wait for it, or stop it with Ctrl-C in its terminal; `windlass approve` and `reject` reach it")
    };
    while tokio::time::Instant::now() < deadline {
        match lease_owner(store, run).await? {
            None => break,
            Some((_, now_until)) if now_until > until => {
                lines.clear(term);
                return Err(busy());
            }
            Some(_) => {}
        }
        if term.can_redraw() {
            let left = format_duration(deadline.saturating_duration_since(tokio::time::Instant::now()));
            let note = format!(
                "process {} may still be alive; its lease expires in {left}",
                process_of_owner(&owner)
            );
            lines.draw(term, &[format!("  {}", term.stderr_colour().paint(TextStyle::Faint, &note))]);
        }
        tokio::time::sleep(LEASE_POLL_INTERVAL).await;
    }
    lines.clear(term);
    Ok(())
}

async fn lease_owner(store: &dyn Store, run: &RunId) -> Result<Option<(String, Timestamp)>, CliError> {
    let runs: Vec<StoredRun> = store.list_runs().await?;
    Ok(runs.into_iter().find(|stored| stored.run == *run).and_then(|stored| stored.owner))
}

/// Returns the process id from a lease owner's name, which is the process id and a unique suffix.
fn process_of_owner(owner: &str) -> &str {
    owner.split('-').next().unwrap_or(owner)
}

/// Returns the current time.
pub(crate) fn current_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
