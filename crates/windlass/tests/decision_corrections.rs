//! A decision can be corrected until it is taken: until the start of its call, or the settlement of its rejection, is
//! durable.

#![cfg(feature = "sqlite")]
#![allow(clippy::expect_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::{CallPath, RunId, Timestamp},
    journal::{CallStatus, JournalEntry},
    tool::ToolEffect,
};
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::store::{
    LeaseClaim, LeaseOwner, MemoryStore, PostDecisionError, SqliteStore, Store, load_paused, post_decision,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

/// Lease of a driver that is dropped; another one takes the run over after it.
const LEASE: Duration = Duration::from_millis(500);

/// Returns a store of each kind, with its folder.
fn stores() -> Vec<(Arc<dyn Store>, Option<TempDir>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteStore::open(folder.path().join("store.db")).expect("it opens");
    vec![(Arc::new(MemoryStore::default()), None), (Arc::new(sqlite), Some(folder))]
}

fn reject() -> Decision {
    Decision::Reject { message: Some("not him".to_owned()) }
}

async fn post(store: &Arc<dyn Store>, decision: Decision, by: &str) -> Result<(), PostDecisionError> {
    post_decision(&**store, &RunId::from("run"), "p", decision, DecisionScope::ThisCall, by).await
}

/// Creates the tool that pays, and counts its payments.
fn pay_tool(paid: &Arc<AtomicU32>) -> Tool {
    let paid = paid.clone();
    let body = move |_: ToolContext, _: Value| {
        paid.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid".to_owned()) }
    };
    Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), body).non_strict().needs_approval()
}

fn agent(tool: Tool, is_begun: bool) -> Agent {
    let call = ScriptedResponse::call("p", "pay", json!({}));
    let responses = if is_begun { vec![] } else { vec![call] };
    let responses = responses.into_iter().chain([ScriptedResponse::text("bye")]);
    Agent::new("teller").model(ScriptedModel::new(responses)).tools((tool,))
}

/// Returns the status of the settled call.
async fn settled_status(store: &Arc<dyn Store>) -> Option<CallStatus> {
    let known = load_paused(&**store, &"run".into()).await.expect("it is stored");
    known.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.status.clone()),
        _ => None,
    })
}

/// Finding G4: approved, and rejected at once; later a worker takes the run.
#[tokio::test]
async fn the_last_decision_counts_if_no_driver_has_taken_the_first() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let result = agent(pay_tool(&paid), false).run("go").run_id("run").store(store.clone()).await;
        assert!(result.expect("it pauses").is_paused());
        let pending = async || {
            let known = load_paused(&*store, &"run".into()).await.expect("it is stored");
            let posted = known.pending_calls()[0].posted.clone();
            posted.map(|posted| (posted.decision, posted.decided_by, posted.posted_at.0 > 0))
        };
        assert_eq!(pending().await, None);
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        assert_eq!(pending().await, Some((Decision::Approve, Some("bea".to_owned()), true)));
        post(&store, reject(), "cem").await.expect("nothing has started");
        assert_eq!(pending().await, Some((reject(), Some("cem".to_owned()), true)));
        let result = agent(pay_tool(&paid), true).recover("run", store.clone()).await.expect("it ends");
        assert_eq!(result.output_text(), Ok("bye"));
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (0, Some(CallStatus::Rejected))
        );
        let late = post(&store, Decision::Approve, "dee").await.expect_err("the rejection is taken");
        let PostDecisionError::AlreadyTaken(taken) = &late else { panic!("{late}") };
        assert_eq!((taken.decided_by.as_deref(), &taken.decision), (Some("cem"), &reject()));
        assert!(late.to_string().contains("cem") && late.to_string().contains("a rejection"), "{late}");
        post(&store, reject(), "dee").await.expect("the same again is one");
    }
}

