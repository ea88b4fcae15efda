//! Runs that a call or a function of the application fails: which failure is reported, what the siblings keep, and how
//! whoever goes on after a crash ends the run.

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
    run::Run,
};
use windlass::error::RunError;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::run::OnUnknownTool;
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
