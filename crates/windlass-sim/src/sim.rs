//! The simulated machine: a clock that jumps, a seed that decides, and processes that crash.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::Instant;

use windlass::core::RunId;
use windlass::{Outcome, RunBuilder, RunError};

use crate::rng::Rng;
use crate::store::SimStore;

/// More lives than any run needs.
const LIVES: u32 = 1000;
/// Longer than a lease lasts without a sign of life.
const LEASE_IS_OVER: Duration = Duration::from_secs(31);

/// A simulated machine. Copies stand for the same one.
///
/// Whatever it decides, its seed decides: one thread, a clock that jumps to the next timer as soon as
/// everybody waits, and draws in the order in which they are asked for.
#[derive(Clone)]
pub struct Sim {
    inner: Arc<Inner>,
}

struct Inner {
    seed: u64,
    rng: Mutex<Rng>,
    crashed: AtomicBool,
    crash: Notify,
    lives: AtomicU64,
    clock: Mutex<Elapsed>,
}

/// How much simulated time has passed: in the lives before, and since when in this one.
#[derive(Default)]
struct Elapsed {
    before: Duration,
    began: Option<Instant>,
}

/// How one life of a simulated process ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Life<T> {
    /// It came to its end.
    Ended(T),
    /// It crashed: all that was in memory, and every task, is gone.
    Crashed,
}

/// How a run begins in one life of its process.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Nothing of it is stored: it begins.
    Fresh,
    /// It is stored, and goes on from there.
    Recovered {
        /// The run.
        run: RunId,
        /// Where it is.
        store: Arc<SimStore>,
    },
}

impl<T> Life<T> {
    /// What it came to, where it did not crash.
    pub fn ended(self) -> Option<T> {
        match self {
            Self::Ended(value) => Some(value),
            Self::Crashed => None,
        }
    }
}

impl Sim {
    /// A machine that does what `seed` decides.
    pub fn new(seed: u64) -> Self {
        let rng = Mutex::new(Rng::for_purpose(seed, "sim"));
        let inner = Inner {
            seed,
            rng,
            crashed: AtomicBool::new(false),
            crash: Notify::new(),
            lives: AtomicU64::new(0),
            clock: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Simulates a process that is not meant to crash, from a seed.
    ///
    /// # Panics
    /// Where it crashes after all: use [`Sim::live`] for processes that may.
    pub fn run<T, Fut: Future<Output = T>>(seed: u64, process: impl FnOnce(Self) -> Fut) -> T {
        let sim = Self::new(seed);
        match sim.live(process(sim.clone())) {
            Life::Ended(value) => value,
            Life::Crashed => panic!("the simulated process crashed; `Sim::live` is for processes that may"),
        }
    }

    /// One life of a simulated process, until it ends or [`Sim::crash`] is called anywhere in it. Then all its
    /// tasks are gone, wherever they were: what is left is what the process kept outside of it.
    ///
    /// # Panics
    /// Where the runtime cannot be built, or from inside another runtime.
    pub fn live<T>(&self, process: impl Future<Output = T>) -> Life<T> {
        let runtime = match Builder::new_current_thread().enable_time().start_paused(true).build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("there is no runtime to simulate on: {error}"),
        };
        self.inner.crashed.store(false, Ordering::Relaxed);
        self.inner.lives.fetch_add(1, Ordering::Relaxed);
        let ended = runtime.block_on(async {
            self.clock().began = Some(Instant::now());
            let ended = tokio::select! {
                biased;
                () = self.crashes() => None,
                ended = process => Some(ended),
            };
            let mut clock = self.clock();
            let lived = clock.began.take().map(|began| began.elapsed());
            clock.before += lived.unwrap_or_default();
            ended
        });
        match ended {
            Some(value) if !self.is_crashed() => Life::Ended(value),
            Some(_) | None => Life::Crashed,
        }
    }

    /// A run from its beginning to its outcome, through as many crashes as come: after each, a new process
    /// recovers what the store has, once the lease of the one before has run out.
    ///
    /// `build` sets the run up anew for each process; the store and the id it is given here.
    ///
    /// # Panics
    /// Where a run has not come to an outcome after a thousand lives.
    pub fn survive<C: Send + Sync + 'static>(
        &self,
        store: &Arc<SimStore>,
        run: impl Into<RunId>,
        build: impl Fn(Begin) -> RunBuilder<C>,
    ) -> Result<Outcome, RunError> {
        let run = run.into();
        for _ in 0..LIVES {
            let is_known = store.appends() > 0;
            let begin = match store.durable_from(&run, 0).is_empty() {
                true => Begin::Fresh,
                false => Begin::Recovered { run: run.clone(), store: store.clone() },
            };
            let life = self.live(async {
                if is_known {
                    tokio::time::sleep(LEASE_IS_OVER).await;
                }
                build(begin).run_id(run.clone()).store(store.clone()).await
            });
            if let Life::Ended(outcome) = life {
                return outcome;
            }
        }
        panic!("run `{run}` has not come to an outcome after {LIVES} lives");
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Which life it is, from 1; 0 before the first.
    pub fn life(&self) -> u64 {
        self.inner.lives.load(Ordering::Relaxed)
    }

    /// The simulated time, over all lives.
    pub fn now(&self) -> Duration {
        let clock = self.clock();
        clock.before + clock.began.map(|began| began.elapsed()).unwrap_or_default()
    }

    /// Draws.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.inner.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Yes, in so many of a hundred cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.draw(|rng| rng.chance(percent))
    }

    /// Takes some time, up to `longest`: often none at all, sometimes just a turn of the scheduler.
    pub async fn dawdle(&self, longest: Duration) {
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

    /// The process crashes here. What the rest of it does in the same moment is as if it had come just before.
    pub async fn crash(&self) -> Infallible {
        self.inner.crashed.store(true, Ordering::Relaxed);
        self.inner.crash.notify_waiters();
        std::future::pending().await
    }

    /// Whether the process has crashed, and is about to be gone.
    pub fn is_crashed(&self) -> bool {
        self.inner.crashed.load(Ordering::Relaxed)
    }

    async fn crashes(&self) {
        let notified = self.inner.crash.notified();
        if !self.is_crashed() {
            notified.await;
        }
    }

    fn clock(&self) -> MutexGuard<'_, Elapsed> {
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

    use super::{Life, Sim};

    #[test]
    fn hours_pass_at_once() {
        let passed = Sim::run(1, |sim| async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            sim.now()
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
        assert_eq!(sim.live(process), Life::Crashed);
        assert_eq!(ticks.load(Ordering::Relaxed), 2);
        let later = sim.live(async { tokio::time::sleep(Duration::from_secs(1)).await });
        assert_eq!(later, Life::Ended(()));
        assert_eq!(ticks.load(Ordering::Relaxed), 2);
        assert_eq!(sim.now(), Duration::from_millis(3500));
    }
}
