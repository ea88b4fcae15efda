//! Many sessions at once, with audio both ways: what one of them costs, what the load adds to the wait, and that nothing
//! is lost.
//!
//! `thousand_sessions [sessions] [seconds]`. The server is a process of its own, so that the memory measured here is the
//! sessions' alone.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use windlass::agent::Agent;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::openai::OpenAi;
use windlass_realtime::settings::{LiveSettings, TurnDetection};
use windlass_realtime::testing::{Loopback, Reply, tone};
use windlass_realtime::{LiveEvent, Realtime};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The length of a piece of audio.
const PIECE_MS: u64 = 100;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut words = std::env::args().skip(1);
    let first = words.next();
    let number =
        |text: Option<String>, default: u64| text.and_then(|text| text.parse().ok()).unwrap_or(default);
    if first.as_deref() == Some("serve") {
        return runtime.block_on(serve(number(words.next(), 1)));
    }
    runtime.block_on(measure(number(first, 20), number(words.next(), 2)))
}

async fn serve(seconds: u64) -> Result<(), Failure> {
    let speech = tone(seconds * 1000);
    let server = Loopback::thinking(move |_| Reply::speak("Here it comes.", speech.clone()).paced(1));
    server.forget_all();
    let (address, listening) = server.listen().await?;
    println!("{address}");
    std::io::stdout().flush()?;
    Ok(listening.await?)
}

/// What one session saw.
struct Seen {
    to_first_audio: Duration,
    bytes: u64,
    dropped: u64,
    /// How late each piece of speech was, after the one before.
    gaps: Vec<Duration>,
}

async fn measure(sessions: u64, seconds: u64) -> Result<(), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["serve", &seconds.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let Some(stdout) = child.stdout.take() else { return Err("the server says nothing".into()) };
    BufReader::new(stdout).read_line(&mut address)?;
    let address = format!("ws://{}/v1/realtime", address.trim());
    let alone = talk(&address, seconds).await?;
    let before = resident_kib();
    let began = Instant::now();
    let tasks: Vec<_> = (0..sessions)
        .map(|number| {
            let address = address.clone();
            tokio::spawn(async move {
                // They do not all begin in one moment.
                tokio::time::sleep(Duration::from_millis(number * 2)).await;
                talk(&address, seconds).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(sessions * 2 + seconds * 500)).await;
    let during = resident_kib();
    let mut seen = Vec::new();
    for task in tasks {
        seen.push(task.await??);
    }
    let took = began.elapsed();
    child.kill()?;
    child.wait()?;
    let expected = seconds * 1000 * AudioFormat::Pcm24k.bytes_per_ms();
    let whole = seen.iter().filter(|seen| seen.bytes == expected).count() as u64;
    let dropped: u64 = seen.iter().map(|seen| seen.dropped).sum();
    let mut first: Vec<Duration> = seen.iter().map(|seen| seen.to_first_audio).collect();
    let mut gaps: Vec<Duration> = seen.iter().flat_map(|seen| seen.gaps.clone()).collect();
    println!("{sessions} sessions of {seconds} s with audio both ways, in {:.1} s", took.as_secs_f64());
    println!("memory for one session: {} KiB", during.saturating_sub(before) / sessions.max(1));
    println!(
        "first audio: alone {:.1} ms; among all p50 {:.1} ms, p99 {:.1} ms",
        millis(alone.to_first_audio),
        millis(at(&mut first, 50)),
        millis(at(&mut first, 99)),
    );
    println!(
        "a piece of {PIECE_MS} ms was late by p50 {:.1} ms, p99 {:.1} ms",
        millis(at(&mut gaps, 50)),
        millis(at(&mut gaps, 99))
    );
    println!("whole answers: {whole} of {sessions}; pieces lost on the way out: {dropped}");
    assert_eq!((whole, dropped), (sessions, 0), "something was lost");
    Ok(())
}

async fn talk(address: &str, seconds: u64) -> Result<Seen, Failure> {
    let settings = LiveSettings { turns: TurnDetection::Application, ..LiveSettings::default() };
    let realtime = Realtime::new(Agent::new("guide"), OpenAi::at(address)).settings(settings);
    let session = realtime.connect().await?;
    let mut events = session.events();
    let began = Instant::now();
    session.say("Speak").await?;
    let speaking = {
        let session = session.clone();
        tokio::spawn(async move {
            let piece = AudioFormat::Pcm24k.encode(&tone(PIECE_MS));
            let mut ticks = tokio::time::interval(Duration::from_millis(PIECE_MS));
            for _ in 0..seconds * 1000 / PIECE_MS {
                ticks.tick().await;
                if session.hear(piece.clone()).is_err() {
                    return;
                }
            }
        })
    };
    let mut seen = Seen { to_first_audio: Duration::ZERO, bytes: 0, dropped: 0, gaps: Vec::new() };
    let mut last: Option<Instant> = None;
    while let Some(event) = events.next().await {
        match event {
            LiveEvent::Audio(chunk) => {
                let now = Instant::now();
                match last {
                    None => seen.to_first_audio = now - began,
                    Some(last) => {
                        seen.gaps.push((now - last).saturating_sub(Duration::from_millis(PIECE_MS)))
                    }
                }
                last = Some(now);
                seen.bytes += chunk.bytes.len() as u64;
            }
            LiveEvent::TurnEnded { .. } => break,
            LiveEvent::Closed(reason) => return Err(format!("the session ended: {reason:?}").into()),
            _ => {}
        }
    }
    speaking.await?;
    let report = session.close().await;
    seen.dropped = report.metrics.dropped_input + report.metrics.dropped_output;
    Ok(seen)
}

fn at(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How much memory this process has, where the system says.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
