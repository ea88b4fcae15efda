//! Hearing: whether somebody speaks, by how loud it is.

use std::sync::Arc;

/// How loud speech is, as the root of the mean square of its samples.
const LOUD: f64 = 500.0;
/// So much is listened to at a time.
const WINDOW_MS: u64 = 20;

/// Writes down what it heard: samples at 24,000 a second in, words out.
pub type Ear = Arc<dyn Fn(&[i16]) -> String + Send + Sync>;

/// A tone of so many milliseconds, at 24,000 samples a second: loud enough to be taken for speech.
pub fn tone(ms: u64) -> Vec<i16> {
    (0..ms * 24).map(|at| if at / 55 % 2 == 0 { 8_000 } else { -8_000 }).collect()
}

/// What became of the listening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Noticed {
    Started { at_ms: u64 },
    Stopped { at_ms: u64 },
}

/// Listens for speech.
#[derive(Debug, Default)]
pub(super) struct Listener {
    window: Vec<i16>,
    pub(super) heard_ms: u64,
    pub(super) is_speech: bool,
    quiet_ms: u64,
}

impl Listener {
    /// Hears samples at 24,000 a second.
    pub(super) fn hear(&mut self, samples: &[i16], silence_ms: u64) -> Vec<Noticed> {
        let mut noticed = Vec::new();
        for sample in samples {
            self.window.push(*sample);
            if self.window.len() < (24 * WINDOW_MS) as usize {
                continue;
            }
            let power: f64 = self.window.iter().map(|sample| f64::from(*sample).powi(2)).sum();
            let loud = (power / self.window.len() as f64).sqrt() > LOUD;
            self.window.clear();
            self.heard_ms += WINDOW_MS;
            if loud {
                self.quiet_ms = 0;
                if !self.is_speech {
                    self.is_speech = true;
                    noticed.push(Noticed::Started { at_ms: self.heard_ms - WINDOW_MS });
                }
            } else if self.is_speech {
                self.quiet_ms += WINDOW_MS;
                if self.quiet_ms >= silence_ms {
                    self.is_speech = false;
                    noticed.push(Noticed::Stopped { at_ms: self.heard_ms });
                }
            }
        }
        noticed
    }
}
