//! Kills the process of a run at the worst moments, again and again, until every run has ended; then counts.
//!
//! `windlass-torture --kills N --seed S` prints, last, `kills=N runs=N calls=N twice=0 lost=0 unfinished=0`, and
//! fails where one of the last three is not zero. With the same seed it makes the same choices. A quarter of the
//! ends are SIGTERM, upon which a worker hands its run over; those are not counted as kills.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use windlass_torture::chance::Chance;
use windlass_torture::death::{Death, How};
use windlass_torture::{death, verdict, worker};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("worker") => work(&arguments[1..]),
        _ => Options::read(&arguments).and_then(|options| torture(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    kills: u64,
    seed: u64,
    folder: PathBuf,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let usage = || "usage: windlass-torture --kills N --seed S [--folder PATH]".to_owned();
        let mut options = Self { kills: 100, seed: 1, folder: std::env::temp_dir() };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(usage()) };
            match name.as_str() {
                "--kills" => options.kills = value.parse().map_err(|_| usage())?,
                "--seed" => options.seed = value.parse().map_err(|_| usage())?,
                "--folder" => options.folder = value.into(),
                _ => return Err(usage()),
            }
        }
        options.folder.push(format!("windlass-torture-{}-{}", std::process::id(), options.seed));
        Ok(options)
    }
}

/// How often one run may be killed before it is left to end: every run must come to one.
const KILLS_OF_A_RUN: u64 = 12;
/// How many moments a life lasts at most.
const LONGEST_LIFE: u64 = 24;

fn torture(options: &Options) -> Result<(), String> {
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    let mut runs = Vec::new();
    let mut kills = 0;
    while kills < options.kills {
        let number = runs.len() as u64;
        let run = format!("run-{number}");
        let mut chance = Chance::new(options.seed, 1_000_000 + number);
        let mut killed = 0;
        loop {
            let may_die = killed < KILLS_OF_A_RUN && kills < options.kills;
            let moments = may_die.then(|| chance.below(LONGEST_LIFE));
            let how = if chance.below(4) == 0 { How::Stopped } else { How::Killed };
            match one_life(options, &run, Chance::new(options.seed, number).number(), moments, how)? {
                Life::Killed => {
                    killed += 1;
                    kills += 1;
                }
                Life::Stopped => {}
                Life::Ended => break,
            }
        }
        runs.push(run);
    }
    let runtime = runtime()?;
    let found = runtime.block_on(verdict::verdict(&options.folder, &runs))?;
    let verdict::Verdict { calls, twice, lost, unfinished } = found;
    println!(
        "kills={kills} runs={} calls={calls} twice={twice} lost={lost} unfinished={unfinished}",
        runs.len()
    );
    if twice + lost + unfinished > 0 {
        return Err(format!("what is left of it is in {}", options.folder.display()));
    }
    std::fs::remove_dir_all(&options.folder).map_err(|error| error.to_string())
}

enum Life {
    Killed,
    Stopped,
    Ended,
}

/// Starts a worker on a run, and ends it when it says so.
fn one_life(options: &Options, run: &str, seed: u64, moments: Option<u64>, how: How) -> Result<Life, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let moments = moments.map_or_else(|| "never".to_owned(), |moments| moments.to_string());
    let mut child = Command::new(program)
        .arg("worker")
        .arg(&options.folder)
        .args([run, &seed.to_string(), &moments])
        .arg(match how {
            How::Killed => "killed",
            How::Stopped => "stopped",
        })
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let Some(out) = child.stdout.take() else { return Err("the worker has no voice".to_owned()) };
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let word = lines.find(|line| line == death::KILL || line == death::STOP);
    match word.as_deref() {
        Some(death::KILL) => child.kill().map_err(|error| error.to_string())?,
        Some(_) => {
            let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            told.map_err(|error| format!("`kill` cannot be run: {error}"))?;
        }
        None => {}
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match (word.as_deref(), status.success()) {
        (Some(death::KILL), _) => Ok(Life::Killed),
        (Some(_), true) => Ok(Life::Stopped),
        (None, true) => Ok(Life::Ended),
        (_, false) => Err(format!("the worker of {run} failed; its seed is {seed}")),
    }
}

fn work(arguments: &[String]) -> Result<(), String> {
    let [folder, run, seed, moments, how] = arguments else {
        return Err("a worker takes five arguments".to_owned());
    };
    let seed = seed.parse().map_err(|_| format!("`{seed}` is not a seed"))?;
    let how = if how == "stopped" { How::Stopped } else { How::Killed };
    runtime()?.block_on(worker::live(Path::new(folder), run, seed, Death::after(moments.parse().ok(), how)))
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}
