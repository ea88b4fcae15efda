//! `windlass resume`: goes on with a run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::SqliteStore;
use windlass::core::{End, RunId, Timestamp};
use windlass::store::{Store, StoredRun, paused};

use super::run::announce;
use super::{agent_here, driving};
use crate::agent_file::AgentFile;
use crate::args::{Args, DriveArgs, ResumeArgs};
use crate::live::AGENT_NOTE;
use crate::problem::{Exit, Problem};
use crate::project::{Project, is_open, pick};
use crate::term::{Lines, Paint, Term, time};

/// How often the lease of another driver is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long is waited for a lease to run out, however long it would last.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(crate) async fn run(args: &Args, resume: &ResumeArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let stored = pick(&*store, resume.run.as_deref(), is_open).await?;
    go_on(args, term, store, &stored.run, resume.agent.clone(), &resume.drive).await
}

/// Goes on with a run of the store.
pub(crate) async fn go_on(
    args: &Args,
    term: &Term,
    store: Arc<SqliteStore>,
    run: &RunId,
    agent: Option<PathBuf>,
    drive: &DriveArgs,
) -> Result<Exit, Problem> {
    let known = paused(&*store, run).await?;
    if let Some(end) = known.record().state().end() {
        let how = match end {
            End::Finished(_) => "finished",
            End::Failed(_) => "failed",
            End::Cancelled => "was cancelled",
        };
        return Err(Problem::usage(format!("run {run} is over: it {how}")).hint(format!(
            "`windlass show {run}` tells it; `windlass fork {run}` goes another way from any record"
        )));
    }
    let noted = store.artefact(run, AGENT_NOTE).await?.map(PathBuf::from).filter(|path| path.exists());
    let named = match agent.or(noted) {
        Some(named) => named,
        None => agent_here(args)?,
    };
    let file = AgentFile::read(&named)?;
    let mut driving = driving(term, file, store.clone(), drive).await?;
    announce(term, &driving.file, run, drive.model.as_deref());
    wait_for_lease(term, &*store, run).await?;
    let mut builder = driving.agent.recover(run.clone(), store.clone());
    if let Some(session) = known.record().state().session() {
        builder = builder.session(&windlass::Session::new(session.clone(), store));
    }
    let builder = driving.file.limited(builder);
    let driven = driving.see_through(run, builder, known.record().journal()).await?;
    Ok(driven.told(term))
}

/// Waits until whoever drove the run has shown no sign of life for as long as it said it would.
pub(crate) async fn wait_for_lease(term: &Term, store: &dyn Store, run: &RunId) -> Result<(), Problem> {
    let Some((owner, until)) = owner(store, run).await? else { return Ok(()) };
    let left = until.0.saturating_sub(now().0);
    if left == 0 {
        return Ok(());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_millis(left).min(LONGEST_WAIT);
    let mut lines = Lines::default();
    let busy = || {
        Problem::new(format!("run {run} is being driven by process {}", process_of(&owner)))
            .exits(Exit::Busy)
            .hint("wait for it, or stop it with Ctrl-C where it runs; decisions reach it with `windlass approve`")
    };
    while tokio::time::Instant::now() < deadline {
        match self::owner(store, run).await? {
            None => break,
            Some((_, now_until)) if now_until > until => {
                lines.clear(term);
                return Err(busy());
            }
            Some(_) => {}
        }
        if term.is_live() {
            let left = time(deadline.saturating_duration_since(tokio::time::Instant::now()));
            let note =
                format!("process {} may still be alive; its lease runs out in {left}", process_of(&owner));
            lines.draw(term, &[format!("  {}", term.paint().of(Paint::Faint, &note))]);
        }
        tokio::time::sleep(LOOK).await;
    }
    lines.clear(term);
    Ok(())
}

async fn owner(store: &dyn Store, run: &RunId) -> Result<Option<(String, Timestamp)>, Problem> {
    let runs: Vec<StoredRun> = store.runs().await?;
    Ok(runs.into_iter().find(|stored| stored.run == *run).and_then(|stored| stored.owner))
}

/// Owners are called by their process and something unique.
fn process_of(owner: &str) -> &str {
    owner.split('-').next().unwrap_or(owner)
}

/// The time of day.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
