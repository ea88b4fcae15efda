//! A computer that records its operations, and helpers for runs that use it.

#![allow(dead_code, reason = "each test file uses only some helpers")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass::core::{
    id::RunId,
    item::{ContentPart, Item, OutputContent},
};
use windlass::model::{ComputerDisplay, ScriptedModel, ScriptedResponse};
use windlass::{agent::Agent, run::RunResult, tool::Tool};
use windlass_computer::{
    Computer, ComputerError, ComputerFuture, ComputerProvider, ComputerTool, KeyChord, MouseButton,
    ScreenPoint, ScreenRegion, ScreenTarget, Screenshot, TargetPlace,
};

/// A PNG of one pixel.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// A computer that records the operations it receives.
#[derive(Clone, Default)]
pub(crate) struct RecordingComputer {
    pub(crate) operations: Arc<Mutex<Vec<String>>>,
    pub(crate) screenshot_count: Arc<AtomicUsize>,
    pub(crate) hangs: bool,
    /// The element at every place, which descriptions name.
    pub(crate) element: Arc<Mutex<Option<String>>>,
    /// Elements that take its place, one before each screenshot.
    pub(crate) later_elements: Arc<Mutex<VecDeque<String>>>,
    /// Fingerprints of descriptions, one after the other and again from the first.
    pub(crate) fingerprints: Arc<Mutex<VecDeque<String>>>,
}

impl RecordingComputer {
    fn record(&self, line: String) -> ComputerFuture<'static, ()> {
        self.operations.lock().expect("no panic").push(line);
        std::future::ready(Ok(())).boxed()
    }

    pub(crate) fn show_element(&self, element: &str) {
        *self.element.lock().expect("no panic") = Some(element.to_owned());
    }

    pub(crate) fn operations(&self) -> Vec<String> {
        self.operations.lock().expect("no panic").clone()
    }
}

impl Computer for RecordingComputer {
    fn display(&self) -> ComputerDisplay {
        ComputerDisplay { width: 100, height: 50, environment: "linux".to_owned() }
    }

    fn screenshot(&self) -> ComputerFuture<'_, Screenshot> {
        let number = self.screenshot_count.fetch_add(1, Ordering::Relaxed);
        if let Some(later) = self.later_elements.lock().expect("no panic").pop_front() {
            self.show_element(&later);
        }
        // Screenshots differ, so that none is deduplicated.
        std::future::ready(Ok(Screenshot::from_base64(format!("{PIXEL}{number:04}")))).boxed()
    }

    fn zoom(&self, _: ScreenRegion) -> ComputerFuture<'_, Screenshot> {
        self.screenshot()
    }

    fn cursor_position(&self) -> ComputerFuture<'_, ScreenPoint> {
        std::future::ready(Ok(ScreenPoint { x: 1, y: 2 })).boxed()
    }

    fn move_to<'a>(&'a self, to: ScreenPoint, _: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.record(format!("move {to}"))
    }

    fn click<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        _: MouseButton,
        times: u32,
        _: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        let at = at.unwrap_or_default();
        if self.hangs {
            self.operations.lock().expect("no panic").push(format!("click {at} {times}"));
            return std::future::pending().boxed();
        }
        self.record(format!("click {at} {times}"))
    }

    fn mouse_down(&self, _: MouseButton) -> ComputerFuture<'_, ()> {
        self.record("press".to_owned())
    }

    fn mouse_up(&self, _: MouseButton) -> ComputerFuture<'_, ()> {
        self.record("release".to_owned())
    }

    fn drag<'a>(&'a self, path: &'a [ScreenPoint], _: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.record(format!("drag {}", path.len()))
    }

    fn scroll<'a>(
        &'a self,
        _: Option<ScreenPoint>,
        right: i32,
        down: i32,
        _: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        self.record(format!("scroll {right} {down}"))
    }

    fn type_text<'a>(&'a self, text: &'a str) -> ComputerFuture<'a, ()> {
        assert_ne!(text, "panic", "this computer breaks");
        if text == "fail" {
            return std::future::ready(Err(ComputerError::Failed("the keyboard is stuck".to_owned())))
                .boxed();
        }
        self.record(format!("type {text}"))
    }

    fn press_keys<'a>(&'a self, chord: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.record(format!("keys {chord}"))
    }

    fn hold_keys<'a>(&'a self, chord: &'a KeyChord, _: Duration) -> ComputerFuture<'a, ()> {
        self.record(format!("hold {chord}"))
    }

    fn describe_target(&self, _: TargetPlace) -> ComputerFuture<'_, ScreenTarget> {
        let element = self.element.lock().expect("no panic").clone();
        let fingerprint = self.fingerprints.lock().expect("no panic").front().cloned();
        self.fingerprints.lock().expect("no panic").rotate_left(fingerprint.iter().len());
        std::future::ready(Ok(ScreenTarget { element, fingerprint, ..ScreenTarget::default() })).boxed()
    }

    fn take_notices(&self) -> Vec<String> {
        vec!["a note".to_owned()]
    }
}

