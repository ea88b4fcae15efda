//! A sentence model on this machine: a folder with a BERT network, such as all-MiniLM-L6-v2. Nothing is asked of
//! anybody, and no library of the system is needed.

mod network;
mod tensors;
mod tokens;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{EmbedError, Embedder, Purpose};
use network::{Network, Shape};
use tensors::Tensors;
use tokens::WordPieces;

/// The model that is fetched by name: the weights that `sentence-transformers/all-MiniLM-L6-v2` publishes.
const MINILM: &str = "all-minilm-l6-v2";
/// How many tokens are read at once where the folder does not say.
const WINDOW: usize = 256;
/// A text is read in at most this many windows; what comes after them has no say.
const MOST_WINDOWS: usize = 16;

/// A sentence model in the process. Far slower than the table of words, and far better. Texts in a script that its
/// vocabulary was not made for have no vector, and words alone decide.
///
/// It reads folders in the layout of `sentence-transformers` whose network is a BERT: `config.json`, `vocab.txt`,
/// `model.safetensors`, and where they are there `sentence_bert_config.json` and `1_Pooling/config.json`.
///
/// ```no_run
/// use windlass_search::{Index, SentenceModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = Index::options().embedder(SentenceModel::minilm(&mut |_, _| {})?).open("notes.index")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SentenceModel {
    name: String,
    prefixes: [String; 2],
    inner: Arc<Inner>,
}

struct Inner {
    network: Network,
    pieces: WordPieces,
    pooling: Pooling,
    window: usize,
}

/// How the vectors of tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean,
    /// The vector of the token that begins the text.
    First,
}

impl SentenceModel {
    /// all-MiniLM-L6-v2 (91 MB, English), fetched once and checked against its digest. `progress` is told how many
    /// bytes are there, and of how many.
    pub fn minilm(progress: &mut dyn FnMut(u64, u64)) -> Result<Self, EmbedError> {
        let weights = windlass_local::Weights::find(MINILM, progress)
            .map_err(|error| EmbedError::new(MINILM, error))?;
        let folder = weights.path().parent().unwrap_or_else(|| Path::new("."));
        Self::open(folder)
    }

    /// The model in a folder.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, EmbedError> {
        let folder = folder.as_ref();
        let shown = folder.display().to_string();
        let fail = |why: String| EmbedError::new(shown.as_str(), why);
        let config: Config = json(&folder.join("config.json")).map_err(fail)?;
        config.check().map_err(fail)?;
        let sentence: Sentence = json(&folder.join("sentence_bert_config.json")).unwrap_or_default();
        let pooling: PoolingConfig = json(&folder.join("1_Pooling/config.json")).unwrap_or_default();
        let pooling = pooling.choice().map_err(fail)?;
        let vocabulary = read(&folder.join("vocab.txt")).map_err(fail)?;
        let pieces = WordPieces::read(&vocabulary).map_err(fail)?;
        let weights = read(&folder.join("model.safetensors")).map_err(fail)?;
        let digest = Sha256::new().chain_update(&weights).chain_update(&vocabulary).finalize();
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let tensors = Tensors::read(&weights).map_err(fail)?;
        let shape = Shape {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            layers: config.num_hidden_layers,
            inner: config.intermediate_size,
            positions: config.max_position_embeddings,
            words: pieces.len(),
            epsilon: config.layer_norm_eps,
        };
        let network = Network::read(&tensors, shape).map_err(fail)?;
        let window = sentence.max_seq_length.unwrap_or(WINDOW).clamp(8, config.max_position_embeddings);
        let how = if pooling == Pooling::First { "-first" } else { "" };
        Ok(Self {
            name: format!("bert-{digest}{how}"),
            prefixes: Default::default(),
            inner: Arc::new(Inner { network, pieces, pooling, window }),
        })
    }

    /// What is put before questions and before pieces of files. Some models were taught with such words, and their
    /// papers say which.
    #[must_use]
    pub fn prefixes(mut self, question: &str, document: &str) -> Self {
        if !question.is_empty() || !document.is_empty() {
            let digest = Sha256::digest(format!("{question}\0{document}"));
            let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            self.name = format!("{}-{digest}", self.name);
        }
        self.prefixes = [question.to_owned(), document.to_owned()];
        self
    }

    fn vector(&self, text: &str, of: Purpose) -> Vec<f32> {
        let [question, document] = &self.prefixes;
        let prefix = if of == Purpose::Query { question } else { document };
        let inner = &*self.inner;
        let room = inner.window - 2;
        let most = room * MOST_WINDOWS;
        let pieces = inner.pieces.pieces(&format!("{prefix}{text}"), most);
        let ids = &pieces.ids;
        let mut sum = vec![0f32; inner.network.hidden()];
        if ids.is_empty() || !pieces.are_readable() {
            return sum;
        }
        // Windows of one size, so that a short end does not count as much as a long beginning.
        let each = ids.len().div_ceil(ids.len().div_ceil(room));
        for window in ids.chunks(each) {
            let tokens = inner.network.run(&inner.pieces.framed(window));
            let mut vector = match inner.pooling {
                Pooling::First => tokens.row(0).to_vec(),
                Pooling::Mean => {
                    tokens.mean_axis(ndarray::Axis(0)).map(|mean| mean.to_vec()).unwrap_or_default()
                }
            };
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            vector.iter_mut().for_each(|value| *value /= length);
            sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
        }
        sum
    }
}

