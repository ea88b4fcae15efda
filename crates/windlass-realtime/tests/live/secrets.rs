//! Secret arguments and outputs in realtime sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass::prelude::*;
use windlass::store::{MemoryStore, RunQuery, Store};
use windlass_realtime::testing::LoopbackReply;
use windlass_realtime::{
    FolderJournal, MemoryJournal, RealtimeEntry, RealtimeEvent, RealtimeJournal, RealtimeSession,
    RealtimeSessionBuilder,
};

use crate::support::*;

const CARD: &str = "4111-1111";
const CODE: &str = "code-1234";

fn paying_agent(runs: &Arc<AtomicU32>) -> Agent {
    let runs = runs.clone();
    let schema = json!({
        "type": "object",
        "properties": { "card": { "type": "string" } },
        "required": ["card"],
        "additionalProperties": false,
    });
    let pay = Tool::dynamic("pay", "Pays.", schema, move |_, arguments: Value| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            match arguments["card"].as_str() {
                Some(CARD) => Ok::<_, ToolError>(CODE),
                _ => Err(ToolError::visible("no such card")),
            }
        }
    });
    Agent::new("desk").tools(pay.secret_arguments(["card"]).secret_output())
}

async fn journal_text(folder: &std::path::Path) -> String {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
}

/// Returns a journal as it is after a crash just after the calls were journalled.
async fn cut_after_plan(entries: Vec<RealtimeEntry>) -> MemoryJournal {
    let upto = entries.iter().position(|entry| matches!(entry, RealtimeEntry::CallsPlanned { .. }));
    let entries = entries[..=upto.expect("there are calls")].to_vec();
    let journal = MemoryJournal::default();
    RealtimeJournal::append(&journal, &"talk".into(), 0, entries).await.expect("is written");
    journal
}

/// Asserts that no journal of a run has one of these texts.
async fn assert_runs_lack(store: &Arc<MemoryStore>, secrets: &[&str]) {
    for run in store.list_runs(&RunQuery::default()).await.expect("is read") {
        let lines = store.load_journal(&run.run, 0).await.expect("is read");
        for line in &lines {
            assert!(!secrets.iter().any(|secret| line.body.contains(secret)), "{}", line.body);
        }
    }
}

