//! A browser: Chromium, driven by the Chrome DevTools Protocol over a pipe.

mod cdp_pipe;
mod input;
mod launch;
mod page_controller;
mod site_policy;
mod state;

pub use site_policy::{AllowedSites, ThirdPartyPolicy};

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use windlass::core::id::RunId;
use windlass::model::ComputerDisplay;

use self::cdp_pipe::CdpPipe;
use self::launch::BrowserProcess;
use self::page_controller::PageController;
use crate::action::{DialogAnswer, MouseButton, ScreenPoint, ScreenRegion};
use crate::computer::{BrowserTab, Computer, ComputerError, ComputerFuture, HistoryNavigation, Screenshot};
use crate::key::KeyChord;
use crate::provider::ComputerProvider;

/// Timeout for the browser to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The configuration of a browser: its size, its restrictions and its process.
#[derive(Clone, Debug)]
pub struct BrowserOptions {
    /// Width of the viewport, in pixels.
    pub width: u32,
    /// Height of the viewport, in pixels.
    pub height: u32,
    /// Headless or visible.
    pub window: BrowserWindow,
    /// Sites that the browser may visit.
    pub allowed_sites: AllowedSites,
    /// Policy for requests from allowed pages to sites that are not allowed.
    pub third_party: ThirdPartyPolicy,
    /// Handling of JavaScript dialogs.
    pub dialogs: DialogPolicy,
    /// Handling of downloads.
    pub downloads: DownloadPolicy,
    /// First URL to open; `about:blank` if absent.
    pub start_url: Option<String>,
    /// Timeout for a page to respond to a command, after which it counts as unresponsive.
    pub response_timeout: Duration,
    /// Maximum time that an action or a screenshot waits for the page to load; then it proceeds regardless.
    pub load_timeout: Duration,
    /// Path of the browser; searched on `PATH` by its usual names if absent.
    pub program: Option<PathBuf>,
    /// Additional command-line flags for the browser.
    pub extra_flags: Vec<String>,
}

impl Default for BrowserOptions {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            window: BrowserWindow::default(),
            allowed_sites: AllowedSites::default(),
            third_party: ThirdPartyPolicy::default(),
            dialogs: DialogPolicy::default(),
            downloads: DownloadPolicy::default(),
            start_url: None,
            response_timeout: Duration::from_secs(10),
            load_timeout: Duration::from_secs(5),
            program: None,
            extra_flags: Vec::new(),
        }
    }
}

/// The visibility of the browser window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BrowserWindow {
    /// No window.
    #[default]
    Headless,
    /// A window on this X11 display, or on the `DISPLAY` of this process if absent.
    Visible {
        /// Name of the display, such as `:1`.
        display: Option<String>,
    },
}

/// The handling of JavaScript dialogs (`alert`, `confirm`, `prompt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialogPolicy {
    /// A dialog stays open until the model answers it. The model is notified.
    #[default]
    AskModel,
    /// Dialogs are accepted at once. The model is notified.
    Accept,
    /// Dialogs are dismissed at once. The model is notified.
    Dismiss,
}

/// The handling of downloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DownloadPolicy {
    /// Downloads are denied. The model is notified.
    #[default]
    Deny,
    /// Downloads are saved in this folder under names that the page does not choose. The model is notified.
    SaveTo(PathBuf),
}

/// A Chromium process with its own temporary profile. It exits when this value is dropped and when this
/// process dies, in whatever way.
pub struct Browser {
    controller: Arc<PageController>,
    process: Mutex<Option<BrowserProcess>>,
}

impl Browser {
    /// Starts a browser and opens its start URL.
    ///
    /// # Errors
    ///
    /// Returns [`ComputerError::Missing`] if Chromium is not installed, and [`ComputerError::Failed`] if it
    /// does not start.
    pub async fn start(options: BrowserOptions) -> Result<Self, ComputerError> {
        let program = launch::find_chromium(&options)?;
        let start = options.start_url.clone();
        let (process, input, output) = launch::spawn_browser(&program, &options)?;
        let (pipe, events) = CdpPipe::start(input, output);
        let pages = PageController::new(pipe, options);
        tokio::spawn(state::follow_events(events, Arc::downgrade(&pages)));
        let browser = Self { controller: pages, process: Mutex::new(Some(process)) };
        if let Err(error) = browser.controller.attach_to_browser(START_TIMEOUT).await {
            let said = browser
                .process
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref()
                .map(BrowserProcess::stderr_text);
            return Err(ComputerError::Failed(format!(
                "the browser did not start: {error}; its standard error: {}",
                said.unwrap_or_default()
            )));
        }
        if let Some(start) = start {
            browser.navigate(&start).await?;
        }
        Ok(browser)
    }

    /// Returns a provider that starts one browser per run.
    pub fn provider(options: BrowserOptions) -> impl ComputerProvider {
        BrowserProvider { options, created: Mutex::default() }
    }

