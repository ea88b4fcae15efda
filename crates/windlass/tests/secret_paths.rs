//! A secret is planted on every path on which text leaves a call, and looked for in everything that leaves the process:
//! files of the store, texts, events, sessions, errors in `Debug` and `Display`, and traces.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use windlass::core::canonical::canonical_json;
use windlass::core::decision::{Decision, DecisionScope, PersonQuestion};
use windlass::core::id::RunId;
use windlass::core::item::ContentPart;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::prelude::*;
use windlass::run::{PausedRun, RunBuilder, RunResult};
use windlass::session::{Session, SessionStore};
use windlass::store::{SqliteStore, Store, load_paused, post_decision};
use windlass::tool::{OnFailure, OutputPart, Tool, ToolContext, ToolError};

/// The secret of the model's call. It has characters that JSON escapes.
const CARD: &str = "4111-\"canary\"-1111";
/// The secret that a person puts in its place.
const OTHER_CARD: &str = "5222-canary-2222";

/// Collects every event and span of `tracing`.
#[derive(Clone, Default)]
struct TraceCapture(Arc<Mutex<String>>);

struct FieldWriter<'a>(&'a mut String);

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = writeln!(self.0, "{field}={value:?}");
    }
}

impl tracing::Subscriber for TraceCapture {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut FieldWriter(&mut self.0.lock().expect("not poisoned")));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut FieldWriter(&mut self.0.lock().expect("not poisoned")));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut FieldWriter(&mut self.0.lock().expect("not poisoned")));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A tool with a secret argument, whose body does with it what `how` says.
fn pay_tool() -> Tool {
    let fields = json!({ "card": { "type": "string" }, "how": { "type": "string" } });
    let schema = json!({ "type": "object", "properties": fields, "required": ["card", "how"], "additionalProperties": false });
    Tool::dynamic("pay", "Pays.", schema, |ctx: ToolContext, arguments: Value| async move {
        let card = arguments["card"].as_str().unwrap_or_default().to_owned();
        match arguments["how"].as_str().unwrap_or_default() {
            "echo" => Ok(format!("charged {card}")),
            "echo as JSON" => Ok(arguments.to_string()),
            "long" => Ok(format!("{}{card}", "x".repeat(5_000))),
            "progress" => {
                ctx.report_progress(json!({ "charging": card }));
                Ok("done".to_owned())
            }
            "panic" => panic!("cannot charge {card}"),
            "hidden" => Err(ToolError::hidden(format!("no {card}"))),
            "visible" => Err(ToolError::visible(format!("no {card}"))),
            "question" => Err(ToolError::ask_person(PersonQuestion::new(format!("May I charge {card}?")))),
            _ => Ok(format!("ends with {}", card.chars().last().unwrap_or('?'))),
        }
    })
    .secret_arguments(["card"])
    .max_output_bytes(4_000)
}

fn pay(how: &str) -> ScriptedResponse {
    ScriptedResponse::call("c1", "pay", json!({ "card": CARD, "how": how }))
}

/// Everything that left the process in one scenario.
struct LeakCheck {
    folder: tempfile::TempDir,
    store: Arc<SqliteStore>,
    seen: String,
}

impl LeakCheck {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let store = Arc::new(SqliteStore::open(folder.path().join("till.db")).expect("a new store"));
        Self { folder, store, seen: String::new() }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Runs an agent to its end or pause, and keeps its events, its result and its errors.
    async fn run(&mut self, start: RunBuilder) -> Option<RunResult> {
        let sessions: Arc<dyn SessionStore> = self.store.clone();

        let session = Session::new("desk", sessions);
        let mut stream = start.store(self.store()).session(&session).stream();
        while let Some(event) = stream.next().await {
            // The deltas are the model's own stream, to the process that asked it.
            let is_delta = matches!(
                event.kind,
                RunEventKind::TextDelta { .. }
                    | RunEventKind::ArgumentsDelta { .. }
                    | RunEventKind::ReasoningDelta { .. }
            );
            if !is_delta {
                let _ = writeln!(self.seen, "{event:?}");
            }
        }
        let ended = stream.result().await;
        match ended {
            Ok(result) => {
                // The output of a run is the model's text, for the application that asked for it.
                if !matches!(result, RunResult::Finished(_)) {
                    let _ = writeln!(self.seen, "{result:?}");
                }
                let _ = writeln!(self.seen, "{:?} {}", result.record(), result.record().to_text());
                Some(result)
            }
            Err(error) => {
                let _ = writeln!(self.seen, "{error} {error:?} {error:#?}");
                let text = error.record().map(|record| record.to_text());
                let _ = writeln!(self.seen, "{}", text.unwrap_or_default());
                None
            }
        }
    }

