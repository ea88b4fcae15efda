//! Runs that a call or a function of the application fails: which failure is reported, what the siblings keep, and how
//! whoever goes on after a crash ends the run.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::core::{
    failure::RunFailure,
    item::Item,
    journal::{CallStatus, JournalEntry, JournalLine, JournalRecord},
    run::{Run, model_text},
};
use windlass::error::{FailedRun, RunError};
use windlass::event::RunEventKind;
use windlass::hook::{Hook, HookEvent};
use windlass::model::{DeltaSink, FinishReason, Model, ModelError, ModelRequest, ModelResponse, RetryAdvice};
use windlass::prelude::*;
use windlass::run::{ModelRetryPolicy, OnUnknownTool, RetriesExhausted};
use windlass::session::Session;
use windlass::store::{DerivedWrites, Durability, Lease, MemoryStore, Store, StoreFuture, StoreWrapper};
use windlass::tool::OnFailure;

/// A model that makes these calls in its first turn. Its responses depend on the turn alone, so that a run that lost a
/// response receives it again.
struct OneTurnModel(&'static [(&'static str, &'static str)]);

impl Model for OneTurnModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let call = |(id, tool): &(&str, &str)| Arc::new(Item::call(*id, *tool, r#"{"input":"go"}"#));
        let items = match request.turn {
            1 => self.0.iter().map(call).collect(),
            _ => vec![Arc::new(Item::assistant("bye"))],
        };
        Ok(ModelResponse { items, ..ModelResponse::default() })
    }
}

fn agent(name: &str, calls: &'static [(&'static str, &'static str)]) -> Agent {
    Agent::new(name).model(OneTurnModel(calls))
}

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

fn quick(name: &str) -> Tool {
    tool(name, |_, _| async { Ok("done".to_owned()) })
}

#[expect(clippy::panic, reason = "the panic is what is tested")]
fn fails<T>() -> T {
    panic!("a test panics here")
}

fn statuses(records: &[JournalRecord]) -> Vec<(String, CallStatus)> {
    let settled = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((settled.call.to_string(), settled.status.clone())),
        _ => None,
    });
    settled.collect()
}

/// A rule that panics right before the body fails the run as a call does: the sibling before it runs on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_panics_before_the_body_takes_nothing_from_the_call_before() {
    let (asked, panicked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let may_end = panicked.clone();
    let slow = tool("slow", move |_, _| {
        let may_end = may_end.clone();
        async move {
            may_end.notified().await;
            tokio::task::yield_now().await;
            Ok("slow".to_owned())
        }
    });
    // It is asked when it is offered, when it is called, and before its body.
    let off = quick("off").enabled_if(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => true,
        _ => {
            panicked.notify_one();
            fails()
        }
    });
    let agent = agent("desk", &[("s", "slow"), ("o", "off")]).tools((slow, off));
    let error = agent.run("go").drain_timeout(Duration::from_secs(30)).await.expect_err("it fails");
    assert!(matches!(error.failure(), Some(RunFailure::ApplicationPanicked { .. })), "{error}");
    let settled = statuses(error.record().expect("it has a record").journal());
    let expected = [("o", CallStatus::BlockedByGuardrail), ("s", CallStatus::Succeeded)];
    assert_eq!(settled, expected.map(|(call, status)| (call.to_owned(), status)));
}

/// A store that makes the start of one call durable when it is told to.
struct HeldStartStore {
    inner: MemoryStore,
    is_starting: Arc<Notify>,
    may_start: Arc<Notify>,
}

impl StoreWrapper for HeldStartStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        let is_held =
            lines.iter().any(|line| line.body.contains("call_started") && line.body.contains(r#""l""#));
        async move {
            if is_held {
                self.is_starting.notify_one();
                self.may_start.notified().await;
            }
            self.inner.append_journal(lease, at, lines, durability).await
        }
        .boxed()
    }

    fn append_with_writes<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
        _: DerivedWrites,
    ) -> StoreFuture<'a, ()> {
        StoreWrapper::append_journal(self, lease, at, lines, durability)
    }
}

