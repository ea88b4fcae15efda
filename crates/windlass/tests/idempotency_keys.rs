//! Idempotency keys and receipts: their scopes, their generations, and what cannot change them.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use windlass::core::{
    decision::{Decision, DecisionScope},
    failure::RunFailure,
    id::RunId,
    journal::{CallStatus, JournalEntry, decode_lines},
    plan::ModelProtocolError,
    tool::ToolEffect,
};
use windlass::error::{ConfigError, RunError, StoreError};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::run::OnUnknownTool;
use windlass::store::{
    LeaseClaim, MemoryStore, ReceiptClaim, ReceiptKey, Store, StoreFuture, StoreWrapper, StoredLease,
    post_decision,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope};

const ALL_SCOPES: [ReceiptScope; 4] =
    [ReceiptScope::Call, ReceiptScope::Run, ReceiptScope::Session, ReceiptScope::Store];

/// A bank that records the idempotency key of every payment.
#[derive(Clone, Default)]
struct KeyLog(Arc<Mutex<Vec<String>>>);

impl KeyLog {
    fn keys(&self) -> Vec<String> {
        self.0.lock().expect("no test panicked with it").clone()
    }

    fn record(&self, ctx: &ToolContext) -> usize {
        let mut keys = self.0.lock().expect("no test panicked with it");
        keys.push(ctx.idempotency_key());
        keys.len()
    }

    /// Creates an idempotent tool with these parameters.
    fn pay_tool(&self, description: &str, parameters: Value, scope: ReceiptScope) -> Tool {
        let log = self.clone();
        let schema = json!({ "type": "object", "properties": parameters, "required": ["cents"] });
        Tool::dynamic("pay", description, schema, move |ctx: ToolContext, _: Value| {
            let number = log.record(&ctx);
            async move { Ok::<_, ToolError>(format!("payment {number}")) }
        })
        .non_strict()
        .effect(ToolEffect::Idempotent)
        .receipt_policy(ReceiptPolicy { scope, expire_after: None })
    }

    fn plain_pay_tool(&self, scope: ReceiptScope) -> Tool {
        self.pay_tool("Pays.", json!({ "cents": { "type": "integer" } }), scope)
    }
}

fn pay_call(id: &str, cents: u32) -> ScriptedResponse {
    ScriptedResponse::call(id, "pay", json!({ "cents": cents }))
}

fn bank_agent(tool: Tool, replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("bank").model(ScriptedModel::new(replies)).tools(tool)
}

fn memory_store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

fn settled_statuses(result: &RunResult) -> Vec<CallStatus> {
    let settled = result.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.status.clone()),
        _ => None,
    });
    settled.collect()
}

fn described_items(result: &RunResult) -> Vec<String> {
    result.record().run_items().iter().map(|produced| describe_item(&produced.item)).collect()
}

/// The process ends inside the body, and the next build has other descriptions and another optional parameter.
#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_key_whatever_the_next_build_changes() {
    let reworded = json!({
        "cents": { "type": "integer", "description": "The amount, in cents." },
        "note": { "type": ["string", "null"], "default": "none" },
    });
    for scope in ALL_SCOPES {
        let (log, store) = (KeyLog::default(), memory_store());
        let session = Session::in_memory("ann");
        let noted = log.clone();
        let schema = json!({ "type": "object", "properties": { "cents": { "type": "integer" } }, "required": ["cents"] });
        let lost = Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
            noted.record(&ctx);
            std::future::pending::<Result<String, ToolError>>()
        })
        .effect(ToolEffect::Idempotent)
        .receipt_policy(ReceiptPolicy { scope, expire_after: None });
        let replies = [pay_call("a", 500), ScriptedResponse::text("done")];
        let run = bank_agent(lost, replies).run("pay").run_id("run").store(store.clone()).session(&session);
        assert!(tokio::time::timeout(Duration::from_millis(50), run).await.is_err(), "{scope:?}");
        let lines = store.load_journal(&"run".into(), 0).await.expect("memory can be read");
        let records = decode_lines(&lines).expect("what was written can be read");
        let lost = PausedRun::from_records(records).expect("the journal adds up");

        let next = log.pay_tool("Pays somebody, now with a note.", reworded.clone(), scope);
        let next = bank_agent(next, [ScriptedResponse::text("done")]);
        let ended = next.resume(lost).store(memory_store()).session(&session);
        let ended = ended.await.expect("the run goes on");
        assert_eq!(ended.output_text().expect("the run finished"), "done", "{scope:?}");
        let keys = log.keys();
        assert_eq!(keys, [keys[0].clone(), keys[0].clone()], "{scope:?}");
        let recorded = ended.record().journal().iter().filter_map(|record| match &record.entry {
            JournalEntry::CallStarted(started) => Some(started.idempotency_key.to_string()),
            _ => None,
        });
        assert_eq!(recorded.collect::<Vec<_>>(), keys, "{scope:?}: the journal has the key");
    }
}

