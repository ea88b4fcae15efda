//! Gemini's own protocol: plain and streamed answers, calls, signatures, server tools and failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::item::{CallOutput, ContentPart, Item, MediaSource, Message, OutputStatus, Role};
use windlass::core::usage::Usage;
use windlass::model::{FinishReason, ModelErrorKind, ModelResponse, RetryAdvice, describe_item};
use windlass::prelude::*;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{Gemini, StreamingMode};

use crate::support::{TestRequest, function_tool, hosted_tool};

const MODES: [StreamingMode; 2] = [StreamingMode::Never, StreamingMode::Always];

/// Returns a reply with these parts, plain or as a stream with one part in each event.
fn reply(mode: StreamingMode, parts: &[Value], finish: &str) -> FakeReply {
    let usage = json!({ "promptTokenCount": 90, "cachedContentTokenCount": 40, "candidatesTokenCount": 7,
        "thoughtsTokenCount": 5, "toolUsePromptTokenCount": 10, "totalTokenCount": 112 });
    let answer = |parts: &[Value], finish: Option<&str>| {
        let mut candidate = json!({ "content": { "role": "model", "parts": parts }, "index": 0 });
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        json!({ "candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro", "responseId": "g1" })
    };
    if mode == StreamingMode::Never {
        return FakeReply::json_body(answer(parts, Some(finish)).to_string());
    }
    let mut events = String::new();
    for part in parts {
        events.push_str(&format!("data: {}\r\n\r\n", answer(std::slice::from_ref(part), None)));
    }
    events.push_str(&format!("data: {}\r\n\r\n", answer(&[], Some(finish))));
    FakeReply::event_body(events).in_chunks_of(7)
}

async fn ask(
    mode: StreamingMode,
    reply: FakeReply,
    request: &TestRequest,
) -> (Result<ModelResponse, windlass::model::ModelError>, Value, String) {
    let server = FakeProvider::start([reply]).await.expect("a server");
    let model =
        Gemini::at(&server.root_url()).key("k").model("gemini-3-pro").expect("a model").streaming(mode);
    let answer = request.send(&model.into()).await;
    let sent = server.requests().remove(0);
    (answer, sent.body, sent.path)
}

#[tokio::test]
async fn an_answer_is_the_same_plain_and_streamed() {
    let parts = [
        json!({ "text": "It ", "thought": true }),
        json!({ "text": "rains.", "thought": true, "thoughtSignature": "sig-0" }),
        json!({ "text": "I look. " }),
        json!({ "text": "Grüße 🚢.", "thoughtSignature": "sig-1" }),
        json!({ "functionCall": { "id": "fc1", "name": "weather", "args": { "city": "Tromsø" } }, "thoughtSignature": "sig-2" }),
        json!({ "functionCall": { "name": "weather", "args": {} } }),
    ];
    let request = TestRequest {
        tools: vec![function_tool("weather")],
        ..TestRequest::from_items([Item::user("Hello")])
    };
    for mode in MODES {
        let (answer, _, path) = ask(mode, reply(mode, &parts, "STOP"), &request).await;
        let answer = answer.expect("an answer");
        let said: Vec<String> = answer.items.iter().map(|item| describe_item(item)).collect();
        assert_eq!(
            said,
            [
                describe_item(&answer.items[0]).as_str(),
                "assistant: I look. Grüße 🚢.",
                "call fc1 weather {\"city\":\"Tromsø\"}",
                "call call_1_1_2 weather {}",
            ],
            "{mode:?}"
        );
        let Item::Reasoning(reasoning) = &*answer.items[0] else { panic!("it thinks first") };
        assert_eq!(reasoning.summary, "It rains.");
        let usage = Usage { cached_tokens: 40, reasoning_tokens: 5, ..Usage::of_tokens(100, 12) };
        assert_eq!(answer.usage, Some(usage));
        assert_eq!(answer.details.finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(
            (answer.model.as_deref(), answer.response_id.as_deref()),
            (Some("gemini-3-pro"), Some("g1"))
        );
        let expected = match mode {
            StreamingMode::Never => "/models/gemini-3-pro:generateContent",
            _ => "/models/gemini-3-pro:streamGenerateContent?alt=sse",
        };
        assert_eq!(path, expected);

        // The journal keeps items as JSON. Everything goes back as it came, to this provider only.
        let mut items = vec![Arc::new(Item::user("Hello"))];
        items.extend(answer.items.iter().map(|item| {
            let text = serde_json::to_string(item).expect("JSON");
            Arc::new(serde_json::from_str::<Item>(&text).expect("an item"))
        }));
        for call in ["fc1", "call_1_1_2"] {
            items.push(Arc::new(Item::Output(CallOutput {
                call: call.into(),
                content: "rain".into(),
                status: if call == "fc1" { OutputStatus::Ok } else { OutputStatus::Failed },
                sources: Default::default(),
            })));
        }
        let next =
            TestRequest { input: items, tools: vec![function_tool("weather")], ..TestRequest::default() };
        let (answer, body, _) = ask(mode, reply(mode, &[json!({ "text": "Rain." })], "STOP"), &next).await;
        answer.expect("an answer");
        assert_eq!(
            body["contents"],
            json!([
                { "role": "user", "parts": [{ "text": "Hello" }] },
                { "role": "model", "parts": [
                    { "text": "It rains.", "thought": true, "thoughtSignature": "sig-0" },
                    { "text": "I look. Grüße 🚢.", "thoughtSignature": "sig-1" },
                    { "functionCall": { "id": "fc1", "name": "weather", "args": { "city": "Tromsø" } }, "thoughtSignature": "sig-2" },
                    { "functionCall": { "name": "weather", "args": {} } },
                ]},
                { "role": "user", "parts": [
                    { "functionResponse": { "id": "fc1", "name": "weather", "response": { "output": "rain" } } },
                    { "functionResponse": { "name": "weather", "response": { "error": "rain" } } },
                ]},
            ]),
            "{mode:?}"
        );
        assert_eq!(body["systemInstruction"], json!({ "parts": [{ "text": "Be brief." }] }));
    }
}

#[tokio::test]
async fn the_same_call_is_executed_each_time() {
    for mode in MODES {
        let call = || reply(mode, &[json!({ "functionCall": { "name": "status", "args": {} } })], "STOP");
        let done = reply(mode, &[json!({ "text": "Ready." })], "STOP");
        let server = FakeProvider::start([call(), call(), done]).await.expect("a server");
        let model = Gemini::at(&server.root_url()).key("k").model("gemini-2.5-flash").expect("a model");
        let polls = Arc::new(AtomicU64::new(0));
        let counted = polls.clone();
        let status = Tool::dynamic("status", "Status.", json!({ "type": "object" }), move |_, _: Value| {
            let poll = counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, ToolError>(if poll == 0 { "busy" } else { "ready" }) }
        });
        let agent = Agent::new("host").model(model.streaming(mode)).tool(status.non_strict());
        let result = agent.run("Is it ready?").await.expect("the run finishes");
        assert_eq!(result.output_text().expect("an output"), "Ready.");
        assert_eq!(polls.load(Ordering::SeqCst), 2, "{mode:?}");
        let body = server.requests().pop().expect("a request").body;
        let outputs: Vec<&Value> = body["contents"]
            .as_array()
            .expect("contents")
            .iter()
            .filter_map(|content| content.pointer("/parts/0/functionResponse/response/output"))
            .collect();
        assert_eq!(outputs, ["busy", "ready"], "{mode:?}");
    }
}

