//! Evidence: what a tool shows to the person who decides about one of its calls, beside the arguments.

use std::any::Any;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{
    canonical::{Digest, canonical_json},
    id::{CallPath, RunId},
    item::MediaSource,
};

use super::{Tool, ToolContext};
use crate::error::StoreError;
use crate::store::Store;

/// The state of the world that a decision about a call refers to, such as the page that a click would hit.
///
/// A tool saves it with [`ToolContext::save_evidence`] in its [`Tool::on_hold`] function, and an approver's program reads it with [`fetch_evidence`]. The tool compares it with the world before the
/// approved call runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallEvidence {
    /// The evidence in sentences, for the approver.
    pub summary: String,
    /// The evidence as data, for programs.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    /// A picture of the state, by reference if the run has a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<MediaSource>,
}

impl CallEvidence {
    /// Creates evidence that consists of sentences only.
    pub fn new(summary: impl Into<String>) -> Self {
        Self { summary: summary.into(), details: Value::Null, picture: None }
    }

    /// Sets the data for programs.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// Sets the picture.
    #[must_use]
    pub fn with_picture(mut self, picture: MediaSource) -> Self {
        self.picture = Some(picture);
        self
    }

    /// Returns the digest of the whole evidence.
    pub fn digest(&self) -> Digest {
        let picture = serde_json::to_value(&self.picture).unwrap_or_default();
        Digest::of_parts(&[&self.summary, &canonical_json(&self.details), &canonical_json(&picture)])
    }
}

/// Returns the artefact name of a call's evidence.
fn evidence_name(call: &CallPath) -> String {
    format!("evidence:{call}")
}

/// Returns the evidence of a call that waits for approval; `None` if its tool saved none.
pub async fn fetch_evidence(
    store: &dyn Store,
    run: &RunId,
    call: &CallPath,
) -> Result<Option<CallEvidence>, StoreError> {
    let body = store.load_artefact(run, &evidence_name(call)).await?;
    Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
}

/// The function of a tool for calls that are about to wait for approval; `None` if the arguments have another type.
pub(crate) type HoldFunction<C> =
    Arc<dyn Fn(ToolContext<C>, &(dyn Any + Send + Sync)) -> Option<BoxFuture<'static, ()>> + Send + Sync>;

impl<C: Send + Sync + 'static> Tool<C> {
    /// Sets a function that runs when a call is about to wait for approval, whatever requires it: a rule of the tool, a
    /// policy, or the application. It is the place to save the evidence that the approver is shown. `A` is the type of
    /// the tool's arguments, or [`serde_json::Value`]. The wait is recorded after it; if it panics, or does not return
    /// within the drain timeout of a run that stops, the call waits without evidence.
    #[must_use]
    pub fn on_hold<A, Fut>(
        mut self,
        function: impl Fn(ToolContext<C>, &A) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        A: 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.hold_function = Some(Arc::new(move |ctx, arguments| {
            arguments.downcast_ref::<A>().map(|arguments| function(ctx, arguments).boxed())
        }));
        self
    }
}

impl<C> ToolContext<C> {
    /// Saves the evidence that an approver of this call is shown. The last one saved counts.
    pub async fn save_evidence(&self, evidence: &CallEvidence) -> Result<(), StoreError> {
        let body = serde_json::to_vec(evidence).unwrap_or_default();
        self.save_artefact(&evidence_name(self.call_path()), body).await
    }
}
