//! Fuzzing of decoders: a mutational loop over a kept corpus, with a budget of time and memory for each input.
//!
//! A target is an ordinary test. It starts itself again in a child process, which may use a bounded amount of memory and
//! of processor time, so that a decoder that exhausts either, or its stack, is found and not the test runner ended.
//! Inputs derive from a seed, so that a run can be repeated. An input that fails is kept in the corpus, and every later
//! run begins with it.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `WINDLASS_FUZZ_CPU_SECONDS` | processor time for each target; without it, a fixed number of inputs |
//! | `WINDLASS_FUZZ_SEED` | the first seed; default 1 |
//!
//! ```no_run
//! windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "numbers")
//!     .seeds(["1", "-2.5e3"])
//!     .run(module_path!(), "fuzz_numbers", |input| {
//!         let _ = str::from_utf8(input).map(str::parse::<f64>);
//!     });
//! ```

mod input_rng;
mod mutation;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use input_rng::InputRng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Number of inputs without `WINDLASS_FUZZ_CPU_SECONDS`.
const DEFAULT_INPUTS: u64 = 300;
/// Processor time of the child beyond its inputs, in seconds.
const SPARE_CPU_SECONDS: u64 = 60;
/// Time between two looks at the child.
const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of panics in the child, on any thread: a decoder may work on threads of its own and report a panic as an error.
static PANICS: AtomicU64 = AtomicU64::new(0);
/// Sets the processor time for each target, in seconds.
const CPU_SECONDS_VARIABLE: &str = "WINDLASS_FUZZ_CPU_SECONDS";
/// Names the target in the child process.
const CHILD_VARIABLE: &str = "WINDLASS_FUZZ_CHILD";
/// Names the folder in which the child writes its current input and its report.
const FOLDER_VARIABLE: &str = "WINDLASS_FUZZ_FOLDER";

/// A decoder under test, with its corpus and the budget of each input.
#[derive(Clone, Debug)]
pub struct FuzzTarget {
    name: String,
    corpus_folder: PathBuf,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    max_input_bytes: usize,
    max_cpu_time: Duration,
    max_wait: Duration,
    max_memory_bytes: u64,
    inputs: u64,
}

