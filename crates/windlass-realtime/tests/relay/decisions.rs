//! Tool calls and decisions of a browser's user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use windlass::core::canonical::Digest;
use windlass::core::journal::JournalEntry;
use windlass::prelude::*;
use windlass::store::{MemoryStore, RunQuery, Store, load_paused};
use windlass::tool::CallEvidence;
use windlass_realtime::relay::{BrowserRelay, CallDisplay};
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{RealtimeSession, RealtimeSessionBuilder};

use crate::support::{TestClient, json_messages};

/// Pays an amount.
#[tool(needs_approval = always)]
async fn pay(cents: u32, to: String) -> String {
    format!("paid {cents} to {to}")
}

fn paying_server() -> LoopbackServer {
    LoopbackServer::new([LoopbackReply::call("p1", "pay", r#"{"cents":100,"to":"Bob\u202e"}"#)])
}

async fn connect(server: &LoopbackServer, store: &Arc<MemoryStore>) -> RealtimeSession {
    RealtimeSessionBuilder::new(Agent::new("desk").tool(pay), server.client_model())
        .store(store.clone())
        .connect()
        .await
        .expect("connects")
}

#[tokio::test(start_paused = true)]
async fn by_default_a_browser_sees_and_decides_no_call() {
    let (server, store) = (paying_server(), Arc::default());
    let session = connect(&server, &store).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new(), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Pay" })).await;
    let held = loop {
        if let Some(held) = session.held_calls().await.expect("is there").into_iter().next() {
            break held;
        }
        tokio::task::yield_now().await;
    };
    let digest = CallDisplay::new(&held).digest.to_string();
    client.send(json!({ "type": "decide", "digest": digest, "decision": { "kind": "approve" } })).await;
    let seen = json_messages(&client.until("type", "refused").await);
    assert!(seen.iter().all(|value| !value.to_string().contains("pay\"")), "{seen:?}");
    assert_eq!(session.pending_calls().await.expect("is there").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_browser_approves_the_call_that_it_displayed() {
    let (server, store) = (paying_server(), Arc::default());
    let session = connect(&server, &store).await;
    let relay = BrowserRelay::new().decisions_by("ann");
    let (mut client, _serving) = TestClient::connect(relay.clone(), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Pay" })).await;
    let held = client.expect("call_held").await;
    let lines = ["desk would like to call pay:", "\"cents\": 100", "\"to\": \"Bob\\u202e\""];
    assert_eq!((&held["lines"], &held["reason"]), (&json!(lines), &json!("approval")));

    client
        .send(json!({ "type": "decide", "digest": "0".repeat(64), "decision": { "kind": "approve" } }))
        .await;
    client.expect("refused").await;
    // A second browser is shown the same call, and the first decision counts.
    let (mut other, _serving) = TestClient::connect(relay, &session).await;
    assert_eq!(other.expect("call_held").await["digest"], held["digest"]);
    other.expect("live").await;
    client
        .send(json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": "approve" } }))
        .await;
    assert_eq!(client.expect("decided").await["by"], "ann");
    let settled = client.expect("call_settled").await;
    assert_eq!(
        (&settled["status"], &settled["output"]),
        (&json!("succeeded"), &json!("paid 100 to Bob\\u{202e}"))
    );
    let released = other.expect("call_released").await;
    assert_eq!((&released["run"], &released["path"]), (&held["run"], &held["path"]));
    other.send(json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": "reject" } })).await;
    other.expect("refused").await;

    // The journal has who decided, and what was displayed.
    let run = store.list_runs(&RunQuery::default()).await.expect("is there").remove(0).run;
    let record = load_paused(&*store, &run).await.expect("is there");
    let decided = record.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::DecisionRecorded(decided) => Some(decided.clone()),
        _ => None,
    });
    let decided = decided.expect("it is recorded");
    assert_eq!(decided.decided_by.as_deref(), Some("ann"));
    assert_eq!(decided.displayed.map(|digest| json!(digest.to_string())), Some(held["digest"].clone()));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_has_the_persons_reason() {
    let (server, store) = (paying_server(), Arc::default());
    let session = connect(&server, &store).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new().decisions_by("ann"), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Pay" })).await;
    let digest = client.expect("call_held").await["digest"].clone();
    let decision = json!({ "kind": "reject", "message": "too much" });
    client.send(json!({ "type": "decide", "digest": digest, "decision": decision })).await;
    let settled = client.expect("call_settled").await;
    assert_eq!((&settled["status"], &settled["output"]), (&json!("rejected"), &json!("too much")));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_display_changed_is_displayed_anew() {
    let (server, store) = (paying_server(), Arc::default());
    let session = connect(&server, &store).await;
    let version = Arc::new(AtomicU32::new(1));
    let shown = version.clone();
    let relay = BrowserRelay::new().decisions_by("ann").call_display(move |_| {
        let text = format!("balance {}", shown.load(Ordering::Relaxed));
        CallDisplay {
            digest: Digest::of_text(&text),
            lines: vec![text],
            picture: None,
            offers_standing: false,
        }
    });
    let (mut client, _serving) = TestClient::connect(relay, &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Pay" })).await;
    let first = client.expect("call_held").await["digest"].clone();
    version.store(2, Ordering::Relaxed);
    client.send(json!({ "type": "decide", "digest": first, "decision": { "kind": "approve" } })).await;
    let second = client.expect("call_held").await;
    assert_eq!(second["lines"], json!(["balance 2"]));
    client.expect("refused").await;
    assert_eq!(session.pending_calls().await.expect("is there").len(), 1, "nothing was decided");
    // A decision on it does not cover later calls, if the display does not offer that.
    let mut decide =
        json!({ "type": "decide", "digest": second["digest"], "decision": { "kind": "approve" } });
    decide["standing"] = true.into();
    client.send(decide.clone()).await;
    client.expect("refused").await;
    decide["standing"] = false.into();
    client.send(decide).await;
    client.expect("call_settled").await;
}

const PICTURE: &str = "iVBORw0KGgo=";

/// A tool that saves what it saw before it asks a person, as the computer tool does.
fn clicking_agent(seen: &Arc<AtomicU32>, picture: &'static str) -> Agent {
    let seen = seen.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let click = Tool::dynamic("click", "Clicks.", schema, |_, _: serde_json::Value| async {
        Ok::<_, ToolError>("clicked")
    });
    let click = click.needs_approval_if_async(move |ctx: ToolContext, _: &serde_json::Value| {
        let page = seen.load(Ordering::Relaxed);
        async move {
            let picture = ctx.save_media("image/png", picture).await.expect("it is stored");
            let evidence =
                CallEvidence::new(format!("page {page}\u{202e}\nbutton Pay")).with_picture(picture);
            ctx.save_evidence(&evidence).await.expect("it is stored");
            true
        }
    });
    Agent::new("desk").tool(click)
}

async fn connect_clicking(picture: &'static str, store: &Arc<MemoryStore>) -> RealtimeSession {
    let server = LoopbackServer::new([LoopbackReply::call("p1", "click", "{}")]);
    let agent = clicking_agent(&Arc::new(AtomicU32::new(1)), picture);
    let realtime = RealtimeSessionBuilder::new(agent, server.client_model()).store(store.clone());
    realtime.connect().await.expect("connects")
}

/// The person sees what the tool saw, and a decision on a display without it counts for nothing.
#[tokio::test(start_paused = true)]
async fn a_browser_sees_what_the_tool_saw() {
    let store: Arc<MemoryStore> = Arc::default();
    let session = connect_clicking(PICTURE, &store).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new().decisions_by("ann"), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Click" })).await;
    let held = client.expect("call_held").await;
    let lines = ["desk would like to call click:", "no arguments", "page 1\\u{202e}", "button Pay"];
    assert_eq!(held["lines"], json!(lines));
    assert_eq!(held["picture"], json!(format!("data:image/png;base64,{PICTURE}")));
    let call = session.held_calls().await.expect("is there").remove(0);
    let without = CallDisplay::new(&call).digest.to_string();
    client.send(json!({ "type": "decide", "digest": without, "decision": { "kind": "approve" } })).await;
    client.expect("refused").await;
    client
        .send(json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": "approve" } }))
        .await;
    assert_eq!(client.expect("call_settled").await["output"], json!("clicked"));
}

/// A call whose picture cannot be displayed can be rejected and not approved.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_displayed_cannot_be_approved() {
    let store: Arc<MemoryStore> = Arc::default();
    let session = connect_clicking("PHN2Zz48L3N2Zz4=", &store).await;
    let (mut client, _serving) = TestClient::connect(BrowserRelay::new().decisions_by("ann"), &session).await;
    client.expect("live").await;
    client.send(json!({ "type": "text", "text": "Click" })).await;
    let held = client.expect("call_held").await;
    assert_eq!(held["picture"], json!(null));
    for (kind, answer) in [("approve", "refused"), ("reject", "call_settled")] {
        client
            .send(json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": kind } }))
            .await;
        client.expect(answer).await;
    }
}
