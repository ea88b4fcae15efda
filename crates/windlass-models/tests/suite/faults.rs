//! Faults that a retry does not mend, and the hints of errors.

use windlass::model::{ModelErrorKind, RetryAdvice};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{OpenAi, ProviderRegistry, StreamingMode};

use crate::support::{ALL_ADAPTERS, AdapterTestRequest, AdapterUnderTest, BOTH_MODES, send_once};

#[tokio::test]
async fn permanent_faults_are_not_retried() {
    let unsupported = r#"{"error":{"code":500,"message":"image input is not supported - hint: mmproj","type":"server_error"}}"#;
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            for (reply, kind) in [
                (FakeReply::text("x").header("content-encoding", "br"), ModelErrorKind::InvalidResponse),
                (
                    FakeReply::raw_body("Text/HTML; charset=utf-8", "<html>Please log in.</html>"),
                    ModelErrorKind::InvalidResponse,
                ),
                (FakeReply::json_body("{\"hello\":1}"), ModelErrorKind::InvalidResponse),
                (FakeReply::json_body(unsupported).with_status(500), ModelErrorKind::InvalidRequest),
                (FakeReply::status(501), ModelErrorKind::InvalidRequest),
            ] {
                let error = send_once(adapter, streaming, reply).await.expect_err("a fault");
                assert_eq!(
                    (error.kind(), error.retry_advice()),
                    (kind, RetryAdvice::Never),
                    "{adapter:?}, {streaming:?}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn media_types_have_no_case_and_a_byte_order_mark_is_no_fault() {
    let events =
        "\u{feff}data: {\"choices\":[{\"delta\":{\"content\":\"Hello.\"},\"finish_reason\":\"stop\"}]}\n\n";
    let reply = FakeReply::raw_body("Text/Event-Stream", events);
    let answer = send_once(AdapterUnderTest::Chat, StreamingMode::Always, reply).await.expect("an answer");
    assert_eq!(windlass::model::describe_item(&answer.items[0]), "assistant: Hello.");
    let body = "\u{feff}{\"choices\":[{\"message\":{\"content\":\"Hello.\"},\"finish_reason\":\"stop\"}]}";
    let answer = send_once(AdapterUnderTest::Chat, StreamingMode::Never, FakeReply::json_body(body))
        .await
        .expect("an answer");
    assert_eq!(windlass::model::describe_item(&answer.items[0]), "assistant: Hello.");
}

#[tokio::test]
async fn hints_fit_the_status() {
    let said = async |adapter: AdapterUnderTest, reply: FakeReply| {
        send_once(adapter, StreamingMode::Never, reply).await.expect_err("an error").to_string()
    };
    let moved = FakeReply::json_body("").with_status(307).header("location", "https://models.example/v1/x");
    let text = said(AdapterUnderTest::Chat, moved).await;
    assert!(text.contains("redirects to https://models.example/v1/x") && text.contains("base URL"), "{text}");
    let no_path = || FakeReply::json_body(r#"{"detail":"Not Found"}"#).with_status(404);
    let text = said(AdapterUnderTest::Responses, no_path()).await;
    assert!(text.contains("`/responses`") && text.contains("openai-chat:"), "{text}");
    assert!(!text.contains("is there a model"), "{text}");
    let text = said(AdapterUnderTest::Chat, no_path()).await;
    assert!(text.contains("`/chat/completions`") && !text.contains("openai-chat:"), "{text}");
    let no_model = FakeReply::json_body(r#"{"error":"model 'fake-1' not found"}"#).with_status(404);
    let text = said(AdapterUnderTest::Responses, no_model).await;
    assert!(text.contains("is there a model `fake-1`"), "{text}");
}

#[tokio::test]
async fn the_query_of_a_base_url_is_kept() {
    let provider = FakeProvider::start([FakeReply::text("a"), FakeReply::text("b")]).await.expect("one");
    let url = format!("{}/openai/v1/?api-version=2026-01-01&x=y", provider.root_url());
    for (model, path) in [
        (OpenAi::at(&url).responses("m").expect("a model").into(), "/openai/v1/responses"),
        (OpenAi::at(&url).chat("m").expect("a model").into(), "/openai/v1/chat/completions"),
    ] {
        AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
        let sent = provider.requests().pop().expect("a request").path;
        assert_eq!(sent, format!("{path}?api-version=2026-01-01&x=y"));
    }
}

#[tokio::test]
async fn local_servers_have_keys_too() {
    for (name, address, key) in [
        ("llamacpp", "LLAMACPP_BASE_URL", "LLAMACPP_API_KEY"),
        ("lmstudio", "LMSTUDIO_BASE_URL", "LMSTUDIO_API_KEY"),
        ("ollama", "OLLAMA_HOST", "OLLAMA_API_KEY"),
        ("vllm", "VLLM_BASE_URL", "VLLM_API_KEY"),
    ] {
        let provider =
            FakeProvider::start([FakeReply::text("a"), FakeReply::status(401)]).await.expect("one");
        let url = provider.base_url();
        let providers = ProviderRegistry::from_vars(|variable| match variable {
            variable if variable == address => Some(url.clone()),
            variable if variable == key => Some("k1".to_owned()),
            _ => None,
        });
        let model = providers.model(&format!("{name}:m")).expect("a model");
        AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
        let header = provider.requests()[0].headers.get("authorization").cloned();
        assert_eq!(header.as_deref(), Some("Bearer k1"));
        let error = AdapterTestRequest::from_text("x").send(&model).await.expect_err("no entry");
        assert!(error.to_string().contains(key), "{error}");
    }
}
