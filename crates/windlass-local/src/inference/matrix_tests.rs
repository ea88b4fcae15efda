use super::*;

/// Blocks of every format, with numbers that the reference implementation in Python (package `gguf`, `quants.py`) gives:
/// some by their place, and the sum of all numbers, each times its place modulo 7 plus 1.
const REFERENCE_BLOCKS: &[(TensorFormat, &str, &[(usize, f64)], f64)] = &[
    (
        TensorFormat::Q4_0,
        "4c22a8e5b8abeeab14cef599cc052535d5ce",
        &[
            (0, 0.0),
            (1, -0.036895751953125),
            (15, 0.07379150390625),
            (16, 0.02459716796875),
            (17, 0.07379150390625),
            (31, 0.0491943359375),
        ],
        1.414337158203125,
    ),
    (
        TensorFormat::Q4_1,
        "4c2233b7c0ad06783f60ec83760457a17c472a49",
        &[
            (0, -0.449951171875),
            (1, -0.290069580078125),
            (15, -0.339263916015625),
            (16, -0.3023681640625),
            (17, -0.32696533203125),
            (31, -0.4007568359375),
        ],
        -44.98138427734375,
    ),
    (
        TensorFormat::Q5_0,
        "4c22ed10c2fa0a67ce0d8f02264785762462c4233992",
        &[
            (0, 0.12298583984375),
            (1, -0.110687255859375),
            (15, -0.17218017578125),
            (16, -0.19677734375),
            (17, 0.07379150390625),
            (31, 0.110687255859375),
        ],
        -3.73876953125,
    ),
    (
        TensorFormat::Q5_1,
        "4c2233b732b39168ce358d21b527970bb48a4200a5627b0c",
        &[
            (0, -0.27777099609375),
            (1, -0.191680908203125),
            (15, -0.1055908203125),
            (16, -0.1055908203125),
            (17, -0.413055419921875),
            (31, -0.449951171875),
        ],
        -35.277801513671875,
    ),
    (
        TensorFormat::Q8_0,
        "4c2290b818268101caff5536e4307fa901a76df710c04edc083cbdb5404808b9586f",
        &[
            (0, -1.37744140625),
            (1, -0.885498046875),
            (15, -1.094573974609375),
            (16, 1.340545654296875),
            (17, -0.110687255859375),
            (31, 1.365142822265625),
        ],
        11.1671142578125,
    ),
    (
        TensorFormat::Q2K,
        "bf8a6343304464f943287f2d2133cee5d95535cc78861fd80e7fa01dd0a174645397c6a0adc1367e7e3976aa6b833bad348bb5a93fc4900f8a8987f50f8c3b8efc8c4ce733da7d4597758c5cbdd130e14c2233b7",
        &[
            (0, 5.133941650390625),
            (1, 5.133941650390625),
            (15, 4.949462890625),
            (16, 3.96856689453125),
            (17, 3.96856689453125),
            (31, 3.72259521484375),
            (32, 2.77349853515625),
            (63, 1.910491943359375),
            (64, 1.349853515625),
            (100, 2.7489013671875),
            (127, 6.97064208984375),
            (128, 1.7998046875),
            (160, 3.334136962890625),
            (200, 0.89990234375),
            (255, 6.483795166015625),
        ],
        3028.157012939453,
    ),
    (
        TensorFormat::Q3K,
        "47d9d82f7c5b70102d58b85f48d7dead24924b1fbe1ebedebe4b4f57ff8b313a8509618b87183ce5346b49e2c23348df4abd744e5c8bbd04b85d34c7f36d1eb5cdc25ec5599f4e006d2fb109fa75dc800fadcc557469c96f94eb69eebb60083412b52987ef702f53e2eb824b4c22",
        &[
            (0, 0.02459716796875),
            (1, 0.02459716796875),
            (15, 0.07379150390625),
            (16, -0.51654052734375),
            (17, -0.774810791015625),
            (31, -0.774810791015625),
            (32, 0.110687255859375),
            (63, 0.282867431640625),
            (64, -0.0),
            (100, -0.41815185546875),
            (127, 0.07379150390625),
            (128, -0.036895751953125),
            (160, 0.36895751953125),
            (200, -0.7379150390625),
            (255, 0.5411376953125),
        ],
        6.0509033203125,
    ),
    (
        TensorFormat::Q4K,
        "4c2233b7c02064cee95b3927060103514ace681e82642726b083f0478aaed1b2bc0e5d9443c9d372a980672b694c87ccd6d3becc79ce4a3c08d2480f3868dd51f295602595e7c4cc0d400185b137cf812336624a8c72a281d467abf7e837773cbee99fc450a6b8030b815550f3c2e7ee6c1a0bdfd5adf8158373d1d7731f4dd81c1e0a749e6e2d5ea649fafaf93d76f3",
        &[
            (0, 18.447998046875),
            (1, 18.447998046875),
            (15, 18.447998046875),
            (16, 18.447998046875),
            (17, 18.447998046875),
            (31, 18.447998046875),
            (32, 13.722900390625),
            (63, 16.871337890625),
            (64, 28.3037109375),
            (100, 18.75335693359375),
            (127, 18.925537109375),
            (128, 23.59002685546875),
            (160, 7.22381591796875),
            (200, 0.701019287109375),
            (255, 11.289215087890625),
        ],
        15811.998291015625,
    ),
    (
        TensorFormat::Q5K,
        "4c2233b7973b5eade3bb40669983d035beaabaeffc58cf44af7c608e0f94b5ac4582793dec4eae5081cfcdbd8d848932eacda4aca344d0f1a21228af4cb86ca57931bd761cefc7f748b0cd380b91185b32a714a4869a9ea79b376a1b18d58a299f7a35b1d71638d795b5a8a29ff5f9eef71f636085ae6854a7066ccc12d1840a52a7ab3153bd6131891df563103e2a28296545ccddb8b7d879d56661526f8207401198b63352951b81f7cd9ce4f1cb2b",
        &[
            (0, 18.57696533203125),
            (1, 19.425567626953125),
            (15, 17.162628173828125),
            (16, 22.819976806640625),
            (17, 16.031158447265625),
            (31, 18.859832763671875),
            (32, 48.31561279296875),
            (63, 41.785064697265625),
            (64, 6.6412353515625),
            (100, 30.380615234375),
            (127, 24.84625244140625),
            (128, 37.244781494140625),
            (160, 19.141815185546875),
            (200, 14.819580078125),
            (255, 9.45916748046875),
        ],
        22349.59698486328,
    ),
    (
        TensorFormat::Q6K,
        "9e70e5f05b5573ad7b86defd8dafef9dd6d842b9c30440604b6310cf8c29ea1c83292227694d3a5cebf97fb6742f497c50e9fdd8be7c05f109bbb666e573886c6bcba18d7e7b3da594b5bf7a2a3c249a68c361f5d3cfe7bbdb1e395179cde26cf502ef662aa97f2680473c0053bdbecab236916b3aa90d5af1cba5a1f3de64903a9c59ef61a18d9d931176ecc10d26948632cd53bfd99c5205ff25fd05f7049602770b300e8dacd4eda4c0d2372aff0262284228b5033db1998bb4671f3b50579f25cf12211bb6307c70a8db204701d54c22",
        &[
            (0, -16.70147705078125),
            (1, 38.1748046875),
            (15, 22.666290283203125),
            (16, 2.73028564453125),
            (17, 3.640380859375),
            (31, 5.4605712890625),
            (32, -1.807891845703125),
            (63, -0.885498046875),
            (64, 10.146331787109375),
            (100, 9.1009521484375),
            (127, 3.5419921875),
            (128, 16.7752685546875),
            (160, 29.221435546875),
            (200, 3.5419921875),
            (255, 3.701873779296875),
        ],
        1551.1220092773438,
    ),
    (
        TensorFormat::F16,
        "003880c2ff030200ff7b0080003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c003c",
        &[(0, 0.5), (1, -3.25), (15, 1.0), (16, 1.0), (17, 1.0), (31, 1.0)],
        327615.0001834035,
    ),
    (
        TensorFormat::Bf16,
        "003f50c03c1e8261803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f803f",
        &[(0, 0.5), (1, -3.25), (15, 1.0), (16, 1.0), (17, 1.0), (31, 1.0)],
        1.1990383647911209e+21,
    ),
];

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).expect("a digit")).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
fn every_format_is_read_as_the_reference_reads_it() {
    for (format, hex, places, sum) in REFERENCE_BLOCKS {
        let numbers = format.dequantise(&bytes_of(hex));
        for (at, expected) in *places {
            let error = (f64::from(numbers[*at]) - expected).abs();
            assert!(error <= expected.abs() * 1e-5, "{format:?} {at}: {} is not {expected}", numbers[*at]);
        }
        let weighted =
            numbers.iter().enumerate().map(|(at, number)| f64::from(*number) * (at % 7 + 1) as f64);
        let (found, size): (f64, f64) = (weighted.clone().sum(), weighted.map(f64::abs).sum());
        assert!((found - sum).abs() <= size * 1e-6, "{format:?}: {found} is not {sum}");
    }
}

