//! The tool in runs: what is asked before anything happens, whose computer it is, and what is kept.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::core::{Content, Effect, Entry, Item, OutputContent, RunId, Work};
use windlass::model::{Display, Reply, ScriptedModel};
use windlass::store::{MemoryStore, Store};
use windlass::{Agent, Outcome, Tool};
use windlass_computer::{
    Acknowledgement, Action, Button, Chord, Computer, ComputerError, ComputerProvider, ComputerTool, Doing,
    Film, InDoubt, Judged, OnPause, Point, Region, Screenshot, recent_screenshots,
};

/// A PNG of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// A computer that writes down what it is asked.
#[derive(Clone, Default)]
struct Paper {
    lines: Arc<Mutex<Vec<String>>>,
    pictures: Arc<AtomicUsize>,
    hangs: bool,
}

impl Paper {
    fn write(&self, line: String) -> Doing<'static, ()> {
        self.lines.lock().expect("no panic").push(line);
        std::future::ready(Ok(())).boxed()
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").clone()
    }
}

impl Computer for Paper {
    fn display(&self) -> Display {
        Display { width: 100, height: 50, environment: "linux".to_owned() }
    }

    fn screenshot(&self) -> Doing<'_, Screenshot> {
        let number = self.pictures.fetch_add(1, Ordering::Relaxed);
        // Pictures that differ, so that none is taken for another.
        std::future::ready(Ok(Screenshot::of_base64(format!("{PIXEL}{number:04}")))).boxed()
    }

    fn zoom(&self, _: Region) -> Doing<'_, Screenshot> {
        self.screenshot()
    }

    fn cursor(&self) -> Doing<'_, Point> {
        std::future::ready(Ok(Point { x: 1, y: 2 })).boxed()
    }

    fn move_to<'a>(&'a self, to: Point, _: &'a Chord) -> Doing<'a, ()> {
        self.write(format!("move {to}"))
    }

    fn click<'a>(&'a self, at: Option<Point>, _: Button, times: u32, _: &'a Chord) -> Doing<'a, ()> {
        let at = at.unwrap_or_default();
        if self.hangs {
            self.lines.lock().expect("no panic").push(format!("click {at} {times}"));
            return std::future::pending().boxed();
        }
        self.write(format!("click {at} {times}"))
    }

    fn press(&self, _: Button) -> Doing<'_, ()> {
        self.write("press".to_owned())
    }

    fn release(&self, _: Button) -> Doing<'_, ()> {
        self.write("release".to_owned())
    }

    fn drag<'a>(&'a self, path: &'a [Point], _: &'a Chord) -> Doing<'a, ()> {
        self.write(format!("drag {}", path.len()))
    }

    fn scroll<'a>(&'a self, _: Option<Point>, right: i32, down: i32, _: &'a Chord) -> Doing<'a, ()> {
        self.write(format!("scroll {right} {down}"))
    }

    fn type_text<'a>(&'a self, text: &'a str) -> Doing<'a, ()> {
        if text == "fail" {
            return std::future::ready(Err(ComputerError::Failed("the keyboard is stuck".to_owned())))
                .boxed();
        }
        self.write(format!("type {text}"))
    }

    fn keys<'a>(&'a self, chord: &'a Chord) -> Doing<'a, ()> {
        self.write(format!("keys {chord}"))
    }

    fn hold<'a>(&'a self, chord: &'a Chord, _: Duration) -> Doing<'a, ()> {
        self.write(format!("hold {chord}"))
    }

    fn notes(&self) -> Vec<String> {
        vec!["a note".to_owned()]
    }
}

/// Makes sheets of paper, and counts them.
#[derive(Clone, Default)]
struct Stack {
    paper: Paper,
    made: Arc<AtomicUsize>,
    disposed: Arc<AtomicUsize>,
}

impl Stack {
    fn counts(&self) -> (usize, usize) {
        (self.made.load(Ordering::SeqCst), self.disposed.load(Ordering::SeqCst))
    }
}

impl ComputerProvider for Stack {
    fn display(&self) -> Display {
        self.paper.display()
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        self.made.fetch_add(1, Ordering::SeqCst);
        let computer: Arc<dyn Computer> = Arc::new(self.paper.clone());
        std::future::ready(Ok(computer)).boxed()
    }

