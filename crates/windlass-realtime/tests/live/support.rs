//! Helpers of the tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{LoopbackReply, LoopbackReplyPart, LoopbackServer};
use windlass_realtime::{
    RealtimeEvent, RealtimeEvents, RealtimeSession, RealtimeSessionBuilder, SessionRequestError,
};

/// A timeout that is long enough on a paused clock.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Time without events after which a session has nothing more to do.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// Collects events up to the first that matches, inclusive.
pub(crate) async fn events_until(
    events: &mut RealtimeEvents,
    is_it: impl Fn(&RealtimeEvent) -> bool,
) -> Vec<RealtimeEvent> {
    let mut seen = Vec::new();
    let waiting = async {
        while let Some(event) = events.next().await {
            let is_last = is_it(&event);
            seen.push(event);
            if is_last {
                return true;
            }
        }
        false
    };
    let found = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
    assert!(matches!(found, Ok(true)), "what was waited for did not come: {:#?}", event_names(&seen));
    seen
}

/// Collects the events up to the end of the next response.
pub(crate) async fn turn_events(events: &mut RealtimeEvents) -> Vec<RealtimeEvent> {
    events_until(events, |event| matches!(event, RealtimeEvent::TurnEnded { .. })).await
}

/// Collects all remaining events.
pub(crate) async fn remaining_events(mut events: RealtimeEvents) -> Vec<RealtimeEvent> {
    let mut seen = Vec::new();
    while let Some(event) = tokio::time::timeout(TEST_TIMEOUT, events.next()).await.expect("the session ends")
    {
        seen.push(event);
    }
    seen
}

/// Returns the names of events, for messages and comparisons.
pub(crate) fn event_names(events: &[RealtimeEvent]) -> Vec<String> {
    let name = |event: &RealtimeEvent| {
        let text = format!("{event:?}");
        text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    events.iter().map(name).collect()
}

/// Returns the number of events with this name.
pub(crate) fn count_events(events: &[RealtimeEvent], name: &str) -> usize {
    event_names(events).iter().filter(|known| *known == name).count()
}

pub(crate) fn loopback_server(replies: impl IntoIterator<Item = LoopbackReply>) -> LoopbackServer {
    LoopbackServer::new(replies)
}

pub(crate) async fn connect_agent(
    agent: Agent,
    server: &LoopbackServer,
) -> (RealtimeSession, RealtimeEvents) {
    start_session(RealtimeSessionBuilder::new(agent, server.client_model())).await
}

pub(crate) async fn start_session(realtime: RealtimeSessionBuilder) -> (RealtimeSession, RealtimeEvents) {
    let session = realtime.connect().await.expect("connects");
    let events = session.events();
    (session, events)
}

/// Creates the builder of a session whose runs this store keeps.
pub(crate) fn builder_with_store(
    agent: Agent,
    server: &LoopbackServer,
    store: &Arc<windlass::store::MemoryStore>,
) -> RealtimeSessionBuilder {
    RealtimeSessionBuilder::new(agent, server.client_model()).session_id("talk").store(store.clone())
}

/// Creates a tool that counts its runs.
pub(crate) fn counting_tool(name: &str, runs: &Arc<AtomicU32>) -> Tool {
    let runs = runs.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(name, "Counts.", schema, move |_, _| {
        let runs = runs.clone();
        async move { Ok::<_, ToolError>(format!("run {}", runs.fetch_add(1, Ordering::Relaxed) + 1)) }
    })
}

/// Creates a slow tool that counts its completed runs.
pub(crate) fn slow_tool(name: &str, takes: Duration, ended: &Arc<AtomicU32>) -> Tool {
    let ended = ended.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(name, "Takes its time.", schema, move |_, _| {
        let ended = ended.clone();
        async move {
            tokio::time::sleep(takes).await;
            ended.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ToolError>("done")
        }
    })
}

pub(crate) fn run_count(runs: &Arc<AtomicU32>) -> u32 {
    runs.load(Ordering::Relaxed)
}

/// Returns the outputs of a call that were sent to the model.
pub(crate) fn sent_outputs(server: &LoopbackServer, call: &str) -> Vec<String> {
    let created = server.client_events(Some("conversation.item.create"));
    let is_it = |item: &&serde_json::Value| {
        item["item"]["call_id"] == call && item["item"]["type"] == "function_call_output"
    };
    created
        .iter()
        .filter(is_it)
        .map(|item| item["item"]["output"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Asserts that no response was requested while one was active.
pub(crate) fn assert_one_response_at_a_time(server: &LoopbackServer) {
    for seen in server.wire_log() {
        let is_create = seen.event["type"] == "response.create";
        assert!(!(is_create && seen.is_responding()), "an answer was asked for while one was under way");
    }
}

/// Asserts that the session is open and rejected a decision.
#[track_caller]
pub(crate) fn assert_decision_rejected(result: Result<(), SessionRequestError>) {
    assert!(matches!(result, Err(SessionRequestError::Decision(_))), "{result:?}");
}

/// A log of events, in order.
#[derive(Clone, Default)]
pub(crate) struct EventLog(Arc<std::sync::Mutex<Vec<String>>>);

impl EventLog {
    pub(crate) fn push(&self, what: impl Into<String>) {
        self.0.lock().expect("is not poisoned").push(what.into());
    }

    pub(crate) fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("is not poisoned"))
    }
}

/// A session with the calls of one response, run until the response to their outputs ended.
pub(crate) struct PlayedCalls {
    pub(crate) server: LoopbackServer,
    pub(crate) session: RealtimeSession,
    pub(crate) events: Vec<RealtimeEvent>,
}

impl PlayedCalls {
    pub(crate) async fn new(
        tools: impl windlass::tool::IntoTools<()>,
        reply: LoopbackReply,
        set_up: impl FnOnce(RealtimeSessionBuilder) -> RealtimeSessionBuilder,
    ) -> Self {
        let calls: BTreeSet<String> = reply
            .parts
            .iter()
            .filter_map(|part| match part {
                LoopbackReplyPart::Call { id, .. } => Some(id.clone()),
                LoopbackReplyPart::Message { .. } => None,
            })
            .collect();
        let server = loopback_server([reply]);
        let agent = Agent::new("desk").tools(tools);
        let (session, mut events) =
            start_session(set_up(RealtimeSessionBuilder::new(agent, server.client_model()))).await;
        session.send_text("Go").await.expect("is there");
        let mut seen = turn_events(&mut events).await;
        // Each output may have its own response.
        let is_done = || calls.iter().all(|call| !sent_outputs(&server, call).is_empty());
        while !is_done() {
            seen.extend(turn_events(&mut events).await);
        }
        while let Ok(Some(event)) = tokio::time::timeout(QUIET_TIME, events.next()).await {
            seen.push(event);
        }
        assert_one_response_at_a_time(&server);
        Self { server, session, events: seen }
    }

    /// Returns the call outputs sent to the model, in order.
    pub(crate) fn outputs_sent(&self) -> Vec<String> {
        let created = self.server.client_events(Some("conversation.item.create"));
        let outputs = created.iter().filter(|item| item["item"]["type"] == "function_call_output");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        outputs
            .map(|item| format!("{}: {}", text(&item["item"]["call_id"]), text(&item["item"]["output"])))
            .collect()
    }
}