/// A provider that counts the computers it creates and disposes of.
#[derive(Clone, Default)]
pub(crate) struct RecordingComputerProvider {
    pub(crate) computer: RecordingComputer,
    pub(crate) created: Arc<AtomicUsize>,
    pub(crate) disposed: Arc<AtomicUsize>,
    /// The last computer that was created, if anything still holds it.
    pub(crate) last: Arc<Mutex<Option<std::sync::Weak<dyn Computer>>>>,
}

impl RecordingComputerProvider {
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.created.load(Ordering::SeqCst), self.disposed.load(Ordering::SeqCst))
    }
}

impl ComputerProvider for RecordingComputerProvider {
    fn display(&self) -> ComputerDisplay {
        self.computer.display()
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        self.created.fetch_add(1, Ordering::SeqCst);
        let computer: Arc<dyn Computer> = Arc::new(self.computer.clone());
        *self.last.lock().expect("no panic") = Some(Arc::downgrade(&computer));
        std::future::ready(Ok(computer)).boxed()
    }

    fn dispose(&self, _: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        self.disposed.fetch_add(1, Ordering::SeqCst);
        std::future::ready(()).boxed()
    }
}

pub(crate) fn click_action(x: u32, y: u32) -> Value {
    json!({ "type": "click", "x": x, "y": y, "button": "left" })
}

pub(crate) fn computer_call(id: &str, actions: Value) -> ScriptedResponse {
    ScriptedResponse::call(id, "computer", json!({ "actions": actions }))
}

pub(crate) fn call_with_safety_check(id: &str) -> ScriptedResponse {
    let checks = json!([{ "id": "sc1", "code": "malicious_instructions", "message": "look out" }]);
    ScriptedResponse::call(
        id,
        "computer",
        json!({ "actions": [click_action(1, 2)], "pending_safety_checks": checks }),
    )
}

pub(crate) fn agent_with_tool(
    tool: &ComputerTool,
    replies: impl IntoIterator<Item = ScriptedResponse>,
) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies);
    let tool: Tool = tool.screen_tool();
    (Agent::new("clerk").model(model.clone()).tools(tool), model)
}

pub(crate) fn output_of(outcome: &RunResult, call: &str) -> OutputContent {
    let found = outcome.record().run_items().into_iter().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == call => Some(output.content.clone()),
        _ => None,
    });
    found.expect("the call has an output")
}

pub(crate) fn image_count(items: &[Arc<Item>]) -> usize {
    let parts = items.iter().filter_map(|item| match &**item {
        Item::Output(output) => match &output.content {
            OutputContent::Parts(parts) => Some(parts),
            OutputContent::Text(_) => None,
        },
        _ => None,
    });
    parts.flatten().filter(|part| matches!(part, ContentPart::Image(_))).count()
}
