//! Secrets are never persisted, and an output that is too long for the model is stored in full.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{
    item::{ContentPart, OutputContent},
    journal::JournalEntry,
    tool::ToolEffect,
};
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::session::SessionStore;
use windlass::store::{SqliteStore, Store};
use windlass::{
    agent::Agent,
    artefact::read_output,
    run::{PausedRun, RunResult},
    session::Session,
    tool::{ImagePart, OnFailure, OutputPart, ReceiptPolicy, ReceiptScope, Tool, ToolContext, ToolError},
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

/// Note on an output whose secrets were lost with the process that had them.
const LOST: &str =
    "[The call was executed. The secret parts of its output were not kept and are not available any more.]";

/// The ways in which a tool has secrets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SecretPlace {
    Output,
    Arguments,
}

/// A tool that pays once for each order, and counts its payments.
fn order_tool(place: SecretPlace, paid: &Arc<AtomicU32>) -> Tool {
    let paid = paid.clone();
    let tool = Tool::dynamic("pay", "Pays.", pay_schema(), move |_: ToolContext, arguments: Value| {
        paid.fetch_add(1, Ordering::SeqCst);
        let card = arguments["card"].as_str().unwrap_or_default().to_owned();
        async move { Ok::<_, ToolError>(format!("charged {card}")) }
    })
    .effect(ToolEffect::Idempotent);
    match place {
        SecretPlace::Output => tool.secret_output(),
        SecretPlace::Arguments => tool.secret_arguments(["card"]),
    }
}

/// Returns the outputs that a model received with its last request.
fn last_outputs(model: &ScriptedModel) -> Vec<String> {
    let requests = model.requests();
    let input = requests.last().expect("the model was asked").input_text();
    input.into_iter().filter(|item| item.starts_with("output ")).collect()
}

/// The receipt of a call with secrets answers in other runs without them: it says that the call ran, and it does not
/// run again. In the process of the call, identical calls get the output itself.
#[tokio::test]
async fn a_shared_receipt_has_no_secrets_and_says_that_the_call_ran() {
    for (place, known) in [(SecretPlace::Output, "[secret]"), (SecretPlace::Arguments, "charged [secret]")] {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let paid = Arc::new(AtomicU32::new(0));
        let store = Arc::new(SqliteStore::open(folder.path().join("till.db")).expect("a new store"));
        for run in ["first", "second"] {
            let calls = pay_call("c1", 5).and_call("c2", "pay", json!({ "card": CARD, "cents": 5 }));
            let model = ScriptedModel::new([calls, ScriptedResponse::text("done")]);
            let policy = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
            let tool = order_tool(place, &paid).receipt_policy(policy);
            let agent = Agent::new("till").model(model.clone()).tools(tool);
            let ended = agent.run("pay").run_id(run).store(store.clone()).await.expect("the run ends");
            assert_eq!(ended.output_text(), Ok("done"));
            let expected = match run {
                "first" => format!("charged {CARD}"),
                _ => format!("{known}\n{LOST}"),
            };
            let outputs = [format!("output c1 {expected}"), format!("output c2 {expected}")];
            assert_eq!(last_outputs(&model), outputs, "{place:?} {run}");
        }
        drop(store);
        assert_eq!(paid.load(Ordering::SeqCst), 1, "{place:?}");
        let leaked = format!("charged {CARD}");
        assert!(!read_folder(folder.path()).contains(&leaked), "{place:?}");
    }
}

/// A run that is restored from its text has the receipts of its journal.
#[tokio::test]
async fn a_receipt_of_a_restored_run_says_that_the_call_ran() {
    for (place, known) in [(SecretPlace::Output, "[secret]"), (SecretPlace::Arguments, "charged [secret]")] {
        let paid = Arc::new(AtomicU32::new(0));
        let agent = |model: &ScriptedModel| {
            let ask = Tool::dynamic(
                "ask",
                "Asks.",
                json!({ "type": "object" }),
                |_: ToolContext, _: Value| async { Ok::<_, ToolError>("asked") },
            );
            let tools = (order_tool(place, &paid), ask.non_strict().needs_approval());
            Agent::new("till").model(model.clone()).tools(tools)
        };
        let model = ScriptedModel::new([pay_call("c1", 5), ScriptedResponse::call("a", "ask", json!({}))]);
        let paused = agent(&model).run("pay").await.expect("it pauses").into_paused().expect("it waits");
        let mut restored = PausedRun::from_text(&paused.to_text()).expect("it is whole");
        restored.approve("a").expect("it waits");
        let model = ScriptedModel::new([pay_call("c2", 5), ScriptedResponse::text("done")]);
        let ended = agent(&model).resume(restored).await.expect("the run ends");
        assert_eq!(ended.output_text(), Ok("done"));
        let expected = format!("output c2 {known}\n{LOST}");
        assert_eq!(last_outputs(&model).last(), Some(&expected), "{place:?}");
        assert_eq!(paid.load(Ordering::SeqCst), 1, "{place:?}");
    }
}

