//! Spans of the `tracing` crate: around agents, model requests, guardrails and tool bodies, whatever task or thread they
//! run on.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::prelude::*;

/// A span, or an event inside one.
#[derive(Clone, Debug)]
struct SeenSpan {
    id: u64,
    parent: Option<u64>,
    text: String,
    metadata: &'static Metadata<'static>,
}

static SEEN: Mutex<Vec<SeenSpan>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn seen() -> MutexGuard<'static, Vec<SeenSpan>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn current() -> Option<u64> {
    ENTERED.with_borrow(|stack| stack.last().copied())
}

#[derive(Default)]
struct FieldText(String);

impl Visit for FieldText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

/// A subscriber that keeps spans and events with the spans around them.
struct SpanKeeper;

impl Subscriber for SpanKeeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "windlass" || metadata.target() == "application"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let parent = span.parent().map(Id::into_u64).or_else(|| span.is_contextual().then(current).flatten());
        let mut fields = FieldText::default();
        span.record(&mut fields);
        let (metadata, text) = (span.metadata(), format!("{}{}", span.metadata().name(), fields.0));
        seen().push(SeenSpan { id, parent, text, metadata });
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = FieldText::default();
        values.record(&mut fields);
        let mut known = seen();
        let span = known.iter_mut().find(|known| known.id == span.into_u64()).expect("a known span");
        span.text.push_str(&fields.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = FieldText::default();
        event.record(&mut fields);
        let (metadata, text) = (event.metadata(), format!("event{}", fields.0));
        seen().push(SeenSpan { id: 0, parent: current(), text, metadata });
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|stack| stack.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|stack| stack.pop());
    }

    fn current_span(&self) -> Current {
        let known = current().and_then(|id| seen().iter().find(|span| span.id == id).cloned());
        known.map_or_else(Current::none, |span| Current::new(Id::from_u64(span.id), span.metadata))
    }
}

/// Returns the spans and events, each with the texts of those around it, outermost first.
fn seen_paths() -> Vec<String> {
    let all = seen().clone();
    let mut paths: Vec<String> = all
        .iter()
        .map(|span| {
            let mut path = vec![span.text.clone()];
            let mut parent = span.parent;
            while let Some(around) = parent.and_then(|id| all.iter().find(|span| span.id == id)) {
                path.insert(0, around.text.clone());
                parent = around.parent;
            }
            path.join(" > ")
        })
        .collect();
    paths.sort();
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_requests_and_nested_agents_are_inside_their_spans() {
    tracing::subscriber::set_global_default(SpanKeeper).expect("the only test of this file");
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let count = Tool::dynamic("count", "Counts.", schema.clone(), |_: ToolContext, _: Value| async {
        tokio::task::yield_now().await;
        tracing::info!(target: "application", "counting");
        Ok::<_, ToolError>("one")
    })
    .input_guardrail(ToolInputGuardrail::new("calm", |_| async { Ok(ToolGuardrailVerdict::Allow) }));
    let clerk = Agent::new("clerk")
        .model(ScriptedModel::new([
            ScriptedResponse::call("inner", "count", json!({})),
            ScriptedResponse::text("One."),
        ]))
        .tool(count);
    let office = Agent::new("office")
        .model(ScriptedModel::new([
            ScriptedResponse::call("outer", "ask_clerk", json!({ "input": "How many?" })),
            ScriptedResponse::text("One."),
        ]))
        .tool(clerk.as_tool("ask_clerk", "Asks the clerk."));
    let request = tracing::info_span!(target: "application", "http_request");
    let mut stream = request.in_scope(|| office.run("Count").run_id("run-1").stream());
    while stream.next().await.is_some() {}
    let run = "http_request > invoke_agent run=run-1 agent=office";
    let call = format!("{run} > execute_tool tool=ask_clerk call=outer");
    let nested = format!("{call} > invoke_agent run=run-1 agent=clerk");
    let body = format!("{nested} > execute_tool tool=count call=outer/inner");
    let mut expected = vec![
        "http_request".to_owned(),
        run.to_owned(),
        format!("{run} > chat agent=office turn=1"),
        format!("{run} > chat agent=office turn=2"),
        call,
        nested.clone(),
        format!("{nested} > chat agent=clerk turn=1"),
        format!("{nested} > chat agent=clerk turn=2"),
        format!("{nested} > guardrail name=\"calm\" call=outer/inner"),
        body.clone(),
        format!("{body} > event message=counting"),
    ];
    expected.sort();
    assert_eq!(seen_paths(), expected);
}
