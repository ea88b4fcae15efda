//! The `Model` implementation over the inference engine.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::mpsc;
use windlass::core::item::{Item, Role};
use windlass::core::usage::Usage;
use windlass::model::{
    DeltaSink, FinishReason, LengthLimitPolicy, Model, ModelError, ModelErrorKind, ModelRequest,
    ModelResponse, ModelSettings, PromptCaching, ResponseDetails, ToolSearchPlace,
};

use crate::engine::{GenerationError, GenerationOutput, GenerationRequest, InferenceEngine, ReadPrompts};
use crate::inference::sampler::SamplingSettings;
use crate::weights::{Weights, WeightsError};
use crate::{answer, prompt};

/// Maximum number of tokens in a response if the settings name none.
const DEFAULT_MAX_TOKENS: u64 = 512;
/// Number of prompts that are kept, if the options name none.
const DEFAULT_KEPT_PROMPTS: usize = 4;
/// The settings that a local model has.
const SUPPORTED_SETTINGS: [&str; 10] = [
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
    "max_tokens",
    "on_length_limit",
];

/// A model that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelLoadError {
    /// The weights are not available.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file is not a supported model.
    #[error("`{}` cannot be run: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Options of loading a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    threads: Option<usize>,
    context_length: Option<usize>,
    kept_prompts: Option<usize>,
}

impl LoadOptions {
    /// Sets the number of threads that compute. By default it is the variable `WINDLASS_LOCAL_THREADS`, or else the
    /// number of processors that this process may use. Threads without work sleep.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets the context length in tokens, at most that of the weights, which is the default. The memory for a prompt
    /// grows with its length.
    pub fn context_length(mut self, tokens: usize) -> Self {
        self.context_length = Some(tokens);
        self
    }

    /// Sets the number of prompts that are kept, 4 by default. A prompt that begins like a kept one is read from where
    /// they differ. Together they have at most as many tokens as the context.
    pub fn kept_prompts(mut self, prompts: usize) -> Self {
        self.kept_prompts = Some(prompts);
        self
    }

    fn thread_count(&self) -> usize {
        let variable = || std::env::var("WINDLASS_LOCAL_THREADS").ok()?.trim().parse().ok();
        let available = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.or_else(variable).filter(|threads| *threads > 0).unwrap_or_else(available)
    }
}

/// A model that runs in this process. Clones share the weights and generate one response at a time.
///
/// ```no_run
/// use windlass::prelude::*;
/// use windlass_local::{LocalModel, Weights};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = LocalModel::load(&Weights::find("smollm2-135m", &mut |_, _| {})?)?;
/// let agent = Agent::new("guide").model(model);
/// println!("{}", agent.run("Say hello.").await?.output_text()?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LocalModel {
    engine: Arc<InferenceEngine>,
    /// The lock is held while a response is generated.
    read_prompts: Arc<tokio::sync::Mutex<ReadPrompts>>,
    call_counter: Arc<AtomicU64>,
    weights_path: Arc<Path>,
}

impl LocalModel {
    /// Loads a model from its weights.
    pub fn load(weights: &Weights) -> Result<Self, ModelLoadError> {
        Self::load_with(weights, &LoadOptions::default())
    }

    /// Loads a model from its weights with options.
    pub fn load_with(weights: &Weights, options: &LoadOptions) -> Result<Self, ModelLoadError> {
        let engine = InferenceEngine::load(weights.path(), options.thread_count(), options.context_length)
            .map_err(|why| ModelLoadError::Unusable { path: weights.path().to_owned(), why })?;
        let kept = options.kept_prompts.unwrap_or(DEFAULT_KEPT_PROMPTS);
        let read_prompts = ReadPrompts::new(kept, engine.context_length);
        Ok(Self {
            engine: Arc::new(engine),
            read_prompts: Arc::new(tokio::sync::Mutex::new(read_prompts)),
            call_counter: Arc::default(),
            weights_path: weights.path().into(),
        })
    }
}

impl std::fmt::Debug for LocalModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalModel({})", self.weights_path.display())
    }
}

