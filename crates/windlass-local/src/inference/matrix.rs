//! Quantised matrices: conversion from the formats of GGUF files, and products with vectors.
//!
//! The weights are kept in one of two formats, for which there are fast kernels: blocks of 32 numbers with eight or
//! four bits each. `Q4_0`, `Q4_1`, `Q4_K` and `Q8_0` are converted without loss; all others are dequantised and
//! quantised to eight bits.

use crate::inference::kernel::{self, QuantisedRows};

/// Length of a block.
pub(crate) const BLOCK: usize = 32;

/// A matrix of weights.
pub(crate) struct WeightMatrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    blocks: WeightBlocks,
}

enum WeightBlocks {
    /// A number is `quant * scale`.
    EightBits { quants: Vec<[i8; BLOCK]>, scales: Vec<f32> },
    /// A number is `quant * scale + offset`. The low halves of the bytes are the first 16 numbers.
    FourBits { quants: Vec<[u8; BLOCK / 2]>, scales: Vec<[f32; 2]> },
}

/// A number format of GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorFormat {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl TensorFormat {
    /// Returns the format of a number in the file.
    pub(crate) fn from_kind(kind: u32) -> Result<Self, String> {
        Ok(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            other => {
                let name = match other {
                    16 => "IQ2_XXS",
                    17 => "IQ2_XS",
                    18 => "IQ3_XXS",
                    19 => "IQ1_S",
                    20 => "IQ4_NL",
                    21 => "IQ3_S",
                    22 => "IQ2_S",
                    23 => "IQ4_XS",
                    29 => "IQ1_M",
                    34 => "TQ1_0",
                    35 => "TQ2_0",
                    39 => "MXFP4",
                    _ => "an unknown format",
                };
                return Err(format!(
                    "its weights are quantised as {name} ({other}); F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 \
                     and Q2_K to Q6_K can be run"
                ));
            }
        })
    }

    /// Returns the number of weights in a block.
    fn block_length(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Returns the number of bytes of a block.
    fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns the number of bytes of a tensor whose rows have `columns` numbers.
    pub(crate) fn byte_length(self, rows: usize, columns: usize) -> Result<usize, String> {
        if !columns.is_multiple_of(self.block_length()) {
            return Err(format!("its rows of {columns} numbers are not whole blocks of {self:?}"));
        }
        let blocks = (columns / self.block_length()).checked_mul(rows);
        blocks
            .and_then(|blocks| blocks.checked_mul(self.block_bytes()))
            .ok_or("a tensor is too large".to_owned())
    }

    /// Converts the bytes of a tensor to numbers.
    pub(crate) fn dequantise(self, bytes: &[u8]) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(bytes.len() / self.block_bytes() * self.block_length());
        for block in bytes.chunks_exact(self.block_bytes()) {
            match self {
                Self::F32 => numbers.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Self::F16 => numbers.push(half_at(block, 0)),
                Self::Bf16 => numbers.push(f32::from_bits(u32::from(u16_at(block, 0)) << 16)),
                Self::Q4_0 => {
                    four_bits(&block[2..18], half_at(block, 0), -8.0 * half_at(block, 0), &mut numbers)
                }
                Self::Q4_1 => four_bits(&block[4..20], half_at(block, 0), half_at(block, 2), &mut numbers),
                Self::Q5_0 => {
                    let scale = half_at(block, 0);
                    five_bits(&block[6..22], u32_at(block, 2), scale, -16.0 * scale, &mut numbers);
                }
                Self::Q5_1 => {
                    five_bits(
                        &block[8..24],
                        u32_at(block, 4),
                        half_at(block, 0),
                        half_at(block, 2),
                        &mut numbers,
                    );
                }
                Self::Q8_0 => {
                    let scale = half_at(block, 0);
                    numbers.extend(block[2..34].iter().map(|quant| f32::from(quant.cast_signed()) * scale));
                }
                Self::Q2K => dequantise_q2k(block, &mut numbers),
                Self::Q3K => dequantise_q3k(block, &mut numbers),
                Self::Q4K => {
                    for (quants, [scale, offset]) in unpack_q4k(block) {
                        four_bits(&quants, scale, offset, &mut numbers);
                    }
                }
                Self::Q5K => dequantise_q5k(block, &mut numbers),
                Self::Q6K => dequantise_q6k(block, &mut numbers),
            }
        }
        numbers
    }
}

