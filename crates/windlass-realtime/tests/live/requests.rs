//! Requests of the application: responses with options, outside the conversation and in the provider's own format; raw
//! events, usage by modality, playback positions, rejections, and what is sent when a session opens.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_tungstenite::tungstenite::http::Uri;
use windlass::guardrail::OutputGuardrail;
use windlass::prelude::*;
use windlass_net::{ByteStream, StreamDialer, TransportError};
use windlass_realtime::model::{
    ModalityTokens, RealtimeModel, RealtimeModelEvent, ResponseOptions, ResponseScope, ResponseStatus,
};
use windlass_realtime::openai::{OpenAiRealtime, RealtimeEventDecoder};
use windlass_realtime::settings::{
    OutputModality, ProviderTracing, RealtimeSettings, ServerVad, TurnDetection,
};
use windlass_realtime::testing::{FaultTrigger, LoopbackReply, LoopbackServer, WireFault, tone};
use windlass_realtime::{
    GuardrailFollowUp, PlaybackSource, RealtimeError, RealtimeEvent, RealtimeSessionBuilder,
    SessionRequestError,
};

use crate::support::*;

fn guide_agent() -> Agent {
    Agent::new("guide").instructions("Guide.")
}

fn side_options() -> ResponseOptions {
    ResponseOptions { scope: ResponseScope::OutOfBand, ..ResponseOptions::default() }
}

/// A response outside the conversation, during one in it: neither the turn nor the history notices.
#[tokio::test(start_paused = true)]
async fn an_answer_beside_the_conversation_stays_beside_it() {
    // As options, and in the provider's own words; also on a server that does not report the conversation.
    for (is_raw, is_reported) in [(false, true), (true, true), (false, false)] {
        let first = (!is_reported).then(|| LoopbackReply::message("the first beside"));
        let server = loopback_server(first.into_iter().chain([
            LoopbackReply::message("A story that takes a while.").with_speed(1),
            LoopbackReply::message("beside"),
        ]));
        let (session, mut events) = connect_agent(guide_agent(), &server).await;
        if !is_reported {
            // The first response of the connection is the one outside, so nothing is known about the server yet.
            session.request_response_with(side_options()).await.expect("is sent");
            let seen =
                events_until(&mut events, |event| matches!(event, RealtimeEvent::SideResponseEnded { .. }))
                    .await;
            assert_eq!(count_events(&seen, "TurnStarted"), 0, "{:?}", event_names(&seen));
        }
        session.send_text("Tell me").await.expect("is there");
        events_until(&mut events, |event| {
            matches!(event, RealtimeEvent::Audio(_) | RealtimeEvent::TurnStarted { .. })
        })
        .await;
        match is_raw {
            true => {
                let raw = json!({ "type": "response.create", "response": { "conversation": "none" } });
                session.send_raw(raw).await.expect("is sent");
            }
            false => session.request_response_with(side_options()).await.expect("is sent"),
        }
        let seen =
            events_until(&mut events, |event| matches!(event, RealtimeEvent::SideResponseEnded { .. })).await;
        assert_eq!(count_events(&seen, "TurnEnded"), 0, "{:?}", event_names(&seen));
        let Some(RealtimeEvent::SideResponseEnded { text, status, usage, .. }) = seen.last() else {
            panic!("{seen:?}")
        };
        assert_eq!(*status, ResponseStatus::Completed);
        assert_eq!((text.as_str(), usage.is_some()), ("beside", true));
        let seen = turn_events(&mut events).await;
        assert!(matches!(
            seen.last(),
            Some(RealtimeEvent::TurnEnded { status: ResponseStatus::Completed, .. })
        ));
        let said: Vec<String> =
            session.close().await.history.items().iter().map(|item| item.text()).collect();
        assert_eq!(said, ["Tell me", "A story that takes a while."]);
    }
}

