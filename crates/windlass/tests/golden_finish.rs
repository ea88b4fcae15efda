//! Saved runs of every format version can be read, resumed and finished.

#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use windlass::core::{
    decision::HoldReason,
    inspect,
    journal::{FORMAT_VERSION, JournalRecord, decode_journal, encode_journal},
};
use windlass::prelude::*;
use windlass::{core::tool::ToolEffect, session::Session, store::MemoryStore};

/// A log of the actions that tool bodies performed.
#[derive(Clone, Default)]
struct ActionLog(Arc<Mutex<Vec<String>>>);

impl ActionLog {
    fn record_action(&self, what: String) -> String {
        self.0.lock().expect("nobody panics").push(what.clone());
        what
    }

    fn sorted_actions(&self) -> Vec<String> {
        let mut did = self.0.lock().expect("nobody panics").clone();
        did.sort();
        did
    }
}

/// Looks somebody up.
#[tool(effect = pure)]
async fn look(ctx: &ToolContext<ActionLog>, name: String) -> String {
    ctx.record_action(format!("looked for {name}"))
}

/// Prints a page.
#[tool(effect = idempotent)]
async fn print(ctx: &ToolContext<ActionLog>, page: u32) -> String {
    ctx.record_action(format!("printed page {page}"))
}

/// Pays somebody.
#[tool(needs_approval = always)]
async fn pay(ctx: &ToolContext<ActionLog>, to: String, cents: u64) -> String {
    ctx.record_action(format!("paid {to} {cents}"))
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct TransferArgs {
    cents: u64,
}

/// Creates the transfer tool, whose calls all have the same conflict key.
fn transfer_tool() -> Tool<ActionLog> {
    let body = |ctx: ToolContext<ActionLog>, args: TransferArgs| async move {
        Ok::<String, ToolError>(ctx.record_action(format!("moved {}", args.cents)))
    };
    Tool::function("transfer", "Moves money.", body)
        .effect(ToolEffect::Once)
        .conflict_key(|_: &TransferArgs| "account".to_owned())
}

fn scripted_agent(
    name: &str,
    replies: impl IntoIterator<Item = ScriptedResponse>,
) -> (Agent<ActionLog>, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    let agent = Agent::new(name).model(model.clone()).tools((look, print, pay)).tools(transfer_tool());
    (agent, model)
}

fn golden_folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../windlass-core/tests/golden/v{version}"))
}

/// Returns the saved run of that name in every format version.
fn golden_texts(name: &str) -> Vec<String> {
    let path = |version| golden_folder(version).join(format!("{name}.windlass"));
    let read = |version| std::fs::read_to_string(path(version)).expect("every version has one");
    (1..=FORMAT_VERSION).map(read).collect()
}

fn restore_paused(text: &str) -> PausedRun {
    PausedRun::from_text(text).expect("a golden file opens")
}

#[tokio::test]
async fn a_paused_run_is_decided_about_and_ends() {
    for text in golden_texts("paused") {
        let world = ActionLog::default();
        let (desk, model) = scripted_agent("desk", [ScriptedResponse::text("Bo has his money.")]);
        let mut paused = restore_paused(&text);
        let waiting: Vec<String> = paused.pending_calls().iter().map(|call| call.path.to_string()).collect();
        assert_eq!(waiting, ["c2", "c3"]);
        paused.decide_as("ann");
        paused.approve("c2").expect("it waits");
        paused.reject_because("c3", "Not today.").expect("it waits");
        let outcome = desk.resume_with_context(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.output_text().expect("the run finished"), "Bo has his money.");
        assert_eq!(world.sorted_actions(), ["paid Bo 500"], "the call that was done is not done again");
        let seen = model.requests()[0].input_text();
        assert_eq!(seen[4..], ["output c1 Bo is known.", "output c2 paid Bo 500", "output c3 Not today."]);
        let verified = inspect::verify_text(&outcome.record().to_text()).expect("the chain goes on");
        let who: Vec<_> = verified.decisions.iter().map(|ruling| ruling.decided_by.as_deref()).collect();
        assert_eq!(who, [Some("ann"), Some("ann")]);
    }
}

#[tokio::test]
async fn a_paused_run_may_be_decided_about_in_two_sittings() {
    for text in golden_texts("paused") {
        let world = ActionLog::default();
        let (desk, _) = scripted_agent("desk", [ScriptedResponse::text("Both have their money.")]);
        let mut paused = restore_paused(&text);
        paused.approve("c3").expect("it waits");
        let outcome = desk.resume_with_context(paused, world.clone()).await.expect("the run goes on");
        let mut paused = restore_paused(&outcome.into_paused().expect("one call still waits").to_text());
        assert_eq!(world.sorted_actions(), ["paid Ada 900"]);
        paused.approve("c2").expect("it waits");
        let outcome = desk.resume_with_context(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.output_text().expect("the run finished"), "Both have their money.");
        assert_eq!(world.sorted_actions(), ["paid Ada 900", "paid Bo 500"]);
    }
}

