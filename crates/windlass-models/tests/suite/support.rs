//! The adapters, and how they are asked.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::AgentName;
use windlass::model::{
    Answer, Deltas, ModelError, ModelRequest, ModelSettings, OfferedKind, OfferedTool, OutputShape,
    SharedModel,
};
use windlass::{Item, Usage};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{Streaming, Timeouts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adapter {
    Responses,
    Chat,
    Messages,
}

pub(crate) const ALL: [Adapter; 3] = [Adapter::Responses, Adapter::Chat, Adapter::Messages];
pub(crate) const BOTH: [Streaming; 2] = [Streaming::Never, Streaming::Always];

/// Long enough for a busy machine, and short enough to wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(400);

impl Adapter {
    pub(crate) fn model(self, provider: &FakeProvider, streaming: Streaming) -> SharedModel {
        self.model_within(provider, streaming, Timeouts::default())
    }

    pub(crate) fn model_within(
        self,
        provider: &FakeProvider,
        streaming: Streaming,
        timeouts: Timeouts,
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

/// Everything a model is asked with.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) instructions: Option<String>,
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) tools: Vec<OfferedTool>,
    pub(crate) settings: ModelSettings,
    pub(crate) output: Option<OutputShape>,
    pub(crate) previous: Option<String>,
}

impl Asked {
    pub(crate) fn text(text: &str) -> Self {
        Self { input: vec![Arc::new(Item::user(text))], ..Self::default() }
    }

    pub(crate) fn items(items: impl IntoIterator<Item = Item>) -> Self {
        Self { input: items.into_iter().map(Arc::new).collect(), ..Self::default() }
    }

    pub(crate) async fn ask(&self, model: &SharedModel) -> Result<Answer, ModelError> {
        let agent = AgentName::from("host");
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: self.instructions.as_deref(),
            input: &self.input,
            tools: &self.tools,
            handoffs: &[],
            settings: &self.settings,
            output: self.output.as_ref(),
            previous_response: self.previous.as_deref(),
        };
        model.answer(request, &Deltas::ignored()).await
    }
}

pub(crate) fn tool(name: &str) -> OfferedTool {
    let parameters = serde_json::json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
        "additionalProperties": false,
    });
    OfferedTool {
        name: name.into(),
        namespace: None,
        description: "Current weather.".into(),
        parameters: Arc::new(parameters),
        strict: true,
        kind: OfferedKind::Function,
    }
}

/// Asks once, of a provider with this one answer.
pub(crate) async fn once(
    adapter: Adapter,
    streaming: Streaming,
    reply: FakeReply,
) -> Result<Answer, ModelError> {
    let provider = FakeProvider::start([reply]).await.expect("a provider");
    Asked::text("Good morning.").ask(&adapter.model(&provider, streaming)).await
}

/// The same, with little patience.
pub(crate) async fn once_impatiently(
    adapter: Adapter,
    streaming: Streaming,
    reply: FakeReply,
) -> Result<Answer, ModelError> {
    let provider = FakeProvider::start([reply]).await.expect("a provider");
    let timeouts = Timeouts { connect: Duration::from_secs(30), idle: SHORT, whole: SHORT };
    Asked::text("Good morning.").ask(&adapter.model_within(&provider, streaming, timeouts)).await
}

/// Answers of every sort.
pub(crate) fn replies() -> Vec<(&'static str, FakeReply)> {
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

pub(crate) fn usage(read: u64, cached: u64, written: u64, reasoning: u64) -> Usage {
    Usage { cached_tokens: cached, reasoning_tokens: reasoning, ..Usage::tokens(read, written) }
}
