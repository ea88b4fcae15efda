//! A load test of concurrent realtime sessions with audio in both directions: memory per session, added latency,
//! and completeness of the audio.
//!
//! Usage: `live [SESSIONS] [SECONDS] [ROUNDS]`. Bare connections run first as the baseline; the difference is the
//! cost of a session. Sessions behind a relay, each with a browser's side of it, run last. The server, the bare
//! connections, the sessions, the relays and the browsers run in separate processes, so that memory and CPU time are
//! measured for each alone.
//!
//! The program always terminates: a session that does not finish in time is an error that names its stage, and the
//! server exits with its parent process.

mod bare_client;
mod relay_process;
mod server_process;
mod session_client;
mod stats;

use std::process::Command;
use std::time::{Duration, Instant};

use windlass_bench::measure::BenchClock;

use server_process::LiveServerProcess;
use stats::{ConnectionStats, LiveLoadReport, resident_kib};

pub(crate) type LiveBenchError = Box<dyn std::error::Error + Send + Sync>;

/// Length of an audio chunk in milliseconds.
pub(crate) const CHUNK_MS: u64 = 100;

/// The kind of client that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LiveClientKind {
    /// A bare WebSocket connection with the same traffic as a session.
    Bare,
    /// A realtime session.
    Session,
    /// A browser's side of a relayed session.
    Browser,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveLoad {
    pub(crate) sessions: u64,
    pub(crate) seconds: u64,
}

fn main() -> Result<(), LiveBenchError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [server_process::SERVE_COMMAND, seconds] => {
            build_runtime()?.block_on(server_process::serve_until_parent_exits(seconds.parse()?))
        }
        ["bare", rest @ ..] => measure_clients(LiveClientKind::Bare, rest),
        ["session", rest @ ..] => measure_clients(LiveClientKind::Session, rest),
        ["browser", rest @ ..] => measure_clients(LiveClientKind::Browser, rest),
        ["relay", rest @ ..] => {
            let (address, load) = parse_load(rest)?;
            build_runtime()?.block_on(relay_process::relay_sessions(address, load))
        }
        rest => {
            let number = |place: usize, default: u64| match rest.get(place) {
                Some(word) => word.parse().map_err(|_| format!("`{word}` is not a number")),
                None => Ok(default),
            };
            let load = LiveLoad { sessions: number(0, 1000)?.max(1), seconds: number(1, 5)?.max(1) };
            (0..number(2, 1)?.max(1)).try_for_each(|_| compare_clients(load))
        }
    }
}

fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Measures bare connections, sessions and relayed sessions, each in a process of its own.
fn compare_clients(load: LiveLoad) -> Result<(), LiveBenchError> {
    let LiveLoad { sessions, seconds } = load;
    println!("{sessions} at once, {seconds} s each, with audio both ways");
    let server = LiveServerProcess::start(seconds)?;
    for kind in ["bare", "session", "relay"] {
        let status = Command::new(std::env::current_exe()?)
            .args([kind, &server.address, &sessions.to_string(), &seconds.to_string()])
            .status()?;
        if !status.success() {
            return Err(format!("{kind}: {status}").into());
        }
    }
    Ok(())
}

fn parse_load<'a>(words: &[&'a str]) -> Result<(&'a str, LiveLoad), LiveBenchError> {
    let [address, sessions, seconds] = words else {
        return Err("expected an address, the number of sessions and the seconds".into());
    };
    Ok((address, LiveLoad { sessions: sessions.parse()?, seconds: seconds.parse()? }))
}

fn measure_clients(kind: LiveClientKind, words: &[&str]) -> Result<(), LiveBenchError> {
    let (address, load) = parse_load(words)?;
    let figures = build_runtime()?.block_on(async {
        // The first connection pays the one-time costs that all share.
        let alone = run_client(kind, address, load.seconds).await?;
        Ok::<_, LiveBenchError>(LiveLoadReport {
            first_audio_alone: alone.to_first_audio,
            ..run_all(kind, address, load).await
        })
    })?;
    println!("{kind:?}: {figures}");
    match figures.failures.len() {
        0 => Ok(()),
        failed => Err(format!("{failed} connections did not complete").into()),
    }
}

async fn run_all(kind: LiveClientKind, address: &str, load: LiveLoad) -> LiveLoadReport {
    let before = resident_kib();
    let began = Instant::now();
    let clock = BenchClock::start();
    let tasks: Vec<_> = (0..load.sessions)
        .map(|number| {
            let address = address.to_owned();
            tokio::spawn(async move {
                // The starts are staggered.
                tokio::time::sleep(Duration::from_millis(number * 2)).await;
                run_client(kind, &address, load.seconds).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(load.sessions * 2 + load.seconds * 500)).await;
    let kib_each = resident_kib().saturating_sub(before) / load.sessions;
    let mut figures = LiveLoadReport { kib_per_connection: kib_each, ..LiveLoadReport::default() };
    for task in tasks {
        match task.await.map_err(LiveBenchError::from).and_then(|seen| seen) {
            Ok(seen) => figures.add(seen, load.seconds),
            Err(error) => figures.failures.push(error.to_string()),
        }
    }
    figures.elapsed = began.elapsed();
    figures.cpu_per_speech_second = clock.stop().cpu / (load.sessions * load.seconds) as f64;
    figures
}

async fn run_client(
    kind: LiveClientKind,
    address: &str,
    seconds: u64,
) -> Result<ConnectionStats, LiveBenchError> {
    match kind {
        LiveClientKind::Bare => bare_client::run_bare_client(address, seconds).await,
        LiveClientKind::Session => session_client::run_session_client(address, seconds).await,
        LiveClientKind::Browser => relay_process::run_browser_client(address, seconds).await,
    }
}

/// Returns the time limit of a client, with a margin for a busy machine.
pub(crate) fn client_timeout(seconds: u64) -> Duration {
    Duration::from_secs(seconds * 4 + 60)
}
