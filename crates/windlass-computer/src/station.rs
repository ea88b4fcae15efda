//! What the tools of one computer share: the seats of the runs that use it, and what is asked before they act.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;
use windlass::ToolContext;
use windlass::core::RunId;
use windlass::run::Leaving;

use crate::action::{Action, SafetyCheck};
use crate::computer::{Computer, ComputerError, Screenshot};
use crate::safety::{Acknowledgement, Judged, Proposed, Safety, off_screen};
use crate::secret::Secrets;
use crate::source::{OnPause, Source};

/// A minute, for counting how fast a run acts.
const MINUTE: Duration = Duration::from_secs(60);
/// How many runs are remembered that wait for a person, for their counts.
const REMEMBERED: usize = 1024;

/// A run at its computer.
pub(crate) struct Seat {
    pub(crate) computer: Arc<dyn Computer>,
    taken: AtomicU64,
    recent: Mutex<VecDeque<Instant>>,
    last: Mutex<Option<Screenshot>>,
    /// Whether the run has left it for a while, and may come back.
    is_away: AtomicBool,
    /// How often the run left it.
    left: AtomicU64,
}

type Seats = BTreeMap<RunId, Arc<OnceCell<Arc<Seat>>>>;

pub(crate) struct Station {
    pub(crate) source: Source,
    pub(crate) safety: Safety,
    pub(crate) secrets: Secrets,
    pub(crate) on_pause: OnPause,
    pub(crate) within: Duration,
    seats: Mutex<Seats>,
    /// Actions taken by runs that left their seat and may come back.
    counts: Mutex<VecDeque<(RunId, u64)>>,
}

impl Station {
    pub(crate) fn new(
        source: Source,
        safety: Safety,
        secrets: Secrets,
        on_pause: OnPause,
        within: Duration,
    ) -> Arc<Self> {
        let (seats, counts) = (Mutex::default(), Mutex::default());
        Arc::new(Self { source, safety, secrets, on_pause, within, seats, counts })
    }

