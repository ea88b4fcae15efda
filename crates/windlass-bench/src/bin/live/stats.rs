//! The measurements of one connection and of all connections.

use std::fmt;
use std::time::{Duration, Instant};

use windlass_realtime::audio::AudioFormat;

use crate::CHUNK_MS;

/// The measurements of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    pub(crate) to_first_audio: Duration,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
    /// The lateness of each audio chunk relative to the one before.
    pub(crate) lateness: Vec<Duration>,
    last_chunk_at: Option<Instant>,
}

impl ConnectionStats {
    /// Records an audio chunk.
    pub(crate) fn record_chunk(&mut self, began: Instant, bytes: u64) {
        let now = Instant::now();
        match self.last_chunk_at {
            None => self.to_first_audio = now - began,
            Some(last) => self.lateness.push((now - last).saturating_sub(Duration::from_millis(CHUNK_MS))),
        }
        self.last_chunk_at = Some(now);
        self.bytes += bytes;
    }
}

/// The measurements of all connections.
#[derive(Debug, Default)]
pub(crate) struct LiveLoadReport {
    pub(crate) elapsed: Duration,
    /// CPU time of the process, in seconds, for a second of speech in both directions.
    pub(crate) cpu_per_speech_second: f64,
    /// Time to the first audio on an otherwise idle machine.
    pub(crate) first_audio_alone: Duration,
    pub(crate) kib_per_connection: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) completed: u64,
    pub(crate) dropped: u64,
    pub(crate) first_audio: Vec<Duration>,
    pub(crate) lateness: Vec<Duration>,
}

impl LiveLoadReport {
    pub(crate) fn add(&mut self, seen: ConnectionStats, seconds: u64) {
        let expected = seconds * 1000 * AudioFormat::Pcm24k.bytes_per_ms();
        if seen.bytes == expected && seen.dropped == 0 {
            self.completed += 1;
        } else {
            let ConnectionStats { bytes, dropped, .. } = seen;
            self.failures.push(format!("{bytes} of {expected} bytes came, {dropped} pieces were left out"));
        }
        self.dropped += seen.dropped;
        self.first_audio.push(seen.to_first_audio);
        self.lateness.extend(seen.lateness);
    }
}

impl fmt::Display for LiveLoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |times: &[Duration], percent| as_millis(percentile(times, percent));
        write!(
            f,
            "{} whole, {} failed, {} pieces lost, in {:.1} s; {} KiB each; first audio alone {:.1} ms, p50 {:.1} ms, p99 {:.1} ms; a piece of {CHUNK_MS} ms late by p50 {:.1} ms, p99 {:.1} ms; {:.2} ms of CPU per second of speech",
            self.completed,
            self.failures.len(),
            self.dropped,
            self.elapsed.as_secs_f64(),
            self.kib_per_connection,
            as_millis(self.first_audio_alone),
            at(&self.first_audio, 50),
            at(&self.first_audio, 99),
            at(&self.lateness, 50),
            at(&self.lateness, 99),
            self.cpu_per_speech_second * 1000.0,
        )?;
        for error in self.failures.iter().take(5) {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn as_millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Returns the resident memory of this process in KiB; 0 if the system does not report it.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
