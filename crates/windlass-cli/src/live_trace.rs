//! Live traces: the variables `OTEL_*` name a collector, and the spans of every run that this process drives are sent there
//! while it is written. Without the feature `otlp` nothing is sent.

#[cfg(not(feature = "otlp"))]
use crate::store_place::ProjectStore;

#[cfg(feature = "otlp")]
mod sender {
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use windlass_otel::{OtlpSettings, TracedQueue};

    use crate::store_place::ProjectStore;
    use crate::terminal::print_warning;

    /// The stores of this process whose runs are traced.
    static TRACED_STORES: Mutex<Vec<Arc<TracedQueue>>> = Mutex::new(Vec::new());

    /// Time that the command waits for the collector when it ends.
    const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

    /// Wraps a store so that the spans of its runs are sent, if the variables name a collector.
    pub(crate) fn trace_store(store: ProjectStore) -> ProjectStore {
        let settings = OtlpSettings::from_env().transpose();
        let sender = settings.map(|settings| settings.and_then(OtlpSettings::connect));
        match sender {
            None => store,
            Some(Ok(sender)) => {
                let traced = Arc::new(TracedQueue::new(store, sender));
                TRACED_STORES.lock().unwrap_or_else(PoisonError::into_inner).push(traced.clone());
                traced
            }
            // A run goes on without its trace, which can be sent later.
            Some(Err(error)) => {
                print_warning(&format!("no trace is sent: {error}"));
                store
            }
        }
    }

    /// Waits for a bounded time until the spans of completed work have been sent.
    pub(crate) async fn flush_traces() {
        let stores = TRACED_STORES.lock().unwrap_or_else(PoisonError::into_inner).split_off(0);
        let flushing = async {
            for store in &stores {
                store.flush().await;
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flushing).await.is_err() {
            print_warning(
                "the collector does not answer; `windlass export --otlp RUN` sends the trace again",
            );
        }
    }
}

#[cfg(feature = "otlp")]
pub(crate) use sender::{flush_traces, trace_store};

/// Returns the store itself: this build sends no traces.
#[cfg(not(feature = "otlp"))]
pub(crate) fn trace_store(store: ProjectStore) -> ProjectStore {
    store
}

/// Waits for nothing: this build sends no traces.
#[cfg(not(feature = "otlp"))]
pub(crate) async fn flush_traces() {}
