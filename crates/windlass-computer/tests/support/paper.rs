//! A computer of paper, and runs that use it.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::core::{Content, Item, OutputContent, RunId};
use windlass::model::{Display, Reply, ScriptedModel};
use windlass::{Agent, Outcome, Tool};
use windlass_computer::{
    Button, Chord, Computer, ComputerError, ComputerProvider, ComputerTool, Doing, Point, Region, Screenshot,
};

/// A PNG of one pixel.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// A computer that writes down what it is asked.
#[derive(Clone, Default)]
pub(crate) struct Paper {
    pub(crate) lines: Arc<Mutex<Vec<String>>>,
    pub(crate) pictures: Arc<AtomicUsize>,
    pub(crate) hangs: bool,
}

impl Paper {
    fn write(&self, line: String) -> Doing<'static, ()> {
        self.lines.lock().expect("no panic").push(line);
        std::future::ready(Ok(())).boxed()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
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
        assert_ne!(text, "panic", "this computer breaks");
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
pub(crate) struct Stack {
    pub(crate) paper: Paper,
    pub(crate) made: Arc<AtomicUsize>,
    pub(crate) disposed: Arc<AtomicUsize>,
}

impl Stack {
    pub(crate) fn counts(&self) -> (usize, usize) {
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

pub(crate) fn click(x: u32, y: u32) -> Value {
    json!({ "type": "click", "x": x, "y": y, "button": "left" })
}

pub(crate) fn call(id: &str, actions: Value) -> Reply {
    Reply::call(id, "computer", json!({ "actions": actions }))
}

pub(crate) fn checked(id: &str) -> Reply {
    let checks = json!([{ "id": "sc1", "code": "malicious_instructions", "message": "look out" }]);
    Reply::call(id, "computer", json!({ "actions": [click(1, 2)], "pending_safety_checks": checks }))
}

pub(crate) fn agent(tool: &ComputerTool, replies: impl IntoIterator<Item = Reply>) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    let tool: Tool = tool.tool();
    (Agent::new("clerk").model(model.clone()).tools(tool), model)
}

pub(crate) fn output(outcome: &Outcome, call: &str) -> OutputContent {
    let found = outcome.record().items().into_iter().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == call => Some(output.content.clone()),
        _ => None,
    });
    found.expect("the call has an output")
}

pub(crate) fn pictures(items: &[Arc<Item>]) -> usize {
    let parts = items.iter().filter_map(|item| match &**item {
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => Some(parts),
            OutputContent::Text(_) => None,
        },
        _ => None,
    });
    parts.flatten().filter(|part| matches!(part, Content::Image(_))).count()
}