/// A call fails the run while the start of the call after it becomes durable.
#[tokio::test(start_paused = true)]
async fn no_body_begins_after_a_failure_though_its_start_was_under_way() {
    let (is_starting, may_start, may_fail) =
        (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let bodies = Arc::new(AtomicUsize::new(0));
    let (fails_when, counted) = (may_fail.clone(), bodies.clone());
    let fail = tool("fail", move |_, _| {
        let may_fail = fails_when.clone();
        async move {
            may_fail.notified().await;
            Err(ToolError::visible("over"))
        }
    });
    let late = Tool::dynamic_blocking("late", "A tool.", json!({ "type": "object" }), move |_, _: Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<_, String>("late")
    });
    let store = HeldStartStore {
        inner: MemoryStore::default(),
        is_starting: is_starting.clone(),
        may_start: may_start.clone(),
    };
    let late = late.non_strict().max_concurrent_calls(1);
    let agent =
        agent("desk", &[("f", "fail"), ("l", "late")]).tools((fail.on_failure(OnFailure::FailRun), late));
    let releasing = tokio::spawn(async move {
        is_starting.notified().await;
        may_fail.notify_one();
        // The clock moves when nothing else does: when the failure has stopped the calls after it.
        tokio::time::sleep(Duration::from_millis(1)).await;
        may_start.notify_one();
    });
    let error = agent.run("go").store(Arc::new(store)).await.expect_err("it fails");
    releasing.await.expect("it does not panic");
    assert!(matches!(error.failure(), Some(RunFailure::ToolFailed { .. })), "{error}");
    assert_eq!(bodies.load(Ordering::SeqCst), 0, "the body after the failure did not begin");
}

/// The agents of a run that waits for approvals of its own and inside nested agents. The tool of its own may be disabled.
fn waiting_agents(is_enabled: bool) -> Agent {
    let gated = || quick("gated").needs_approval();
    let deep = agent("deep", &[("g", "gated"), ("l", "look")]).tools((gated(), quick("look")));
    let inner = agent("inner", &[("g", "gated"), ("d", "deep")]);
    let inner = inner.tools((gated(), deep.as_tool("deep", "Asks.")));
    agent("outer", &[("a", "ask"), ("b", "ask"), ("g", "gated")])
        .tools((inner.as_tool("ask", "Asks."), gated().enabled_if(move |_| is_enabled)))
}

/// The tool of an approved call is gone, which fails the run while its nested agents wait. Wherever the process dies
/// meanwhile, nobody cancelled the run: it fails, or goes on as it was.
#[tokio::test]
async fn a_run_that_fails_while_its_agents_wait_never_ends_as_cancelled() {
    let result = waiting_agents(true).run("go").await.expect("it pauses");
    let mut paused = result.into_paused().expect("it waits");
    paused.approve("g").expect("it waits");
    let length = paused.record().journal().len();
    let resumed = waiting_agents(false).resume(paused).on_unknown_tool(OnUnknownTool::FailRun);
    let error = resumed.await.expect_err("it fails");
    let failure = error.failure().expect("it has a failure").clone();
    assert!(matches!(failure, RunFailure::ModelProtocolError(_)), "{failure}");
    let records = error.record().expect("it has a record").journal();
    let mut ends = Vec::new();
    for length in length..records.len() {
        let state = Run::replay(&records[..length]).expect("the journal adds up").run;
        assert!(!state.is_cancelling(), "after {:?}", records[length - 1]);
        let prefix = PausedRun::from_records(records[..length].to_vec()).expect("a prefix adds up");
        match waiting_agents(true).resume(prefix).await {
            Ok(RunResult::Paused(_)) => ends.push("paused"),
            Err(RunError::Failed(again)) => {
                assert_eq!(again.failure, failure, "after {:?}", records[length - 1]);
                ends.push("failed");
            }
            other => unreachable!("after {:?}: {other:?}", records[length - 1]),
        }
    }
    let failed = ends.iter().filter(|end| **end == "failed").count();
    assert!(ends[0] == "paused" && failed > 4, "{ends:?}");
}

