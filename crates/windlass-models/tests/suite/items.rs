//! Decoding of valid responses into items.

use serde_json::json;
use windlass::core::item::Item;
use windlass::core::item::{ContentPart, Item as CoreItem, ReasoningItem};
use windlass_models::StreamingMode;
use windlass_models::testing::FakeReply;

use crate::support::{ALL_ADAPTERS, AdapterUnderTest, BOTH_MODES, expected_usage, sample_replies, send_once};

#[tokio::test]
async fn a_streamed_answer_is_the_plain_one() {
    for adapter in ALL_ADAPTERS {
        for (name, reply) in sample_replies() {
            let plain = send_once(adapter, StreamingMode::Never, reply.clone()).await.expect(name);
            for characters in [1, 4, 1000] {
                let reply = reply.clone().in_deltas_of(characters);
                let streamed = send_once(adapter, StreamingMode::Always, reply).await.expect(name);
                assert_eq!(streamed, plain, "{adapter:?}: {name} in pieces of {characters}");
            }
        }
    }
}

#[tokio::test]
async fn bytes_may_come_in_pieces_of_any_size() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            for (name, reply) in sample_replies() {
                let whole = send_once(adapter, streaming, reply.clone()).await.expect(name);
                for bytes in [1, 2, 3, 5, 64] {
                    let split =
                        send_once(adapter, streaming, reply.clone().in_chunks_of(bytes)).await.expect(name);
                    assert_eq!(split, whole, "{adapter:?}, {streaming:?}: {name} in chunks of {bytes}");
                }
            }
        }
    }
}

#[tokio::test]
async fn answers_become_items() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let reply = FakeReply::text("I look.")
                .and_call("c1", "weather", r#"{"city":"Oslo"}"#)
                .and_call("c2", "weather", r#"{"city":"Bergen"}"#)
                .usage(100, 60, 20, 0);
            let answer = send_once(adapter, streaming, reply).await.expect("an answer");
            let lines: Vec<String> =
                answer.items.iter().map(|item| windlass::model::describe_item(item)).collect();
            assert_eq!(
                lines,
                [
                    "assistant: I look.",
                    r#"call c1 weather {"city":"Oslo"}"#,
                    r#"call c2 weather {"city":"Bergen"}"#
                ],
                "{adapter:?}"
            );
            assert_eq!(answer.usage, Some(expected_usage(100, 60, 20, 0)));
            assert_eq!(answer.model.as_deref(), Some("fake-1"));
            assert_eq!(answer.request_id.as_deref(), Some("req_1"));
            assert!(answer.response_id.is_some());
        }
    }
}

#[tokio::test]
async fn a_call_without_arguments_has_an_empty_object() {
    let block = json!({ "type": "tool_use", "id": "c1", "name": "weather", "input": {} });
    for (adapter, reply) in [
        (AdapterUnderTest::Responses, FakeReply::call("c1", "weather", "")),
        (AdapterUnderTest::Chat, FakeReply::call("c1", "weather", "")),
        (AdapterUnderTest::Messages, FakeReply::item(block)),
    ] {
        for streaming in BOTH_MODES {
            let answer = send_once(adapter, streaming, reply.clone()).await.expect("an answer");
            let Item::Call(call) = &*answer.items[0] else { panic!("{:?}", answer.items) };
            assert_eq!(
                (call.id.as_str(), call.name.as_str(), call.arguments.as_str()),
                ("c1", "weather", "{}"),
                "{adapter:?}, {streaming:?}"
            );
        }
    }
}

#[tokio::test]
async fn reasoning_is_kept_with_what_only_the_provider_can_read() {
    for adapter in ALL_ADAPTERS {
        let reply = FakeReply::reasoning("rs_1", "It rains.").and_text("Take an umbrella.");
        let answer = send_once(adapter, StreamingMode::Always, reply).await.expect("an answer");
        let Item::Reasoning(ReasoningItem { summary, item_id, raw, .. }) = &*answer.items[0] else {
            panic!("{adapter:?}: {:?}", answer.items)
        };
        assert_eq!(summary, "It rains.");
        match adapter {
            AdapterUnderTest::Responses => {
                assert_eq!(item_id.as_deref(), Some("rs_1"));
                assert_eq!(raw["encrypted_content"], "sealed rs_1");
            }
            AdapterUnderTest::Messages => assert_eq!(raw["signature"], "signed rs_1"),
            AdapterUnderTest::Chat => assert_eq!(raw["field"], "reasoning_content"),
        }
    }
}

