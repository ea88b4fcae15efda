use super::*;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = seed;
    let next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 40) as f32 / (1 << 24) as f32 * 4.0 - 2.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn numbers_survive_quantisation() {
    for block in numbers(320, 3).as_chunks::<BLOCK>().0 {
        let (quants, scale) = quantise_block(block);
        for (number, quant) in block.iter().zip(quants) {
            assert!(
                (number - f32::from(quant) * scale).abs() <= scale * 0.5001,
                "{number} is {quant} * {scale}"
            );
        }
        assert_eq!(quants.iter().map(|quant| quant.unsigned_abs()).max(), Some(127));
    }
    assert_eq!(quantise_block(&[0.0; BLOCK]), ([0; BLOCK], 0.0));
}

/// The instructions of this machine give what the portable code gives, for every number of vectors.
#[test]
fn vector_instructions_compute_the_same() {
    let columns = 96;
    let input = QuantisedRows::from_numbers(&numbers(columns * 7, 5), columns);
    let weights = numbers(columns, 7);
    let blocks: Vec<_> = weights.as_chunks::<BLOCK>().0.iter().map(quantise_block).collect();
    let (quants, scales): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    let packed: Vec<[u8; 16]> = (0..3_u8)
        .map(|block| std::array::from_fn(|at| block.wrapping_mul(71) ^ (at as u8).wrapping_mul(37)))
        .collect();
    let four_scales = [[0.5, -1.0], [0.25, 0.75], [1.5, 0.0]];
    for count in 1..=7 {
        let (mut eight, mut four) = (vec![0.0; count], vec![0.0; count]);
        multiply_eight_bits(&quants, &scales, &input, &mut eight);
        multiply_four_bits(&packed, &four_scales, &input, &mut four);
        for row in 0..count {
            let rows = [input.row(row)];
            let [expected] = BatchOfEight { quants: &quants, scales: &scales }.multiply_portable(rows);
            assert!((eight[row] - expected).abs() < 1e-3, "{} is not {expected}", eight[row]);
            let [expected] = BatchOfFour { quants: &packed, scales: &four_scales }.multiply_portable(rows);
            assert!((four[row] - expected).abs() < 1e-2, "{} is not {expected}", four[row]);
        }
    }
}

#[test]
fn products_of_extreme_weights_do_not_overflow() {
    let input = QuantisedRows::from_numbers(&[-3.0; BLOCK], BLOCK);
    let mut output = [0.0];
    multiply_eight_bits(&[[-127; BLOCK]], &[1.0], &input, &mut output);
    assert!((output[0] - 127.0 * 3.0 * 32.0).abs() < 1.0, "{output:?}");
    multiply_four_bits(&[[255; BLOCK / 2]], &[[1.0, 0.0]], &input, &mut output);
    assert!((output[0] + 15.0 * 3.0 * 32.0).abs() < 0.1, "{output:?}");
}

#[test]
fn the_exponential_is_exact_enough() {
    for at in -8700..=8800 {
        let number = at as f32 / 100.0;
        let (found, expected) = (exponential(number), number.exp());
        assert!((found / expected - 1.0).abs() < 2e-6, "e^{number} is {expected}, not {found}");
    }
    assert_eq!(product(&numbers(37, 1), &[0.0; 37]), 0.0);
    let ones = [1.0; 37];
    assert!((product(&ones, &ones) - 37.0).abs() < 1e-4);
}