    fn dispose(&self, _: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        self.disposed.fetch_add(1, Ordering::SeqCst);
        std::future::ready(()).boxed()
    }
}

fn click(x: u32, y: u32) -> Value {
    json!({ "type": "click", "x": x, "y": y, "button": "left" })
}

fn call(id: &str, actions: Value) -> Reply {
    Reply::call(id, "computer", json!({ "actions": actions }))
}

fn checked(id: &str) -> Reply {
    let checks = json!([{ "id": "sc1", "code": "malicious_instructions", "message": "look out" }]);
    Reply::call(id, "computer", json!({ "actions": [click(1, 2)], "pending_safety_checks": checks }))
}

fn agent(tool: &ComputerTool, replies: impl IntoIterator<Item = Reply>) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    let tool: Tool = tool.tool();
    (Agent::new("clerk").model(model.clone()).tools(tool), model)
}

fn output(outcome: &Outcome, call: &str) -> OutputContent {
    let found = outcome.record().items().into_iter().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == call => Some(output.content.clone()),
        _ => None,
    });
    found.expect("the call has an output")
}

fn pictures(items: &[Arc<Item>]) -> usize {
    let parts = items.iter().filter_map(|item| match &**item {
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => Some(parts),
            OutputContent::Text(_) => None,
        },
        _ => None,
    });
    parts.flatten().filter(|part| matches!(part, Content::Image(_))).count()
}

#[tokio::test]
async fn actions_happen_in_order_and_a_picture_follows() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let actions = json!([
        click(10, 20), { "type": "type", "text": "hello" }, { "type": "keypress", "keys": ["CTRL", "s"] },
        { "type": "drag", "path": [{ "x": 1, "y": 1 }, { "x": 2, "y": 2 }] },
        { "type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 50 },
    ]);
    let anthropic = Reply::call("c2", "computer", json!({ "action": "double_click", "coordinate": [3, 4] }));
    let (agent, model) = agent(&tool, [call("c1", actions), anthropic, Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(
        paper.lines(),
        ["click (10, 20) 1", "type hello", "keys Control+s", "drag 2", "scroll 0 50", "click (3, 4) 2"]
    );
    assert_eq!(pictures(&model.requests()[2].input), 2, "one picture for each call");
    assert!(output(&outcome, "c1").text().contains("a note"));
}

#[tokio::test]
async fn looking_is_pure_and_acting_is_once() {
    let tool = ComputerTool::given(Arc::new(Paper::default()));
    let look = json!([{ "type": "screenshot" }, { "type": "wait", "ms": 1 }]);
    let both = json!([{ "type": "screenshot" }, click(1, 1)]);
    let (agent, _) = agent(&tool, [call("c1", look), call("c2", both), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    let planned = outcome.record().journal().iter().filter_map(|record| match &record.entry {
        Entry::Answered(answered) => answered.calls.first().map(|call| call.work.clone()),
        _ => None,
    });
    let effects: Vec<_> = planned
        .filter_map(|work| match work {
            Work::Body { effect, .. } => Some(effect),
            _ => None,
        })
        .collect();
    assert_eq!(effects, [Effect::Pure, Effect::Once]);
}

#[tokio::test]
async fn what_is_outside_the_screen_or_over_the_limit_does_not_happen() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone())).limit(2);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let replies = [
        call("c1", json!([click(1, 1), click(100, 1)])),
        call("c2", json!([click(1, 1)])),
        call("c3", json!([click(2, 2), click(3, 3)])),
        call("c4", json!([{ "type": "screenshot" }])),
        call("c5", json!([click(4, 4)])),
        Reply::text("done"),
    ];
    let (agent, _) = agent(&tool, replies);
    let outcome = agent.run("go").store(store).await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 1) 1", "click (4, 4) 1"]);
    let outside = output(&outcome, "c1").text().into_owned();
    assert!(outside.contains("`actions[1]`") && outside.contains("100 by 50"), "{outside}");
    let over = output(&outcome, "c3").text().into_owned();
    assert!(over.contains("may take 2 actions and has taken 1"), "{over}");
}