/// Reads a long text.
#[tool(effect = pure)]
async fn read_long_text() -> String {
    "word ".repeat(2_000)
}

/// The `Debug` text of a run stands in the message of a failing test, so it is short, however long the run was.
#[tokio::test]
async fn the_debug_text_of_a_run_is_short() {
    let model = ScriptedModel::from_fn(|request| {
        ScriptedResponse::call(&format!("c{}", request.input.len()), "read_long_text", json!({}))
    });
    let agent = Agent::new("reader").model(model).tool(read_long_text);
    let Err(failed) = agent.run("Read.").max_turns(20).await else { panic!("the limit is reached") };
    let text = format!("{failed:?}");
    assert!(text.len() < 1_000 && text.contains("reader"), "{} letters: {text:.2000}", text.len());
}

/// Plays a run on a session in which `pay` is under way when a sibling fails the run, and returns the failed run with the
/// lines of its session. `in_body` is notified in the body of `pay`.
async fn fail_beside(pay: Tool, in_body: Arc<Notify>) -> (Box<FailedRun>, Vec<String>) {
    let store = Arc::new(MemoryStore::default());
    let fail = tool("fail", move |_, _| {
        let in_body = in_body.clone();
        async move {
            in_body.notified().await;
            Err(ToolError::visible("over"))
        }
    });
    let in_store: Arc<dyn Store> = store.clone();
    let session = Session::in_run_store("conversation".into(), &in_store).expect("it has sessions");
    let desk = agent("desk", &[("f", "fail"), ("p", "pay")]);
    let desk = desk.tool(fail.on_failure(OnFailure::FailRun)).tool(pay);
    let run = desk.run("go").store(store).session(&session).drain_timeout(Duration::from_millis(5));
    let Err(RunError::Failed(failed)) = run.await else { unreachable!("the run fails") };
    let items = session.items().await.expect("it can be read");
    let lines = items.iter().map(|item| match &**item {
        Item::Call(call) => format!("call {}", call.id),
        Item::Output(output) => format!("output {} {}", output.call, output.content.text()),
        Item::Message(message) => message.text(),
        other => format!("{other:?}"),
    });
    (failed, lines.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_run_reports_the_calls_in_doubt_and_its_session_keeps_them() {
    let in_body = Arc::new(Notify::new());
    let begun = in_body.clone();
    let never = tool("pay", move |_, _| {
        begun.notify_one();
        std::future::pending()
    });
    let (failed, session) = fail_beside(never, in_body).await;
    assert_eq!(failed.settlement.in_doubt, ["p"]);
    assert_eq!(failed.settlement.finished, ["f"]);
    let unknown = model_text::EFFECT_UNKNOWN;
    let failed_text = model_text::TOOL_FAILED;
    let expected = [
        "go".to_owned(),
        "call f".to_owned(),
        "call p".to_owned(),
        format!("output f {failed_text} Error: over"),
        format!("output p {unknown}"),
    ];
    assert_eq!(session, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_run_names_the_bodies_that_still_run() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let in_body = Arc::new(Notify::new());
    let begun = in_body.clone();
    let body = move |_: ToolContext, _: Value| {
        begun.notify_one();
        held.lock().expect("one body").recv().map(|()| String::new())
    };
    let body = move |ctx, arguments| body(ctx, arguments).map_err(|_| ToolError::visible("let go"));
    let schema = json!({ "type": "object" });
    let blocks = Tool::dynamic_blocking("pay", "A tool.", schema, body).non_strict();
    let (failed, _) = fail_beside(blocks, in_body).await;
    assert_eq!(failed.settlement.in_doubt, ["p"]);
    assert_eq!(failed.settlement.draining, ["p"]);
    drop(release);
}

/// The agent inside the call has paid, and still works when a sibling of the call fails the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_keeps_the_call_of_a_stopped_agent_that_has_acted() {
    let is_paid = Arc::new(Notify::new());
    let paid = is_paid.clone();
    let pay = quick("pay");
    let waits = tool("wait", move |_, _| {
        paid.notify_one();
        std::future::pending()
    });
    let waits = waits.conflict_key(|_: &Value| "account".to_owned());
    let pay = pay.conflict_key(|_: &Value| "account".to_owned());
    let clerk = agent("clerk", &[("i", "pay"), ("w", "wait")]).tool(pay).tool(waits);
    let fail = tool("fail", move |_, _| {
        let is_paid = is_paid.clone();
        async move {
            is_paid.notified().await;
            Err(ToolError::visible("over"))
        }
    });
    let store = Arc::new(MemoryStore::default());
    let in_store: Arc<dyn Store> = store.clone();
    let session = Session::in_run_store("conversation".into(), &in_store).expect("it has sessions");
    let desk = agent("desk", &[("f", "fail"), ("a", "ask")]);
    let desk = desk.tool(fail.on_failure(OnFailure::FailRun)).tool(clerk.as_tool("ask", "Asks."));
    let run = desk.run("go").store(store).session(&session).drain_timeout(Duration::from_millis(5));
    let Err(RunError::Failed(failed)) = run.await else { unreachable!("the run fails") };
    assert_eq!(failed.settlement.in_doubt, ["a"], "the second call of the agent");
    let unknown = model_text::EFFECT_UNKNOWN;
    let items = session.items().await.expect("it can be read");
    let is_kept = items.iter().any(
        |item| matches!(&**item, Item::Output(output) if output.call == "a" && output.content.text() == unknown),
    );
    assert!(is_kept, "{items:?}");
}

/// A run whose provider is away waits for another driver, whether the attempts are used up or the provider asks for a
/// longer delay than the policy allows. It fails if no retry mends the error.
#[tokio::test(start_paused = true)]
async fn a_run_is_left_while_its_provider_is_away() {
    let policy = ModelRetryPolicy::default();
    let hour = Duration::from_secs(3600);
    for (advice, requests) in [
        (RetryAdvice::Safe, policy.max_attempts as usize),
        (RetryAdvice::After(hour), 1),
        (RetryAdvice::Never, 1),
    ] {
        for is_nested in [false, true] {
            let away = ScriptedModel::from_fn(move |_| {
                ScriptedResponse::error(ModelError::new("away").with_retry_advice(advice))
            });
            let outer = || {
                ScriptedModel::new([
                    ScriptedResponse::call("c1", "ask", json!({ "input": "go" })),
                    ScriptedResponse::text("done"),
                ])
            };
            let with_models = |inner: ScriptedModel, outer: ScriptedModel| {
                let inner = Agent::new("inner").model(inner);
                if is_nested {
                    Agent::new("outer").model(outer).tool(inner.as_tool("ask", "Asks."))
                } else {
                    inner
                }
            };
            let store = Arc::new(MemoryStore::default());
            let agent = with_models(away.clone(), outer());
            let result = agent.run("go").run_id("r").store(store.clone()).await;
            assert_eq!(away.requests().len(), requests, "{advice:?}, nested {is_nested}");
            if advice == RetryAdvice::Never {
                // The failure of a nested run is the output of its call.
                assert_eq!(result.is_err(), !is_nested, "{result:?}");
                continue;
            }
            let left = result.expect("it does not fail");
            assert!(matches!(left, RunResult::Detached(_)), "{advice:?}, nested {is_nested}: {left:?}");
            let back = ScriptedModel::new([ScriptedResponse::text("done")]);
            let recovered =
                with_models(back, ScriptedModel::new([ScriptedResponse::text("done")])).recover("r", store);
            assert_eq!(recovered.await.expect("it goes on").output_text().expect("it finishes"), "done");
        }
    }
}

/// Without a store nothing could go on later, and an application may want to know at once.
#[tokio::test(start_paused = true)]
async fn a_run_that_nobody_could_continue_fails() {
    let away = || {
        let error = || ModelError::new("away").with_retry_advice(RetryAdvice::Safe);
        Agent::new("a").model(ScriptedModel::from_fn(move |_| ScriptedResponse::error(error())))
    };
    let started = tokio::time::Instant::now();
    let failed = away().run("go").await;
    assert!(matches!(failed, Err(RunError::Failed(_))), "{failed:?}");
    // The clock of the test is virtual.
    assert!(started.elapsed() > Duration::from_secs(60), "a provider may be away for a minute");
    for (when_exhausted, is_left) in [(RetriesExhausted::Fail, false), (RetriesExhausted::Leave, true)] {
        let policy = ModelRetryPolicy { when_exhausted, ..ModelRetryPolicy::default() };
        let run = away().run("go").store(Arc::new(MemoryStore::default())).model_retry(policy);
        assert_eq!(matches!(run.await, Ok(RunResult::Detached(_))), is_left, "{when_exhausted:?}");
    }
}

/// A model whose text ends for this reason.
struct EndingModel(FinishReason);

impl Model for EndingModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let mut response = ModelResponse::default();
        response.items.push(Arc::new(Item::assistant("Once upon a")));
        response.details.finish_reason = Some(self.0.clone());
        response.details.service_tier = Some("flex".to_owned());
        Ok(response)
    }
}

