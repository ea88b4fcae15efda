//! The pages of a browser: looking, going places, tabs, dialogs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::pipe::{CommandError, Pending, Pipe};
use super::state::{Broken, State};
use super::{BrowserOptions, Downloads};
use crate::action::{Answer, Point, Region};
use crate::computer::{ComputerError, Screenshot, Tab, Travel};

/// How long after an action a page has to begin what the action leads to.
const BEGINNING: Duration = Duration::from_millis(40);

pub(super) struct Pages {
    pub(super) pipe: Pipe,
    pub(super) options: BrowserOptions,
    pub(super) changed: watch::Sender<u64>,
    state: Mutex<State>,
}

/// What kept a page from answering.
enum Interrupted {
    Dialog,
    Crashed,
    Closed,
}

impl Pages {
    pub(super) fn new(pipe: Pipe, options: BrowserOptions) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        Arc::new(Self { pipe, options, changed, state: Mutex::default() })
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the browser over: every page from now on is known of before it does anything.
    pub(super) async fn begin(&self, within: Duration) -> Result<(), ComputerError> {
        let until = Instant::now() + within;
        let call = async |method: &str, params: Value| {
            self.pipe.call(None, method, params, within).await.map_err(|error| self.gone(error))
        };
        call("Target.setDiscoverTargets", json!({ "discover": true })).await?;
        let downloads = match &self.options.downloads {
            Downloads::Refuse => json!({ "behavior": "deny", "eventsEnabled": true }),
            Downloads::Into(folder) => {
                json!({ "behavior": "allowAndName", "downloadPath": folder, "eventsEnabled": true })
            }
        };
        call("Browser.setDownloadBehavior", downloads).await?;
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        call("Target.setAutoAttach", attach).await?;
        self.wait_until(until, |state| state.current().is_some_and(|tab| tab.is_ready)).await;
        let is_there = self.with(|state| state.current().is_some_and(|tab| tab.is_ready));
        if is_there { Ok(()) } else { Err(ComputerError::Failed("it shows no page".to_owned())) }
    }

    /// Asks the browser to end.
    pub(super) fn end(&self) {
        self.pipe.tell(None, "Browser.close", json!({}));
    }

    pub(super) fn cursor(&self) -> Point {
        self.with(|state| state.cursor)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.with(|state| {
            let mut notes = state.take_notes();
            notes.extend(state.current().and_then(|tab| tab.dialog.clone()));
            notes
        })
    }

    /// The session of the page that is seen, where it can be asked for something.
    pub(super) fn session(&self) -> Result<String, ComputerError> {
        if self.pipe.is_closed() {
            return Err(ComputerError::Gone("the browser has ended".to_owned()));
        }
        self.with(|state| {
            let last = state.last.clone();
            let Some(tab) = state.current() else {
                return Err(ComputerError::Refused("no tab is open; go to an address first".to_owned()));
            };
            match (tab.broken, &tab.dialog) {
                (Some(Broken::Crashed), _) => Err(ComputerError::Crashed { last }),
                (Some(Broken::Hung), _) => {
                    Err(ComputerError::Hung { waited: self.options.answer_within, last })
                }
                (None, Some(dialog)) => Err(ComputerError::Refused(dialog.clone())),
                (None, None) => Ok(tab.session.clone()),
            }
        })
    }

