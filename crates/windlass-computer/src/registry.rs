//! The computers of the active runs, shared by the tools of one [`crate::ComputerTool`], and the checks
//! before they act.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;
use windlass::core::id::RunId;
use windlass::run::RunExit;
use windlass::tool::ToolContext;

use crate::action::{ComputerAction, SafetyCheck};
use crate::computer::{Computer, ComputerError, Screenshot};
use crate::provider::{ComputerSource, PausePolicy};
use crate::safety::{ActionVerdict, ProposedAction, SafetyCheckDecision, SafetyPolicy, off_screen_reason};
use crate::secret::ComputerSecrets;

/// The window for the rate limit.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of runs whose action count is kept in memory after they released their computer.
const MAX_SAVED_COUNTS: usize = 1024;

/// A run's computer and its counters.
pub(crate) struct RunComputer {
    pub(crate) computer: Arc<dyn Computer>,
    actions_taken: AtomicU64,
    recent_actions: Mutex<VecDeque<Instant>>,
    last_screenshot: Mutex<Option<Screenshot>>,
    /// True if the run has released the computer and may acquire it again.
    is_released: AtomicBool,
    /// Number of times that the run released the computer.
    release_count: AtomicU64,
}

type RunComputers = BTreeMap<RunId, Arc<OnceCell<Arc<RunComputer>>>>;

pub(crate) struct ComputerRegistry {
    pub(crate) source: ComputerSource,
    pub(crate) safety: SafetyPolicy,
    pub(crate) secrets: ComputerSecrets,
    pub(crate) pause_policy: PausePolicy,
    pub(crate) action_timeout: Duration,
    computers: Mutex<RunComputers>,
    /// Action counts of runs that released their computer and may resume.
    saved_counts: Mutex<VecDeque<(RunId, u64)>>,
}