/// Receipts outlive a build too: an identical call is answered, also if the model now writes null for a new parameter.
#[tokio::test]
async fn a_new_build_finds_the_receipts_of_the_last() {
    let (log, store) = (KeyLog::default(), memory_store());
    let first = bank_agent(
        log.plain_pay_tool(ReceiptScope::Store),
        [pay_call("a", 500), ScriptedResponse::text("done")],
    );
    first.run("pay").store(store.clone()).await.expect("the run ends");
    let reworded = json!({
        "cents": { "type": "integer", "description": "In cents." },
        "note": { "type": ["string", "null"] },
        "days": { "type": ["integer", "null"], "default": 3 },
    });
    let again = ScriptedResponse::call("a", "pay", json!({ "cents": 500, "note": null }))
        .and_call("b", "pay", json!({ "cents": 500, "note": "rent" }))
        // The absence of this one stands for another value.
        .and_call("c", "pay", json!({ "cents": 500, "days": null }));
    let next = bank_agent(
        log.pay_tool("Pays somebody.", reworded, ReceiptScope::Store),
        [again, ScriptedResponse::text("done")],
    );
    let ended = next.run("pay").store(store).await.expect("the run ends");
    let mut statuses = settled_statuses(&ended);
    statuses.sort_by_key(|status| format!("{status:?}"));
    assert_eq!(statuses, [CallStatus::Deduplicated, CallStatus::Succeeded, CallStatus::Succeeded]);
    assert_eq!(log.keys().len(), 3);
}

/// The same holds for a parameter that a build adds to an object inside the parameters, by reference and in a list.
#[tokio::test]
async fn a_new_build_finds_the_receipts_of_calls_with_nested_parameters() {
    let parameters = |address: Value| {
        json!({
            "cents": { "type": "integer" },
            "to": address,
            "copies": { "type": "array", "items": address },
            "fee": { "anyOf": [address, { "type": "null" }] },
        })
    };
    let iban = json!({ "type": "string" });
    let first = json!({ "type": "object", "properties": { "iban": iban }, "required": ["iban"] });
    let next = json!({ "type": "object", "required": ["iban"], "properties": {
        "iban": iban,
        "note": { "type": ["string", "null"] },
        "days": { "type": ["integer", "null"], "default": 3 },
    }});
    let pay = |id: &str, address: Value| {
        let arguments = json!({ "cents": 500, "to": address, "copies": [address], "fee": address });
        ScriptedResponse::call(id, "pay", arguments)
    };
    let (log, store) = (KeyLog::default(), memory_store());
    let replies = [pay("a", json!({ "iban": "x" })), ScriptedResponse::text("done")];
    let tool = log.pay_tool("Pays.", parameters(first), ReceiptScope::Store);
    bank_agent(tool, replies).run("pay").store(store.clone()).await.expect("the run ends");

    for (address, want) in [
        (json!({ "iban": "x", "note": null }), CallStatus::Deduplicated),
        (json!({ "iban": "x", "note": "rent" }), CallStatus::Succeeded),
        (json!({ "iban": "x", "days": null }), CallStatus::Succeeded),
    ] {
        let tool = log.pay_tool("Pays.", parameters(next.clone()), ReceiptScope::Store);
        let agent = bank_agent(tool, [pay("a", address.clone()), ScriptedResponse::text("done")]);
        let ended = agent.run("pay").store(store.clone()).await.expect("the run ends");
        assert_eq!(settled_statuses(&ended), [want], "{address}");
    }
    assert_eq!(log.keys().len(), 3);
}

