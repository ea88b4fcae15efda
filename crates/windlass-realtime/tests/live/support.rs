//! What the tests stand on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::testing::{Loopback, Reply};
use windlass_realtime::{LiveEvent, LiveEvents, LiveSession, Realtime};

/// Longer than anything here takes, on a clock that jumps.
const LONG: Duration = Duration::from_secs(600);

/// Events until one is found that the test waits for, that one last.
pub(crate) async fn until(events: &mut LiveEvents, is_it: impl Fn(&LiveEvent) -> bool) -> Vec<LiveEvent> {
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
    let found = tokio::time::timeout(LONG, waiting).await;
    assert!(matches!(found, Ok(true)), "what was waited for did not come: {:#?}", named(&seen));
    seen
}

/// The events of a whole answer, and of those that follow it, until nothing is under way.
pub(crate) async fn turn(events: &mut LiveEvents) -> Vec<LiveEvent> {
    until(events, |event| matches!(event, LiveEvent::TurnEnded { .. })).await
}

/// Every event that is left.
pub(crate) async fn rest(mut events: LiveEvents) -> Vec<LiveEvent> {
    let mut seen = Vec::new();
    while let Some(event) = tokio::time::timeout(LONG, events.next()).await.expect("the session ends") {
        seen.push(event);
    }
    seen
}

/// The names of events, for messages and comparisons.
pub(crate) fn named(events: &[LiveEvent]) -> Vec<String> {
    let name = |event: &LiveEvent| {
        let text = format!("{event:?}");
        text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    events.iter().map(name).collect()
}

/// How many events have this name.
pub(crate) fn count(events: &[LiveEvent], name: &str) -> usize {
    named(events).iter().filter(|known| *known == name).count()
}

pub(crate) fn server(replies: impl IntoIterator<Item = Reply>) -> Loopback {
    Loopback::new(replies)
}

pub(crate) async fn connected(agent: Agent, server: &Loopback) -> (LiveSession, LiveEvents) {
    enter(Realtime::new(agent, server.model())).await
}

pub(crate) async fn enter(realtime: Realtime) -> (LiveSession, LiveEvents) {
    let session = realtime.connect().await.expect("connects");
    let events = session.events();
    (session, events)
}

/// A tool that counts how often it ran.
pub(crate) fn counted(name: &str, runs: &Arc<AtomicU32>) -> Tool {
    let runs = runs.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(name, "Counts.", schema, move |_, _| {
        let runs = runs.clone();
        async move { Ok::<_, ToolError>(format!("run {}", runs.fetch_add(1, Ordering::Relaxed) + 1)) }
    })
}

/// A tool that takes its time, and counts how often it came to its end.
pub(crate) fn slow(name: &str, takes: Duration, ended: &Arc<AtomicU32>) -> Tool {
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

pub(crate) fn ran(runs: &Arc<AtomicU32>) -> u32 {
    runs.load(Ordering::Relaxed)
}

/// What the model was told of a call.
pub(crate) fn output_of(server: &Loopback, call: &str) -> Vec<String> {
    let created = server.said(Some("conversation.item.create"));
    let is_it = |item: &&serde_json::Value| {
        item["item"]["call_id"] == call && item["item"]["type"] == "function_call_output"
    };
    created
        .iter()
        .filter(is_it)
        .map(|item| item["item"]["output"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Nothing was asked for while an answer was under way: one at a time.
pub(crate) fn one_at_a_time(server: &Loopback) {
    for seen in server.seen() {
        let is_create = seen.event["type"] == "response.create";
        assert!(!(is_create && seen.is_answering), "an answer was asked for while one was under way");
    }
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<std::sync::Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn push(&self, what: impl Into<String>) {
        self.0.lock().expect("is not poisoned").push(what.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("is not poisoned"))
    }
}

/// An answer with calls that was played, until the answer to their outputs had ended.
pub(crate) struct Played {
    pub(crate) server: Loopback,
    pub(crate) session: LiveSession,
    pub(crate) seen: Vec<LiveEvent>,
}

impl Played {
    pub(crate) async fn new(
        tools: impl windlass::IntoTools<()>,
        reply: Reply,
        set_up: impl FnOnce(Realtime) -> Realtime,
    ) -> Self {
        let server = server([reply]);
        let agent = Agent::new("desk").tools(tools);
        let (session, mut events) = enter(set_up(Realtime::new(agent, server.model()))).await;
        session.say("Go").await.expect("is there");
        let mut seen = turn(&mut events).await;
        seen.extend(turn(&mut events).await);
        one_at_a_time(&server);
        Self { server, session, seen }
    }

    /// What the model was told of its calls, in the order in which it was.
    pub(crate) fn told(&self) -> Vec<String> {
        let created = self.server.said(Some("conversation.item.create"));
        let outputs = created.iter().filter(|item| item["item"]["type"] == "function_call_output");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        outputs
            .map(|item| format!("{}: {}", text(&item["item"]["call_id"]), text(&item["item"]["output"])))
            .collect()
    }
}
