//! A browser: Chromium, driven over its DevTools protocol by a pipe.

mod input;
mod launch;
mod page;
mod pipe;
mod sites;
mod state;

pub use sites::{Elsewhere, Sites};

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use windlass::core::RunId;
use windlass::model::Display;

use self::launch::Process;
use self::page::Pages;
use self::pipe::Pipe;
use crate::action::{Answer, Button, Point, Region};
use crate::computer::{Computer, ComputerError, Doing, Screenshot, Tab, Travel};
use crate::key::Chord;
use crate::source::ComputerProvider;

/// How long a browser may take to start.
const STARTING: Duration = Duration::from_secs(60);

/// How a browser is started and what it may do.
#[derive(Clone, Debug)]
pub struct BrowserOptions {
    /// How wide the page is, in pixels.
    pub width: u32,
    /// How high the page is, in pixels.
    pub height: u32,
    /// Whether there is a window to watch.
    pub window: Window,
    /// Which sites it may go to.
    pub sites: Sites,
    /// What pages may have from sites that are not listed.
    pub elsewhere: Elsewhere,
    /// What becomes of dialogs.
    pub dialogs: Dialogs,
    /// What becomes of downloads.
    pub downloads: Downloads,
    /// Where it starts.
    pub start: Option<String>,
    /// How long a page may take to answer, before it counts as hung.
    pub answer_within: Duration,
    /// How long a page that loads is waited for before a picture is taken all the same.
    pub settle_within: Duration,
    /// The program, where it is not found by its usual names.
    pub program: Option<PathBuf>,
    /// Further flags for the program.
    pub flags: Vec<String>,
}

impl Default for BrowserOptions {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            window: Window::default(),
            sites: Sites::default(),
            elsewhere: Elsewhere::default(),
            dialogs: Dialogs::default(),
            downloads: Downloads::default(),
            start: None,
            answer_within: Duration::from_secs(10),
            settle_within: Duration::from_secs(5),
            program: None,
            flags: Vec::new(),
        }
    }
}

/// Whether there is a window to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// There is none.
    #[default]
    Headless,
    /// There is one, on this X11 display, or on that of the process.
    Shown {
        /// Such as `:1`.
        display: Option<String>,
    },
}

/// What becomes of the dialogs of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialogs {
    /// They stay open until the model answers them, and it is told of them.
    #[default]
    ToModel,
    /// They are answered with yes, and the model is told.
    Accept,
    /// They are answered with no, and the model is told.
    Dismiss,
}

/// What becomes of downloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Downloads {
    /// They are refused, and the model is told.
    #[default]
    Refuse,
    /// They go into this folder, under names that the page does not choose, and the model is told.
    Into(PathBuf),
}

/// A Chromium of our own. When it is dropped, or this process ends in whatever way, it ends too.
pub struct Browser {
    pages: Arc<Pages>,
    process: Mutex<Option<Process>>,
}

impl Browser {
    /// Starts a browser.
    pub async fn start(options: BrowserOptions) -> Result<Self, ComputerError> {
        let program = launch::find(&options)?;
        let start = options.start.clone();
        let (process, input, output) = launch::start(&program, &options)?;
        let (pipe, events) = Pipe::over(input, output);
        let pages = Pages::new(pipe, options);
        tokio::spawn(state::follow(events, Arc::downgrade(&pages)));
        let browser = Self { pages, process: Mutex::new(Some(process)) };
        if let Err(error) = browser.pages.begin(STARTING).await {
            let said =
                browser.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Process::said);
            return Err(ComputerError::Failed(format!(
                "the browser did not start: {error}; it said: {}",
                said.unwrap_or_default()
            )));
        }
        if let Some(start) = start {
            browser.navigate(&start).await?;
        }
        Ok(browser)
    }

    /// A browser for each run that asks for one.
    pub fn provider(options: BrowserOptions) -> impl ComputerProvider {
        Provider { options, made: Mutex::default() }
    }

    /// Ends the browser, and waits until it has ended.
    pub async fn close(&self) {
        self.pages.end();
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = process {
            process.end().await;
        }
    }

    /// Runs a script in the page and gives its value: for tests, and for tools of an application's own. The model
    /// cannot ask for it.
    pub async fn evaluate(&self, script: &str) -> Result<serde_json::Value, ComputerError> {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let answer = self.pages.ask("Runtime.evaluate", params).await?;
        match answer.get("exceptionDetails") {
            Some(error) => Err(ComputerError::Failed(error["exception"]["description"].to_string())),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Makes the page that is seen crash: for tests.
    pub async fn crash_page(&self) {
        // It does not answer: that is the point.
        let _ = self.pages.ask("Page.crash", json!({})).await;
    }

    /// The number of the process group that the browser runs in.
    pub fn process_group(&self) -> Option<u32> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Process::id)
    }
}

