//! A browser: Chromium, driven by the Chrome DevTools Protocol over a pipe or a WebSocket.

mod cdp_pipe;
mod events;
mod frames;
mod input;
mod launch;
mod navigation;
mod options;
mod page_controller;
mod page_reader;
mod page_scripts;
mod picture;
mod picture_mask;
mod private_network;
mod questions;
mod remote;
mod secret_input;
mod shortcuts;
mod site_policy;
mod state;
mod storage_state;
mod unpainted_page;

pub use options::{
    BrowserOptions, BrowserWindow, DialogPolicy, DownloadPolicy, EmulatedDevice, UploadPolicy,
};
pub use private_network::PrivateNetworkPolicy;
pub use site_policy::{AllowedSites, ThirdPartyPolicy};
pub use storage_state::StorageState;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use windlass::core::id::RunId;
use windlass::model::ComputerDisplay;

use self::cdp_pipe::CdpPipe;
use self::launch::BrowserProcess;
use self::page_controller::{BrowserOwnership, PageController};
use crate::action::{DialogAnswer, MouseButton, PageReading, ScreenPoint, ScreenRegion};
use crate::computer::{BrowserTab, Computer, ComputerError, ComputerFuture, HistoryNavigation, Screenshot};
use crate::key::KeyChord;
use crate::provider::ComputerProvider;
use crate::target::{ScreenTarget, TargetPlace};

