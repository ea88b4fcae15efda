//! A run that is moved as text while an output is withheld: the output is not lost, and nobody who reads the text sees it.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{
    journal::{CallStatus, JournalEntry, JournalFormatError},
    run::model_text,
};
use windlass::error::RestoreError;
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store, load_paused};

const SECRET: &str = "account 4711";

/// An agent whose call `p` has an output guardrail that does not finish before the run is handed over, beside a call `a`
/// that waits for a person.
struct Bank {
    agent: Agent,
    paid: Arc<AtomicU32>,
    is_open: Arc<AtomicBool>,
}

fn bank(verdict: fn() -> ToolGuardrailVerdict) -> Bank {
    let (paid, is_open) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, open) = (paid.clone(), is_open.clone());
    let schema =
        || json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let pay = Tool::dynamic("pay", "Pays.", schema(), move |_: ToolContext, _: Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>(SECRET) }
    })
    .output_guardrail(ToolOutputGuardrail::new("slow", move |_, _| {
        let open = open.clone();
        async move {
            while !open.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(verdict())
        }
    }));
    let ask = Tool::dynamic("ask", "Asks.", schema(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("asked")
    })
    .needs_approval();
    let model = ScriptedModel::new([
        ScriptedResponse::call("p", "pay", json!({})).and_call("a", "ask", json!({})),
        ScriptedResponse::text("Done."),
    ]);
    Bank { agent: Agent::new("teller").model(model).tools((pay, ask)), paid, is_open }
}

/// Drives the run until the output of the payment is withheld, and hands it over.
async fn hand_over(bank: &Bank, store: Option<Arc<dyn Store>>) -> PausedRun {
    let mut run = bank.agent.run("go").run_id("r").drain_timeout(Duration::from_millis(20));
    if let Some(store) = store {
        run = run.store(store);
    }
    let (handle, paid) = (run.cancel_handle(), bank.paid.clone());
    let detach = async move {
        while paid.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        handle.detach();
    };
    let (result, ()) = tokio::join!(run, detach);
    match result.expect("it is handed over") {
        RunResult::Detached(paused) => paused,
        other => panic!("it is handed over: {other:?}"),
    }
}

/// Resumes a run from its text, and returns the status and the output of the payment.
async fn finish(bank: &Bank, text: &str, store: Option<Arc<dyn Store>>) -> (CallStatus, String) {
    bank.is_open.store(true, Ordering::SeqCst);
    let mut paused = PausedRun::from_text(text).expect("it is a saved run");
    paused.approve("a").expect("it waits");
    let mut run = bank.agent.resume(paused);
    if let Some(store) = store {
        run = run.store(store);
    }
    let result = run.await.expect("it finishes");
    assert_eq!(result.output_text().expect("an output"), "Done.");
    let settled = result.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) if settled.call.as_str() == "p" => {
            Some((settled.status.clone(), settled.output.text().into_owned()))
        }
        _ => None,
    });
    settled.expect("the payment settled")
}

fn assert_hidden(text: &str) {
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(!text.contains("4711") && !text.contains(&hex), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_withheld_output_moves_with_the_text() {
    let first: fn() -> Option<Arc<dyn Store>> = || None;
    let stored: fn() -> Option<Arc<dyn Store>> = || Some(Arc::new(MemoryStore::default()));
    for from in [first, stored] {
        for to in [first, stored] {
            let bank = bank(|| ToolGuardrailVerdict::Allow);
            let paused = hand_over(&bank, from()).await;
            let text = paused.to_text();
            assert_hidden(&text);
            assert_hidden(&format!("{paused:?}"));
            // The journal alone, which is what people export, has nothing of it.
            assert_hidden(&paused.record().to_text());
            assert!(!paused.record().to_text().contains("sealed"));
            let (status, output) = finish(&bank, &text, to()).await;
            assert_eq!((status, output.as_str()), (CallStatus::Succeeded, SECRET));
            assert_eq!(bank.paid.load(Ordering::SeqCst), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_moved_output_that_its_guardrail_blocks_is_nowhere() {
    let bank = bank(|| ToolGuardrailVerdict::RejectCall("Not for you.".to_owned()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let text = hand_over(&bank, None).await.to_text();
    let (status, output) = finish(&bank, &text, Some(store.clone())).await;
    assert_eq!((status, output.as_str()), (CallStatus::OutputWithheld, "Not for you."));
    assert_eq!(store.list_withheld_outputs(&"r".into()).await.expect("a list"), []);
    let lines = store.load_journal(&"r".into(), 0).await.expect("a journal");
    lines.iter().for_each(|line| assert_hidden(&line.body));
}

/// The process that resumes the text may die too: its store has the output.
#[tokio::test(start_paused = true)]
async fn a_moved_output_is_in_the_new_store() {
    let bank = bank(|| ToolGuardrailVerdict::Allow);
    let text = hand_over(&bank, None).await.to_text();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut run = Box::pin(
        bank.agent
            .resume(PausedRun::from_text(&text).expect("it is a saved run"))
            .lease_duration(Duration::from_millis(50))
            .store(store.clone()),
    );
    let ended = tokio::time::timeout(Duration::from_millis(200), &mut run).await;
    assert!(ended.is_err(), "its guardrail does not finish");
    drop(run);
    // What a page loads has it too, for another move, and does not show it.
    let loaded = load_paused(&*store, &"r".into()).await.expect("it is stored");
    assert_hidden(&format!("{loaded:?}"));
    let (status, output) = finish(&bank, &loaded.to_text(), None).await;
    assert_eq!((status, output.as_str()), (CallStatus::Succeeded, SECRET));
    assert_eq!(bank.paid.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_text_without_its_sealed_line_says_that_the_call_was_executed() {
    let bank = bank(|| ToolGuardrailVerdict::Allow);
    let paused = hand_over(&bank, None).await;
    let (status, output) = finish(&bank, &paused.record().to_text(), None).await;
    assert_eq!((status, output.as_str()), (CallStatus::OutputWithheld, model_text::OUTPUT_LOST));
    assert_eq!(bank.paid.load(Ordering::SeqCst), 1, "it is not executed again");

    let changed = paused.to_text().replace("sealed ", "sealed 00");
    let refused = PausedRun::from_text(&changed).expect_err("the line was changed");
    let is_sealed =
        matches!(refused, RestoreError::JournalFormat(JournalFormatError::InvalidSealedOutput { index: 0 }));
    assert!(is_sealed, "{refused}");
}
