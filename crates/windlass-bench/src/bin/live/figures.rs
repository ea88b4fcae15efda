//! What was measured.

use std::fmt;
use std::time::{Duration, Instant};

use windlass_realtime::audio::AudioFormat;

use crate::PIECE_MS;

/// What one connection saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) to_first_audio: Duration,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
    /// How late each piece of speech was, after the one before.
    pub(crate) late: Vec<Duration>,
    last: Option<Instant>,
}

impl Seen {
    /// A piece of speech came.
    pub(crate) fn piece(&mut self, began: Instant, bytes: u64) {
        let now = Instant::now();
        match self.last {
            None => self.to_first_audio = now - began,
            Some(last) => self.late.push((now - last).saturating_sub(Duration::from_millis(PIECE_MS))),
        }
        self.last = Some(now);
        self.bytes += bytes;
    }
}

/// What all of them saw.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) took: Duration,
    /// When the first audio came where nothing else was going on.
    pub(crate) alone: Duration,
    pub(crate) kib_each: u64,
    pub(crate) failed: Vec<String>,
    pub(crate) whole: u64,
    pub(crate) dropped: u64,
    pub(crate) first: Vec<Duration>,
    pub(crate) late: Vec<Duration>,
}

impl Figures {
    pub(crate) fn add(&mut self, seen: Seen, seconds: u64) {
        let expected = seconds * 1000 * AudioFormat::Pcm24k.bytes_per_ms();
        if seen.bytes == expected && seen.dropped == 0 {
            self.whole += 1;
        } else {
            let Seen { bytes, dropped, .. } = seen;
            self.failed.push(format!("{bytes} of {expected} bytes came, {dropped} pieces were left out"));
        }
        self.dropped += seen.dropped;
        self.first.push(seen.to_first_audio);
        self.late.extend(seen.late);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |times: &[Duration], percent| millis(percentile(times, percent));
        write!(
            f,
            "{} whole, {} failed, {} pieces lost, in {:.1} s; {} KiB each; first audio alone {:.1} ms, p50 {:.1} ms, p99 {:.1} ms; a piece of {PIECE_MS} ms late by p50 {:.1} ms, p99 {:.1} ms",
            self.whole,
            self.failed.len(),
            self.dropped,
            self.took.as_secs_f64(),
            self.kib_each,
            millis(self.alone),
            at(&self.first, 50),
            at(&self.first, 99),
            at(&self.late, 50),
            at(&self.late, 99),
        )?;
        for error in self.failed.iter().take(5) {
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

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// How much memory this process has, where the system says.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
