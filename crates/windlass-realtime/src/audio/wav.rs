//! WAV files with 16-bit samples. Of several channels, only the first is read.

/// Samples and their sample rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WavAudio {
    /// Number of samples per second.
    pub sample_rate: u32,
    /// The samples.
    pub samples: Vec<i16>,
}

/// An error from parsing a WAV file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WavError {
    /// The bytes are not a WAV file.
    #[error("not a WAV file")]
    NotWav,
    /// The samples are not 16-bit PCM.
    #[error("only 16-bit PCM is supported; hint: `ffmpeg -i in -c:a pcm_s16le out.wav`")]
    NotPcm16,
}

impl WavAudio {
    /// Parses the bytes of a WAV file with 16-bit PCM samples; of several channels, only the first is read.
    ///
    /// # Errors
    ///
    /// Returns [`WavError`] if the bytes are not a WAV file with 16-bit PCM samples.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WavError> {
        if bytes.get(..4) != Some(b"RIFF".as_slice()) || bytes.get(8..12) != Some(b"WAVE".as_slice()) {
            return Err(WavError::NotWav);
        }
        let (mut at, mut format) = (12, None);
        while let Some(head) = bytes.get(at..at + 8) {
            let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            // A writer to a pipe does not know the size in advance and writes the largest value.
            let body = &bytes[at + 8..bytes.len().min((at + 8).saturating_add(size))];
            match &head[..4] {
                b"fmt " if body.len() >= 16 => {
                    let short = |place: usize| u16::from_le_bytes([body[place], body[place + 1]]);
                    let rate = u32::from_le_bytes([body[4], body[5], body[6], body[7]]);
                    format = Some((short(0), short(2), rate, short(14)));
                }
                b"data" => {
                    let Some((1 | 0xfffe, channels @ 1.., rate, 16)) = format else {
                        return Err(WavError::NotPcm16);
                    };
                    let frames = body.chunks_exact(2 * usize::from(channels));
                    let samples = frames.map(|frame| i16::from_le_bytes([frame[0], frame[1]])).collect();
                    return Ok(Self { sample_rate: rate, samples });
                }
                _ => {}
            }
            at = (at + 8).saturating_add(size).saturating_add(size % 2);
        }
        Err(WavError::NotWav)
    }

    /// Returns the bytes of a WAV file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = u32::try_from(self.samples.len() * 2).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(44 + self.samples.len() * 2);
        bytes.extend_from_slice(b"RIFF");
        bytes.extend_from_slice(&size.saturating_add(36).to_le_bytes());
        bytes.extend_from_slice(b"WAVEfmt ");
        bytes.extend_from_slice(&16_u32.to_le_bytes());
        bytes.extend_from_slice(&1_u16.to_le_bytes());
        bytes.extend_from_slice(&1_u16.to_le_bytes());
        bytes.extend_from_slice(&self.sample_rate.to_le_bytes());
        bytes.extend_from_slice(&(self.sample_rate * 2).to_le_bytes());
        bytes.extend_from_slice(&2_u16.to_le_bytes());
        bytes.extend_from_slice(&16_u16.to_le_bytes());
        bytes.extend_from_slice(b"data");
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend(self.samples.iter().flat_map(|sample| sample.to_le_bytes()));
        bytes
    }
}
