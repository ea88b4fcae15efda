//! Tools that a source gives: asked for every turn, found by the name that the model knows and decided about by
//! their identity.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::ToolKey;
use windlass::model::{Answer, Deltas, ModelError, ModelLayer, ModelRequest, NextModel};
use windlass::prelude::*;
use windlass::run::LoopPolicy;
use windlass::tool::{SourceRequest, SourcedTools, ToolSource};
use windlass::{ConfigError, RunError};

/// Gives the list that it holds.
#[derive(Clone)]
struct Shelf(Arc<ShelfInner>);

struct ShelfInner {
    now: Mutex<Result<SourcedTools<()>, String>>,
    asked: AtomicUsize,
    taken: Mutex<Vec<String>>,
}

impl Shelf {
    fn of(tools: Vec<Tool>, warnings: &[&str]) -> Self {
        let now = Mutex::new(Ok(sourced(tools, warnings)));
        Self(Arc::new(ShelfInner { now, asked: AtomicUsize::new(0), taken: Mutex::default() }))
    }

    fn put(&self, now: Result<SourcedTools<()>, String>) {
        *self.0.now.lock().expect("is whole") = now;
    }
}

fn sourced(tools: Vec<Tool>, warnings: &[&str]) -> SourcedTools<()> {
    SourcedTools {
        tools: tools.into_iter().map(Arc::new).collect(),
        warnings: warnings.iter().map(|&warning| warning.to_owned()).collect(),
    }
}

impl ToolSource<()> for Shelf {
    fn tools<'a>(&'a self, asked: SourceRequest<'a, ()>) -> BoxFuture<'a, Result<SourcedTools<()>, String>> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        let taken = asked.taken.iter().map(|name| name.to_string()).collect();
        *self.0.taken.lock().expect("is whole") = taken;
        let now = self.0.now.lock().expect("is whole").clone();
        async move { now }.boxed()
    }
}

fn remote(offered: &str, server: &str, name: &str) -> Tool {
    let said = format!("{server} did {name}");
    let schema = json!({ "type": "object", "properties": {}, "x-kept": [1, 2] });
    Tool::dynamic(offered, "Far away.", schema, move |_, _| {
        let said = said.clone();
        async move { Ok::<_, String>(said) }
    })
    .non_strict()
    .of_mcp_server(server, name)
}

/// Here.
#[tool(effect = pure)]
async fn near() -> String {
    "near".to_owned()
}

fn agent(model: &ScriptedModel, shelf: &Shelf) -> Agent {
    Agent::new("desk").model(model.clone()).tools((near,)).tool_source(shelf.clone())
}

#[tokio::test]
async fn a_tool_of_a_source_is_called_by_its_offered_name() {
    let model = ScriptedModel::new([
        Reply::call("c1", "files_read", json!({})),
        Reply::call("c2", "near", json!({})),
        Reply::text("done"),
    ]);
    let shelf = Shelf::of(vec![remote("files_read", "files", "read")], &[]);
    let outcome = agent(&model, &shelf).run("go").await.expect("the run ends well");
    assert_eq!(outcome.text(), "done");
    let requests = model.requests();
    assert_eq!(requests[0].tools, ["near", "files_read"]);
    let told = requests[1].input_text();
    assert_eq!(told.last().map(String::as_str), Some("output c1 files did read"));
    assert_eq!(shelf.0.asked.load(Ordering::Relaxed), 3, "it is asked before every turn");
    assert_eq!(*shelf.0.taken.lock().expect("is whole"), ["near"]);
}