#[tokio::test]
async fn keys_are_shared_within_their_scope_and_nowhere_else() {
    for scope in ALL_SCOPES {
        let (log, stores) = (KeyLog::default(), [memory_store(), memory_store()]);
        // The last run differs from the first in its id alone.
        for (session, store) in [("ann", 0), ("bo", 0), ("ann", 1), ("ann", 0)] {
            let store = &stores[store];
            let session = Session::in_run_store(session.into(), store).expect("it keeps sessions");
            let tool = log.plain_pay_tool(scope);
            let agent = bank_agent(tool, [pay_call("a", 500), ScriptedResponse::text("done")]);
            agent.run("pay").store(store.clone()).session(&session).await.expect("the run ends");
        }
        let keys = log.keys();
        let want = match scope {
            // A receipt answers where the scope has one.
            ReceiptScope::Call | ReceiptScope::Run => 4,
            ReceiptScope::Session => 3,
            ReceiptScope::Store => 2,
        };
        assert_eq!(keys.len(), want, "{scope:?}");
        let mut distinct = keys.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), want, "{scope:?}: {keys:?}");
    }
}

/// The id of a forgotten run may be used again, and two stores may have runs of one id. Neither run gets the answer of a
/// target to the other's call.
#[tokio::test]
async fn runs_of_one_id_have_keys_of_their_own() {
    for scope in [ReceiptScope::Call, ReceiptScope::Run] {
        let (log, stores) = (KeyLog::default(), [memory_store(), memory_store()]);
        for store in [&stores[0], &stores[0], &stores[1]] {
            let tool = log.plain_pay_tool(scope);
            let agent = bank_agent(tool, [pay_call("a", 500), ScriptedResponse::text("done")]);
            agent.run("pay").run_id("payroll").store(store.clone()).await.expect("the run ends");
            store.forget_run(&"payroll".into(), None).await.expect("it is forgotten");
        }
        let keys = log.keys();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3, "{scope:?}: {keys:?}");
    }
}

/// The nonce goes with the journal: to the next driver, into text and into another store.
#[tokio::test]
async fn a_run_that_is_moved_keeps_its_keys() {
    let (log, store) = (KeyLog::default(), memory_store());
    let noted = log.clone();
    let busy =
        Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), move |ctx: ToolContext, _: Value| {
            let number = noted.record(&ctx);
            async move { if number < 3 { Err(ToolError::visible("busy")) } else { Ok("paid") } }
        });
    let busy = busy
        .non_strict()
        .effect(ToolEffect::Idempotent)
        .receipt_policy(ReceiptPolicy { scope: ReceiptScope::Run, expire_after: None });
    let ask = Tool::dynamic("ask", "Asks.", json!({ "type": "object" }), async |_: ToolContext, _: Value| {
        Ok::<_, ToolError>("yes")
    });
    let agent = |replies: [ScriptedResponse; 2]| {
        bank_agent(busy.clone(), replies).tool(ask.clone().non_strict().needs_approval())
    };
    let asks = |id: &str| ScriptedResponse::call(id, "ask", json!({}));
    let begun = agent([pay_call("a", 5), asks("b")]).run("pay").run_id("run").store(store.clone());
    let mut paused = begun.await.expect("it waits").into_paused().expect("it waits");

    paused.approve("b").expect("it waits");
    let other = memory_store();
    let moved = PausedRun::from_text(&paused.to_text()).expect("it is whole");
    let moved = agent([pay_call("c", 5), asks("d")]).resume(moved).store(other.clone());
    assert!(moved.await.expect("it waits").is_paused());

    post_decision(&*other, &"run".into(), "d", Decision::Approve, DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let ended = agent([pay_call("e", 5), ScriptedResponse::text("done")]).recover("run", other).await;
    assert_eq!(ended.expect("it goes on").output_text().expect("the run finished"), "done");
    let keys = log.keys();
    assert_eq!(keys, [keys[0].clone(), keys[0].clone(), keys[0].clone()]);
}

