//! Error responses of providers, and the errors that operators see.

use std::time::Duration;

use hyper::Request;
use serde_json::json;

use windlass::agent::Agent;
use windlass::core::journal::JournalEntry;
use windlass::model::{ModelErrorKind, RetryAdvice};
use windlass_models::net::{BoxFuture, Bytes};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};
use windlass_models::{Anthropic, OpenAi, ProviderTimeouts, RequestSigner, SignError, StreamingMode};

use crate::support::{ALL_ADAPTERS, AdapterTestRequest, AdapterUnderTest, BOTH_MODES, send_once};

#[tokio::test]
async fn statuses_are_told_apart() {
    use ModelErrorKind::{InvalidRequest, ModelNotFound, Overloaded, RateLimited, ServerError, Unauthorised};
    let statuses = [
        (400, InvalidRequest, RetryAdvice::Never),
        (401, Unauthorised, RetryAdvice::Never),
        (403, Unauthorised, RetryAdvice::Never),
        (404, ModelNotFound, RetryAdvice::Never),
        (429, RateLimited, RetryAdvice::Safe),
        (500, ServerError, RetryAdvice::Safe),
        (502, ServerError, RetryAdvice::Safe),
        (503, Overloaded, RetryAdvice::Safe),
        (529, Overloaded, RetryAdvice::Safe),
    ];
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            for (status, kind, advice) in statuses {
                let error =
                    send_once(adapter, streaming, FakeReply::status(status)).await.expect_err("an error");
                assert_eq!(
                    (error.kind(), error.retry_advice()),
                    (kind, advice),
                    "{adapter:?} {status}: {error}"
                );
                assert_eq!(error.request_id(), Some("req_1"));
            }
        }
    }
}