/// A guard that cancels the generation when the caller's future completes or is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Model for LocalModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let settings = request.settings;
        check_settings(settings)?;
        check_media(&request)?;
        let stop = Arc::new(AtomicBool::new(false));
        let _guard = StopOnDrop(stop.clone());
        let longest = settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        let task = GenerationRequest {
            messages: prompt::prompt_messages(&request),
            schema: answer::response_schema(&request),
            max_tokens: usize::try_from(longest).unwrap_or(usize::MAX),
            sampling: sampling_settings(settings),
            stop,
        };
        let engine = self.engine.clone();
        let prepared = in_background(move || engine.prepare(&task)).await?;
        // Requests wait here for their turn. A caller that gives up leaves the queue.
        let mut read_prompts = self.read_prompts.clone().lock_owned().await;
        let (sender, mut pieces) = mpsc::channel::<String>(64);
        let is_watched = deltas.is_watched();
        let engine = self.engine.clone();
        let mut stop_texts = settings.stop.clone().unwrap_or_default();
        // An empty text is found everywhere, and is no place to stop at.
        stop_texts.retain(|stop| !stop.is_empty());
        let writing = in_background(move || {
            let mut stopped_at = None;
            let mut shown = 0;
            let written = engine.generate(prepared, &mut read_prompts, |text| {
                if !is_watched && stop_texts.is_empty() {
                    return true;
                }
                let mut said = answer::partial_text(text).unwrap_or_default();
                let stop = stop_texts.iter().filter_map(|stop| said.find(stop).map(|at| (at, stop))).min();
                if let Some((at, stop)) = stop {
                    said.truncate(at);
                    stopped_at = Some((said.clone(), stop.clone()));
                }
                // The start of a stop text is held back until it is known to be none.
                let end = if stopped_at.is_some() { said.len() } else { end_before_stop(&said, &stop_texts) };
                if let Some(piece) =
                    said.get(shown..end).filter(|piece| !piece.is_empty() && !piece.ends_with('\u{fffd}'))
                    && is_watched
                {
                    shown += piece.len();
                    // The send fails only if the receiver was dropped; the guard has cancelled the generation
                    // then.
                    drop(sender.blocking_send(piece.to_owned()));
                }
                stopped_at.is_none()
            })?;
            // What was held back for a stop text that did not come.
            if is_watched
                && stopped_at.is_none()
                && let Some(piece) = answer::partial_text(&written.text)
                    .as_deref()
                    .and_then(|said| said.get(shown..))
                    .filter(|piece| !piece.is_empty())
            {
                drop(sender.blocking_send(piece.to_owned()));
            }
            Ok((written, stopped_at))
        });
        let emitting = async {
            while let Some(piece) = pieces.recv().await {
                deltas.emit_text(piece).await;
            }
        };
        let (written, ()) = tokio::join!(writing, emitting);
        let (written, stopped_at) = written?;
        let number = self.call_counter.fetch_add(1, Ordering::Relaxed);
        let call = format!("call-{}-{}-{number}", request.turn, request.input.len());
        respond_with(&written, stopped_at, &request, &call)
    }

    fn context_window(&self) -> Option<u64> {
        u64::try_from(self.engine.context_length).ok()
    }
}

/// Runs a function that computes on a thread of its own.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GenerationError> + Send + 'static,
) -> Result<T, ModelError> {
    let result = tokio::task::spawn_blocking(work).await;
    let result = result.map_err(|error| ModelError::new("the engine stopped").with_source(error))?;
    result.map_err(|error| {
        let kind = match error {
            GenerationError::TooLong { .. } => ModelErrorKind::ContextLengthExceeded,
            GenerationError::UnsupportedSchema(_) => ModelErrorKind::InvalidRequest,
            GenerationError::Cancelled | GenerationError::Other(_) => ModelErrorKind::Other,
        };
        ModelError::new(error.to_string()).with_kind(kind)
    })
}