/// A text that was kept although it was cut off is known as such, in the journal, in events, hooks and the result.
#[tokio::test]
async fn an_answer_says_why_it_ended() {
    for (reason, expected) in [
        (FinishReason::LengthLimit, Some(FinishReason::LengthLimit)),
        (FinishReason::Other("lost".to_owned()), Some(FinishReason::Other("lost".to_owned()))),
        // The ordinary end of a text is no news.
        (FinishReason::Complete, None),
    ] {
        let hooked = Arc::new(std::sync::Mutex::new(None));
        let seen = hooked.clone();
        let agent = Agent::new("writer").model(EndingModel(reason.clone()));
        let mut stream = agent
            .run("Tell a story.")
            .hook(Hook::new(move |event| {
                let seen = seen.clone();
                async move {
                    if let HookEvent::ModelResponded { info, .. } = event {
                        *seen.lock().expect("free") = Some(info.details.clone());
                    }
                    Ok(())
                }
            }))
            .stream();
        let mut of_event = None;
        while let Some(event) = stream.next().await {
            if let RunEventKind::ModelResponded(info) = event.kind {
                of_event = info.details.finish_reason.clone();
            }
        }
        let result = stream.result().await.expect("it finishes");
        assert_eq!(
            (of_event.as_ref(), result.record().finish_reason()),
            (expected.as_ref(), expected.as_ref())
        );
        let details = hooked.lock().expect("free").clone().expect("the hook was called");
        assert_eq!((details.finish_reason, details.service_tier.as_deref()), (Some(reason), Some("flex")));
        let text = serde_json::to_string(result.record().journal()).expect("JSON");
        assert_eq!(text.contains("\"finish_reason\""), expected.is_some(), "{text}");
    }
}