/// The formats of four and eight bits are kept without loss; the others lose at most half a step of eight bits.
#[test]
fn weights_are_kept_in_a_format_with_fast_kernels() {
    for (format, hex, ..) in REFERENCE_BLOCKS {
        let bytes = bytes_of(hex).repeat(2);
        let expected = format.dequantise(&bytes);
        let columns = expected.len() / 2;
        let matrix = WeightMatrix::from_bytes(*format, &bytes, 2, columns).expect("converted");
        let is_exact = matches!(
            format,
            TensorFormat::Q4_0 | TensorFormat::Q4_1 | TensorFormat::Q4K | TensorFormat::Q8_0
        );
        let is_four = matches!(matrix.blocks, WeightBlocks::FourBits { .. });
        assert_eq!(is_four, is_exact && *format != TensorFormat::Q8_0, "{format:?}");
        for row in 0..2 {
            let found = matrix.row(row);
            for (found, expected) in found.as_chunks::<BLOCK>().0.iter().zip(expected.as_chunks::<BLOCK>().0)
            {
                let largest = expected.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
                let allowed = if is_exact { largest * 1e-6 } else { largest / 127.0 * 0.501 };
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= allowed, "{format:?}: {found} is not {expected}");
                }
            }
        }
    }
}

#[test]
fn a_product_is_that_of_the_numbers() {
    let (format, hex, ..) = REFERENCE_BLOCKS[1];
    let matrix = WeightMatrix::from_bytes(format, &bytes_of(hex), 1, 32).expect("converted");
    let input: Vec<f32> = (0..64).map(|at| (at as f32 * 0.7).sin()).collect();
    let mut output = [0.0; 2];
    matrix.multiply_row(0, &QuantisedRows::from_numbers(&input, 32), &mut output);
    for (found, input) in output.iter().zip(input.chunks(32)) {
        let expected: f32 = matrix.row(0).iter().zip(input).map(|(one, other)| one * other).sum();
        assert!((found - expected).abs() < 0.02, "{found} is not {expected}");
    }
}

#[test]
fn what_cannot_be_run_is_named() {
    assert!(TensorFormat::from_kind(23).is_err_and(|error| error.contains("IQ4_XS")));
    assert!(TensorFormat::from_kind(39).is_err_and(|error| error.contains("MXFP4")));
    let odd = WeightMatrix::from_bytes(TensorFormat::F32, &[0; 80], 1, 20);
    assert!(odd.is_err_and(|error| error.contains("20 columns")));
    assert!(WeightMatrix::from_bytes(TensorFormat::Q8_0, &[0; 33], 1, 32).is_err());
}