/// Checks that the messages of the user are texts.
fn check_media(request: &ModelRequest<'_>) -> Result<(), ModelError> {
    let messages = request.input.iter().filter_map(|item| match &**item {
        Item::Message(message) if message.role != Role::Assistant => Some(message),
        _ => None,
    });
    let kind = messages.flat_map(|message| &message.content).find_map(prompt::media_kind);
    match kind {
        Some(kind) => {
            let text = format!("a local model reads texts only, and the input has {kind}");
            Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest))
        }
        None => Ok(()),
    }
}

fn check_settings(settings: &ModelSettings) -> Result<(), ModelError> {
    let provider_fields =
        [("extra", settings.extra.is_empty()), ("replaced_fields", settings.replaced_fields.is_empty())];
    let provider_fields = provider_fields.into_iter().filter(|(_, is_empty)| !is_empty).map(|(name, _)| name);
    let mut names = settings.setting_names().into_iter().chain(provider_fields);
    // The defaults in words are nothing that an engine must have: tools are searched in this library, and the engine
    // keeps the prompts that it has read.
    let is_default = |name: &str| match name {
        "tool_search" => settings.tool_search == Some(ToolSearchPlace::Local),
        "prompt_cache" => settings.prompt_cache == Some(PromptCaching::Automatic),
        _ => false,
    };
    match names.find(|name| !SUPPORTED_SETTINGS.contains(name) && !is_default(name)) {
        None => Ok(()),
        Some(name) => {
            let text = format!("a local model has no setting `{name}`; hint: remove it");
            Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest))
        }
    }
}

fn sampling_settings(settings: &ModelSettings) -> SamplingSettings {
    let number = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
    SamplingSettings {
        temperature: number(settings.temperature, 0.0),
        top_p: number(settings.top_p, 1.0),
        frequency_penalty: number(settings.frequency_penalty, 0.0),
        presence_penalty: number(settings.presence_penalty, 0.0),
        seed: settings.seed.map_or_else(|| RandomState::new().hash_one(0), i64::cast_unsigned),
    }
}

/// Returns the end of a text without a start of a stop text at its end.
fn end_before_stop(said: &str, stop_texts: &[String]) -> usize {
    let starts = said.char_indices().map(|(at, _)| at);
    let held = starts.filter(|at| stop_texts.iter().any(|stop| stop.starts_with(&said[*at..])));
    held.min().unwrap_or(said.len())
}

fn respond_with(
    written: &GenerationOutput,
    stopped_at: Option<(String, String)>,
    request: &ModelRequest<'_>,
    call: &str,
) -> Result<ModelResponse, ModelError> {
    let mut usage = Usage::of_tokens(written.input_tokens, written.output_tokens);
    usage.cached_tokens = written.known_tokens;
    let respond = |items: Vec<Item>, reason: FinishReason| {
        let mut details = ResponseDetails::default();
        details.finish_reason = Some(reason);
        let items = items.into_iter().map(Arc::new).collect();
        ModelResponse { items, usage: Some(usage), details, ..ModelResponse::default() }
    };
    if let Some((said, stop)) = stopped_at {
        let mut response = respond(vec![Item::assistant(said)], FinishReason::StopSequence);
        response.details.stop_sequence = Some(stop);
        return Ok(response);
    }
    if written.is_complete {
        let items = answer::parse_items(&written.text, call, request).map_err(|error| {
            ModelError::new(error.to_string())
                .with_kind(ModelErrorKind::InvalidResponse)
                .with_usage(Some(usage))
        })?;
        let is_call = items.iter().any(|item| matches!(item, Item::Call(_)));
        let reason = if is_call { FinishReason::ToolCalls } else { FinishReason::Complete };
        return Ok(respond(items, reason));
    }
    let partial = answer::partial_text(&written.text)
        .map(|said| respond(vec![Item::assistant(said)], FinishReason::LengthLimit));
    match (request.settings.on_length_limit, partial) {
        (Some(LengthLimitPolicy::KeepText), Some(response)) => Ok(response),
        (_, partial) => {
            let text = format!("the response was cut off after {} tokens", written.output_tokens);
            Err(ModelError::new(text)
                .with_kind(ModelErrorKind::Incomplete)
                .with_usage(Some(usage))
                .with_partial_response(partial.map(Box::new)))
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
