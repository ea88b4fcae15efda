//! Refused requests are in the log: who, what and why, with the text of the client escaped.
#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Debug;
use std::sync::Mutex;

use serde_json::json;
use support::TestServer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use windlass_server::{AccessPolicy, AccessRole, ServerLimits, TokenDigest};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct LineText(String);

impl Visit for LineText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "peer" {
            self.0.push_str(&format!("{field}={value:?} "));
        }
    }
}

struct LineKeeper;

impl Subscriber for LineKeeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("windlass_server")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = LineText(String::new());
        event.record(&mut text);
        LINES.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_logged_with_its_reason() {
    tracing::subscriber::set_global_default(LineKeeper).unwrap();
    let people = AccessPolicy::default().with_person(
        "vera",
        TokenDigest::of_token("vera-token"),
        [("clerk", AccessRole::View)],
    );
    let limits = ServerLimits { body_bytes: 2_000, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.access(people).limits(limits)).await;
    let vera = server.client_with("vera-token");
    assert_eq!(server.client_with("wrong").get("/v1/runs").await.0, 401);
    assert_eq!(vera.get("/v1/sessions").await.0, 403);
    assert_eq!(vera.post("/v1/runs", &json!({ "input": "x".repeat(3_000) })).await.0, 413);
    assert_eq!(vera.post("/v1/runs", &json!({ "agent": 7 })).await.0, 400);
    // What is not there is no refusal.
    assert_eq!(vera.get("/v1/runs/nobody").await.0, 404);
    let lines = LINES.lock().unwrap().clone();
    let facts = |line: &String| {
        ["path=", "person=", "status=", "code="].map(|name| {
            let rest = line.split_once(name).map_or("", |(_, rest)| rest);
            rest.split(' ').next().unwrap_or_default().trim_matches('"').to_owned()
        })
    };
    let refused: Vec<[String; 4]> =
        lines.iter().filter(|line| line.contains("a request is refused")).map(facts).collect();
    let expected = [
        ["/v1/runs", "", "401", "unauthorized"],
        ["/v1/sessions", "vera", "403", "missing_right"],
        ["/v1/runs", "vera", "413", "body_too_large"],
        ["/v1/runs", "vera", "400", "invalid_request"],
    ];
    assert_eq!(refused, expected.map(|line| line.map(str::to_owned)));
}
