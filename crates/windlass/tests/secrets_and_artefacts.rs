//! Secrets are never persisted, and an output that is too long for the model is stored in full.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::tool::ToolEffect;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::session::SessionStore;
use windlass::store::{SqliteStore, Store};
use windlass::{
    agent::Agent,
    artefact::read_output,
    run::{PausedRun, RunResult},
    session::Session,
    tool::{OnFailure, Tool, ToolContext, ToolError},
};

const CARD: &str = "4111-1111-1111-1111";
const CODE: &str = "receipt-code-9931";

fn pay_schema() -> Value {
    let fields = json!({ "card": { "type": "string" }, "cents": { "type": "integer" } });
    json!({ "type": "object", "properties": fields, "required": ["card", "cents"], "additionalProperties": false })
}

fn pay_tool() -> Tool {
    Tool::dynamic("pay", "Pays.", pay_schema(), |_: ToolContext, arguments: Value| async move {
        assert_eq!(arguments["card"], CARD, "the body sees the real arguments");
        if arguments["cents"] == 0 {
            return Err(ToolError::hidden(format!("card {CARD} was refused")));
        }
        Ok(CODE)
    })
    .secret_arguments(["card"])
    .secret_output()
}

fn pay_call(id: &str, cents: u32) -> ScriptedResponse {
    ScriptedResponse::call(id, "pay", json!({ "card": CARD, "cents": cents }))
}

/// Returns the contents of all files in a folder.
fn read_folder(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let text = files.map(|file| std::fs::read(file.expect("a file").path()).expect("it can be read"));
    text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

#[tokio::test]
async fn s55_secrets_are_in_no_file_no_text_and_no_error() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let model = ScriptedModel::new([pay_call("c1", 5), pay_call("c2", 0), ScriptedResponse::text("done")]);
    let agent = Agent::new("till").model(model.clone()).tools(pay_tool().on_failure(OnFailure::ShowError));
    {
        let store = Arc::new(SqliteStore::open(folder.path().join("till.db")).expect("a new store"));
        let (runs, sessions): (Arc<dyn Store>, Arc<dyn SessionStore>) = (store.clone(), store);
        let session = Session::new("desk", sessions);
        let outcome = agent.run("pay").store(runs).session(&session).await.expect("the run ends");
        assert_eq!(outcome.output_text().expect("the run finished"), "done");
        let text = outcome.record().to_text();
        assert!(!text.contains(CARD) && !text.contains(CODE), "{text}");
    }
    let seen = model.requests()[1].input_text().join("\n");
    assert!(seen.contains(CARD) && seen.contains(CODE), "the model sees them, in this process: {seen}");
    let failed = model.requests()[2].input_text().join("\n");
    assert!(failed.contains("card [secret] was refused"), "{failed}");
    let kept = read_folder(folder.path());
    assert!(!kept.contains(CARD) && !kept.contains(CODE), "a secret is on the disk");
}

#[tokio::test]
async fn s55_a_failure_that_ends_the_run_does_not_name_the_secret() {
    let model = ScriptedModel::new([pay_call("c1", 0)]);
    let agent = Agent::new("till").model(model).tools(pay_tool().on_failure(OnFailure::FailRun));
    let error = agent.run("pay").await.expect_err("the tool ends the run");
    assert_eq!(error.to_string(), "tool `pay` failed: card [secret] was refused");
    assert!(!format!("{error:?}").contains(CARD), "{error:?}");
    assert!(!format!("{error:#?}").contains(CARD));
}

/// A field of another spelling is refused by the schema, and must not be recorded either.
#[tokio::test]
async fn s55_a_secret_under_another_spelling_is_not_recorded() {
    for field in ["Card", "CARD", "c_ard", "ca-rd", "card "] {
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "pay", json!({ field: CARD, "cents": 5 })),
            ScriptedResponse::text("done"),
        ]);
        let agent = Agent::new("till").model(model).tools(pay_tool());
        let outcome = agent.run("pay").await.expect("the run ends");
        let text = outcome.record().to_text();
        assert!(text.contains("[secret]") && !text.contains(CARD), "{field}: {text}");
        assert!(!format!("{outcome:?}").contains(CARD), "{outcome:?}");
    }
}

/// Two calls under one id are an error of the model; the journal of that error has no secret.
#[tokio::test]
async fn s55_a_rejected_response_is_recorded_without_its_secrets() {
    let model =
        ScriptedModel::new([pay_call("c1", 5).and_call("c1", "pay", json!({ "card": CARD, "cents": 6 }))]);
    let agent = Agent::new("till").model(model).tools(pay_tool());
    let error = agent.run("pay").await.expect_err("one id stands for two calls");
    let text = error.record().expect("the run has a record").to_text();
    assert!(text.contains("response_rejected") && !text.contains(CARD), "{text}");
    assert!(!format!("{error:?}").contains(CARD), "{error:?}");
}

