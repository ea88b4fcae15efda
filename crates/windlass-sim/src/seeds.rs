//! Many seeds, one after another; the one that fails is named, with how to replay it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Replays this seed alone.
const ONE: &str = "WINDLASS_SEED";
/// Tries so many seeds.
const MANY: &str = "WINDLASS_SIM_SEEDS";

/// The seeds to try: first those that failed once and were kept, then as many as there is time for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    kept: Vec<u64>,
    count: u64,
}

impl Seeds {
    /// So many seeds, from 0 on.
    pub fn first(count: u64) -> Self {
        Self { kept: Vec::new(), count }
    }

    /// And first of all those in this text: one a line, with `#` before a comment.
    ///
    /// # Panics
    /// Where a line is not a number.
    #[must_use]
    pub fn kept(mut self, text: &str) -> Self {
        for line in text.lines() {
            let seed = line.split('#').next().unwrap_or_default().trim();
            match seed.parse() {
                Ok(seed) => self.kept.push(seed),
                Err(_) if seed.is_empty() => {}
                Err(error) => panic!("`{line}` is not a kept seed: {error}"),
            }
        }
        self
    }

    /// How many there are, as the environment would have it.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.list().len() as u64
    }

    /// All of them, as the environment would have it.
    fn list(&self) -> Vec<u64> {
        if let Some(one) = number_from(ONE) {
            return vec![one];
        }
        let count = number_from(MANY).unwrap_or(self.count);
        self.kept.iter().copied().chain(0..count).collect()
    }
}

/// A seed that failed.
struct Failing {
    place: usize,
    seed: u64,
    why: String,
}

/// Runs a simulation for many seeds, on all cores. `WINDLASS_SEED=n` runs one seed alone,
/// `WINDLASS_SIM_SEEDS=n` runs so many.
///
/// # Panics
/// With what the simulation panicked with, and how to replay it. Of several seeds that fail it is the first.
pub fn check(seeds: &Seeds, simulate: impl Fn(u64) + Sync) {
    let list = seeds.list();
    let next = AtomicUsize::new(0);
    let failing: Mutex<Option<Failing>> = Mutex::new(None);
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = list.get(place).copied() else { return };
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| simulate(seed))) else { continue };
            // Seeds before this one are under way and may fail too; those after it do not matter any more.
            next.fetch_max(list.len(), Ordering::Relaxed);
            let found = Failing { place, seed, why: text_of(&*panic) };
            let mut failing = failing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if failing.as_ref().is_none_or(|first| place < first.place) {
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

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why, .. } = self;
        let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
        let test =
            std::thread::current().name().filter(|name| *name != "main").unwrap_or_default().to_owned();
        writeln!(f, "seed {seed} fails: {why}")?;
        writeln!(f, "replay it: {ONE}={seed} cargo test{package} {test}")?;
        write!(f, "once it is mended, keep it: add `{seed} # what it showed` to the kept seeds")
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.trim().parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable}={text} is not a number: {error}"),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked without a word".to_owned())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Mutex;

    use super::{Seeds, check, text_of};

    #[test]
    fn kept_seeds_come_first() {
        let seeds = Seeds::first(2).kept("# failed once\n17 # a lost settlement\n\n 4\n");
        assert_eq!(seeds.kept, [17, 4]);
        let tried = Mutex::new(Vec::new());
        check(&seeds, |seed| tried.lock().unwrap().push(seed));
        let mut tried = tried.into_inner().unwrap();
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 4, 17]);
    }

    #[test]
    fn the_first_failing_seed_is_named_with_how_to_replay_it() {
        let failed = catch_unwind(|| {
            check(&Seeds::first(50), |seed| assert!(seed < 7, "seven is too many"));
        });
        let text = text_of(&*failed.unwrap_err());
        assert!(text.starts_with("seed 7 fails: seven is too many\n"), "{text}");
        assert!(text.contains("WINDLASS_SEED=7 cargo test"), "{text}");
    }
}
