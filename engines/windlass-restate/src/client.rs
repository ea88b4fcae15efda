//! The client of the object of runs, over the ingress of Restate.

use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{DecisionRequest, DispatchError, RunDispatch, RunSubmission};

use crate::http::{ServerAddress, escape_segment};
use crate::request::RunState;
use crate::run_object::OBJECT_NAME;

/// An error of Restate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestateError {
    /// The text is not the address of a server.
    #[error("`{0}` is not an address like http://host:8080")]
    Address(String),
    /// The server cannot be reached, or does not answer.
    #[error("Restate cannot be reached: {0}")]
    Connection(String),
    /// The request was refused: 404 for an unknown run, 409 for a decision or a submission that contradicts an earlier one.
    #[error("Restate answered with status {status}: {message}")]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Message of the answer.
        message: String,
    },
    /// The text is not the public key of a server.
    #[error("`{0}` is not an identity key like publickeyv1_…")]
    IdentityKey(String),
    /// The worker could not be registered in its queue.
    #[error(transparent)]
    Store(#[from] windlass::error::StoreError),
    /// The answer is not what was expected.
    #[error("unexpected answer of Restate: {0}")]
    Answer(#[from] serde_json::Error),
}

impl From<std::io::Error> for RestateError {
    fn from(error: std::io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

/// A client of the runs in Restate. It needs no access to the store.
///
/// Whoever reaches the ingress can submit, decide and cancel: protect it as the store itself.
#[derive(Clone, Debug)]
pub struct RestateClient {
    ingress: ServerAddress,
}

impl RestateClient {
    /// Creates a client of the ingress at this address, such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Address`] if the text is not an address.
    pub fn new(ingress: &str) -> Result<Self, RestateError> {
        Ok(Self { ingress: ServerAddress::parse(ingress)? })
    }

    /// Submits a run. Submitting the same again has no effect.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Refused`] with status 409 if another run of this id was submitted.
    pub async fn submit_run(&self, submission: &RunSubmission) -> Result<(), RestateError> {
        let body = serde_json::to_vec(submission)?;
        self.call(&submission.run, "submit", Some(body)).await.map(|_| ())
    }

    /// Posts a decision about a call.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Refused`] with status 409 if the decision is not valid, or an earlier one is taken.
    pub async fn decide(&self, run: &RunId, decision: &DecisionRequest) -> Result<(), RestateError> {
        self.call(run, "decide", Some(serde_json::to_vec(decision)?)).await.map(|_| ())
    }

    /// Cancels a run, wherever it is driven.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Refused`] with status 404 if the run was not submitted.
    pub async fn cancel_run(&self, run: &RunId) -> Result<(), RestateError> {
        self.call(run, "cancel", None).await.map(|_| ())
    }

    /// Makes a dead letter ready again.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Refused`] with status 404 if the run was not submitted.
    pub async fn revive_run(&self, run: &RunId) -> Result<(), RestateError> {
        self.call(run, "revive", None).await.map(|_| ())
    }

    /// Loads the state of a run in the queue.
    ///
    /// # Errors
    ///
    /// Returns [`RestateError::Refused`] with status 404 if the run was not submitted.
    pub async fn load_state(&self, run: &RunId) -> Result<RunState, RestateError> {
        Ok(serde_json::from_slice(&self.call(run, "status", None).await?)?)
    }

    async fn call(&self, run: &RunId, handler: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, RestateError> {
        let key = escape_segment(run.as_str());
        self.ingress.post(&format!("/{OBJECT_NAME}/{key}/{handler}"), body).await
    }
}

impl RunDispatch for RestateClient {
    fn wake_run<'a>(
        &'a self,
        run: &'a RunId,
        at: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<(), DispatchError>> {
        async move {
            let delay = at.map_or(0, millis_until);
            let handler =
                if delay == 0 { "drive/send".to_owned() } else { format!("drive/send?delay={delay}ms") };
            let sent = self.call(run, &handler, None).await;
            sent.map(|_| ()).map_err(|error| DispatchError::Engine(error.to_string()))
        }
        .boxed()
    }
}

fn millis_until(time: Timestamp) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time.0.saturating_sub(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Registers the service at `service` with the admin API of a server, such as `http://127.0.0.1:9070`.
pub(crate) async fn register(admin: &str, service: &str) -> Result<(), RestateError> {
    let body = serde_json::to_vec(&json!({ "uri": service, "force": true }))?;
    ServerAddress::parse(admin)?.post("/deployments", Some(body)).await.map(|_| ())
}