#[tokio::test]
async fn words_of_providers_are_understood() {
    let cases = [
        (
            400,
            r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#,
            ModelErrorKind::ContextLengthExceeded,
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens"}}"#,
            ModelErrorKind::ContextLengthExceeded,
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000"}}"#,
            ModelErrorKind::ContextLengthExceeded,
        ),
        (
            400,
            r#"{"error":"This model's maximum prompt length is 131072 but the request contains 136973 tokens."}"#,
            ModelErrorKind::ContextLengthExceeded,
        ),
        (
            422,
            r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens and 100 `max_new_tokens`"}"#,
            ModelErrorKind::ContextLengthExceeded,
        ),
        // Bedrock, of the model behind it.
        (424, r#"{"message":"The model returned an error."}"#, ModelErrorKind::ServerError),
        (425, r#"{"error":"too early"}"#, ModelErrorKind::ServerError),
        (402, r#"{"error":{"message":"Insufficient Balance"}}"#, ModelErrorKind::QuotaExceeded),
        (400, r#"{"error":{"message":"x","code":"content_filter"}}"#, ModelErrorKind::ContentFilter),
        (429, r#"{"error":{"message":"x","code":"insufficient_quota"}}"#, ModelErrorKind::QuotaExceeded),
        (404, r#"{"error":"model 'x' not found"}"#, ModelErrorKind::ModelNotFound),
        (
            400,
            r#"{"error":{"message":"No connected db.","type":"no_db_connection","param":null,"code":"400"}}"#,
            ModelErrorKind::Unauthorised,
        ),
        (422, r#"{"detail":[{"msg":"field required"}]}"#, ModelErrorKind::InvalidRequest),
        (502, "<html>bad gateway</html>", ModelErrorKind::ServerError),
    ];
    for adapter in ALL_ADAPTERS {
        for (status, body, kind) in cases {
            let provider = FakeProvider::start([FakeReply::json_body(body).with_status(status)])
                .await
                .expect("a provider");
            let error = AdapterTestRequest::from_text("x")
                .send(&adapter.model(&provider, StreamingMode::Never))
                .await
                .expect_err("an error");
            assert_eq!(error.kind(), kind, "{adapter:?} {body}: {error}");
        }
    }
}

/// A run learns its window from the figures of a refusal.
#[tokio::test]
async fn the_window_that_a_refusal_names_is_kept() {
    let named = [
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 150016 tokens.",
            128_000,
        ),
        ("prompt is too long: 213462 tokens > 200000 maximum", 200_000),
        (
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
            200_000,
        ),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1_048_576,
        ),
        ("This model's maximum prompt length is 131,072 but the request contains 537812 tokens.", 131_072),
        ("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens", 4_097),
        ("Prompt contains 40960 tokens, too large for model with 32768 maximum context length", 0),
        ("Input is too long for requested model.", 0),
    ];
    let mut cases: Vec<(String, Option<u64>)> = named
        .map(|(text, window)| {
            (json!({ "error": { "message": text } }).to_string(), Some(window).filter(|n| *n > 0))
        })
        .into();
    cases.push((
        r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}"#.to_owned(),
        Some(4_096),
    ));
    for adapter in ALL_ADAPTERS {
        for (body, window) in &cases {
            let reply = FakeReply::json_body(body.clone()).with_status(400);
            let error = send_once(adapter, StreamingMode::Never, reply).await.expect_err("it is refused");
            assert_eq!(error.kind(), ModelErrorKind::ContextLengthExceeded, "{adapter:?} {body}");
            assert_eq!(error.context_window(), *window, "{adapter:?} {body}");
        }
        let other = FakeReply::json_body(r#"{"error":{"message":"top_p must be <= 1"}}"#).with_status(400);
        let error = send_once(adapter, StreamingMode::Never, other).await.expect_err("it is refused");
        assert_eq!(error.context_window(), None, "not every number is a window");
    }
}

#[tokio::test]
async fn the_providers_word_on_waiting_is_kept() {
    for adapter in ALL_ADAPTERS {
        let reply = FakeReply::status(429).header("retry-after", "7");
        let error = send_once(adapter, StreamingMode::Always, reply).await.expect_err("a limit");
        assert_eq!(error.retry_advice(), RetryAdvice::After(Duration::from_secs(7)));
        let reply = FakeReply::status(500).header("x-should-retry", "false");
        let error = send_once(adapter, StreamingMode::Always, reply).await.expect_err("a failure");
        assert_eq!(error.retry_advice(), RetryAdvice::Never);
    }
}

#[tokio::test]
async fn a_run_asks_again_and_its_journal_says_so() {
    for adapter in ALL_ADAPTERS {
        let limit = FakeReply::status(429).header("retry-after-ms", "20");
        let broken = FakeReply::status(500).header("retry-after-ms", "10");
        let provider =
            FakeProvider::start([limit, broken, FakeReply::text("At last.")]).await.expect("a provider");
        let agent = Agent::new("host").model(adapter.model(&provider, StreamingMode::WhenWatched));
        let outcome = agent.run("Good morning.").await.expect("an outcome");
        assert_eq!(outcome.output_text().expect("the run finished"), "At last.");
        assert_eq!(provider.requests().len(), 3);
        let waits: Vec<Option<u64>> = outcome
            .record()
            .journal()
            .iter()
            .filter_map(|record| match &record.entry {
                JournalEntry::ModelRequestFailed(failed) => Some(failed.retry_after_ms),
                _ => None,
            })
            .collect();
        assert!(matches!(waits[..], [Some(20..=25), Some(10..=13)]), "{waits:?}");
        let usage = outcome.record().usage();
        assert_eq!((usage.requests, usage.unknown_requests), (3, 2));
    }
}

#[tokio::test]
async fn nobody_is_told_the_key() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let echo = format!(r#"{{"error":{{"message":"the key {FAKE_KEY} is not valid"}}}}"#);
            let reply = FakeReply::json_body(echo).with_status(401);
            let error = send_once(adapter, streaming, reply).await.expect_err("no entry");
            let text = format!("{error} {error:?}");
            assert!(!text.contains(FAKE_KEY), "{text}");
            assert!(error.to_string().contains("_API_KEY"), "and which variable to look at: {error}");
        }
    }
}

/// A signer that adds a token to the headers and one to the address, and marks neither as sensitive.
#[derive(Debug)]
struct CarelessSigner;

impl RequestSigner for CarelessSigner {
    fn sign<'a>(&'a self, request: &'a mut Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
        Box::pin(async {
            request.headers_mut().insert("x-session", "Token signed-in-a-header".parse()?);
            *request.uri_mut() = format!("{}?key=signed-in-the-address", request.uri()).parse()?;
            Ok(())
        })
    }
}

#[tokio::test]
async fn nobody_is_told_the_secrets_of_headers_and_signers() {
    let secrets = ["given-as-a-header", "signed-in-a-header", "signed-in-the-address"];
    for streaming in BOTH_MODES {
        let echo = format!(r#"{{"error":{{"message":"refused: {}"}}}}"#, secrets.join(" and "));
        let provider = FakeProvider::start([FakeReply::json_body(echo).with_status(400)]).await;
        let provider = provider.expect("a provider");
        let client = OpenAi::at(&provider.base_url()).header("x-gateway-key", secrets[0]);
        let client = client.header("x-region", "refused").signer(CarelessSigner);
        let model = client.chat("any").expect("a model").streaming(streaming).into();
        let error = AdapterTestRequest::from_text("x").send(&model).await.expect_err("it is refused");
        let text = format!("{error} {error:?}");
        assert!(!secrets.iter().any(|secret| text.contains(secret)), "{text}");
        assert!(text.contains("refused: [secret] and [secret] and [secret]"), "short words stay: {text}");
    }
}

#[tokio::test]
async fn errors_name_versions_that_were_sent() {
    let echo = r#"{"error":{"message":"anthropic-version 2023-06-01 is too old for given-as-a-header"}}"#;
    let provider = FakeProvider::start([FakeReply::json_body(echo).with_status(400)]).await;
    let provider = provider.expect("a provider");
    let client = Anthropic::at(&provider.root_url()).header("x-gateway-key", "given-as-a-header");
    let model = client.messages("any").expect("a model").into();
    let error = AdapterTestRequest::from_text("x").send(&model).await.expect_err("it is refused").to_string();
    assert!(error.contains("anthropic-version 2023-06-01 is too old for [secret]"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let gone = FakeProvider::start([]).await.expect("a provider").base_url();
    // The server that listened there was dropped.
    let model = OpenAi::at(&gone).chat("llama3.2").expect("a model").into();
    let mut said = String::new();
    for _ in 0..50 {
        let error = AdapterTestRequest::from_text("x").send(&model).await.expect_err("nobody there");
        said = error.to_string();
        if error.kind() == ModelErrorKind::Unreachable {
            assert_eq!(error.retry_advice(), RetryAdvice::Safe);
            assert!(said.contains(&gone) && said.contains("hint: is the server running?"), "{said}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{said}");
}

/// A gateway answers 200 and names the status of the server behind it.
#[tokio::test]
async fn a_status_in_a_body_counts() {
    let cases = [
        (502, ModelErrorKind::ServerError, RetryAdvice::Safe),
        (503, ModelErrorKind::Overloaded, RetryAdvice::Safe),
        (429, ModelErrorKind::RateLimited, RetryAdvice::Safe),
        (401, ModelErrorKind::Unauthorised, RetryAdvice::Never),
    ];
    for (status, kind, advice) in cases {
        let body = format!(r#"{{"error":{{"code":{status},"message":"Provider returned error"}}}}"#);
        for (streaming, reply) in [
            (StreamingMode::Never, FakeReply::json_body(body.clone())),
            (StreamingMode::Always, FakeReply::event_body(format!("data: {body}\n\n"))),
        ] {
            let error = send_once(AdapterUnderTest::Chat, streaming, reply).await.expect_err("an error");
            assert_eq!((error.kind(), error.retry_advice()), (kind, advice), "{status}: {error}");
        }
    }
}

#[tokio::test]
async fn answers_that_were_cut_off_are_no_answers() {
    let chat = |reason: &str| {
        let choice = format!(
            r#"{{"index":0,"message":{{"role":"assistant","content":"Half"}},"finish_reason":"{reason}"}}"#
        );
        FakeReply::json_body(format!(r#"{{"id":"c","choices":[{choice}]}}"#))
    };
    let messages = FakeReply::json_body(
        r#"{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Half"}],"stop_reason":"model_context_window_exceeded","usage":{"input_tokens":9,"output_tokens":1}}"#,
    );
    let cases = [
        (
            AdapterUnderTest::Chat,
            chat("insufficient_system_resource"),
            ModelErrorKind::ServerError,
            RetryAdvice::Safe,
        ),
        (AdapterUnderTest::Chat, chat("error"), ModelErrorKind::ServerError, RetryAdvice::Safe),
        (
            AdapterUnderTest::Chat,
            chat("model_length"),
            ModelErrorKind::ContextLengthExceeded,
            RetryAdvice::Never,
        ),
        (AdapterUnderTest::Messages, messages, ModelErrorKind::ContextLengthExceeded, RetryAdvice::Never),
    ];
    for (adapter, reply, kind, advice) in cases {
        let error = send_once(adapter, StreamingMode::Never, reply).await.expect_err("an error");
        assert_eq!((error.kind(), error.retry_advice()), (kind, advice), "{error}");
    }
}

#[tokio::test]
async fn nobody_is_told_what_the_base_url_hides() {
    let error = OpenAi::at("https://user:open-sesame@host.example/v1?key=abc").key("k").chat("m");
    let error = error.expect_err("a password is no part of an address").to_string();
    assert!(error.contains("https://host.example/v1"), "{error}");
    assert!(!error.contains("open-sesame") && !error.contains("abc"), "{error}");
    let provider = FakeProvider::start([FakeReply::status(404)]).await.expect("a provider");
    let url = format!("{}?subscription-key=open-sesame", provider.base_url());
    let model = OpenAi::at(&url).chat("m").expect("a model");
    let error = Agent::new("host").model(model).run("x").await.expect_err("an error").to_string();
    assert!(error.contains("is there") && !error.contains("open-sesame"), "{error}");
}

#[tokio::test]
async fn a_time_limit_may_be_as_long_as_anybody_likes() {
    let longest = ProviderTimeouts { connect: Duration::MAX, idle: Duration::MAX, total: Duration::MAX };
    for streaming in BOTH_MODES {
        let provider = FakeProvider::start([FakeReply::text("Yes.")]).await.expect("a provider");
        let model = AdapterUnderTest::Chat.model_with_timeouts(&provider, streaming, longest);
        AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
    }
}
