//! Saved runs of every version of the format are not only read: they are gone on with, and end.

#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use windlass::core::{FORMAT_VERSION, HoldReason, Record, from_text, time, to_text};
use windlass::prelude::*;
use windlass::{Effect, MemoryStore};

/// What bodies did to the world.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Vec<String>>>);

impl World {
    fn does(&self, what: String) -> String {
        self.0.lock().expect("nobody panics").push(what.clone());
        what
    }

    fn did(&self) -> Vec<String> {
        let mut did = self.0.lock().expect("nobody panics").clone();
        did.sort();
        did
    }
}

/// Looks somebody up.
#[tool(effect = pure)]
async fn look(ctx: &ToolContext<World>, name: String) -> String {
    ctx.does(format!("looked for {name}"))
}

/// Prints a page.
#[tool(effect = idempotent)]
async fn print(ctx: &ToolContext<World>, page: u32) -> String {
    ctx.does(format!("printed page {page}"))
}

/// Pays somebody.
#[tool(approve = always)]
async fn pay(ctx: &ToolContext<World>, to: String, cents: u64) -> String {
    ctx.does(format!("paid {to} {cents}"))
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Transfer {
    cents: u64,
}

/// Moves money; one movement after another.
fn transfer() -> Tool<World> {
    let body = |ctx: ToolContext<World>, args: Transfer| async move {
        Ok::<String, ToolError>(ctx.does(format!("moved {}", args.cents)))
    };
    Tool::function("transfer", "Moves money.", body)
        .effect(Effect::Once)
        .conflict(|_: &Transfer| "account".to_owned())
}

fn agent(name: &str, replies: impl IntoIterator<Item = Reply>) -> (Agent<World>, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    let agent = Agent::new(name).model(model.clone()).tools((look, print, pay)).tools(transfer());
    (agent, model)
}

fn folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../windlass-core/tests/golden/v{version}"))
}

/// The saved run of that name, in every version of the format.
fn golden(name: &str) -> Vec<String> {
    let path = |version| folder(version).join(format!("{name}.windlass"));
    let read = |version| std::fs::read_to_string(path(version)).expect("every version has one");
    (1..=FORMAT_VERSION).map(read).collect()
}

fn restore(text: &str) -> Paused {
    Paused::from_text(text).expect("a golden file opens")
}

#[tokio::test]
async fn a_paused_run_is_decided_about_and_ends() {
    for text in golden("paused") {
        let world = World::default();
        let (desk, model) = agent("desk", [Reply::text("Bo has his money.")]);
        let mut paused = restore(&text);
        let waiting: Vec<String> = paused.pending().iter().map(|call| call.path.to_string()).collect();
        assert_eq!(waiting, ["c2", "c3"]);
        paused.decide_as("ann");
        paused.approve("c2").expect("it waits");
        paused.reject_because("c3", "Not today.").expect("it waits");
        let outcome = desk.resume_with(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.text(), "Bo has his money.");
        assert_eq!(world.did(), ["paid Bo 500"], "the call that was done is not done again");
        let seen = model.requests()[0].input_text();
        assert_eq!(seen[4..], ["output c1 Bo is known.", "output c2 paid Bo 500", "output c3 Not today."]);
        let verified = time::verify_text(&outcome.record().to_text()).expect("the chain goes on");
        let who: Vec<_> = verified.decisions.iter().map(|ruling| ruling.by.as_deref()).collect();
        assert_eq!(who, [Some("ann"), Some("ann")]);
    }
}

#[tokio::test]
async fn a_paused_run_may_be_decided_about_in_two_sittings() {
    for text in golden("paused") {
        let world = World::default();
        let (desk, _) = agent("desk", [Reply::text("Both have their money.")]);
        let mut paused = restore(&text);
        paused.approve("c3").expect("it waits");
        let outcome = desk.resume_with(paused, world.clone()).await.expect("the run goes on");
        let mut paused = restore(&outcome.paused().expect("one call still waits").to_text());
        assert_eq!(world.did(), ["paid Ada 900"]);
        paused.approve("c2").expect("it waits");
        let outcome = desk.resume_with(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.text(), "Both have their money.");
        assert_eq!(world.did(), ["paid Ada 900", "paid Bo 500"]);
    }
}