#[tokio::test]
async fn the_application_sees_every_action_before_it_happens() {
    let paper = Paper::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (told, drawn) = (seen.clone(), paper.clone());
    let tool = ComputerTool::given(Arc::new(paper.clone())).judge(move |proposed| {
        let so_far = drawn.lines().len();
        told.lock().expect("no panic").push(format!(
            "{} {}/{} after {so_far}, {} taken, {} in a minute",
            proposed.action, proposed.place, proposed.of, proposed.taken, proposed.last_minute
        ));
        async move {
            match proposed.action {
                Action::Type { text } if text == "secret" => Judged::Refuse("no secrets".to_owned()),
                Action::Type { text } if text == "panic" => panic!("the check fails"),
                _ => Judged::Allow,
            }
        }
    });
    let replies = [
        call("c1", json!([click(1, 2), { "type": "screenshot" }])),
        call("c2", json!([click(3, 4), { "type": "type", "text": "secret" }])),
        call("c3", json!([{ "type": "type", "text": "panic" }])),
        Reply::text("done"),
    ];
    let (agent, _) = agent(&tool, replies);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 2) 1"], "one refusal withholds the whole call");
    assert_eq!(
        *seen.lock().expect("no panic"),
        [
            "click at (1, 2) 0/2 after 0, 0 taken, 0 in a minute",
            "screenshot 1/2 after 0, 0 taken, 0 in a minute",
            "click at (3, 4) 0/2 after 1, 1 taken, 1 in a minute",
            "type 6 characters 1/2 after 1, 1 taken, 1 in a minute",
            "type 5 characters 0/1 after 1, 1 taken, 1 in a minute",
        ]
    );
    assert!(output(&outcome, "c2").text().contains("no secrets"));
}

#[tokio::test]
async fn safety_checks_need_the_application_or_a_person() {
    // Nobody is there to say: the run waits, and nothing happens.
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let (first, model) = agent(&tool, [checked("c1"), Reply::text("done")]);
    let mut paused = first.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert!(paper.lines().is_empty());
    paused.approve("c1").expect("a person approves");
    let outcome = first.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 2) 1"]);
    let OutputContent::Parts(parts) = output(&outcome, "c1") else { panic!("parts") };
    let acknowledged = parts.iter().find_map(|part| match part {
        Content::Unknown(carried) => Some((carried.kind.as_str(), carried.raw[0]["id"].clone())),
        _ => None,
    });
    assert_eq!(acknowledged, Some(("acknowledged_safety_checks", json!("sc1"))));
    assert_eq!(model.requests().len(), 2);

    // A person rejects.
    let (second, _) = agent(&tool, [checked("c1"), Reply::text("done")]);
    let mut paused = second.run("go").await.expect("the run pauses").paused().expect("it waits");
    paused.reject("c1").expect("a person rejects");
    second.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 1);

    // The application acknowledges, or refuses.
    for (acknowledges, clicks) in [(true, 2), (false, 2)] {
        let tool = tool.clone().acknowledge(move |check| async move {
            assert_eq!(check.code.as_deref(), Some("malicious_instructions"));
            match acknowledges {
                true => Acknowledgement::Acknowledged,
                false => Acknowledgement::Refused("too risky".to_owned()),
            }
        });
        let (agent, _) = agent(&tool, [checked("c1"), Reply::text("done")]);
        let outcome = agent.run("go").await.expect("the run ends");
        assert_eq!(paper.lines().len(), clicks);
        assert_eq!(output(&outcome, "c1").text().contains("too risky"), !acknowledges);
    }
}

#[tokio::test]
async fn a_person_decides_where_the_rule_says_so() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()))
        .approve_if(|actions| actions.iter().any(|action| matches!(action, Action::Type { .. })));
    let typing = json!([{ "type": "type", "text": "hello" }]);
    let (agent, _) =
        agent(&tool, [call("c1", json!([click(1, 1)])), call("c2", typing), Reply::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
    assert_eq!(paper.lines(), ["click (1, 1) 1"]);
    paused.approve("c2").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 2);
}

