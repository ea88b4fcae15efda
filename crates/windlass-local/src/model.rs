//! The `Model` implementation over the inference engine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use windlass::core::usage::Usage;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};

use crate::engine::{GenerationRequest, InferenceEngine};
use crate::weights::{Weights, WeightsError};
use crate::{answer, prompt};

/// Maximum number of tokens in a response if the settings name none.
const DEFAULT_MAX_TOKENS: u64 = 512;

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
    engine: Arc<Mutex<InferenceEngine>>,
    call_counter: Arc<AtomicU64>,
    weights_path: Arc<Path>,
}

impl LocalModel {
    /// Loads a model from its weights.
    pub fn load(weights: &Weights) -> Result<Self, ModelLoadError> {
        let engine = InferenceEngine::load(weights.path())
            .map_err(|why| ModelLoadError::Unusable { path: weights.path().to_owned(), why })?;
        Ok(Self {
            engine: Arc::new(Mutex::new(engine)),
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
        let stop = Arc::new(AtomicBool::new(false));
        let _guard = StopOnDrop(stop.clone());
        let longest = request.settings.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        let task = GenerationRequest {
            messages: prompt::prompt_messages(&request),
            schema: answer::response_schema(&request),
            max_tokens: usize::try_from(longest).unwrap_or(usize::MAX),
            stop,
        };
        let (sender, mut pieces) = mpsc::channel::<String>(64);
        let is_watched = deltas.is_watched();
        let engine = self.engine.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
            let mut shown = 0;
            engine.generate(&task, |text| {
                if !is_watched {
                    return;
                }
                let said = answer::partial_text(text).unwrap_or_default();
                if let Some(piece) =
                    said.get(shown..).filter(|piece| !piece.is_empty() && !piece.ends_with('\u{fffd}'))
                {
                    shown += piece.len();
                    // The send fails only if the receiver was dropped; the guard has cancelled the generation
                    // then.
                    drop(sender.blocking_send(piece.to_owned()));
                }
            })
        });
        while let Some(piece) = pieces.recv().await {
            deltas.emit_text(piece).await;
        }
        let written =
            writing.await.map_err(|error| ModelError::new("the engine stopped").with_source(error))?;
        let written = written.map_err(ModelError::new)?;
        let number = self.call_counter.fetch_add(1, Ordering::Relaxed);
        let call = format!("call-{}-{}-{number}", request.turn, request.input.len());
        let items =
            answer::parse_items(&written.text, &call).map_err(|error| ModelError::new(error.to_string()))?;
        Ok(ModelResponse {
            items: items.into_iter().map(Arc::new).collect(),
            usage: Some(Usage::of_tokens(written.input_tokens, written.output_tokens)),
            ..ModelResponse::default()
        })
    }
}