#[tokio::test]
async fn s55_a_secret_outlasts_a_pause_in_this_process_and_not_on_the_disk() {
    let script = || ScriptedModel::new([pay_call("c1", 5), ScriptedResponse::text("done")]);
    let agent = |model: ScriptedModel| Agent::new("till").model(model).tools(pay_tool().needs_approval());
    let here = script();
    let outcome = agent(here.clone()).run("pay").await.expect("the run pauses");
    let RunResult::Paused(mut paused) = outcome else { panic!("the call waits for a person") };
    let text = paused.to_text();
    assert!(!text.contains(CARD), "{text}");
    paused.approve("c1").expect("it waits");
    assert_eq!(
        agent(here.clone())
            .resume(paused)
            .await
            .expect("the run ends")
            .output_text()
            .expect("the run finished"),
        "done"
    );
    assert!(
        here.requests()[1].input_text().join("\n").contains(CODE),
        "the body ran with the real arguments"
    );
    // Another process has no secret: the call does not run, and a person is asked for it again.
    let mut restored = PausedRun::from_text(&text).expect("what was written can be read");
    restored.approve("c1").expect("it waits");
    let there = ScriptedModel::new([ScriptedResponse::text("done")]);
    let outcome = agent(there.clone()).resume(restored).await.expect("the run waits");
    let RunResult::Paused(mut asked) = outcome else { panic!("a person is asked") };
    // An answer that was read from a text has no secret, so the person is asked once more.
    asked.answer_question("c1", json!({ "secret_arguments": { "card": CARD } })).expect("it waits");
    let text = asked.to_text();
    assert!(!text.contains(CARD), "{text}");
    let read = PausedRun::from_text(&text).expect("what was written can be read");
    let outcome = agent(there.clone()).resume(read).await.expect("the run waits");
    let RunResult::Paused(mut asked) = outcome else { panic!("a person is asked again") };
    assert_eq!(there.requests().len(), 0);
    // An answer that the tool cannot use is asked for again, too.
    asked.answer_question("c1", json!({ "secret_arguments": { "card": 17 } })).expect("it waits");
    let outcome = agent(there.clone()).resume(asked).await.expect("the run waits");
    let RunResult::Paused(mut asked) = outcome else { panic!("a person is asked again") };
    asked.answer_question("c1", json!({ "secret_arguments": { "card": CARD } })).expect("it waits");
    let outcome = agent(there.clone()).resume(asked).await.expect("the run ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "done");
    assert!(
        there.requests()[0].input_text().join("\n").contains(CODE),
        "the body ran with the real arguments"
    );
}

/// The records of a call that waits do not say that its output is secret; its tool does.
#[tokio::test]
async fn s55_the_secret_output_of_a_resumed_call_is_not_recorded() {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let open =
        Tool::dynamic("open", "Opens.", schema, |_: ToolContext, _| async { Ok::<_, ToolError>(CODE) });
    let agent = |model: ScriptedModel| {
        Agent::new("till").model(model).tools(open.clone().secret_output().needs_approval())
    };
    let asked = ScriptedModel::new([ScriptedResponse::call("c1", "open", json!({}))]);
    let outcome = agent(asked).run("open").await.expect("the run pauses");
    let RunResult::Paused(here) = outcome else { panic!("the call waits for a person") };
    let there = PausedRun::from_text(&here.to_text()).expect("what was written can be read");
    for mut paused in [here, there] {
        paused.approve("c1").expect("it waits");
        let model = ScriptedModel::new([ScriptedResponse::text("done")]);
        let outcome = agent(model.clone()).resume(paused).await.expect("the run ends");
        assert!(model.requests()[0].input_text().join("\n").contains(CODE), "the model sees it");
        let text = outcome.record().to_text();
        assert!(text.contains("[secret]") && !text.contains(CODE), "{text}");
    }
}

#[tokio::test]
async fn s56_a_long_output_is_cut_for_the_model_and_kept_whole() {
    const SIZE: usize = 8 * 1024 * 1024;
    let folder = tempfile::tempdir().expect("a folder for the test");
    for with_store in [false, true] {
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        let log = Tool::dynamic("log", "A long log.", schema, |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("é".repeat(SIZE / 2) + "the end")
        });
        let from = SIZE - 2;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "log", json!({})),
            ScriptedResponse::call("c2", "read_output", json!({ "call": "c1", "from": from, "bytes": null })),
            ScriptedResponse::text("done"),
        ]);
        let tools = vec![log.max_output_bytes(101).effect(ToolEffect::Pure), read_output()];
        let agent = Agent::new("reader").model(model.clone()).tools(tools);
        let mut run = agent.run("read");
        if with_store {
            run = run.store(Arc::new(SqliteStore::open(folder.path().join("log.db")).expect("a new store")));
        }
        assert_eq!(run.await.expect("the run ends").output_text().expect("the run finished"), "done");
        let first = model.requests()[1].input_text().pop().expect("the output comes last");
        let note = format!(
            "[cut: 100 of {} bytes are shown; `read_output` reads on with {{\"call\": \"c1\", \"from\": 100}}]",
            SIZE + 7
        );
        assert_eq!(first, format!("output c1 {}\n{note}", "é".repeat(50)));
        let second = model.requests()[2].input_text().pop().expect("the output comes last");
        assert_eq!(second, "output c2 éthe end");
    }
}
