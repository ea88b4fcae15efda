//! The state of a browser's tabs, derived from its DevTools events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::cdp_pipe::{CdpEvent, CdpSendStatus};
use super::page_controller::PageController;
use super::{AllowedSites, DialogPolicy, DownloadPolicy};
use crate::action::{MouseButton, ScreenPoint};
use crate::computer::Screenshot;

/// Maximum number of queued notices.
const MAX_NOTICES: usize = 50;

/// The known state of a browser.
#[derive(Default)]
pub(super) struct BrowserState {
    pub(super) tabs: Vec<TabState>,
    /// Target id of the current tab.
    pub(super) current_target: Option<String>,
    notices: VecDeque<String>,
    /// Notices that are given only once.
    notices_given_once: BTreeSet<String>,
    downloads: BTreeMap<String, String>,
    pub(super) cursor: ScreenPoint,
    pub(super) pressed_button: Option<MouseButton>,
    /// Data of an intercepted drag, if the page supports drag and drop.
    pub(super) drag_data: Option<Value>,
    pub(super) last_screenshot: Option<Screenshot>,
    pub(super) last_action_at: Option<Instant>,
}

/// The known state of a tab.
pub(super) struct TabState {
    pub(super) target: String,
    pub(super) session: String,
    pub(super) url: String,
    pub(super) title: String,
    pub(super) is_ready: bool,
    pub(super) is_loading: bool,
    pub(super) failure: Option<TabFailure>,
    /// Message of the open dialog.
    pub(super) dialog: Option<String>,
    /// Reason why its last navigation was blocked.
    pub(super) blocked_reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TabFailure {
    Unresponsive,
    Crashed,
}

impl BrowserState {
    pub(super) fn current_tab(&mut self) -> Option<&mut TabState> {
        let current = self.current_target.as_deref()?;
        self.tabs.iter_mut().find(|tab| tab.target == current)
    }

    pub(super) fn tab_by_session(&mut self, session: &str) -> Option<&mut TabState> {
        self.tabs.iter_mut().find(|tab| tab.session == session)
    }

    pub(super) fn add_notice(&mut self, note: String) {
        self.notices.push_back(note);
        if self.notices.len() > MAX_NOTICES {
            self.notices.pop_front();
        }
    }

    /// Adds a notice unless it was given before, because pages may cause it repeatedly.
    fn add_notice_once(&mut self, note: String) {
        if self.notices_given_once.len() < MAX_NOTICES && self.notices_given_once.insert(note.clone()) {
            self.add_notice(note);
        }
    }

    pub(super) fn take_notices(&mut self) -> Vec<String> {
        self.notices.drain(..).collect()
    }

