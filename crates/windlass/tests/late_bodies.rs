//! Bodies that run on after their deadline: what they hold, no other body gets before they have ended.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::journal::{CallStatus, JournalEntry, JournalRecord};
use windlass::core::run::model_text::EARLIER_CALL_RUNS;
use windlass::core::tool::ToolEffect;
use windlass::event::RunEventKind;
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::run::RunBuilder;
use windlass::store::MemoryStore;
use windlass::tool::{ReceiptPolicy, ReceiptScope, SharedLimit};

/// Time after which a test counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Timeout of the tools.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The bodies of a test: the first one blocks its thread until it is released.
struct Bodies {
    begun: AtomicU32,
    is_blocked: AtomicBool,
    /// True if a body ran beside the first one.
    has_overlapped: AtomicBool,
    blocked: Mutex<Option<Receiver<()>>>,
}

impl Bodies {
    fn new() -> (Arc<Self>, Sender<()>) {
        let (release, blocked) = channel();
        let bodies = Self {
            begun: AtomicU32::new(0),
            is_blocked: AtomicBool::new(false),
            has_overlapped: AtomicBool::new(false),
            blocked: Mutex::new(Some(blocked)),
        };
        (Arc::new(bodies), release)
    }

    fn run(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let blocked = self.blocked.lock().expect("nobody panics with it").take();
        if let Some(blocked) = blocked {
            self.is_blocked.store(true, Ordering::SeqCst);
            let _dropped = blocked.recv();
            self.is_blocked.store(false, Ordering::SeqCst);
        } else if self.is_blocked.load(Ordering::SeqCst) {
            self.has_overlapped.store(true, Ordering::SeqCst);
        }
    }

    /// Creates a tool with these bodies.
    fn tool(self: &Arc<Self>) -> Tool {
        let bodies = self.clone();
        let schema = json!({ "type": "object" });
        let tool = Tool::dynamic_blocking("act", "Acts.", schema, move |_: ToolContext, _: Value| {
            bodies.run();
            Ok::<_, ToolError>("done")
        });
        tool.non_strict().timeout(TIMEOUT)
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }
}

/// Creates an agent that makes these calls, one in each turn.
fn agent(tool: Tool, calls: &[&str]) -> Agent {
    let calls = calls.iter().map(|call| ScriptedResponse::call(call, "act", json!({})));
    let model = ScriptedModel::new(calls.chain([ScriptedResponse::text("bye")]));
    Agent::new("hand").model(model).tool(tool)
}

fn statuses(records: &[JournalRecord]) -> Vec<(String, CallStatus)> {
    let settled = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((settled.call.to_string(), settled.status.clone())),
        _ => None,
    });
    settled.collect()
}

/// A run whose second call comes while the body of the first still runs.
struct HeldCase {
    what: &'static str,
    configure: fn(Tool) -> Tool,
    limit_agent: fn(Agent) -> Agent,
    limit_run: fn(RunBuilder) -> RunBuilder,
}

const UNLIMITED: HeldCase =
    HeldCase { what: "", configure: |tool| tool, limit_agent: |agent| agent, limit_run: |run| run };