/// A person decides on a run that was loaded with a posted decision.
#[tokio::test]
async fn a_decision_on_the_run_replaces_the_posted_one_that_it_was_loaded_with() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let result = agent(pay_tool(&paid), false).run("go").run_id("run").store(store.clone()).await;
        assert!(result.expect("it pauses").is_paused());
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        let mut known = load_paused(&*store, &"run".into()).await.expect("it is stored");
        known.reject("p").expect("nothing has started");
        let resumed = agent(pay_tool(&paid), true).resume(known).store(store.clone()).await;
        assert_eq!(resumed.expect("it ends").output_text(), Ok("bye"));
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (0, Some(CallStatus::Rejected))
        );
    }
}

/// The driver has recorded the approval, and works on the call, when it is corrected.
#[tokio::test]
async fn a_live_driver_asks_for_a_correction_before_it_starts_the_call() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let result = agent(pay_tool(&paid), false).run("go").run_id("run").store(store.clone()).await;
        assert!(result.expect("it pauses").is_paused());
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        let (desk, replies) = (store.clone(), Arc::new(Mutex::new(Vec::new())));
        let noted = replies.clone();
        let tool = pay_tool(&paid).input_guardrail(ToolInputGuardrail::new("late", move |_| {
            let (desk, noted) = (desk.clone(), noted.clone());
            async move {
                let reply = post(&desk, reject(), "cem").await;
                noted.lock().expect("a lock").push(reply.map_err(|error| error.to_string()));
                Ok(ToolGuardrailVerdict::Allow)
            }
        }));
        let result = agent(tool, true).recover("run", store.clone()).await.expect("it ends");
        assert_eq!(result.output_text(), Ok("bye"));
        assert_eq!(*replies.lock().expect("a lock"), [Ok(())]);
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (0, Some(CallStatus::Rejected))
        );
    }
}

/// A receipt answers the approved call, and the call is corrected before its output is withheld for the output
/// guardrail.
#[tokio::test]
async fn a_call_that_a_receipt_answers_can_be_corrected_before_its_output_guardrail() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let pay_tool = || {
            let policy = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
            pay_tool(&paid).effect(ToolEffect::Idempotent).receipt_policy(policy)
        };
        for run in ["run", "twin"] {
            let result = agent(pay_tool(), false).run("go").run_id(run).store(store.clone()).await;
            let mut paused = result.expect("it pauses").into_paused().expect("it waits for a person");
            if run == "twin" {
                paused.approve("p").expect("it waits");
                let ended = agent(pay_tool(), true).resume(paused).store(store.clone()).await;
                assert_eq!(ended.expect("it ends").output_text(), Ok("bye"));
            }
        }
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        let desk = store.clone();
        let tool = pay_tool()
            .input_guardrail(ToolInputGuardrail::new("late", move |_| {
                let desk = desk.clone();
                async move {
                    post(&desk, reject(), "cem").await.map_err(|error| error.to_string())?;
                    Ok(ToolGuardrailVerdict::Allow)
                }
            }))
            .output_guardrail(ToolOutputGuardrail::new("allows", |_, _| async {
                Ok(ToolGuardrailVerdict::Allow)
            }));
        let result = agent(tool, true).recover("run", store.clone()).await.expect("it ends");
        assert_eq!(result.output_text(), Ok("bye"));
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (1, Some(CallStatus::Rejected))
        );
    }
}

/// The driver is lost after it has recorded the approval and before the call has started.
#[tokio::test]
async fn a_recorded_decision_is_corrected_after_its_driver_is_lost() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let result = agent(pay_tool(&paid), false).run("go").run_id("run").store(store.clone()).await;
        assert!(result.expect("it pauses").is_paused());
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        let (reached, mut is_reached) = tokio::sync::mpsc::unbounded_channel();
        let tool = pay_tool(&paid).input_guardrail(ToolInputGuardrail::new("stuck", move |_| {
            reached.send(()).expect("somebody waits");
            std::future::pending()
        }));
        let stuck = agent(tool, true);
        let lost = stuck.recover("run", store.clone()).lease_duration(LEASE);
        let mut lost = tokio::spawn(lost);
        tokio::select! {
            reached = is_reached.recv() => reached.expect("it comes to the guardrail"),
            ended = &mut lost => panic!("the driver ended before the guardrail: {ended:?}"),
        }
        lost.abort();
        lost.await.expect_err("it is gone");
        post(&store, reject(), "cem").await.expect("nothing has started");
        let result = loop {
            let next = agent(pay_tool(&paid), true).recover("run", store.clone()).lease_duration(LEASE);
            match next.await {
                Err(windlass::error::RunError::Store(error)) if error.is_busy() => {
                    tokio::time::sleep(LEASE).await;
                }
                ended => break ended.expect("it ends"),
            }
        };
        assert_eq!(result.output_text(), Ok("bye"));
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (0, Some(CallStatus::Rejected))
        );
    }
}