/// Timeout for the browser to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A Chromium process with its own temporary profile, which exits when this value is dropped and when this
/// process dies, in whatever way; or a connection to a browser that runs already.
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
        options.validate()?;
        let program = launch::find_chromium(&options)?;
        let start = options.start_url.clone();
        let (process, input, output) = launch::spawn_browser(&program, &options)?;
        let (pipe, messages) = CdpPipe::start(input, output);
        let pages = PageController::new(pipe, options, BrowserOwnership::Ours);
        tokio::spawn(events::follow_messages(messages, Arc::downgrade(&pages)));
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

    /// Connects to a browser that runs already, here or on another machine, and opens a tab in a browser context
    /// of its own: nothing of the browser's other pages, cookies and files is reached. The endpoint is the
    /// browser's DevTools WebSocket (`ws://…`, `wss://…`), or the address of its DevTools server
    /// (`http://127.0.0.1:9222`). Options of the process, such as `program`, `window` and `extra_flags`, do not apply;
    /// `proxy` does. The guard of private networks holds back requests but no WebSockets, and it looks host names up on
    /// this machine, not on the browser's.
    ///
    /// # Errors
    ///
    /// Returns [`ComputerError::Failed`] if the browser cannot be reached, or if an option cannot work in such a browser
    /// ([`BrowserOptions::validate_for_connection`]).
    pub async fn connect(endpoint: &str, options: BrowserOptions) -> Result<Self, ComputerError> {
        options.validate_for_connection()?;
        let start = options.start_url.clone();
        let socket = remote::connect_websocket(endpoint).await?;
        let (pipe, messages) = CdpPipe::start_websocket(socket);
        let mut params = json!({ "disposeOnDetach": true });
        if let Some(proxy) = &options.proxy {
            params["proxyServer"] = proxy.as_str().into();
        }
        let pages = PageController::new(pipe, options, BrowserOwnership::Shared);
        tokio::spawn(events::follow_messages(messages, Arc::downgrade(&pages)));
        let made = pages.pipe.call_command(None, "Target.createBrowserContext", params, START_TIMEOUT).await;
        let made = made.map_err(|error| pages.computer_error(error))?;
        let context = made["browserContextId"].as_str().map(str::to_owned);
        pages.with_state(|state| state.browser_context = context);
        pages.attach_to_browser(START_TIMEOUT).await?;
        let browser = Self { controller: pages, process: Mutex::new(None) };
        if let Some(start) = start {
            browser.navigate(&start).await?;
        }
        Ok(browser)
    }

    /// Returns a provider that starts one browser per run.
    pub fn provider(options: BrowserOptions) -> impl ComputerProvider {
        BrowserProvider { endpoint: None, options, created: Mutex::default() }
    }

    /// Returns a provider that connects each run to a browser that runs already, as [`Browser::connect`] does.
    pub fn remote_provider(endpoint: impl Into<String>, options: BrowserOptions) -> impl ComputerProvider {
        BrowserProvider { endpoint: Some(endpoint.into()), options, created: Mutex::default() }
    }

    /// Reads the cookies of the browser and the local storage of the pages in the current tab, for
    /// [`BrowserOptions::storage_state`] of a later browser.
    pub async fn storage_state(&self) -> Result<StorageState, ComputerError> {
        self.controller.storage_state().await
    }

    /// Closes the browser and waits until its process has exited.
    pub async fn close(&self) {
        self.controller.request_close().await;
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

    /// Opens a tab without any check, as a fault of the browser could, for tests.
    pub async fn open_unchecked_tab(&self, url: &str) -> Result<(), ComputerError> {
        let within = self.controller.options.response_timeout;
        let made = self
            .controller
            .pipe
            .call_command(None, "Target.createTarget", json!({ "url": url }), within)
            .await;
        made.map(|_| ()).map_err(|error| self.controller.computer_error(error))
    }

    /// Opens a window outside of the profile, as a private window is, for tests.
    pub async fn open_private_window(&self) -> Result<(), ComputerError> {
        let (pipe, within) = (&self.controller.pipe, self.controller.options.response_timeout);
        let made = pipe.call_command(None, "Target.createBrowserContext", json!({}), within).await;
        let made = made.map_err(|error| self.controller.computer_error(error))?;
        let params = json!({ "url": "about:blank", "browserContextId": made["browserContextId"] });
        let opened = pipe.call_command(None, "Target.createTarget", params, within).await;
        opened.map(|_| ()).map_err(|error| self.controller.computer_error(error))
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
        async {
            self.controller.wait_until_loaded().await;
            Ok(self.controller.list_tabs())
        }
        .boxed()
    }

    fn switch_tab(&self, tab: usize) -> ComputerFuture<'_, ()> {
        self.controller.switch_tab(tab).boxed()
    }

    fn open_tab(&self) -> ComputerFuture<'_, ()> {
        self.controller.open_tab().boxed()
    }

    fn close_tab(&self, tab: usize) -> ComputerFuture<'_, ()> {
        self.controller.close_tab(tab).boxed()
    }

    fn answer_dialog<'a>(&'a self, answer: DialogAnswer, text: Option<&'a str>) -> ComputerFuture<'a, ()> {
        self.controller.answer_dialog(answer, text, &[]).boxed()
    }

    fn answer_dialog_with_secret<'a>(
        &'a self,
        answer: DialogAnswer,
        text: &'a str,
        sites: &'a [AllowedSites],
    ) -> ComputerFuture<'a, ()> {
        self.controller.answer_dialog(answer, Some(text), sites).boxed()
    }

    fn describe_target(&self, place: TargetPlace) -> ComputerFuture<'_, ScreenTarget> {
        self.controller.describe_target(place).boxed()
    }

    fn type_secret<'a>(&'a self, secret: &'a str, sites: &'a AllowedSites) -> ComputerFuture<'a, ()> {
        self.controller.type_secret(secret, sites).boxed()
    }

    fn remember_secret(&self, secret: &str) {
        self.controller.remember_secret(secret);
    }

    fn read_page<'a>(&'a self, reading: &'a PageReading) -> ComputerFuture<'a, String> {
        self.controller.read_page(reading).boxed()
    }

    fn find_elements<'a>(&'a self, query: &'a str) -> ComputerFuture<'a, String> {
        self.controller.find_elements(query).boxed()
    }

    fn fill_field<'a>(
        &'a self,
        field: &'a str,
        value: &'a str,
        sites: &'a [AllowedSites],
    ) -> ComputerFuture<'a, ()> {
        self.controller.fill_field(field, value, sites).boxed()
    }

    fn click_element<'a>(
        &'a self,
        element: &'a str,
        button: MouseButton,
        times: u32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        self.controller.click_element(element, button, times, held).boxed()
    }

    fn hover_element<'a>(&'a self, element: &'a str) -> ComputerFuture<'a, ()> {
        self.controller.hover_element(element).boxed()
    }

    fn scroll_to_element<'a>(&'a self, element: &'a str) -> ComputerFuture<'a, ()> {
        self.controller.scroll_to_element(element).boxed()
    }

    fn upload_files<'a>(&'a self, field: Option<&'a str>, files: &'a [String]) -> ComputerFuture<'a, ()> {
        self.controller.upload_files(field, files).boxed()
    }

    fn is_closed(&self) -> bool {
        self.controller.pipe.is_closed()
    }

    fn take_notices(&self) -> Vec<String> {
        self.controller.take_notices()
    }
}

fn display_of(options: &BrowserOptions) -> ComputerDisplay {
    ComputerDisplay { width: options.width, height: options.height, environment: "browser".to_owned() }
}

struct BrowserProvider {
    /// The DevTools endpoint of a browser that runs already; a browser is started if absent.
    endpoint: Option<String>,
    options: BrowserOptions,
    created: Mutex<Vec<(Arc<dyn Computer>, Arc<Browser>)>>,
}

impl ComputerProvider for BrowserProvider {
    fn display(&self) -> ComputerDisplay {
        display_of(&self.options)
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let browser = Arc::new(match &self.endpoint {
                Some(endpoint) => Browser::connect(endpoint, self.options.clone()).await?,
                None => Browser::start(self.options.clone()).await?,
            });
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
