//! The BERT encoder: from token ids to one vector per token.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayViewMut1, Axis, Slice, concatenate};

use super::safetensors::SafetensorsFile;

/// The dimensions of a BERT network.
pub(super) struct BertDimensions {
    pub(super) hidden_size: usize,
    pub(super) attention_heads: usize,
    pub(super) layer_count: usize,
    pub(super) intermediate_size: usize,
    pub(super) max_positions: usize,
    pub(super) vocabulary_size: usize,
    pub(super) layer_norm_epsilon: f32,
}

/// The weights of a BERT encoder.
pub(super) struct BertNetwork {
    word_embeddings: Array2<f32>,
    /// Position embeddings plus the embedding of token type 0, the only type in use.
    position_embeddings: Array2<f32>,
    embedding_norm: LayerNorm,
    layers: Vec<EncoderLayer>,
    attention_heads: usize,
}

/// A transformer layer: self-attention and a feed-forward network, each with a residual and a layer norm.
struct EncoderLayer {
    /// Query, key and value projections, concatenated into one matrix product.
    query_key_value: LinearLayer,
    attention_output: LinearLayer,
    attention_norm: LayerNorm,
    intermediate: LinearLayer,
    output: LinearLayer,
    output_norm: LayerNorm,
}

struct LinearLayer {
    weights: Array2<f32>,
    bias: Array1<f32>,
}

struct LayerNorm {
    weights: Array1<f32>,
    bias: Array1<f32>,
    epsilon: f32,
}

impl BertNetwork {
    pub(super) fn load(tensors: &SafetensorsFile<'_>, shape: BertDimensions) -> Result<Self, String> {
        let BertDimensions { hidden_size: hidden, attention_heads: heads, intermediate_size: inner, .. } =
            shape;
        let norm = |name: &str| {
            Ok::<_, String>(LayerNorm {
                weights: tensors.load_vector(&format!("{name}.weight"), hidden)?,
                bias: tensors.load_vector(&format!("{name}.bias"), hidden)?,
                epsilon: shape.layer_norm_epsilon,
            })
        };
        let linear = |name: &str, rows: usize, columns: usize| {
            Ok::<_, String>(LinearLayer {
                weights: tensors.load_matrix(&format!("{name}.weight"), rows, columns)?,
                bias: tensors.load_vector(&format!("{name}.bias"), rows)?,
            })
        };
        let mut layers = Vec::new();
        for at in 0..shape.layer_count {
            let of = |part: &str| format!("encoder.layer.{at}.{part}");
            let three = ["query", "key", "value"]
                .map(|part| linear(&of(&format!("attention.self.{part}")), hidden, hidden));
            let [query, key, value] = three;
            let three = [query?, key?, value?];
            let joined = |error: ndarray::ShapeError| error.to_string();
            layers.push(EncoderLayer {
                query_key_value: LinearLayer {
                    weights: concatenate(Axis(0), &three.each_ref().map(|one| one.weights.view()))
                        .map_err(joined)?,
                    bias: concatenate(Axis(0), &three.each_ref().map(|one| one.bias.view()))
                        .map_err(joined)?,
                },
                attention_output: linear(&of("attention.output.dense"), hidden, hidden)?,
                attention_norm: norm(&of("attention.output.LayerNorm"))?,
                intermediate: linear(&of("intermediate.dense"), inner, hidden)?,
                output: linear(&of("output.dense"), hidden, inner)?,
                output_norm: norm(&of("output.LayerNorm"))?,
            });
        }
        let kinds = tensors.load_matrix("embeddings.token_type_embeddings.weight", 2, hidden)?;
        let positions =
            tensors.load_matrix("embeddings.position_embeddings.weight", shape.max_positions, hidden)?;
        Ok(Self {
            word_embeddings: tensors.load_matrix(
                "embeddings.word_embeddings.weight",
                shape.vocabulary_size,
                hidden,
            )?,
            position_embeddings: positions + kinds.row(0),
            embedding_norm: norm("embeddings.LayerNorm")?,
            layers,
            attention_heads: heads,
        })
    }

    pub(super) fn hidden_size(&self) -> usize {
        self.word_embeddings.ncols()
    }