impl Computer for Browser {
    fn display(&self) -> Display {
        display(&self.pages.options)
    }

    fn screenshot(&self) -> Doing<'_, Screenshot> {
        self.pages.screenshot().boxed()
    }

    fn zoom(&self, region: Region) -> Doing<'_, Screenshot> {
        self.pages.zoom(region).boxed()
    }

    fn cursor(&self) -> Doing<'_, Point> {
        std::future::ready(Ok(self.pages.cursor())).boxed()
    }

    fn move_to<'a>(&'a self, to: Point, held: &'a Chord) -> Doing<'a, ()> {
        self.pages.move_to(to, held).boxed()
    }

    fn click<'a>(&'a self, at: Option<Point>, button: Button, times: u32, held: &'a Chord) -> Doing<'a, ()> {
        self.pages.click(at, button, times, held).boxed()
    }

    fn press(&self, button: Button) -> Doing<'_, ()> {
        self.pages.press(button).boxed()
    }

    fn release(&self, button: Button) -> Doing<'_, ()> {
        self.pages.release(button).boxed()
    }

    fn drag<'a>(&'a self, path: &'a [Point], held: &'a Chord) -> Doing<'a, ()> {
        self.pages.drag(path, held).boxed()
    }

    fn scroll<'a>(&'a self, at: Option<Point>, right: i32, down: i32, held: &'a Chord) -> Doing<'a, ()> {
        self.pages.scroll(at, right, down, held).boxed()
    }

    fn type_text<'a>(&'a self, text: &'a str) -> Doing<'a, ()> {
        self.pages.type_text(text).boxed()
    }

    fn keys<'a>(&'a self, chord: &'a Chord) -> Doing<'a, ()> {
        self.pages.keys(chord, Duration::ZERO).boxed()
    }

    fn hold<'a>(&'a self, chord: &'a Chord, lasting: Duration) -> Doing<'a, ()> {
        self.pages.keys(chord, lasting).boxed()
    }

    fn navigate<'a>(&'a self, url: &'a str) -> Doing<'a, ()> {
        self.pages.navigate(url).boxed()
    }

    fn travel(&self, travel: Travel) -> Doing<'_, ()> {
        self.pages.travel(travel).boxed()
    }

    fn tabs(&self) -> Doing<'_, Vec<Tab>> {
        std::future::ready(Ok(self.pages.tabs())).boxed()
    }

    fn switch_tab(&self, tab: usize) -> Doing<'_, ()> {
        self.pages.switch_tab(tab).boxed()
    }

    fn close_tab(&self, tab: usize) -> Doing<'_, ()> {
        self.pages.close_tab(tab).boxed()
    }

    fn answer_dialog<'a>(&'a self, answer: Answer, text: Option<&'a str>) -> Doing<'a, ()> {
        self.pages.answer_dialog(answer, text).boxed()
    }

    fn notes(&self) -> Vec<String> {
        self.pages.notes()
    }
}

fn display(options: &BrowserOptions) -> Display {
    Display { width: options.width, height: options.height, environment: "browser".to_owned() }
}

struct Provider {
    options: BrowserOptions,
    made: Mutex<Vec<(Arc<dyn Computer>, Arc<Browser>)>>,
}

impl ComputerProvider for Provider {
    fn display(&self) -> Display {
        display(&self.options)
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let browser = Arc::new(Browser::start(self.options.clone()).await?);
            let computer: Arc<dyn Computer> = browser.clone();
            self.made.lock().unwrap_or_else(PoisonError::into_inner).push((computer.clone(), browser));
            Ok(computer)
        }
        .boxed()
    }

    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        async move {
            let browser = {
                let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
                let at = made.iter().position(|(known, _)| Arc::ptr_eq(known, &computer));
                at.map(|at| made.swap_remove(at).1)
            };
            if let Some(browser) = browser {
                browser.close().await;
            }
        }
        .boxed()
    }
}
