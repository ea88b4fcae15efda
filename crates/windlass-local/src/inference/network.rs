//! The decoder network of the families llama, qwen2 and qwen3, with a key-value cache that can be shortened.

use std::collections::BTreeSet;
use std::io::{Read, Seek};

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use crate::inference::gguf::GgufFile;
use crate::inference::kernel::{self, QuantisedRows};
use crate::inference::matrix::{TensorFormat, WeightMatrix};
use crate::inference::prefix::PrefixState;

/// Largest number that describes the shape of a network. The context of a network may have millions of tokens.
const MAX_SHAPE: usize = 1 << 24;

/// A failure of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// The caller no longer waits.
    Cancelled,
}

/// A decoder network with its weights.
pub(crate) struct DecoderNetwork {
    shape: NetworkShape,
    embeddings: WeightMatrix,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    /// The output matrix; absent if it is that of the embeddings.
    output: Option<WeightMatrix>,
    /// The angle of each pair of numbers at position 1.
    angles: Vec<f32>,
    /// `None` for one thread.
    workers: Option<rayon::ThreadPool>,
}

#[derive(Clone, Debug)]
struct NetworkShape {
    width: usize,
    heads: usize,
    key_heads: usize,
    head_width: usize,
    norm_epsilon: f32,
    rotation: RotationOrder,
    context_length: usize,
}

/// The order of the two numbers that a rotation joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotationOrder {
    /// Neighbours: 0 and 1, 2 and 3.
    Neighbours,
    /// Halves: 0 and n/2, 1 and n/2 + 1.
    Halves,
}

struct Layer {
    attention_norm: Vec<f32>,
    query: Projection,
    key: Projection,
    value: Projection,
    attention_output: Projection,
    query_norm: Option<Vec<f32>>,
    key_norm: Option<Vec<f32>>,
    feed_norm: Vec<f32>,
    gate: Projection,
    up: Projection,
    down: Projection,
}

struct Projection {
    weights: WeightMatrix,
    bias: Option<Vec<f32>>,
}

/// The keys and values of the tokens that were read.
#[derive(Clone, Default)]
pub(crate) struct KeyValueCache {
    token_count: usize,
    head_width: usize,
    /// Keys and values of each head of each layer.
    heads: Vec<(Vec<f32>, Vec<f32>)>,
}

impl PrefixState for KeyValueCache {
    fn truncate(&mut self, token_count: usize) {
        self.token_count = self.token_count.min(token_count);
        let length = self.token_count * self.head_width;
        for (keys, values) in &mut self.heads {
            keys.truncate(length);
            values.truncate(length);
        }
    }

    fn copy_prefix(&self, token_count: usize) -> Self {
        let token_count = self.token_count.min(token_count);
        let length = token_count * self.head_width;
        let heads =
            self.heads.iter().map(|(keys, values)| (keys[..length].to_vec(), values[..length].to_vec()));
        Self { token_count, head_width: self.head_width, heads: heads.collect() }
    }
}

/// Reader of the tensors of a network. It records which were read.
struct TensorReader<'a, R> {
    file: &'a mut GgufFile<R>,
    unread: BTreeSet<String>,
}