#[tokio::test]
async fn a_call_of_another_provider_gets_the_documented_signature_and_none_of_its_data() {
    let mut foreign = Item::call("c1", "weather", "{}");
    if let Item::Call(call) = &mut foreign {
        call.provider_data = Some(Box::new(windlass::core::item::ProviderData {
            origin: "messages:api.anthropic.com".to_owned(),
            fields: json!({ "id": "secret", "thoughtSignature": "other" })
                .as_object()
                .cloned()
                .expect("fields"),
        }));
    }
    let output = Item::Output(CallOutput {
        call: "c1".into(),
        content: "rain".into(),
        status: OutputStatus::Ok,
        sources: Default::default(),
    });
    let request = TestRequest::from_items([Item::user("Hello"), foreign, output]);
    let mode = StreamingMode::Never;
    let (_, body, _) = ask(mode, reply(mode, &[json!({ "text": "Rain." })], "STOP"), &request).await;
    assert_eq!(
        body["contents"][1]["parts"],
        json!([{ "functionCall": { "name": "weather", "args": {} }, "thoughtSignature": "skip_thought_signature_validator" }])
    );
}

#[tokio::test]
async fn server_tools_stand_beside_functions_and_their_parts_go_back() {
    let mode = StreamingMode::Never;
    let tools = vec![
        function_tool("weather"),
        hosted_tool(json!({ "type": "google_search" })),
        hosted_tool(json!({ "type": "url_context" })),
    ];
    let run = json!({ "executableCode": { "language": "PYTHON", "code": "1+1" } });
    let result = json!({ "codeExecutionResult": { "outcome": "OUTCOME_OK", "output": "2" } });
    let request = TestRequest { tools, ..TestRequest::from_items([Item::user("Hello")]) };
    let (answer, body, _) =
        ask(mode, reply(mode, &[run.clone(), result.clone(), json!({ "text": "2" })], "STOP"), &request)
            .await;
    assert_eq!(
        body["tools"],
        json!([
            { "functionDeclarations": [{ "name": "weather", "description": "Current weather.",
                "parametersJsonSchema": { "type": "object", "properties": { "city": { "type": "string" } } } }] },
            { "googleSearch": {} },
            { "urlContext": {} },
        ])
    );
    assert_eq!(body["toolConfig"], json!({ "includeServerSideToolInvocations": true }));
    let mut items = vec![Arc::new(Item::user("Hello"))];
    items.extend(answer.expect("an answer").items);
    let next = TestRequest { input: items, ..TestRequest::default() };
    let (_, body, _) = ask(mode, reply(mode, &[json!({ "text": "ok" })], "STOP"), &next).await;
    assert_eq!(body["contents"][1]["parts"], json!([run, result, { "text": "2" }]));
}

