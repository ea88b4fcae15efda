//! The service: a worker, and the endpoint through which Restate dispatches runs to it.

use std::sync::Arc;

use restate_sdk::prelude::{Endpoint, HttpServer};
use tokio::net::TcpListener;
use windlass::fleet::{Worker, WorkerReport};

use crate::client::{RestateClient, RestateError, register};
use crate::run_object::RunObject;

/// A worker that Restate dispatches. Any number of them may serve one address behind a balancer, if they share the store.
pub struct RestateService<C = ()> {
    worker: Worker<C>,
    client: RestateClient,
    identity_keys: Vec<String>,
}

impl<C: Send + Sync + 'static> RestateService<C> {
    /// Creates a service. The client is that of the same server: runs that Restate has lost are woken through it.
    pub fn new(worker: Worker<C>, client: RestateClient) -> Self {
        Self { worker, client, identity_keys: Vec::new() }
    }

    /// Adds a public key of the server (`publickeyv1_…`). Requests that it has not signed are refused.
    #[must_use]
    pub fn identity_key(mut self, key: impl Into<String>) -> Self {
        self.identity_keys.push(key.into());
        self
    }

    /// Tells a server where the service listens: `admin` is the server's admin API, such as `http://127.0.0.1:9070`, and
    /// `service` the address of the service as the server reaches it. Once for each deployment of a service, not for each
    /// start of its process.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot be reached, or cannot reach the service.
    pub async fn register(admin: &str, service: &str) -> Result<(), RestateError> {
        register(admin, service).await
    }

    /// Serves until the worker is told to drain ([`Worker::stop_handle`]).
    ///
    /// # Errors
    ///
    /// Returns an error if an identity key is not valid, or the worker cannot be registered in its queue.
    pub async fn serve(self, listener: TcpListener) -> Result<WorkerReport, RestateError> {
        let queue = self.worker.queue().clone();
        let (dispatcher, work) = self.worker.into_dispatched(Arc::new(self.client));
        let mut endpoint = Endpoint::builder().bind(RunObject { queue, dispatcher });
        for key in &self.identity_keys {
            endpoint = endpoint.identity_key(key).map_err(|_| RestateError::IdentityKey(key.clone()))?;
        }
        let server = HttpServer::new(endpoint.build());
        let (ended, has_ended) = tokio::sync::oneshot::channel::<()>();
        let working = async {
            let report = work.await;
            // Handlers of runs that were left have their answers, and new ones fail until the endpoint closes.
            drop(ended);
            report
        };
        let (report, ()) = tokio::join!(working, server.serve_with_cancel(listener, has_ended));
        Ok(report?)
    }
}
