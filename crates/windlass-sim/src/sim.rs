//! The simulated machine: a virtual clock, seeded randomness, and processes that crash.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::Instant;

use windlass::core::id::RunId;
use windlass::{
    error::RunError,
    run::{RunBuilder, RunResult},
};

use crate::crash_points::{CrashPoint, CrashSchedule};
use crate::rng::SimRng;
use crate::store::SimStore;

/// Maximum number of processes per run; more than any run needs.
const MAX_PROCESSES: u32 = 1000;
/// Time after which the lease of a crashed process has expired.
const LEASE_EXPIRED_AFTER: Duration = Duration::from_secs(31);

/// A simulated machine. Clones share one machine.
///
/// Its seed decides its whole behaviour: it has one thread, a clock that jumps to the next timer when every
/// task waits, and random draws in the order of the requests.
#[derive(Clone)]
pub struct Sim {
    inner: Arc<SimState>,
}

/// The shared state of a simulated machine.
struct SimState {
    seed: u64,
    rng: Mutex<SimRng>,
    has_crashed: AtomicBool,
    crash_notify: Notify,
    process_count: AtomicU64,
    clock: Mutex<SimClock>,
    /// The crashes of a sweep; `None` in every other simulation.
    crash_schedule: Mutex<Option<CrashSchedule>>,
    /// True if the processes may do I/O. Their time is real then.
    has_io: bool,
}

/// The simulated time: the total of earlier processes, and the start of the current one.
#[derive(Default)]
struct SimClock {
    in_earlier_processes: Duration,
    process_started_at: Option<Instant>,
}

/// The end of a simulated process.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum ProcessExit<T> {
    /// The process completed with a value.
    Completed(T),
    /// The process crashed: its memory and all its tasks are gone.
    Crashed,
}

/// The way in which a process starts a run.
#[derive(Clone, Debug)]
pub enum RunStart {
    /// The store has no record of the run, so it starts anew.
    Fresh,
    /// The store has records of the run, so it is recovered.
    Recovered {
        /// Id of the run.
        run: RunId,
        /// Store with the run's records.
        store: Arc<SimStore>,
    },
}

impl<T> ProcessExit<T> {
    /// Returns the value, or `None` if the process crashed.
    pub fn completed(self) -> Option<T> {
        match self {
            Self::Completed(value) => Some(value),
            Self::Crashed => None,
        }
    }
}

