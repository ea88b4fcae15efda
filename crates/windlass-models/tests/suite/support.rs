//! The adapters under test, and helpers that send requests through them.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::id::AgentName;
use windlass::model::{
    DeltaSink, ModelError, ModelRequest, ModelResponse, ModelSettings, OutputSchema, SharedModel,
    ToolDefinition, ToolKind,
};
use windlass::{core::item::Item, core::usage::Usage};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{ProviderTimeouts, StreamingMode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdapterUnderTest {
    Responses,
    Chat,
    Messages,
}

pub(crate) const ALL_ADAPTERS: [AdapterUnderTest; 3] =
    [AdapterUnderTest::Responses, AdapterUnderTest::Chat, AdapterUnderTest::Messages];
pub(crate) const BOTH_MODES: [StreamingMode; 2] = [StreamingMode::Never, StreamingMode::Always];

/// Timeout for tests of stalls: long enough for a busy machine, short enough to wait for.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(400);

impl AdapterUnderTest {
    pub(crate) fn model(self, provider: &FakeProvider, streaming: StreamingMode) -> SharedModel {
        self.model_with_timeouts(provider, streaming, ProviderTimeouts::default())
    }

    pub(crate) fn model_with_timeouts(
        self,
        provider: &FakeProvider,
        streaming: StreamingMode,
        timeouts: ProviderTimeouts,
    ) -> SharedModel {
        let openai = provider.openai().timeouts(timeouts);
        let anthropic = provider.anthropic().timeouts(timeouts);
        match self {
            Self::Responses => openai.responses("fake-1").expect("a model").streaming(streaming).into(),
            Self::Chat => openai.chat("fake-1").expect("a model").streaming(streaming).into(),
            Self::Messages => anthropic.messages("fake-1").expect("a model").streaming(streaming).into(),
        }
    }
}

/// The variable parts of a model request.
#[derive(Default)]
pub(crate) struct AdapterTestRequest {
    pub(crate) instructions: Option<String>,
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) deferred_tools: Vec<ToolDefinition>,
    pub(crate) conversation_id: Option<String>,
    pub(crate) tools: Vec<ToolDefinition>,
    pub(crate) handoffs: Vec<ToolDefinition>,
    pub(crate) settings: ModelSettings,
    pub(crate) output: Option<OutputSchema>,
    pub(crate) previous_response: Option<String>,
}

impl AdapterTestRequest {
    pub(crate) fn from_text(text: &str) -> Self {
        Self { input: vec![Arc::new(Item::user(text))], ..Self::default() }
    }

    pub(crate) fn from_items(items: impl IntoIterator<Item = Item>) -> Self {
        Self { input: items.into_iter().map(Arc::new).collect(), ..Self::default() }
    }

    pub(crate) async fn send(&self, model: &SharedModel) -> Result<ModelResponse, ModelError> {
        let agent = AgentName::from("host");
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: self.instructions.as_deref(),
            input: &self.input,
            tools: &self.tools,
            deferred_tools: &self.deferred_tools,
            handoffs: &self.handoffs,
            settings: &self.settings,
            output_schema: self.output.as_ref(),
            previous_response_id: self.previous_response.as_deref(),
            conversation_id: self.conversation_id.as_deref(),
        };
        model.respond(request, &DeltaSink::discarding()).await
    }
}

pub(crate) fn function_tool(name: &str) -> ToolDefinition {
    let parameters = serde_json::json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    ToolDefinition {
        name: name.into(),
        namespace: None,
        description: "Current weather.".into(),
        parameters: Arc::new(parameters),
        is_strict: true,
        kind: ToolKind::Function,
    }
}

/// Sends one request to a provider whose script is this one reply.
pub(crate) async fn send_once(
    adapter: AdapterUnderTest,
    streaming: StreamingMode,
    reply: FakeReply,
) -> Result<ModelResponse, ModelError> {
    let provider = FakeProvider::start([reply]).await.expect("a provider");
    AdapterTestRequest::from_text("Good morning.").send(&adapter.model(&provider, streaming)).await
}

/// As [`send_once`], with [`SHORT_TIMEOUT`] as the idle and total timeouts.
pub(crate) async fn send_once_with_short_timeouts(
    adapter: AdapterUnderTest,
    streaming: StreamingMode,
    reply: FakeReply,
) -> Result<ModelResponse, ModelError> {
    let provider = FakeProvider::start([reply]).await.expect("a provider");
    let timeouts =
        ProviderTimeouts { connect: Duration::from_secs(30), idle: SHORT_TIMEOUT, total: SHORT_TIMEOUT };
    AdapterTestRequest::from_text("Good morning.")
        .send(&adapter.model_with_timeouts(&provider, streaming, timeouts))
        .await
}

/// Returns named replies of every kind.
pub(crate) fn sample_replies() -> Vec<(&'static str, FakeReply)> {
    let city = r#"{"city":"Tromsø \"north\" 🚢"}"#;
    vec![
        ("text", FakeReply::text("Good morning. Grüße, 日本, 🚢, a \"quote\", a\nline, a \\.")),
        ("empty text", FakeReply::text("")),
        ("one call", FakeReply::call("c1", "weather", city)),
        ("calls", FakeReply::text("I look.").and_call("c1", "weather", city).and_call("c2", "weather", "{}")),
        ("reasoning", FakeReply::reasoning("rs_1", "It is morning.\nSo.").and_text("Good morning.")),
        ("reasoning and a call", FakeReply::reasoning("rs_1", "Look.").and_call("c1", "weather", city)),
        ("refusal", FakeReply::refusal("I will not.")),
        ("usage", FakeReply::text("Hm.").usage(1000, 800, 50, 40)),
    ]
}

pub(crate) fn expected_usage(read: u64, cached: u64, written: u64, reasoning: u64) -> Usage {
    Usage { cached_tokens: cached, reasoning_tokens: reasoning, ..Usage::of_tokens(read, written) }
}
