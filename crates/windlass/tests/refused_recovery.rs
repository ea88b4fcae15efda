//! A call that may have run is not ended by a check of the next process, because that would say that it did not run.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass::core::decision::HoldReason;
use windlass::core::journal::{CallStatus, JournalEntry, decode_lines};
use windlass::core::tool::ToolEffect;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store};
use windlass::tool::ReconcileOutcome;

/// The ways in which the next build refuses a call.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    EditedArguments,
    Guardrail,
    Disabled,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::EditedArguments, Self::Guardrail, Self::Disabled];

    fn status(self) -> CallStatus {
        match self {
            Self::EditedArguments => CallStatus::InvalidArguments,
            Self::Guardrail => CallStatus::BlockedByGuardrail,
            Self::Disabled => CallStatus::UnknownTool,
        }
    }

    /// Creates the tool of the next build, which must not run it.
    fn tool(self, effect: ToolEffect) -> Tool {
        let run = |_: ToolContext, _: Value| async { Err::<String, _>(ToolError::visible("it ran again")) };
        let tool = |names: &[&str]| Tool::dynamic("pay", "Pays.", schema(names), run).effect(effect);
        match self {
            Self::EditedArguments => tool(&["cents"]),
            Self::Guardrail => {
                let reject = |_| async { Ok(ToolGuardrailVerdict::RejectCall("No.".to_owned())) };
                tool(&["cents", "note"]).input_guardrail(ToolInputGuardrail::new("never", reject))
            }
            Self::Disabled => tool(&["cents", "note"]).enabled_if(|_| false),
        }
    }
}

/// Returns a schema with these parameters, of which the first is required.
fn schema(names: &[&str]) -> Value {
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), json!({ "type": ["integer", "null"] }))).collect();
    json!({
        "type": "object", "properties": properties, "required": [names[0]], "additionalProperties": false
    })
}

fn bank_agent(tool: Tool, replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("bank").model(ScriptedModel::new(replies)).tools(tool.non_strict().needs_approval())
}