impl FuzzTarget {
    /// Creates a target. Its corpus is the folder `tests/corpus/<name>` of the crate.
    pub fn new(crate_folder: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            corpus_folder: Path::new(crate_folder).join("tests/corpus").join(name),
            seeds: Vec::new(),
            words: Vec::new(),
            max_input_bytes: 16 * 1024,
            max_cpu_time: Duration::from_secs(5),
            max_wait: Duration::from_secs(300),
            max_memory_bytes: 512 * 1024 * 1024,
            inputs: DEFAULT_INPUTS,
        }
    }

    /// Adds inputs from which others are derived.
    #[must_use]
    pub fn seeds<T: AsRef<[u8]>>(mut self, seeds: impl IntoIterator<Item = T>) -> Self {
        self.seeds.extend(seeds.into_iter().map(|seed| seed.as_ref().to_vec()));
        self
    }

    /// Adds words of the format, which mutations insert.
    #[must_use]
    pub fn words<T: AsRef<[u8]>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_vec()));
        self
    }

    /// Sets the maximum size of an input in bytes. Default: 16 KiB.
    #[must_use]
    pub fn max_input_bytes(mut self, bytes: usize) -> Self {
        self.max_input_bytes = bytes;
        self
    }

    /// Sets the processor time that an input may take. Default: 5 seconds, which a debug build on a slow machine keeps
    /// with room to spare.
    #[must_use]
    pub fn max_cpu_time(mut self, time: Duration) -> Self {
        self.max_cpu_time = time;
        self
    }

    /// Sets the time after which an input counts as stuck, for example in a deadlock, which takes no processor time.
    /// Default: 5 minutes, which is far beyond the processor time of an input also on a busy machine.
    #[must_use]
    pub fn max_wait(mut self, time: Duration) -> Self {
        self.max_wait = time;
        self
    }

    /// Sets the memory that an input may take, in bytes of address space. Default: 512 MiB.
    #[must_use]
    pub fn max_memory_bytes(mut self, bytes: u64) -> Self {
        self.max_memory_bytes = bytes;
        self
    }

    /// Sets the number of inputs in an ordinary run. Default: 300.
    #[must_use]
    pub fn inputs(mut self, inputs: u64) -> Self {
        self.inputs = inputs;
        self
    }

    /// Runs the target in a child process. `module` and `test` name the test that calls this function.
    ///
    /// Its path must contain the word `fuzz`, by which all targets are run.
    ///
    /// # Panics
    ///
    /// Panics if the decoder panics on any thread, exceeds its budget, does not return or ends the child, with the input
    /// and its place.
    pub fn run(&self, module: &str, test: &str, decode: impl Fn(&[u8])) {
        if std::env::var(CHILD_VARIABLE).is_ok_and(|child| child == self.name) {
            self.run_inputs(&decode);
            return;
        }
        let path = match module.split_once("::") {
            Some((_, inner)) => format!("{inner}::{test}"),
            None => test.to_owned(),
        };
        assert!(
            path.contains("fuzz"),
            "fuzz target `{}`: `{path}` does not contain the word `fuzz`",
            self.name
        );
        let folder = std::env::temp_dir().join(format!("windlass-fuzz-{}-{}", self.name, std::process::id()));
        self.check(std::fs::create_dir_all(&folder), "the folder of the child cannot be made");
        let executable = self.check(std::env::current_exe(), "the test has no path");
        let output = self.check(File::create(folder.join("output")), "the output has no file");
        let errors = self.check(output.try_clone(), "the output has no file");
        let child = Command::new(executable)
            .args([path.as_str(), "--exact", "--nocapture"])
            .env(CHILD_VARIABLE, &self.name)
            .env(FOLDER_VARIABLE, &folder)
            .stdout(output)
            .stderr(errors)
            .spawn();
        let child = self.check(child, "the child cannot be started");
        let exit = self.wait_for_child(child, &folder);
        let report = std::fs::read_to_string(folder.join("report")).ok();
        let said = std::fs::read(folder.join("output")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let kept = if exit.is_success() { None } else { self.keep_input(&folder) };
        let _ = std::fs::remove_dir_all(&folder);
        assert!(
            exit.is_success(),
            "fuzz target `{}` failed ({exit}); the input is kept in {}:\n{said}",
            self.name,
            kept.map_or_else(|| "no file".to_owned(), |path| path.display().to_string()),
        );
        // A child that found no such test would succeed too.
        assert!(report.is_some(), "fuzz target `{}`: the child ran no test `{path}`", self.name);
        if let (Some(report), Ok(_)) = (report, std::env::var(CPU_SECONDS_VARIABLE)) {
            // The figures of a long run are shown whether or not the test runner captures the output.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes());
        }
    }

    /// Waits until the child exits, and kills it if it works on one input for too long.
    fn wait_for_child(&self, mut child: Child, folder: &Path) -> ChildExit {
        // The child writes each input to this file before it is decoded.
        let input_time = || std::fs::metadata(folder.join("input")).and_then(|file| file.modified()).ok();
        let (mut current, mut since) = (None, Instant::now());
        loop {
            if let Some(status) = self.check(child.try_wait(), "the child cannot be waited for") {
                return ChildExit::Exited(status);
            }
            let latest = input_time();
            if latest != current {
                (current, since) = (latest, Instant::now());
            } else if since.elapsed() > self.max_wait {
                self.check(child.kill(), "the child cannot be killed");
                self.check(child.wait(), "the child cannot be waited for");
                return ChildExit::Stuck(self.max_wait);
            }
            std::thread::sleep(CHILD_POLL_INTERVAL);
        }
    }

    /// Moves the current input of a child that failed to the corpus.
    fn keep_input(&self, folder: &Path) -> Option<PathBuf> {
        let input = std::fs::read(folder.join("input")).ok()?;
        let place = self.corpus_folder.join(format!("failed-{:016x}", InputRng::hash(&input)));
        std::fs::create_dir_all(&self.corpus_folder).ok()?;
        std::fs::write(&place, input).ok()?;
        Some(place)
    }

    /// Decodes the corpus, and then inputs that derive from it, within the budgets.
    fn run_inputs(&self, decode: &impl Fn(&[u8])) {
        let folder = PathBuf::from(std::env::var_os(FOLDER_VARIABLE).unwrap_or_default());
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let cpu_seconds = number(CPU_SECONDS_VARIABLE);
        let first_seed = number("WINDLASS_FUZZ_SEED").unwrap_or(1);
        let corpus = self.load_corpus();
        self.limit_child(cpu_seconds);
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            print(panic);
        }));
        let began = cpu_time();
        let is_over = |count: u64| match cpu_seconds {
            Some(seconds) => cpu_time().saturating_sub(began) >= Duration::from_secs(seconds),
            None => count >= self.inputs,
        };
        let mut count = 0;
        let mut slowest = Duration::ZERO;
        for input in &corpus {
            slowest = slowest.max(self.run_input(&folder, input, "the corpus", decode));
        }
        while !is_over(count) {
            let seed = first_seed.wrapping_add(count);
            let mut rng = InputRng::new(seed ^ InputRng::hash(self.name.as_bytes()));
            let input = mutation::mutate(&mut rng, &corpus, &self.words, self.max_input_bytes);
            slowest = slowest.max(self.run_input(&folder, &input, &format!("seed {seed}"), decode));
            count += 1;
        }
        let inputs = corpus.len() as u64 + count;
        let seconds = cpu_time().saturating_sub(began).as_secs_f64();
        let report = format!("{}: {inputs} inputs in {seconds:.1} s, slowest {slowest:?}\n", self.name);
        self.check(std::fs::write(folder.join("report"), report), "the report cannot be written");
    }

    /// Decodes one input. Returns the processor time that it took.
    fn run_input(&self, folder: &Path, input: &[u8], origin: &str, decode: &impl Fn(&[u8])) -> Duration {
        // The parent finds the input here if the child is ended.
        self.check(std::fs::write(folder.join("input"), input), "the input cannot be written");
        let (before, panics) = (cpu_time(), PANICS.load(Ordering::Relaxed));
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(input)));
        let took = cpu_time().saturating_sub(before);
        let shown: String = String::from_utf8_lossy(input).escape_debug().take(2_000).collect();
        let is_sound = decoded.is_ok() && PANICS.load(Ordering::Relaxed) == panics;
        assert!(is_sound, "{} panicked on {origin}: {shown}", self.name);
        assert!(took <= self.max_cpu_time, "{} took {took:?} on {origin}: {shown}", self.name);
        took
    }

    /// Bounds the memory and the processor time of this process.
    fn limit_child(&self, cpu_seconds: Option<u64>) {
        let used = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = used.split_whitespace().next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
        let memory = pages * 4096 + self.max_memory_bytes;
        let inputs = u64::try_from(self.max_cpu_time.as_millis()).unwrap_or(u64::MAX) / 1000;
        let time = cpu_seconds.unwrap_or(0).saturating_add(SPARE_CPU_SECONDS).saturating_add(inputs);
        for (resource, limit) in [(Resource::As, memory), (Resource::Cpu, time)] {
            let maximum = getrlimit(resource).maximum;
            let limit = Rlimit { current: Some(limit.min(maximum.unwrap_or(u64::MAX))), maximum };
            self.check(setrlimit(resource, limit), "the child cannot be limited");
        }
    }

    /// Returns the seeds and the files of the corpus, in a fixed order.
    fn load_corpus(&self) -> Vec<Vec<u8>> {
        let files = std::fs::read_dir(&self.corpus_folder).map(|files| files.flatten().collect::<Vec<_>>());
        let mut paths: Vec<PathBuf> = files.unwrap_or_default().iter().map(|file| file.path()).collect();
        paths.sort();
        let mut corpus = self.seeds.clone();
        corpus.extend(paths.iter().filter_map(|path| std::fs::read(path).ok()));
        assert!(!corpus.is_empty(), "fuzz target `{}` has no corpus", self.name);
        corpus
    }

    fn check<T, E: std::fmt::Display>(&self, result: Result<T, E>, problem: &str) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("fuzz target `{}`: {problem}: {error}", self.name),
        }
    }
}

/// The end of the child process.
enum ChildExit {
    Exited(ExitStatus),
    Stuck(Duration),
}

impl ChildExit {
    fn is_success(&self) -> bool {
        matches!(self, Self::Exited(status) if status.success())
    }
}

impl std::fmt::Display for ChildExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "{status}"),
            Self::Stuck(time) => write!(f, "it did not return from an input in {time:?}"),
        }
    }
}

/// Returns the processor time of this process with all its threads, which does not pass while other processes run. The
/// limit of the child counts the same time.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod fuzz_target_tests;
