//! Models of every provider at a fake server, and requests to them.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::id::AgentName;
use windlass::core::item::Item;
use windlass::model::{
    DeltaSink, ModelError, ModelRequest, ModelResponse, ModelSettings, OutputSchema, SharedModel,
    ToolDefinition, ToolKind,
};
use windlass_models::ProviderRegistry;
use windlass_models::testing::{FakeProvider, FakeReply, ReceivedRequest};

/// The variable that sets the address of each provider, and its API.
pub(crate) const PROVIDERS: [(&str, &str, &str); 21] = [
    ("openai", "OPENAI_BASE_URL", "responses"),
    ("openai-responses", "OPENAI_BASE_URL", "responses"),
    ("azure", "AZURE_OPENAI_ENDPOINT", "responses"),
    ("openai-chat", "OPENAI_BASE_URL", "chat"),
    ("azure-chat", "AZURE_OPENAI_ENDPOINT", "chat"),
    ("llamacpp", "LLAMACPP_BASE_URL", "chat"),
    ("ollama", "OLLAMA_HOST", "chat"),
    ("vllm", "VLLM_BASE_URL", "chat"),
    ("lmstudio", "LMSTUDIO_BASE_URL", "chat"),
    ("mistral", "MISTRAL_BASE_URL", "chat"),
    ("groq", "GROQ_BASE_URL", "chat"),
    ("openrouter", "OPENROUTER_BASE_URL", "chat"),
    ("deepseek", "DEEPSEEK_BASE_URL", "chat"),
    ("xai", "XAI_BASE_URL", "chat"),
    ("together", "TOGETHER_BASE_URL", "chat"),
    ("fireworks", "FIREWORKS_BASE_URL", "chat"),
    ("anthropic", "ANTHROPIC_BASE_URL", "messages"),
    ("bedrock-anthropic", "BEDROCK_BASE_URL", "messages"),
    ("gemini", "GEMINI_BASE_URL", "gemini"),
    ("vertex", "VERTEX_BASE_URL", "gemini"),
    ("bedrock", "BEDROCK_BASE_URL", "converse"),
];

/// Returns an answer with the text `ok` in an API's format.
pub(crate) fn plain_answer(api: &str) -> FakeReply {
    let body = match api {
        "responses" => json!({ "id": "r1", "object": "response", "status": "completed", "output": [
            { "type": "message", "role": "assistant", "id": "m1", "status": "completed",
              "content": [{ "type": "output_text", "text": "ok", "annotations": [] }] },
        ]}),
        "chat" => json!({ "id": "c1", "choices": [
            { "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": "ok" } },
        ]}),
        "messages" => json!({ "id": "m1", "type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{ "type": "text", "text": "ok" }], "usage": { "input_tokens": 3, "output_tokens": 1 } }),
        "gemini" => json!({ "candidates": [
            { "content": { "role": "model", "parts": [{ "text": "ok" }] }, "finishReason": "STOP" },
        ], "usageMetadata": { "promptTokenCount": 3, "candidatesTokenCount": 1 } }),
        "converse" => {
            json!({ "output": { "message": { "role": "assistant", "content": [{ "text": "ok" }] } },
            "stopReason": "end_turn", "usage": { "inputTokens": 3, "outputTokens": 1, "totalTokens": 4 } })
        }
        other => panic!("there is no API `{other}`"),
    };
    FakeReply::json_body(body.to_string())
}

/// Returns a registry in which a provider is at the fake server.
pub(crate) fn registry_at(server: &FakeProvider, address_variable: &str) -> ProviderRegistry {
    let is_rooted = [
        "AZURE_OPENAI_ENDPOINT",
        "ANTHROPIC_BASE_URL",
        "BEDROCK_BASE_URL",
        "GEMINI_BASE_URL",
        "VERTEX_BASE_URL",
    ];
    let address = match is_rooted.contains(&address_variable) {
        true => server.root_url(),
        false => server.base_url(),
    };
    ProviderRegistry::from_vars(move |name| match name {
        name if name == address_variable => Some(address.clone()),
        "AWS_REGION" => Some("eu-central-1".to_owned()),
        "GOOGLE_CLOUD_PROJECT" => Some("shop".to_owned()),
        "GOOGLE_ACCESS_TOKEN" => Some("the-token".to_owned()),
        name if name.ends_with("_API_KEY") || name == "AWS_BEARER_TOKEN_BEDROCK" => {
            Some(format!("the-{name}"))
        }
        _ => None,
    })
}

/// The variable parts of a request.
#[derive(Default)]
pub(crate) struct TestRequest {
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) tools: Vec<ToolDefinition>,
    pub(crate) deferred_tools: Vec<ToolDefinition>,
    pub(crate) conversation_id: Option<String>,
    pub(crate) settings: ModelSettings,
    pub(crate) output: Option<OutputSchema>,
}

impl TestRequest {
    pub(crate) fn from_items(items: impl IntoIterator<Item = Item>) -> Self {
        Self { input: items.into_iter().map(Arc::new).collect(), ..Self::default() }
    }

    pub(crate) async fn send(&self, model: &SharedModel) -> Result<ModelResponse, ModelError> {
        let agent = AgentName::from("host");
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: Some("Be brief."),
            input: &self.input,
            tools: &self.tools,
            deferred_tools: &self.deferred_tools,
            handoffs: &[],
            settings: &self.settings,
            output_schema: self.output.as_ref(),
            previous_response_id: None,
            conversation_id: self.conversation_id.as_deref(),
        };
        model.respond(request, &DeltaSink::discarding()).await
    }
}

pub(crate) fn function_tool(name: &str) -> ToolDefinition {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    ToolDefinition {
        name: name.into(),
        namespace: None,
        description: "Current weather.".into(),
        parameters: Arc::new(parameters),
        is_strict: false,
        kind: ToolKind::Function,
    }
}

pub(crate) fn hosted_tool(definition: Value) -> ToolDefinition {
    ToolDefinition { kind: ToolKind::Hosted(Arc::new(definition)), ..function_tool("hosted") }
}

/// Sends one request to a provider by name, and returns what the server received.
pub(crate) async fn send_to(
    (provider, variable, api): (&str, &str, &str),
    request: &TestRequest,
) -> Result<ReceivedRequest, ModelError> {
    let server = FakeProvider::start([plain_answer(api)]).await.expect("a server");
    let model = registry_at(&server, variable).model(&format!("{provider}:m1")).expect("a model");
    let answered = request.send(&model).await;
    match answered {
        Ok(answer) => {
            let text: Vec<String> = answer
                .items
                .iter()
                .map(|item| match &**item {
                    Item::Message(message) => message.text(),
                    other => format!("{other:?}"),
                })
                .collect();
            assert_eq!(text, ["ok"], "{provider}");
            Ok(server.requests().remove(0))
        }
        Err(error) => {
            assert!(server.requests().is_empty(), "{provider}: nothing is sent: {error}");
            Err(error)
        }
    }
}