/// Returns the owner name of a driver whose process has ended.
fn dead_owner() -> String {
    let mut child = std::process::Command::new("true").spawn().expect("it starts");
    child.wait().expect("it ends");
    let own = LeaseOwner::for_new_driver().to_string();
    let (_, rest) = own.split_once('-').expect("a process id");
    format!("{}-{rest}", child.id())
}

/// The driver takes the approval and dies before the start of the call is recorded.
#[tokio::test]
async fn a_decision_that_a_dead_driver_has_taken_can_be_corrected() {
    for (store, _folder) in stores() {
        let paid = Arc::new(AtomicU32::new(0));
        let result = agent(pay_tool(&paid), false).run("go").run_id("run").store(store.clone()).await;
        assert!(result.expect("it pauses").is_paused());
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        // A dead process is noticed at once; another machine's is silent for the length of its lease.
        for (owner, duration) in [(dead_owner(), Duration::from_secs(3_600)), ("elsewhere".to_owned(), LEASE)]
        {
            let claim = LeaseClaim { owner: &owner, now: Timestamp(0), duration };
            let lease = store.acquire_lease(&"run".into(), claim, None).await.expect("it is free");
            let taken = store.take_decision(&lease, &CallPath::from("p"), 0).await.expect("its own");
            assert!(taken.is_some());
            let decision = Decision::Reject { message: Some(format!("not after {owner}")) };
            post(&store, decision, "cem").await.expect("nothing has started");
            // The driver cannot act on the decision that was corrected.
            let late = store.take_decision(&lease, &CallPath::from("p"), 0).await;
            assert!(late.expect_err("another epoch").is_fenced());
        }
        let result = agent(pay_tool(&paid), true).recover("run", store.clone()).await.expect("it ends");
        assert_eq!(result.output_text(), Ok("bye"));
        assert_eq!(
            (paid.load(Ordering::SeqCst), settled_status(&store).await),
            (0, Some(CallStatus::Rejected))
        );
    }
}

#[tokio::test]
async fn a_correction_after_the_start_is_refused_with_the_name_of_the_first_decider() {
    for (store, _folder) in stores() {
        let replies = Arc::new(Mutex::new(Vec::new()));
        let (desk, noted) = (store.clone(), replies.clone());
        let body = move |_: ToolContext, _: Value| {
            let (desk, noted) = (desk.clone(), noted.clone());
            async move {
                let reply = post(&desk, reject(), "cem").await;
                noted.lock().expect("a lock").push(reply.map_err(|error| error.to_string()));
                Ok::<_, ToolError>("paid".to_owned())
            }
        };
        let tool =
            Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), body).non_strict().needs_approval();
        let paused = agent(tool.clone(), false).run("go").run_id("run").store(store.clone()).await;
        assert!(paused.expect("it pauses").is_paused());
        post(&store, Decision::Approve, "bea").await.expect("it waits");
        agent(tool, true).recover("run", store.clone()).await.expect("it ends");
        let replies = replies.lock().expect("a lock").clone();
        let [Err(refusal)] = &replies[..] else { panic!("{replies:?}") };
        assert!(refusal.contains("bea") && refusal.contains("an approval"), "{refusal}");
        assert_eq!(settled_status(&store).await, Some(CallStatus::Succeeded));
    }
}
