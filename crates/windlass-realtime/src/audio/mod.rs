//! Audio as it travels: its form, how long it lasts, and how it is written into files.

mod g711;
mod wav;

pub use g711::{alaw_decode, alaw_encode, ulaw_decode, ulaw_encode};
pub use wav::{Wav, WavError};

use serde::{Deserialize, Serialize};

/// The form of audio on the wire. All of it has one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AudioFormat {
    /// 16 bits a sample, little-endian, 24,000 samples a second.
    #[default]
    Pcm24k,
    /// G.711 µ-law, 8,000 samples a second.
    Ulaw,
    /// G.711 A-law, 8,000 samples a second.
    Alaw,
}

impl AudioFormat {
    /// Samples a second.
    pub fn rate(self) -> u32 {
        match self {
            Self::Pcm24k => 24_000,
            Self::Ulaw | Self::Alaw => 8_000,
        }
    }

    /// Bytes a millisecond.
    pub fn bytes_per_ms(self) -> u64 {
        match self {
            Self::Pcm24k => 48,
            Self::Ulaw | Self::Alaw => 8,
        }
    }

    /// How long so many bytes last, in whole milliseconds.
    pub fn millis(self, bytes: u64) -> u64 {
        bytes / self.bytes_per_ms()
    }

    /// Samples as they travel.
    pub fn encode(self, samples: &[i16]) -> Vec<u8> {
        match self {
            Self::Pcm24k => samples.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
            Self::Ulaw => samples.iter().map(|sample| ulaw_encode(*sample)).collect(),
            Self::Alaw => samples.iter().map(|sample| alaw_encode(*sample)).collect(),
        }
    }

    /// Samples from what travelled. Half a sample at the end is left out.
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

/// Samples at another rate, by straight lines between them. Good enough for speech, and for nothing else.
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