/// The start of a response outside the conversation is lost, or comes after its end: it ends no response in the
/// conversation.
#[tokio::test(start_paused = true)]
async fn an_answer_beside_the_conversation_without_a_start_stays_beside_it() {
    let created = || FaultTrigger::on_send("response.created");
    for fault in [WireFault::drop_event(created()), WireFault::delay_event(created(), Duration::from_secs(1))]
    {
        let server = loopback_server([
            LoopbackReply::message("A story that takes a while, and a little longer.").with_speed(1),
            LoopbackReply::message("beside"),
        ]);
        let (session, mut events) = connect_agent(guide_agent(), &server).await;
        session.send_text("Tell me").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
        server.inject_fault(fault);
        session.request_response_with(side_options()).await.expect("is sent");
        let seen =
            events_until(&mut events, |event| matches!(event, RealtimeEvent::SideResponseEnded { .. })).await;
        assert_eq!(count_events(&seen, "TurnEnded"), 0, "{:?}", event_names(&seen));
        let seen = turn_events(&mut events).await;
        let Some(RealtimeEvent::TurnEnded { status, .. }) = seen.last() else { panic!("{seen:?}") };
        assert_eq!((status, count_events(&seen, "TurnStarted")), (&ResponseStatus::Completed, 0));
        assert_eq!(server.client_events(Some("response.create")).len(), 2);
        let said: Vec<String> =
            session.close().await.history.items().iter().map(|item| item.text()).collect();
        assert_eq!(said, ["Tell me", "A story that takes a while, and a little longer."]);
    }
}

#[tokio::test(start_paused = true)]
async fn options_and_raw_requests_wait_for_their_turn() {
    let server = loopback_server([LoopbackReply::message("One moment, please.").with_speed(1)]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Go").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Audio(_))).await;
    let options = ResponseOptions {
        instructions: Some("Be brief.".to_owned()),
        output_modality: Some(OutputModality::Text),
        max_output_tokens: Some(20),
        ..ResponseOptions::default()
    };
    session.request_response_with(options).await.expect("waits");
    let raw = json!({ "type": "response.create", "response": { "instructions": "Raw.", "metadata": { "mine": "1" } } });
    session.send_raw(raw).await.expect("waits");
    for _ in 0..3 {
        turn_events(&mut events).await;
    }
    let asked = server.client_events(Some("response.create"));
    let instructions: Vec<_> = asked.iter().map(|event| event["response"]["instructions"].as_str()).collect();
    assert_eq!(instructions, [None, Some("Be brief."), Some("Raw.")]);
    assert_eq!(asked[1]["response"]["output_modalities"], json!(["text"]));
    assert_eq!(asked[1]["response"]["max_output_tokens"], 20);
    assert_eq!(asked[2]["response"]["metadata"]["mine"], "1");
    assert_one_response_at_a_time(&server);
}

/// A raw request of the wrong form, or with an id of its own, costs neither the connection nor a second request.
#[tokio::test(start_paused = true)]
async fn a_raw_request_of_any_form_is_sent_once() {
    for response in [json!("brief"), json!([1]), json!({ "metadata": "mine" }), json!(null)] {
        let server = loopback_server([]);
        let (session, mut events) = connect_agent(guide_agent(), &server).await;
        session.send_raw(json!({ "type": "response.create", "response": response })).await.expect("waits");
        let seen = turn_events(&mut events).await;
        assert_eq!(count_events(&seen, "Disconnected"), 0, "{response}: {:?}", event_names(&seen));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.client_events(Some("response.create")).len(), 1, "{response}");
        assert_eq!(server.connection_count(), 1, "{response}");
    }
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    server.inject_fault(WireFault::reject_event("response.create", "invalid_value").repeated());
    session.send_raw(json!({ "type": "response.create", "event_id": "mine" })).await.expect("waits");
    let is_told =
        |event: &RealtimeEvent| matches!(event, RealtimeEvent::Error(RealtimeError::Provider { .. }));
    events_until(&mut events, is_told).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 1);
}

