use super::{AudioFormat, WavAudio, WavError, resample};

#[test]
fn telephone_audio_keeps_its_shape() {
    for format in [AudioFormat::Ulaw, AudioFormat::Alaw] {
        let samples: Vec<i16> = (-32_768..32_767).step_by(97).map(|sample| sample as i16).collect();
        let back = format.decode(&format.encode(&samples));
        for (before, after) in samples.iter().zip(&back) {
            let (before, after) = (f64::from(*before), f64::from(*after));
            assert!(
                (before - after).abs() <= before.abs() * 0.07 + 16.0,
                "{format:?}: {before} became {after}"
            );
        }
        // Encoding is idempotent: a decoded value survives a second round trip unchanged.
        assert_eq!(format.decode(&format.encode(&back)), back);
    }
}

#[test]
fn known_values_of_the_standard() {
    use super::{alaw_encode, ulaw_encode};
    assert_eq!(
        [ulaw_encode(0), ulaw_encode(-1), ulaw_encode(32_767), ulaw_encode(-32_768)],
        [0xff, 0x7f, 0x80, 0x00]
    );
    assert_eq!(
        [alaw_encode(0), alaw_encode(-1), alaw_encode(32_767), alaw_encode(-32_768)],
        [0xd5, 0x55, 0xaa, 0x2a]
    );
}

#[test]
fn lengths_are_told_in_milliseconds() {
    assert_eq!(AudioFormat::Pcm24k.duration_ms(48_000), 1000);
    assert_eq!(AudioFormat::Ulaw.duration_ms(8_001), 1000);
}

#[test]
fn files_are_read_as_they_were_written() {
    let wav = WavAudio { sample_rate: 22_050, samples: vec![0, 1, -1, i16::MAX, i16::MIN] };
    assert_eq!(WavAudio::from_bytes(&wav.to_bytes()), Ok(wav.clone()));
    let mut piped = wav.to_bytes();
    piped[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(WavAudio::from_bytes(&piped), Ok(wav.clone()));
    assert_eq!(WavAudio::from_bytes(b"RIFX"), Err(WavError::NotWav));
    let mut floats = wav.to_bytes();
    floats[34] = 32;
    assert_eq!(WavAudio::from_bytes(&floats), Err(WavError::NotPcm16));
}

#[test]
fn another_rate_has_as_much_time() {
    let second: Vec<i16> = (0..22_050).map(|at| ((at % 100) * 100) as i16).collect();
    let other = resample(&second, 22_050, 24_000);
    assert_eq!(other.len(), 24_000);
    assert!(resample(&other, 24_000, 22_050).len().abs_diff(22_050) <= 1);
    assert_eq!(resample(&second, 8_000, 8_000), second);
}