#[tokio::test]
async fn a_refusal_is_told_apart() {
    for adapter in ALL_ADAPTERS {
        for streaming in BOTH_MODES {
            let answer =
                send_once(adapter, streaming, FakeReply::refusal("I will not.")).await.expect("an answer");
            let Item::Message(message) = &*answer.items[0] else { panic!("{:?}", answer.items) };
            assert_eq!(message.refusal(), Some("I will not."), "{adapter:?}, {streaming:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_known_is_carried() {
    let hologram = json!({ "type": "hologram", "id": "hg_1", "beams": [1, 2] });
    let search = json!({ "type": "web_search_call", "id": "ws_1", "status": "completed", "new_field": true });
    let reply = FakeReply::item(hologram.clone()).and_item(search.clone()).and_text("Done.");
    for streaming in BOTH_MODES {
        let answer =
            send_once(AdapterUnderTest::Responses, streaming, reply.clone()).await.expect("an answer");
        assert!(matches!(&*answer.items[0], CoreItem::Unknown(carried) if carried.raw == hologram));
        assert!(matches!(&*answer.items[1], CoreItem::HostedTool(carried) if carried.raw == search));
    }
    let search =
        json!({ "type": "server_tool_use", "id": "st_1", "name": "web_search", "input": { "query": "x" } });
    let reply = FakeReply::item(hologram.clone()).and_item(search.clone()).and_text("Done.");
    for streaming in BOTH_MODES {
        let answer =
            send_once(AdapterUnderTest::Messages, streaming, reply.clone()).await.expect("an answer");
        assert!(matches!(&*answer.items[0], CoreItem::Unknown(carried) if carried.raw == hologram));
        assert!(matches!(&*answer.items[1], CoreItem::HostedTool(carried) if carried.raw == search));
    }
}

#[tokio::test]
async fn citations_stay_with_their_text() {
    let notes = json!([{ "type": "url_citation", "url": "https://example.org", "title": "x", "start_index": 0, "end_index": 4 }]);
    let message = json!({
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": "Rain.", "annotations": notes }],
    });
    for streaming in BOTH_MODES {
        let answer = send_once(AdapterUnderTest::Responses, streaming, FakeReply::item(message.clone()))
            .await
            .expect("an answer");
        let Item::Message(message) = &*answer.items[0] else { panic!("{:?}", answer.items) };
        assert_eq!(message.text(), "Rain.");
        assert!(matches!(&message.content[1], ContentPart::Unknown(carried) if carried.raw == notes));
    }
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_understood_all_the_same() {
    let body = json!({
        "id": "chatcmpl-9",
        "model": "plain",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "Hello." }, "finish_reason": "stop" }],
    });
    let reply = FakeReply::json_body(body.to_string());
    let answer = send_once(AdapterUnderTest::Chat, StreamingMode::Always, reply).await.expect("an answer");
    assert_eq!(answer.items, [std::sync::Arc::new(Item::assistant("Hello."))]);
    assert_eq!(answer.usage, None, "what was not said is not zero");
}

#[tokio::test]
async fn dialects_of_other_servers_are_understood() {
    // No ids, no indexes, arguments as a JSON object, no `[DONE]`.
    let body = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}}]}}]}\n\n\
                data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n";
    let answer = send_once(AdapterUnderTest::Chat, StreamingMode::Always, FakeReply::event_body(body))
        .await
        .expect("an answer");
    let [item] = answer.items.as_slice() else { panic!("{:?}", answer.items) };
    let Item::Call(call) = &**item else { panic!("{item:?}") };
    assert_eq!((call.name.as_str(), call.arguments.as_str()), ("weather", r#"{"city":"Oslo"}"#));
    assert!(!call.id.as_str().is_empty());
}

#[tokio::test]
async fn items_are_found_where_the_last_event_leaves_them_out() {
    let body = "event: response.output_item.done\n\
                data: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"Hello.\"}]}}\n\n\
                event: response.completed\n\
                data: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"status\":\"completed\",\"output\":[]}}\n\n";
    let answer = send_once(AdapterUnderTest::Responses, StreamingMode::Always, FakeReply::event_body(body))
        .await
        .expect("an answer");
    let Item::Message(message) = &*answer.items[0] else { panic!("{:?}", answer.items) };
    assert_eq!(message.text(), "Hello.");
}
