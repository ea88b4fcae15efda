//! What a browser tells of its own accord, and what is known of its tabs from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::page::Pages;
use super::pipe::{Event, Told};
use super::{Dialogs, Downloads, Sites};
use crate::action::{Button, Point};
use crate::computer::Screenshot;

/// How many notes wait to be told.
const NOTES: usize = 50;

/// What is known of a browser.
#[derive(Default)]
pub(super) struct State {
    pub(super) tabs: Vec<Known>,
    /// The target of the tab that is seen.
    pub(super) current: Option<String>,
    notes: VecDeque<String>,
    /// Notes that are not told again.
    told: BTreeSet<String>,
    downloads: BTreeMap<String, String>,
    pub(super) cursor: Point,
    pub(super) pressed: Option<Button>,
    /// What a page lets be dragged, where it does that itself.
    pub(super) dragged: Option<Value>,
    pub(super) last: Option<Screenshot>,
    pub(super) acted: Option<Instant>,
}

/// A tab.
pub(super) struct Known {
    pub(super) target: String,
    pub(super) session: String,
    pub(super) url: String,
    pub(super) title: String,
    pub(super) is_ready: bool,
    pub(super) is_loading: bool,
    pub(super) broken: Option<Broken>,
    /// What its dialog says, where one is open.
    pub(super) dialog: Option<String>,
    /// Why it did not go where it was to go last.
    pub(super) refused: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Hung,
    Crashed,
}

impl State {
    pub(super) fn current(&mut self) -> Option<&mut Known> {
        let current = self.current.as_deref()?;
        self.tabs.iter_mut().find(|tab| tab.target == current)
    }

    pub(super) fn by_session(&mut self, session: &str) -> Option<&mut Known> {
        self.tabs.iter_mut().find(|tab| tab.session == session)
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push_back(note);
        if self.notes.len() > NOTES {
            self.notes.pop_front();
        }
    }

    /// A note that pages give cause for again and again is told once.
    fn note_once(&mut self, note: String) {
        if self.told.len() < NOTES && self.told.insert(note.clone()) {
            self.note(note);
        }
    }

    pub(super) fn take_notes(&mut self) -> Vec<String> {
        self.notes.drain(..).collect()
    }

    /// Whether there is nothing to wait for before looking.
    pub(super) fn is_settled(&mut self) -> bool {
        self.tabs.iter().all(|tab| tab.is_ready)
            && self
                .current()
                .is_none_or(|tab| !tab.is_loading || tab.dialog.is_some() || tab.broken.is_some())
    }
}

/// Follows what the browser tells, until it is gone or nobody wants to know.
pub(super) async fn follow(mut events: mpsc::Receiver<Event>, pages: Weak<Pages>) {
    while let Some(event) = events.recv().await {
        let Some(pages) = pages.upgrade() else { return };
        take(&pages, event);
        pages.changed.send_modify(|changes| *changes += 1);
    }
    if let Some(pages) = pages.upgrade() {
        pages.changed.send_modify(|changes| *changes += 1);
    }
}

fn take(pages: &Arc<Pages>, event: Event) {
    let Event { session, method, params } = event;
    let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
    let session = session.unwrap_or_default();
    match method.as_str() {
        "Target.attachedToTarget" => attached(pages, &params),
        "Target.detachedFromTarget" => {
            let gone = text("sessionId");
            pages.with(|state| {
                state.tabs.retain(|tab| tab.session != gone);
                if state.current().is_none() {
                    state.current = state.tabs.last().map(|tab| tab.target.clone());
                }
            });
        }
        "Target.targetInfoChanged" => {
            let info = &params["targetInfo"];
            let (target, url) = (info["targetId"].as_str(), info["url"].as_str());
            pages.with(|state| {
                if let Some(tab) = state.tabs.iter_mut().find(|tab| Some(tab.target.as_str()) == target) {
                    tab.url = url.unwrap_or_default().to_owned();
                    tab.title = info["title"].as_str().unwrap_or_default().to_owned();
                }
            });
        }
        "Inspector.targetCrashed" => crashed(pages, |tab| tab.session == session),
        "Target.targetCrashed" => {
            let target = text("targetId");
            crashed(pages, |tab| tab.target == target);
        }
        // The main frame of a page has the name of its target.
        "Page.frameStartedLoading" | "Page.frameStoppedLoading" => {
            let frame = text("frameId");
            pages.with(|state| {
                if let Some(tab) = state.tabs.iter_mut().find(|tab| tab.target == frame) {
                    tab.is_loading = method == "Page.frameStartedLoading";
                }
            });
        }
        "Page.javascriptDialogOpening" => dialog(pages, &session, &text("type"), &text("message")),
        "Page.javascriptDialogClosed" => pages.with(|state| {
            if let Some(tab) = state.by_session(&session) {
                tab.dialog = None;
            }
        }),
        "Fetch.requestPaused" => request(pages, &session, &params),
        "Input.dragIntercepted" => pages.with(|state| state.dragged = Some(params["data"].clone())),
        "Browser.downloadWillBegin" => {
            let (guid, name) = (text("guid"), text("suggestedFilename"));
            pages.with(|state| {
                if pages.options.downloads == Downloads::Refuse {
                    state.note(format!("The download of `{name}` was refused."));
                } else {
                    state.downloads.insert(guid, name);
                }
            });
        }
        "Browser.downloadProgress" if params["state"] == "completed" => {
            let guid = text("guid");
            pages.with(|state| {
                if let (Some(name), Downloads::Into(folder)) =
                    (state.downloads.remove(&guid), &pages.options.downloads)
                {
                    state.note(format!("`{name}` was downloaded to {}.", folder.join(&guid).display()));
                }
            });
        }
        "Browser.downloadProgress" if params["state"] == "canceled" => {
            let guid = text("guid");
            pages.with(|state| state.downloads.remove(&guid));
        }
        _ => {}
    }
}

