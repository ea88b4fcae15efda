//! What stands in the place of a model: it makes the call that a client wants, and says nothing.

use std::sync::Arc;

use windlass::Item;
use windlass::core::Call;
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest, OfferedTool};

/// The id of the call that a client makes, in the run that carries it out.
pub(super) const CALL: &str = "call";

pub(super) struct OneCall {
    pub(super) call: Call,
}

impl Model for OneCall {
    async fn answer<'a>(&'a self, request: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        let item = match request.turn {
            1 => Item::Call(self.call.clone()),
            _ => Item::assistant("done"),
        };
        Ok(Answer { items: vec![Arc::new(item)], ..Answer::default() })
    }

    fn supports(&self, _: &OfferedTool) -> Result<(), String> {
        Ok(())
    }
}
