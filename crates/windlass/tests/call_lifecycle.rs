//! The life of a call where something ends it early: nothing that was done is forgotten, and every way to a body or an
//! output passes the same gate.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{
    decision::{Decision, DecisionScope, PersonQuestion},
    failure::RunFailure,
    item::{Item, OutputContent},
    journal::{CallStatus, JournalEntry, JournalRecord},
};
use windlass::error::RunError;
use windlass::event::RunEventKind;
use windlass::guardrail::{
    GuardrailVerdict, OutputGuardrail, ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail,
};
use windlass::hook::{Hook, HookEvent};
use windlass::prelude::*;
use windlass::run::ModelInput;
use windlass::session::{MemorySessionStore, Session};
use windlass::store::{MemoryStore, post_decision};
use windlass::tool::{OnFailure, ReconcileOutcome};

/// Time after which a test counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Lease of a driver that is dropped; another one takes the run over after it.
const LEASE: Duration = Duration::from_millis(20);

fn tool<Fut>(name: &str, body: impl Fn(ToolContext, Value) -> Fut + Send + Sync + 'static) -> Tool
where
    Fut: Future<Output = Result<String, ToolError>> + Send + 'static,
{
    Tool::dynamic(name, "A tool.", json!({ "type": "object" }), body).non_strict()
}

fn calls(names: &[(&str, &str)]) -> ScriptedResponse {
    let [(id, name), rest @ ..] = names else { return ScriptedResponse::text("") };
    let first = ScriptedResponse::call(id, name, json!({ "input": "go" }));
    rest.iter().fold(first, |response, (id, name)| response.and_call(id, name, json!({ "input": "go" })))
}

fn agent(responses: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("teller").model(ScriptedModel::new(responses))
}

fn statuses(records: &[JournalRecord]) -> Vec<(String, CallStatus)> {
    let settled = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some((settled.call.to_string(), settled.status.clone())),
        _ => None,
    });
    settled.collect()
}

fn slow_guardrail(delay: Duration) -> ToolOutputGuardrail {
    ToolOutputGuardrail::new("slow", move |_, _| async move {
        tokio::time::sleep(delay).await;
        Ok(ToolGuardrailVerdict::Allow)
    })
}

fn failing(delay: Duration) -> Tool {
    tool("fail", move |_, _| async move {
        tokio::time::sleep(delay).await;
        Err(ToolError::visible("over"))
    })
    .on_failure(OnFailure::FailRun)
}