    /// Closes the browser and waits until its process has exited.
    pub async fn close(&self) {
        self.controller.request_close();
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = process {
            process.wait_or_kill().await;
        }
    }

    /// Evaluates a script in the current page and returns its value, for tests and for an application's own
    /// tools. No tool offers it to the model.
    pub async fn evaluate(&self, script: &str) -> Result<serde_json::Value, ComputerError> {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let answer = self.controller.send_to_page("Runtime.evaluate", params).await?;
        match answer.get("exceptionDetails") {
            Some(error) => Err(ComputerError::Failed(error["exception"]["description"].to_string())),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Crashes the current page, for tests.
    pub async fn crash_page(&self) {
        // A crashed page never responds to this command.
        let _ = self.controller.send_to_page("Page.crash", json!({})).await;
    }

    /// Returns the id of the browser's process group.
    pub fn process_group(&self) -> Option<u32> {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .and_then(BrowserProcess::process_group_id)
    }
}

impl Computer for Browser {
    fn display(&self) -> ComputerDisplay {
        display_of(&self.controller.options)
    }

    fn screenshot(&self) -> ComputerFuture<'_, Screenshot> {
        self.controller.take_screenshot().boxed()
    }

    fn zoom(&self, region: ScreenRegion) -> ComputerFuture<'_, Screenshot> {
        self.controller.zoom_region(region).boxed()
    }

    fn cursor_position(&self) -> ComputerFuture<'_, ScreenPoint> {
        std::future::ready(Ok(self.controller.cursor_position())).boxed()
    }

    fn move_to<'a>(&'a self, to: ScreenPoint, held: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.controller.move_to(to, held).boxed()
    }

    fn click<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        button: MouseButton,
        times: u32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        self.controller.click(at, button, times, held).boxed()
    }

    fn mouse_down(&self, button: MouseButton) -> ComputerFuture<'_, ()> {
        self.controller.mouse_down(button).boxed()
    }

    fn mouse_up(&self, button: MouseButton) -> ComputerFuture<'_, ()> {
        self.controller.mouse_up(button).boxed()
    }

    fn drag<'a>(&'a self, path: &'a [ScreenPoint], held: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.controller.drag_along(path, held).boxed()
    }

    fn scroll<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        right: i32,
        down: i32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        self.controller.scroll_by(at, right, down, held).boxed()
    }

    fn type_text<'a>(&'a self, text: &'a str) -> ComputerFuture<'a, ()> {
        self.controller.type_text(text).boxed()
    }

    fn press_keys<'a>(&'a self, chord: &'a KeyChord) -> ComputerFuture<'a, ()> {
        self.controller.press_keys(chord, Duration::ZERO).boxed()
    }

    fn hold_keys<'a>(&'a self, chord: &'a KeyChord, lasting: Duration) -> ComputerFuture<'a, ()> {
        self.controller.press_keys(chord, lasting).boxed()
    }

    fn navigate<'a>(&'a self, url: &'a str) -> ComputerFuture<'a, ()> {
        self.controller.navigate_to(url).boxed()
    }

    fn navigate_history(&self, travel: HistoryNavigation) -> ComputerFuture<'_, ()> {
        self.controller.navigate_history(travel).boxed()
    }

    fn list_tabs(&self) -> ComputerFuture<'_, Vec<BrowserTab>> {
        std::future::ready(Ok(self.controller.list_tabs())).boxed()
    }

    fn switch_tab(&self, tab: usize) -> ComputerFuture<'_, ()> {
        self.controller.switch_tab(tab).boxed()
    }

    fn close_tab(&self, tab: usize) -> ComputerFuture<'_, ()> {
        self.controller.close_tab(tab).boxed()
    }

    fn answer_dialog<'a>(&'a self, answer: DialogAnswer, text: Option<&'a str>) -> ComputerFuture<'a, ()> {
        self.controller.answer_dialog(answer, text).boxed()
    }

    fn take_notices(&self) -> Vec<String> {
        self.controller.take_notices()
    }
}

fn display_of(options: &BrowserOptions) -> ComputerDisplay {
    ComputerDisplay { width: options.width, height: options.height, environment: "browser".to_owned() }
}

struct BrowserProvider {
    options: BrowserOptions,
    created: Mutex<Vec<(Arc<dyn Computer>, Arc<Browser>)>>,
}

impl ComputerProvider for BrowserProvider {
    fn display(&self) -> ComputerDisplay {
        display_of(&self.options)
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let browser = Arc::new(Browser::start(self.options.clone()).await?);
            let computer: Arc<dyn Computer> = browser.clone();
            self.created.lock().unwrap_or_else(PoisonError::into_inner).push((computer.clone(), browser));
            Ok(computer)
        }
        .boxed()
    }

    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        async move {
            let browser = {
                let mut made = self.created.lock().unwrap_or_else(PoisonError::into_inner);
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
