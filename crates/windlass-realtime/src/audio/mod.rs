//! Audio encodings of the wire, their durations, resampling, and WAV files.

mod g711;
mod wav;

pub use g711::{alaw_decode, alaw_encode, ulaw_decode, ulaw_encode};
pub use wav::{WavAudio, WavError};

use serde::{Deserialize, Serialize};

/// An audio encoding on the wire; always one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AudioFormat {
    /// PCM, 16 bits per sample, little-endian, 24,000 samples per second.
    #[default]
    Pcm24k,
    /// G.711 µ-law, 8,000 samples per second.
    Ulaw,
    /// G.711 A-law, 8,000 samples per second.
    Alaw,
}

impl AudioFormat {
    /// Returns the number of samples per second.
    pub fn sample_rate(self) -> u32 {
        match self {
            Self::Pcm24k => 24_000,
            Self::Ulaw | Self::Alaw => 8_000,
        }
    }

    /// Returns the number of bytes per millisecond.
    pub fn bytes_per_ms(self) -> u64 {
        match self {
            Self::Pcm24k => 48,
            Self::Ulaw | Self::Alaw => 8,
        }
    }

    /// Returns the duration of this many bytes in whole milliseconds.
    pub fn duration_ms(self, bytes: u64) -> u64 {
        bytes / self.bytes_per_ms()
    }

    /// Encodes samples for the wire.
    pub fn encode(self, samples: &[i16]) -> Vec<u8> {
        match self {
            Self::Pcm24k => samples.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
            Self::Ulaw => samples.iter().map(|sample| ulaw_encode(*sample)).collect(),
            Self::Alaw => samples.iter().map(|sample| alaw_encode(*sample)).collect(),
        }
    }

    /// Decodes samples from the wire. An incomplete sample at the end is dropped.
    pub fn decode(self, bytes: &[u8]) -> Vec<i16> {
        match self {
            Self::Pcm24k => {
                bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
            }
            Self::Ulaw => bytes.iter().map(|byte| ulaw_decode(*byte)).collect(),
            Self::Alaw => bytes.iter().map(|byte| alaw_decode(*byte)).collect(),
        }
    }
}

/// Resamples by linear interpolation, from `from` to `to` samples per second. The quality suffices for speech
/// only.
pub fn resample(samples: &[i16], from: u32, to: u32) -> Vec<i16> {
    if from == to || samples.is_empty() || from == 0 {
        return samples.to_vec();
    }
    let count = (samples.len() as u64 * u64::from(to) / u64::from(from)) as usize;
    let at = |place: usize| f64::from(samples[place.min(samples.len() - 1)]);
    let sample = |index: usize| {
        let exact = index as f64 * f64::from(from) / f64::from(to);
        let (place, part) = (exact as usize, exact.fract());
        (at(place) * (1.0 - part) + at(place + 1) * part).round() as i16
    };
    (0..count).map(sample).collect()
}

#[cfg(test)]
#[path = "audio_tests.rs"]
mod tests;