/// A response that is outside the conversation by a provider's own field is one like any other.
#[tokio::test(start_paused = true)]
async fn a_field_of_the_provider_can_put_an_answer_beside_the_conversation() {
    let server = loopback_server([LoopbackReply::message("Aye."), LoopbackReply::message("beside")]);
    let (session, mut events) = connect_agent(guide_agent(), &server).await;
    session.send_text("Go").await.expect("is there");
    turn_events(&mut events).await;
    let extra = [("conversation".to_owned(), json!("none"))].into_iter().collect();
    let options = ResponseOptions { extra, ..ResponseOptions::default() };
    session.request_response_with(options).await.expect("is sent");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::SideResponseEnded { .. })).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client_events(Some("response.create")).len(), 2, "it is requested once");
}

#[tokio::test(start_paused = true)]
async fn raw_events_are_reported_where_they_are_wanted() {
    for is_wanted in [false, true] {
        let server = loopback_server([LoopbackReply::message("One.")]);
        let model = server.client_model();
        let model = if is_wanted { model.raw_events() } else { model };
        let (session, mut events) = start_session(RealtimeSessionBuilder::new(guide_agent(), model)).await;
        session.send_text("Go").await.expect("is there");
        let seen = turn_events(&mut events).await;
        let kinds: Vec<String> = seen
            .iter()
            .filter_map(|event| match event {
                RealtimeEvent::Raw(raw) => raw["type"].as_str().map(str::to_owned),
                _ => None,
            })
            .collect();
        assert_eq!(kinds.contains(&"response.content_part.added".to_owned()), is_wanted);
        assert_eq!(kinds.is_empty(), !is_wanted);
    }
}

#[test]
fn usage_is_split_by_modality() {
    let usage = json!({
        "total_tokens": 253, "input_tokens": 132, "output_tokens": 121,
        "input_token_details": {
            "text_tokens": 119, "audio_tokens": 13, "image_tokens": 5, "cached_tokens": 64,
            "cached_tokens_details": { "text_tokens": 60, "audio_tokens": 4 },
        },
        "output_token_details": { "text_tokens": 30, "audio_tokens": 91 },
    });
    let response = json!({ "id": "r", "status": "completed", "output": [], "usage": usage });
    let read = RealtimeEventDecoder::default()
        .decode(&json!({ "type": "response.done", "response": response }).to_string());
    let Some(RealtimeModelEvent::ResponseEnded { usage: Some(usage), .. }) = read else { panic!("{read:?}") };
    assert_eq!(
        (usage.total.input_tokens, usage.total.output_tokens, usage.total.cached_tokens),
        (132, 121, 64)
    );
    assert_eq!(usage.input, ModalityTokens { text: 119, audio: 13, image: 5 });
    assert_eq!(usage.cached, ModalityTokens { text: 60, audio: 4, image: 0 });
    assert_eq!(usage.output, ModalityTokens { text: 30, audio: 91, image: 0 });
}

#[tokio::test(start_paused = true)]
async fn the_position_of_the_playback_is_reported_in_bytes() {
    let server = loopback_server([LoopbackReply::message("A rather long sentence to listen to.")]);
    let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
        .playback_source(PlaybackSource::Reported);
    let (session, mut events) = start_session(builder).await;
    session.send_text("Go").await.expect("is there");
    let seen = turn_events(&mut events).await;
    let chunk = seen.iter().find_map(|event| match event {
        RealtimeEvent::Audio(chunk) => Some(chunk.clone()),
        _ => None,
    });
    let chunk = chunk.expect("there is speech");
    session.report_played_bytes(&chunk.item, chunk.content_index, 48 * 250).await.expect("is there");
    session.interrupt().await.expect("is there");
    let seen =
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioInterrupted { .. })).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::AudioInterrupted { heard_ms: 250, .. })), "{seen:?}");
}