async fn run_turns(session: &RealtimeSession, turns: usize) {
    let mut events = session.events();
    session.send_text("Pay").await.expect("is there");
    for _ in 0..turns {
        turn_events(&mut events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn s55_secrets_reach_the_body_and_the_model_and_no_journal() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let server = loopback_server([LoopbackReply::call("a", "pay", format!("{{\"card\":\"{CARD}\"}}"))]);
    let realtime = builder_with_store(paying_agent(&runs), &server, &store)
        .journal(FolderJournal::new(folder.path().to_owned()));
    let session = realtime.connect().await.expect("connects");
    run_turns(&session, 2).await;
    session.close().await;
    assert_eq!((run_count(&runs), sent_outputs(&server, "a")), (1, vec![CODE.to_owned()]));
    let written = journal_text(folder.path()).await;
    assert!(written.contains("[secret]"), "{written}");
    assert!(!written.contains(CARD), "a secret argument is in the session's journal");
    assert!(!written.lines().any(|line| line.contains("\"output\"") && line.contains(CODE)), "{written}");
    assert_runs_lack(&store, &[CARD, CODE]).await;
}

/// A redacted output is known by its mark and not by its text: an output that has the placeholder in it does not wait for
/// its slow sibling, and a secret one reaches the model as a whole.
#[tokio::test(start_paused = true)]
async fn an_output_with_the_text_of_the_placeholder_is_sent_at_once() {
    let (runs, slow) = (Arc::default(), Arc::default());
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let manual = Tool::dynamic("manual", "Reads the manual.", schema, |_, _| async {
        Ok::<_, ToolError>("secrets are shown as [secret]")
    });
    let reply = LoopbackReply::call("a", "slow", "{}").and_call("b", "manual", "{}").and_call(
        "c",
        "pay",
        format!("{{\"card\":\"{CARD}\"}}"),
    );
    let server = loopback_server([reply]);
    let agent = paying_agent(&runs).tools((manual, slow_tool("slow", Duration::from_secs(60), &slow)));
    let (session, mut events) = connect_agent(agent, &server).await;
    session.send_text("Go").await.expect("is there");
    let is_settled = |event: &RealtimeEvent| matches!(event, RealtimeEvent::CallSettled { .. });
    events_until(&mut events, is_settled).await;
    events_until(&mut events, is_settled).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(run_count(&slow), 0, "the slow call runs");
    assert_eq!(sent_outputs(&server, "b"), ["secrets are shown as [secret]"]);
    assert_eq!(sent_outputs(&server, "c"), Vec::<String>::new(), "an event has no secrets");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sent_outputs(&server, "c"), [CODE]);
    session.close().await;
}

/// The process crashed before its run recorded the calls: their secret arguments are lost.
#[tokio::test(start_paused = true)]
async fn s55_a_call_whose_secrets_were_not_kept_is_not_made_from_the_journal() {
    let (runs, store, journal) = (Arc::default(), Arc::new(MemoryStore::default()), MemoryJournal::default());
    let first = loopback_server([LoopbackReply::call("a", "pay", format!("{{\"card\":\"{CARD}\"}}"))]);
    // None of its runs was stored.
    let session = RealtimeSessionBuilder::new(paying_agent(&runs), first.client_model())
        .session_id("talk")
        .journal(journal.clone())
        .connect()
        .await
        .expect("connects");
    run_turns(&session, 2).await;
    session.detach().await;
    let entries = RealtimeJournal::load(&journal, &"talk".into()).await.expect("is read");
    let journal = cut_after_plan(entries).await;
    let second = loopback_server([]);
    let realtime = builder_with_store(paying_agent(&runs), &second, &store).journal(journal);
    let session = realtime.resume().await.expect("resumes");
    let mut events = session.events();
    turn_events(&mut events).await;
    assert_eq!(run_count(&runs), 1, "it ran in the first life alone");
    assert!(sent_outputs(&second, "a")[0].contains("were not kept"), "{:?}", sent_outputs(&second, "a"));
}

/// Creates a tool whose output repeats its argument.
fn repeating_tool(name: &str, field: &str) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": { field: { "type": "string" } },
        "required": [field],
        "additionalProperties": false,
    });
    let field = field.to_owned();
    Tool::dynamic(name, "Repeats.", schema, move |_, arguments: Value| {
        let text = format!("got {}", arguments[&field].as_str().unwrap_or_default());
        async move { Ok::<_, ToolError>(text) }
    })
}

/// The value of a secret argument is masked wherever it is repeated: in a public output, in the model's next message, in
/// the arguments and the output of another tool, in a call of a tool that does not exist, and by a guardrail.
#[tokio::test(start_paused = true)]
async fn s55_the_value_of_a_secret_argument_is_in_no_journal_and_no_event() {
    let (folder, store) = (tempfile::tempdir().expect("a folder"), Arc::new(MemoryStore::default()));
    let server = loopback_server([
        LoopbackReply::call("a", "pay", format!("{{\"card\":\"{CARD}\"}}")),
        LoopbackReply::message(format!("I charged {CARD}.")).and_call(
            "b",
            "note",
            format!("{{\"text\":\"card {CARD}\"}}"),
        ),
        LoopbackReply::call("c", "pai", "{\"card\":\"5222-2222\"}"),
        LoopbackReply::message("Also 5222-2222, forbidden."),
        LoopbackReply::message("Done."),
    ]);
    let looks = Arc::default();
    let agent = Agent::new("desk")
        .tools((repeating_tool("pay", "card").secret_arguments(["card"]), repeating_tool("note", "text")))
        .output_guardrail(crate::guardrails::forbid_word("forbidden", &looks));
    let realtime =
        builder_with_store(agent, &server, &store).journal(FolderJournal::new(folder.path().to_owned()));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Pay").await.expect("is there");
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.extend(turn_events(&mut events).await);
    }
    let redacted = format!("{:?}", session.redacted_history().await.expect("is there"));
    session.close().await;
    seen.extend(remaining_events(events).await);
    assert_eq!(sent_outputs(&server, "a"), [format!("got {CARD}")]);
    assert_eq!(sent_outputs(&server, "b"), [format!("got card {CARD}")]);
    let is_delta = |event: &RealtimeEvent| matches!(event, RealtimeEvent::OutputTextDelta { .. });
    seen.retain(|event| !is_delta(event));
    assert_eq!(count_events(&seen, "GuardrailTripped"), 1);
    let written = journal_text(folder.path()).await;
    for text in [written, redacted, format!("{seen:?}")] {
        assert!(text.contains("got [secret]") && text.contains("got card [secret]"), "{text}");
        for secret in [CARD, "5222-2222"] {
            assert!(!text.contains(secret), "`{secret}` in {text}");
        }
    }
    assert_runs_lack(&store, &[CARD, "5222-2222"]).await;
}