const HELD_CASES: [HeldCase; 5] = [
    HeldCase { what: "the tool's limit", configure: |tool| tool.max_concurrent_calls(1), ..UNLIMITED },
    HeldCase { what: "the agent's limit", limit_agent: |agent| agent.max_concurrent_calls(1), ..UNLIMITED },
    HeldCase { what: "the run's limit", limit_run: |run| run.max_concurrent_calls(1), ..UNLIMITED },
    HeldCase {
        what: "the conflict key",
        configure: |tool| tool.conflict_key(|_: &Value| "account".to_owned()),
        ..UNLIMITED
    },
    HeldCase {
        what: "the claim of an identical call",
        configure: |tool| tool.effect(ToolEffect::Idempotent),
        ..UNLIMITED
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_begins_beside_one_that_outlived_its_timeout_and_holds_what_it_needs() {
    let cases = HELD_CASES.map(|case| tokio::spawn(second_call_is_refused(case)));
    for case in cases {
        case.await.expect("it does not panic");
    }
}

async fn second_call_is_refused(case: HeldCase) {
    let (bodies, release) = Bodies::new();
    let mut release = Some(release);
    let tool = (case.configure)(bodies.tool());
    let agent = (case.limit_agent)(agent(tool, &["late", "refused", "after"]));
    let run = agent.run("go").drain_timeout(Duration::from_secs(1));
    let mut stream = (case.limit_run)(run).stream();
    let mut warnings = Vec::new();
    let ended = async {
        while let Some(event) = stream.next().await {
            match event.kind {
                RunEventKind::CallSettled { call, output, .. } if call.as_str() == "refused" => {
                    assert_eq!(output.text(), EARLIER_CALL_RUNS, "{}", case.what);
                    drop(release.take());
                }
                RunEventKind::Warning { message } => warnings.push(message),
                _ => {}
            }
        }
    };
    tokio::time::timeout(STUCK, ended).await.unwrap_or_else(|_| panic!("{}: it hangs", case.what));
    let result = stream.result().await.expect("it ends");
    assert_eq!(
        statuses(result.record().journal()),
        [
            ("late".to_owned(), CallStatus::TimedOutStillRunning),
            ("refused".to_owned(), CallStatus::BlockedByGuardrail),
            ("after".to_owned(), CallStatus::Succeeded),
        ],
        "{}",
        case.what
    );
    assert!(!bodies.has_overlapped.load(Ordering::SeqCst), "{}", case.what);
    assert_eq!(bodies.begun(), 2, "{}", case.what);
    let expected =
        "call `refused` was not executed: the body of an earlier call exceeded its time limit and still runs";
    assert!(warnings.iter().any(|warning| warning == expected), "{}: {warnings:?}", case.what);
}

/// The second call waits, because the first body ends within its patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_a_body_that_ends_soon_after_its_timeout() {
    let cases = HELD_CASES.map(|case| tokio::spawn(second_call_waits(case)));
    for case in cases {
        case.await.expect("it does not panic");
    }
}

async fn second_call_waits(case: HeldCase) {
    let (bodies, release) = Bodies::new();
    let mut release = Some(release);
    let agent = (case.limit_agent)(agent((case.configure)(bodies.tool()), &["late", "waits"]));
    let mut stream = (case.limit_run)(agent.run("go").drain_timeout(STUCK)).stream();
    let mut responses = 0;
    let ended = async {
        while let Some(event) = stream.next().await {
            responses += u32::from(matches!(event.kind, RunEventKind::ModelResponded(_)));
            if responses == 2 && release.is_some() {
                // Time in which a call that does not wait begins.
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(release.take());
            }
        }
    };
    tokio::time::timeout(STUCK, ended).await.unwrap_or_else(|_| panic!("{}: it hangs", case.what));
    let result = stream.result().await.expect("it ends");
    let statuses = statuses(result.record().journal());
    assert_eq!(statuses[1], ("waits".to_owned(), CallStatus::Succeeded), "{}", case.what);
    assert!(!bodies.has_overlapped.load(Ordering::SeqCst), "{}", case.what);
}

/// Waits until the first body blocks.
async fn until_blocked(bodies: &Bodies) {
    while !bodies.is_blocked.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ended_or_was_dropped_leaves_its_bodies_what_they_hold() {
    let shared_receipts = |tool: Tool| {
        let policy = ReceiptPolicy { scope: ReceiptScope::Store, ..ReceiptPolicy::default() };
        tool.effect(ToolEffect::Idempotent).receipt_policy(policy)
    };
    let cases: [(&str, fn(Tool) -> Tool); 3] = [
        ("the tool's limit", |tool| tool.max_concurrent_calls(1)),
        ("a shared limit", |tool| tool.shared_limit(SharedLimit::concurrency("act", 1))),
        ("a shared receipt", shared_receipts),
    ];
    for (what, configure) in cases {
        for is_dropped in [false, true] {
            let store = Arc::new(MemoryStore::default());
            let (bodies, release) = Bodies::new();
            let tool = configure(bodies.tool()).timeout(STUCK);
            let first = agent(tool.clone(), &["late"]).run("go").store(store.clone());
            let cancel = first.cancel_handle();
            let first = tokio::spawn(first.drain_timeout(Duration::ZERO).into_future());
            tokio::time::timeout(STUCK, until_blocked(&bodies)).await.expect("the body begins");
            if is_dropped {
                first.abort();
                assert!(first.await.expect_err("it was aborted").is_cancelled());
            } else {
                cancel.cancel();
                let ended = first.await.expect("it does not panic").expect("it settles");
                assert!(matches!(ended, RunResult::Cancelled(_)), "{what}: {ended:?}");
            }
            let next = agent(tool, &["next"]).run("go").store(store.clone());
            let next = tokio::spawn(next.drain_timeout(STUCK).into_future());
            // Time in which a call that does not wait begins.
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(release);
            let ended = tokio::time::timeout(STUCK, next).await;
            let ended = ended.unwrap_or_else(|_| panic!("{what}: it hangs"));
            let ended = ended.expect("it does not panic").expect("it ends");
            assert_eq!(ended.output_text().expect("it finished"), "bye");
            assert!(!bodies.has_overlapped.load(Ordering::SeqCst), "{what}, dropped: {is_dropped}");
            assert_eq!(bodies.begun(), 2, "{what}, dropped: {is_dropped}");
        }
    }
}

/// The guardrail of the first call runs an agent that calls the same tool.
#[tokio::test]
async fn a_permit_is_given_back_when_the_body_has_ended_and_its_guardrails_run() {
    let schema = json!({ "type": "object" });
    let limited = Tool::dynamic("act", "Acts.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("done")
    });
    let limited = limited.non_strict().max_concurrent_calls(1);
    let inner = limited.clone();
    let asks = ToolOutputGuardrail::new("asks", move |_, _| {
        let judge = agent(inner.clone(), &["inner"]);
        async move {
            judge.run("judge").await?;
            Ok(ToolGuardrailVerdict::Allow)
        }
    });
    let run = agent(limited.output_guardrail(asks), &["outer"]).run("go");
    let result = tokio::time::timeout(STUCK, run.into_future()).await.expect("it does not wait for itself");
    let result = result.expect("it ends");
    assert_eq!(statuses(result.record().journal()), [("outer".to_owned(), CallStatus::Succeeded)]);
}