impl<R: Read + Seek> TensorReader<'_, R> {
    fn optional_matrix(&mut self, name: &str, columns: usize) -> Result<Option<WeightMatrix>, String> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        let [found, rows] = info.dimensions[..] else {
            return Err(format!("its tensor `{name}` is no matrix"));
        };
        if found != columns {
            return Err(format!("its tensor `{name}` has {found} columns instead of {columns}"));
        }
        let format = TensorFormat::from_kind(info.kind)?;
        let bytes = self.file.tensor_bytes(name, format.byte_length(rows, columns)?)?;
        self.unread.remove(name);
        WeightMatrix::from_bytes(format, &bytes, rows, columns).map(Some)
    }

    fn matrix(&mut self, name: &str, rows: Option<usize>, columns: usize) -> Result<WeightMatrix, String> {
        let matrix = self.optional_matrix(name, columns)?;
        let matrix = matrix.ok_or_else(|| format!("the file has no tensor `{name}`"))?;
        match rows {
            Some(rows) if rows != matrix.rows => {
                Err(format!("its tensor `{name}` has {} rows instead of {rows}", matrix.rows))
            }
            _ => Ok(matrix),
        }
    }

    fn optional_vector(&mut self, name: &str, length: usize) -> Result<Option<Vec<f32>>, String> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        if info.dimensions[..] != [length] {
            return Err(format!("its tensor `{name}` is no vector of {length} numbers"));
        }
        let format = TensorFormat::from_kind(info.kind)?;
        let bytes = self.file.tensor_bytes(name, format.byte_length(1, length)?)?;
        self.unread.remove(name);
        Ok(Some(format.dequantise(&bytes)))
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, String> {
        self.optional_vector(name, length)?.ok_or_else(|| format!("the file has no tensor `{name}`"))
    }

    fn projection(&mut self, name: &str, rows: usize, columns: usize) -> Result<Projection, String> {
        let weights = self.matrix(&format!("{name}.weight"), Some(rows), columns)?;
        let bias = self.optional_vector(&format!("{name}.bias"), rows)?;
        Ok(Projection { weights, bias })
    }
}

impl DecoderNetwork {
    /// Loads the network of a file. A file with a part that this network does not have is refused.
    pub(crate) fn load<R: Read + Seek>(file: &mut GgufFile<R>, threads: usize) -> Result<Self, String> {
        let family = file.text("general.architecture").unwrap_or_default().to_owned();
        let rotation = match family.as_str() {
            "llama" => RotationOrder::Neighbours,
            "qwen2" | "qwen3" => RotationOrder::Halves,
            other => return Err(format!("its network is `{other}`; llama, qwen2 and qwen3 can be run")),
        };
        let number = |name: &str| {
            let full = format!("{family}.{name}");
            let value = file.integer(&full).filter(|value| *value > 0);
            match value.ok_or_else(|| format!("the file has no `{full}`"))? {
                // No network is so large. Products of two such numbers do not overflow.
                value if value > MAX_SHAPE => Err(format!("its `{full}` is {value}, which no network has")),
                value => Ok(value),
            }
        };
        if file.integer(&format!("{family}.expert_count")).is_some_and(|count| count > 0) {
            return Err("its network is a mixture of experts, which cannot be run".to_owned());
        }
        let (width, heads) = (number("embedding_length")?, number("attention.head_count")?);
        let has = |name: &str| file.value(&format!("{family}.{name}")).is_some();
        let optional = |name: &str, absent: usize| if has(name) { number(name) } else { Ok(absent) };
        let key_heads = optional("attention.head_count_kv", heads)?;
        let head_width = optional("attention.key_length", width / heads)?;
        let norm_epsilon = file.float(&format!("{family}.attention.layer_norm_rms_epsilon"));
        let shape = NetworkShape {
            width,
            heads,
            key_heads,
            head_width,
            norm_epsilon: norm_epsilon.ok_or("the file has no epsilon of its norms")?,
            rotation,
            context_length: number("context_length")?,
        };
        if !heads.is_multiple_of(key_heads) || !head_width.is_multiple_of(2) || head_width == 0 {
            return Err(format!("its {heads} heads do not fit {key_heads} key heads of width {head_width}"));
        }
        if number("attention.value_length").is_ok_and(|length| length != head_width) {
            return Err("its values have another width than its keys".to_owned());
        }
        let (layer_count, feed_width) = (number("block_count")?, number("feed_forward_length")?);
        if number("rope.dimension_count").is_ok_and(|count| count != head_width) {
            return Err("it rotates only a part of each head".to_owned());
        }
        let mut angles = rotation_angles(file, &family, head_width)?;
        let unread = file.tensor_names().map(str::to_owned).collect();
        let mut tensors = TensorReader { file, unread };
        if let Some(factors) = tensors.optional_vector("rope_freqs.weight", head_width / 2)? {
            angles.iter_mut().zip(factors).for_each(|(angle, factor)| *angle /= factor);
        }
        let embeddings = tensors.matrix("token_embd.weight", None, width)?;
        let output = tensors.optional_matrix("output.weight", width)?;
        if let Some(rows) = output.as_ref().map(|output| output.rows)
            && rows != embeddings.rows
        {
            return Err(format!("its output has {rows} tokens instead of {}", embeddings.rows));
        }
        let final_norm = tensors.vector("output_norm.weight", width)?;
        let (query_width, key_width) = (heads * head_width, key_heads * head_width);
        let mut layers = Vec::new();
        for number in 0..layer_count {
            let name = |part: &str| format!("blk.{number}.{part}");
            layers.push(Layer {
                attention_norm: tensors.vector(&name("attn_norm.weight"), width)?,
                query: tensors.projection(&name("attn_q"), query_width, width)?,
                key: tensors.projection(&name("attn_k"), key_width, width)?,
                value: tensors.projection(&name("attn_v"), key_width, width)?,
                attention_output: tensors.projection(&name("attn_output"), width, query_width)?,
                query_norm: tensors.optional_vector(&name("attn_q_norm.weight"), head_width)?,
                key_norm: tensors.optional_vector(&name("attn_k_norm.weight"), head_width)?,
                feed_norm: tensors.vector(&name("ffn_norm.weight"), width)?,
                gate: tensors.projection(&name("ffn_gate"), feed_width, width)?,
                up: tensors.projection(&name("ffn_up"), feed_width, width)?,
                down: tensors.projection(&name("ffn_down"), width, feed_width)?,
            });
        }
        if let Some(name) = tensors.unread.first() {
            return Err(format!("its tensor `{name}` is of a network that cannot be run"));
        }
        let workers = match threads {
            0 | 1 => None,
            threads => {
                let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
                let named = builder.thread_name(|number| format!("windlass-local-{number}"));
                Some(named.build().map_err(|error| format!("its threads cannot be started: {error}"))?)
            }
        };
        Ok(Self { shape, embeddings, layers, final_norm, output, angles, workers })
    }