#[tokio::test]
async fn images_and_typed_outputs_have_their_fields() {
    let image = MediaSource {
        data: Some("aGk=".to_owned()),
        media_type: Some("image/png".to_owned()),
        ..MediaSource::default()
    };
    let file = MediaSource { url: Some("https://files.example/a.pdf".to_owned()), ..MediaSource::default() };
    let content = vec![ContentPart::text("Look."), ContentPart::Image(image), ContentPart::File(file)];
    let message = Message { role: Role::User, content, item_id: None, sources: Default::default() };
    let mut request = TestRequest::from_items([Item::Message(message)]);
    request.output = Some(windlass::model::OutputSchema {
        name: "R".to_owned(),
        schema: json!({ "type": "object" }),
        is_strict: true,
    });
    let mode = StreamingMode::Never;
    let (_, body, _) = ask(mode, reply(mode, &[json!({ "text": "{}" })], "STOP"), &request).await;
    assert_eq!(
        body["contents"][0]["parts"],
        json!([
            { "text": "Look." },
            { "inlineData": { "mimeType": "image/png", "data": "aGk=" } },
            { "fileData": { "fileUri": "https://files.example/a.pdf", "mimeType": "application/pdf" } },
        ])
    );
    assert_eq!(
        body["generationConfig"],
        json!({ "responseMimeType": "application/json", "responseJsonSchema": { "type": "object" } })
    );
}

#[tokio::test]
async fn failures_are_told_apart() {
    let request = TestRequest::from_items([Item::user("Hello")]);
    for mode in MODES {
        for (parts, finish, kind) in [
            (vec![json!({ "text": "Once" })], "MAX_TOKENS", ModelErrorKind::Incomplete),
            (vec![], "SAFETY", ModelErrorKind::ContentFilter),
            (vec![], "MALFORMED_FUNCTION_CALL", ModelErrorKind::Incomplete),
        ] {
            let (answer, ..) = ask(mode, reply(mode, &parts, finish), &request).await;
            assert_eq!(answer.expect_err("it is a failure").kind(), kind, "{mode:?} {finish}");
        }
        // A stream without its last event is cut, not complete.
        if mode == StreamingMode::Always {
            let cut = reply(mode, &[json!({ "text": "Once upon a time" })], "STOP").end_at(160);
            let (answer, ..) = ask(mode, cut, &request).await;
            assert_eq!(answer.expect_err("it is cut").kind(), ModelErrorKind::ConnectionLost);
        }
    }
    let blocked = json!({ "promptFeedback": { "blockReason": "PROHIBITED_CONTENT" } }).to_string();
    let (answer, ..) = ask(StreamingMode::Never, FakeReply::json_body(blocked), &request).await;
    assert_eq!(answer.expect_err("it is blocked").kind(), ModelErrorKind::ContentFilter);
    for (status, message, kind) in [
        (429, "Resource has been exhausted", ModelErrorKind::RateLimited),
        (
            400,
            "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
            ModelErrorKind::ContextLengthExceeded,
        ),
        (404, "models/gemini-9 is not found for API version v1beta", ModelErrorKind::ModelNotFound),
        (503, "The model is overloaded.", ModelErrorKind::Overloaded),
        (403, "The caller does not have permission", ModelErrorKind::Unauthorised),
    ] {
        let body = json!({ "error": { "code": status, "message": message, "status": "X" } }).to_string();
        let (answer, ..) =
            ask(StreamingMode::Never, FakeReply::json_body(body).with_status(status), &request).await;
        assert_eq!(answer.expect_err("it is a failure").kind(), kind, "{status}");
    }
}

/// Google answers a limit per minute with the words that others use for an account without money.
#[tokio::test]
async fn a_limit_per_minute_is_no_exhausted_account() {
    let request = TestRequest::from_items([Item::user("Hello")]);
    let limited = json!({ "error": { "code": 429, "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "details": [
            { "@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
                { "quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier" }] },
            { "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s" },
        ] } });
    let reply = FakeReply::json_body(limited.to_string()).with_status(429);
    let error = ask(StreamingMode::Never, reply, &request).await.0.expect_err("it is refused");
    assert_eq!(error.kind(), ModelErrorKind::RateLimited, "{error}");
    assert_eq!(error.retry_advice(), RetryAdvice::After(Duration::from_secs(26)));
    for (status, kind) in [
        ("UNAVAILABLE", ModelErrorKind::Overloaded),
        ("RESOURCE_EXHAUSTED", ModelErrorKind::RateLimited),
        ("INTERNAL", ModelErrorKind::ServerError),
        ("DEADLINE_EXCEEDED", ModelErrorKind::TimedOut),
        ("PERMISSION_DENIED", ModelErrorKind::Unauthorised),
    ] {
        let event = json!({ "error": { "code": 500, "message": "It failed.", "status": status } });
        let reply = FakeReply::event_body(format!("data: {event}\r\n\r\n"));
        let error = ask(StreamingMode::Always, reply, &request).await.0.expect_err("the stream has an error");
        assert_eq!(error.kind(), kind, "{status}");
    }
}
