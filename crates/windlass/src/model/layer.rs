//! Middleware around a model: layers that every model request passes through.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{DeltaSink, ModelError, ModelRequest, ModelResponse, SharedModel};

/// Middleware around every model request of a run. A layer can measure or change the request, respond in the
/// model's place, or send the request again.
pub trait ModelLayer: Send + Sync + 'static {
    /// Responds to the request, with or without a call of `next`.
    fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
        next: NextModel<'a>,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>>;
}

/// The remaining layers and the model, from the point of view of a layer.
#[derive(Clone, Copy)]
pub struct NextModel<'a> {
    layers: &'a [Arc<dyn ModelLayer>],
    model: &'a SharedModel,
}

impl<'a> NextModel<'a> {
    pub(crate) fn new(layers: &'a [Arc<dyn ModelLayer>], model: &'a SharedModel) -> Self {
        Self { layers, model }
    }

    /// Passes the request to the next layer, or to the model.
    pub fn respond(
        self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.respond(request, deltas, NextModel { layers, model: self.model }),
            None => self.model.respond(request, deltas),
        }
    }
}