impl Sim {
    /// Creates a machine with this seed.
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, None, false)
    }

    fn with_options(seed: u64, crash_schedule: Option<CrashSchedule>, has_io: bool) -> Self {
        let rng = Mutex::new(SimRng::for_purpose(seed, "sim"));
        let inner = SimState {
            seed,
            rng,
            has_crashed: AtomicBool::new(false),
            crash_notify: Notify::new(),
            process_count: AtomicU64::new(0),
            clock: Mutex::default(),
            crash_schedule: Mutex::new(crash_schedule),
            has_io,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Creates a machine whose processes crash at these points.
    pub(crate) fn with_crash_schedule(seed: u64, crashes: Vec<u64>, has_io: bool) -> Self {
        Self::with_options(seed, Some(CrashSchedule::new(crashes)), has_io)
    }

    /// Passes a crash point of a [`CrashSweep`](crate::CrashSweep): in one of its cases the process crashes here. A
    /// tool passes one between two effects that no other await separates. Without a sweep nothing happens.
    pub async fn pass_crash_point(&self, place: &str) {
        if self.crashes_at(|| place.to_owned()) {
            std::future::pending().await
        }
    }

    /// Returns true if the simulation has crash points.
    pub(crate) fn has_crash_points(&self) -> bool {
        self.lock_crash_schedule().is_some()
    }

    /// Passes a crash point. Returns true if the process crashes there; the caller must not go on then.
    pub(crate) fn crashes_at(&self, place: impl FnOnce() -> String) -> bool {
        let is_crash = match &mut *self.lock_crash_schedule() {
            Some(schedule) if !self.is_crashed() => schedule.pass(self.process_number(), place()),
            Some(_) | None => return self.is_crashed(),
        };
        if is_crash {
            self.announce_crash();
        }
        is_crash
    }

    /// Returns the crash points that the processes have passed.
    pub(crate) fn passed_crash_points(&self) -> Vec<CrashPoint> {
        self.lock_crash_schedule().as_ref().map(|schedule| schedule.passed().to_vec()).unwrap_or_default()
    }

    fn lock_crash_schedule(&self) -> MutexGuard<'_, Option<CrashSchedule>> {
        self.inner.crash_schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a process that must not crash.
    ///
    /// # Panics
    /// Panics if the process crashes; use [`Sim::run_process`] for processes that may crash.
    pub fn run<T, Fut: Future<Output = T>>(seed: u64, process: impl FnOnce(Self) -> Fut) -> T {
        let sim = Self::new(seed);
        match sim.run_process(process(sim.clone())) {
            ProcessExit::Completed(value) => value,
            ProcessExit::Crashed => {
                panic!("the simulated process crashed; use `Sim::run_process` for processes that may crash")
            }
        }
    }

    /// Runs one simulated process until it completes or [`Sim::crash`] is called anywhere in it. A crash drops
    /// all tasks of the process; only state outside the process survives.
    ///
    /// # Panics
    /// Panics if the runtime cannot be built, or if called inside another runtime.
    pub fn run_process<T>(&self, process: impl Future<Output = T>) -> ProcessExit<T> {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true);
        if self.inner.has_io {
            builder.enable_all();
        }
        let runtime = match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("the simulation runtime cannot be built: {error}"),
        };
        self.inner.has_crashed.store(false, Ordering::Relaxed);
        self.inner.process_count.fetch_add(1, Ordering::Relaxed);
        let ended = runtime.block_on(async {
            self.lock_clock().process_started_at = Some(Instant::now());
            let ended = tokio::select! {
                biased;
                () = self.wait_for_crash() => None,
                ended = process => Some(ended),
            };
            let mut clock = self.lock_clock();
            let lived = clock.process_started_at.take().map(|began| began.elapsed());
            clock.in_earlier_processes += lived.unwrap_or_default();
            ended
        });
        match ended {
            Some(value) if !self.is_crashed() => ProcessExit::Completed(value),
            Some(_) | None => ProcessExit::Crashed,
        }
    }

    /// Drives a run to its outcome through all its crashes. After each crash a new process waits until the old
    /// lease has expired, and recovers the run from the store.
    ///
    /// `build` configures the run for each process; this function adds the store and the run id.
    ///
    /// # Errors
    /// Returns the error of the run.
    ///
    /// # Panics
    /// Panics if the run has no outcome after a thousand processes.
    pub fn run_through_crashes<C: Send + Sync + 'static>(
        &self,
        store: &Arc<SimStore>,
        run: impl Into<RunId>,
        build: impl Fn(RunStart) -> RunBuilder<C>,
    ) -> Result<RunResult, RunError> {
        let run = run.into();
        for _ in 0..MAX_PROCESSES {
            let is_known = store.append_count() > 0;
            let begin = match store.durable_records_from(&run, 0).is_empty() {
                true => RunStart::Fresh,
                false => RunStart::Recovered { run: run.clone(), store: store.clone() },
            };
            let life = self.run_process(async {
                if is_known {
                    tokio::time::sleep(LEASE_EXPIRED_AFTER).await;
                }
                if self.inner.has_io {
                    // Nobody waits in real time for the lease of a process that is known to be dead.
                    store.release_dead_lease(&run).await;
                    // A virtual clock would jump to the next timeout while the process waits for an answer.
                    tokio::time::resume();
                }
                build(begin).run_id(run.clone()).store(store.clone()).await
            });
            if let ProcessExit::Completed(outcome) = life {
                return outcome;
            }
        }
        panic!("run `{run}` has no outcome after {MAX_PROCESSES} processes");
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Returns the number of the current process, from 1; 0 before the first.
    pub fn process_number(&self) -> u64 {
        self.inner.process_count.load(Ordering::Relaxed)
    }

    /// Returns the simulated time over all processes.
    pub fn elapsed(&self) -> Duration {
        let clock = self.lock_clock();
        clock.in_earlier_processes + clock.process_started_at.map(|began| began.elapsed()).unwrap_or_default()
    }

    /// Draws from the machine's random generator.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut SimRng) -> T) -> T {
        draw(&mut self.inner.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true with a probability of `percent` in 100.
    pub fn chance(&self, percent: u64) -> bool {
        self.draw(|rng| rng.chance(percent))
    }

    /// Waits for a random time up to `longest`: often not at all, sometimes for one yield to the scheduler.
    pub async fn random_delay(&self, longest: Duration) {
        match self.draw(|rng| rng.below(6)) {
            0 | 1 => {}
            2 => tokio::task::yield_now().await,
            _ => {
                let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
                let wait = self.draw(|rng| rng.below(longest.saturating_add(1)));
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        }
    }

    /// Crashes the process and never returns. Work that other tasks do in the same instant counts as done
    /// before the crash.
    pub async fn crash(&self) -> Infallible {
        self.announce_crash();
        std::future::pending().await
    }

    fn announce_crash(&self) {
        self.inner.has_crashed.store(true, Ordering::Relaxed);
        self.inner.crash_notify.notify_waiters();
    }

    /// Returns true if the process has crashed.
    pub fn is_crashed(&self) -> bool {
        self.inner.has_crashed.load(Ordering::Relaxed)
    }

    async fn wait_for_crash(&self) {
        let notified = self.inner.crash_notify.notified();
        if !self.is_crashed() {
            notified.await;
        }
    }

    fn lock_clock(&self) -> MutexGuard<'_, SimClock> {
        self.inner.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim({})", self.inner.seed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{ProcessExit, Sim};

    #[test]
    fn hours_pass_at_once() {
        let passed = Sim::run(1, |sim| async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            sim.elapsed()
        });
        assert!(passed >= Duration::from_secs(3600));
    }

    #[test]
    fn a_crash_takes_every_task_with_it() {
        let sim = Sim::new(1);
        let ticks = Arc::new(AtomicU32::new(0));
        let counted = ticks.clone();
        let process = async {
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            let crashing = sim.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(2500)).await;
                crashing.crash().await;
            });
            std::future::pending::<()>().await;
        };
        assert_eq!(sim.run_process(process), ProcessExit::Crashed);
        assert_eq!(ticks.load(Ordering::Relaxed), 2);
        let later = sim.run_process(async { tokio::time::sleep(Duration::from_secs(1)).await });
        assert_eq!(later, ProcessExit::Completed(()));
        assert_eq!(ticks.load(Ordering::Relaxed), 2);
        assert_eq!(sim.elapsed(), Duration::from_millis(3500));
    }
}