    /// Returns one vector per token; tokens beyond the maximum number of positions are dropped.
    pub(super) fn run(&self, ids: &[u32]) -> Array2<f32> {
        let ids = &ids[..ids.len().min(self.position_embeddings.nrows())];
        let mut state = self.position_embeddings.slice_axis(Axis(0), Slice::from(..ids.len())).to_owned();
        for (mut row, id) in state.rows_mut().into_iter().zip(ids) {
            row += &self.word_embeddings.row(*id as usize);
        }
        self.embedding_norm.apply(&mut state);
        for layer in &self.layers {
            layer.apply(&mut state, self.attention_heads);
        }
        state
    }
}

impl EncoderLayer {
    fn apply(&self, state: &mut Array2<f32>, heads: usize) {
        let (count, hidden) = state.dim();
        let each = hidden / heads;
        let asked = self.query_key_value.forward(state);
        let mut context = Array2::zeros((count, hidden));
        let scale = 1.0 / (each as f32).sqrt();
        let mut shares = Array2::zeros((count, count));
        for head in 0..heads {
            let part = |of: usize| {
                let from = of * hidden + head * each;
                asked.slice_axis(Axis(1), Slice::from(from..from + each))
            };
            general_mat_mul(scale, &part(0), &part(1).t(), 0.0, &mut shares);
            shares.rows_mut().into_iter().for_each(softmax);
            let columns = Slice::from(head * each..(head + 1) * each);
            let mut into = context.slice_axis_mut(Axis(1), columns);
            general_mat_mul(1.0, &shares, &part(2), 0.0, &mut into);
        }
        self.attention_output.add_forward(&context, state);
        self.attention_norm.apply(state);
        let mut wide = self.intermediate.forward(state);
        wide.mapv_inplace(gelu);
        self.output.add_forward(&wide, state);
        self.output_norm.apply(state);
    }
}

impl LinearLayer {
    fn forward(&self, from: &Array2<f32>) -> Array2<f32> {
        from.dot(&self.weights.t()) + &self.bias
    }

    /// Adds the output to `sum`, for a residual connection.
    fn add_forward(&self, from: &Array2<f32>, sum: &mut Array2<f32>) {
        general_mat_mul(1.0, from, &self.weights.t(), 1.0, sum);
        *sum += &self.bias;
    }
}

impl LayerNorm {
    fn apply(&self, state: &mut Array2<f32>) {
        for mut row in state.rows_mut() {
            let count = row.len() as f32;
            let mean = row.sum() / count;
            let spread = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
            let scale = 1.0 / (spread + self.epsilon).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(&self.weights).zip(&self.bias) {
                *value = (*value - mean) * scale * weight + bias;
            }
        }
    }
}

fn softmax(mut row: ArrayViewMut1<'_, f32>) {
    let most = row.fold(f32::NEG_INFINITY, |most, value| most.max(*value));
    row.mapv_inplace(|value| exp_nonpositive(value - most));
    let sum = row.sum();
    row.mapv_inplace(|value| value / sum);
}

/// The GELU activation, with erf accurate to 1e-7 (Abramowitz and Stegun, 7.1.26).
fn gelu(value: f32) -> f32 {
    let x = value.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum =
        t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let erf = 1.0 - sum * exp_nonpositive(-x * x);
    0.5 * value * (1.0 + erf.copysign(value))
}

/// Returns the exponential of a number that is at most 0, without branches, so that the compiler vectorises it.
fn exp_nonpositive(value: f32) -> f32 {
    let times = (value * std::f32::consts::LOG2_E).max(-126.0);
    let whole = times.floor();
    // 2 to the power of the fraction, 0 to 1, by its Taylor series around 0.5; the error is below 2e-7.
    let x = (times - whole - 0.5) * std::f32::consts::LN_2;
    let part = 1.0
        + x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0))))));
    let power = f32::from_bits(((whole as i32 + 127) as u32) << 23);
    part * std::f32::consts::SQRT_2 * power
}

#[cfg(test)]
mod tests {
    #[test]
    fn exponentials_are_exact_enough() {
        for at in 0..=8700 {
            let value = at as f32 * -0.01;
            let (got, right) = (f64::from(super::exp_nonpositive(value)), f64::from(value).exp());
            assert!((got - right).abs() <= right * 4e-6 + 1e-37, "{value}: {got} {right}");
        }
        assert!(super::exp_nonpositive(-1e30) < 1e-37);
        // Values from a table of the normal distribution.
        for (value, right) in
            [(0.0, 0.0), (1.0, 0.841_344_8), (-1.0, -0.158_655_25), (2.5, 2.484_475_8), (-8.0, 0.0)]
        {
            assert!((super::gelu(value) - right).abs() < 1e-6, "{value}");
        }
    }
}
