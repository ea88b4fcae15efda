//! Runs a simulation for many seeds and reports the first failing seed with the command to replay it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Environment variable that selects one seed to replay.
const SEED_VARIABLE: &str = "WINDLASS_SEED";
/// Environment variable that sets the number of seeds to try.
const SEED_COUNT_VARIABLE: &str = "WINDLASS_SIM_SEEDS";
/// Environment variable that sets the first seed of the range.
const BASE_SEED_VARIABLE: &str = "WINDLASS_SIM_BASE_SEED";

/// The seeds to try: first the kept seeds of earlier failures, then a range from 0 or from the base seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedList {
    regression_seeds: Vec<u64>,
    count: u64,
}

impl SeedList {
    /// Creates a list of `count` seeds, from 0.
    pub fn from_zero(count: u64) -> Self {
        Self { regression_seeds: Vec::new(), count }
    }

    /// Adds the kept seeds of earlier failures, which are tried first. The text has one seed per line; `#`
    /// starts a comment.
    ///
    /// # Panics
    /// Panics if a line is not a number.
    #[must_use]
    pub fn with_regressions(mut self, text: &str) -> Self {
        for line in text.lines() {
            let seed = line.split('#').next().unwrap_or_default().trim();
            match seed.parse() {
                Ok(seed) => self.regression_seeds.push(seed),
                Err(_) if seed.is_empty() => {}
                Err(error) => panic!("`{line}` is not a kept seed: {error}"),
            }
        }
        self
    }

    /// Returns the number of seeds, with the environment variables applied.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.effective_seeds().len() as u64
    }

    /// Returns all seeds, with the environment variables applied.
    fn effective_seeds(&self) -> Vec<u64> {
        if let Some(one) = env_number(SEED_VARIABLE) {
            return vec![one];
        }
        let count = env_number(SEED_COUNT_VARIABLE).unwrap_or(self.count);
        let base = env_number(BASE_SEED_VARIABLE).unwrap_or(0);
        self.seeds_from(base, count)
    }

    fn seeds_from(&self, base: u64, count: u64) -> Vec<u64> {
        self.regression_seeds.iter().copied().chain(base..base.saturating_add(count)).collect()
    }
}

/// A failed seed.
struct FailedSeed {
    position: usize,
    seed: u64,
    message: String,
}

/// Runs a simulation for many seeds, on all cores. `WINDLASS_SEED=n` runs one seed alone,
/// `WINDLASS_SIM_SEEDS=n` runs `n` seeds, and `WINDLASS_SIM_BASE_SEED=n` begins with seed `n` instead of 0.
///
/// # Panics
/// Panics with the message of the first failing seed and the command to replay it.
pub fn check_seeds(seeds: &SeedList, simulate: impl Fn(u64) + Sync) {
    let list = seeds.effective_seeds();
    let next = AtomicUsize::new(0);
    let failing: Mutex<Option<FailedSeed>> = Mutex::new(None);
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = list.get(place).copied() else { return };
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| simulate(seed))) else { continue };
            // Earlier seeds still run and may fail too; later seeds no longer matter.
            next.fetch_max(list.len(), Ordering::Relaxed);
            let found = FailedSeed { position: place, seed, message: panic_text(&*panic) };
            let mut failing = failing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if failing.as_ref().is_none_or(|first| place < first.position) {
                *failing = Some(found);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(list.len());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    if let Some(failing) = failing.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        panic!("{failing}");
    }
}

impl fmt::Display for FailedSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, message: why, .. } = self;
        let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
        let test =
            std::thread::current().name().filter(|name| *name != "main").unwrap_or_default().to_owned();
        writeln!(f, "seed {seed} fails: {why}")?;
        writeln!(f, "replay it: {SEED_VARIABLE}={seed} cargo test{package} {test}")?;
        write!(f, "after the fix, keep it: add `{seed} # the defect` to the kept seeds")
    }
}

fn env_number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.trim().parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable}={text} is not a number: {error}"),
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Mutex;

    use super::{SeedList, check_seeds, panic_text};

    #[test]
    fn kept_seeds_come_first() {
        let seeds = SeedList::from_zero(2).with_regressions("# failed once\n17 # a lost settlement\n\n 4\n");
        assert_eq!(seeds.regression_seeds, [17, 4]);
        let tried = Mutex::new(Vec::new());
        check_seeds(&seeds, |seed| tried.lock().unwrap().push(seed));
        let mut tried = tried.into_inner().unwrap();
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 4, 17]);
    }

    #[test]
    fn a_base_seed_moves_the_range() {
        let seeds = SeedList::from_zero(3).with_regressions("17");
        assert_eq!(seeds.seeds_from(1_000, 3), [17, 1_000, 1_001, 1_002]);
        assert_eq!(seeds.seeds_from(0, 2), [17, 0, 1]);
    }

    #[test]
    fn the_first_failing_seed_is_named_with_how_to_replay_it() {
        let failed = catch_unwind(|| {
            check_seeds(&SeedList::from_zero(50), |seed| assert!(seed < 7, "seven is too many"));
        });
        let text = panic_text(&*failed.unwrap_err());
        assert!(text.starts_with("seed 7 fails: seven is too many\n"), "{text}");
        assert!(text.contains("WINDLASS_SEED=7 cargo test"), "{text}");
    }
}
