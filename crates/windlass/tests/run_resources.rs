//! What a call says of its own effect, what a run keeps of pictures, and what it closes when it leaves.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::{Content, Effect, Entry, Item, Media, OutputContent, Work};
use windlass::model::{Reply, ScriptedModel};
use windlass::run::Leaving;
use windlass::session::MemorySessions;
use windlass::store::{MemoryStore, Store};
use windlass::tool::{Image, Part, Text};
use windlass::{Agent, Outcome, Session, Tool, ToolContext, ToolError, fetch_media};

const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

fn any() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn planned_effects(outcome: &Outcome) -> Vec<Effect> {
    let answers = outcome.record().journal().iter().filter_map(|record| match &record.entry {
        Entry::Answered(answered) => Some(&answered.calls),
        _ => None,
    });
    let work = answers.flatten().map(|call| &call.work);
    work.filter_map(|work| match work {
        Work::Body { effect, .. } => Some(*effect),
        _ => None,
    })
    .collect()
}

#[tokio::test]
async fn the_effect_of_a_call_can_depend_on_its_arguments() {
    let touch = Tool::dynamic("touch", "Looks or acts.", any(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("done")
    })
    .non_strict()
    .effect_by(|arguments: &Value| match arguments["how"].as_str() {
        Some("look") => Effect::Pure,
        Some("panic") => panic!("the rule fails"),
        _ => Effect::Once,
    });
    let wrong_type = Tool::dynamic("other", "Looks.", any(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("done")
    })
    .non_strict()
    .effect_by(|_: &String| Effect::Pure);
    let model = ScriptedModel::new([
        Reply::call("c1", "touch", json!({ "how": "look" }))
            .and_call("c2", "touch", json!({ "how": "act" }))
            .and_call("c3", "touch", json!({ "how": "panic" }))
            .and_call("c4", "other", json!({})),
        Reply::text("done"),
    ]);
    let agent = Agent::new("hand").model(model).tools((touch, wrong_type));
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(planned_effects(&outcome), [Effect::Pure, Effect::Once, Effect::Once, Effect::Once]);
}

fn camera() -> Tool {
    Tool::dynamic("look", "Takes a picture.", any(), |ctx: ToolContext, _: Value| async move {
        let media = ctx.keep_media("image/png", PICTURE).await?;
        Ok::<_, ToolError>((0..1).map(|_| Image(media.clone())).collect::<Vec<_>>())
    })
    .effect(Effect::Pure)
}

fn picture_of(item: &Item) -> Option<Media> {
    let Item::Output(output) = item else { return None };
    let OutputContent::Parts(parts) = &output.content else { return None };
    parts.iter().find_map(|part| match part {
        Content::Image(media) => Some(media.clone()),
        _ => None,
    })
}

#[tokio::test]
async fn the_journal_names_a_picture_and_the_model_sees_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let model =
        ScriptedModel::new([Reply::call("c1", "look", json!({})), Reply::text("seen"), Reply::text("again")]);
    let agent = Agent::new("eye").model(model.clone()).tools(camera());
    let session = Session::new("album", Arc::new(MemorySessions::default()));
    let outcome = agent.run("look").store(store.clone()).session(&session).await.expect("the run ends");
    let text = outcome.record().to_text();
    assert!(!text.contains(PICTURE), "the journal holds no bytes");
    let named = outcome.record().history().iter().find_map(|item| picture_of(item)).expect("a picture");
    let url = named.url.expect("an address");
    assert_eq!(fetch_media(&*store, &url).await.expect("the store answers").as_deref(), Some(PICTURE));
    let shown = model.requests()[1].input.iter().find_map(|item| picture_of(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));
    assert_eq!(shown.media_type.as_deref(), Some("image/png"));

    // Another run of the same session finds it in the store, by the run that made it.
    agent.run("and now?").store(store).session(&session).await.expect("the run ends");
    let shown = model.requests()[2].input.iter().find_map(|item| picture_of(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));

    // One without that store says so, rather than sending an address that means nothing.
    model.push(Reply::text("blind"));
    agent.run("and now?").session(&session).await.expect("the run ends");
    let lines = model.requests()[3].input_text().join("\n");
    assert!(lines.contains("not kept any more"), "{lines}");
}

#[tokio::test]
async fn without_a_store_a_picture_travels_with_the_journal() {
    let model = ScriptedModel::new([Reply::call("c1", "look", json!({})), Reply::text("seen")]);
    let agent = Agent::new("eye").model(model.clone()).tools(camera());
    let outcome = agent.run("look").await.expect("the run ends");
    assert_eq!(outcome.record().to_text().matches(PICTURE).count(), 1);
    let shown = model.requests()[1].input.iter().find_map(|item| picture_of(item)).expect("a picture");
    assert_eq!(shown.data.as_deref(), Some(PICTURE));
}