#[tokio::test(start_paused = true)]
async fn finished_work_is_kept_when_the_run_fails_during_its_output_guardrail() {
    let pay = tool("pay", |_, _| async { Ok("paid".to_owned()) })
        .output_guardrail(slow_guardrail(Duration::from_millis(100)));
    let session = Session::new("ann", Arc::new(MemorySessionStore::default()));
    // The payment comes after the failure in the model's order, so it is stopped first.
    let agent =
        agent([calls(&[("f", "fail"), ("p", "pay")])]).tools((pay, failing(Duration::from_millis(40))));
    let Err(RunError::Failed(failed)) = agent.run("go").session(&session).await else {
        panic!("the run fails");
    };
    let settled = statuses(failed.record.journal());
    assert!(settled.contains(&("p".to_owned(), CallStatus::Succeeded)), "{settled:?}");
    let items = session.items().await.expect("the session is readable");
    let is_paid = |item: &Arc<Item>| matches!(&**item, Item::Output(output) if output.content == OutputContent::from("paid"));
    assert!(items.iter().any(is_paid), "the session has the payment: {items:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guardrail_that_does_not_finish_withholds_the_output_of_a_call_that_happened() {
    let pay = tool("pay", |_, _| async { Ok("paid".to_owned()) })
        .output_guardrail(slow_guardrail(Duration::from_secs(3600)));
    let agent = agent([calls(&[("p", "pay")])]).tools((pay,));
    let run = agent.run("go");
    let cancel = run.cancel_handle();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.cancel();
    });
    let result = run.await.expect("a cancelled run is a result");
    let records = result.record().journal();
    assert_eq!(statuses(records), [("p".to_owned(), CallStatus::OutputWithheld)]);
    assert!(records.iter().any(|record| matches!(record.entry, JournalEntry::CallBodyEnded(_))));
    let text = format!("{records:?}");
    assert!(!text.contains("paid\""), "no record has what was withheld: {text}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_during_an_output_guardrail_loses_nothing() {
    let bodies = Arc::new(AtomicU32::new(0));
    let store = Arc::new(MemoryStore::default());
    let make = |delay| {
        let bodies = bodies.clone();
        let pay = tool("pay", move |_, _| {
            bodies.fetch_add(1, Ordering::SeqCst);
            async { Ok("paid".to_owned()) }
        });
        let pay = pay.output_guardrail(slow_guardrail(delay));
        agent([calls(&[("p", "pay")]), ScriptedResponse::text("bye")]).tools((pay,))
    };
    let run = make(Duration::from_secs(3600))
        .run("go")
        .run_id("run")
        .store(store.clone())
        .lease_duration(LEASE)
        .into_future();
    assert!(tokio::time::timeout(2 * LEASE, run).await.is_err(), "it is in its guardrail");
    std::thread::sleep(10 * LEASE);
    let result = make(Duration::ZERO).recover("run", store).await.expect("it goes on");
    assert_eq!(bodies.load(Ordering::SeqCst), 1, "the body ran once");
    assert_eq!(statuses(result.record().journal()), [("p".to_owned(), CallStatus::Succeeded)]);
}

#[tokio::test(start_paused = true)]
async fn a_reconciled_output_passes_the_output_guardrails_and_is_announced() {
    let store = Arc::new(MemoryStore::default());
    let ended = Arc::new(Mutex::new(Vec::new()));
    let make = || {
        let pay = tool("pay", |_, _| std::future::pending())
            .reconcile(|_| async { ReconcileOutcome::Executed("secret number".into()) })
            .output_guardrail(ToolOutputGuardrail::new("redact", |_, _| async {
                Ok(ToolGuardrailVerdict::ReplaceOutput("paid".into()))
            }));
        agent([calls(&[("p", "pay")]), ScriptedResponse::text("bye")]).tools((pay,))
    };
    let run = make().run("go").run_id("run").store(store.clone()).lease_duration(LEASE).into_future();
    assert!(tokio::time::timeout(2 * LEASE, run).await.is_err(), "its body does not end");
    std::thread::sleep(10 * LEASE);
    let log = ended.clone();
    let hook = Hook::new(move |event: HookEvent| {
        if let HookEvent::CallEnded { status, output, .. } = event {
            log.lock().expect("a log").push((status, output));
        }
        std::future::ready(Ok(()))
    });
    let result = make().recover("run", store).hook(hook).await.expect("it goes on");
    assert_eq!(statuses(result.record().journal()), [("p".to_owned(), CallStatus::Reconciled)]);
    let told = std::mem::take(&mut *ended.lock().expect("a log"));
    assert_eq!(told, [(CallStatus::Reconciled, OutputContent::from("paid"))]);
}

#[tokio::test(start_paused = true)]
async fn a_receipt_passes_the_guardrails_of_its_tool() {
    let is_open = Arc::new(AtomicBool::new(true));
    let gate = is_open.clone();
    let pay = tool("pay", |_, _| async { Ok("paid".to_owned()) })
        .effect(windlass::core::tool::ToolEffect::Idempotent)
        .input_guardrail(ToolInputGuardrail::new("gate", move |_| {
            let verdict = match gate.swap(false, Ordering::SeqCst) {
                true => ToolGuardrailVerdict::Allow,
                false => ToolGuardrailVerdict::RejectCall("closed".to_owned()),
            };
            async { Ok(verdict) }
        }));
    let responses = [calls(&[("a", "pay")]), calls(&[("b", "pay")]), ScriptedResponse::text("bye")];
    let result = agent(responses).tools((pay,)).run("go").await.expect("it ends");
    let want = [("a".to_owned(), CallStatus::Succeeded), ("b".to_owned(), CallStatus::BlockedByGuardrail)];
    assert_eq!(statuses(result.record().journal()), want);
}