    /// Asks the page that is seen.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, ComputerError> {
        let session = self.session()?;
        let pending =
            self.pipe.send(Some(&session), method, params).await.map_err(|error| self.gone(error))?;
        self.answer(&session, pending).await
    }

    /// Waits for a page to answer. A dialog that opens, or a page that goes, is an answer too: what was asked for has
    /// happened then. A page that does not answer is hung.
    pub(super) async fn answer(&self, session: &str, pending: Pending) -> Result<Value, ComputerError> {
        let mut changed = self.changed.subscribe();
        let within = self.options.answer_within;
        let answer = pending.answer(within);
        tokio::pin!(answer);
        loop {
            // It may have happened before anybody waited. What was answered all the same counts.
            if let Some(interrupted) = self.interrupted(session) {
                if let Some(answer) = (&mut answer).now_or_never() {
                    return self.made_of(session, answer);
                }
                return match interrupted {
                    Interrupted::Dialog | Interrupted::Closed => Ok(Value::Null),
                    Interrupted::Crashed => {
                        Err(ComputerError::Crashed { last: self.with(|state| state.last.clone()) })
                    }
                };
            }
            tokio::select! {
                biased;
                answer = &mut answer => return self.made_of(session, answer),
                _ = changed.changed() => {}
            }
        }
    }

    fn made_of(&self, session: &str, answer: Result<Value, CommandError>) -> Result<Value, ComputerError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(CommandError::Late(waited)) => {
                let last = self.with(|state| {
                    if let Some(tab) = state.by_session(session) {
                        tab.broken = Some(Broken::Hung);
                    }
                    state.last.clone()
                });
                Err(ComputerError::Hung { waited, last })
            }
            Err(CommandError::Refused(_)) if self.with(|state| state.by_session(session).is_none()) => {
                Ok(Value::Null)
            }
            Err(error) => Err(self.gone(error)),
        }
    }

    fn interrupted(&self, session: &str) -> Option<Interrupted> {
        self.with(|state| match state.by_session(session) {
            None => Some(Interrupted::Closed),
            Some(tab) if tab.broken == Some(Broken::Crashed) => Some(Interrupted::Crashed),
            Some(tab) => tab.dialog.is_some().then_some(Interrupted::Dialog),
        })
    }

    fn gone(&self, error: CommandError) -> ComputerError {
        match error {
            CommandError::Gone => ComputerError::Gone("the browser has ended".to_owned()),
            CommandError::Late(waited) => {
                ComputerError::Hung { waited, last: self.with(|state| state.last.clone()) }
            }
            CommandError::Refused(message) => ComputerError::Failed(message),
        }
    }

    /// Remembers that something was done, which may lead to something that has to be waited for.
    pub(super) fn acted(&self) {
        self.with(|state| state.acted = Some(Instant::now()));
    }

    /// Waits until what the last action led to is there, within bounds.
    pub(super) async fn settle(&self) {
        if let Some(acted) = self.with(|state| state.acted.take()) {
            tokio::time::sleep_until(acted + BEGINNING).await;
        }
        self.wait_until(Instant::now() + self.options.settle_within, State::is_settled).await;
    }

    async fn wait_until(&self, until: Instant, mut is_so: impl FnMut(&mut State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !self.with(&mut is_so) && !self.pipe.is_closed() {
            let waited = tokio::time::timeout_at(until, changed.changed()).await;
            if !matches!(waited, Ok(Ok(()))) {
                return;
            }
        }
    }

    pub(super) async fn screenshot(&self) -> Result<Screenshot, ComputerError> {
        self.capture(json!({ "format": "png" })).await
    }

    pub(super) async fn zoom(&self, region: Region) -> Result<Screenshot, ComputerError> {
        let wide = f64::from(self.options.width) / f64::from(region.width().max(1));
        let high = f64::from(self.options.height) / f64::from(region.height().max(1));
        let clip = json!({
            "x": region.from.x, "y": region.from.y, "width": region.width(), "height": region.height(),
            "scale": wide.min(high).clamp(1.0, 4.0),
        });
        self.capture(json!({ "format": "png", "clip": clip })).await
    }

    async fn capture(&self, params: Value) -> Result<Screenshot, ComputerError> {
        self.settle().await;
        let is_whole = params.get("clip").is_none();
        // A page that shows a dialog does not draw, so the picture from before has to do.
        let before = self.with(|state| {
            let has_dialog = state.current().is_some_and(|tab| tab.dialog.is_some());
            state.last.clone().filter(|_| has_dialog)
        });
        if let Some(before) = before {
            return Ok(before);
        }
        let answer = self.ask("Page.captureScreenshot", params).await?;
        match answer["data"].as_str() {
            Some(data) => {
                let screenshot = Screenshot::of_base64(data);
                if is_whole {
                    self.with(|state| state.last = Some(screenshot.clone()));
                }
                Ok(screenshot)
            }
            None => match self.with(|state| state.last.clone()) {
                Some(before) => Ok(before),
                None => Err(ComputerError::Failed("the page gave no picture".to_owned())),
            },
        }
    }

    pub(super) async fn navigate(&self, url: &str) -> Result<(), ComputerError> {
        if let Some(why) = self.options.sites.refuses(url) {
            return Err(ComputerError::Refused(why));
        }
        self.working_tab().await?;
        self.with(|state| state.current().map(|tab| tab.refused = None));
        let answer = self.ask("Page.navigate", json!({ "url": url })).await?;
        self.acted();
        self.settle().await;
        // A listed site may have sent it on to one that is not.
        if let Some(why) = self.with(|state| state.current().and_then(|tab| tab.refused.take())) {
            return Err(ComputerError::Refused(why));
        }
        match answer["errorText"].as_str() {
            // A download is no page, and has its own note.
            None | Some("" | "net::ERR_ABORTED") => Ok(()),
            Some(why) => Err(ComputerError::Refused(format!("the page could not be opened: {why}"))),
        }
    }

    /// Sees to it that there is a tab that answers: one that crashed or hangs is given up for a new one.
    async fn working_tab(&self) -> Result<(), ComputerError> {
        let (current, is_broken) = self.with(|state| match state.current() {
            Some(tab) => (Some(tab.target.clone()), tab.broken.is_some()),
            None => (None, true),
        });
        if !is_broken {
            return Ok(());
        }
        let within = self.options.answer_within;
        let made = self.pipe.call(None, "Target.createTarget", json!({ "url": "about:blank" }), within).await;
        let made =
            made.map_err(|error| self.gone(error))?["targetId"].as_str().unwrap_or_default().to_owned();
        if let Some(old) = current {
            self.pipe.tell(None, "Target.closeTarget", json!({ "targetId": old }));
            self.with(|state| state.tabs.retain(|tab| tab.target != old));
        }
        self.wait_until(Instant::now() + within, |state| {
            state.tabs.iter().any(|tab| tab.target == made && tab.is_ready)
        })
        .await;
        self.with(|state| state.current = Some(made));
        Ok(())
    }

    pub(super) async fn travel(&self, travel: Travel) -> Result<(), ComputerError> {
        let step = match travel {
            Travel::Reload => {
                self.ask("Page.reload", json!({})).await?;
                self.acted();
                return Ok(());
            }
            Travel::Back => -1,
            Travel::Forward => 1,
        };
        let history = self.ask("Page.getNavigationHistory", json!({})).await?;
        let at = history["currentIndex"].as_i64().unwrap_or(0) + step;
        let entry =
            usize::try_from(at).ok().and_then(|at| history["entries"].get(at)).map(|entry| &entry["id"]);
        let Some(entry) = entry else {
            return Err(ComputerError::Refused("there is no page there".to_owned()));
        };
        self.ask("Page.navigateToHistoryEntry", json!({ "entryId": entry })).await?;
        self.acted();
        Ok(())
    }

    pub(super) fn tabs(&self) -> Vec<Tab> {
        self.with(|state| {
            let current = state.current.clone();
            let tabs = state.tabs.iter().map(|tab| Tab {
                url: tab.url.clone(),
                title: tab.title.clone(),
                is_current: Some(&tab.target) == current.as_ref(),
            });
            tabs.collect()
        })
    }

    fn target(&self, tab: usize) -> Result<String, ComputerError> {
        let found = self.with(|state| state.tabs.get(tab).map(|tab| tab.target.clone()));
        found.ok_or_else(|| ComputerError::Refused(format!("there is no tab {tab}")))
    }

    pub(super) async fn switch_tab(&self, tab: usize) -> Result<(), ComputerError> {
        let target = self.target(tab)?;
        let within = self.options.answer_within;
        let shown =
            self.pipe.call(None, "Target.activateTarget", json!({ "targetId": target }), within).await;
        shown.map_err(|error| self.gone(error))?;
        self.with(|state| state.current = Some(target));
        Ok(())
    }

    pub(super) async fn close_tab(&self, tab: usize) -> Result<(), ComputerError> {
        let target = self.target(tab)?;
        if self.with(|state| state.tabs.len()) == 1 {
            return Err(ComputerError::Refused("the last tab stays open".to_owned()));
        }
        let within = self.options.answer_within;
        let closed = self.pipe.call(None, "Target.closeTarget", json!({ "targetId": target }), within).await;
        closed.map_err(|error| self.gone(error))?;
        self.wait_until(Instant::now() + within, |state| state.tabs.iter().all(|tab| tab.target != target))
            .await;
        Ok(())
    }

    pub(super) async fn answer_dialog(
        &self,
        answer: Answer,
        text: Option<&str>,
    ) -> Result<(), ComputerError> {
        let open = self
            .with(|state| state.current().filter(|tab| tab.dialog.is_some()).map(|tab| tab.session.clone()));
        let Some(session) = open else {
            return Err(ComputerError::Refused("no dialog is open".to_owned()));
        };
        let mut params = json!({ "accept": answer == Answer::Accept });
        if let Some(text) = text {
            params["promptText"] = text.into();
        }
        let within = self.options.answer_within;
        let answered = self.pipe.call(Some(&session), "Page.handleJavaScriptDialog", params, within).await;
        answered.map_err(|error| self.gone(error))?;
        self.with(|state| {
            if let Some(tab) = state.by_session(&session) {
                tab.dialog = None;
            }
        });
        self.acted();
        Ok(())
    }
}