/// By the clock all of it was heard, but the answer is cut all the same, and the playback may be behind the clock.
#[tokio::test(start_paused = true)]
async fn an_interruption_is_always_told() {
    let server = loopback_server([LoopbackReply::message("Hi.").and_call("c", "look", "{}")]);
    // The response stays open after its speech has been heard.
    server.inject_fault(WireFault::drop_event(FaultTrigger::on_send("response.done")));
    let runs = Arc::default();
    let settings = RealtimeSettings {
        turn_detection: TurnDetection::ServerVad(ServerVad::default()),
        ..RealtimeSettings::default()
    };
    let agent = guide_agent().tools(counting_tool("look", &runs));
    let (session, mut events) =
        start_session(RealtimeSessionBuilder::new(agent, server.client_model()).settings(settings)).await;
    session.send_text("Hi").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioEnded { .. })).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    for chunk in tone(300).chunks(480) {
        let audio = windlass_realtime::audio::AudioFormat::Pcm24k.encode(chunk);
        session.send_audio(audio).expect("is there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen =
        events_until(&mut events, |event| matches!(event, RealtimeEvent::AudioInterrupted { .. })).await;
    assert!(matches!(seen.last(), Some(RealtimeEvent::AudioInterrupted { heard_ms: 180, .. })), "{seen:?}");
    // Nothing is truncated at the model: all of it was heard.
    assert_eq!(server.client_events(Some("conversation.item.truncate")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_application_words_rejections() {
    let runs = Arc::default();
    let server = loopback_server([
        LoopbackReply::call("a", "gated", "{}"),
        LoopbackReply::message("Well."),
        LoopbackReply::call("b", "gated", "{}"),
    ]);
    let agent = guide_agent().tools(counting_tool("gated", &runs).needs_approval());
    let builder = RealtimeSessionBuilder::new(agent, server.client_model())
        .rejection_message(|pending| format!("{} is not allowed", pending.tool.name()));
    let (session, mut events) = start_session(builder).await;
    for (call, message, expected) in
        [("a", None, "gated is not allowed"), ("b", Some("not today".to_owned()), "not today")]
    {
        session.send_text("Go").await.expect("is there");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
        session.reject(call, message).await.expect("waits");
        events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
        turn_events(&mut events).await;
        assert_eq!(sent_outputs(&server, call), [expected]);
    }
    assert_eq!(run_count(&runs), 0);
}

/// A guardrail that raises is reported and skipped; one that is declared strict counts as a trip.
#[tokio::test(start_paused = true)]
async fn a_guardrail_that_raises_is_skipped_unless_it_is_strict() {
    let fails = || OutputGuardrail::new("fails", |_, _| async { Err("no idea".into()) });
    let hangs = || OutputGuardrail::new("hangs", |_, _| std::future::pending());
    for (guardrail, is_strict) in [(fails(), false), (fails(), true), (hangs(), false), (hangs(), true)] {
        let server = loopback_server([LoopbackReply::message("Hello.")]);
        let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model())
            .guardrail_timeout(Duration::from_secs(1))
            .guardrail_follow_up(GuardrailFollowUp::NoMessage);
        let builder = match is_strict {
            true => builder.strict_output_guardrail(guardrail),
            false => builder.output_guardrail(guardrail),
        };
        let (session, mut events) = start_session(builder).await;
        session.send_text("Hi").await.expect("is there");
        let seen = turn_events(&mut events).await;
        let failed = |event: &&RealtimeEvent| {
            matches!(event, RealtimeEvent::Error(RealtimeError::GuardrailFailed { .. }))
        };
        assert_eq!(seen.iter().filter(failed).count(), 1);
        assert_eq!(count_events(&seen, "GuardrailTripped"), usize::from(is_strict));
    }
}

/// Audio formats are sent only where they were set; the voice, the model's name and tracing are sent.
#[tokio::test(start_paused = true)]
async fn the_first_configuration_says_what_was_set_and_no_more() {
    let server = loopback_server([]);
    let (session, _events) = connect_agent(guide_agent(), &server).await;
    let sent = &server.client_events(Some("session.update"))[0]["session"];
    assert_eq!(sent["audio"]["output"], json!({ "voice": "ash" }));
    assert_eq!(sent["audio"]["input"]["format"], json!(null));
    assert_eq!(sent.get("tracing"), None);
    drop(session);
    let metadata = json!({ "customer": "17" }).as_object().cloned().unwrap_or_default();
    let tracing = ProviderTracing::Named {
        workflow_name: Some("support".to_owned()),
        group_id: Some("g1".to_owned()),
        metadata,
    };
    let settings = RealtimeSettings {
        output_audio_format: Some(windlass_realtime::audio::AudioFormat::Ulaw),
        tracing: Some(tracing),
        ..RealtimeSettings::default()
    };
    let server = loopback_server([]);
    let builder = RealtimeSessionBuilder::new(guide_agent(), server.client_model()).settings(settings);
    let (session, _events) = start_session(builder).await;
    session.update_agent(Agent::new("other")).await.expect("changes");
    let sent = server.client_events(Some("session.update"));
    assert_eq!(sent[0]["session"]["audio"]["output"]["format"], json!({ "type": "audio/pcmu" }));
    let named = json!({ "workflow_name": "support", "group_id": "g1", "metadata": { "customer": "17" } });
    assert_eq!(sent[0]["session"]["tracing"], named);
    assert_eq!(sent[1]["session"].get("tracing"), None, "a provider takes it once");
}

/// The handshake request: the path, the user agent, and the call that a session attaches to.
#[tokio::test]
async fn the_handshake_names_the_client_and_the_call() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let requested = |model: fn(String) -> OpenAiRealtime| async move {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("listens");
        let address = listener.local_addr().expect("has one");
        let reading = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            let (mut text, mut part) = (Vec::new(), [0; 1024]);
            while !text.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut part).await.expect("reads");
                text.extend_from_slice(&part[..count]);
            }
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.expect("writes");
            String::from_utf8(text).expect("is text")
        });
        let model = model(format!("ws://{address}/v1/realtime"));
        let refused = RealtimeSessionBuilder::new(guide_agent(), model).connect().await;
        assert!(refused.is_err());
        reading.await.expect("ends").to_lowercase()
    };
    let request = requested(|url| OpenAiRealtime::with_url(url).model("gpt-realtime-2.1")).await;
    assert!(request.starts_with("get /v1/realtime?model=gpt-realtime-2.1 http/1.1\r\n"), "{request}");
    assert!(request.contains("user-agent: windlass-realtime/"), "{request}");
    let request = requested(|url| OpenAiRealtime::with_url(url).model("m").attach_call("rtc_1")).await;
    assert!(request.starts_with("get /v1/realtime?call_id=rtc_1 http/1.1\r\n"), "{request}");
    let request = requested(|url| OpenAiRealtime::with_url(url).attach_call("a&b=c #ü")).await;
    let escaped = "get /v1/realtime?call_id=a%26b%3dc%20%23%c3%bc http/1.1\r\n";
    assert!(request.starts_with(escaped), "{request}");
}

