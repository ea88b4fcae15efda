//! The request bodies that providers receive.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::Item;
use windlass::core::item::{
    CallKind, CallOutput, ContentPart, MediaSource, Message, OutputContent, OutputStatus, Role, ToolCall,
};
use windlass::model::{
    Model, ModelErrorKind, ModelSettings, OutputSchema, PromptCaching, RetryAdvice, SharedModel, ToolChoice,
};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{ConversationState, StreamingMode};

use crate::support::{AdapterTestRequest, AdapterUnderTest, function_tool};

fn output_item(call: &str, text: &str, status: OutputStatus) -> Item {
    Item::Output(CallOutput { call: call.into(), content: text.into(), status, sources: Default::default() })
}

async fn sent_body(adapter: AdapterUnderTest, asked: &AdapterTestRequest) -> Value {
    let provider = FakeProvider::start([FakeReply::text("Yes.")]).await.expect("a provider");
    asked.send(&adapter.model(&provider, StreamingMode::Never)).await.expect("an answer");
    provider.requests().remove(0).body
}

fn sample_conversation() -> AdapterTestRequest {
    let mut asked = AdapterTestRequest::from_items([
        Item::user("Weather in Oslo and Bergen?"),
        Item::assistant("I look."),
        Item::call("c1", "weather", r#"{"city":"Oslo"}"#),
        Item::call("c2", "weather", r#"{"city":"Bergen"}"#),
        output_item("c1", "rain", OutputStatus::Ok),
        output_item("c2", "no such station", OutputStatus::Failed),
    ]);
    asked.instructions = Some("Be brief.".to_owned());
    asked.tools = vec![function_tool("weather")];
    asked
}

#[tokio::test]
async fn responses_get_items() {
    let body = sent_body(AdapterUnderTest::Responses, &sample_conversation()).await;
    let parameters = &sample_conversation().tools[0].parameters;
    assert_eq!(
        body,
        json!({
            "model": "fake-1",
            "instructions": "Be brief.",
            "input": [
                { "type": "message", "role": "user", "content": "Weather in Oslo and Bergen?" },
                { "type": "message", "role": "assistant", "content": "I look." },
                { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\":\"Oslo\"}" },
                { "type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{\"city\":\"Bergen\"}" },
                { "type": "function_call_output", "call_id": "c1", "output": "rain" },
                { "type": "function_call_output", "call_id": "c2", "output": "no such station" },
            ],
            "tools": [{
                "type": "function", "name": "weather", "description": "Current weather.",
                "parameters": parameters, "strict": true,
            }],
        })
    );
}

#[tokio::test]
async fn chat_gets_messages() {
    let body = sent_body(AdapterUnderTest::Chat, &sample_conversation()).await;
    assert_eq!(
        body["messages"],
        json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Weather in Oslo and Bergen?" },
            { "role": "assistant", "content": "I look.", "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" } },
                { "id": "c2", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Bergen\"}" } },
            ]},
            { "role": "tool", "tool_call_id": "c1", "content": "rain" },
            { "role": "tool", "tool_call_id": "c2", "content": "no such station" },
        ])
    );
    assert_eq!(body["tools"][0]["function"]["strict"], true);
}

#[tokio::test]
async fn messages_get_blocks() {
    let mut conversation = sample_conversation();
    conversation.settings.prompt_cache = Some(PromptCaching::Off);
    let body = sent_body(AdapterUnderTest::Messages, &conversation).await;
    assert_eq!(body["system"], "Be brief.");
    assert_eq!(
        body["messages"],
        json!([
            { "role": "user", "content": [{ "type": "text", "text": "Weather in Oslo and Bergen?" }] },
            { "role": "assistant", "content": [
                { "type": "text", "text": "I look." },
                { "type": "tool_use", "id": "c1", "name": "weather", "input": { "city": "Oslo" } },
                { "type": "tool_use", "id": "c2", "name": "weather", "input": { "city": "Bergen" } },
            ]},
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "c1", "content": "rain" },
                { "type": "tool_result", "tool_use_id": "c2", "content": "no such station", "is_error": true },
            ]},
        ])
    );
    assert_eq!(body["max_tokens"], 8192);
}