#[tokio::test]
async fn an_approval_begins_its_call_while_a_sibling_runs_and_a_disabled_tool_does_not_run() {
    for is_disabled in [false, true] {
        let (store, is_enabled) = (Arc::new(MemoryStore::default()), Arc::new(AtomicBool::new(true)));
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (release, released) = (Arc::new(Mutex::new(Some(release))), Arc::new(Mutex::new(Some(released))));
        // The sibling ends only when the approved call has run, or is known not to run.
        let wait = tool("wait", move |_, _| {
            let released = released.lock().expect("a lock").take();
            async move {
                if let Some(released) = released {
                    drop(released.await);
                }
                Ok("waited".to_owned())
            }
        });
        let (rule, ran) = (is_enabled.clone(), Arc::new(AtomicBool::new(false)));
        let body_ran = ran.clone();
        let pay = tool("pay", move |_, _| {
            body_ran.store(true, Ordering::SeqCst);
            async { Ok("paid".to_owned()) }
        })
        .needs_approval()
        .enabled_if(move |_| rule.load(Ordering::SeqCst));
        let agent =
            agent([calls(&[("p", "pay"), ("w", "wait")]), ScriptedResponse::text("bye")]).tools((pay, wait));
        let mut stream = agent.run("go").run_id("run").store(store.clone()).stream();
        while let Some(event) =
            tokio::time::timeout(STUCK, stream.next()).await.expect("the approved call ends")
        {
            match event.kind {
                RunEventKind::CallHeld(_) => {
                    is_enabled.store(!is_disabled, Ordering::SeqCst);
                    let scope = DecisionScope::ThisCall;
                    post_decision(&*store, &"run".into(), "p", Decision::Approve, scope, "ann")
                        .await
                        .expect("it is posted");
                }
                RunEventKind::CallSettled { call, .. } if call == "p" => {
                    if let Some(release) = release.lock().expect("a lock").take() {
                        drop(release);
                    }
                }
                _ => {}
            }
        }
        let result = stream.result().await.expect("it ends");
        let settled = statuses(result.record().journal());
        let of_pay = if is_disabled { CallStatus::UnknownTool } else { CallStatus::Succeeded };
        assert_eq!(settled, [("p".to_owned(), of_pay), ("w".to_owned(), CallStatus::Succeeded)]);
        assert_eq!(ran.load(Ordering::SeqCst), !is_disabled);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_failures_at_the_same_moment_the_first_in_order_is_reported_on_many_threads() {
    for _ in 0..200 {
        let barrier = Arc::new(tokio::sync::Barrier::new(3));
        let fail = tool("fail", move |ctx, _| {
            let barrier = barrier.clone();
            async move {
                barrier.wait().await;
                Err(ToolError::visible(ctx.call_id().to_owned()))
            }
        })
        .on_failure(OnFailure::FailRun);
        let agent = agent([calls(&[("a", "fail"), ("b", "fail"), ("c", "fail")])]).tools((fail,));
        let Err(RunError::Failed(failed)) = agent.run("go").drain_timeout(Duration::from_secs(20)).await
        else {
            panic!("the run fails");
        };
        let RunFailure::ToolFailed { message, .. } = &failed.failure else { panic!("{:?}", failed.failure) };
        assert_eq!(message, "a");
    }
}

#[tokio::test]
async fn an_input_filter_cannot_break_the_pairs_and_is_in_the_journal() {
    let look = tool("look", |_, _| async { Ok("seen".to_owned()) });
    let model = ScriptedModel::new([calls(&[("a", "look")]), ScriptedResponse::text("bye")]);
    let agent = Agent::new("watch").model(model.clone()).tools((look,));
    let last_one = |_, mut input: ModelInput| async move {
        let from = input.items.len().saturating_sub(1);
        input.items.drain(..from);
        input
    };
    let result = agent.run("go").input_filter(last_one).await.expect("it ends");
    let sent = &model.requests()[1].input;
    assert!(
        !sent.iter().any(|item| matches!(**item, Item::Output(_))),
        "no output without its call: {sent:?}"
    );
    let filtered = |record: &JournalRecord| matches!(record.entry, JournalEntry::ModelInputFiltered(_));
    assert!(result.record().journal().iter().any(filtered));
    assert_eq!(
        result.record().state().last_model_input(),
        sent.as_slice(),
        "the journal replays what was sent"
    );
}

#[tokio::test]
async fn an_input_filter_cannot_part_outputs_from_their_response() {
    type Filter = fn(&mut Vec<Arc<Item>>);
    let hint_before_the_last: Filter = |items| items.insert(items.len() - 1, Arc::new(Item::user("hint")));
    let other_order: Filter = |items| {
        let last = items.len() - 1;
        items.swap(last - 1, last);
        items.push(Arc::new(Item::user("hint")));
    };
    for (filter, moved) in [(hint_before_the_last, "b"), (other_order, "a")] {
        let look = tool("look", |ctx, _| async move { Ok(ctx.call_id().to_owned()) });
        let model =
            ScriptedModel::new([calls(&[("a", "look"), ("b", "look")]), ScriptedResponse::text("bye")]);
        let agent = Agent::new("watch").model(model.clone()).tools((look,));
        let mut stream = agent
            .run("go")
            .input_filter(move |_, mut input: ModelInput| async move {
                if input.items.iter().any(|item| matches!(**item, Item::Output(_))) {
                    filter(&mut input.items);
                }
                input
            })
            .stream();
        let mut warnings = Vec::new();
        while let Some(event) = stream.next().await {
            if let RunEventKind::Warning { message } = event.kind {
                warnings.push(message);
            }
        }
        let result = stream.result().await.expect("it ends");
        assert_eq!(warnings, [format!("the input filter left the output of `{moved}` out of order")]);
        let sent = &model.requests()[1].input;
        let lines: Vec<String> = sent
            .iter()
            .map(|item| match &**item {
                Item::Call(call) => format!("call {}", call.id),
                Item::Output(output) => format!("output {}", output.content.text()),
                Item::Message(message) => message.text(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lines, ["go", "call a", "call b", "output a", "output b", "hint"]);
        assert_eq!(
            result.record().state().last_model_input(),
            sent.as_slice(),
            "the journal replays what was sent"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_the_run_counts_the_bodies_of_nested_agents() {
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (counted, seen) = (now.clone(), most.clone());
    let work = tool("work", move |_, _| {
        let (now, most) = (counted.clone(), seen.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok("done".to_owned())
        }
    });
    let inner = |name: &str| {
        Agent::new(name)
            .model(ScriptedModel::new([calls(&[("x", "work"), ("y", "work")]), ScriptedResponse::text("ok")]))
            .tool(work.clone())
    };
    let outer = agent([calls(&[("a", "one"), ("b", "two")]), ScriptedResponse::text("bye")])
        .tool(inner("first").as_tool("one", "Asks the first."))
        .tool(inner("second").as_tool("two", "Asks the second."));
    outer.run("go").max_concurrent_calls(2).await.expect("it ends");
    assert!(most.load(Ordering::SeqCst) > 0, "the bodies ran");
    assert!(most.load(Ordering::SeqCst) <= 2, "{} bodies at once", most.load(Ordering::SeqCst));
}

#[tokio::test]
async fn hooks_see_nested_agents_progress_and_costs() {
    let inner = Agent::new("helper")
        .model(ScriptedModel::new([calls(&[("n", "work")]), ScriptedResponse::text("ok")]))
        .tool(tool("work", |ctx, _| async move {
            for step in 0..500 {
                ctx.report_progress(step);
            }
            Ok("done".to_owned())
        }));
    let outer = agent([calls(&[("a", "ask")]), ScriptedResponse::text("bye")])
        .tool(inner.as_tool("ask", "Asks the helper."));
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = log.clone();
    let hook = Hook::new(move |event: HookEvent| {
        let depth = event.parent_calls().len();
        let line = match &event {
            HookEvent::CallProgress { progress, .. } => format!("{depth} progress {progress}"),
            HookEvent::CallEnded { info, .. } => format!("{depth} ended after {} attempts", info.attempts),
            HookEvent::ModelResponded { info, .. } => {
                format!("{depth} {} requests, {} attempts", info.usage.requests, info.attempts)
            }
            other => format!("{depth} {}", other.name()),
        };
        seen.lock().expect("a log").push(line);
        std::future::ready(Ok(()))
    });
    outer.run("go").hook(hook).await.expect("it ends");
    let log = log.lock().expect("a log");
    for want in ["1 progress 499", "1 ended after 1 attempts", "0 ended after 1 attempts", "1 agent_started"]
    {
        assert!(log.iter().any(|line| line == want), "{want} is not in {log:?}");
    }
    assert!(log.iter().any(|line| line == "1 1 requests, 1 attempts"), "{log:?}");
}

#[tokio::test]
async fn a_nested_agent_with_output_guardrails_gives_nothing_that_they_did_not_see() {
    let look = tool("look", |_, _| async { Ok("secret".to_owned()) });
    let inner = Agent::new("helper")
        .model(ScriptedModel::new([calls(&[("n", "look")]), ScriptedResponse::text("")]))
        .tool(look)
        .output_guardrail(OutputGuardrail::new("no secrets", |_, output: Arc<str>| async move {
            Ok(if output.contains("secret") { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass })
        }));
    let outer = agent([calls(&[("a", "ask")]), ScriptedResponse::text("bye")])
        .tool(inner.as_tool("ask", "Asks the helper."));
    let result = outer.run("go").await.expect("it ends");
    let settled = result.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) if settled.call == "a" => Some(settled.output.text().into_owned()),
        _ => None,
    });
    assert_eq!(settled.as_deref(), Some(""));
}

#[tokio::test]
async fn an_answer_while_a_sibling_runs_reaches_the_body() {
    let store = Arc::new(MemoryStore::default());
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (mut release, released) = (Some(release), Arc::new(Mutex::new(Some(released))));
    let wait = tool("wait", move |_, _| {
        let released = released.lock().expect("a lock").take();
        async move {
            if let Some(released) = released {
                drop(released.await);
            }
            Ok("waited".to_owned())
        }
    });
    let book = tool("book", |ctx, _| async move {
        let question = PersonQuestion::new("Inside or outside?");
        match ctx.answer_to(&question) {
            Some(place) => Ok(format!("booked {place}")),
            None => Err(ToolError::ask_person(question)),
        }
    });
    let responses = [calls(&[("b", "book"), ("w", "wait")]), ScriptedResponse::text("bye")];
    let agent = agent(responses).tools((book, wait));
    let mut stream = agent.run("go").run_id("run").store(store.clone()).stream();
    let mut holds = 0;
    while let Some(event) = tokio::time::timeout(STUCK, stream.next()).await.expect("the answered call ends")
    {
        match event.kind {
            RunEventKind::CallHeld(_) => {
                holds += 1;
                assert_eq!(holds, 1, "it is asked once");
                let (answer, scope) = (Decision::Answer { value: json!("outside") }, DecisionScope::ThisCall);
                post_decision(&*store, &"run".into(), "b", answer, scope, "ann").await.expect("it is posted");
            }
            RunEventKind::CallSettled { call, .. } if call == "b" => drop(release.take()),
            _ => {}
        }
    }
    let result = stream.result().await.expect("it ends");
    let want = [("b".to_owned(), CallStatus::Succeeded), ("w".to_owned(), CallStatus::Succeeded)];
    assert_eq!(statuses(result.record().journal()), want);
}