#[tokio::test]
async fn a_nested_paused_run_ends() {
    for text in golden("nested") {
        let world = World::default();
        let (clerk, _) = agent("clerk", [Reply::text("Invoice 9 is settled.")]);
        let (office, model) = agent("office", [Reply::text("All is settled.")]);
        let office = office.tools((clerk.as_tool("books", "Keeps the books."),));
        let mut paused = restore(&text);
        paused.approve("c1/p1").expect("it waits");
        let outcome = office.resume_with(paused, world.clone()).await.expect("the run ends");
        assert_eq!(outcome.text(), "All is settled.");
        assert_eq!(world.did(), ["paid Bo 900"]);
        assert_eq!(model.requests()[0].input_text()[2], "output c1 Invoice 9 is settled.");
    }
}

#[tokio::test]
async fn a_crashed_run_ends_and_does_nothing_twice() {
    let happened: fn(&mut Paused) = |paused| paused.it_happened("c3", "moved 5000").expect("it is in doubt");
    let did_not: fn(&mut Paused) = |paused| paused.it_did_not_happen("c3").expect("it is in doubt");
    let nobody: fn(&mut Paused) = |paused| paused.nobody_knows("c3").expect("it is in doubt");
    let again = ["looked for Bo", "printed page 1"];
    let cases: [(fn(&mut Paused), &[&str]); 3] =
        [(happened, &["moved 1"]), (did_not, &["moved 1", "moved 5000"]), (nobody, &["moved 1"])];
    for text in golden("crashed") {
        for (decide, moved) in cases {
            let world = World::default();
            let (bank, model) = agent("bank", [Reply::text("Bo has the money.")]);
            let outcome = bank.resume_with(restore(&text), world.clone()).await.expect("the run goes on");
            let mut paused = outcome.paused().expect("nothing that must not happen twice runs by itself");
            assert_eq!(world.did(), again, "what may run again did");
            let waiting: Vec<_> =
                paused.pending().iter().map(|call| (call.path.to_string(), call.reason.clone())).collect();
            assert_eq!(
                waiting,
                [("c3".to_owned(), HoldReason::InDoubt)],
                "and what follows it waits with it"
            );
            decide(&mut paused);
            let outcome =
                bank.resume_with(restore(&paused.to_text()), world.clone()).await.expect("the run ends");
            assert_eq!(outcome.text(), "Bo has the money.");
            assert_eq!(world.did(), [&again[..1], moved, &again[1..]].concat());
            let outputs =
                model.requests()[0].input_text().iter().filter(|line| line.starts_with("output")).count();
            assert_eq!(outputs, 4, "every call has one output");
        }
    }
}

#[tokio::test]
async fn a_forked_run_ends_in_a_store_of_its_own() {
    for text in golden("forked") {
        let (desk, model) = agent("desk", [Reply::text("Bo: 7 €.")]);
        let store = Arc::new(MemoryStore::default());
        let resumed = desk.resume_with(restore(&text), World::default()).store(store);
        assert_eq!(resumed.await.expect("the run ends").text(), "Bo: 7 €.");
        assert!(model.requests()[0].input_text().contains(&"output c1 Bo owes 7 €.".to_owned()));
    }
}

#[tokio::test]
async fn a_run_can_be_gone_on_with_from_any_of_its_records() {
    for text in golden("finished") {
        let records = from_text(&text).expect("it is a saved run");
        for upto in 1..=records.len() {
            let (desk, _) = agent("desk", [Reply::text("Bo: 5 €. Ada: nothing.")]);
            let paused = restore(&to_text(&records[..upto]));
            let outcome = desk.resume_with(paused, World::default()).await.expect("the run ends");
            assert_eq!(outcome.text(), "Bo: 5 €. Ada: nothing.", "from record {upto} on");
        }
    }
}

#[test]
fn every_prefix_of_every_golden_file_opens() {
    for version in 1..=FORMAT_VERSION {
        for file in std::fs::read_dir(folder(version)).expect("every version has golden files") {
            let path = file.expect("the folder can be read").path();
            if path.extension().is_none_or(|extension| extension != "windlass") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let records: Vec<Record> = from_text(&text).expect("it is a saved run");
            for upto in 1..=records.len() {
                let paused = restore(&to_text(&records[..upto]));
                assert_eq!(paused.record().journal(), &records[..upto], "{}", path.display());
            }
        }
    }
}
