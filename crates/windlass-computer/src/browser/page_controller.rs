//! The pages of a browser: commands, their responses, and screenshots.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cdp_pipe::{CdpCommandError, CdpPipe, PendingCdpCommand};
use super::private_network::NetworkLookups;
use super::state::{BrowserState, TabFailure};
use super::{BrowserOptions, DownloadPolicy};
use crate::action::{ScreenPoint, ScreenRegion};
use crate::computer::{ComputerError, Screenshot};

/// Maximum number of times that a screenshot of a page that is being replaced is taken again.
const MAX_REPLACED_PAGES: u32 = 10;
/// Time before a screenshot is taken again.
const REPLACED_PAGE_DELAY: Duration = Duration::from_millis(100);

/// Time that a page has after an action to start a navigation or to open a tab.
const NAVIGATION_START_DELAY: Duration = Duration::from_millis(40);
/// Time that an action waits for the resources of a page whose document is complete.
const RESOURCE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Timeout of a query to a page that has not responded before.
pub(super) const BUSY_QUERY_TIMEOUT: Duration = Duration::from_millis(1500);

/// The owner of the browser process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrowserOwnership {
    /// We started it, and nobody else uses it.
    Ours,
    /// It runs independently of us, and others may have pages in it.
    Shared,
}

/// The controller of a browser's pages: its DevTools pipe and the state derived from its events.
pub(super) struct PageController {
    pub(super) pipe: CdpPipe,
    pub(super) options: BrowserOptions,
    pub(super) ownership: BrowserOwnership,
    pub(super) lookups: NetworkLookups,
    pub(super) state_version: watch::Sender<u64>,
    state: Mutex<BrowserState>,
}

/// An event that keeps a page from responding to a command.
enum PageInterruption {
    /// A dialog or a question must be answered first.
    Blocked,
    Crashed,
    Closed,
}

