//! The addresses and the authorisation of providers by name.

use serde_json::json;
use windlass::core::item::{CallOutput, Item, OutputStatus};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{
    AccessToken, AzureOpenAi, BearerTokenSigner, Gemini, ProviderRegistry, ProviderSettings, ServerApi,
};

use crate::support::{PROVIDERS, TestRequest, plain_answer, send_to};

fn hello() -> TestRequest {
    TestRequest::from_items([Item::user("Hello")])
}

#[tokio::test]
async fn every_provider_has_its_path_and_its_key() {
    let expected = [
        ("/v1/responses", "authorization", "Bearer the-OPENAI_API_KEY"),
        ("/v1/responses", "authorization", "Bearer the-OPENAI_API_KEY"),
        ("/openai/v1/responses", "api-key", "the-AZURE_OPENAI_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-OPENAI_API_KEY"),
        ("/openai/v1/chat/completions", "api-key", "the-AZURE_OPENAI_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-LLAMACPP_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-OLLAMA_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-VLLM_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-LMSTUDIO_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-MISTRAL_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-GROQ_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-OPENROUTER_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-DEEPSEEK_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-XAI_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-TOGETHER_API_KEY"),
        ("/v1/chat/completions", "authorization", "Bearer the-FIREWORKS_API_KEY"),
        ("/v1/messages", "x-api-key", "the-ANTHROPIC_API_KEY"),
        ("/model/m1/invoke", "authorization", "Bearer the-AWS_BEARER_TOKEN_BEDROCK"),
        ("/models/m1:generateContent", "x-goog-api-key", "the-GEMINI_API_KEY"),
        (
            "/projects/shop/locations/global/publishers/google/models/m1:generateContent",
            "authorization",
            "Bearer the-token",
        ),
        ("/model/m1/converse", "authorization", "Bearer the-AWS_BEARER_TOKEN_BEDROCK"),
    ];
    assert_eq!(PROVIDERS.len(), expected.len());
    for (provider, (path, header, value)) in PROVIDERS.into_iter().zip(expected) {
        let sent = send_to(provider, &hello()).await.expect("an answer");
        assert_eq!((sent.path.as_str(), sent.headers[header].as_str()), (path, value), "{}", provider.0);
    }
}

#[tokio::test]
async fn azure_has_both_forms_of_address_and_of_authorisation() {
    for (version, path, body_model) in [
        (None, "/openai/v1/chat/completions", json!("gpt 5")),
        (
            Some("2024-10-21"),
            "/openai/deployments/gpt%205/chat/completions?api-version=2024-10-21",
            json!("gpt 5"),
        ),
    ] {
        let server = FakeProvider::start([plain_answer("chat")]).await.expect("a server");
        let mut azure = AzureOpenAi::new(&format!("{}/openai/v1/", server.root_url())).key("k");
        if let Some(version) = version {
            azure = azure.api_version(version);
        }
        hello().send(&azure.chat("gpt 5").expect("a model").into()).await.expect("an answer");
        let sent = server.requests().remove(0);
        assert_eq!((sent.path.as_str(), &sent.body["model"]), (path, &body_model));
        assert_eq!(sent.headers["api-key"], "k");
    }
    let server = FakeProvider::start([plain_answer("responses")]).await.expect("a server");
    let azure = AzureOpenAi::new(&server.root_url()).entra_token("t").api_version("2025-04-01-preview");
    hello().send(&azure.responses("gpt").expect("a model").into()).await.expect("an answer");
    let sent = server.requests().remove(0);
    assert_eq!(sent.path, "/openai/responses?api-version=2025-04-01-preview");
    assert_eq!((sent.headers["authorization"].as_str(), sent.headers.get("api-key")), ("Bearer t", None));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_fetched_again_before_it_expires() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    let fetched = Arc::new(AtomicU32::new(0));
    let count = fetched.clone();
    let signer = BearerTokenSigner::new(move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        async move {
            Ok(AccessToken { token: format!("t{number}").into(), valid_for: Some(Duration::from_secs(3600)) })
        }
    });
    let request = || windlass_models::net::http::Request::new(windlass_models::net::Bytes::new());
    let mut seen = Vec::new();
    for wait in [0, 1_000, 2_500, 100] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        let mut signed = request();
        windlass_models::RequestSigner::sign(&signer, &mut signed).await.expect("a token");
        seen.push(signed.headers()["authorization"].to_str().expect("text").to_owned());
    }
    assert_eq!(seen, ["Bearer t0", "Bearer t0", "Bearer t0", "Bearer t1"]);
}

#[tokio::test]
async fn vertex_names_the_project_and_the_location() {
    let server = FakeProvider::start([plain_answer("gemini")]).await.expect("a server");
    let vertex = Gemini::vertex_at(&format!("{}/v1", server.root_url()), "shop", "europe-west4").key("token");
    let mut request = hello();
    request.settings.metadata.insert("team".to_owned(), "a".to_owned());
    request.send(&vertex.model("gemini-2.5-flash").expect("a model").into()).await.expect("an answer");
    let sent = server.requests().remove(0);
    let path =
        "/v1/projects/shop/locations/europe-west4/publishers/google/models/gemini-2.5-flash:generateContent";
    assert_eq!((sent.path.as_str(), sent.headers["authorization"].as_str()), (path, "Bearer token"));
    assert_eq!(sent.body["labels"], json!({ "team": "a" }));
}

