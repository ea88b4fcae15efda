//! Resources of a run: effects that depend on arguments, stored media, and clean-up callbacks on exit.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{
    item::{ContentPart, Item, MediaSource, OutputContent},
    journal::JournalEntry,
    plan::CallDisposition,
    tool::ToolEffect,
};
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::run::RunExit;
use windlass::session::MemorySessionStore;
use windlass::store::{MemoryStore, Store};
use windlass::tool::{ImagePart, OutputPart, TextPart};
use windlass::{
    agent::Agent,
    artefact::fetch_media,
    run::RunResult,
    session::Session,
    tool::{Tool, ToolContext, ToolError},
};

const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

fn any_object_schema() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn planned_effects(outcome: &RunResult) -> Vec<ToolEffect> {
    let answers = outcome.record().journal().iter().filter_map(|record| match &record.entry {
        JournalEntry::ModelResponded(answered) => Some(&answered.calls),
        _ => None,
    });
    let work = answers.flatten().map(|call| &call.disposition);
    work.filter_map(|work| match work {
        CallDisposition::Execute { effect, .. } => Some(*effect),
        _ => None,
    })
    .collect()
}

#[tokio::test]
async fn the_effect_of_a_call_can_depend_on_its_arguments() {
    let touch =
        Tool::dynamic("touch", "Looks or acts.", any_object_schema(), |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("done")
        })
        .non_strict()
        .effect_by_arguments(|arguments: &Value| match arguments["how"].as_str() {
            Some("look") => ToolEffect::Pure,
            Some("panic") => panic!("the rule fails"),
            _ => ToolEffect::Once,
        });
    let wrong_type =
        Tool::dynamic("other", "Looks.", any_object_schema(), |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("done")
        })
        .non_strict()
        .effect_by_arguments(|_: &String| ToolEffect::Pure);
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "touch", json!({ "how": "look" }))
            .and_call("c2", "touch", json!({ "how": "act" }))
            .and_call("c3", "touch", json!({ "how": "panic" }))
            .and_call("c4", "other", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent = Agent::new("hand").model(model).tools((touch, wrong_type));
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(
        planned_effects(&outcome),
        [ToolEffect::Pure, ToolEffect::Once, ToolEffect::Once, ToolEffect::Once]
    );
}

fn camera_tool() -> Tool {
    Tool::dynamic("look", "Takes a picture.", any_object_schema(), |ctx: ToolContext, _: Value| async move {
        let media = ctx.save_media("image/png", PICTURE).await?;
        Ok::<_, ToolError>((0..1).map(|_| ImagePart(media.clone())).collect::<Vec<_>>())
    })
    .effect(ToolEffect::Pure)
}

fn picture_in(item: &Item) -> Option<MediaSource> {
    let Item::Output(output) = item else { return None };
    let OutputContent::Parts(parts) = &output.content else { return None };
    parts.iter().find_map(|part| match part {
        ContentPart::Image(media) => Some(media.clone()),
        _ => None,
    })
}

#[tokio::test]
async fn the_journal_names_a_picture_and_the_model_sees_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "look", json!({})),
        ScriptedResponse::text("seen"),
        ScriptedResponse::text("again"),
    ]);
    let agent = Agent::new("eye").model(model.clone()).tools(camera_tool());
    let session = Session::new("album", Arc::new(MemorySessionStore::default()));
    let outcome = agent.run("look").store(store.clone()).session(&session).await.expect("the run ends");
    let text = outcome.record().to_text();
    assert!(!text.contains(PICTURE), "the journal holds no bytes");
    let named = outcome.record().history().iter().find_map(|item| picture_in(item)).expect("a picture");
    let url = named.url.expect("an address");
    assert_eq!(fetch_media(&*store, &url).await.expect("the store answers").as_deref(), Some(PICTURE));
    let shown = model.requests()[1].input.iter().find_map(|item| picture_in(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));
    assert_eq!(shown.media_type.as_deref(), Some("image/png"));

    // Another run of the same session finds the picture in the store, by the run that saved it.
    agent.run("and now?").store(store).session(&session).await.expect("the run ends");
    let shown = model.requests()[2].input.iter().find_map(|item| picture_in(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));

    // A run without that store reports the picture as missing instead of sending a useless address.
    model.push(ScriptedResponse::text("blind"));
    agent.run("and now?").session(&session).await.expect("the run ends");
    let lines = model.requests()[3].input_text().join("\n");
    assert!(lines.contains("not kept any more"), "{lines}");
}

#[tokio::test]
async fn without_a_store_a_picture_travels_with_the_journal() {
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", "look", json!({})), ScriptedResponse::text("seen")]);
    let agent = Agent::new("eye").model(model.clone()).tools(camera_tool());
    let outcome = agent.run("look").await.expect("the run ends");
    assert_eq!(outcome.record().to_text().matches(PICTURE).count(), 1);
    let shown = model.requests()[1].input.iter().find_map(|item| picture_in(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));
}

