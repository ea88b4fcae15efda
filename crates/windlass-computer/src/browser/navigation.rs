//! Navigation and tabs. A tab that crashed or does not respond is replaced.

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cdp_pipe::CdpCommandError;
use super::page_controller::{BUSY_QUERY_TIMEOUT, BrowserOwnership, PageController};
use super::state::{LoadState, TabFailure};
use crate::computer::{BrowserTab, ComputerError, HistoryNavigation};

impl PageController {
    pub(super) async fn navigate_to(&self, url: &str) -> Result<(), ComputerError> {
        if let Some(why) = self.options.allowed_sites.refusal_reason(url) {
            return Err(ComputerError::Refused(why));
        }
        self.ensure_working_tab().await?;
        self.with_state(|state| {
            if let Some(tab) = state.current_tab() {
                (tab.blocked_reason, tab.question) = (None, None);
                tab.load = LoadState::Loading { since: Instant::now() };
            }
        });
        let Some(answer) = self.start_navigation(url).await? else { return Ok(()) };
        self.record_action();
        if answer.get("loaderId").is_none() {
            // The document stays the same: an anchor, a download or a refusal.
            self.with_state(|state| state.current_tab().map(|tab| tab.load = LoadState::Loaded));
        }
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

    /// Sends the navigation and waits until the site responds. A site that takes longer than the configured
    /// time, and a question that comes first, leave the navigation under way: the result is `None`.
    async fn start_navigation(&self, url: &str) -> Result<Option<Value>, ComputerError> {
        let session = self.current_session()?;
        let sent = self.pipe.send_command(Some(&session), "Page.navigate", json!({ "url": url })).await;
        let pending = sent.map_err(|error| self.computer_error(error))?;
        let mut changed = self.state_version.subscribe();
        let answer = pending.await_reply(self.options.navigation_timeout);
        tokio::pin!(answer);
        loop {
            let is_asked = self.with_state(|state| match state.tab_by_session(&session) {
                Some(tab) => tab.dialog.is_some() || tab.question.is_some(),
                None => true,
            });
            if is_asked && (&mut answer).now_or_never().is_none() {
                return Ok(None);
            }
            tokio::select! {
                biased;
                answered = &mut answer => return match answered {
                    Ok(answer) => Ok(Some(answer)),
                    Err(CdpCommandError::TimedOut(waited)) => {
                        self.with_state(|state| state.add_notice(format!(
                            "{url} has not answered within {} seconds and is still being loaded. The page is the one \
                             from before; wait and take a screenshot.",
                            waited.as_secs()
                        )));
                        Ok(None)
                    }
                    Err(error) => Err(self.computer_error(error)),
                },
                _ = changed.changed() => {}
            }
        }
    }

    /// Replaces a tab whose crash was reported.
    pub(super) async fn replace_crashed_tab(&self) -> Result<(), ComputerError> {
        let is_reported = self.with_state(|state| {
            state.current_tab().is_none_or(|tab| tab.failure == Some(TabFailure::CrashReported))
        });
        if is_reported && !self.pipe.is_closed() { self.ensure_working_tab().await } else { Ok(()) }
    }

    /// Ensures that the current tab responds: a tab that crashed, or is busy and still does not respond, is
    /// replaced by a new one.
    async fn ensure_working_tab(&self) -> Result<(), ComputerError> {
        let current = self.with_state(|state| {
            state.current_tab().map(|tab| (tab.target.clone(), tab.session.clone(), tab.failure))
        });
        let is_broken = match &current {
            Some((_, _, None)) => false,
            Some((_, session, Some(TabFailure::Busy))) => {
                let params = json!({ "expression": "1" });
                let asked =
                    self.pipe.call_command(Some(session), "Runtime.evaluate", params, BUSY_QUERY_TIMEOUT);
                match asked.await {
                    Ok(_) => {
                        self.with_state(|state| state.current_tab().map(|tab| tab.failure = None));
                        false
                    }
                    Err(_) => {
                        self.with_state(|state| {
                            state.add_notice(
                                "The busy page was closed, and a new tab replaces it.".to_owned(),
                            );
                        });
                        true
                    }
                }
            }
            Some((_, _, Some(TabFailure::Crashed | TabFailure::CrashReported))) | None => true,
        };
        let current = current.map(|(target, ..)| target);
        if !is_broken {
            return Ok(());
        }
        let made = self.create_tab().await?;
        if let Some(old) = current {
            self.pipe.send_without_reply(None, "Target.closeTarget", json!({ "targetId": old }));
            self.with_state(|state| state.tabs.retain(|tab| tab.target != old));
        }
        self.activate_created_tab(made).await;
        Ok(())
    }

    /// Opens an empty tab and activates it.
    pub(super) async fn open_tab(&self) -> Result<(), ComputerError> {
        let made = self.create_tab().await?;
        self.activate_created_tab(made).await;
        Ok(())
    }

    /// Creates an empty tab and returns its target id.
    async fn create_tab(&self) -> Result<String, ComputerError> {
        let within = self.options.response_timeout;
        let context = self.with_state(|state| state.browser_context.clone());
        let mut params = json!({ "url": "about:blank" });
        if let (Some(context), BrowserOwnership::Shared) = (context, self.ownership) {
            params["browserContextId"] = context.into();
        }
        let made = self.pipe.call_command(None, "Target.createTarget", params, within).await;
        let made = made.map_err(|error| self.computer_error(error))?;
        Ok(made["targetId"].as_str().unwrap_or_default().to_owned())
    }

    async fn activate_created_tab(&self, target: String) {
        self.wait_until(Instant::now() + self.options.response_timeout, |state| {
            state.tabs.iter().any(|tab| tab.target == target && tab.is_ready)
        })
        .await;
        self.with_state(|state| {
            // The empty page that we asked for is its document.
            if let Some(tab) = state.tab_by_target(&target) {
                tab.has_document = true;
            }
            state.current_target = Some(target);
        });
    }

    pub(super) async fn navigate_history(&self, travel: HistoryNavigation) -> Result<(), ComputerError> {
        let step = match travel {
            HistoryNavigation::Reload => {
                self.expect_navigation();
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
        self.expect_navigation();
        self.send_to_page("Page.navigateToHistoryEntry", json!({ "entryId": entry })).await?;
        self.record_action();
        Ok(())
    }

    /// Records that the browser was told to navigate, so that the next operation waits for it.
    fn expect_navigation(&self) {
        self.with_state(|state| state.current_tab().map(|tab| tab.requested_at = Some(Instant::now())));
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
}
