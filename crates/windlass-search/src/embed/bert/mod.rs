//! A local sentence model: a folder with a BERT network, such as all-MiniLM-L6-v2. Inference makes no network
//! request and needs no system library.

mod network;
mod safetensors;
mod wordpiece;

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{EmbedError, Embedder, EmbeddingPurpose};
use network::{BertDimensions, BertNetwork};
use safetensors::SafetensorsFile;
use wordpiece::WordPieceTokeniser;

/// Name of the model that can be downloaded: the published weights of `sentence-transformers/all-MiniLM-L6-v2`.
const MINILM_MODEL: &str = "all-minilm-l6-v2";
/// Maximum sequence length in tokens, if the model folder does not set one.
const DEFAULT_WINDOW_TOKENS: usize = 256;
/// Maximum number of windows per text; the text after them is ignored.
const MAX_WINDOWS: usize = 16;

/// A sentence model that runs in the process; much slower and much more accurate than
/// [`crate::WordVectorTable`]. A text in a script that its vocabulary does not cover gets a zero vector, so that
/// only BM25 ranks it.
///
/// It reads folders in the layout of `sentence-transformers` with a BERT network: `config.json`, `vocab.txt`,
/// `model.safetensors` and, if present, `sentence_bert_config.json` and `1_Pooling/config.json`.
///
/// ```no_run
/// use windlass_search::{Index, SentenceModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = Index::options().embedder(SentenceModel::fetch_minilm(&mut |_, _| {})?).open("notes.index")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SentenceModel {
    name: String,
    prefixes: [String; 2],
    encoder: Arc<SentenceEncoder>,
}

/// The network, tokeniser and pooling of a sentence model.
struct SentenceEncoder {
    network: BertNetwork,
    tokeniser: WordPieceTokeniser,
    pooling: PoolingMode,
    window_tokens: usize,
}

/// The method that pools the token vectors into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolingMode {
    Mean,
    /// The vector of the `[CLS]` token, which precedes the text.
    ClsToken,
}

impl SentenceModel {
    /// Loads all-MiniLM-L6-v2 (91 MB, English); downloads it once and verifies its digest. `progress` receives
    /// the number of bytes downloaded and the total.
    ///
    /// # Errors
    ///
    /// Returns an error if the download fails or the model cannot be loaded.
    pub fn fetch_minilm(progress: &mut dyn FnMut(u64, u64)) -> Result<Self, EmbedError> {
        let weights = windlass_local::Weights::find(MINILM_MODEL, progress)
            .map_err(|error| EmbedError::new(MINILM_MODEL, error))?;
        let folder = weights.path().parent().unwrap_or_else(|| Path::new("."));
        Self::open(folder)
    }

