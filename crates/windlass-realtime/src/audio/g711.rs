//! G.711 companding: telephone speech in eight bits per sample.

const ULAW_BIAS: i32 = 0x84;
const ULAW_CLIP: i32 = 32_635;

/// Encodes one sample as µ-law.
pub fn ulaw_encode(sample: i16) -> u8 {
    let sample = i32::from(sample);
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = sample.abs().min(ULAW_CLIP) + ULAW_BIAS;
    let exponent = highest_bit_index(magnitude) - 7;
    let mantissa = (magnitude >> (exponent + 3)) & 0x0f;
    !(sign | (exponent << 4) | mantissa) as u8
}

/// Decodes one sample from µ-law.
pub fn ulaw_decode(byte: u8) -> i16 {
    let byte = i32::from(!byte);
    let magnitude = (((byte & 0x0f) << 3) + ULAW_BIAS) << ((byte & 0x70) >> 4);
    let sample = magnitude - ULAW_BIAS;
    (if byte & 0x80 == 0 { sample } else { -sample }) as i16
}

/// Encodes one sample as A-law.
pub fn alaw_encode(sample: i16) -> u8 {
    let sample = i32::from(sample) >> 3;
    let (mask, magnitude) = if sample >= 0 { (0xd5, sample) } else { (0x55, -sample - 1) };
    let segment = (highest_bit_index(magnitude.max(1)) - 4).max(0);
    let coded = (segment << 4) | ((magnitude >> segment.max(1)) & 0x0f);
    (coded ^ mask) as u8
}

/// Decodes one sample from A-law.
pub fn alaw_decode(byte: u8) -> i16 {
    let byte = i32::from(byte ^ 0x55);
    let mantissa = (byte & 0x0f) << 4;
    let sample = match (byte & 0x70) >> 4 {
        0 => mantissa + 8,
        segment => (mantissa + 0x108) << (segment - 1),
    };
    (if byte & 0x80 == 0 { -sample } else { sample }) as i16
}

/// Returns the index of the highest set bit of a positive number.
fn highest_bit_index(number: i32) -> i32 {
    31 - number.leading_zeros() as i32
}
