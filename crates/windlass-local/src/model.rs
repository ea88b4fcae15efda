//! The model that agents are given.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use windlass::Usage;
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest};

use crate::engine::{Engine, Task};
use crate::weights::{Weights, WeightsError};
use crate::{answer, prompt};

/// How many tokens an answer has at most, unless the settings say otherwise.
const LONGEST: u64 = 512;

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There are no weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The file cannot be run.
    #[error("`{}` cannot be run: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// A model that runs in this process. Copies share the weights, and answer one after another.
///
/// ```no_run
/// use windlass::prelude::*;
/// use windlass_local::{LocalModel, Weights};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = LocalModel::load(&Weights::find("smollm2-135m", &mut |_, _| {})?)?;
/// let agent = Agent::new("guide").model(model);
/// println!("{}", agent.run("Say hello.").await?.text());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LocalModel {
    engine: Arc<Mutex<Engine>>,
    calls: Arc<AtomicU64>,
    name: Arc<Path>,
}

impl LocalModel {
    /// Loads weights.
    pub fn load(weights: &Weights) -> Result<Self, LoadError> {
        let engine = Engine::load(weights.path())
            .map_err(|why| LoadError::Unusable { path: weights.path().to_owned(), why })?;
        Ok(Self { engine: Arc::new(Mutex::new(engine)), calls: Arc::default(), name: weights.path().into() })
    }
}

impl std::fmt::Debug for LocalModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalModel({})", self.name.display())
    }
}

/// Tells the engine to stop when the wait for its answer is over, for whatever reason.
struct StopsAtTheEnd(Arc<AtomicBool>);

impl Drop for StopsAtTheEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Model for LocalModel {
    async fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> Result<Answer, ModelError> {
        let stop = Arc::new(AtomicBool::new(false));
        let _guard = StopsAtTheEnd(stop.clone());
        let longest = request.settings.max_tokens.unwrap_or(LONGEST);
        let task = Task {
            lines: prompt::lines(&request),
            shape: answer::shape(&request),
            longest: usize::try_from(longest).unwrap_or(usize::MAX),
            stop,
        };
        let (sender, mut pieces) = mpsc::channel::<String>(64);
        let is_watched = deltas.wanted();
        let engine = self.engine.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
            let mut shown = 0;
            engine.write(&task, |text| {
                if !is_watched {
                    return;
                }
                let said = answer::said_so_far(text).unwrap_or_default();
                if let Some(piece) =
                    said.get(shown..).filter(|piece| !piece.is_empty() && !piece.ends_with('\u{fffd}'))
                {
                    shown += piece.len();
                    // Nobody listens any more where this fails, and then the task is told to stop.
                    drop(sender.blocking_send(piece.to_owned()));
                }
            })
        });
        while let Some(piece) = pieces.recv().await {
            deltas.text(piece).await;
        }
        let written =
            writing.await.map_err(|error| ModelError::new("the engine stopped").caused_by(error))?;
        let written = written.map_err(ModelError::new)?;
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let call = format!("call-{}-{}-{number}", request.turn, request.input.len());
        let items =
            answer::items(&written.text, &call).map_err(|error| ModelError::new(error.to_string()))?;
        Ok(Answer {
            items: items.into_iter().map(Arc::new).collect(),
            usage: Some(Usage::tokens(written.read_tokens, written.written_tokens)),
            ..Answer::default()
        })
    }
}