#[tokio::test]
async fn a_server_of_the_configuration_has_its_api_headers_and_key() {
    for (api, name, path, key) in [
        (ServerApi::Chat, "chat", "/gate/chat/completions?tenant=7", "authorization"),
        (ServerApi::Responses, "responses", "/gate/responses?tenant=7", "authorization"),
        (ServerApi::Messages, "messages", "/gate/v1/messages?tenant=7", "x-api-key"),
        (ServerApi::Gemini, "gemini", "/gate/models/m1:generateContent?tenant=7", "x-goog-api-key"),
        (ServerApi::Converse, "converse", "/gate/model/m1/converse?tenant=7", "authorization"),
    ] {
        let server = FakeProvider::start([plain_answer(name)]).await.expect("a server");
        let mut settings = ProviderSettings::new(&format!("{}/gate?tenant=7", server.root_url()), api);
        settings.key_variable = Some("LAB_KEY".to_owned());
        settings.headers.insert("x-team".to_owned(), "env:TEAM".to_owned());
        settings.context_window = Some(8_000);
        let var = |name: &str| Some(format!("value of {name}"));
        let model = settings.model("lab", "m1", var).expect("a model");
        assert_eq!(model.context_window(), Some(8_000));
        hello().send(&model).await.expect("an answer");
        let sent = server.requests().remove(0);
        assert_eq!((sent.path.as_str(), sent.headers["x-team"].as_str()), (path, "value of TEAM"));
        assert!(sent.headers[key].ends_with("value of LAB_KEY"), "{:?}", sent.headers);
        let missing = settings.model("lab", "m1", |_| None).expect_err("the variable is not set").to_string();
        assert!(missing.contains("LAB_KEY") && missing.contains("lab"), "{missing}");
    }
}

#[tokio::test]
async fn a_server_of_the_configuration_has_its_dialect_its_owner_and_its_time_limits() {
    use windlass_models::protocol::{ChatOutputFormat, TokenLimitField};
    let server = FakeProvider::start([plain_answer("chat"), FakeReply::text("late").stall_at(20)])
        .await
        .expect("a server");
    let mut settings = ProviderSettings::new(&server.base_url(), ServerApi::Chat);
    settings.token_limit = TokenLimitField::MaxCompletionTokens;
    settings.output_format = ChatOutputFormat::JsonObject;
    settings.provider_id = Some("lab".to_owned());
    let model = settings.model("lab", "m1", |_| None).expect("a model");
    let mut request = hello();
    request.settings.max_tokens = Some(7);
    let schema = json!({ "type": "object" });
    let output = windlass::model::OutputSchema { name: "R".to_owned(), schema, is_strict: true };
    request.output = Some(output);
    request.send(&model).await.expect("an answer");
    let sent = server.requests().remove(0).body;
    assert_eq!((&sent["max_completion_tokens"], sent.get("max_tokens")), (&json!(7), None));
    assert_eq!(sent["response_format"], json!({ "type": "json_object" }));

    settings.total_timeout_seconds = Some(1);
    let model = settings.model("lab", "m1", |_| None).expect("a model");
    let late = request.send(&model).await.expect_err("there is no time");
    assert_eq!(late.kind(), windlass::model::ModelErrorKind::TimedOut, "{late}");
}

#[test]
fn the_list_says_what_is_set_up() {
    let providers = ProviderRegistry::from_vars(|name| (name == "GROQ_API_KEY").then(|| "k".to_owned()))
        .with_server_at("lab", "http://lab:8000/v1")
        .providers();
    let find = |name: &str| providers.iter().find(|one| one.name == name).expect("it is listed");
    assert!(find("groq").is_configured && find("ollama").is_configured && find("lab").is_configured);
    assert!(!find("openai").is_configured);
    assert_eq!(find("azure").missing_variables, ["AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"]);
    assert_eq!(find("groq").base_url.as_deref(), Some("https://api.groq.com/openai/v1"));
}

#[tokio::test]
async fn mistral_gets_ids_in_its_own_form_and_deepseek_the_schema_in_words() {
    let output = |call: &str| {
        Item::Output(CallOutput {
            call: call.into(),
            content: "rain".into(),
            status: OutputStatus::Ok,
            sources: Default::default(),
        })
    };
    let items = [
        Item::user("Hello"),
        Item::call("call_of_another_provider", "weather", "{}"),
        output("call_of_another_provider"),
        Item::call("aB3456789", "weather", "{}"),
        output("aB3456789"),
    ];
    let request = TestRequest::from_items(items);
    let sent = send_to(("mistral", "MISTRAL_BASE_URL", "chat"), &request).await.expect("an answer").body;
    let id = |place: usize, pointer: &str| sent["messages"][place].pointer(pointer).expect("an id").clone();
    let replaced = id(2, "/tool_calls/0/id");
    let letters = replaced.as_str().expect("text");
    assert!(letters.len() == 9 && letters.bytes().all(|b| b.is_ascii_alphanumeric()), "{letters}");
    assert_eq!(id(3, "/tool_call_id"), replaced, "a call and its output have one id");
    assert_eq!((id(4, "/tool_calls/0/id"), id(5, "/tool_call_id")), (json!("aB3456789"), json!("aB3456789")));

    let mut typed = hello();
    typed.output = Some(windlass::model::OutputSchema {
        name: "Report".to_owned(),
        schema: json!({ "type": "object", "title": "R7" }),
        is_strict: true,
    });
    let sent = send_to(("deepseek", "DEEPSEEK_BASE_URL", "chat"), &typed).await.expect("an answer").body;
    assert_eq!(sent["response_format"], json!({ "type": "json_object" }));
    assert!(sent["messages"][1]["content"].as_str().expect("text").contains("R7"), "{sent}");
}
