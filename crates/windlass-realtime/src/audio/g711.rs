//! G.711: speech in eight bits a sample, as telephones have it.

const BIAS: i32 = 0x84;
const CLIP: i32 = 32_635;

/// One sample in µ-law.
pub fn ulaw_encode(sample: i16) -> u8 {
    let sample = i32::from(sample);
    let sign = if sample < 0 { 0x80 } else { 0 };
    let magnitude = sample.abs().min(CLIP) + BIAS;
    let exponent = highest_bit(magnitude) - 7;
    let mantissa = (magnitude >> (exponent + 3)) & 0x0f;
    !(sign | (exponent << 4) | mantissa) as u8
}

/// One sample from µ-law.
pub fn ulaw_decode(byte: u8) -> i16 {
    let byte = i32::from(!byte);
    let magnitude = (((byte & 0x0f) << 3) + BIAS) << ((byte & 0x70) >> 4);
    let sample = magnitude - BIAS;
    (if byte & 0x80 == 0 { sample } else { -sample }) as i16
}

/// One sample in A-law.
pub fn alaw_encode(sample: i16) -> u8 {
    let sample = i32::from(sample) >> 3;
    let (mask, magnitude) = if sample >= 0 { (0xd5, sample) } else { (0x55, -sample - 1) };
    let segment = (highest_bit(magnitude.max(1)) - 4).max(0);
    let coded = (segment << 4) | ((magnitude >> segment.max(1)) & 0x0f);
    (coded ^ mask) as u8
}

/// One sample from A-law.
pub fn alaw_decode(byte: u8) -> i16 {
    let byte = i32::from(byte ^ 0x55);
    let mantissa = (byte & 0x0f) << 4;
    let sample = match (byte & 0x70) >> 4 {
        0 => mantissa + 8,
        segment => (mantissa + 0x108) << (segment - 1),
    };
    (if byte & 0x80 == 0 { -sample } else { sample }) as i16
}

/// The place of the highest bit of a number above zero.
fn highest_bit(number: i32) -> i32 {
    31 - number.leading_zeros() as i32
}
