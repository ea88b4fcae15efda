//! A worker takes over a run whose secret arguments were lost with another process: a person is asked for them again, no
//! body runs with a placeholder, and no call that may have happened is forgotten.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use windlass::core::decision::{Decision, DecisionScope, HoldReason, PendingCall};
use windlass::core::id::{RunId, Timestamp};
use windlass::core::tool::ToolEffect;
use windlass::fleet::{AgentRegistry, QueuedState, RunQueue, RunSubmission, Worker};
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::prelude::*;
use windlass::store::{EncryptedStore, EncryptionKeys, SqliteStore, load_paused, post_decision};

const CARD: &str = "4111-canary-1111";
const OTHER_CARD: &str = "5222-canary-2222";

/// The till: what was charged, and a gate for the first charge.
#[derive(Default)]
struct Till {
    charged: Mutex<Vec<String>>,
    started: Notify,
}

/// The behaviour of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Never,
    Charged,
}

fn agent(till: &Arc<Till>, effect: ToolEffect, end: BodyEnd) -> Agent {
    let schema = json!({ "type": "object", "properties": { "card": { "type": "string" }, "cents": { "type": "integer" } },
        "required": ["card", "cents"], "additionalProperties": false });
    let till = till.clone();
    let tool = Tool::dynamic("pay", "Pays.", schema, move |_: ToolContext, arguments: Value| {
        let till = till.clone();
        async move {
            till.started.notify_one();
            if end == BodyEnd::Never {
                std::future::pending::<()>().await;
            }
            till.charged
                .lock()
                .expect("free")
                .push(arguments["card"].as_str().unwrap_or_default().to_owned());
            Ok::<_, ToolError>("charged")
        }
    });
    // A guardrail sees whole arguments only.
    let digits = ToolInputGuardrail::new("digits", |ctx: ToolContext| async move {
        Ok(match ctx.arguments().contains("-canary-") {
            true => ToolGuardrailVerdict::Allow,
            false => ToolGuardrailVerdict::RejectCall("no card".to_owned()),
        })
    });
    let model = ScriptedModel::from_fn(|request| {
        match request.input_text().iter().any(|line| line.starts_with("output ")) {
            true => ScriptedResponse::text("done"),
            false => ScriptedResponse::call("c1", "pay", json!({ "card": CARD, "cents": 5 })),
        }
    });
    Agent::new("till")
        .model(model)
        .tools(tool.secret_arguments(["card"]).effect(effect).input_guardrail(digits))
}

fn worker(queue: &Arc<dyn RunQueue>, agent: Agent) -> Worker {
    let worker = Worker::new(queue.clone(), AgentRegistry::from(agent));
    worker.poll_interval(Duration::from_millis(10)).lease_duration(Duration::from_secs(1))
}

async fn submit(queue: &Arc<dyn RunQueue>) -> RunId {
    queue.submit_run(&RunSubmission::new("run", "till", "pay"), Timestamp(0)).await.expect("submitted");
    RunId::from("run")
}

