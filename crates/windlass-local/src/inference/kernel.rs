//! Products of quantised vectors. On x86-64 with AVX2 they use its instructions; elsewhere the compiler vectorises
//! the portable code.

use crate::inference::matrix::BLOCK;

/// Vectors that are quantised to eight bits, in blocks.
pub(crate) struct QuantisedRows {
    /// Number of blocks in a row.
    row_blocks: usize,
    quants: Vec<[i8; BLOCK]>,
    /// The scale of each block, and the sum of its numbers.
    scales: Vec<[f32; 2]>,
}

impl QuantisedRows {
    /// Quantises vectors of the same length, which is a multiple of the block's.
    pub(crate) fn from_numbers(numbers: &[f32], columns: usize) -> Self {
        let (blocks, _) = numbers.as_chunks::<BLOCK>();
        let (mut quants, mut scales) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
        for block in blocks {
            let (block, scale) = quantise_block(block);
            let sum: i32 = block.iter().map(|quant| i32::from(*quant)).sum();
            quants.push(block);
            scales.push([scale, sum as f32 * scale]);
        }
        Self { row_blocks: columns / BLOCK, quants, scales }
    }

    /// Returns the number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.quants.len() / self.row_blocks.max(1)
    }

    fn row(&self, row: usize) -> InputRow<'_> {
        let range = row * self.row_blocks..(row + 1) * self.row_blocks;
        InputRow { quants: &self.quants[range.clone()], scales: &self.scales[range] }
    }
}

#[derive(Clone, Copy)]
struct InputRow<'a> {
    quants: &'a [[i8; BLOCK]],
    scales: &'a [[f32; 2]],
}

/// Quantises numbers to eight bits with one scale.
pub(crate) fn quantise_block(numbers: &[f32; BLOCK]) -> ([i8; BLOCK], f32) {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let scale = largest / 127.0;
    let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (numbers.map(|number| round_to_integer(number * factor) as i8), scale)
}

/// Rounds a small number to the nearest integer, in a form that compilers vectorise.
#[inline(always)]
fn round_to_integer(number: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (number + SHIFT).to_bits().cast_signed().wrapping_sub(SHIFT.to_bits().cast_signed())
}

/// Number of vectors that are multiplied at once with a row of weights.
const BATCH: usize = 4;

/// Writes the products of a row of weights with every vector of `input` to `output`.
pub(crate) fn multiply_eight_bits(
    quants: &[[i8; BLOCK]],
    scales: &[f32],
    input: &QuantisedRows,
    output: &mut [f32],
) {
    in_batches(input, output, BatchOfEight { quants, scales });
}

/// As [`multiply_eight_bits`], for weights of four bits.
pub(crate) fn multiply_four_bits(
    quants: &[[u8; BLOCK / 2]],
    scales: &[[f32; 2]],
    input: &QuantisedRows,
    output: &mut [f32],
) {
    in_batches(input, output, BatchOfFour { quants, scales });
}

fn in_batches(input: &QuantisedRows, output: &mut [f32], weights: impl RowOfWeights) {
    let (batches, rest) = output.as_chunks_mut::<BATCH>();
    let whole = batches.len() * BATCH;
    for (batch, output) in batches.iter_mut().enumerate() {
        *output = weights.multiply(std::array::from_fn(|at| input.row(batch * BATCH + at)));
    }
    for (at, output) in rest.iter_mut().enumerate() {
        [*output] = weights.multiply([input.row(whole + at)]);
    }
}

trait RowOfWeights: Copy {
    fn multiply<const N: usize>(self, input: [InputRow<'_>; N]) -> [f32; N];
}

#[derive(Clone, Copy)]
struct BatchOfEight<'a> {
    quants: &'a [[i8; BLOCK]],
    scales: &'a [f32],
}

impl RowOfWeights for BatchOfEight<'_> {
    fn multiply<const N: usize>(self, input: [InputRow<'_>; N]) -> [f32; N] {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(avx2::EightBits { simd, quants: self.quants, scales: self.scales, input });
        }
        self.multiply_portable(input)
    }
}

