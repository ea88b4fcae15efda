//! What a run opened is closed by the run that opened it, however it leaves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

/// How long a run waits for what it opened to be closed. What takes longer goes on without it.
const CLOSING: Duration = Duration::from_secs(10);

/// How a run leaves the process that drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It ended, or cannot go on here.
    Over,
    /// It waits for a person.
    Paused,
    /// It is left for another driver.
    HandedOver,
}

type Act = Box<dyn FnOnce(Leaving) -> BoxFuture<'static, ()> + Send>;

/// What is to be done when a driver leaves its run. Where the driver is dropped in the middle, it is done then.
#[derive(Default)]
pub(crate) struct AtEnd(EndList);

/// Where the bodies of calls say what is to be done. They may outlive the driver.
#[derive(Clone, Default)]
pub(crate) struct EndList(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    acts: Vec<Act>,
    left: Option<Leaving>,
}

impl AtEnd {
    pub(crate) fn list(&self) -> EndList {
        self.0.clone()
    }

    /// Does all that was asked for, the last first, and waits for it, for a while.
    pub(crate) async fn run(&self, leaving: Leaving) {
        let acts = self.0.leave(leaving);
        if acts.is_empty() {
            return;
        }
        let closing = tokio::spawn(close(acts, leaving));
        match tokio::time::timeout(CLOSING, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "something that a run opened could not be closed"),
            Err(_) => tracing::warn!("something that a run opened takes long to close"),
        }
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        spawn(self.0.leave(Leaving::Over), Leaving::Over);
    }
}

impl EndList {
    /// Adds to what is to be done. Where the driver has left already, it is done at once.
    pub(crate) fn add(&self, act: Act) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match list.left {
            None => list.acts.push(act),
            Some(left) => {
                drop(list);
                spawn(vec![act], left);
            }
        }
    }

    fn leave(&self, leaving: Leaving) -> Vec<Act> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.left.get_or_insert(leaving);
        std::mem::take(&mut list.acts)
    }
}

async fn close(acts: Vec<Act>, leaving: Leaving) {
    for act in acts.into_iter().rev() {
        // One that panics does not keep the others from being closed.
        if let Err(error) = tokio::spawn(async move { act(leaving).await }).await {
            tracing::warn!(%error, "something that a run opened could not be closed");
        }
    }
}

/// Nobody waits for these. Without a runtime they are dropped, and what they hold with them.
fn spawn(acts: Vec<Act>, leaving: Leaving) {
    if !acts.is_empty()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn(close(acts, leaving));
    }
}