#[tokio::test(start_paused = true)]
async fn an_error_about_an_address_repeats_no_key() {
    let model = OpenAiRealtime::with_url("wss://exa mple/v1/realtime?api-key=hunter2");
    let refused = RealtimeSessionBuilder::new(guide_agent(), model).connect().await;
    let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("wss://exa mple") && !message.contains("hunter2"), "{message}");
}

/// A transport that opens nothing and reports the address.
struct AddressReport;

impl StreamDialer for AddressReport {
    fn open_stream<'a>(
        &'a self,
        address: &'a Uri,
    ) -> BoxFuture<'a, Result<Box<dyn ByteStream>, TransportError>> {
        let error = TransportError::Unusable(format!("asked for {address}"));
        async move { Err(error) }.boxed()
    }
}

/// Without a model's name, the provider's current model is requested, as the reference requests it.
#[tokio::test(start_paused = true)]
async fn the_default_model_is_the_current_one() {
    let model = OpenAiRealtime::new("key").dialer(AddressReport);
    let refused = RealtimeSessionBuilder::new(guide_agent(), model).connect().await;
    let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
    let address = "asked for wss://api.openai.com/v1/realtime?model=gpt-realtime-2.1";
    assert!(message.contains(address), "{message}");
}

/// A session that attaches to a call does not name the model in its configuration.
#[tokio::test(start_paused = true)]
async fn a_session_on_a_call_leaves_the_calls_model_alone() {
    let server = loopback_server([LoopbackReply::message("Hello.")]);
    for model in [
        server.client_model().attach_call("rtc_1"),
        server.client_model().attach_call("rtc_1").model("gpt-realtime-2.1"),
    ] {
        assert_eq!(model.model_name(), None);
        let (session, mut events) = start_session(RealtimeSessionBuilder::new(guide_agent(), model)).await;
        session.send_text("Hi").await.expect("is there");
        turn_events(&mut events).await;
        for sent in server.client_events(Some("session.update")) {
            let sent = &sent["session"];
            assert_eq!((sent.get("model"), sent["audio"]["input"].get("format")), (None, None));
        }
    }
}