/// A secret output stays secret if another process settles the call.
#[tokio::test(start_paused = true)]
async fn s55_a_secret_output_is_in_no_journal_after_a_resumption() {
    let (runs, store) = (Arc::default(), Arc::new(MemoryStore::default()));
    let folder = tempfile::tempdir().expect("a folder");
    let open = Tool::dynamic(
        "open",
        "Opens.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |_, _| async { Ok::<_, ToolError>(CODE) },
    );
    let agent = paying_agent(&runs).tools(open.secret_output().needs_approval());
    let first = loopback_server([LoopbackReply::call("a", "open", "{}")]);
    let realtime = builder_with_store(agent.clone(), &first, &store)
        .journal(FolderJournal::new(folder.path().to_owned()));
    let (session, mut events) = start_session(realtime).await;
    session.send_text("Open").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    session.detach().await;
    let second = loopback_server([LoopbackReply::message("Done.")]);
    let realtime =
        builder_with_store(agent, &second, &store).journal(FolderJournal::new(folder.path().to_owned()));
    let session = realtime.resume().await.expect("resumes");
    let mut events = session.events();
    events_until(&mut events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    session.approve("a").await.expect("is pending");
    let mut seen = turn_events(&mut events).await;
    session.close().await;
    seen.extend(remaining_events(events).await);
    assert_eq!(sent_outputs(&second, "a"), [CODE]);
    let written = journal_text(folder.path()).await;
    assert!(written.contains("[secret]") && !written.contains(CODE), "{written}");
    assert!(!format!("{seen:?}").contains(CODE), "{seen:?}");
}

/// The calls beside one whose secret arguments are lost are executed.
#[tokio::test(start_paused = true)]
async fn s55_the_siblings_of_a_call_whose_secrets_were_not_kept_are_made() {
    let (runs, looks) = (Arc::default(), Arc::default());
    let agent = || paying_agent(&runs).tools(counting_tool("look", &looks));
    let reply =
        LoopbackReply::call("a", "pay", format!("{{\"card\":\"{CARD}\"}}")).and_call("b", "look", "{}");
    let (first, journal) = (loopback_server([reply]), MemoryJournal::default());
    // None of its runs was stored.
    let session = RealtimeSessionBuilder::new(agent(), first.client_model())
        .session_id("talk")
        .journal(journal.clone())
        .connect()
        .await
        .expect("connects");
    run_turns(&session, 2).await;
    session.detach().await;
    assert_eq!((run_count(&runs), run_count(&looks)), (1, 1));
    let entries = RealtimeJournal::load(&journal, &"talk".into()).await.expect("is read");
    let second = loopback_server([]);
    let store = Arc::new(MemoryStore::default());
    let realtime = builder_with_store(agent(), &second, &store).journal(cut_after_plan(entries).await);
    let session = realtime.resume().await.expect("resumes");
    let mut events = session.events();
    turn_events(&mut events).await;
    session.close().await;
    assert_eq!((run_count(&runs), run_count(&looks)), (1, 2));
    assert!(sent_outputs(&second, "a")[0].contains("were not kept"), "{:?}", sent_outputs(&second, "a"));
    assert_eq!(sent_outputs(&second, "b"), ["run 2"]);
}