#[tokio::test]
async fn a_nested_paused_run_ends() {
    for text in golden_texts("nested") {
        let world = ActionLog::default();
        let (clerk, _) = scripted_agent("clerk", [ScriptedResponse::text("Invoice 9 is settled.")]);
        let (office, model) = scripted_agent("office", [ScriptedResponse::text("All is settled.")]);
        let office = office.tools((clerk.as_tool("books", "Keeps the books."),));
        let mut paused = restore_paused(&text);
        paused.approve("c1/p1").expect("it waits");
        let outcome = office.resume_with_context(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.output_text().expect("the run finished"), "All is settled.");
        assert_eq!(world.sorted_actions(), ["paid Bo 900"]);
        assert_eq!(model.requests()[0].input_text()[2], "output c1 Invoice 9 is settled.");
    }
}

#[tokio::test]
async fn a_crashed_run_ends_and_does_nothing_twice() {
    let happened: fn(&mut PausedRun) =
        |paused| paused.confirm_executed("c3", "moved 5000").expect("it is in doubt");
    let did_not: fn(&mut PausedRun) = |paused| paused.confirm_not_executed("c3").expect("it is in doubt");
    let nobody: fn(&mut PausedRun) = |paused| paused.mark_outcome_unknown("c3").expect("it is in doubt");
    let again = ["looked for Bo", "printed page 1"];
    let cases: [(fn(&mut PausedRun), &[&str]); 3] =
        [(happened, &["moved 1"]), (did_not, &["moved 1", "moved 5000"]), (nobody, &["moved 1"])];
    for text in golden_texts("crashed") {
        for (decide, moved) in cases {
            let world = ActionLog::default();
            let (bank, model) = scripted_agent("bank", [ScriptedResponse::text("Bo has the money.")]);
            let outcome = bank
                .resume_with_context(restore_paused(&text), world.clone())
                .await
                .expect("the run goes on");
            let mut paused =
                outcome.into_paused().expect("nothing that must not happen twice runs by itself");
            assert_eq!(world.sorted_actions(), again, "what may run again did");
            let waiting: Vec<_> = paused
                .pending_calls()
                .iter()
                .map(|call| (call.path.to_string(), call.reason.clone()))
                .collect();
            assert_eq!(
                waiting,
                [("c3".to_owned(), HoldReason::InDoubt)],
                "and what follows it waits with it"
            );
            decide(&mut paused);
            let outcome = bank
                .resume_with_context(restore_paused(&paused.to_text()), world.clone())
                .await
                .expect("the run ends");
            assert_eq!(outcome.output_text().expect("the run finished"), "Bo has the money.");
            assert_eq!(world.sorted_actions(), [&again[..1], moved, &again[1..]].concat());
            let outputs =
                model.requests()[0].input_text().iter().filter(|line| line.starts_with("output")).count();
            assert_eq!(outputs, 4, "every call has one output");
        }
    }
}

#[tokio::test]
async fn a_forked_run_ends_in_a_store_of_its_own() {
    for text in golden_texts("forked") {
        let (desk, model) = scripted_agent("desk", [ScriptedResponse::text("Bo: 7 €.")]);
        let store = Arc::new(MemoryStore::default());
        let resumed = desk.resume_with_context(restore_paused(&text), ActionLog::default()).store(store);
        assert_eq!(resumed.await.expect("the run ends").output_text().expect("the run finished"), "Bo: 7 €.");
        assert!(model.requests()[0].input_text().contains(&"output c1 Bo owes 7 €.".to_owned()));
    }
}

#[tokio::test]
async fn a_run_can_be_gone_on_with_from_any_of_its_records() {
    for text in golden_texts("finished") {
        let records = decode_journal(&text).expect("it is a saved run");
        for upto in 1..=records.len() {
            let (desk, _) = scripted_agent("desk", [ScriptedResponse::text("Bo: 5 €. Ada: nothing.")]);
            let paused = restore_paused(&encode_journal(&records[..upto]));
            let session = Session::in_memory("session-7");
            let resumed = desk.resume_with_context(paused, ActionLog::default()).session(&session);
            let outcome = resumed.await.expect("the run ends");
            assert_eq!(
                outcome.output_text().expect("the run finished"),
                "Bo: 5 €. Ada: nothing.",
                "from record {upto} on"
            );
            let told = session.items().await.expect("it can be read");
            let expected = outcome.record().state().input().to_vec();
            assert!(told.starts_with(&expected), "the session lacks the message from record {upto} on");
        }
    }
}

#[test]
fn every_prefix_of_every_golden_file_opens() {
    for version in 1..=FORMAT_VERSION {
        for file in std::fs::read_dir(golden_folder(version)).expect("every version has golden files") {
            let path = file.expect("the folder can be read").path();
            if path.extension().is_none_or(|extension| extension != "windlass") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let records: Vec<JournalRecord> = decode_journal(&text).expect("it is a saved run");
            for upto in 1..=records.len() {
                let paused = restore_paused(&encode_journal(&records[..upto]));
                assert_eq!(paused.record().journal(), &records[..upto], "{}", path.display());
            }
        }
    }
}