impl WeightMatrix {
    /// Converts a tensor of a GGUF file.
    pub(crate) fn from_bytes(
        format: TensorFormat,
        bytes: &[u8],
        rows: usize,
        columns: usize,
    ) -> Result<Self, String> {
        if !columns.is_multiple_of(BLOCK) {
            return Err(format!("its matrices have {columns} columns, which is no multiple of {BLOCK}"));
        }
        if format.byte_length(rows, columns)? != bytes.len() {
            return Err("the size of a tensor does not match its dimensions".to_owned());
        }
        let count = rows * columns / BLOCK;
        let source = bytes.chunks_exact(format.block_bytes());
        let blocks = match format {
            TensorFormat::Q8_0 => {
                let (mut quants, mut scales) = (Vec::with_capacity(count), Vec::with_capacity(count));
                for block in source {
                    scales.push(half_at(block, 0));
                    quants.push(std::array::from_fn(|at| block[2 + at].cast_signed()));
                }
                WeightBlocks::EightBits { quants, scales }
            }
            TensorFormat::Q4_0 | TensorFormat::Q4_1 | TensorFormat::Q4K => {
                let (mut quants, mut scales) = (Vec::with_capacity(count), Vec::with_capacity(count));
                for block in source {
                    match format {
                        TensorFormat::Q4_0 => {
                            let scale = half_at(block, 0);
                            quants.push(std::array::from_fn(|at| block[2 + at]));
                            scales.push([scale, -8.0 * scale]);
                        }
                        TensorFormat::Q4_1 => {
                            quants.push(std::array::from_fn(|at| block[4 + at]));
                            scales.push([half_at(block, 0), half_at(block, 2)]);
                        }
                        _ => {
                            for (packed, scale) in unpack_q4k(block) {
                                quants.push(packed);
                                scales.push(scale);
                            }
                        }
                    }
                }
                WeightBlocks::FourBits { quants, scales }
            }
            other => {
                let (mut quants, mut scales) = (Vec::with_capacity(count), Vec::with_capacity(count));
                // Row by row, so that a large tensor is never in memory as numbers.
                let row_bytes = bytes.len() / rows.max(1);
                for row in bytes.chunks_exact(row_bytes.max(1)) {
                    for numbers in other.dequantise(row).as_chunks::<BLOCK>().0 {
                        let (block, scale) = kernel::quantise_block(numbers);
                        quants.push(block);
                        scales.push(scale);
                    }
                }
                WeightBlocks::EightBits { quants, scales }
            }
        };
        Ok(Self { rows, columns, blocks })
    }

    /// Returns a row as numbers.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let length = self.columns / BLOCK;
        let range = row * length..(row + 1) * length;
        let mut numbers = Vec::with_capacity(self.columns);
        match &self.blocks {
            WeightBlocks::EightBits { quants, scales } => {
                for (block, scale) in quants[range.clone()].iter().zip(&scales[range]) {
                    numbers.extend(block.iter().map(|quant| f32::from(*quant) * scale));
                }
            }
            WeightBlocks::FourBits { quants, scales } => {
                for (block, [scale, offset]) in quants[range.clone()].iter().zip(&scales[range]) {
                    four_bits(block, *scale, *offset, &mut numbers);
                }
            }
        }
        numbers
    }

    /// Writes the products of one row with every vector of `input` to `output`.
    pub(crate) fn multiply_row(&self, row: usize, input: &QuantisedRows, output: &mut [f32]) {
        let length = self.columns / BLOCK;
        let range = row * length..(row + 1) * length;
        match &self.blocks {
            WeightBlocks::EightBits { quants, scales } => {
                kernel::multiply_eight_bits(&quants[range.clone()], &scales[range], input, output);
            }
            WeightBlocks::FourBits { quants, scales } => {
                kernel::multiply_four_bits(&quants[range.clone()], &scales[range], input, output);
            }
        }
    }
}

fn four_bits(quants: &[u8], scale: f32, offset: f32, numbers: &mut Vec<f32>) {
    numbers.extend(quants.iter().map(|byte| f32::from(byte & 15) * scale + offset));
    numbers.extend(quants.iter().map(|byte| f32::from(byte >> 4) * scale + offset));
}