    /// Returns the number of tokens that the network was trained to read.
    pub(crate) fn context_length(&self) -> usize {
        self.shape.context_length
    }

    /// Returns the number of tokens in its vocabulary.
    pub(crate) fn vocabulary_size(&self) -> usize {
        self.embeddings.rows
    }

    /// Returns an empty cache.
    pub(crate) fn empty_cache(&self) -> KeyValueCache {
        KeyValueCache {
            token_count: 0,
            head_width: self.shape.head_width,
            heads: vec![Default::default(); self.layers.len() * self.shape.key_heads],
        }
    }

    /// Reads tokens after those of the cache, and returns the logits of the next token. `is_cancelled` is asked before
    /// every layer; if it is true, the cache is as before.
    pub(crate) fn forward(
        &self,
        cache: &mut KeyValueCache,
        tokens: &[u32],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<f32>, ForwardError> {
        let known = cache.token_count;
        let result = match &self.workers {
            Some(workers) => workers.install(|| self.forward_here(cache, tokens, is_cancelled)),
            None => self.forward_here(cache, tokens, is_cancelled),
        };
        match result {
            Ok(_) => cache.token_count = known + tokens.len(),
            Err(_) => cache.truncate(known),
        }
        result
    }

    fn forward_here(
        &self,
        cache: &mut KeyValueCache,
        tokens: &[u32],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<f32>, ForwardError> {
        let shape = &self.shape;
        let mut state: Vec<f32> = Vec::with_capacity(tokens.len() * shape.width);
        for token in tokens {
            state.extend(self.embeddings.row(*token as usize % self.embeddings.rows));
        }
        let rotations = self.rotations(cache.token_count, tokens.len());
        for (layer, heads) in self.layers.iter().zip(cache.heads.chunks_mut(shape.key_heads)) {
            if is_cancelled() {
                return Err(ForwardError::Cancelled);
            }
            let normed = self.quantised_norm(&state, &layer.attention_norm);
            let mut queries = self.project(&layer.query, &normed);
            let mut keys = self.project(&layer.key, &normed);
            let values = self.project(&layer.value, &normed);
            for (numbers, norm) in [(&mut queries, &layer.query_norm), (&mut keys, &layer.key_norm)] {
                if let Some(norm) = norm {
                    for head in numbers.chunks_mut(shape.head_width) {
                        normalise(head, norm, shape.norm_epsilon);
                    }
                }
            }
            self.rotate(&mut queries, shape.heads, &rotations);
            self.rotate(&mut keys, shape.key_heads, &rotations);
            for (number, (all_keys, all_values)) in heads.iter_mut().enumerate() {
                let row = shape.key_heads * shape.head_width;
                let start = number * shape.head_width;
                for (keys, values) in keys.chunks(row).zip(values.chunks(row)) {
                    all_keys.extend_from_slice(&keys[start..start + shape.head_width]);
                    all_values.extend_from_slice(&values[start..start + shape.head_width]);
                }
            }
            let attended = self.attend(&queries, heads, tokens.len());
            let attended = QuantisedRows::from_numbers(&attended, shape.heads * shape.head_width);
            add(&mut state, &self.project(&layer.attention_output, &attended));
            let normed = self.quantised_norm(&state, &layer.feed_norm);
            let mut gate = self.project(&layer.gate, &normed);
            let up = self.project(&layer.up, &normed);
            kernel::vectorised(|| {
                for (gate, up) in gate.iter_mut().zip(&up) {
                    *gate = *gate / (1.0 + kernel::exponential(-*gate)) * up;
                }
            });
            let fed = QuantisedRows::from_numbers(&gate, layer.down.weights.columns);
            add(&mut state, &self.project(&layer.down, &fed));
        }
        let mut last = state.split_off(state.len() - shape.width);
        normalise(&mut last, &self.final_norm, shape.norm_epsilon);
        let last = QuantisedRows::from_numbers(&last, shape.width);
        Ok(self.multiply(self.output.as_ref().unwrap_or(&self.embeddings), &last))
    }

    fn quantised_norm(&self, state: &[f32], norm: &[f32]) -> QuantisedRows {
        let mut numbers = state.to_vec();
        for row in numbers.chunks_mut(self.shape.width) {
            normalise(row, norm, self.shape.norm_epsilon);
        }
        QuantisedRows::from_numbers(&numbers, self.shape.width)
    }

    fn project(&self, projection: &Projection, input: &QuantisedRows) -> Vec<f32> {
        let mut output = self.multiply(&projection.weights, input);
        if let Some(bias) = &projection.bias {
            output.chunks_mut(bias.len()).for_each(|row| add(row, bias));
        }
        output
    }

    /// Multiplies a matrix with every vector, and returns the products vector by vector.
    fn multiply(&self, matrix: &WeightMatrix, input: &QuantisedRows) -> Vec<f32> {
        let count = input.len();
        let mut by_weight = vec![0.0; matrix.rows * count];
        let fill = |first: usize, part: &mut [f32]| {
            for (at, output) in part.chunks_mut(count).enumerate() {
                matrix.multiply_row(first + at, input, output);
            }
        };
        match &self.workers {
            None => fill(0, &mut by_weight),
            Some(workers) => {
                let rows = matrix.rows.div_ceil(workers.current_num_threads() * 4).max(8);
                let parts = by_weight.par_chunks_mut(rows * count);
                rayon::iter::IndexedParallelIterator::enumerate(parts)
                    .for_each(|(number, part)| fill(number * rows, part));
            }
        }
        if count == 1 {
            return by_weight;
        }
        let mut by_vector = vec![0.0; by_weight.len()];
        for (at, products) in by_weight.chunks(count).enumerate() {
            for (vector, product) in products.iter().enumerate() {
                by_vector[vector * matrix.rows + at] = *product;
            }
        }
        by_vector
    }

    /// Returns cosine and sine of every pair of numbers at every position.
    fn rotations(&self, first: usize, count: usize) -> Vec<Vec<(f32, f32)>> {
        let at = |position: usize| {
            let turns = self.angles.iter().map(|angle| (position as f32 * angle).sin_cos());
            turns.map(|(sine, cosine)| (cosine, sine)).collect()
        };
        (first..first + count).map(at).collect()
    }

    fn rotate(&self, numbers: &mut [f32], heads: usize, rotations: &[Vec<(f32, f32)>]) {
        let width = self.shape.head_width;
        for (row, turns) in numbers.chunks_mut(heads * width).zip(rotations) {
            for head in row.chunks_mut(width) {
                for (at, (cosine, sine)) in turns.iter().enumerate() {
                    let (one, other) = match self.shape.rotation {
                        RotationOrder::Neighbours => (2 * at, 2 * at + 1),
                        RotationOrder::Halves => (at, at + width / 2),
                    };
                    let (x, y) = (head[one], head[other]);
                    head[one] = x * cosine - y * sine;
                    head[other] = x * sine + y * cosine;
                }
            }
        }
    }

    /// Computes the attention of every query to the tokens up to its own.
    fn attend(&self, queries: &[f32], heads: &[(Vec<f32>, Vec<f32>)], count: usize) -> Vec<f32> {
        let NetworkShape { heads: head_count, key_heads, head_width: width, .. } = self.shape;
        let row = head_count * width;
        let attend_head = |head: usize| {
            let (keys, values) = &heads[head / (head_count / key_heads)];
            kernel::vectorised(|| attend_head(&queries[head * width..], row, keys, values, width, count))
        };
        let by_head: Vec<Vec<f32>> = match &self.workers {
            Some(_) => (0..head_count).into_par_iter().map(attend_head).collect(),
            None => (0..head_count).map(attend_head).collect(),
        };
        let mut output = vec![0.0; count * row];
        for (head, numbers) in by_head.iter().enumerate() {
            for (output, numbers) in output.chunks_mut(row).zip(numbers.chunks(width)) {
                output[head * width..][..width].copy_from_slice(numbers);
            }
        }
        output
    }
}

/// Computes the attention of one head. The queries are `row` numbers apart.
#[inline(always)]
fn attend_head(
    queries: &[f32],
    row: usize,
    keys: &[f32],
    values: &[f32],
    width: usize,
    count: usize,
) -> Vec<f32> {
    let total = keys.len() / width;
    let scale = 1.0 / (width as f32).sqrt();
    let mut output = vec![0.0; count * width];
    let mut scores = vec![0.0; total];
    for (at, output) in output.chunks_mut(width).enumerate() {
        let query = &queries[at * row..][..width];
        let seen = total - count + at + 1;
        let scores = &mut scores[..seen];
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(width)) {
            *score = kernel::product(query, key) * scale;
        }
        let largest = scores.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
        let mut sum = 0.0;
        for score in scores.iter_mut() {
            *score = kernel::exponential(*score - largest);
            sum += *score;
        }
        for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
            kernel::add_scaled(output, value, score / sum);
        }
    }
    output
}