impl BatchOfEight<'_> {
    fn multiply_portable<const N: usize>(self, input: [InputRow<'_>; N]) -> [f32; N] {
        input.map(|row| {
            let blocks = self.quants.iter().zip(self.scales).zip(row.quants.iter().zip(row.scales));
            let products = blocks.map(|((weights, scale), (numbers, [input_scale, _]))| {
                let pairs = weights.iter().zip(numbers);
                let product: i32 = pairs.map(|(one, other)| i32::from(*one) * i32::from(*other)).sum();
                product as f32 * (scale * input_scale)
            });
            products.sum()
        })
    }
}

#[derive(Clone, Copy)]
struct BatchOfFour<'a> {
    quants: &'a [[u8; BLOCK / 2]],
    scales: &'a [[f32; 2]],
}

impl RowOfWeights for BatchOfFour<'_> {
    fn multiply<const N: usize>(self, input: [InputRow<'_>; N]) -> [f32; N] {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            return simd.vectorize(avx2::FourBits { simd, quants: self.quants, scales: self.scales, input });
        }
        self.multiply_portable(input)
    }
}

impl BatchOfFour<'_> {
    fn multiply_portable<const N: usize>(self, input: [InputRow<'_>; N]) -> [f32; N] {
        input.map(|row| {
            let blocks = self.quants.iter().zip(self.scales).zip(row.quants.iter().zip(row.scales));
            let products = blocks.map(|((weights, [scale, offset]), (numbers, [input_scale, sum]))| {
                let (low, high) = numbers.split_at(BLOCK / 2);
                let triples = weights.iter().zip(low.iter().zip(high));
                let product: i32 = triples
                    .map(|(byte, (low, high))| {
                        i32::from(byte & 15) * i32::from(*low) + i32::from(byte >> 4) * i32::from(*high)
                    })
                    .sum();
                product as f32 * (scale * input_scale) + offset * sum
            });
            products.sum()
        })
    }
}

/// Adds `factor * other` to `numbers`.
#[inline(always)]
pub(crate) fn add_scaled(numbers: &mut [f32], other: &[f32], factor: f32) {
    for (number, other) in numbers.iter_mut().zip(other) {
        *number += factor * other;
    }
}

/// Returns the product of two vectors of numbers.
#[inline(always)]
pub(crate) fn product(one: &[f32], other: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    let (chunks, rest) = one.as_chunks::<LANES>();
    let (other_chunks, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in chunks.iter().zip(other_chunks) {
        for lane in 0..LANES {
            sums[lane] += one[lane] * other[lane];
        }
    }
    let tail: f32 = rest.iter().zip(other_rest).map(|(one, other)| one * other).sum();
    sums.iter().sum::<f32>() + tail
}

/// Returns `e` to the power of a number, in a form that compilers vectorise. The relative error is below 1e-6.
#[inline(always)]
pub(crate) fn exponential(number: f32) -> f32 {
    let number = number.clamp(-87.0, 88.0);
    let whole = round_to_integer(number * std::f32::consts::LOG2_E);
    let rest = number - whole as f32 * 0.693_359_4 + whole as f32 * 2.121_944_4e-4;
    let mut sum = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        sum = sum * rest + coefficient;
    }
    (sum * rest * rest + rest + 1.0) * f32::from_bits(((whole + 127) << 23).cast_unsigned())
}

