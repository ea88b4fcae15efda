//! The computers of the active runs, shared by the tools of one [`crate::ComputerTool`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;
use windlass::core::id::RunId;
use windlass::run::RunExit;
use windlass::tool::ToolContext;

use crate::action::ComputerAction;
use crate::call_admission::JudgedCalls;
use crate::computer::{Computer, ComputerError, Screenshot};
use crate::provider::{ComputerSource, PausePolicy};
use crate::safety::SafetyPolicy;
use crate::secret::ComputerSecrets;

/// The window for the rate limit.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of runs whose action count is kept in memory after they released their computer.
const MAX_SAVED_COUNTS: usize = 1024;
/// Notice for the model after a computer was replaced.
const REPLACED_NOTICE: &str = "The computer had ended and was replaced by a new one, which shows its first screen. \
                               Everything that was open before is lost.";

/// A run's computer and its counters.
pub(crate) struct RunComputer {
    pub(crate) computer: Arc<dyn Computer>,
    /// True if the computer replaced another one and the model has not seen its screen.
    is_unseen_replacement: AtomicBool,
    actions_taken: AtomicU64,
    recent_actions: Mutex<VecDeque<Instant>>,
    last_screenshot: Mutex<Option<Screenshot>>,
    /// True if the run has released the computer and may acquire it again.
    is_released: AtomicBool,
    /// Number of times that the run released the computer.
    release_count: AtomicU64,
}

type RunComputers = BTreeMap<RunId, Arc<OnceCell<Arc<RunComputer>>>>;

/// The settings of a registry.
pub(crate) struct RegistrySettings {
    pub(crate) source: ComputerSource,
    pub(crate) safety: SafetyPolicy,
    pub(crate) secrets: ComputerSecrets,
    pub(crate) pause_policy: PausePolicy,
    pub(crate) max_kept_computers: usize,
    pub(crate) action_timeout: Duration,
    pub(crate) max_call_wait: Duration,
}

pub(crate) struct ComputerRegistry {
    pub(crate) settings: RegistrySettings,
    pub(crate) judged_calls: JudgedCalls,
    computers: Mutex<RunComputers>,
    /// Runs that wait for a person and whose computer is kept, oldest first.
    kept_runs: Mutex<VecDeque<RunId>>,
    /// Action counts of runs that released their computer and may resume.
    saved_counts: Mutex<VecDeque<(RunId, u64)>>,
}

