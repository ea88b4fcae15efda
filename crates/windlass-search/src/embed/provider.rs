//! Embeddings from a provider, or from any server with an OpenAI-compatible API: vLLM, Ollama, llama.cpp.

use std::sync::mpsc;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use windlass_models::EmbeddingsModel;

use super::{EmbedError, Embedder, EmbeddingPurpose};

/// Maximum number of texts in a request.
const MAX_BATCH_TEXTS: usize = 128;
/// Maximum number of bytes of text in a request; providers accept some hundred thousand tokens.
const MAX_BATCH_BYTES: usize = 400_000;

/// An embedder that calls a provider. Requests are batched; [`EmbeddingsModel`] retries them and respects the
/// provider's rate limits. The texts of the files and queries are sent to the provider.
///
/// ```no_run
/// use windlass_models::OpenAi;
/// use windlass_search::{Index, ProviderEmbedder};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = OpenAi::from_env()?.embeddings("text-embedding-3-small")?;
/// let index = Index::options().embedder(ProviderEmbedder::new(model, 1536)?).open("notes.index")?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ProviderEmbedder {
    name: String,
    dimensions: usize,
    jobs: UnboundedSender<EmbeddingJob>,
}

/// Texts to embed, with the channel of the reply. A caller blocks until the reply, so there is at most one job
/// per calling thread and the unbounded queue stays short.
#[derive(Debug)]
struct EmbeddingJob {
    texts: Vec<String>,
    reply: mpsc::Sender<Result<Vec<Vec<f32>>, String>>,
}

impl ProviderEmbedder {
    /// Creates an embedder of a provider's model with the given number of dimensions. Sends no request.
    ///
    /// # Errors
    ///
    /// Returns an error if the runtime or its thread cannot be started.
    pub fn new(model: EmbeddingsModel, dimensions: usize) -> Result<Self, EmbedError> {
        let name = model.name().to_owned();
        let fail = |error: std::io::Error| EmbedError::new(name.as_str(), error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let (jobs, waiting) = unbounded_channel();
        // A dedicated thread runs the requests, because the caller may be on a thread that must not block on a
        // runtime.
        thread::Builder::new()
            .name("windlass-embed".to_owned())
            .spawn(move || runtime.block_on(serve_jobs(model, waiting)))
            .map_err(fail)?;
        Ok(Self { name, dimensions, jobs })
    }
}

impl Embedder for ProviderEmbedder {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn embed(&self, texts: &[&str], _: EmbeddingPurpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let fail = |why: String| EmbedError::new(self.name.as_str(), why);
        let (answer, came) = mpsc::channel();
        let job =
            EmbeddingJob { texts: texts.iter().map(|text| (*text).to_owned()).collect(), reply: answer };
        let gone = || fail("the thread that sends the requests has ended".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        let mut vectors = came.recv().map_err(|_| gone())?.map_err(fail)?;
        vectors
            .iter_mut()
            .filter(|vector| vector.is_empty())
            .for_each(|vector| vector.resize(self.dimensions, 0.0));
        match vectors.iter().find(|vector| vector.len() != self.dimensions) {
            None => Ok(vectors),
            Some(other) => Err(fail(format!(
                "its vectors have {} dimensions, not {}; hint: pass the model's number to `ProviderEmbedder::new`",
                other.len(),
                self.dimensions
            ))),
        }
    }
}

/// Runs jobs concurrently until the embedder is dropped.
async fn serve_jobs(model: EmbeddingsModel, mut waiting: UnboundedReceiver<EmbeddingJob>) {
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            job = waiting.recv() => match job {
                Some(job) => _ = under_way.spawn(run_job(model.clone(), job)),
                None => return,
            },
            Some(_) = under_way.join_next() => {}
        }
    }
}

async fn run_job(model: EmbeddingsModel, job: EmbeddingJob) {
    // If the caller is gone, the reply is discarded.
    let _ = job.reply.send(embed_in_batches(&model, &job.texts).await);
}

/// Returns one vector per text; an empty vector for a blank text.
async fn embed_in_batches(model: &EmbeddingsModel, texts: &[String]) -> Result<Vec<Vec<f32>>, String> {
    let mut found = vec![Vec::new(); texts.len()];
    // Providers reject blank texts.
    let wanted: Vec<(usize, &str)> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| (at, text.trim()))
        .filter(|(_, text)| !text.is_empty())
        .collect();
    for some in split_batches(&wanted) {
        let texts: Vec<&str> = some.iter().map(|(_, text)| *text).collect();
        let vectors = model.embed(&texts).await.map_err(|error| error.to_string())?;
        for ((at, _), vector) in some.iter().zip(vectors) {
            found[*at] = vector;
        }
    }
    Ok(found)
}

/// Splits texts into batches within the limits of one request.
fn split_batches<'a, 'b>(mut rest: &'b [(usize, &'a str)]) -> impl Iterator<Item = &'b [(usize, &'a str)]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take(MAX_BATCH_TEXTS)
            .take_while(|(_, text)| {
                bytes += text.len();
                bytes <= MAX_BATCH_BYTES
            })
            .count();
        // A text that exceeds the limit alone is sent anyway; the provider may reject it.
        let (some, after) = rest.split_at(count.max(1).min(rest.len()));
        rest = after;
        (!some.is_empty()).then_some(some)
    })
}