/// A message that is larger than the limit ends the connection, and the session says why.
#[tokio::test(start_paused = true)]
async fn messages_have_a_largest_size() {
    let server = LoopbackServer::new([LoopbackReply::message("One.")]);
    server.inject_fault(WireFault::insert_event(
        FaultTrigger::on_send("response.created"),
        json!({ "type": "moon.rising", "padding": "x".repeat(100_000) }),
    ));
    let model = server.client_model().max_message_size(50_000);
    let (session, _events) = start_session(RealtimeSessionBuilder::new(guide_agent(), model)).await;
    session.send_text("Go").await.expect("is there");
    let closing = tokio::time::timeout(Duration::from_secs(60), session.wait_closed());
    let report = closing.await.expect("the session ends");
    assert!(format!("{:?}", report.reason).to_lowercase().contains("long"), "{:?}", report.reason);
}

/// A connection on which nothing comes back is found out after the ping settings, or never.
#[tokio::test(start_paused = true)]
async fn pings_find_a_dead_connection() {
    for (timeout, is_found) in [(Some(Duration::from_secs(3)), true), (None, false)] {
        let server = LoopbackServer::new([]);
        let model = server.client_model().pings(Duration::from_secs(2), timeout);
        let (session, mut events) = start_session(RealtimeSessionBuilder::new(guide_agent(), model)).await;
        server.freeze_connections();
        // The clock is virtual: two seconds until the ping and three after it.
        let bound = Duration::from_secs(if is_found { 6 } else { 300 });
        let is_lost = |event: &RealtimeEvent| matches!(event, RealtimeEvent::Disconnected { .. });
        let lost = tokio::time::timeout(bound, events_until(&mut events, is_lost)).await;
        assert_eq!(lost.is_ok(), is_found);
        assert!(!session.is_closed());
    }
}

/// A raw message is not kept for another connection, and the application learns that.
#[tokio::test(start_paused = true)]
async fn a_raw_message_without_a_connection_is_refused() {
    let server = loopback_server([]);
    let (session, mut events) = connect_agent(Agent::new("guide"), &server).await;
    server.refuse_connections(2);
    server.drop_connections();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Disconnected { .. })).await;
    let raw = json!({ "type": "conversation.item.retrieve", "item_id": "item_1" });
    let refused = session.send_raw(raw.clone()).await;
    assert!(matches!(refused, Err(SessionRequestError::NotConnected)), "{refused:?}");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::Reconnected { .. })).await;
    session.send_raw(raw).await.expect("is sent");
    session.close().await;
    assert_eq!(server.client_events(Some("conversation.item.retrieve")).len(), 1);
}