impl ComputerRegistry {
    pub(crate) fn new(settings: RegistrySettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            judged_calls: JudgedCalls::default(),
            computers: Mutex::default(),
            kept_runs: Mutex::default(),
            saved_counts: Mutex::default(),
        })
    }

    /// Returns the run's computer. The first call of a run creates it, and the end of the run releases it. A
    /// computer that has ended is replaced.
    pub(crate) async fn acquire<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
    ) -> Result<Arc<RunComputer>, ComputerError> {
        let run = ctx.run_context().run_id();
        if let Some(seat) = self.computer_of(run)
            && seat.computer.is_closed()
            && self.settings.source.is_per_run()
        {
            self.save_action_count(run, &seat);
            self.remove_and_dispose(run, &seat).await;
        }
        let cell = lock(&self.computers).entry(run.clone()).or_default().clone();
        let seat = cell.get_or_try_init(|| self.create_seat(ctx)).await?.clone();
        lock(&self.kept_runs).retain(|kept| kept != run);
        // Each acquisition, the first or one after a pause, registers its release.
        if seat.is_released.swap(false, Ordering::AcqRel) {
            let (station, run) = (self.clone(), run.clone());
            ctx.on_run_exit(move |leaving| async move { station.release_computer(&run, leaving).await });
        }
        Ok(seat)
    }

    async fn create_seat<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
    ) -> Result<Arc<RunComputer>, ComputerError> {
        let run = ctx.run_context().run_id();
        if let Some(why) = self.settings.secrets.invalid_sites_reason() {
            return Err(ComputerError::Failed(why));
        }
        let store_error =
            |error: windlass::error::StoreError| ComputerError::Failed(format!("the store: {error}"));
        let taken = self.load_action_count(ctx).await.map_err(store_error)?;
        // The run may have had a computer in another process.
        let had_one = self.settings.source.is_per_run()
            && (lock(&self.saved_counts).iter().any(|(known, _)| known == run)
                || ctx.load_artefact(&opened_key(run)).await.map_err(store_error)?.is_some());
        let computer = self.settings.source.acquire(run).await?;
        if self.settings.source.is_per_run() {
            ctx.save_artefact(&opened_key(run), "opened").await.map_err(store_error)?;
        }
        Ok(Arc::new(RunComputer {
            computer,
            is_unseen_replacement: AtomicBool::new(had_one),
            actions_taken: AtomicU64::new(taken),
            recent_actions: Mutex::default(),
            last_screenshot: Mutex::default(),
            is_released: AtomicBool::new(true),
            release_count: AtomicU64::new(0),
        }))
    }

    async fn release_computer(self: &Arc<Self>, run: &RunId, leaving: RunExit) {
        if leaving == RunExit::Ended {
            self.judged_calls.forget_run(run);
        }
        let Some(seat) = self.computer_of(run) else { return };
        self.save_action_count(run, &seat);
        let kept_for = match (leaving, self.settings.pause_policy) {
            (RunExit::Ended, _) | (RunExit::Paused | RunExit::Detached, PausePolicy::Dispose) => None,
            (RunExit::Paused | RunExit::Detached, PausePolicy::KeepFor(lasting)) => Some(lasting),
        };
        let Some(lasting) = kept_for else { return self.remove_and_dispose(run, &seat).await };
        let times = seat.release_count.fetch_add(1, Ordering::AcqRel) + 1;
        seat.is_released.store(true, Ordering::Release);
        let surplus = {
            let mut kept = lock(&self.kept_runs);
            kept.retain(|known| known != run);
            kept.push_back(run.clone());
            if kept.len() > self.settings.max_kept_computers { kept.pop_front() } else { None }
        };
        if let Some(oldest) = surplus
            && let Some(seat) = self.computer_of(&oldest)
        {
            self.remove_and_dispose(&oldest, &seat).await;
        }
        let (station, run) = (self.clone(), run.clone());
        tokio::spawn(async move {
            tokio::time::sleep(lasting).await;
            let has_not_come_back = seat.release_count.load(Ordering::Acquire) == times
                && seat.is_released.load(Ordering::Acquire);
            if has_not_come_back {
                station.remove_and_dispose(&run, &seat).await;
            }
        });
    }

    async fn remove_and_dispose(&self, run: &RunId, seat: &Arc<RunComputer>) {
        lock(&self.kept_runs).retain(|kept| kept != run);
        let removed = {
            let mut seats = lock(&self.computers);
            let is_this =
                seats.get(run).and_then(|cell| cell.get()).is_some_and(|known| Arc::ptr_eq(known, seat));
            is_this.then(|| seats.remove(run))
        };
        if removed.is_some() {
            self.judged_calls.forget_computer(run, seat);
            self.settings.source.dispose(seat.computer.clone()).await;
        }
    }

    pub(crate) fn computer_of(&self, run: &RunId) -> Option<Arc<RunComputer>> {
        lock(&self.computers).get(run).and_then(|cell| cell.get().cloned())
    }

    /// Counts actions before they run, so that a crash does not lose the count.
    pub(crate) async fn count_actions<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        seat: &RunComputer,
        actions: &[ComputerAction],
    ) -> Result<(), windlass::error::StoreError> {
        let acting = actions.iter().filter(|action| !action.is_read_only()).count();
        if acting == 0 {
            return Ok(());
        }
        let taken = seat.actions_taken.fetch_add(acting as u64, Ordering::Relaxed) + acting as u64;
        seat.record_recent_actions(acting);
        if self.settings.safety.max_actions.is_some() {
            ctx.save_artefact(&counter_key(ctx.run_context().run_id()), taken.to_string()).await?;
        }
        Ok(())
    }

    /// Returns the number of actions that the run has taken, and the number within the last minute.
    pub(crate) async fn action_counts<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
    ) -> Result<(u64, usize), windlass::error::StoreError> {
        Ok(match self.computer_of(ctx.run_context().run_id()) {
            Some(seat) => (seat.actions_taken.load(Ordering::Relaxed), seat.actions_last_minute()),
            None => (self.load_action_count(ctx).await?, 0),
        })
    }

    async fn load_action_count<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
    ) -> Result<u64, windlass::error::StoreError> {
        let run = ctx.run_context().run_id();
        let known =
            lock(&self.saved_counts).iter().rev().find(|(known, _)| known == run).map(|(_, taken)| *taken);
        let kept = match self.settings.safety.max_actions {
            Some(_) => ctx.load_text_artefact(&counter_key(run)).await?,
            None => None,
        };
        Ok(known.unwrap_or(0).max(kept.and_then(|text| text.parse().ok()).unwrap_or(0)))
    }

    fn save_action_count(&self, run: &RunId, seat: &RunComputer) {
        let mut counts = lock(&self.saved_counts);
        counts.retain(|(known, _)| known != run);
        counts.push_back((run.clone(), seat.actions_taken.load(Ordering::Relaxed)));
        if counts.len() > MAX_SAVED_COUNTS {
            counts.pop_front();
        }
    }
}

impl RunComputer {
    pub(crate) fn set_last_screenshot(&self, screenshot: &Screenshot) {
        *lock(&self.last_screenshot) = Some(screenshot.clone());
    }

    pub(crate) fn last_screenshot(&self) -> Option<Screenshot> {
        lock(&self.last_screenshot).clone()
    }

    /// Returns true if the computer replaced another one and the model has not been told.
    pub(crate) fn is_unseen_replacement(&self) -> bool {
        self.is_unseen_replacement.load(Ordering::Acquire)
    }

    /// Takes the notices for the model, including the one that the computer is a new one.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        let mut notices = self.computer.take_notices();
        if self.is_unseen_replacement.swap(false, Ordering::AcqRel) {
            notices.insert(0, REPLACED_NOTICE.to_owned());
        }
        notices
    }

    fn record_recent_actions(&self, acting: usize) {
        let mut recent = lock(&self.recent_actions);
        let now = Instant::now();
        recent.extend(std::iter::repeat_n(now, acting));
        while recent.front().is_some_and(|at| now.duration_since(*at) > RATE_WINDOW) {
            recent.pop_front();
        }
    }

    fn actions_last_minute(&self) -> usize {
        let now = Instant::now();
        lock(&self.recent_actions).iter().filter(|at| now.duration_since(**at) <= RATE_WINDOW).count()
    }
}

/// Returns the artefact key of a run's action count. The tools of one computer share it.
fn counter_key(run: &RunId) -> String {
    format!("computer:actions:{run}")
}

/// Returns the artefact key that records that a run has had a computer.
fn opened_key(run: &RunId) -> String {
    format!("computer:opened:{run}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
