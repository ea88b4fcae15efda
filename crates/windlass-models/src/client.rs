//! The client that the models of all protocols share: it encodes a request with one half of a protocol and decodes
//! the response with the other.

use std::sync::Arc;

use serde::Serialize;
use windlass::model::{DeltaSink, ModelError, ModelRequest, ModelResponse};

use crate::StreamingMode;
use crate::endpoint::ProviderEndpoint;
use crate::exchange::{ProtocolDecoder, ProviderRequest, request_response};
use crate::http::ReplaySafety;
use crate::wire::{RequestBase, encode_body};

/// The encoding half of a provider's wire protocol: the body of a request.
pub(crate) trait ProtocolEncoder: Serialize {
    /// The path to which requests are sent.
    const PATH: &'static str;

    /// The decoding half of the protocol.
    type Decoder: ProtocolDecoder;

    /// Returns the parts of the body that do not depend on the protocol.
    fn base(&self) -> &RequestBase<'_>;

    /// Creates a decoder for the response.
    fn decoder(&self) -> Self::Decoder;

    /// Returns the safety of sending the request twice.
    fn replay_safety(&self) -> ReplaySafety {
        ReplaySafety::Safe
    }
}

/// A model of a provider.
#[derive(Clone, Debug)]
pub(crate) struct ModelClient {
    pub(crate) endpoint: Arc<ProviderEndpoint>,
    model: String,
    pub(crate) streaming: StreamingMode,
}

impl ModelClient {
    pub(crate) fn new(endpoint: ProviderEndpoint, model: &str) -> Self {
        let streaming = StreamingMode::default();
        Self { endpoint: Arc::new(endpoint), model: model.to_owned(), streaming }
    }

    /// Returns the parts of a request body that do not depend on the protocol.
    pub(crate) fn request_base<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &DeltaSink,
    ) -> RequestBase<'a> {
        RequestBase { request, model: &self.model, is_streamed: self.streaming.is_enabled(deltas) }
    }

    /// Sends a request and returns the model's response.
    ///
    /// # Cancel safety
    ///
    /// As [`request_response`].
    pub(crate) async fn send(
        &self,
        body: impl ProtocolEncoder,
        deltas: &DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let request = self.encode(&body)?;
        request_response(&self.endpoint, body.decoder(), request, deltas).await
    }

    fn encode<E: ProtocolEncoder>(&self, body: &E) -> Result<ProviderRequest<'_>, ModelError> {
        Ok(ProviderRequest {
            path: E::PATH,
            model: &self.model,
            body: encode_body(body)?,
            replay_safety: body.replay_safety(),
            is_streamed: body.base().is_streamed,
        })
    }
}