#[tokio::test]
async fn a_failure_can_show_a_picture() {
    let fail = Tool::dynamic("look", "Fails.", any_object_schema(), |_: ToolContext, _: Value| async {
        let media = MediaSource { data: Some(PICTURE.to_owned()), ..MediaSource::default() };
        Err::<(), _>(ToolError::visible("the screen froze").with_attachments(ContentPart::Image(media)))
    });
    let parts = Tool::dynamic("parts", "Any part.", any_object_schema(), |_: ToolContext, _: Value| async {
        let carried = windlass::core::item::OpaqueItem::new("mark", json!([1]));
        let parts =
            vec![OutputPart(ContentPart::Unknown(carried)), OutputPart(ContentPart::text("and text"))];
        let _ = TextPart(String::new());
        Ok::<_, ToolError>(parts)
    });
    let call = ScriptedResponse::call("c1", "look", json!({})).and_call("c2", "parts", json!({}));
    let model = ScriptedModel::new([call, ScriptedResponse::text("seen")]);
    let agent = Agent::new("eye").model(model.clone()).tools((fail, parts));
    agent.run("look").await.expect("the run ends");
    let seen = &model.requests()[1].input;
    assert!(seen.iter().any(|item| picture_in(item).is_some()));
    let lines = model.requests()[1].input_text().join("\n");
    assert!(lines.contains("the screen froze") && lines.contains("and text"), "{lines}");
}

/// A log of the exit callbacks that ran.
#[derive(Clone, Default)]
struct CloseLog(Arc<Mutex<Vec<(String, RunExit)>>>);

impl CloseLog {
    fn opening_tool(&self) -> Tool {
        let told = self.clone();
        Tool::dynamic("open", "Opens.", any_object_schema(), move |ctx: ToolContext, arguments: Value| {
            let told = told.clone();
            async move {
                for name in ["first", "second"] {
                    let told = told.clone();
                    ctx.on_run_exit(move |leaving| async move {
                        told.0.lock().expect("no panic").push((name.to_owned(), leaving));
                    });
                }
                if arguments["then"] == "panic" {
                    panic!("the body fails");
                }
                if arguments["then"] == "hang" {
                    std::future::pending::<()>().await;
                }
                Ok::<_, ToolError>("open")
            }
        })
        .non_strict()
    }

    fn closed(&self) -> Vec<(String, RunExit)> {
        self.0.lock().expect("no panic").clone()
    }
}

fn closed_in_reverse(leaving: RunExit) -> Vec<(String, RunExit)> {
    vec![("second".to_owned(), leaving), ("first".to_owned(), leaving)]
}

#[tokio::test]
async fn what_a_run_opened_is_closed_however_it_ends() {
    for then in ["end", "panic"] {
        let told = CloseLog::default();
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "open", json!({ "then": then })),
            ScriptedResponse::text("ok"),
        ]);
        let agent = Agent::new("door").model(model).tools(told.opening_tool());
        agent.run("go").await.expect("the run ends");
        assert_eq!(told.closed(), closed_in_reverse(RunExit::Ended), "{then}");
    }
    // The run fails.
    let told = CloseLog::default();
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "open", json!({}))]);
    let agent = Agent::new("door").model(model).tools(told.opening_tool());
    agent.run("go").await.expect_err("the script is over");
    assert_eq!(told.closed(), closed_in_reverse(RunExit::Ended));
    // The run is cancelled while the body hangs.
    let told = CloseLog::default();
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "open", json!({ "then": "hang" }))]);
    let agent = Agent::new("door").model(model).tools(told.opening_tool());
    let run = agent.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = tokio::join!(run, async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    assert!(matches!(outcome.expect("the run settles"), RunResult::Cancelled(_)));
    assert_eq!(told.closed(), closed_in_reverse(RunExit::Ended));
}

#[tokio::test]
async fn a_run_that_pauses_or_is_dropped_is_told_too() {
    let told = CloseLog::default();
    let gated = Tool::dynamic("gated", "Waits.", any_object_schema(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("ran")
    })
    .needs_approval();
    let call = ScriptedResponse::call("c1", "open", json!({})).and_call("c2", "gated", json!({}));
    let agent = Agent::new("door").model(ScriptedModel::new([call])).tools((told.opening_tool(), gated));
    let outcome = agent.run("go").await.expect("the run pauses");
    assert!(outcome.is_paused());
    assert_eq!(told.closed(), closed_in_reverse(RunExit::Paused));

    let told = CloseLog::default();
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "open", json!({ "then": "hang" }))]);
    let agent = Agent::new("door").model(model).tools(told.opening_tool());
    let dropped = tokio::time::timeout(Duration::from_millis(50), agent.run("go")).await;
    dropped.expect_err("it hangs");
    for _ in 0..100 {
        if !told.closed().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(told.closed(), closed_in_reverse(RunExit::Ended));
}

#[tokio::test]
async fn an_agent_inside_a_call_closes_what_it_opened_when_it_ends() {
    let told = CloseLog::default();
    let inner = ScriptedModel::new([
        ScriptedResponse::call("i1", "open", json!({})),
        ScriptedResponse::text("inside is done"),
    ]);
    let inner = Agent::new("inner").model(inner).tools(told.opening_tool());
    let seen = told.clone();
    let look = Tool::dynamic("look", "Looks.", any_object_schema(), move |_: ToolContext, _: Value| {
        let count = seen.closed().len();
        async move { Ok::<_, ToolError>(count.to_string()) }
    });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "ask_inner", json!({ "input": "go" })),
        ScriptedResponse::call("c2", "look", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent = Agent::new("outer").model(model.clone()).tools((inner.as_tool("ask_inner", "Asks."), look));
    agent.run("go").await.expect("the run ends");
    let lines = model.requests()[2].input_text().join("\n");
    assert!(lines.contains("output c2 2"), "closed before the outer run went on: {lines}");
    assert_eq!(told.closed(), closed_in_reverse(RunExit::Ended));
}