/// Runs a function that is compiled with the vector instructions of this machine.
pub(crate) fn vectorised<R>(function: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Call<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(Call(function));
    }
    function()
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{__m128i, __m256, __m256i};

    use pulp::x86::V3;

    use super::{BLOCK, InputRow};

    pub(super) struct EightBits<'a, const N: usize> {
        pub(super) simd: V3,
        pub(super) quants: &'a [[i8; BLOCK]],
        pub(super) scales: &'a [f32],
        pub(super) input: [InputRow<'a>; N],
    }

    impl<const N: usize> pulp::NullaryFnOnce for EightBits<'_, N> {
        type Output = [f32; N];

        #[inline(always)]
        fn call(self) -> [f32; N] {
            let Self { simd, quants, scales, input } = self;
            let ones = simd.avx._mm256_set1_epi16(1);
            let mut sums = [simd.avx._mm256_setzero_ps(); N];
            let (scales, input) = (&scales[..quants.len()], input.map(|row| row.cut(quants.len())));
            for (at, weights) in quants.iter().enumerate() {
                let weights: __m256i = pulp::cast(*weights);
                // The instruction multiplies unsigned with signed bytes, so the sign moves to the other factor.
                let magnitudes = simd.avx2._mm256_sign_epi8(weights, weights);
                for (sum, row) in sums.iter_mut().zip(&input) {
                    let numbers = simd.avx2._mm256_sign_epi8(pulp::cast(row.quants[at]), weights);
                    let pairs = simd.avx2._mm256_maddubs_epi16(magnitudes, numbers);
                    let products = simd.avx._mm256_cvtepi32_ps(simd.avx2._mm256_madd_epi16(pairs, ones));
                    let scale = simd.avx._mm256_set1_ps(scales[at] * row.scales[at][0]);
                    *sum = simd.fma._mm256_fmadd_ps(products, scale, *sum);
                }
            }
            sums.map(add_lanes)
        }
    }

    pub(super) struct FourBits<'a, const N: usize> {
        pub(super) simd: V3,
        pub(super) quants: &'a [[u8; BLOCK / 2]],
        pub(super) scales: &'a [[f32; 2]],
        pub(super) input: [InputRow<'a>; N],
    }

    impl<const N: usize> pulp::NullaryFnOnce for FourBits<'_, N> {
        type Output = [f32; N];

        #[inline(always)]
        fn call(self) -> [f32; N] {
            let Self { simd, quants, scales, input } = self;
            let ones = simd.avx._mm256_set1_epi16(1);
            let low_bits = simd.avx._mm256_set1_epi8(15);
            let mut sums = [simd.avx._mm256_setzero_ps(); N];
            let mut offsets = [0.0; N];
            let (scales, input) = (&scales[..quants.len()], input.map(|row| row.cut(quants.len())));
            for (at, packed) in quants.iter().enumerate() {
                let packed: __m128i = pulp::cast(*packed);
                let high = simd.sse2._mm_srli_epi16::<4>(packed);
                let weights = simd.avx2._mm256_and_si256(simd.avx._mm256_set_m128i(high, packed), low_bits);
                for ((sum, offset), row) in sums.iter_mut().zip(&mut offsets).zip(&input) {
                    let pairs = simd.avx2._mm256_maddubs_epi16(weights, pulp::cast(row.quants[at]));
                    let products = simd.avx._mm256_cvtepi32_ps(simd.avx2._mm256_madd_epi16(pairs, ones));
                    let scale = simd.avx._mm256_set1_ps(scales[at][0] * row.scales[at][0]);
                    *sum = simd.fma._mm256_fmadd_ps(products, scale, *sum);
                    *offset += scales[at][1] * row.scales[at][1];
                }
            }
            let mut offsets = offsets.into_iter();
            sums.map(|sum| add_lanes(sum) + offsets.next().unwrap_or_default())
        }
    }

    impl<'a> InputRow<'a> {
        /// Returns the first blocks. The compiler then knows the length and checks no index in the loop.
        #[inline(always)]
        fn cut(self, length: usize) -> Self {
            Self { quants: &self.quants[..length], scales: &self.scales[..length] }
        }
    }

    #[inline(always)]
    fn add_lanes(sum: __m256) -> f32 {
        let lanes: [f32; 8] = pulp::cast(sum);
        lanes.iter().sum()
    }
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