/// A session that is in no store of runs is one session, whichever store its runs are in.
#[tokio::test]
async fn a_session_elsewhere_has_its_keys_in_all_stores() {
    let (log, session) = (KeyLog::default(), Session::in_memory("ann"));
    let store = memory_store();
    let own = Session::in_run_store("ann".into(), &store).expect("it keeps sessions");
    for (session, store) in [(&session, memory_store()), (&session, store.clone()), (&own, store)] {
        let tool = log.plain_pay_tool(ReceiptScope::Session);
        let agent = bank_agent(tool, [pay_call("a", 500), ScriptedResponse::text("done")]);
        agent.run("pay").store(store).session(session).await.expect("the run ends");
    }
    let keys = log.keys();
    assert_eq!(keys.len(), 3, "a receipt of the session elsewhere does not answer a call of the store's own");
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[1], keys[2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_handed_out_again_after_its_receipt_has_expired() {
    for scope in [ReceiptScope::Run, ReceiptScope::Session, ReceiptScope::Store] {
        let (log, store, session) = (KeyLog::default(), memory_store(), Session::in_memory("ann"));
        let wait =
            Tool::dynamic("wait", "Waits.", json!({ "type": "object" }), |_: ToolContext, _: Value| async {
                tokio::time::sleep(Duration::from_secs(100)).await;
                Ok::<_, ToolError>("waited")
            });
        let expiry = ReceiptPolicy { scope, expire_after: Some(Duration::from_secs(60)) };
        let wait_call = |id: &str| ScriptedResponse::call(id, "wait", json!({}));
        let replies = [
            pay_call("a", 5),
            pay_call("b", 5),
            wait_call("w1"),
            pay_call("c", 5),
            wait_call("w2"),
            pay_call("d", 5),
            ScriptedResponse::text("done"),
        ];
        let agent = Agent::new("bank")
            .model(ScriptedModel::new(replies))
            .tools((log.plain_pay_tool(scope).receipt_policy(expiry), wait.non_strict()));
        let ended = agent.run("pay").store(store).session(&session).await.expect("the run ends");
        let mut keys = log.keys();
        assert_eq!(keys.len(), 3, "{scope:?}");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 3, "{scope:?}: every generation has a key of its own");
        // The journal says the same to whoever resumes the run.
        let replayed = PausedRun::from_text(&ended.record().to_text()).map(|_| ());
        replayed.expect("the journal adds up");
        let generations = ended.record().journal().iter().filter_map(|record| match &record.entry {
            JournalEntry::CallStarted(started) if started.receipt_digest.is_some() => {
                Some(started.generation)
            }
            _ => None,
        });
        assert_eq!(generations.collect::<Vec<_>>(), [0, 1, 2], "{scope:?}");
    }
}

/// A call that failed may have taken effect, so the next one has its key.
#[tokio::test]
async fn the_key_is_the_same_after_a_failure() {
    for scope in [ReceiptScope::Run, ReceiptScope::Session, ReceiptScope::Store] {
        let (log, session) = (KeyLog::default(), Session::in_memory("ann"));
        let noted = log.clone();
        let busy =
            Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), move |ctx: ToolContext, _: Value| {
                let number = noted.record(&ctx);
                async move { if number == 1 { Err(ToolError::visible("busy")) } else { Ok("paid") } }
            })
            .non_strict()
            .effect(ToolEffect::Idempotent)
            .receipt_policy(ReceiptPolicy { scope, expire_after: None });
        let agent = bank_agent(busy, [pay_call("a", 5), pay_call("b", 5), ScriptedResponse::text("done")]);
        agent.run("pay").store(memory_store()).session(&session).await.expect("the run ends");
        let keys = log.keys();
        assert_eq!(keys, [keys[0].clone(), keys[0].clone()], "{scope:?}");
    }
}