    /// Checks that neither secret is anywhere.
    async fn finish(self, scenario: &str, traces: &TraceCapture) {
        let Self { folder, store, mut seen } = self;
        let sessions: Arc<dyn SessionStore> = store.clone();
        seen.push_str(&Session::new("desk", sessions).export().await.expect("a session"));
        drop(store);
        seen.push_str(&traces.0.lock().expect("not poisoned"));
        seen.push_str(&read_folder(folder.path()));
        for secret in [CARD, OTHER_CARD] {
            // As it is, in JSON, in JSON within JSON, and in `Debug` of these.
            let mut form = secret.to_owned();
            for _ in 0..4 {
                if let Some(at) = seen.find(&form) {
                    let from = seen.floor_char_boundary(at.saturating_sub(300));
                    panic!(
                        "{scenario}: {form} leaves the process: …{}",
                        &seen[from..seen.floor_char_boundary(at + 60)]
                    );
                }
                form = form.replace('\\', "\\\\").replace('"', "\\\"");
            }
        }
        assert!(seen.contains("[secret]"), "{scenario}: the call was recorded without its secret");
    }
}

/// Returns the contents of all files in a folder.
fn read_folder(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let text = files.map(|file| std::fs::read(file.expect("a file").path()).expect("it can be read"));
    text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

fn agent(tool: Tool, replies: impl IntoIterator<Item = ScriptedResponse>) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    (Agent::new("till").model(model.clone()).tool(tool), model)
}

fn paused(result: Option<RunResult>) -> PausedRun {
    match result {
        Some(RunResult::Paused(paused)) => paused,
        other => panic!("it should wait: {other:?}"),
    }
}

#[tokio::test]
async fn whatever_a_body_does_with_a_secret_it_stays_in_the_process() {
    for how in ["echo", "echo as JSON", "long", "progress", "panic", "hidden", "visible", "question", "quiet"]
    {
        for on_failure in [OnFailure::ShowError, OnFailure::FailRun] {
            let traces = TraceCapture::default();
            let _guard = tracing::subscriber::set_default(traces.clone());
            let mut check = LeakCheck::new();
            // The model repeats the secret in its answer, too.
            let answer = ScriptedResponse::text(format!("I charged {CARD} for you"));
            let (agent, model) = agent(pay_tool().on_failure(on_failure), [pay(how), answer]);
            check.run(agent.run("pay")).await;
            if let Some(request) = model.requests().get(1).filter(|_| how == "echo") {
                let input = request.input_text().join("\n");
                assert!(input.contains(&format!("charged {CARD}")), "the model sees it: {input}");
            }
            check.finish(how, &traces).await;
        }
    }
}