    /// Says why the actions of a call may not happen; none where they may. Nothing has happened by then.
    pub(crate) async fn refuse<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        actions: &[Action],
        checks: &[SafetyCheck],
    ) -> Result<Option<String>, windlass::StoreError> {
        let display = self.source.display();
        let acting = actions.iter().filter(|action| !action.looks()).count() as u64;
        for (place, action) in actions.iter().enumerate() {
            if let Some(why) = off_screen(action, &display) {
                return Ok(Some(format!("`actions[{place}]` cannot be done: {why}.")));
            }
            if let Some(why) = self.secrets.refuse(action) {
                return Ok(Some(format!(
                    "`actions[{place}]` cannot be done: {why}. Nothing of this call was done."
                )));
            }
        }
        let seat = self.seat_of(ctx.run().run_id());
        let taken = match &seat {
            Some(seat) => seat.taken.load(Ordering::Relaxed),
            None => self.taken_before(ctx).await?,
        };
        if let Some(limit) = self.safety.limit.filter(|limit| acting > 0 && taken + acting > *limit) {
            return Ok(Some(format!(
                "This run may take {limit} actions and has taken {taken}; nothing of this call was done."
            )));
        }
        let last_minute = seat.as_ref().map_or(0, |seat| seat.last_minute());
        let fast = |most: &usize| acting > 0 && last_minute as u64 + acting > *most as u64;
        if let Some(most) = self.safety.per_minute.filter(fast) {
            return Ok(Some(format!(
                "This run may take {most} actions in a minute and has taken {last_minute} in the last; nothing of this \
                 call was done. Wait, and try again."
            )));
        }
        if let Acknowledgement::Refused(why) = self.safety.acknowledge(checks).await {
            return Ok(Some(format!(
                "A safety check was not acknowledged: {why}. Nothing of this call was done."
            )));
        }
        for (place, action) in actions.iter().enumerate() {
            let proposed = Proposed {
                action: action.clone(),
                place,
                of: actions.len(),
                display: display.clone(),
                taken,
                last_minute,
                run: ctx.run().run_id().clone(),
                agent: ctx.agent().clone(),
            };
            if let Judged::Refuse(why) = self.safety.judge(proposed).await {
                return Ok(Some(format!(
                    "The {} was refused: {why}. Nothing of this call was done.",
                    action.kind()
                )));
            }
        }
        Ok(None)
    }

    /// The run's seat. The first call of a run takes it, and the run leaves it at its end.
    pub(crate) async fn sit<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
    ) -> Result<Arc<Seat>, ComputerError> {
        let run = ctx.run().run_id();
        let cell = lock(&self.seats).entry(run.clone()).or_default().clone();
        let seat = cell
            .get_or_try_init(|| async {
                let taken =
                    self.taken_before(ctx).await.map_err(|error| ComputerError::Failed(error.to_string()))?;
                let computer = self.source.get(run).await?;
                let seat = Seat {
                    computer,
                    taken: AtomicU64::new(taken),
                    recent: Mutex::default(),
                    last: Mutex::default(),
                    is_away: AtomicBool::new(true),
                    left: AtomicU64::new(0),
                };
                Ok::<_, ComputerError>(Arc::new(seat))
            })
            .await?
            .clone();
        // Whoever sits down, for the first time or again, sees to leaving.
        if seat.is_away.swap(false, Ordering::AcqRel) {
            let (station, run) = (self.clone(), run.clone());
            ctx.at_end(move |leaving| async move { station.leave(&run, leaving).await });
        }
        Ok(seat)
    }

    async fn leave(self: &Arc<Self>, run: &RunId, leaving: Leaving) {
        let Some(seat) = self.seat_of(run) else { return };
        self.remember(run, &seat);
        let may_come_back = match leaving {
            Leaving::Over => None,
            Leaving::Paused | Leaving::HandedOver => match self.on_pause {
                OnPause::Dispose => None,
                OnPause::KeepFor(lasting) => Some(lasting),
            },
        };
        match may_come_back {
            None => self.clear(run, &seat).await,
            Some(lasting) => {
                let (station, run) = (self.clone(), run.clone());
                let times = seat.left.fetch_add(1, Ordering::AcqRel) + 1;
                seat.is_away.store(true, Ordering::Release);
                tokio::spawn(async move {
                    tokio::time::sleep(lasting).await;
                    let has_not_come_back =
                        seat.left.load(Ordering::Acquire) == times && seat.is_away.load(Ordering::Acquire);
                    if has_not_come_back {
                        station.clear(&run, &seat).await;
                    }
                });
            }
        }
    }

    async fn clear(&self, run: &RunId, seat: &Arc<Seat>) {
        let removed = {
            let mut seats = lock(&self.seats);
            let is_this =
                seats.get(run).and_then(|cell| cell.get()).is_some_and(|known| Arc::ptr_eq(known, seat));
            is_this.then(|| seats.remove(run))
        };
        if removed.is_some() {
            self.source.give_back(seat.computer.clone()).await;
        }
    }

    fn seat_of(&self, run: &RunId) -> Option<Arc<Seat>> {
        lock(&self.seats).get(run).and_then(|cell| cell.get().cloned())
    }

    /// Counts actions before they happen, so that a crash does not make them uncounted.
    pub(crate) async fn count<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        seat: &Seat,
        actions: &[Action],
    ) -> Result<(), windlass::StoreError> {
        let acting = actions.iter().filter(|action| !action.looks()).count();
        if acting == 0 {
            return Ok(());
        }
        let taken = seat.taken.fetch_add(acting as u64, Ordering::Relaxed) + acting as u64;
        seat.note(acting);
        if self.safety.limit.is_some() {
            ctx.keep_artefact(&counter(ctx.run().run_id()), &taken.to_string()).await?;
        }
        Ok(())
    }

    async fn taken_before<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
    ) -> Result<u64, windlass::StoreError> {
        let run = ctx.run().run_id();
        let known = lock(&self.counts).iter().rev().find(|(known, _)| known == run).map(|(_, taken)| *taken);
        let kept = match self.safety.limit {
            Some(_) => ctx.artefact(&counter(run)).await?,
            None => None,
        };
        Ok(known.unwrap_or(0).max(kept.and_then(|text| text.parse().ok()).unwrap_or(0)))
    }

    fn remember(&self, run: &RunId, seat: &Seat) {
        let mut counts = lock(&self.counts);
        counts.retain(|(known, _)| known != run);
        counts.push_back((run.clone(), seat.taken.load(Ordering::Relaxed)));
        if counts.len() > REMEMBERED {
            counts.pop_front();
        }
    }
}

impl Seat {
    pub(crate) fn saw(&self, screenshot: &Screenshot) {
        *lock(&self.last) = Some(screenshot.clone());
    }

    pub(crate) fn last(&self) -> Option<Screenshot> {
        lock(&self.last).clone()
    }

    fn note(&self, acting: usize) {
        let mut recent = lock(&self.recent);
        let now = Instant::now();
        recent.extend(std::iter::repeat_n(now, acting));
        while recent.front().is_some_and(|at| now.duration_since(*at) > MINUTE) {
            recent.pop_front();
        }
    }

    fn last_minute(&self) -> usize {
        let now = Instant::now();
        lock(&self.recent).iter().filter(|at| now.duration_since(**at) <= MINUTE).count()
    }
}

/// Under which name a run's actions are counted. Tools of one computer share it.
fn counter(run: &RunId) -> String {
    format!("computer:actions:{run}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