#[tokio::test]
async fn a_decision_belongs_to_the_identity_and_not_to_the_name() {
    let asks = |offered: &str, server: &str| remote(offered, server, "read").approve_always();
    let model = ScriptedModel::new([
        Reply::call("c1", "read", json!({})),
        Reply::call("c2", "read", json!({})),
        Reply::text("done"),
    ]);
    let shelf = Shelf::of(vec![asks("read", "files")], &[]);
    let agent = agent(&model, &shelf);
    let outcome = agent.run("go").await.expect("it pauses");
    let Outcome::Paused(mut paused) = outcome else { panic!("it should wait: {outcome:?}") };
    let pending = paused.pending();
    assert_eq!(pending[0].tool, ToolKey::Mcp { server: "files".into(), name: "read".into() });
    paused.approve_always("c1").expect("it waits");
    // The same name, another server: what was approved for good was not this.
    let paused = Paused::from_text(&paused.to_text()).expect("it is whole");
    shelf.put(Ok(sourced(vec![asks("read_of_files", "files"), asks("read", "elsewhere")], &[])));
    let outcome = agent.resume(paused).await.expect("it pauses again");
    let Outcome::Paused(paused) = outcome else { panic!("it should wait: {outcome:?}") };
    let tools: Vec<String> = paused.pending().iter().map(|pending| pending.tool.to_string()).collect();
    assert_eq!(tools, ["mcp:elsewhere/read"]);
}

#[tokio::test]
async fn a_saved_call_whose_tool_is_gone_stops_before_anything_runs() {
    let model = ScriptedModel::new([Reply::call("c1", "read", json!({}))]);
    let shelf = Shelf::of(vec![remote("read", "files", "read").approve_always()], &[]);
    let agent = agent(&model, &shelf);
    let Outcome::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
        panic!("it should wait")
    };
    paused.approve("c1").expect("it waits");
    shelf.put(Ok(sourced(vec![remote("read", "elsewhere", "read")], &[])));
    let error = agent.resume(paused).await.expect_err("another server's tool is another tool");
    assert!(matches!(error, RunError::Config(ConfigError::ToolGone { .. })), "{error}");
}

#[tokio::test]
async fn warnings_are_told_once_for_each_list() {
    let model = ScriptedModel::new([
        Reply::call("c1", "near", json!({})),
        Reply::call("c2", "near", json!({})),
        Reply::text("done"),
    ]);
    let shelf = Shelf::of(Vec::new(), &["server `files` is not there"]);
    let mut stream = agent(&model, &shelf).run("go").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::Warning { message } = event.kind {
            warnings.push(message);
        }
    }
    assert_eq!(warnings, ["server `files` is not there"]);
}

#[tokio::test]
async fn collisions_and_failures_of_sources_are_errors_of_the_set_up() {
    let model = ScriptedModel::new([Reply::text("done")]);
    let shelf = Shelf::of(vec![remote("near", "files", "near")], &[]);
    let error = agent(&model, &shelf).run("go").await.expect_err("two tools answer to `near`");
    assert!(
        matches!(&error, RunError::Config(ConfigError::Collision { name, .. }) if name == "near"),
        "{error}"
    );
    shelf.put(Err("nobody is there".to_owned()));
    let error = agent(&model, &shelf).run("go").await.expect_err("the source failed");
    assert_eq!(error.to_string(), "the tools of agent `desk` cannot be had: nobody is there");
}

/// Notes where the offered tools are in memory.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<Vec<(usize, usize)>>>);

impl ModelLayer for Places {
    fn answer<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a Deltas,
        next: NextModel<'a>,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        let tools = request.tools;
        assert_eq!(tools.last().map(|tool| &tool.parameters["x-kept"]), Some(&json!([1, 2])));
        self.0.lock().expect("is whole").push((tools.as_ptr().addr(), tools.len()));
        next.answer(request, deltas)
    }
}

#[tokio::test]
async fn the_same_list_is_worked_out_once() {
    let replies = (0..20).map(|at| Reply::call(&format!("c{at}"), "near", json!({})));
    let model = ScriptedModel::new(replies.chain([Reply::text("done")]));
    let tools = (0..500).map(|at| remote(&format!("t{at}"), "wide", &format!("t{at}"))).collect();
    let shelf = Shelf::of(tools, &[]);
    let places = Places::default();
    let run = agent(&model, &shelf).run("go").max_turns(30).loops(LoopPolicy { warn: 100, stop: 100 });
    run.around_model(places.clone()).await.expect("the run ends well");
    let places = places.0.lock().expect("is whole").clone();
    assert_eq!(places.len(), 21);
    assert!(places.iter().all(|place| *place == (places[0].0, 501)), "the same offer every turn: {places:?}");
}
