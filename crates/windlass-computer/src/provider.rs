//! Providers of computers: creation, sharing and disposal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::id::RunId;
use windlass::model::ComputerDisplay;

use crate::computer::{Computer, ComputerError};

/// A factory that creates one computer for each run that needs one, and disposes of it.
pub trait ComputerProvider: Send + Sync + 'static {
    /// Returns the screen of the computers it creates. The model is told its size before one is created.
    fn display(&self) -> ComputerDisplay;

    /// Creates a computer for a run.
    fn create<'a>(&'a self, run: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>>;

    /// Disposes of a computer that this provider created. It is called once per computer, however the run
    /// ended, except if the process dies. A computer must therefore not hold resources that outlive the
    /// process.
    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()>;
}

/// Default time that a computer is kept while its run waits for a person.
const DEFAULT_KEEP_TIME: Duration = Duration::from_secs(60 * 60);

/// The handling of a run's computer while the run waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausePolicy {
    /// Disposes of the computer and creates a new one when the run resumes. Approved actions are then not
    /// carried out, because the screen that they were approved for is gone.
    Dispose,
    /// Keeps the computer for this long, for a resume in this process, then disposes of it. The default is an
    /// hour.
    KeepFor(Duration),
}

impl Default for PausePolicy {
    fn default() -> Self {
        Self::KeepFor(DEFAULT_KEEP_TIME)
    }
}

/// The origin of a run's computer.
#[derive(Clone)]
pub(crate) enum ComputerSource {
    Shared(Arc<dyn Computer>),
    PerRun(Arc<dyn ComputerProvider>),
}

impl ComputerSource {
    pub(crate) fn display(&self) -> ComputerDisplay {
        match self {
            Self::Shared(computer) => computer.display(),
            Self::PerRun(provider) => provider.display(),
        }
    }

    /// Returns true if each run has a computer of its own, which can be replaced.
    pub(crate) fn is_per_run(&self) -> bool {
        matches!(self, Self::PerRun(_))
    }

    pub(crate) async fn acquire(&self, run: &RunId) -> Result<Arc<dyn Computer>, ComputerError> {
        match self {
            Self::Shared(computer) => Ok(computer.clone()),
            Self::PerRun(provider) => provider.create(run).await,
        }
    }

    /// Disposes of a computer that was created for a run. A shared computer belongs to the application and is
    /// left alone.
    pub(crate) fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        match self {
            Self::Shared(_) => std::future::ready(()).boxed(),
            Self::PerRun(provider) => provider.dispose(computer),
        }
    }
}

impl fmt::Debug for ComputerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared(_) => "Shared",
            Self::PerRun(_) => "PerRun",
        })
    }
}