/// A request waits for us to say whether it may be made.
fn request(pages: &Pages, session: &str, params: &Value) {
    let asked = &params["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (url, method, kind) = (text(&asked["url"]), text(&asked["method"]), text(&params["resourceType"]));
    let (sites, id) = (&pages.options.sites, &params["requestId"]);
    let is_visit = kind == "Document";
    let refused = match is_visit {
        true => sites.refuses(&url),
        false => pages.options.elsewhere.refuses(sites, &url, &kind, &method),
    };
    let Some(why) = refused else {
        pages.pipe.tell(Some(session), "Fetch.continueRequest", json!({ "requestId": id }));
        return;
    };
    // A visit that is aborted leaves the page where it is, so that nothing has still to end.
    let reason = if is_visit { "Aborted" } else { "BlockedByClient" };
    pages.pipe.tell(Some(session), "Fetch.failRequest", json!({ "requestId": id, "errorReason": reason }));
    let frame = text(&params["frameId"]);
    pages.with(|state| {
        if !is_visit {
            return state
                .note_once(format!("A page wanted something of another site and did not get it: {why}."));
        }
        state.note(format!("A page was not opened: {why}."));
        if let Some(tab) = state.tabs.iter_mut().find(|tab| tab.target == frame) {
            tab.refused = Some(why);
        }
    });
}

/// A target is held until it is set up, so that nothing of it happens unseen.
fn attached(pages: &Arc<Pages>, params: &Value) {
    let info = &params["targetInfo"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (session, target) = (text(&params["sessionId"]), text(&info["targetId"]));
    let kind = info["type"].as_str().unwrap_or_default();
    if kind == "page" {
        pages.with(|state| {
            if !state.tabs.is_empty() {
                state.note("A new tab was opened, and is the one that is seen.".to_owned());
            }
            state.tabs.push(Known {
                target: target.clone(),
                session: session.clone(),
                url: text(&info["url"]),
                title: text(&info["title"]),
                is_ready: false,
                is_loading: false,
                broken: None,
                dialog: None,
                refused: None,
            });
            state.current = Some(target);
        });
    }
    let within = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
    let tell = |method: &str, params: Value| pages.pipe.tell(Some(&session), method, params);
    if matches!(kind, "page" | "iframe" | "worker" | "shared_worker" | "service_worker") {
        let mut told = vec![tell("Target.setAutoAttach", within)];
        if pages.options.sites != Sites::Any {
            told.push(tell("Fetch.enable", json!({ "patterns": pages.options.elsewhere.patterns() })));
        }
        // What is not watched does not begin.
        if told.contains(&Told::Lost) {
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
        // Commands are answered in order: when this one is, those before it have been.
        let within = pages.options.answer_within;
        let answered = pages.pipe.call(Some(&session), "Page.getFrameTree", json!({}), within).await;
        if let Err(error) = answered {
            tracing::debug!(?error, "a tab did not answer");
        }
        pages.with(|state| {
            if let Some(tab) = state.by_session(&session) {
                tab.is_ready = true;
            }
        });
        pages.changed.send_modify(|changes| *changes += 1);
    });
}

fn crashed(pages: &Pages, is_it: impl Fn(&Known) -> bool) {
    pages.with(|state| {
        if let Some(tab) = state.tabs.iter_mut().find(|tab| is_it(tab)) {
            tab.broken = Some(Broken::Crashed);
            tab.dialog = None;
        }
    });
}

fn dialog(pages: &Pages, session: &str, kind: &str, message: &str) {
    let answer = match (kind, pages.options.dialogs) {
        // Nobody may be kept on a page.
        ("beforeunload", _) | (_, Dialogs::Accept) => Some(true),
        (_, Dialogs::Dismiss) => Some(false),
        (_, Dialogs::ToModel) => None,
    };
    let shown = &message[..message.floor_char_boundary(1000)];
    pages.with(|state| match answer {
        Some(accept) => {
            let said = if accept { "accepted" } else { "dismissed" };
            state.note(format!("The page showed a dialog ({kind}): \"{shown}\". It was {said}."));
        }
        None => {
            if let Some(tab) = state.by_session(session) {
                tab.dialog = Some(format!(
                    "The page shows a dialog ({kind}): \"{shown}\". It must be answered before anything else can \
                     be done; the picture is from before."
                ));
            }
        }
    });
    if let Some(accept) = answer {
        pages.pipe.tell(Some(session), "Page.handleJavaScriptDialog", json!({ "accept": accept }));
    }
}