impl ComputerRegistry {
    pub(crate) fn new(
        source: ComputerSource,
        safety: SafetyPolicy,
        secrets: ComputerSecrets,
        on_pause: PausePolicy,
        within: Duration,
    ) -> Arc<Self> {
        let (seats, counts) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            source,
            safety,
            secrets,
            pause_policy: on_pause,
            action_timeout: within,
            computers: seats,
            saved_counts: counts,
        })
    }

    /// Returns the reason why a call may not run; `None` if it may. Nothing of the call has run by then.
    pub(crate) async fn refusal_reason<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
        checks: &[SafetyCheck],
    ) -> Result<Option<String>, windlass::error::StoreError> {
        let display = self.source.display();
        let acting = actions.iter().filter(|action| !action.is_read_only()).count() as u64;
        for (place, action) in actions.iter().enumerate() {
            if let Some(why) = off_screen_reason(action, &display) {
                return Ok(Some(format!("`actions[{place}]` cannot be done: {why}.")));
            }
            if let Some(why) = self.secrets.unknown_secret_reason(action) {
                return Ok(Some(format!(
                    "`actions[{place}]` cannot be done: {why}. Nothing of this call was done."
                )));
            }
        }
        let seat = self.computer_of(ctx.run_context().run_id());
        let taken = match &seat {
            Some(seat) => seat.actions_taken.load(Ordering::Relaxed),
            None => self.load_action_count(ctx).await?,
        };
        if let Some(limit) = self.safety.max_actions.filter(|limit| acting > 0 && taken + acting > *limit) {
            return Ok(Some(format!(
                "This run may take {limit} actions and has taken {taken}; nothing of this call was done."
            )));
        }
        let last_minute = seat.as_ref().map_or(0, |seat| seat.actions_last_minute());
        let fast = |most: &usize| acting > 0 && last_minute as u64 + acting > *most as u64;
        if let Some(most) = self.safety.max_actions_per_minute.filter(fast) {
            return Ok(Some(format!(
                "This run may take {most} actions in a minute and has taken {last_minute} in the last; nothing of this \
                 call was done. Wait, and try again."
            )));
        }
        if let SafetyCheckDecision::Refused(why) = self.safety.decide_safety_checks(checks).await {
            return Ok(Some(format!(
                "A safety check was not acknowledged: {why}. Nothing of this call was done."
            )));
        }
        for (place, action) in actions.iter().enumerate() {
            let proposed = ProposedAction {
                action: action.clone(),
                index: place,
                call_len: actions.len(),
                display: display.clone(),
                actions_taken: taken,
                actions_last_minute: last_minute,
                run_id: ctx.run_context().run_id().clone(),
                agent: ctx.agent().clone(),
            };
            if let ActionVerdict::Refuse(why) = self.safety.review_action(proposed).await {
                return Ok(Some(format!(
                    "The {} was refused: {why}. Nothing of this call was done.",
                    action.kind()
                )));
            }
        }
        Ok(None)
    }

    /// Returns the run's computer. The first call of a run creates it, and the end of the run releases it.
    pub(crate) async fn acquire<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
    ) -> Result<Arc<RunComputer>, ComputerError> {
        let run = ctx.run_context().run_id();
        let cell = lock(&self.computers).entry(run.clone()).or_default().clone();
        let seat = cell
            .get_or_try_init(|| async {
                let taken = self
                    .load_action_count(ctx)
                    .await
                    .map_err(|error| ComputerError::Failed(error.to_string()))?;
                let computer = self.source.acquire(run).await?;
                let seat = RunComputer {
                    computer,
                    actions_taken: AtomicU64::new(taken),
                    recent_actions: Mutex::default(),
                    last_screenshot: Mutex::default(),
                    is_released: AtomicBool::new(true),
                    release_count: AtomicU64::new(0),
                };
                Ok::<_, ComputerError>(Arc::new(seat))
            })
            .await?
            .clone();
        // Each acquisition, the first or one after a pause, registers its release.
        if seat.is_released.swap(false, Ordering::AcqRel) {
            let (station, run) = (self.clone(), run.clone());
            ctx.on_run_exit(move |leaving| async move { station.release_computer(&run, leaving).await });
        }
        Ok(seat)
    }

    async fn release_computer(self: &Arc<Self>, run: &RunId, leaving: RunExit) {
        let Some(seat) = self.computer_of(run) else { return };
        self.save_action_count(run, &seat);
        let may_come_back = match leaving {
            RunExit::Ended => None,
            RunExit::Paused | RunExit::Detached => match self.pause_policy {
                PausePolicy::Dispose => None,
                PausePolicy::KeepFor(lasting) => Some(lasting),
            },
        };
        match may_come_back {
            None => self.remove_and_dispose(run, &seat).await,
            Some(lasting) => {
                let (station, run) = (self.clone(), run.clone());
                let times = seat.release_count.fetch_add(1, Ordering::AcqRel) + 1;
                seat.is_released.store(true, Ordering::Release);
                tokio::spawn(async move {
                    tokio::time::sleep(lasting).await;
                    let has_not_come_back = seat.release_count.load(Ordering::Acquire) == times
                        && seat.is_released.load(Ordering::Acquire);
                    if has_not_come_back {
                        station.remove_and_dispose(&run, &seat).await;
                    }
                });
            }
        }
    }

    async fn remove_and_dispose(&self, run: &RunId, seat: &Arc<RunComputer>) {
        let removed = {
            let mut seats = lock(&self.computers);
            let is_this =
                seats.get(run).and_then(|cell| cell.get()).is_some_and(|known| Arc::ptr_eq(known, seat));
            is_this.then(|| seats.remove(run))
        };
        if removed.is_some() {
            self.source.dispose(seat.computer.clone()).await;
        }
    }

    fn computer_of(&self, run: &RunId) -> Option<Arc<RunComputer>> {
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
        if self.safety.max_actions.is_some() {
            ctx.save_artefact(&counter_key(ctx.run_context().run_id()), &taken.to_string()).await?;
        }
        Ok(())
    }

    async fn load_action_count<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
    ) -> Result<u64, windlass::error::StoreError> {
        let run = ctx.run_context().run_id();
        let known =
            lock(&self.saved_counts).iter().rev().find(|(known, _)| known == run).map(|(_, taken)| *taken);
        let kept = match self.safety.max_actions {
            Some(_) => ctx.load_artefact(&counter_key(run)).await?,
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