/// Returns a run whose process ended inside the body of its call, which a person had approved with a note.
async fn lose_run(effect: ToolEffect) -> PausedRun {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let pay = Tool::dynamic("pay", "Pays.", schema(&["cents", "note"]), |_: ToolContext, _: Value| {
        std::future::pending::<Result<String, ToolError>>()
    });
    let call = ScriptedResponse::call("a", "pay", json!({ "cents": 500 }));
    let agent = bank_agent(pay.effect(effect), [call]);
    let paused = agent.run("pay").run_id("run").store(store.clone()).await.expect("the run goes on");
    let mut paused = paused.into_paused().expect("the call waits");
    paused.approve_edited("a", r#"{"cents":500,"note":1}"#).expect("it waits");
    let resumed = agent.resume(paused).store(store.clone());
    assert!(tokio::time::timeout(Duration::from_millis(50), resumed).await.is_err());
    let lines = store.load_journal(&"run".into(), 0).await.expect("memory can be read");
    PausedRun::from_records(decode_lines(&lines).expect("it can be read")).expect("it adds up")
}

fn settled_statuses(result: &RunResult) -> Vec<CallStatus> {
    let settled = result.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.status.clone()),
        _ => None,
    });
    settled.collect()
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_that_may_have_run_is_in_doubt() {
    for effect in [ToolEffect::Once, ToolEffect::Idempotent] {
        for refusal in Refusal::ALL {
            let what = format!("{effect:?}, {refusal:?}");
            let next = bank_agent(refusal.tool(effect), [ScriptedResponse::text("done")]);
            let result = next.resume(lose_run(effect).await).await.expect("the run goes on");
            assert_eq!(settled_statuses(&result), [], "{what}");
            let mut paused = result.into_paused().expect("a person is asked");
            assert_eq!(paused.pending_calls()[0].reason, HoldReason::InDoubt, "{what}");
            paused.confirm_not_executed("a").expect("it is in doubt");
            let result = next.resume(paused).await.expect("the run goes on");
            assert_eq!(settled_statuses(&result), [refusal.status()], "{what}: now it is known");
            assert_eq!(result.output_text().expect("the run finished"), "done", "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_reconciled() {
    for refusal in [Refusal::Guardrail, Refusal::Disabled] {
        let tool = refusal.tool(ToolEffect::Idempotent);
        let tool = tool.reconcile(|_| async { ReconcileOutcome::Executed("paid".into()) });
        let next = bank_agent(tool, [ScriptedResponse::text("done")]);
        let result = next.resume(lose_run(ToolEffect::Idempotent).await).await.expect("the run goes on");
        assert_eq!(settled_statuses(&result), [CallStatus::Reconciled], "{refusal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_without_an_effect_is_refused() {
    for refusal in Refusal::ALL {
        let next = bank_agent(refusal.tool(ToolEffect::Pure), [ScriptedResponse::text("done")]);
        let result = next.resume(lose_run(ToolEffect::Pure).await).await.expect("the run goes on");
        assert_eq!(settled_statuses(&result), [refusal.status()], "{refusal:?}");
    }
}

/// Creates an agent whose nested agent pays, and then sends a mail with approval. The nested agent's call has a secret
/// argument.
fn caller_agent(
    paid: &Arc<AtomicUsize>,
    edit: impl FnOnce(Tool) -> Tool,
    replies: [Vec<ScriptedResponse>; 2],
) -> Agent {
    let paid = paid.clone();
    let pay = move |_: ToolContext, _: Value| {
        let paid = paid.clone();
        async move { Ok::<_, String>(format!("paid {}", paid.fetch_add(1, Ordering::SeqCst) + 1)) }
    };
    let mail = |_: ToolContext, _: Value| async { Ok::<_, String>("sent") };
    let [own, nested] = replies;
    let nested = Agent::new("clerk")
        .model(ScriptedModel::new(nested))
        .tool(Tool::dynamic("pay", "Pays.", schema(&["cents"]), pay).non_strict())
        .tool(Tool::dynamic("mail", "Mails.", schema(&["to"]), mail).non_strict().needs_approval());
    Agent::new("boss").model(ScriptedModel::new(own)).tools(edit(nested.as_tool("ask_clerk", "Asks.")))
}

/// Returns the saved text of a run whose nested agent has paid and waits for the approval of its mail.
async fn pause_nested(paid: &Arc<AtomicUsize>, edit: impl Fn(Tool) -> Tool) -> String {
    let own = vec![ScriptedResponse::call("a", "ask_clerk", json!({ "input": "account 4111-canary" }))];
    let nested = vec![
        ScriptedResponse::call("n1", "pay", json!({ "cents": 500 })),
        ScriptedResponse::call("n2", "mail", json!({ "to": 7 })),
    ];
    let agent = caller_agent(paid, &edit, [own, nested]);
    let mut result = agent.run("pay").await.expect("the run goes on");
    for _ in 0..2 {
        let mut paused = result.into_paused().expect("a call waits");
        let waiting = paused.pending_calls()[0].path.to_string();
        if waiting == "a/n2" {
            paused.approve(&*waiting).expect("it waits");
            return paused.to_text();
        }
        paused.approve_edited(&*waiting, r#"{"input":"another account"}"#).expect("it waits");
        result = agent.resume(paused).await.expect("the run goes on");
    }
    panic!("the mail waits");
}

/// Resumes the run in another process, whose build may differ, and returns its final text.
async fn resume_nested(paid: &Arc<AtomicUsize>, text: &str, edit: impl FnOnce(Tool) -> Tool) -> String {
    let replies = [vec![ScriptedResponse::text("done")], vec![ScriptedResponse::text("paid and mailed")]];
    let agent = caller_agent(paid, edit, replies);
    let paused = PausedRun::from_text(text).expect("it is whole");
    let result = agent.resume(paused).await.expect("the run goes on");
    assert_eq!(settled_statuses(&result), vec![CallStatus::Succeeded; 3]);
    let mut outputs = result.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) => Some(settled.output.text().into_owned()),
        _ => None,
    });
    outputs.next_back().expect("the agent's call has settled")
}

#[tokio::test]
async fn a_nested_agent_goes_on_without_its_secret_arguments() {
    let paid = Arc::new(AtomicUsize::new(0));
    let secret = |tool: Tool| tool.secret_arguments(["input"]);
    let text = pause_nested(&paid, secret).await;
    assert!(!text.contains("4111-canary"), "the secret is not kept");
    assert_eq!(resume_nested(&paid, &text, secret).await, "paid and mailed");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_nested_agent_goes_on_though_its_secret_arguments_need_a_guardrail() {
    let paid = Arc::new(AtomicUsize::new(0));
    let guarded = |tool: Tool| {
        let reject = |_| async { Ok(ToolGuardrailVerdict::RejectCall("No.".to_owned())) };
        tool.secret_arguments(["input"]).input_guardrail(ToolInputGuardrail::new("never", reject))
    };
    let text = pause_nested(&paid, |tool| tool.secret_arguments(["input"])).await;
    assert_eq!(resume_nested(&paid, &text, guarded).await, "paid and mailed");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_nested_agent_goes_on_though_its_edited_arguments_fit_no_more() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Order {
        /// The number of the order.
        order: u64,
    }
    let paid = Arc::new(AtomicUsize::new(0));
    let text = pause_nested(&paid, Tool::needs_approval).await;
    let numbered =
        |tool: Tool| tool.needs_approval().agent_input(|order: &Order| format!("order {}", order.order));
    assert_eq!(resume_nested(&paid, &text, numbered).await, "paid and mailed");
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}
