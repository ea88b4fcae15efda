//! Layers around a model: whatever every question should go through.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Answer, Deltas, ModelError, ModelRequest, SharedModel};

/// Wraps every question to a model of a run: to time it, to change it, to answer in its place, to ask twice.
pub trait ModelLayer: Send + Sync + 'static {
    /// Answers, by asking `next` or not.
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
        next: NextModel<'a>,
    ) -> BoxFuture<'a, Result<Answer, ModelError>>;
}

/// The rest of the way to a model, inside a layer.
#[derive(Clone, Copy)]
pub struct NextModel<'a> {
    layers: &'a [Arc<dyn ModelLayer>],
    model: &'a SharedModel,
}

impl<'a> NextModel<'a> {
    pub(crate) fn new(layers: &'a [Arc<dyn ModelLayer>], model: &'a SharedModel) -> Self {
        Self { layers, model }
    }

    /// Asks on.
    pub fn answer(
        self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.answer(request, deltas, NextModel { layers, model: self.model }),
            None => self.model.answer(request, deltas),
        }
    }
}
