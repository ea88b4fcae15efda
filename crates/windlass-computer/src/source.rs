//! Where a run's computer comes from, and when it goes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::RunId;
use windlass::model::Display;

use crate::computer::{Computer, ComputerError};

/// Makes computers: one for each run that asks for one, and disposes of them.
pub trait ComputerProvider: Send + Sync + 'static {
    /// What the computers that it makes look like. The model is told before there is one.
    fn display(&self) -> Display;

    /// Makes a computer for a run.
    fn create<'a>(&'a self, run: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>>;

    /// Disposes of one that it made. It is called once for each, however its run ended. Where a process dies it is
    /// not, so whatever a computer holds must not outlive the process.
    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()>;
}

/// What becomes of a run's computer while the run waits for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnPause {
    /// It is disposed of, and made anew when the run goes on.
    #[default]
    Dispose,
    /// It is kept for this long, for the run to go on with in this process. Then it is disposed of.
    KeepFor(Duration),
}

/// Where a run's computer comes from.
#[derive(Clone)]
pub(crate) enum Source {
    Given(Arc<dyn Computer>),
    Made(Arc<dyn ComputerProvider>),
}

impl Source {
    pub(crate) fn display(&self) -> Display {
        match self {
            Self::Given(computer) => computer.display(),
            Self::Made(provider) => provider.display(),
        }
    }

    pub(crate) async fn get(&self, run: &RunId) -> Result<Arc<dyn Computer>, ComputerError> {
        match self {
            Self::Given(computer) => Ok(computer.clone()),
            Self::Made(provider) => provider.create(run).await,
        }
    }

    /// A computer that was given is not ours to dispose of.
    pub(crate) fn give_back(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        match self {
            Self::Given(_) => std::future::ready(()).boxed(),
            Self::Made(provider) => provider.dispose(computer),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given(_) => "Given",
            Self::Made(_) => "Made",
        })
    }
}