#[tokio::test]
async fn settings_are_passed_on_and_extra_fields_win() {
    let mut asked = AdapterTestRequest::from_text("x");
    asked.tools = vec![function_tool("weather")];
    let extra = json!({ "temperature": 0.5, "user": "u1" });
    asked.settings = ModelSettings {
        tool_choice: Some(ToolChoice::Tool("weather".to_owned())),
        parallel_tool_calls: Some(false),
        temperature: Some(0.1),
        max_tokens: Some(99),
        reasoning_effort: Some("low".to_owned()),
        extra: extra.as_object().cloned().unwrap_or_default(),
        ..ModelSettings::default()
    };
    asked.output = Some(OutputSchema {
        name: "Report<T>".to_owned(),
        schema: json!({ "type": "object" }),
        is_strict: true,
    });

    let body = sent_body(AdapterUnderTest::Responses, &asked).await;
    assert_eq!(body["tool_choice"], json!({ "type": "function", "name": "weather" }));
    assert_eq!(body["parallel_tool_calls"], false);
    assert_eq!((&body["temperature"], &body["user"]), (&json!(0.5), &json!("u1")));
    assert_eq!(body["max_output_tokens"], 99);
    assert_eq!(body["reasoning"], json!({ "effort": "low" }));
    let format =
        json!({ "type": "json_schema", "name": "Report_T_", "schema": { "type": "object" }, "strict": true });
    assert_eq!(body["text"]["format"], format);

    let body = sent_body(AdapterUnderTest::Chat, &asked).await;
    assert_eq!(body["tool_choice"], json!({ "type": "function", "function": { "name": "weather" } }));
    assert_eq!((&body["max_tokens"], &body["temperature"]), (&json!(99), &json!(0.5)));
    assert_eq!(body["response_format"]["json_schema"]["name"], "Report_T_");

    let body = sent_body(AdapterUnderTest::Messages, &asked).await;
    let choice = json!({ "type": "tool", "name": "weather", "disable_parallel_tool_use": true });
    assert_eq!(body["tool_choice"], choice);
    assert_eq!(body["output_config"]["effort"], "low");
    assert_eq!(
        body["output_config"]["format"],
        json!({ "type": "json_schema", "schema": { "type": "object" } })
    );
}

#[tokio::test]
async fn a_tool_choice_may_name_a_handoff() {
    let mut handoff = function_tool("transfer");
    handoff.namespace = Some("my desk".into());
    let mut asked = AdapterTestRequest::from_text("x");
    asked.handoffs = vec![handoff];
    asked.settings.tool_choice = Some(ToolChoice::Tool("transfer".to_owned()));
    for (adapter, choice) in [
        (AdapterUnderTest::Responses, json!({ "type": "function", "name": "my_desk__transfer" })),
        (AdapterUnderTest::Chat, json!({ "type": "function", "function": { "name": "my_desk__transfer" } })),
        (AdapterUnderTest::Messages, json!({ "type": "tool", "name": "my_desk__transfer" })),
    ] {
        let body = sent_body(adapter, &asked).await;
        assert_eq!(body["tool_choice"], choice, "{adapter:?}");
        assert!(body["tools"].to_string().contains("\"my_desk__transfer\""), "{adapter:?}: {body}");
    }
}

#[tokio::test]
async fn pictures_and_files_are_sent_in_each_dialect() {
    let picture = MediaSource {
        data: Some("AAAA".to_owned()),
        media_type: Some("image/jpeg".to_owned()),
        ..MediaSource::default()
    };
    let file = MediaSource {
        data: Some("BBBB".to_owned()),
        name: Some("a.pdf".to_owned()),
        ..MediaSource::default()
    };
    let content =
        vec![ContentPart::text("Look."), ContentPart::Image(picture.clone()), ContentPart::File(file)];
    let shown = OutputContent::Parts(vec![ContentPart::text("here"), ContentPart::Image(picture)]);
    let asked = AdapterTestRequest::from_items([
        Item::Message(Message { role: Role::User, content, item_id: None, sources: Default::default() }),
        Item::call("c1", "shoot", "{}"),
        Item::Output(CallOutput {
            call: "c1".into(),
            content: shown,
            status: OutputStatus::Ok,
            sources: Default::default(),
        }),
    ]);
    let jpeg = "data:image/jpeg;base64,AAAA";
    let pdf = "data:application/pdf;base64,BBBB";

    let body = sent_body(AdapterUnderTest::Responses, &asked).await;
    let image = json!({ "type": "input_image", "image_url": jpeg, "detail": "auto" });
    assert_eq!(body["input"][0]["content"][1], image);
    assert_eq!(
        body["input"][0]["content"][2],
        json!({ "type": "input_file", "file_data": pdf, "filename": "a.pdf" })
    );
    assert_eq!(body["input"][2]["output"], json!([{ "type": "input_text", "text": "here" }, image]));

    let body = sent_body(AdapterUnderTest::Chat, &asked).await;
    let image = json!({ "type": "image_url", "image_url": { "url": jpeg } });
    assert_eq!(body["messages"][0]["content"][1], image);
    assert_eq!(body["messages"][2], json!({ "role": "tool", "tool_call_id": "c1", "content": "here" }));
    assert_eq!(body["messages"][3]["content"][1], image, "outputs take text alone there");

    let body = sent_body(AdapterUnderTest::Messages, &asked).await;
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/jpeg", "data": "AAAA" } });
    assert_eq!(body["messages"][0]["content"][1], image);
    assert_eq!(body["messages"][2]["content"][0]["content"][1], image);
}