/// The body ends after its call has settled and its run has finished.
#[tokio::test]
async fn a_late_end_keeps_its_secret() {
    for how in ["echo", "parts", "cut", "error"] {
        let traces = TraceCapture::default();
        let _guard = tracing::subscriber::set_default(traces.clone());
        let mut check = LeakCheck::new();
        let fields = json!({ "card": { "type": "string" }, "how": { "type": "string" } });
        let schema = json!({ "type": "object", "properties": fields, "required": ["card", "how"], "additionalProperties": false });
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let slow = Tool::dynamic_blocking("pay", "Pays.", schema, move |_: ToolContext, arguments: Value| {
            let waited = gate.lock().expect("not poisoned").recv();
            waited.map_err(|error| ToolError::hidden(error.to_string()))?;
            let card = arguments["card"].as_str().unwrap_or_default();
            let text = format!("charged {card}");
            let parts = |texts: Vec<String>| {
                let part = |text| OutputPart(ContentPart::text(text));
                Ok(texts.into_iter().map(part).collect::<Vec<_>>())
            };
            match how {
                "echo" => parts(vec![text]),
                "parts" => parts(vec!["paid".to_owned(), text]),
                // The limit is inside the secret.
                "cut" => parts(vec![format!("{}{card}", "x".repeat(30))]),
                _ => Err(ToolError::visible(format!("no {card}"))),
            }
        });
        // Long enough for the body to start.
        let slow = slow.secret_arguments(["card"]).timeout(Duration::from_millis(500)).max_output_bytes(40);
        let (agent, _) = agent(slow, [pay(how), ScriptedResponse::text("done")]);
        check.run(agent.run("pay").run_id("run-1")).await;
        release.send(()).expect("the body waits");
        let late = loop {
            let lines = check.store.load_journal(&"run-1".into(), 0).await.expect("it is stored");
            if let Some(line) = lines.iter().find(|line| line.body.contains("call_ended_late")) {
                break line.body.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(late.contains("[secret]"), "{how}: {late}");
        // The beginning of the secret is one, too.
        assert!(!late.contains("4111"), "{how}: {late}");
        check.finish(how, &traces).await;
    }
}

#[tokio::test]
async fn a_call_that_no_body_runs_keeps_its_secret() {
    let card = json!({ "card": CARD, "how": "quiet" });
    let scenarios: [(&str, ScriptedResponse); 6] = [
        ("unknown tool", ScriptedResponse::call("c1", "Pay", card.clone())),
        ("other case", ScriptedResponse::call("c1", "pay", json!({ "CARD": CARD, "how": "quiet" }))),
        (
            "unknown field",
            ScriptedResponse::call("c1", "pay", json!({ "card": CARD, "how": "quiet", "note": CARD })),
        ),
        ("wrong type", ScriptedResponse::call("c1", "pay", json!({ "card": [CARD], "how": 1 }))),
        ("no JSON", ScriptedResponse::text("").and_raw_call("c1", "pay", &format!("{{\"card\": {CARD}"))),
        ("two payloads", pay("quiet").and_call("c1", "pay", json!({ "card": CARD, "how": "echo" }))),
    ];
    for (scenario, reply) in scenarios {
        let traces = TraceCapture::default();
        let _guard = tracing::subscriber::set_default(traces.clone());
        let mut check = LeakCheck::new();
        let (agent, _) = agent(pay_tool(), [reply, ScriptedResponse::text("done")]);
        check.run(agent.run("pay")).await;
        check.finish(scenario, &traces).await;
    }
}

#[tokio::test]
async fn guardrails_that_repeat_a_secret_do_not_store_it() {
    for fails in [false, true] {
        let traces = TraceCapture::default();
        let _guard = tracing::subscriber::set_default(traces.clone());
        let guardrail = ToolInputGuardrail::new("card check", move |ctx: ToolContext| {
            let text = format!("not with {}", ctx.arguments());
            std::future::ready(if fails {
                Err(text.into())
            } else {
                Ok(ToolGuardrailVerdict::RejectCall(text))
            })
        });
        let mut check = LeakCheck::new();
        let (agent, _) =
            agent(pay_tool().input_guardrail(guardrail), [pay("quiet"), ScriptedResponse::text("done")]);
        check.run(agent.run("pay")).await;
        check.finish("guardrail", &traces).await;
    }
}

#[tokio::test]
async fn an_edited_secret_runs_and_is_not_stored() {
    let traces = TraceCapture::default();
    let _guard = tracing::subscriber::set_default(traces.clone());
    let mut check = LeakCheck::new();
    let (agent, model) = agent(pay_tool().needs_approval(), [pay("quiet"), ScriptedResponse::text("done")]);
    let mut paused = paused(check.run(agent.run("pay")).await);
    let edited = json!({ "card": OTHER_CARD, "how": "echo" }).to_string();
    paused.approve_edited("c1", &edited).expect("it waits");
    let text = paused.to_text();
    assert!(!text.contains(OTHER_CARD), "{text}");
    let _ = writeln!(check.seen, "{paused:?} {text}");
    check.run(agent.resume(paused)).await;
    let input = model.requests()[1].input_text().join("\n");
    assert!(input.contains(&format!("charged {OTHER_CARD}")), "the body ran with the edited secret: {input}");
    check.finish("edited", &traces).await;
    // In another process the edited secret is gone, and the call does not run with a placeholder.
    let restored = PausedRun::from_text(&text).expect("it is whole");
    let (there, model) = self::agent(pay_tool().needs_approval(), [ScriptedResponse::text("done")]);
    let asked = there.resume(restored).session(&Session::in_memory("desk")).await.expect("the run waits");
    let mut asked = self::paused(Some(asked));
    let reason = format!("{:?}", asked.pending_calls()[0].reason);
    assert!(reason.contains("Question") && reason.contains("(`card`) were lost"), "{reason}");
    // Its text is read elsewhere, with the answer or without.
    asked.answer_question("c1", json!({ "secret_arguments": { "card": CARD } })).expect("it waits");
    let text = asked.to_text();
    assert!(!text.contains("canary"), "{text}");
    there.resume(asked).session(&Session::in_memory("desk")).await.expect("the run ends");
    let told = model.requests()[0].input_text().join("\n");
    assert!(told.contains(&format!("charged {CARD}")), "the edit stays, with the secret: {told}");
}

#[tokio::test]
async fn an_edit_through_the_store_keeps_the_secret_or_is_refused() {
    let traces = TraceCapture::default();
    let _guard = tracing::subscriber::set_default(traces.clone());
    let mut check = LeakCheck::new();
    let (agent, model) = agent(pay_tool().needs_approval(), [pay("quiet"), ScriptedResponse::text("done")]);
    let run = RunId::from("run-1");
    let paused = paused(check.run(agent.run("pay").run_id(run.clone())).await);
    let edit = |card: &str| Decision::ApproveEdited {
        arguments: json!({ "card": card, "how": "echo" }).to_string(),
    };
    let post = |decision| post_decision(&*check.store, &run, "c1", decision, DecisionScope::ThisCall, "ada");
    let refused = post(edit(OTHER_CARD)).await.expect_err("the store would keep it");
    assert!(refused.to_string().contains("secret arguments cannot be edited through a store"), "{refused}");
    post(edit("[secret]")).await.expect("the secret stays as it is");
    let stored = load_paused(&*check.store, &run).await.expect("it is stored");
    let _ = writeln!(check.seen, "{:?}", stored.pending_calls());
    drop(stored);
    // The driver still has the secret, and runs the edited call with it.
    check.run(agent.resume(paused)).await;
    let input = model.requests()[1].input_text().join("\n");
    assert!(input.contains(&format!("charged {CARD}")), "{input}");
    check.finish("posted edit", &traces).await;
}

/// A tool with a secret argument that the model may leave out, and one in a list.
fn transfer_tool() -> Tool {
    let transfer = json!({
        "type": "object",
        "properties": { "to": { "type": "string" }, "pin": { "type": "string" } },
        "required": ["to"],
    });
    let fields = json!({
        "card": { "type": "string" },
        "transfers": { "type": "array", "items": transfer },
    });
    let schema = json!({ "type": "object", "properties": fields, "required": [] });
    Tool::dynamic("transfer", "Pays.", schema, |_, arguments: Value| async move {
        Ok::<_, String>(format!("paid with {arguments}"))
    })
    .secret_arguments(["card", "transfers.pin"])
    .needs_approval()
}

#[tokio::test]
async fn a_secret_that_an_edit_adds_is_not_stored() {
    let traces = TraceCapture::default();
    let _guard = tracing::subscriber::set_default(traces.clone());
    let mut check = LeakCheck::new();
    let call = ScriptedResponse::call("c1", "transfer", json!({ "transfers": [] }));
    let (agent, model) = agent(transfer_tool(), [call, ScriptedResponse::text("done")]);
    let run = RunId::from("run-1");
    let mut paused = paused(check.run(agent.run("pay").run_id(run.clone())).await);
    let edited = json!({ "card": CARD, "transfers": [{ "to": "A", "pin": OTHER_CARD }] }).to_string();
    let through_store = post_decision(
        &*check.store,
        &run,
        "c1",
        Decision::ApproveEdited { arguments: edited.clone() },
        DecisionScope::ThisCall,
        "ada",
    );
    let refused = through_store.await.expect_err("the store would keep it");
    assert!(refused.to_string().contains("secret arguments cannot be edited through a store"), "{refused}");
    paused.approve_edited("c1", &edited).expect("it waits");
    let text = paused.to_text();
    let _ = writeln!(check.seen, "{paused:?} {text}");
    check.run(agent.resume(paused)).await;
    let input = model.requests()[1].input_text().join("\n");
    assert!(input.contains(OTHER_CARD), "the body ran with the secrets of the edit: {input}");
    check.finish("added by an edit", &traces).await;
    // In another process the call asks for them.
    let restored = PausedRun::from_text(&text).expect("it is whole");
    let (there, _) = self::agent(transfer_tool(), [ScriptedResponse::text("done")]);
    let asked = there.resume(restored).session(&Session::in_memory("desk")).await.expect("the run waits");
    let reason = format!("{:?}", self::paused(Some(asked)).pending_calls()[0].reason);
    assert!(reason.contains("(`card`, `transfers.pin`) were lost"), "{reason}");
}

#[tokio::test]
async fn the_secret_of_a_removed_element_goes_to_no_other() {
    let transfers = json!([{ "to": "A", "pin": CARD }, { "to": "B", "pin": OTHER_CARD }]);
    let call = ScriptedResponse::call("c1", "transfer", json!({ "transfers": transfers }));
    let (agent, model) = agent(transfer_tool(), [call, ScriptedResponse::text("done")]);
    let mut paused = paused(Some(agent.run("pay").await.expect("the run waits")));
    let edited = json!({ "transfers": [{ "to": "B", "pin": "[secret]" }] }).to_string();
    paused.approve_edited("c1", &edited).expect("it waits");
    let mut asked = self::paused(Some(agent.resume(paused).await.expect("the run waits")));
    assert_eq!(model.requests().len(), 1, "the call has not run");
    asked
        .answer_question("c1", json!({ "secret_arguments": { "transfers.pin": OTHER_CARD } }))
        .expect("it waits");
    agent.resume(asked).await.expect("the run ends");
    let input = model.requests()[1].input_text().join("\n");
    assert!(input.contains(OTHER_CARD), "{input}");
    let paid = json!({ "transfers": [{ "to": "B", "pin": OTHER_CARD }] });
    assert!(input.contains(&format!("paid with {}", canonical_json(&paid))), "{input}");
}
