//! Speech detection by loudness.

use std::sync::Arc;

/// Loudness of speech, as the root mean square of its samples.
const SPEECH_RMS_THRESHOLD: f64 = 500.0;
/// Duration of one analysis window.
const WINDOW_MS: u64 = 20;

/// A function that transcribes samples at 24,000 per second.
pub type SpeechTranscriber = Arc<dyn Fn(&[i16]) -> String + Send + Sync>;

/// Returns a tone of this duration at 24,000 samples per second, loud enough to be detected as speech.
pub fn tone(ms: u64) -> Vec<i16> {
    (0..ms * 24).map(|at| if at / 55 % 2 == 0 { 8_000 } else { -8_000 }).collect()
}

/// The start or end of speech.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpeechBoundary {
    Started { at_ms: u64 },
    Stopped { at_ms: u64 },
}

/// A detector of speech.
#[derive(Debug, Default)]
pub(super) struct SpeechDetector {
    window: Vec<i16>,
    pub(super) processed_ms: u64,
    pub(super) is_speaking: bool,
    silence_ms: u64,
}

impl SpeechDetector {
    /// Processes samples at 24,000 per second and returns the detected boundaries.
    pub(super) fn process_samples(&mut self, samples: &[i16], silence_ms: u64) -> Vec<SpeechBoundary> {
        let mut noticed = Vec::new();
        for sample in samples {
            self.window.push(*sample);
            if self.window.len() < (24 * WINDOW_MS) as usize {
                continue;
            }
            let power: f64 = self.window.iter().map(|sample| f64::from(*sample).powi(2)).sum();
            let loud = (power / self.window.len() as f64).sqrt() > SPEECH_RMS_THRESHOLD;
            self.window.clear();
            self.processed_ms += WINDOW_MS;
            if loud {
                self.silence_ms = 0;
                if !self.is_speaking {
                    self.is_speaking = true;
                    noticed.push(SpeechBoundary::Started { at_ms: self.processed_ms - WINDOW_MS });
                }
            } else if self.is_speaking {
                self.silence_ms += WINDOW_MS;
                if self.silence_ms >= silence_ms {
                    self.is_speaking = false;
                    noticed.push(SpeechBoundary::Stopped { at_ms: self.processed_ms });
                }
            }
        }
        noticed
    }
}
