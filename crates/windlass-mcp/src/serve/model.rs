//! A stand-in model whose only response is the tool call that a client requested.

use std::sync::Arc;

use windlass::core::item::Item;
use windlass::core::item::ToolCall;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ToolDefinition};

/// The id of the client's call in the run that executes it.
pub(super) const CALL_ID: &str = "call";

/// A model that makes one tool call in its first turn and finishes in the next.
pub(super) struct SingleCallModel {
    pub(super) call: ToolCall,
}

impl Model for SingleCallModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let item = match request.turn {
            1 => Item::Call(self.call.clone()),
            _ => Item::assistant("done"),
        };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }

    fn check_tool_support(&self, _: &ToolDefinition) -> Result<(), String> {
        Ok(())
    }
}
