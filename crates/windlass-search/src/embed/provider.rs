//! Vectors that a provider makes, or any server that speaks OpenAI's protocol: vLLM, Ollama, llama.cpp.

use std::sync::mpsc;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use windlass_models::EmbeddingsModel;

use super::{EmbedError, Embedder, Purpose};

/// How many texts one request has at most,
const MOST_TEXTS: usize = 128;
/// and how many bytes they have together. Providers take some hundred thousand tokens at once.
const MOST_BYTES: usize = 400_000;

/// Vectors of a provider. Requests are sent in batches, repeated where that may help and held back by its rate limits,
/// as those of [`EmbeddingsModel`] are. The texts of your files and questions go to the provider.
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
    jobs: UnboundedSender<Job>,
}

/// Texts, and who waits for their vectors. Whoever asks waits, so there are no more of these than threads that ask.
#[derive(Debug)]
struct Job {
    texts: Vec<String>,
    answer: mpsc::Sender<Result<Vec<Vec<f32>>, String>>,
}

impl ProviderEmbedder {
    /// Vectors of this model, which have so many numbers. Nothing is asked yet.
    pub fn new(model: EmbeddingsModel, dimensions: usize) -> Result<Self, EmbedError> {
        let name = model.name().to_owned();
        let fail = |error: std::io::Error| EmbedError::new(name.as_str(), error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let (jobs, waiting) = unbounded_channel();
        // A thread of its own, because whoever asks may be on a thread that must not wait for a runtime.
        thread::Builder::new()
            .name("windlass-embed".to_owned())
            .spawn(move || runtime.block_on(work(model, waiting)))
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

    fn embed(&self, texts: &[&str], _: Purpose) -> Result<Vec<Vec<f32>>, EmbedError> {
        let fail = |why: String| EmbedError::new(self.name.as_str(), why);
        let (answer, came) = mpsc::channel();
        let job = Job { texts: texts.iter().map(|text| (*text).to_owned()).collect(), answer };
        let gone = || fail("the thread that asks the provider has ended".to_owned());
        self.jobs.send(job).map_err(|_| gone())?;
        let mut vectors = came.recv().map_err(|_| gone())?.map_err(fail)?;
        vectors
            .iter_mut()
            .filter(|vector| vector.is_empty())
            .for_each(|vector| vector.resize(self.dimensions, 0.0));
        match vectors.iter().find(|vector| vector.len() != self.dimensions) {
            None => Ok(vectors),
            Some(other) => Err(fail(format!(
                "it gives {} numbers, and the index was opened for {}; hint: say how many with `ProviderEmbedder::new`",
                other.len(),
                self.dimensions
            ))),
        }
    }
}

/// Carries out jobs side by side until nobody can ask any more.
async fn work(model: EmbeddingsModel, mut waiting: UnboundedReceiver<Job>) {
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            job = waiting.recv() => match job {
                Some(job) => _ = under_way.spawn(carry_out(model.clone(), job)),
                None => return,
            },
            Some(_) = under_way.join_next() => {}
        }
    }
}

async fn carry_out(model: EmbeddingsModel, job: Job) {
    // Who asked may have gone; then nobody wants it.
    let _ = job.answer.send(vectors(&model, &job.texts).await);
}

/// A vector for each text, empty for those that say nothing.
async fn vectors(model: &EmbeddingsModel, texts: &[String]) -> Result<Vec<Vec<f32>>, String> {
    let mut found = vec![Vec::new(); texts.len()];
    // Providers refuse texts without anything in them, which have no vector.
    let wanted: Vec<(usize, &str)> = texts
        .iter()
        .enumerate()
        .map(|(at, text)| (at, text.trim()))
        .filter(|(_, text)| !text.is_empty())
        .collect();
    for some in batches(&wanted) {
        let texts: Vec<&str> = some.iter().map(|(_, text)| *text).collect();
        let vectors = model.embed(&texts).await.map_err(|error| error.to_string())?;
        for ((at, _), vector) in some.iter().zip(vectors) {
            found[*at] = vector;
        }
    }
    Ok(found)
}

/// As many texts as one request may have, again and again.
fn batches<'a, 'b>(mut rest: &'b [(usize, &'a str)]) -> impl Iterator<Item = &'b [(usize, &'a str)]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take(MOST_TEXTS)
            .take_while(|(_, text)| {
                bytes += text.len();
                bytes <= MOST_BYTES
            })
            .count();
        // One that is too large alone is the provider's to refuse.
        let (some, after) = rest.split_at(count.max(1).min(rest.len()));
        rest = after;
        (!some.is_empty()).then_some(some)
    })
}