impl Embedder for SentenceModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimensions(&self) -> usize {
        self.inner.network.hidden()
    }

    fn embed(&self, texts: &[&str], of: Purpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(texts.len());
        if workers <= 1 {
            return Ok(texts.iter().map(|text| self.vector(text, of)).collect());
        }
        let next = AtomicUsize::new(0);
        let found = Mutex::new(vec![Vec::new(); texts.len()]);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some((at, text)) = {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        texts.get(at).map(|text| (at, text))
                    } {
                        let vector = self.vector(text, of);
                        found.lock().unwrap_or_else(PoisonError::into_inner)[at] = vector;
                    }
                });
            }
        });
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::fmt::Debug for SentenceModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentenceModel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What `config.json` says of the network.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    hidden_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    layer_norm_eps: f32,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    position_embedding_type: Option<String>,
}

impl Config {
    fn check(&self) -> Result<(), String> {
        if self.model_type != "bert" {
            return Err(format!(
                "it is a `{}`, and only networks of the kind `bert` are read",
                self.model_type
            ));
        }
        let is = |said: &Option<String>, only: &str| said.as_deref().is_none_or(|said| said == only);
        if !is(&self.hidden_act, "gelu") || !is(&self.position_embedding_type, "absolute") {
            return Err(
                "it has another activation than `gelu`, or other positions than absolute ones".to_owned()
            );
        }
        if self.num_attention_heads == 0
            || !self.hidden_size.is_multiple_of(self.num_attention_heads)
            || self.max_position_embeddings < 8
        {
            return Err("its `config.json` has sizes that do not fit together".to_owned());
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
struct Sentence {
    max_seq_length: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: Option<bool>,
}

impl PoolingConfig {
    fn choice(&self) -> Result<Pooling, String> {
        match (self.pooling_mode_cls_token, self.pooling_mode_mean_tokens) {
            (true, _) => Ok(Pooling::First),
            (false, None | Some(true)) => Ok(Pooling::Mean),
            (false, Some(false)) => {
                Err("it puts tokens together neither by their mean nor by the first".to_owned())
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("`{}` cannot be read: {error}", path.display()))
}

fn json<T: for<'a> Deserialize<'a>>(path: &PathBuf) -> Result<T, String> {
    let bytes = read(path)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| format!("`{}` is not what was expected: {error}", path.display()))
}

#[cfg(test)]
#[path = "bert_tests.rs"]
mod tests;
