//! A model of a provider: a protocol, an endpoint and the name of a model.

use std::sync::Arc;

use windlass::core::item::Item;
use windlass::core::usage::Usage;
use windlass::model::{
    DeltaSink, FinishReason, Model, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings,
    ToolDefinition,
};

use crate::StreamingMode;
use crate::call_ids::{CallIdMapper, CallIdScope};
use crate::endpoint::{ApiKeyHeader, EndpointConfig, ProviderEndpoint, endpoint_builder_methods};
use crate::error::SetupError;
use crate::exchange::{ProviderRequest, request_response};
use crate::protocol::{ModelProtocol, ProtocolRequest};

/// Maximum number of requests that continue a turn that the provider paused.
const MAX_CONTINUATIONS: usize = 16;

/// A provider with any protocol; the builder of [`ProviderModel`].
///
/// ```
/// use windlass_models::{ModelProvider, protocol::ChatProtocol};
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let azure = ModelProvider::new("azure", "https://me.openai.azure.com/openai/v1?api-version=preview")
///     .header("api-key", "…");
/// let model = azure.model(ChatProtocol::default(), "gpt-5.2")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ModelProvider {
    config: EndpointConfig,
}

impl ModelProvider {
    /// Creates a provider with this base URL, to which the protocol appends its path. Errors call it `name`. A key
    /// is sent as a bearer token.
    pub fn new(name: &str, base_url: &str) -> Self {
        Self { config: EndpointConfig::new(name, base_url, ApiKeyHeader::Bearer) }
    }

    endpoint_builder_methods!();

    /// Creates a model with this protocol.
    pub fn model<P: ModelProtocol>(&self, protocol: P, model: &str) -> Result<ProviderModel<P>, SetupError> {
        Ok(ProviderModel::new(self.config.build()?, protocol, model))
    }
}

/// A model of a provider.
#[derive(Clone, Debug)]
pub struct ProviderModel<P> {
    endpoint: Arc<ProviderEndpoint>,
    pub(crate) protocol: P,
    model: String,
    /// The origin of the items in this model's responses.
    origin: String,
    streaming: StreamingMode,
    call_id_scope: CallIdScope,
    context_window: Option<u64>,
}

impl<P: ModelProtocol> ProviderModel<P> {
    pub(crate) fn new(endpoint: ProviderEndpoint, protocol: P, model: &str) -> Self {
        let origin = format!("{}:{}", protocol.name(), endpoint.provider_id());
        let streaming = StreamingMode::default();
        let call_id_scope = CallIdScope::default();
        Self {
            endpoint: Arc::new(endpoint),
            protocol,
            model: model.to_owned(),
            origin,
            streaming,
            call_id_scope,
            context_window: None,
        }
    }

    /// Sets when responses are streamed.
    #[must_use]
    pub fn streaming(mut self, streaming: StreamingMode) -> Self {
        self.streaming = streaming;
        self
    }

    /// Sets the scope in which the provider's call ids are unique. For a provider that numbers the calls of each
    /// response, ids are made unique here, and the provider receives its own ids back.
    #[must_use]
    pub fn call_id_scope(mut self, scope: CallIdScope) -> Self {
        self.call_id_scope = scope;
        self
    }

    /// Sets the size of the model's context window in tokens. The history of a run is compacted before a request
    /// exceeds it.
    #[must_use]
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// As [`context_window`](Self::context_window), if the size is known.
    pub(crate) fn with_window(self, tokens: Option<u64>) -> Self {
        Self { context_window: tokens, ..self }
    }

    /// Sends one request and returns the response.
    ///
    /// # Cancel safety
    ///
    /// As [`request_response`].
    async fn send(&self, request: ModelRequest<'_>, deltas: &DeltaSink) -> Result<ModelResponse, ModelError> {
        let ids = CallIdMapper::new(self.call_id_scope, request);
        let input = ids.provider_input();
        let request = ProtocolRequest {
            request: ModelRequest { input: &input, ..request },
            model: &self.model,
            host: self.endpoint.host(),
            is_streamed: self.streaming.is_enabled(deltas),
            origin: &self.origin,
        };
        let encoded = self.protocol.encode(&request)?;
        let mut decoder = self.protocol.decoder(request);
        let sent = ProviderRequest {
            model: &self.model,
            encoded,
            is_streamed: request.is_streamed,
            call_id_suffix: ids.declared_suffix(),
        };
        let mut response = request_response(&self.endpoint, &mut *decoder, sent, deltas).await?;
        ids.make_unique(&mut response.items);
        Ok(response)
    }
}

impl<P: ModelProtocol> Model for ProviderModel<P> {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let mut response = self.send(request, deltas).await?;
        if !is_paused(&response) {
            return Ok(response);
        }
        // The provider paused a long turn. It continues when it receives what it said so far.
        let mut items = Vec::new();
        let mut usage = Usage::default();
        for _ in 0..MAX_CONTINUATIONS {
            usage.add(&response.usage.unwrap_or_else(Usage::of_unknown_request));
            items.append(&mut response.items);
            let input: Vec<Arc<Item>> = request.input.iter().chain(&items).cloned().collect();
            let next = self.send(ModelRequest { input: &input, ..request }, deltas).await;
            response = next.map_err(|error| {
                let mut spent = usage;
                spent.add(&error.usage().copied().unwrap_or_else(Usage::of_unknown_request));
                error.with_usage(Some(spent))
            })?;
            if !is_paused(&response) {
                usage.add(&response.usage.unwrap_or_else(Usage::of_unknown_request));
                items.append(&mut response.items);
                return Ok(ModelResponse { items, usage: Some(usage), ..response });
            }
        }
        let text = format!("the provider paused its turn more than {MAX_CONTINUATIONS} times");
        Err(ModelError::new(text)
            .with_kind(ModelErrorKind::Incomplete)
            .with_usage(Some(usage))
            .with_partial_response(Some(Box::new(ModelResponse { items, ..response }))))
    }

    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        self.protocol.check_tool_support(tool)
    }

    fn context_window(&self) -> Option<u64> {
        self.context_window
    }

    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        self.protocol.max_output_tokens(settings)
    }

    fn name(&self) -> Option<&str> {
        Some(&self.model)
    }

    fn provider(&self) -> Option<&str> {
        Some(self.protocol.provider_name())
    }

    fn has_stored_conversation(&self, last_response_id: Option<&str>) -> bool {
        self.protocol.has_stored_conversation(last_response_id)
    }
}

/// True if the provider paused its turn and waits for no output of a call.
fn is_paused(response: &ModelResponse) -> bool {
    response.details.finish_reason == Some(FinishReason::Paused)
        && !response.items.iter().any(|item| matches!(**item, Item::Call(_)))
}