/// Returns the angle of each pair of numbers at position 1.
fn rotation_angles<R: Read + Seek>(
    file: &GgufFile<R>,
    family: &str,
    head_width: usize,
) -> Result<Vec<f32>, String> {
    let base = file.float(&format!("{family}.rope.freq_base")).unwrap_or(10_000.0);
    let kind = file.text(&format!("{family}.rope.scaling.type")).unwrap_or("linear");
    let factor = file.float(&format!("{family}.rope.scaling.factor")).filter(|factor| *factor > 0.0);
    let scale = match kind {
        "none" => 1.0,
        "linear" => 1.0 / factor.unwrap_or(1.0),
        other => return Err(format!("its positions are scaled by `{other}`; linear scaling can be run")),
    };
    let pair = |at: usize| scale / f64::from(base).powf(2.0 * at as f64 / head_width as f64) as f32;
    Ok((0..head_width / 2).map(pair).collect())
}

fn normalise(numbers: &mut [f32], norm: &[f32], epsilon: f32) {
    let mean = kernel::product(numbers, numbers) / numbers.len() as f32;
    let factor = 1.0 / (mean + epsilon).sqrt();
    for (number, norm) in numbers.iter_mut().zip(norm) {
        *number *= factor * norm;
    }
}

fn add(numbers: &mut [f32], others: &[f32]) {
    kernel::add_scaled(numbers, others, 1.0);
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