impl PageController {
    pub(super) fn new(pipe: CdpPipe, options: BrowserOptions, ownership: BrowserOwnership) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        Arc::new(Self {
            pipe,
            options,
            ownership,
            lookups: NetworkLookups::default(),
            state_version: changed,
            state: Mutex::default(),
        })
    }

    pub(super) fn with_state<T>(&self, look: impl FnOnce(&mut BrowserState) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Attaches to all targets of the browser. New targets are paused by the browser until they are set up.
    pub(super) async fn attach_to_browser(&self, within: Duration) -> Result<(), ComputerError> {
        let until = Instant::now() + within;
        let call = async |method: &str, params: Value| {
            self.pipe
                .call_command(None, method, params, within)
                .await
                .map_err(|error| self.computer_error(error))
        };
        call("Target.setDiscoverTargets", json!({ "discover": true })).await?;
        let context = self.with_state(|state| state.browser_context.clone());
        let mut downloads = match &self.options.downloads {
            DownloadPolicy::Deny => json!({ "behavior": "deny", "eventsEnabled": true }),
            DownloadPolicy::SaveTo(folder) => {
                json!({ "behavior": "allowAndName", "downloadPath": folder, "eventsEnabled": true })
            }
        };
        if let (Some(context), BrowserOwnership::Shared) = (&context, self.ownership) {
            downloads["browserContextId"] = context.as_str().into();
        }
        call("Browser.setDownloadBehavior", downloads).await?;
        if let Some(cookies) = self.options.storage_state.as_ref().and_then(super::StorageState::cookie_list)
        {
            let mut params = json!({ "cookies": cookies });
            if let Some(context) = &context {
                params["browserContextId"] = context.as_str().into();
            }
            call("Storage.setCookies", params).await?;
        }
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        call("Target.setAutoAttach", attach).await?;
        if self.ownership == BrowserOwnership::Shared {
            let params = json!({ "url": "about:blank", "browserContextId": context });
            call("Target.createTarget", params).await?;
        }
        self.wait_until(until, |state| state.current_tab().is_some_and(|tab| tab.is_ready)).await;
        let is_there = self.with_state(|state| state.current_tab().is_some_and(|tab| tab.is_ready));
        if is_there { Ok(()) } else { Err(ComputerError::Failed("no page was opened".to_owned())) }
    }

    /// Asks the browser to close. In a browser that belongs to somebody else, only our pages are closed.
    pub(super) async fn request_close(&self) {
        match self.ownership {
            BrowserOwnership::Ours => {
                self.pipe.send_without_reply(None, "Browser.close", json!({}));
            }
            BrowserOwnership::Shared => {
                let context = self.with_state(|state| state.browser_context.clone());
                let params = json!({ "browserContextId": context });
                let within = self.options.response_timeout;
                let _ = self.pipe.call_command(None, "Target.disposeBrowserContext", params, within).await;
            }
        }
    }

    /// Returns the timeout of a query: short for a page that has not responded before.
    pub(super) fn query_timeout(&self, session: &str) -> Duration {
        let is_busy = self.with_state(|state| {
            state.is_frame_unresponsive(session)
                || state.tab_of_session(session).is_some_and(|tab| tab.failure == Some(TabFailure::Busy))
        });
        if is_busy { BUSY_QUERY_TIMEOUT } else { self.options.response_timeout }
    }

    pub(super) fn cursor_position(&self) -> ScreenPoint {
        self.with_state(|state| state.cursor)
    }

    pub(super) fn take_notices(&self) -> Vec<String> {
        self.with_state(|state| {
            let mut notes = state.take_notices();
            if let Some(tab) = state.current_tab() {
                notes.extend(tab.dialog.as_ref().map(|dialog| dialog.text.clone()));
                notes.extend(tab.question.as_ref().map(|question| question.text.clone()));
            }
            notes
        })
    }

    /// Returns the DevTools session id of the current page.
    ///
    /// # Errors
    ///
    /// Fails if the browser has closed, no tab is open, the page has crashed, or a dialog or question blocks it. A page
    /// that has not responded before is asked again, because it may only be slow.
    pub(super) fn current_session(&self) -> Result<String, ComputerError> {
        if self.pipe.is_closed() {
            return Err(ComputerError::Closed("the browser has ended".to_owned()));
        }
        self.with_state(|state| {
            let last = state.last_screenshot.clone();
            let Some(tab) = state.current_tab() else {
                return Err(ComputerError::Refused("no tab is open; go to an address first".to_owned()));
            };
            match (tab.failure, tab.blocking_text()) {
                (Some(TabFailure::Crashed | TabFailure::CrashReported), _) => {
                    tab.failure = Some(TabFailure::CrashReported);
                    Err(ComputerError::PageCrashed { last_screenshot: last })
                }
                (_, Some(text)) => Err(ComputerError::Refused(text.to_owned())),
                (Some(TabFailure::Busy) | None, None) => Ok(tab.session.clone()),
            }
        })
    }

    /// Sends a command to the current page and waits for its response.
    pub(super) async fn send_to_page(&self, method: &str, params: Value) -> Result<Value, ComputerError> {
        let session = self.current_session()?;
        let pending = self
            .pipe
            .send_command(Some(&session), method, params)
            .await
            .map_err(|error| self.computer_error(error))?;
        self.await_response(&session, pending).await
    }

    /// Waits for the response to a command. A dialog that opens and a page that closes count as success,
    /// because the input has taken effect by then. A page that does not respond in time is marked
    /// unresponsive.
    pub(super) async fn await_response(
        &self,
        session: &str,
        pending: PendingCdpCommand,
    ) -> Result<Value, ComputerError> {
        let mut changed = self.state_version.subscribe();
        let within = self.options.response_timeout;
        let answer = pending.await_reply(within);
        tokio::pin!(answer);
        loop {
            // The interruption may precede this call; a response that has arrived anyway takes precedence.
            if let Some(interrupted) = self.find_interruption(session) {
                if let Some(answer) = (&mut answer).now_or_never() {
                    return self.interpret_response(session, answer);
                }
                return match interrupted {
                    PageInterruption::Blocked | PageInterruption::Closed => Ok(Value::Null),
                    PageInterruption::Crashed => Err(ComputerError::PageCrashed {
                        last_screenshot: self.with_state(|state| state.last_screenshot.clone()),
                    }),
                };
            }
            tokio::select! {
                biased;
                answer = &mut answer => return self.interpret_response(session, answer),
                _ = changed.changed() => {}
            }
        }
    }

    fn interpret_response(
        &self,
        session: &str,
        answer: Result<Value, CdpCommandError>,
    ) -> Result<Value, ComputerError> {
        match answer {
            Ok(answer) => {
                self.with_state(|state| {
                    if let Some(tab) = state.tab_by_session(session)
                        && tab.failure == Some(TabFailure::Busy)
                    {
                        tab.failure = None;
                    }
                });
                Ok(answer)
            }
            Err(CdpCommandError::TimedOut(waited)) => {
                let last = self.with_state(|state| {
                    if let Some(tab) = state.tab_by_session(session) {
                        tab.failure.get_or_insert(TabFailure::Busy);
                    }
                    state.last_screenshot.clone()
                });
                Err(ComputerError::Unresponsive { waited, last_screenshot: last })
            }
            Err(CdpCommandError::Rejected(_))
                if self.with_state(|state| state.tab_by_session(session).is_none()) =>
            {
                Ok(Value::Null)
            }
            Err(error) => Err(self.computer_error(error)),
        }
    }

    fn find_interruption(&self, session: &str) -> Option<PageInterruption> {
        self.with_state(|state| match state.tab_by_session(session) {
            None => Some(PageInterruption::Closed),
            Some(tab) if matches!(tab.failure, Some(TabFailure::Crashed | TabFailure::CrashReported)) => {
                Some(PageInterruption::Crashed)
            }
            Some(tab) => tab.blocking_text().map(|_| PageInterruption::Blocked),
        })
    }

    pub(super) fn computer_error(&self, error: CdpCommandError) -> ComputerError {
        match error {
            CdpCommandError::PipeClosed => ComputerError::Closed("the browser has ended".to_owned()),
            CdpCommandError::TimedOut(waited) => ComputerError::Unresponsive {
                waited,
                last_screenshot: self.with_state(|state| state.last_screenshot.clone()),
            },
            CdpCommandError::Rejected(message) => ComputerError::Failed(message),
        }
    }

    /// Records the time of an action, because it may cause a navigation that must be awaited.
    pub(super) fn record_action(&self) {
        self.with_state(|state| state.last_action_at = Some(Instant::now()));
    }

    /// Waits until the effects of the last action have loaded, at most for the configured time.
    pub(super) async fn wait_until_loaded(&self) {
        if let Some(acted) = self.with_state(|state| state.last_action_at.take()) {
            tokio::time::sleep_until(acted + NAVIGATION_START_DELAY).await;
            self.await_page_events().await;
        }
        let mut changed = self.state_version.subscribe();
        let new_tab_deadline = Instant::now() + self.options.load_timeout;
        while !self.pipe.is_closed() {
            let deadline = self.with_state(|state| {
                if state.tabs.iter().any(|tab| !tab.is_ready) {
                    return Some(new_tab_deadline);
                }
                state.load_deadline(self.options.load_timeout, RESOURCE_TIMEOUT)
            });
            let Some(deadline) = deadline else { return };
            if !matches!(tokio::time::timeout_at(deadline, changed.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Waits until the page has handled its input, so that a navigation that it began is known: the events of a
    /// page precede its responses.
    async fn await_page_events(&self) {
        let is_busy = self.with_state(|state| state.current_tab().is_none_or(|tab| tab.failure.is_some()));
        let Ok(session) = self.current_session() else { return };
        if is_busy {
            return;
        }
        let params = json!({ "expression": "1", "returnByValue": true });
        if let Ok(pending) = self.pipe.send_command(Some(&session), "Runtime.evaluate", params).await {
            // A page that does not respond is told about by the operation that comes next.
            let _ = self.await_response(&session, pending).await;
        }
    }

    pub(super) async fn wait_until(&self, until: Instant, mut is_so: impl FnMut(&mut BrowserState) -> bool) {
        let mut changed = self.state_version.subscribe();
        while !self.with_state(&mut is_so) && !self.pipe.is_closed() {
            let waited = tokio::time::timeout_at(until, changed.changed()).await;
            if !matches!(waited, Ok(Ok(()))) {
                return;
            }
        }
    }

    pub(super) async fn take_screenshot(&self) -> Result<Screenshot, ComputerError> {
        self.capture_screenshot(json!({ "format": "png" })).await
    }

    pub(super) async fn zoom_region(&self, region: ScreenRegion) -> Result<Screenshot, ComputerError> {
        let wide = f64::from(self.options.width) / f64::from(region.width().max(1));
        let high = f64::from(self.options.height) / f64::from(region.height().max(1));
        let clip = json!({
            "x": region.top_left.x, "y": region.top_left.y, "width": region.width(), "height": region.height(),
            "scale": wide.min(high).clamp(1.0, 4.0),
        });
        self.capture_screenshot(json!({ "format": "png", "clip": clip })).await
    }

    /// Takes the first screenshot of a tab whose page does not respond, which the browser itself takes.
    async fn capture_blocked_page(&self) -> Result<Screenshot, ComputerError> {
        let session = self.main_frame()?.session;
        let (params, within) = (json!({ "format": "png" }), self.options.response_timeout);
        let taken = self.pipe.call_command(Some(&session), "Page.captureScreenshot", params, within).await;
        let taken = taken.map_err(|error| self.computer_error(error))?;
        match taken["data"].as_str() {
            Some(data) => Ok(Screenshot::from_base64(data)),
            None => Err(ComputerError::Failed("the page gave no picture".to_owned())),
        }
    }

    async fn capture_screenshot(&self, params: Value) -> Result<Screenshot, ComputerError> {
        self.replace_crashed_tab().await?;
        self.wait_until_loaded().await;
        let clip = params.get("clip").cloned();
        let is_whole = clip.is_none();
        // A page with an open dialog is not painted, so the screenshot from before is returned.
        let (is_blocked, before) = self.with_state(|state| {
            let is_blocked = state.current_tab().is_some_and(|tab| tab.blocking_text().is_some());
            (is_blocked, state.last_screenshot.clone())
        });
        match before {
            Some(before) if is_blocked => return Ok(before),
            None if is_blocked => return self.capture_blocked_page().await,
            Some(_) | None => {}
        }
        let mut before = self.secret_rectangles().await?;
        let mut answer = self.send_to_page("Page.captureScreenshot", params.clone()).await;
        // A page that is being replaced has no picture: the one after it has.
        for _ in 0..MAX_REPLACED_PAGES {
            match &answer {
                Err(error) if error.to_string().contains("Not attached to an active page") => {}
                _ => break,
            }
            tokio::time::sleep(REPLACED_PAGE_DELAY).await;
            self.wait_until_loaded().await;
            before = self.secret_rectangles().await?;
            answer = self.send_to_page("Page.captureScreenshot", params.clone()).await;
        }
        let answer = answer?;
        match answer["data"].as_str() {
            Some(data) => {
                let number = |name: &str, other: f64| match &clip {
                    Some(clip) => clip[name].as_f64().unwrap_or(other),
                    None => other,
                };
                let pixels = self.options.device_scale();
                let place = (number("x", 0.0), number("y", 0.0), number("scale", 1.0) * pixels);
                let screenshot = self.mask_screenshot(Screenshot::from_base64(data), before, place).await?;
                if is_whole {
                    self.with_state(|state| state.last_screenshot = Some(screenshot.clone()));
                }
                Ok(screenshot)
            }
            None => match self.with_state(|state| state.last_screenshot.clone()) {
                Some(before) => Ok(before),
                None => Err(ComputerError::Failed("the page gave no picture".to_owned())),
            },
        }
    }
}