#[tokio::test]
async fn a_failure_says_how_far_it_came_and_shows_the_screen() {
    let paper = Paper::default();
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let actions = json!([click(1, 1), { "type": "type", "text": "fail" }, click(2, 2)]);
    let (agent, model) = agent(&tool, [call("c1", actions), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert_eq!(paper.lines(), ["click (1, 1) 1"]);
    let text = output(&outcome, "c1").text().into_owned();
    assert!(text.contains("`actions[1]` (type) failed: the keyboard is stuck; the 1 before it"), "{text}");
    assert_eq!(pictures(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn an_action_that_does_not_end_is_given_up() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone())).within(Duration::from_millis(50));
    let look = json!([{ "type": "screenshot" }]);
    let (agent, model) =
        agent(&tool, [call("c1", look), call("c2", json!([click(1, 1)])), Reply::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    assert!(output(&outcome, "c2").text().contains("did not answer within"));
    assert_eq!(pictures(&model.requests()[2].input), 2, "the last good picture is shown again");
}

#[tokio::test]
async fn a_run_disposes_of_the_computer_that_it_made() {
    let stack = Stack::default();
    let tool = ComputerTool::made_by(stack.clone());
    let (ends, _) =
        agent(&tool, [call("c1", json!([click(1, 1)])), call("c2", json!([click(2, 2)])), Reply::text("ok")]);
    ends.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (1, 1), "one for the whole run");
    let (fails, _) = agent(&tool, [call("c1", json!([click(1, 1)]))]);
    fails.run("go").await.expect_err("the script is over");
    assert_eq!(stack.counts(), (2, 2));
    let (idle, _) = agent(&tool, [Reply::text("ok")]);
    idle.run("go").await.expect("the run ends");
    assert_eq!(stack.counts(), (2, 2), "a run that does not use it makes none");

    // Two runs at once have two.
    let (first, _) = agent(&tool, [call("c1", json!([click(1, 1)])), Reply::text("ok")]);
    let (second, _) = agent(&tool, [call("c1", json!([click(1, 1)])), Reply::text("ok")]);
    let (first, second) = tokio::join!(first.run("go").into_future(), second.run("go").into_future());
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(stack.counts(), (4, 4));

    // One that is cancelled in the middle of an action.
    let hanging = Stack { paper: Paper { hangs: true, ..Paper::default() }, ..Stack::default() };
    let (hangs, _) = agent(&ComputerTool::made_by(hanging.clone()), [call("c1", json!([click(1, 1)]))]);
    let run = hangs.run("go");
    let cancel = run.cancel_handle();
    let (outcome, ()) = tokio::join!(run.into_future(), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.now();
    });
    let Outcome::Cancelled(cancelled) = outcome.expect("the run settles") else { panic!("cancelled") };
    assert_eq!(cancelled.settlement.in_doubt.len(), 1, "the click may have happened");
    assert_eq!(hanging.counts(), (1, 1));
}

#[tokio::test]
async fn a_paused_run_keeps_its_computer_or_gets_a_new_one() {
    for (on_pause, while_paused, at_end) in [
        (OnPause::Dispose, (1, 1), (2, 2)),
        (OnPause::KeepFor(Duration::from_secs(60)), (1, 0), (1, 1)),
        (OnPause::KeepFor(Duration::ZERO), (1, 1), (2, 2)),
    ] {
        let stack = Stack::default();
        let tool = ComputerTool::made_by(stack.clone()).on_pause(on_pause);
        let (agent, _) = agent(&tool, [call("c1", json!([click(1, 1)])), checked("c2"), Reply::text("ok")]);
        let mut paused = agent.run("go").await.expect("the run pauses").paused().expect("it waits");
        support::soon(async || stack.counts() == while_paused).await;
        assert_eq!(stack.counts(), while_paused, "{on_pause:?}");
        paused.approve("c2").expect("a person approves");
        agent.resume(paused).await.expect("the run ends");
        assert_eq!(stack.counts(), at_end, "{on_pause:?}");
        assert_eq!(stack.paper.lines().len(), 2);
    }
}

#[tokio::test]
async fn pictures_are_kept_once_and_the_model_sees_the_newest() {
    let tool = ComputerTool::given(Arc::new(Paper::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let look = |id: &str| call(id, json!([{ "type": "screenshot" }]));
    let (agent, model) = agent(&tool, [look("c1"), look("c2"), look("c3"), look("c4"), Reply::text("done")]);
    let run = agent.run("go").store(store.clone()).input_filter(recent_screenshots(2));
    let outcome = run.await.expect("the run ends");
    let shown: Vec<_> = model.requests().iter().map(|request| pictures(&request.input)).collect();
    assert_eq!(shown, [0, 1, 2, 2, 2]);
    assert!(!outcome.record().to_text().contains(PIXEL), "the journal names pictures");
    let film = Film::of(outcome.record().journal(), Some(&*store)).await.expect("the store answers");
    assert_eq!(film.frames.len(), 4, "the journal keeps them all");
    assert!(film.frames.iter().all(|frame| frame.picture.is_some()));
    let page = film.to_html("A <film>");
    assert_eq!(page.matches("<img").count(), 4);
    assert!(page.contains("A &lt;film&gt;") && page.contains("screenshot"));
}

/// The process ended after the start of a call was written: that is what its journal says.
async fn crashed_in_the_middle(tool: &ComputerTool, paper: &Paper) -> (Agent, ScriptedModel, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (agent, model) = agent(tool, [call("c1", json!([click(7, 7)])), Reply::text("done")]);
    let run = agent.run("go").store(store.clone()).run_id("crash").drain(Duration::from_millis(20));
    let handle = run.cancel_handle();
    // Handing over leaves a call that does not end as started, as a crash would.
    let (outcome, ()) = tokio::join!(run.into_future(), async {
        support::soon(async || !paper.lines().is_empty()).await;
        handle.hand_over();
    });
    assert!(matches!(outcome, Ok(Outcome::HandedOver(_))), "{outcome:?}");
    (agent, model, store)
}

#[tokio::test]
async fn a_click_that_was_interrupted_is_never_clicked_again_blindly() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone()));
    let (agent, _, store) = crashed_in_the_middle(&tool, &paper).await;
    let recovered = agent.recover("crash", store).await.expect("it is recovered");
    let mut paused = recovered.paused().expect("a person must say");
    assert_eq!(paper.lines().len(), 1, "nobody clicked again");
    paused.it_happened("c1", "it was clicked").expect("a person says so");
    assert_eq!(agent.resume(paused).await.expect("the run ends").text(), "done");
    assert_eq!(paper.lines().len(), 1);
}

#[tokio::test]
async fn or_the_model_is_shown_the_screen_and_told_that_nobody_knows() {
    let paper = Paper { hangs: true, ..Paper::default() };
    let tool = ComputerTool::given(Arc::new(paper.clone())).in_doubt(InDoubt::ShowModel);
    let (agent, model, store) = crashed_in_the_middle(&tool, &paper).await;
    let outcome = agent.recover("crash", store).await.expect("the run ends");
    assert_eq!(outcome.text(), "done");
    assert_eq!(paper.lines().len(), 1, "nobody clicked again");
    assert!(output(&outcome, "c1").text().contains("is not done again"));
    assert_eq!(pictures(&model.requests()[1].input), 1);
}

#[tokio::test]
async fn the_limit_outlasts_the_process() {
    let paper = Paper::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // Another process has another tool, which knows nothing but what the store does.
    let tool = || ComputerTool::given(Arc::new(paper.clone())).limit(3);
    let (first, _) = agent(&tool(), [call("c1", json!([click(1, 1), click(2, 2)])), checked("c2")]);
    let mut paused =
        first.run("go").store(store.clone()).await.expect("the run pauses").paused().expect("it waits");
    paused.approve("c2").expect("a person approves");
    let (second, _) = agent(&tool(), [call("c3", json!([click(3, 3)])), Reply::text("done")]);
    let outcome = second.resume(paused).store(store).await.expect("the run ends");
    assert_eq!(paper.lines().len(), 3);
    assert!(output(&outcome, "c3").text().contains("may take 3 actions and has taken 3"));
}
