//! The network: layers of attention and of plain products, from the ids of tokens to a vector for each.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayViewMut1, Axis, Slice, concatenate};

use super::tensors::Tensors;

/// How large its parts are.
pub(super) struct Shape {
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) layers: usize,
    pub(super) inner: usize,
    pub(super) positions: usize,
    pub(super) words: usize,
    pub(super) epsilon: f32,
}

pub(super) struct Network {
    words: Array2<f32>,
    /// The vectors of places, with that of the first kind of text, which is the only one here.
    positions: Array2<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    heads: usize,
}

struct Layer {
    /// Questions, keys and values in one product.
    asked: Linear,
    joined: Linear,
    after_attention: Norm,
    wide: Linear,
    narrow: Linear,
    after_all: Norm,
}

struct Linear {
    weights: Array2<f32>,
    bias: Array1<f32>,
}

struct Norm {
    weights: Array1<f32>,
    bias: Array1<f32>,
    epsilon: f32,
}

impl Network {
    pub(super) fn read(tensors: &Tensors<'_>, shape: Shape) -> Result<Self, String> {
        let Shape { hidden, heads, inner, .. } = shape;
        let norm = |name: &str| {
            Ok::<_, String>(Norm {
                weights: tensors.row(&format!("{name}.weight"), hidden)?,
                bias: tensors.row(&format!("{name}.bias"), hidden)?,
                epsilon: shape.epsilon,
            })
        };
        let linear = |name: &str, rows: usize, columns: usize| {
            Ok::<_, String>(Linear {
                weights: tensors.matrix(&format!("{name}.weight"), rows, columns)?,
                bias: tensors.row(&format!("{name}.bias"), rows)?,
            })
        };
        let mut layers = Vec::with_capacity(shape.layers);
        for at in 0..shape.layers {
            let of = |part: &str| format!("encoder.layer.{at}.{part}");
            let three = ["query", "key", "value"]
                .map(|part| linear(&of(&format!("attention.self.{part}")), hidden, hidden));
            let [query, key, value] = three;
            let three = [query?, key?, value?];
            let joined = |error: ndarray::ShapeError| error.to_string();
            layers.push(Layer {
                asked: Linear {
                    weights: concatenate(Axis(0), &three.each_ref().map(|one| one.weights.view()))
                        .map_err(joined)?,
                    bias: concatenate(Axis(0), &three.each_ref().map(|one| one.bias.view()))
                        .map_err(joined)?,
                },
                joined: linear(&of("attention.output.dense"), hidden, hidden)?,
                after_attention: norm(&of("attention.output.LayerNorm"))?,
                wide: linear(&of("intermediate.dense"), inner, hidden)?,
                narrow: linear(&of("output.dense"), hidden, inner)?,
                after_all: norm(&of("output.LayerNorm"))?,
            });
        }
        let kinds = tensors.matrix("embeddings.token_type_embeddings.weight", 2, hidden)?;
        let positions = tensors.matrix("embeddings.position_embeddings.weight", shape.positions, hidden)?;
        Ok(Self {
            words: tensors.matrix("embeddings.word_embeddings.weight", shape.words, hidden)?,
            positions: positions + kinds.row(0),
            norm: norm("embeddings.LayerNorm")?,
            layers,
            heads,
        })
    }

    pub(super) fn hidden(&self) -> usize {
        self.words.ncols()
    }

    /// A vector for each token. There are no more of them than positions.
    pub(super) fn run(&self, ids: &[u32]) -> Array2<f32> {
        let ids = &ids[..ids.len().min(self.positions.nrows())];
        let mut state = self.positions.slice_axis(Axis(0), Slice::from(..ids.len())).to_owned();
        for (mut row, id) in state.rows_mut().into_iter().zip(ids) {
            row += &self.words.row(*id as usize);
        }
        self.norm.apply(&mut state);
        for layer in &self.layers {
            layer.apply(&mut state, self.heads);
        }
        state
    }
}

impl Layer {
    fn apply(&self, state: &mut Array2<f32>, heads: usize) {
        let (count, hidden) = state.dim();
        let each = hidden / heads;
        let asked = self.asked.of(state);
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
        self.joined.add_to(&context, state);
        self.after_attention.apply(state);
        let mut wide = self.wide.of(state);
        wide.mapv_inplace(gelu);
        self.narrow.add_to(&wide, state);
        self.after_all.apply(state);
    }
}

impl Linear {
    fn of(&self, from: &Array2<f32>) -> Array2<f32> {
        from.dot(&self.weights.t()) + &self.bias
    }

    fn add_to(&self, from: &Array2<f32>, sum: &mut Array2<f32>) {
        general_mat_mul(1.0, from, &self.weights.t(), 1.0, sum);
        *sum += &self.bias;
    }
}

impl Norm {
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
    row.mapv_inplace(|value| exp(value - most));
    let sum = row.sum();
    row.mapv_inplace(|value| value / sum);
}

/// The activation, exact to within a ten-millionth (Abramowitz and Stegun, 7.1.26).
fn gelu(value: f32) -> f32 {
    let x = value.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum =
        t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let erf = 1.0 - sum * exp(-x * x);
    0.5 * value * (1.0 + erf.copysign(value))
}

/// The exponential of what is not above 0, without a branch, so that many are worked out at once.
fn exp(value: f32) -> f32 {
    let times = (value * std::f32::consts::LOG2_E).max(-126.0);
    let whole = times.floor();
    // 2 to the power of what is left, 0 to 1, by its series around a half; what it loses is below 2e-7.
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
            let (got, right) = (f64::from(super::exp(value)), f64::from(value).exp());
            assert!((got - right).abs() <= right * 4e-6 + 1e-37, "{value}: {got} {right}");
        }
        assert!(super::exp(-1e30) < 1e-37);
        // From a table of the normal distribution.
        for (value, right) in
            [(0.0, 0.0), (1.0, 0.841_344_8), (-1.0, -0.158_655_25), (2.5, 2.484_475_8), (-8.0, 0.0)]
        {
            assert!((super::gelu(value) - right).abs() < 1e-6, "{value}");
        }
    }
}