/// Drives the run with a second worker until it waits for a person or has ended, and returns the pending calls.
async fn drive(queue: &Arc<dyn RunQueue>, run: &RunId, agent: Agent) -> Vec<PendingCall> {
    let worker = worker(queue, agent);
    let stop = worker.stop_handle();
    let work = tokio::spawn(worker.run());
    loop {
        let state = queue.load_queued_run(run).await.expect("loads").expect("submitted").state;
        if matches!(state, QueuedState::Parked { .. } | QueuedState::Ended | QueuedState::DeadLetter) {
            assert_ne!(state, QueuedState::DeadLetter);
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.drain();
    work.await.expect("it lives").expect("it works");
    load_paused(&**queue, run).await.expect("opens").pending_calls()
}

/// Loses a worker while its body runs.
async fn lose_worker(queue: &Arc<dyn RunQueue>, till: &Arc<Till>, effect: ToolEffect) {
    let work = tokio::spawn(worker(queue, agent(till, effect, BodyEnd::Never)).run());
    till.started.notified().await;
    work.abort();
    work.await.expect_err("it was aborted");
}

fn assert_no_secret(folder: &Path) {
    for file in std::fs::read_dir(folder).expect("read") {
        let bytes = std::fs::read(file.expect("read").path()).expect("read");
        assert!(!String::from_utf8_lossy(&bytes).contains("canary"), "a secret is in the files");
    }
}

fn question_of(pending: &PendingCall) -> &str {
    match &pending.reason {
        HoldReason::Question(question) => &question.text,
        other => panic!("a person should be asked: {other:?}"),
    }
}

fn secret_answer() -> Decision {
    Decision::Answer { value: json!({ "secret_arguments": { "card": OTHER_CARD } }) }
}

fn encrypted(path: &Path) -> Arc<dyn RunQueue> {
    let keys = EncryptionKeys::from_text(&EncryptionKeys::text_of_secrets(&[[3; 32]])).expect("a key");
    Arc::new(EncryptedStore::new(Arc::new(SqliteStore::open(path).expect("opens")), keys))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_started_call_asks_for_its_secret_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || -> Arc<dyn RunQueue> {
        Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("opens"))
    };
    let (first, second, till) = (open(), open(), Arc::new(Till::default()));
    let run = submit(&first).await;
    lose_worker(&first, &till, ToolEffect::Idempotent).await;
    let restored = || agent(&till, ToolEffect::Idempotent, BodyEnd::Charged);
    let asked = drive(&second, &run, restored()).await;
    let question = question_of(&asked[0]);
    assert!(question.contains("(`card`) were lost"), "{question}");
    assert_eq!(till.charged.lock().expect("free").len(), 0, "nothing ran with a placeholder");
    // The store would keep the secret.
    let path = asked[0].path.clone();
    let refused = post_decision(&*second, &run, path, secret_answer(), DecisionScope::ThisCall, "ann").await;
    let refused = refused.expect_err("it is refused").to_string();
    assert!(refused.contains("not encrypted"), "{refused}");
    let mut paused = load_paused(&*second, &run).await.expect("opens");
    paused.answer_question("c1", json!({ "secret_arguments": { "card": OTHER_CARD } })).expect("it waits");
    let ended = restored().resume(paused).store(second.clone()).await.expect("it ends");
    assert_eq!(ended.output_text().expect("finished"), "done");
    assert_eq!(*till.charged.lock().expect("free"), [OTHER_CARD]);
    drop((first, second));
    assert_no_secret(folder.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_store_carries_the_secret_to_a_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let (first, second, till) = (encrypted(&path), encrypted(&path), Arc::new(Till::default()));
    let run = submit(&first).await;
    lose_worker(&first, &till, ToolEffect::Pure).await;
    let restored = || agent(&till, ToolEffect::Pure, BodyEnd::Charged);
    let asked = drive(&second, &run, restored()).await;
    let call = asked[0].path.clone();
    post_decision(&*second, &run, call, secret_answer(), DecisionScope::ThisCall, "ann")
        .await
        .expect("posted");
    assert_eq!(drive(&second, &run, restored()).await, []);
    assert_eq!(*till.charged.lock().expect("free"), [OTHER_CARD]);
    let journal = load_paused(&*second, &run).await.expect("opens").record().to_text();
    assert!(journal.contains("run_finished") && !journal.contains("canary"), "{journal}");
    drop((first, second));
    assert_no_secret(folder.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_have_happened_is_in_doubt_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store.db");
    let (first, second, till) = (encrypted(&path), encrypted(&path), Arc::new(Till::default()));
    let run = submit(&first).await;
    lose_worker(&first, &till, ToolEffect::Once).await;
    let restored = || agent(&till, ToolEffect::Once, BodyEnd::Charged);
    let asked = drive(&second, &run, restored()).await;
    assert_eq!(asked[0].reason, HoldReason::InDoubt, "its outcome is not known");
    let call = asked[0].path.clone();
    let post = async |decision| {
        post_decision(&*second, &run, call.clone(), decision, DecisionScope::ThisCall, "ann").await
    };
    post(Decision::ConfirmNotExecuted).await.expect("posted");
    let asked = drive(&second, &run, restored()).await;
    assert!(question_of(&asked[0]).contains("were lost"), "{asked:?}");
    post(secret_answer()).await.expect("posted");
    assert_eq!(drive(&second, &run, restored()).await, []);
    assert_eq!(*till.charged.lock().expect("free"), [OTHER_CARD]);
}
