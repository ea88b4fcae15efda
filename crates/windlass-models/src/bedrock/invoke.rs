//! The Messages API of Anthropic's models at Bedrock: the path names the model, and the events of a stream are wrapped.

use serde::Deserialize;
use serde_json::Value;
use windlass::model::{
    ModelError, ModelErrorKind, ModelResponse, ModelSettings, ToolDefinition, ToolSearchPlace,
};

use crate::anthropic::MessagesProtocol;
use crate::azure::encode_path_segment;
use crate::protocol::{
    DeltaBuffer, EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder, ResponseError,
    StreamProgress,
};
use crate::sse::SseEvent;

/// The version of the API that is sent in the body.
const BEDROCK_API_VERSION: &str = "bedrock-2023-05-31";

/// The Messages API at Bedrock.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InvokeProtocol {
    /// The options of the Messages API.
    pub messages: MessagesProtocol,
}

impl ModelProtocol for InvokeProtocol {
    fn name(&self) -> &str {
        self.messages.name()
    }

    fn provider_name(&self) -> &str {
        "aws.bedrock"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        if request.request.settings.tool_search == Some(ToolSearchPlace::Provider) {
            let text = "Bedrock has no setting `tool_search`; hint: search the tools locally";
            return Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest));
        }
        let encoded = self.messages.encode(request)?;
        let unreadable = |error: serde_json::Error| {
            ModelError::new(format!("the request cannot be written: {error}"))
                .with_kind(ModelErrorKind::InvalidRequest)
        };
        let mut body: serde_json::Map<String, Value> =
            serde_json::from_slice(&encoded.body).map_err(unreadable)?;
        // The path names the model and the form of the response.
        body.remove("model");
        body.remove("stream");
        body.insert("anthropic_version".to_owned(), BEDROCK_API_VERSION.into());
        let method = if request.is_streamed { "invoke-with-response-stream" } else { "invoke" };
        let path = format!("/model/{}/{method}", encode_path_segment(request.model));
        let body = serde_json::to_vec(&body).map_err(unreadable)?;
        Ok(EncodedRequest { path: path.into(), body, ..encoded })
    }

    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(InvokeDecoder { inner: self.messages.decoder(request) })
    }

    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        self.messages.max_output_tokens(settings)
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        self.messages.check_tool_support(tool)
    }
}

/// A decoder that unwraps the events of the Messages API.
struct InvokeDecoder<'a> {
    inner: Box<dyn ResponseDecoder + 'a>,
}

/// The payload of a `chunk` event.
#[derive(Deserialize)]
struct InvokeChunk<'a> {
    #[serde(borrow)]
    bytes: &'a str,
}

impl ResponseDecoder for InvokeDecoder<'_> {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        self.inner.decode_body(body)
    }

    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        if event.name != Some("chunk") {
            return Ok(StreamProgress::KeepAlive);
        }
        let chunk: InvokeChunk<'_> = serde_json::from_str(event.data).map_err(ResponseError::invalid)?;
        let bytes = data_encoding::BASE64.decode(chunk.bytes.as_bytes()).map_err(ResponseError::invalid)?;
        let text = std::str::from_utf8(&bytes).map_err(ResponseError::invalid)?;
        self.inner.decode_event(SseEvent { name: None, data: text }, deltas)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        self.inner.take_response()
    }
}