    /// Returns true if nothing is loading that a screenshot should wait for.
    pub(super) fn is_loaded(&mut self) -> bool {
        self.tabs.iter().all(|tab| tab.is_ready)
            && self
                .current_tab()
                .is_none_or(|tab| !tab.is_loading || tab.dialog.is_some() || tab.failure.is_some())
    }
}

/// Applies the browser's events to the state until the pipe closes or the controller is dropped.
pub(super) async fn follow_events(mut events: mpsc::Receiver<CdpEvent>, pages: Weak<PageController>) {
    while let Some(event) = events.recv().await {
        let Some(pages) = pages.upgrade() else { return };
        apply_event(&pages, event);
        pages.state_version.send_modify(|changes| *changes += 1);
    }
    if let Some(pages) = pages.upgrade() {
        pages.state_version.send_modify(|changes| *changes += 1);
    }
}

fn apply_event(pages: &Arc<PageController>, event: CdpEvent) {
    let CdpEvent { session, method, params } = event;
    let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
    let session = session.unwrap_or_default();
    match method.as_str() {
        "Target.attachedToTarget" => on_target_attached(pages, &params),
        "Target.detachedFromTarget" => {
            let gone = text("sessionId");
            pages.with_state(|state| {
                state.tabs.retain(|tab| tab.session != gone);
                if state.current_tab().is_none() {
                    state.current_target = state.tabs.last().map(|tab| tab.target.clone());
                }
            });
        }
        "Target.targetInfoChanged" => {
            let info = &params["targetInfo"];
            let (target, url) = (info["targetId"].as_str(), info["url"].as_str());
            pages.with_state(|state| {
                if let Some(tab) = state.tabs.iter_mut().find(|tab| Some(tab.target.as_str()) == target) {
                    tab.url = url.unwrap_or_default().to_owned();
                    tab.title = info["title"].as_str().unwrap_or_default().to_owned();
                }
            });
        }
        "Inspector.targetCrashed" => on_target_crashed(pages, |tab| tab.session == session),
        "Target.targetCrashed" => {
            let target = text("targetId");
            on_target_crashed(pages, |tab| tab.target == target);
        }
        // The id of a page's main frame equals its target id.
        "Page.frameStartedLoading" | "Page.frameStoppedLoading" => {
            let frame = text("frameId");
            pages.with_state(|state| {
                if let Some(tab) = state.tabs.iter_mut().find(|tab| tab.target == frame) {
                    tab.is_loading = method == "Page.frameStartedLoading";
                }
            });
        }
        "Page.javascriptDialogOpening" => on_dialog_opening(pages, &session, &text("type"), &text("message")),
        "Page.javascriptDialogClosed" => pages.with_state(|state| {
            if let Some(tab) = state.tab_by_session(&session) {
                tab.dialog = None;
            }
        }),
        "Fetch.requestPaused" => on_request_paused(pages, &session, &params),
        "Input.dragIntercepted" => pages.with_state(|state| state.drag_data = Some(params["data"].clone())),
        "Browser.downloadWillBegin" => {
            let (guid, name) = (text("guid"), text("suggestedFilename"));
            pages.with_state(|state| {
                if pages.options.downloads == DownloadPolicy::Deny {
                    state.add_notice(format!("The download of `{name}` was refused."));
                } else {
                    state.downloads.insert(guid, name);
                }
            });
        }
        "Browser.downloadProgress" if params["state"] == "completed" => {
            let guid = text("guid");
            pages.with_state(|state| {
                if let (Some(name), DownloadPolicy::SaveTo(folder)) =
                    (state.downloads.remove(&guid), &pages.options.downloads)
                {
                    state.add_notice(format!("`{name}` was downloaded to {}.", folder.join(&guid).display()));
                }
            });
        }
        "Browser.downloadProgress" if params["state"] == "canceled" => {
            let guid = text("guid");
            pages.with_state(|state| state.downloads.remove(&guid));
        }
        _ => {}
    }
}

/// Decides about an intercepted request: continues it or fails it.
fn on_request_paused(pages: &PageController, session: &str, params: &Value) {
    let asked = &params["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (url, method, kind) = (text(&asked["url"]), text(&asked["method"]), text(&params["resourceType"]));
    let (sites, id) = (&pages.options.allowed_sites, &params["requestId"]);
    let is_visit = kind == "Document";
    let refused = match is_visit {
        true => sites.refusal_reason(&url),
        false => pages.options.third_party.refusal_reason(sites, &url, &kind, &method),
    };
    let Some(why) = refused else {
        pages.pipe.send_without_reply(Some(session), "Fetch.continueRequest", json!({ "requestId": id }));
        return;
    };
    // An aborted navigation leaves the page unchanged, so no load event remains to be awaited.
    let reason = if is_visit { "Aborted" } else { "BlockedByClient" };
    pages.pipe.send_without_reply(
        Some(session),
        "Fetch.failRequest",
        json!({ "requestId": id, "errorReason": reason }),
    );
    let frame = text(&params["frameId"]);
    pages.with_state(|state| {
        if !is_visit {
            return state.add_notice_once(format!(
                "A page wanted something of another site and did not get it: {why}."
            ));
        }
        state.add_notice(format!("A page was not opened: {why}."));
        if let Some(tab) = state.tabs.iter_mut().find(|tab| tab.target == frame) {
            tab.blocked_reason = Some(why);
        }
    });
}

/// Sets up a new target. The browser keeps it paused until then, so that no request escapes interception.
fn on_target_attached(pages: &Arc<PageController>, params: &Value) {
    let info = &params["targetInfo"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (session, target) = (text(&params["sessionId"]), text(&info["targetId"]));
    let kind = info["type"].as_str().unwrap_or_default();
    if kind == "page" {
        pages.with_state(|state| {
            if !state.tabs.is_empty() {
                state.add_notice("A new tab was opened, and is the one that is seen.".to_owned());
            }
            state.tabs.push(TabState {
                target: target.clone(),
                session: session.clone(),
                url: text(&info["url"]),
                title: text(&info["title"]),
                is_ready: false,
                is_loading: false,
                failure: None,
                dialog: None,
                blocked_reason: None,
            });
            state.current_target = Some(target);
        });
    }
    let within = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
    let tell = |method: &str, params: Value| pages.pipe.send_without_reply(Some(&session), method, params);
    if matches!(kind, "page" | "iframe" | "worker" | "shared_worker" | "service_worker") {
        let mut told = vec![tell("Target.setAutoAttach", within)];
        if pages.options.allowed_sites != AllowedSites::Any {
            told.push(tell(
                "Fetch.enable",
                json!({ "patterns": pages.options.third_party.intercept_patterns() }),
            ));
        }
        // A target whose requests cannot be intercepted stays paused.
        if told.contains(&CdpSendStatus::Dropped) {
            return;
        }
    }
    if kind != "page" {
        tell("Runtime.runIfWaitingForDebugger", json!({}));
        return;
    }
    tell("Page.enable", json!({}));
    tell("Inspector.enable", json!({}));
    tell("Page.setInterceptFileChooserDialog", json!({ "enabled": true }));
    let (width, height) = (pages.options.width, pages.options.height);
    let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    tell("Emulation.setDeviceMetricsOverride", metrics);
    tell("Runtime.runIfWaitingForDebugger", json!({}));
    tell("Page.bringToFront", json!({}));
    let pages = Arc::downgrade(pages);
    tokio::spawn(async move {
        let Some(pages) = pages.upgrade() else { return };
        // Responses arrive in order, so this one confirms the commands before it.
        let within = pages.options.response_timeout;
        let answered = pages.pipe.call_command(Some(&session), "Page.getFrameTree", json!({}), within).await;
        if let Err(error) = answered {
            tracing::debug!(?error, "a tab did not answer");
        }
        pages.with_state(|state| {
            if let Some(tab) = state.tab_by_session(&session) {
                tab.is_ready = true;
            }
        });
        pages.state_version.send_modify(|changes| *changes += 1);
    });
}

fn on_target_crashed(pages: &PageController, is_it: impl Fn(&TabState) -> bool) {
    pages.with_state(|state| {
        if let Some(tab) = state.tabs.iter_mut().find(|tab| is_it(tab)) {
            tab.failure = Some(TabFailure::Crashed);
            tab.dialog = None;
        }
    });
}

fn on_dialog_opening(pages: &PageController, session: &str, kind: &str, message: &str) {
    let answer = match (kind, pages.options.dialogs) {
        // A page must not be able to prevent its own closing.
        ("beforeunload", _) | (_, DialogPolicy::Accept) => Some(true),
        (_, DialogPolicy::Dismiss) => Some(false),
        (_, DialogPolicy::AskModel) => None,
    };
    let shown = &message[..message.floor_char_boundary(1000)];
    pages.with_state(|state| match answer {
        Some(accept) => {
            let said = if accept { "accepted" } else { "dismissed" };
            state.add_notice(format!("The page showed a dialog ({kind}): \"{shown}\". It was {said}."));
        }
        None => {
            if let Some(tab) = state.tab_by_session(session) {
                tab.dialog = Some(format!(
                    "The page shows a dialog ({kind}): \"{shown}\". It must be answered before anything else can \
                     be done; the picture is from before."
                ));
            }
        }
    });
    if let Some(accept) = answer {
        pages.pipe.send_without_reply(
            Some(session),
            "Page.handleJavaScriptDialog",
            json!({ "accept": accept }),
        );
    }
}