#[tokio::test]
async fn what_a_provider_said_goes_back_as_it_came_and_to_no_other() {
    let reply = FakeReply::reasoning("rs_1", "Hm.")
        .and_item(json!({ "type": "hologram", "id": "hg_1" }))
        .and_text("Hi.");
    for adapter in [AdapterUnderTest::Responses, AdapterUnderTest::Chat, AdapterUnderTest::Messages] {
        let provider = FakeProvider::start([reply.clone()]).await.expect("a provider");
        let answer = AdapterTestRequest::from_text("x")
            .send(&adapter.model(&provider, StreamingMode::Never))
            .await
            .expect("an answer");
        let mut asked = AdapterTestRequest::from_text("x");
        asked.input.extend(answer.items);
        asked.input.push(Arc::new(Item::user("And?")));
        for other in [AdapterUnderTest::Responses, AdapterUnderTest::Chat, AdapterUnderTest::Messages] {
            let text = sent_body(other, &asked).await.to_string();
            let own = match adapter {
                AdapterUnderTest::Responses => "sealed rs_1",
                AdapterUnderTest::Chat => "reasoning_content",
                AdapterUnderTest::Messages => "signed rs_1",
            };
            assert_eq!(text.contains(own), adapter == other, "{adapter:?} to {other:?}: {text}");
            assert!(text.contains("Hi."), "what was said is for all: {text}");
            if adapter != AdapterUnderTest::Chat {
                assert_eq!(text.contains("hologram"), adapter == other, "{adapter:?} to {other:?}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_conversation_that_the_provider_holds_gets_only_what_is_new() {
    let state = |state| move |model: windlass_models::ResponsesModel| model.conversation_state(state);
    let mut asked = sample_conversation();
    asked.previous_response = Some("resp_7".to_owned());
    let ask = async |server: ConversationState, asked: &AdapterTestRequest, reply: FakeReply| {
        let provider = FakeProvider::start([reply]).await.expect("a provider");
        let model: SharedModel = state(server)(provider.openai().responses("m").expect("a model")).into();
        let answer = asked.send(&model).await;
        (provider.requests().remove(0).body, answer)
    };
    let (body, _) = ask(ConversationState::PreviousResponse, &asked, FakeReply::text("Yes.")).await;
    assert_eq!(body["previous_response_id"], "resp_7");
    let new = json!([
        { "type": "function_call_output", "call_id": "c1", "output": "rain" },
        { "type": "function_call_output", "call_id": "c2", "output": "no such station" },
    ]);
    assert_eq!(body["input"], new);

    let conversation = ConversationState::Conversation("conv_1".to_owned());
    let (body, _) = ask(conversation.clone(), &asked, FakeReply::text("Yes.")).await;
    assert_eq!((&body["conversation"], &body["input"]), (&json!("conv_1"), &new));

    asked.previous_response = None;
    let (body, _) = ask(conversation.clone(), &asked, FakeReply::text("Yes.")).await;
    assert_eq!(body["input"].as_array().map(Vec::len), Some(6), "nothing is held yet");

    asked.previous_response = Some("msg_of_another_provider".to_owned());
    let (body, _) = ask(ConversationState::PreviousResponse, &asked, FakeReply::text("Yes.")).await;
    assert_eq!(body.get("previous_response_id"), None);

    // A request that may have advanced the conversation is not retried; a rejected one may be.
    asked.previous_response = Some("resp_7".to_owned());
    for (reply, kind, advice) in [
        (FakeReply::text("Yes.").reset_at(0), ModelErrorKind::ConnectionLost, RetryAdvice::Never),
        (FakeReply::status(500), ModelErrorKind::ServerError, RetryAdvice::Never),
        (FakeReply::status(429), ModelErrorKind::RateLimited, RetryAdvice::Safe),
    ] {
        let (_, answer) = ask(conversation.clone(), &asked, reply).await;
        let error = answer.expect_err("it failed");
        assert_eq!((error.kind(), error.retry_advice()), (kind, advice), "{error}");
    }
}

#[tokio::test]
async fn calls_of_other_kinds_go_back_in_their_own_form() {
    let computer = json!({
        "type": "computer_call", "id": "cu_1", "call_id": "c1", "status": "completed",
        "actions": [{ "type": "click", "x": 1, "y": 2, "button": "left" }],
        "pending_safety_checks": [{ "id": "s1", "code": "malicious", "message": "careful" }],
    });
    let approval = json!({
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "files", "name": "read", "arguments": "{}",
    });
    let provider = FakeProvider::start([FakeReply::item(computer.clone()).and_item(approval.clone())])
        .await
        .expect("a provider");
    let model = AdapterUnderTest::Responses.model(&provider, StreamingMode::Always);
    let answer = AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
    let kinds: Vec<CallKind> = answer
        .items
        .iter()
        .filter_map(|item| match &**item {
            Item::Call(ToolCall { kind, .. }) => Some(*kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [CallKind::Computer, CallKind::HostedMcp]);

    let mut asked = AdapterTestRequest::from_text("x");
    asked.input.extend(answer.items);
    let screen = MediaSource { data: Some("AAAA".to_owned()), ..MediaSource::default() };
    let screen = OutputContent::Parts(vec![ContentPart::Image(screen)]);
    asked.input.push(Arc::new(Item::Output(CallOutput {
        call: "c1".into(),
        content: screen,
        status: OutputStatus::Ok,
        sources: Default::default(),
    })));
    asked.input.push(Arc::new(output_item("mcpr_1", "not today", OutputStatus::Failed)));
    let body = sent_body(AdapterUnderTest::Responses, &asked).await;
    assert_eq!(body["input"][1], computer);
    assert_eq!(body["input"][2], approval);
    assert_eq!(
        body["input"][3],
        json!({ "type": "computer_call_output", "call_id": "c1", "output": { "type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA" } })
    );
    assert_eq!(
        body["input"][4],
        json!({ "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": false, "reason": "not today" })
    );
}

#[tokio::test]
async fn namespaces_are_part_of_names_on_the_way_and_not_afterwards() {
    for adapter in [AdapterUnderTest::Responses, AdapterUnderTest::Chat, AdapterUnderTest::Messages] {
        let mut offered = function_tool("read");
        offered.namespace = Some("my files".into());
        let mut asked = AdapterTestRequest::from_text("x");
        asked.tools = vec![offered];
        let provider =
            FakeProvider::start([FakeReply::call("c1", "my_files__read", "{}")]).await.expect("a provider");
        let answer = asked.send(&adapter.model(&provider, StreamingMode::Never)).await.expect("an answer");
        assert!(provider.requests()[0].body.to_string().contains("\"my_files__read\""));
        let Item::Call(call) = &*answer.items[0] else { panic!("{:?}", answer.items) };
        assert_eq!(
            (call.namespace.as_deref(), call.name.as_str()),
            (Some("my files"), "read"),
            "{adapter:?}"
        );
    }
}

#[tokio::test]
async fn hosted_tools_are_passed_through_where_the_provider_has_them() {
    let definition = json!({ "type": "web_search", "search_context_size": "low" });
    let mut offered = function_tool("web_search");
    offered.kind = windlass::model::ToolKind::Hosted(Arc::new(definition.clone()));
    let mut asked = AdapterTestRequest::from_text("x");
    asked.tools = vec![offered.clone()];
    assert_eq!(sent_body(AdapterUnderTest::Responses, &asked).await["tools"], json!([definition]));
    let provider = FakeProvider::start([]).await.expect("a provider");
    let chat = provider.openai().chat("m").expect("a model");
    assert!(chat.check_tool_support(&offered).is_err(), "and it is said where it has not");
}

#[tokio::test]
async fn headers_carry_who_asks() {
    let provider =
        FakeProvider::start([FakeReply::text("a"), FakeReply::text("b")]).await.expect("a provider");
    let openai = provider.openai().organisation("org-1").project("proj-1");
    let model = openai.responses("m").expect("a model").into();
    AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
    let model = provider.anthropic().messages("m").expect("a model").into();
    AdapterTestRequest::from_text("x").send(&model).await.expect("an answer");
    let [openai, anthropic] = provider.requests().try_into().expect("two requests");
    assert_eq!(openai.headers["authorization"], "Bearer sk-fake-0123456789");
    assert_eq!(openai.headers["openai-organization"], "org-1");
    assert_eq!(openai.headers["openai-project"], "proj-1");
    assert_eq!(anthropic.headers["x-api-key"], "sk-fake-0123456789");
    assert_eq!(anthropic.headers["anthropic-version"], "2023-06-01");
}
