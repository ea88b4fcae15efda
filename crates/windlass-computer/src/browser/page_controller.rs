//! The pages of a browser: screenshots, navigation, tabs and dialogs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cdp_pipe::{CdpCommandError, CdpPipe, PendingCdpCommand};
use super::state::{BrowserState, TabFailure};
use super::{BrowserOptions, DownloadPolicy};
use crate::action::{DialogAnswer, ScreenPoint, ScreenRegion};
use crate::computer::{BrowserTab, ComputerError, HistoryNavigation, Screenshot};

/// Time that a page has after an action to start a navigation or to open a tab.
const NAVIGATION_START_DELAY: Duration = Duration::from_millis(40);

/// The controller of a browser's pages: its DevTools pipe and the state derived from its events.
pub(super) struct PageController {
    pub(super) pipe: CdpPipe,
    pub(super) options: BrowserOptions,
    pub(super) state_version: watch::Sender<u64>,
    state: Mutex<BrowserState>,
}

/// An event that keeps a page from responding to a command.
enum PageInterruption {
    DialogOpened,
    Crashed,
    Closed,
}

impl PageController {
    pub(super) fn new(pipe: CdpPipe, options: BrowserOptions) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        Arc::new(Self { pipe, options, state_version: changed, state: Mutex::default() })
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
        let downloads = match &self.options.downloads {
            DownloadPolicy::Deny => json!({ "behavior": "deny", "eventsEnabled": true }),
            DownloadPolicy::SaveTo(folder) => {
                json!({ "behavior": "allowAndName", "downloadPath": folder, "eventsEnabled": true })
            }
        };
        call("Browser.setDownloadBehavior", downloads).await?;
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        call("Target.setAutoAttach", attach).await?;
        self.wait_until(until, |state| state.current_tab().is_some_and(|tab| tab.is_ready)).await;
        let is_there = self.with_state(|state| state.current_tab().is_some_and(|tab| tab.is_ready));
        if is_there { Ok(()) } else { Err(ComputerError::Failed("no page was opened".to_owned())) }
    }

    /// Asks the browser to close.
    pub(super) fn request_close(&self) {
        self.pipe.send_without_reply(None, "Browser.close", json!({}));
    }

    pub(super) fn cursor_position(&self) -> ScreenPoint {
        self.with_state(|state| state.cursor)
    }

    pub(super) fn take_notices(&self) -> Vec<String> {
        self.with_state(|state| {
            let mut notes = state.take_notices();
            notes.extend(state.current_tab().and_then(|tab| tab.dialog.clone()));
            notes
        })
    }

    /// Returns the DevTools session id of the current page.
    ///
    /// # Errors
    ///
    /// Fails if the browser has closed, no tab is open, the page has crashed or is unresponsive, or a dialog
    /// blocks it.
    pub(super) fn current_session(&self) -> Result<String, ComputerError> {
        if self.pipe.is_closed() {
            return Err(ComputerError::Closed("the browser has ended".to_owned()));
        }
        self.with_state(|state| {
            let last = state.last_screenshot.clone();
            let Some(tab) = state.current_tab() else {
                return Err(ComputerError::Refused("no tab is open; go to an address first".to_owned()));
            };
            match (tab.failure, &tab.dialog) {
                (Some(TabFailure::Crashed), _) => Err(ComputerError::PageCrashed { last_screenshot: last }),
                (Some(TabFailure::Unresponsive), _) => Err(ComputerError::Unresponsive {
                    waited: self.options.response_timeout,
                    last_screenshot: last,
                }),
                (None, Some(dialog)) => Err(ComputerError::Refused(dialog.clone())),
                (None, None) => Ok(tab.session.clone()),
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
                    PageInterruption::DialogOpened | PageInterruption::Closed => Ok(Value::Null),
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
            Ok(answer) => Ok(answer),
            Err(CdpCommandError::TimedOut(waited)) => {
                let last = self.with_state(|state| {
                    if let Some(tab) = state.tab_by_session(session) {
                        tab.failure = Some(TabFailure::Unresponsive);
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
            Some(tab) if tab.failure == Some(TabFailure::Crashed) => Some(PageInterruption::Crashed),
            Some(tab) => tab.dialog.is_some().then_some(PageInterruption::DialogOpened),
        })
    }

    fn computer_error(&self, error: CdpCommandError) -> ComputerError {
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
        }
        self.wait_until(Instant::now() + self.options.load_timeout, BrowserState::is_loaded).await;
    }

    async fn wait_until(&self, until: Instant, mut is_so: impl FnMut(&mut BrowserState) -> bool) {
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

    async fn capture_screenshot(&self, params: Value) -> Result<Screenshot, ComputerError> {
        self.wait_until_loaded().await;
        let is_whole = params.get("clip").is_none();
        // A page with an open dialog is not painted, so the screenshot from before is returned.
        let before = self.with_state(|state| {
            let has_dialog = state.current_tab().is_some_and(|tab| tab.dialog.is_some());
            state.last_screenshot.clone().filter(|_| has_dialog)
        });
        if let Some(before) = before {
            return Ok(before);
        }
        let answer = self.send_to_page("Page.captureScreenshot", params).await?;
        match answer["data"].as_str() {
            Some(data) => {
                let screenshot = Screenshot::from_base64(data);
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

    pub(super) async fn navigate_to(&self, url: &str) -> Result<(), ComputerError> {
        if let Some(why) = self.options.allowed_sites.refusal_reason(url) {
            return Err(ComputerError::Refused(why));
        }
        self.ensure_working_tab().await?;
        self.with_state(|state| state.current_tab().map(|tab| tab.blocked_reason = None));
        let answer = self.send_to_page("Page.navigate", json!({ "url": url })).await?;
        self.record_action();
        self.wait_until_loaded().await;
        // An allowed site may have redirected to one that is not allowed.
        if let Some(why) =
            self.with_state(|state| state.current_tab().and_then(|tab| tab.blocked_reason.take()))
        {
            return Err(ComputerError::Refused(why));
        }
        match answer["errorText"].as_str() {
            // A download aborts the navigation and has its own notice.
            None | Some("" | "net::ERR_ABORTED") => Ok(()),
            Some(why) => Err(ComputerError::Refused(format!("the page could not be opened: {why}"))),
        }
    }

    /// Ensures that the current tab responds: a crashed or unresponsive tab is replaced by a new one.
    async fn ensure_working_tab(&self) -> Result<(), ComputerError> {
        let (current, is_broken) = self.with_state(|state| match state.current_tab() {
            Some(tab) => (Some(tab.target.clone()), tab.failure.is_some()),
            None => (None, true),
        });
        if !is_broken {
            return Ok(());
        }
        let within = self.options.response_timeout;
        let made = self
            .pipe
            .call_command(None, "Target.createTarget", json!({ "url": "about:blank" }), within)
            .await;
        let made = made.map_err(|error| self.computer_error(error))?["targetId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if let Some(old) = current {
            self.pipe.send_without_reply(None, "Target.closeTarget", json!({ "targetId": old }));
            self.with_state(|state| state.tabs.retain(|tab| tab.target != old));
        }
        self.wait_until(Instant::now() + within, |state| {
            state.tabs.iter().any(|tab| tab.target == made && tab.is_ready)
        })
        .await;
        self.with_state(|state| state.current_target = Some(made));
        Ok(())
    }

    pub(super) async fn navigate_history(&self, travel: HistoryNavigation) -> Result<(), ComputerError> {
        let step = match travel {
            HistoryNavigation::Reload => {
                self.send_to_page("Page.reload", json!({})).await?;
                self.record_action();
                return Ok(());
            }
            HistoryNavigation::Back => -1,
            HistoryNavigation::Forward => 1,
        };
        let history = self.send_to_page("Page.getNavigationHistory", json!({})).await?;
        let at = history["currentIndex"].as_i64().unwrap_or(0) + step;
        let entry =
            usize::try_from(at).ok().and_then(|at| history["entries"].get(at)).map(|entry| &entry["id"]);
        let Some(entry) = entry else {
            return Err(ComputerError::Refused("there is no page there".to_owned()));
        };
        self.send_to_page("Page.navigateToHistoryEntry", json!({ "entryId": entry })).await?;
        self.record_action();
        Ok(())
    }

    pub(super) fn list_tabs(&self) -> Vec<BrowserTab> {
        self.with_state(|state| {
            let current = state.current_target.clone();
            let tabs = state.tabs.iter().map(|tab| BrowserTab {
                url: tab.url.clone(),
                title: tab.title.clone(),
                is_current: Some(&tab.target) == current.as_ref(),
            });
            tabs.collect()
        })
    }

    fn target_of_tab(&self, tab: usize) -> Result<String, ComputerError> {
        let found = self.with_state(|state| state.tabs.get(tab).map(|tab| tab.target.clone()));
        found.ok_or_else(|| ComputerError::Refused(format!("there is no tab {tab}")))
    }

    pub(super) async fn switch_tab(&self, tab: usize) -> Result<(), ComputerError> {
        let target = self.target_of_tab(tab)?;
        let within = self.options.response_timeout;
        let shown = self
            .pipe
            .call_command(None, "Target.activateTarget", json!({ "targetId": target }), within)
            .await;
        shown.map_err(|error| self.computer_error(error))?;
        self.with_state(|state| state.current_target = Some(target));
        Ok(())
    }

    pub(super) async fn close_tab(&self, tab: usize) -> Result<(), ComputerError> {
        let target = self.target_of_tab(tab)?;
        if self.with_state(|state| state.tabs.len()) == 1 {
            return Err(ComputerError::Refused("the last tab stays open".to_owned()));
        }
        let within = self.options.response_timeout;
        let closed =
            self.pipe.call_command(None, "Target.closeTarget", json!({ "targetId": target }), within).await;
        closed.map_err(|error| self.computer_error(error))?;
        self.wait_until(Instant::now() + within, |state| state.tabs.iter().all(|tab| tab.target != target))
            .await;
        Ok(())
    }

    pub(super) async fn answer_dialog(
        &self,
        answer: DialogAnswer,
        text: Option<&str>,
    ) -> Result<(), ComputerError> {
        let open = self.with_state(|state| {
            state.current_tab().filter(|tab| tab.dialog.is_some()).map(|tab| tab.session.clone())
        });
        let Some(session) = open else {
            return Err(ComputerError::Refused("no dialog is open".to_owned()));
        };
        let mut params = json!({ "accept": answer == DialogAnswer::Accept });
        if let Some(text) = text {
            params["promptText"] = text.into();
        }
        let within = self.options.response_timeout;
        let answered =
            self.pipe.call_command(Some(&session), "Page.handleJavaScriptDialog", params, within).await;
        answered.map_err(|error| self.computer_error(error))?;
        self.with_state(|state| {
            if let Some(tab) = state.tab_by_session(&session) {
                tab.dialog = None;
            }
        });
        self.record_action();
        Ok(())
    }
}