/// An agent inside a call that waits for an approval is closed after the drain, beside a body that still runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_names_the_bodies_of_its_own_calls() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let in_body = Arc::new(Notify::new());
    let begun = in_body.clone();
    let body = move |_: ToolContext, _: Value| {
        begun.notify_one();
        held.lock().expect("one body").recv().map(|()| String::new())
    };
    let body = move |ctx, arguments| body(ctx, arguments).map_err(|_| ToolError::visible("let go"));
    let blocks = Tool::dynamic_blocking("pay", "A tool.", json!({ "type": "object" }), body).non_strict();
    let clerk = agent("clerk", &[("i", "gated")]).tool(quick("gated").needs_approval());
    let desk = agent("desk", &[("p", "pay"), ("a", "ask")]).tool(blocks).tool(clerk.as_tool("ask", "Asks."));
    let mut stream = desk.run("go").drain_timeout(Duration::from_millis(5)).stream();
    let cancel = stream.cancel_handle();
    while !matches!(stream.next().await.expect("the run goes on").kind, RunEventKind::CallHeld(_)) {}
    in_body.notified().await;
    cancel.cancel();
    let Ok(RunResult::Cancelled(cancelled)) = stream.result().await else { unreachable!("it is cancelled") };
    assert_eq!(cancelled.settlement.draining, ["p"], "{:?}", cancelled.settlement);
    drop(release);
}