#[tokio::test]
async fn a_failure_can_show_a_picture() {
    let fail = Tool::dynamic("look", "Fails.", any(), |_: ToolContext, _: Value| async {
        let media = Media { data: Some(PICTURE.to_owned()), ..Media::default() };
        Err::<(), _>(ToolError::tell("the screen froze").showing(Content::Image(media)))
    });
    let parts = Tool::dynamic("parts", "Any part.", any(), |_: ToolContext, _: Value| async {
        let carried = windlass::core::Carried { kind: "mark".into(), raw: json!([1]) };
        let parts = vec![Part(Content::Unknown(carried)), Part(Content::text("and text"))];
        let _ = Text(String::new());
        Ok::<_, ToolError>(parts)
    });
    let call = Reply::call("c1", "look", json!({})).and_call("c2", "parts", json!({}));
    let model = ScriptedModel::new([call, Reply::text("seen")]);
    let agent = Agent::new("eye").model(model.clone()).tools((fail, parts));
    agent.run("look").await.expect("the run ends");
    let seen = &model.requests()[1].input;
    assert!(seen.iter().any(|item| picture_of(item).is_some()));
    let lines = model.requests()[1].input_text().join("\n");
    assert!(lines.contains("the screen froze") && lines.contains("and text"), "{lines}");
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(String, Leaving)>>>);

impl Told {
    fn tool(&self) -> Tool {
        let told = self.clone();
        Tool::dynamic("open", "Opens.", any(), move |ctx: ToolContext, arguments: Value| {
            let told = told.clone();
            async move {
                for name in ["first", "second"] {
                    let told = told.clone();
                    ctx.at_end(move |leaving| async move {
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

    fn seen(&self) -> Vec<(String, Leaving)> {
        self.0.lock().expect("no panic").clone()
    }
}

fn both(leaving: Leaving) -> Vec<(String, Leaving)> {
    vec![("second".to_owned(), leaving), ("first".to_owned(), leaving)]
}

#[tokio::test]
async fn what_a_run_opened_is_closed_however_it_ends() {
    for then in ["end", "panic"] {
        let told = Told::default();
        let model =
            ScriptedModel::new([Reply::call("c1", "open", json!({ "then": then })), Reply::text("ok")]);
        let agent = Agent::new("door").model(model).tools(told.tool());
        agent.run("go").await.expect("the run ends");
        assert_eq!(told.seen(), both(Leaving::Over), "{then}");
    }
    // The run fails.
    let told = Told::default();
    let model = ScriptedModel::new([Reply::call("c1", "open", json!({}))]);
    let agent = Agent::new("door").model(model).tools(told.tool());
    agent.run("go").await.expect_err("the script is over");
    assert_eq!(told.seen(), both(Leaving::Over));
    // The run is cancelled while the body hangs.
    let told = Told::default();
    let model = ScriptedModel::new([Reply::call("c1", "open", json!({ "then": "hang" }))]);
    let agent = Agent::new("door").model(model).tools(told.tool());
    let run = agent.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = tokio::join!(run.into_future(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.now();
    });
    assert!(matches!(outcome.expect("the run settles"), Outcome::Cancelled(_)));
    assert_eq!(told.seen(), both(Leaving::Over));
}

#[tokio::test]
async fn a_run_that_pauses_or_is_dropped_is_told_too() {
    let told = Told::default();
    let gated = Tool::dynamic("gated", "Waits.", any(), |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("ran")
    })
    .approve_always();
    let call = Reply::call("c1", "open", json!({})).and_call("c2", "gated", json!({}));
    let agent = Agent::new("door").model(ScriptedModel::new([call])).tools((told.tool(), gated));
    let outcome = agent.run("go").await.expect("the run pauses");
    assert!(outcome.is_paused());
    assert_eq!(told.seen(), both(Leaving::Paused));

    let told = Told::default();
    let model = ScriptedModel::new([Reply::call("c1", "open", json!({ "then": "hang" }))]);
    let agent = Agent::new("door").model(model).tools(told.tool());
    let dropped = tokio::time::timeout(Duration::from_millis(50), agent.run("go").into_future()).await;
    dropped.expect_err("it hangs");
    for _ in 0..100 {
        if !told.seen().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(told.seen(), both(Leaving::Over));
}

#[tokio::test]
async fn an_agent_inside_a_call_closes_what_it_opened_when_it_ends() {
    let told = Told::default();
    let inner = ScriptedModel::new([Reply::call("i1", "open", json!({})), Reply::text("inside is done")]);
    let inner = Agent::new("inner").model(inner).tools(told.tool());
    let seen = told.clone();
    let look = Tool::dynamic("look", "Looks.", any(), move |_: ToolContext, _: Value| {
        let count = seen.seen().len();
        async move { Ok::<_, ToolError>(count.to_string()) }
    });
    let model = ScriptedModel::new([
        Reply::call("c1", "ask_inner", json!({ "input": "go" })),
        Reply::call("c2", "look", json!({})),
        Reply::text("done"),
    ]);
    let agent = Agent::new("outer").model(model.clone()).tools((inner.as_tool("ask_inner", "Asks."), look));
    agent.run("go").await.expect("the run ends");
    let lines = model.requests()[2].input_text().join("\n");
    assert!(lines.contains("output c2 2"), "closed before the outer run went on: {lines}");
    assert_eq!(told.seen(), both(Leaving::Over));
}