/// While an output is withheld it is in the file without its secrets, and after its guardrail has blocked it, it is in
/// the file no more.
#[tokio::test]
async fn a_blocked_output_is_erased_from_the_file() {
    const CUSTOMER: &str = "customer-canary-77";
    for length in [10, 100_000] {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().to_owned();
        let seen = Arc::new(Mutex::new(String::new()));
        let noted = seen.clone();
        let tool =
            Tool::dynamic("pay", "Pays.", pay_schema(), move |_: ToolContext, arguments: Value| async move {
                let card = arguments["card"].as_str().unwrap_or_default();
                Ok::<_, ToolError>(format!("{card} {}", CUSTOMER.repeat(length)))
            });
        let tool = tool.secret_arguments(["card"]);
        let tool = tool.output_guardrail(ToolOutputGuardrail::new("blocks", move |_, _| {
            noted.lock().expect("nobody panics with it").push_str(&read_folder(&path));
            async { Ok(ToolGuardrailVerdict::RejectCall("not for the model".to_owned())) }
        }));
        let model = ScriptedModel::new([pay_call("c1", 5), ScriptedResponse::text("done")]);
        let agent = Agent::new("till").model(model.clone()).tools(tool);
        {
            let store = Arc::new(SqliteStore::open(folder.path().join("till.db")).expect("a new store"));
            let ended = agent.run("pay").store(store).await.expect("the run ends");
            assert_eq!(ended.output_text(), Ok("done"));
        }
        // SQLite removes the log when the store is closed, which the tasks of the run may hold for a moment.
        while folder.path().join("till.db-wal").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (during, after) =
            (seen.lock().expect("nobody panics with it").clone(), read_folder(folder.path()));
        assert!(during.contains(CUSTOMER), "a crash during the guardrail loses nothing");
        assert!(!during.contains(CARD), "secrets are in no file");
        assert!(!after.contains(CUSTOMER), "{length}");
    }
}

#[tokio::test]
async fn s56_a_long_output_in_parts_is_cut_like_a_text() {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let log = Tool::dynamic("log", "A long log.", schema, |_: ToolContext, _: Value| async {
        let text = |text: &str| OutputPart(ContentPart::text(text));
        let picture = ContentPart::Image(ImagePart::from_url("https://example.com/a.png").0);
        Ok::<_, ToolError>(vec![text("first"), text("sécond"), OutputPart(picture), text("third")])
    });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "log", json!({})),
        ScriptedResponse::call("c2", "read_output", json!({ "call": "c1", "from": 6, "bytes": null })),
        ScriptedResponse::text("done"),
    ]);
    let tools = vec![log.max_output_bytes(7).effect(ToolEffect::Pure), read_output()];
    let result = Agent::new("reader").model(model.clone()).tools(tools).run("read").await;
    let result = result.expect("the run ends");
    assert_eq!(result.output_text(), Ok("done"));
    let content = result.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::CallSettled(settled) if settled.call == "c1" => Some(settled.output.clone()),
        _ => None,
    });
    let note = "[cut: 6 of 17 bytes are shown; `read_output` reads on with {\"call\": \"c1\", \"from\": 6}]";
    let expected = vec![
        ContentPart::text("first"),
        ContentPart::text("s"),
        ContentPart::Image(ImagePart::from_url("https://example.com/a.png").0),
        ContentPart::text(note),
    ];
    assert_eq!(content, Some(OutputContent::Parts(expected)));
    assert_eq!(last_outputs(&model).last().map(String::as_str), Some("output c2 écondthird"));
}