#[tokio::test]
async fn edited_arguments_leave_a_receipt_for_those_arguments() {
    for scope in [ReceiptScope::Run, ReceiptScope::Store] {
        let (log, store) = (KeyLog::default(), memory_store());
        let replies =
            [pay_call("a", 500), pay_call("b", 100), pay_call("c", 500), ScriptedResponse::text("done")];
        let agent = bank_agent(log.plain_pay_tool(scope).needs_approval(), replies);
        let result = agent.run("pay").run_id("run").store(store.clone()).await.expect("it waits");
        let mut paused = result.into_paused().expect("it waits");
        paused.approve_edited("a", r#"{"cents":100}"#).expect("it waits");
        // The second call asks for what has been paid: nobody is asked, and nothing is paid.
        let result = agent.resume(paused).store(store).await.expect("it waits");
        assert_eq!(settled_statuses(&result), [CallStatus::Succeeded, CallStatus::Deduplicated], "{scope:?}");
        let items = described_items(&result);
        let note = r#"[A person changed the arguments of this call to {"cents":100} before it ran.]"#;
        assert_eq!(items[1], format!("output a {note}\npayment 1"), "{scope:?}");
        assert_eq!(items[3], "output b payment 1", "{scope:?}");
        let paused = result.into_paused().expect("the third call waits");
        assert_eq!(
            paused.pending_calls()[0].call().as_str(),
            "c",
            "{scope:?}: the model's own arguments have none"
        );
        assert_eq!(log.keys().len(), 1, "{scope:?}");
    }
}

/// Two agents have different tools of the same name and schema.
#[tokio::test]
async fn receipts_belong_to_the_tool_of_one_agent() {
    let (desk_log, bank_log, store) = (KeyLog::default(), KeyLog::default(), memory_store());
    for scope in [ReceiptScope::Run, ReceiptScope::Store] {
        let bank = bank_agent(bank_log.plain_pay_tool(scope).needs_approval(), [pay_call("b", 500)]);
        let first = pay_call("a", 500);
        let hand_over = ScriptedResponse::call("h", "transfer_to_bank", json!({}));
        let desk = Agent::new("desk")
            .model(ScriptedModel::new([first, hand_over]))
            .tools(desk_log.plain_pay_tool(scope))
            .handoff(bank);
        let result = desk.run("pay").store(store.clone()).await.expect("it waits");
        let paused = result.into_paused().expect("the tool of the second agent asks for approval");
        assert_eq!(paused.pending_calls()[0].call().as_str(), "b", "{scope:?}");
        assert_eq!(bank_log.keys(), [""; 0], "{scope:?}");
    }
    assert_eq!(desk_log.keys().len(), 2);
}

fn refused_scope(result: Result<RunResult, RunError>) -> String {
    match result {
        Err(RunError::Config(error @ ConfigError::ReceiptScopeUnavailable { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_scope_that_the_run_does_not_have_is_refused_when_it_starts() {
    let session = Session::in_memory("ann");
    let cases = [
        (ReceiptScope::Store, false, false, Some("store")),
        (ReceiptScope::Store, true, false, Some("store")),
        (ReceiptScope::Store, false, true, None),
        (ReceiptScope::Session, false, false, Some("session")),
        (ReceiptScope::Session, false, true, Some("session")),
        (ReceiptScope::Session, true, false, Some("store")),
        (ReceiptScope::Session, true, true, None),
        (ReceiptScope::Run, false, false, None),
        (ReceiptScope::Call, false, false, None),
    ];
    for (scope, has_session, has_store, missing) in cases {
        let log = KeyLog::default();
        let replies = || [pay_call("a", 500), ScriptedResponse::text("done")];
        let model = ScriptedModel::new(replies());
        let bank = Agent::new("bank").model(model.clone()).tools(log.plain_pay_tool(scope));
        let nested = ScriptedResponse::call("x", "bank", json!({ "input": "pay" }));
        let inner = bank_agent(log.plain_pay_tool(scope), replies());
        let desk = Agent::new("desk")
            .model(ScriptedModel::new([nested, ScriptedResponse::text("done")]))
            .tools(inner.as_tool("bank", "Pays."));
        for agent in [bank, desk] {
            let mut run = agent.run("pay");
            if has_session {
                run = run.session(&session);
            }
            if has_store {
                run = run.store(memory_store());
            }
            let result = run.await;
            let Some(missing) = missing else {
                result.expect("the run ends");
                continue;
            };
            let error = refused_scope(result);
            assert!(error.contains("`pay`") && error.contains(&format!("no {missing}")), "{error}");
        }
        assert_eq!(model.requests().is_empty(), missing.is_some(), "{scope:?}");
        assert_eq!(log.keys().is_empty(), missing.is_some(), "{scope:?}");
    }
    // A tool that is switched off, or shares nothing, needs no scope.
    let log = KeyLog::default();
    let off = log.plain_pay_tool(ReceiptScope::Store).enabled(false);
    bank_agent(off, [ScriptedResponse::text("done")]).run("pay").await.expect("the run ends");
    let once = log.plain_pay_tool(ReceiptScope::Store).effect(ToolEffect::Once);
    bank_agent(once, [ScriptedResponse::text("done")]).run("pay").await.expect("the run ends");
}

#[tokio::test]
async fn a_resumed_run_is_refused_when_the_call_would_start() {
    let log = KeyLog::default();
    let agent = bank_agent(
        log.plain_pay_tool(ReceiptScope::Store).needs_approval(),
        [pay_call("a", 500), ScriptedResponse::text("done")],
    );
    let paused = agent.run("pay").store(memory_store()).await.expect("it waits").into_paused();
    let mut paused = paused.expect("it waits");
    paused.approve("a").expect("it waits");
    let error = refused_scope(agent.resume(paused.clone()).await);
    assert!(error.contains("`pay`") && error.contains("no store"), "{error}");
    assert_eq!(log.keys(), [""; 0]);
    let ended = agent.resume(paused).store(memory_store()).await.expect("the run goes on");
    assert_eq!(ended.output_text().expect("the run finished"), "done");
}

/// A store that records how long the claims of receipts last.
struct ClaimRecorder {
    inner: MemoryStore,
    durations: Mutex<Vec<Duration>>,
}

impl StoreWrapper for ClaimRecorder {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        self.durations.lock().expect("no test panicked with it").push(claim.duration);
        self.inner.claim_receipt(key, claim, abandoned)
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_a_receipt_lasts_as_long_as_the_lease_of_the_run() {
    let store = Arc::new(ClaimRecorder { inner: MemoryStore::default(), durations: Mutex::default() });
    let slow = Tool::dynamic("pay", "Pays.", json!({ "type": "object" }), |_: ToolContext, _: Value| async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok::<_, ToolError>("paid")
    })
    .non_strict()
    .effect(ToolEffect::Idempotent)
    .receipt_policy(ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None });
    let agent = bank_agent(slow, [pay_call("a", 5), ScriptedResponse::text("done")]);
    agent.run("pay").store(store.clone()).lease_duration(Duration::from_secs(6)).await.expect("the run ends");
    let durations = store.durations.lock().expect("no test panicked with it").clone();
    assert!(durations.len() > 3, "claimed once, and renewed every third of the lease: {durations:?}");
    assert!(durations.iter().all(|lasting| *lasting == Duration::from_secs(6)), "{durations:?}");
}

/// A store whose process is killed after a number of writes.
struct KilledStore {
    inner: Arc<MemoryStore>,
    writes_left: AtomicU32,
}

impl StoreWrapper for KilledStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn wrap_operation<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        let left =
            self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => operation(),
            Err(_) => Box::pin(std::future::ready(Err(StoreError::new("the process was killed")))),
        }
    }
}

#[tokio::test]
async fn a_run_exists_from_its_first_record_on() {
    let run: RunId = "run".into();
    for writes in 0..6 {
        let inner = Arc::new(MemoryStore::default());
        let store = Arc::new(KilledStore { inner: inner.clone(), writes_left: AtomicU32::new(writes) });
        let agent = || Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Hello.")]));
        let killed =
            agent().run("Hi").run_id(run.clone()).store(store).lease_duration(Duration::from_millis(10));
        let is_killed = killed.await.is_err();
        let listed =
            inner.list_runs(&windlass::store::RunQuery::default()).await.expect("memory can be read");
        assert!(listed.iter().all(|run| run.record_count > 0), "after {writes} writes: {listed:?}");
        assert_eq!(listed.len(), usize::from(writes > 0), "after {writes} writes");
        if !is_killed {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        let again = match writes {
            0 => agent().run("Hi").run_id(run.clone()).store(inner.clone()),
            _ => agent().recover(run.clone(), inner.clone()),
        };
        assert_eq!(again.await.expect("it goes on").output_text().expect("the run finished"), "Hello.");
    }
}

/// A tool that can be switched off.
fn switched_tool(is_on: &Arc<AtomicBool>) -> Tool {
    let (asked, called) = (is_on.clone(), is_on.clone());
    Tool::dynamic("look", "Looks.", json!({ "type": "object" }), move |_: ToolContext, _: Value| {
        called.store(false, Ordering::SeqCst);
        async { Ok::<_, ToolError>("seen") }
    })
    .non_strict()
    .enabled_if(move |_| asked.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_repeated_id_does_not_hide_a_missing_tool() {
    let call = || ScriptedResponse::call("a", "look", json!({}));
    let agent = || {
        Agent::new("guard")
            .model(ScriptedModel::new([call(), call(), ScriptedResponse::text("done")]))
            .tools(switched_tool(&Arc::new(AtomicBool::new(true))))
    };
    let failed = agent().run("look").on_unknown_tool(OnUnknownTool::FailRun).await;
    match failed.expect_err("the tool is switched off").failure() {
        Some(RunFailure::ModelProtocolError(ModelProtocolError::UnknownTool { name, .. })) => {
            assert_eq!(name, "look");
        }
        other => panic!("{other:?}"),
    }
    let told = agent().run("look").await.expect("the run ends");
    assert_eq!(
        described_items(&told),
        [
            "call a look {}",
            "output a seen",
            "call a~2 look {}",
            "output a~2 Tool 'look' not found. The tools are: none.",
            "assistant: done",
        ]
    );
}

#[tokio::test]
async fn another_agents_use_of_an_id_is_another_call() {
    let log = KeyLog::default();
    let hand_over = || ScriptedResponse::call("h", "transfer_to_bank", json!({}));
    let desk = |first: ScriptedResponse, bank: Agent| {
        Agent::new("desk")
            .model(ScriptedModel::new([first]))
            .tools(log.plain_pay_tool(ReceiptScope::Run))
            .handoff(bank)
    };
    // The same call of the other agent's own tool.
    let bank =
        bank_agent(log.plain_pay_tool(ReceiptScope::Run), [pay_call("a", 5), ScriptedResponse::text("done")]);
    let failed = desk(pay_call("a", 5).and_call("h", "transfer_to_bank", json!({})), bank).run("pay").await;
    match failed.expect_err("the id stands for a call of the desk").failure() {
        Some(RunFailure::ModelProtocolError(ModelProtocolError::ReusedCallId { call, .. })) => {
            assert_eq!(call.as_str(), "a");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(log.keys().len(), 1);
    // The id of the handoff, beside a text that is not the model's last word.
    let bank = Agent::new("bank").model(ScriptedModel::new([
        hand_over().and_text("I will hand over."),
        ScriptedResponse::text("done"),
    ]));
    let ended = desk(hand_over(), bank).run("pay").await.expect("the run ends");
    assert_eq!(ended.output_text().expect("the run finished"), "done");
    assert!(
        described_items(&ended)
            .iter()
            .any(|item| item.starts_with("output h~2 Tool 'transfer_to_bank' not found.")),
        "{:?}",
        described_items(&ended)
    );
}