fn five_bits(quants: &[u8], high: u32, scale: f32, offset: f32, numbers: &mut Vec<f32>) {
    let high_bit = |at: usize| ((high >> at) as u8 & 1) << 4;
    let low = quants.iter().enumerate().map(|(at, byte)| (byte & 15) | high_bit(at));
    let upper = quants.iter().enumerate().map(|(at, byte)| (byte >> 4) | high_bit(at + 16));
    numbers.extend(low.chain(upper).map(|quant| f32::from(quant) * scale + offset));
}

/// Returns the eight blocks of 32 numbers in a block of `Q4_K`, with their scales and offsets.
fn unpack_q4k(block: &[u8]) -> [([u8; BLOCK / 2], [f32; 2]); 8] {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let quants = &block[16..144];
    std::array::from_fn(|part| {
        let (factor, offset) = k_scale(&block[4..16], part);
        let bytes = &quants[part / 2 * 32..][..32];
        let quant = |at: usize| if part.is_multiple_of(2) { bytes[at] & 15 } else { bytes[at] >> 4 };
        let packed = std::array::from_fn(|at| quant(at) | quant(at + 16) << 4);
        (packed, [scale * f32::from(factor), -least * f32::from(offset)])
    })
}

/// Returns a scale and an offset of six bits each.
fn k_scale(scales: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        (scales[part] & 63, scales[part + 4] & 63)
    } else {
        let (low, high) = (scales[part + 4], [scales[part - 4] >> 6, scales[part] >> 6]);
        ((low & 15) | high[0] << 4, (low >> 4) | high[1] << 4)
    }
}

fn dequantise_q5k(block: &[u8], numbers: &mut Vec<f32>) {
    let (scale, least) = (half_at(block, 0), half_at(block, 2));
    let (high, quants) = (&block[16..48], &block[48..176]);
    for part in 0..8 {
        let (factor, offset) = k_scale(&block[4..16], part);
        let bytes = &quants[part / 2 * 32..][..32];
        for (byte, high) in bytes.iter().zip(high) {
            let low = if part.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
            let quant = low | (high >> part & 1) << 4;
            numbers.push(scale * f32::from(factor) * f32::from(quant) - least * f32::from(offset));
        }
    }
}

fn dequantise_q6k(block: &[u8], numbers: &mut Vec<f32>) {
    let scale = half_at(block, 208);
    for half in 0..2 {
        let low = &block[half * 64..][..64];
        let high = &block[128 + half * 32..][..32];
        let scales = &block[192 + half * 8..][..8];
        for part in 0..4 {
            for at in 0..32 {
                let byte = low[at + part % 2 * 32];
                let low = if part < 2 { byte & 15 } else { byte >> 4 };
                let quant = (low | (high[at] >> (2 * part) & 3) << 4).cast_signed() - 32;
                let factor = scales[part * 2 + at / 16].cast_signed();
                numbers.push(scale * f32::from(factor) * f32::from(quant));
            }
        }
    }
}

fn dequantise_q2k(block: &[u8], numbers: &mut Vec<f32>) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (scale, least) = (half_at(block, 80), half_at(block, 82));
    for half in 0..2 {
        for part in 0..4 {
            for at in 0..32 {
                let factors = scales[half * 8 + part * 2 + at / 16];
                let quant = quants[half * 32 + at] >> (2 * part) & 3;
                numbers.push(
                    scale * f32::from(factors & 15) * f32::from(quant) - least * f32::from(factors >> 4),
                );
            }
        }
    }
}

fn dequantise_q3k(block: &[u8], numbers: &mut Vec<f32>) {
    let (high, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = half_at(block, 108);
    let factor = |at: usize| -> i8 {
        let low = if at < 8 { packed[at] & 15 } else { packed[at - 8] >> 4 };
        let upper = packed[8 + at % 4] >> (2 * (at / 4)) & 3;
        (low | upper << 4).cast_signed() - 32
    };
    for half in 0..2 {
        for part in 0..4 {
            for at in 0..32 {
                let low = (quants[half * 32 + at] >> (2 * part) & 3).cast_signed();
                let is_high = high[at] >> (half * 4 + part) & 1 == 1;
                let quant = if is_high { low } else { low - 4 };
                numbers.push(scale * f32::from(factor(half * 8 + part * 2 + at / 16)) * f32::from(quant));
            }
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the half-precision number at an offset.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16_at(bytes, at));
    let (sign, exponent, fraction) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 0x3ff);
    match exponent {
        // Subnormal numbers are multiples of 2^-24.
        0 => f32::from_bits(sign | (fraction as f32 * 2.0_f32.powi(-24)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;