    /// Loads the model of a folder.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing or malformed, or the network is not a supported BERT.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, EmbedError> {
        let folder = folder.as_ref();
        let shown = folder.display().to_string();
        let fail = |why: String| EmbedError::new(shown.as_str(), why);
        let config: BertConfig = read_json(&folder.join("config.json")).map_err(fail)?;
        config.validate().map_err(fail)?;
        let sentence: SentenceBertConfig =
            read_json(&folder.join("sentence_bert_config.json")).unwrap_or_default();
        let pooling: PoolingConfig = read_json(&folder.join("1_Pooling/config.json")).unwrap_or_default();
        let pooling = pooling.pooling_mode().map_err(fail)?;
        let vocabulary = read_file(&folder.join("vocab.txt")).map_err(fail)?;
        let pieces = WordPieceTokeniser::parse_vocabulary(&vocabulary).map_err(fail)?;
        let weights = read_file(&folder.join("model.safetensors")).map_err(fail)?;
        let digest = Sha256::new().chain_update(&weights).chain_update(&vocabulary).finalize();
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let tensors = SafetensorsFile::parse(&weights).map_err(fail)?;
        let shape = BertDimensions {
            hidden_size: config.hidden_size,
            attention_heads: config.num_attention_heads,
            layer_count: config.num_hidden_layers,
            intermediate_size: config.intermediate_size,
            max_positions: config.max_position_embeddings,
            vocabulary_size: pieces.vocabulary_size(),
            layer_norm_epsilon: config.layer_norm_eps,
        };
        let network = BertNetwork::load(&tensors, shape).map_err(fail)?;
        let window =
            sentence.max_seq_length.unwrap_or(DEFAULT_WINDOW_TOKENS).clamp(8, config.max_position_embeddings);
        let how = if pooling == PoolingMode::ClsToken { "-first" } else { "" };
        Ok(Self {
            name: format!("bert-{digest}{how}"),
            prefixes: Default::default(),
            encoder: Arc::new(SentenceEncoder { network, tokeniser: pieces, pooling, window_tokens: window }),
        })
    }

    /// Sets the prefixes of queries and of documents. Some models were trained with prefixes, which their model
    /// cards list.
    #[must_use]
    pub fn with_prefixes(mut self, question: &str, document: &str) -> Self {
        if !question.is_empty() || !document.is_empty() {
            let digest = Sha256::digest(format!("{question}\0{document}"));
            let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            self.name = format!("{}-{digest}", self.name);
        }
        self.prefixes = [question.to_owned(), document.to_owned()];
        self
    }

    /// Embeds one text: the sum of the normalised vectors of its windows.
    fn embed_text(&self, text: &str, of: EmbeddingPurpose) -> Vec<f32> {
        let [question, document] = &self.prefixes;
        let prefix = if of == EmbeddingPurpose::Query { question } else { document };
        let inner = &*self.encoder;
        let room = inner.window_tokens - 2;
        let most = room * MAX_WINDOWS;
        let pieces = inner.tokeniser.tokenise(&format!("{prefix}{text}"), most);
        let ids = &pieces.token_ids;
        let mut sum = vec![0f32; inner.network.hidden_size()];
        if ids.is_empty() || !pieces.has_vocabulary_coverage() {
            return sum;
        }
        // Windows have equal size, because a short last window would weigh as much as a full one.
        let each = ids.len().div_ceil(ids.len().div_ceil(room));
        for window in ids.chunks(each) {
            let tokens = inner.network.run(&inner.tokeniser.add_special_tokens(window));
            let mut vector = match inner.pooling {
                PoolingMode::ClsToken => tokens.row(0).to_vec(),
                PoolingMode::Mean => {
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
        self.encoder.network.hidden_size()
    }

    /// Some seconds of work on a core.
    fn batch_size(&self) -> usize {
        16
    }

    fn embed(&self, texts: &[&str], of: EmbeddingPurpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(texts.len());
        if workers <= 1 {
            return Ok(texts.iter().map(|text| self.embed_text(text, of)).collect());
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
                        let vector = self.embed_text(text, of);
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

/// The network's dimensions from `config.json`.
#[derive(Deserialize)]
struct BertConfig {
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

impl BertConfig {
    fn validate(&self) -> Result<(), String> {
        if self.model_type != "bert" {
            return Err(format!("its model type is `{}`, and only `bert` is supported", self.model_type));
        }
        let is = |said: &Option<String>, only: &str| said.as_deref().is_none_or(|said| said == only);
        if !is(&self.hidden_act, "gelu") || !is(&self.position_embedding_type, "absolute") {
            return Err(
                "its activation is not `gelu`, or its position embeddings are not absolute".to_owned()
            );
        }
        if self.num_attention_heads == 0
            || !self.hidden_size.is_multiple_of(self.num_attention_heads)
            || self.max_position_embeddings < 8
        {
            return Err("the sizes in its `config.json` are inconsistent".to_owned());
        }
        Ok(())
    }
}

/// The contents of `sentence_bert_config.json`.
#[derive(Default, Deserialize)]
struct SentenceBertConfig {
    max_seq_length: Option<usize>,
}

/// The contents of `1_Pooling/config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: Option<bool>,
}

impl PoolingConfig {
    fn pooling_mode(&self) -> Result<PoolingMode, String> {
        match (self.pooling_mode_cls_token, self.pooling_mode_mean_tokens) {
            (true, _) => Ok(PoolingMode::ClsToken),
            (false, None | Some(true)) => Ok(PoolingMode::Mean),
            (false, Some(false)) => Err("its pooling uses neither the mean nor the `[CLS]` token".to_owned()),
        }
    }
}

fn read_file(path: &PathBuf) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("`{}` cannot be read: {error}", path.display()))
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &PathBuf) -> Result<T, String> {
    let bytes = read_file(path)?;
    serde_json::from_slice(&bytes).map_err(|error| format!("`{}` is malformed: {error}", path.display()))
}

#[cfg(test)]
#[path = "bert_tests.rs"]
mod tests;
