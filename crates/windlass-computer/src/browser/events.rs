//! The handling of the browser's DevTools events.

use std::path::Path;
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use windlass_net::check_network_ban;

use super::cdp_pipe::{CdpEvent, CdpIncoming, CdpSendStatus};
use super::page_controller::PageController;
use super::page_scripts::{PERMISSION_BINDING, PERMISSION_SCRIPT, WIDGET_SCRIPT};
use super::private_network::{HostNetwork, PrivateNetworkPolicy, host_of};
use super::questions::{
    on_authentication, on_context_created, on_dialog_opening, on_file_chooser, on_permission,
};
use super::site_policy::document_patterns;
use super::state::{LoadState, TabFailure, TabState};
use super::unpainted_page::on_stopped_loading;
use super::{AllowedSites, DownloadPolicy};

/// Maximum length of the name of a download, in bytes.
const MAX_NAME_BYTES: usize = 150;
/// Maximum delay of a scheduled navigation that is waited for, in seconds.
const MAX_NAVIGATION_DELAY: f64 = 0.5;

/// Applies the browser's events to the state, and delivers its responses in their order, until the pipe closes or
/// the controller is dropped.
pub(super) async fn follow_messages(mut messages: mpsc::Receiver<CdpIncoming>, pages: Weak<PageController>) {
    while let Some(message) = messages.recv().await {
        let event = match message {
            CdpIncoming::Reply(reply) => {
                reply.deliver();
                continue;
            }
            CdpIncoming::Event(event) => event,
        };
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
        "Target.attachedToTarget" => on_target_attached(pages, &session, &params),
        "Target.detachedFromTarget" => {
            let gone = text("sessionId");
            pages.with_state(|state| state.remove_session(&gone));
        }
        "Target.targetInfoChanged" => on_target_changed(pages, &params["targetInfo"]),
        "Inspector.targetCrashed" => on_target_crashed(pages, |tab| tab.session == session),
        "Target.targetCrashed" => {
            let target = text("targetId");
            on_target_crashed(pages, |tab| tab.target == target);
        }
        // The id of a page's main frame equals its target id.
        "Page.frameStartedLoading" => {
            let frame = text("frameId");
            pages.with_state(|state| {
                if let Some(tab) = state.tab_by_target(&frame) {
                    (tab.load, tab.requested_at) = (LoadState::Loading { since: Instant::now() }, None);
                }
            });
        }
        "Page.frameStoppedLoading" => on_stopped_loading(pages, &text("frameId")),
        "Page.frameScheduledNavigation" | "Page.frameRequestedNavigation" => {
            let frame = text("frameId");
            // A refresh after a while is no navigation yet, and one in another tab has events of its own.
            let is_now = params["delay"].as_f64().unwrap_or(0.0) <= MAX_NAVIGATION_DELAY
                && params["disposition"].as_str().is_none_or(|place| place == "currentTab");
            pages.with_state(|state| {
                if let Some(tab) = state.tab_by_target(&frame).filter(|_| is_now)
                    && !matches!(tab.load, LoadState::Loading { .. })
                {
                    tab.requested_at = Some(Instant::now());
                }
            });
        }
        "Page.frameClearedScheduledNavigation" | "Page.navigatedWithinDocument" => {
            forget_requested_navigation(pages, &text("frameId"));
        }
        "Page.frameNavigated" => {
            let frame = params["frame"]["id"].as_str().unwrap_or_default();
            forget_requested_navigation(pages, frame);
            pages.with_state(|state| {
                if let Some(tab) = state.tab_by_target(frame) {
                    (tab.has_document, tab.is_parsed) = (true, false);
                }
                // The field of the file chooser is gone with its document.
                if let Some(tab) = state.tab_of_session(&session) {
                    let (target, chooser) = (&tab.target, &mut tab.file_chooser);
                    chooser.take_if(|open| target == frame || open.field.frame.frame == frame);
                }
            });
        }
        "Page.domContentEventFired" => pages.with_state(|state| {
            if let Some(tab) = state.tab_by_session(&session) {
                tab.is_parsed = true;
                if matches!(tab.load, LoadState::Loading { .. }) {
                    tab.load = LoadState::Interactive { since: Instant::now() };
                }
            }
        }),
        "Page.javascriptDialogOpening" => on_dialog_opening(pages, &session, &params),
        "Page.javascriptDialogClosed" => pages.with_state(|state| {
            if let Some(tab) = state.tab_of_session(&session) {
                tab.dialog = None;
            }
        }),
        "Page.fileChooserOpened" => on_file_chooser(pages, &session, &params),
        "Fetch.requestPaused" => on_request_paused(pages, &session, &params),
        "Fetch.authRequired" => on_authentication(pages, &session, &params),
        "Runtime.bindingCalled" if params["name"] == PERMISSION_BINDING => {
            on_permission(pages, &session, &params);
        }
        "Runtime.executionContextCreated" => on_context_created(pages, &session, &params["context"]),
        "Runtime.executionContextDestroyed" => pages.with_state(|state| {
            state.remove_context(&session, params["executionContextId"].as_i64().unwrap_or_default());
        }),
        "Runtime.executionContextsCleared" => pages.with_state(|state| state.remove_contexts(&session)),
        "Input.dragIntercepted" => pages.with_state(|state| {
            state.drag_data = Some(params["data"].clone());
            state.is_drag_inside = false;
        }),
        "Browser.downloadWillBegin" => {
            forget_requested_navigation(pages, &text("frameId"));
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
                    let path = name_download(folder, &guid, &name);
                    state.add_notice(format!("`{name}` was downloaded to {}.", path.display()));
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

/// Forgets that a page requested a navigation, because it has come about or never will.
fn forget_requested_navigation(pages: &PageController, frame: &str) {
    pages.with_state(|state| state.tab_by_target(frame).map(|tab| tab.requested_at = None));
}

/// Gives a download the name that the site suggests, without folders and without replacing a file.
fn name_download(folder: &Path, guid: &str, suggested: &str) -> std::path::PathBuf {
    let saved = folder.join(guid);
    let clean: String = suggested
        .rsplit(['/', '\\'])
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|char| !char.is_control() && !matches!(char, ':' | '*' | '?' | '"' | '<' | '>' | '|'))
        .collect();
    let clean = clean.trim().trim_start_matches('.');
    let clean = &clean[..clean.floor_char_boundary(MAX_NAME_BYTES)];
    let clean = if clean.is_empty() { "download" } else { clean };
    let (stem, ending) = match clean.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() => (stem, format!(".{ending}")),
        _ => (clean, String::new()),
    };
    for number in 0..1000 {
        let name = match number {
            0 => clean.to_owned(),
            number => format!("{stem} ({number}){ending}"),
        };
        let path = folder.join(name);
        // A link fails if the name is taken, so that no file is replaced.
        if std::fs::hard_link(&saved, &path).is_ok() {
            let _ = std::fs::remove_file(&saved);
            return path;
        }
    }
    saved
}

/// Returns true if a tab may not show a URL, because it is a page of the browser itself or a local file.
fn is_forbidden_page(url: &str) -> bool {
    match url.split_once(':') {
        None => false,
        Some(("about", page)) => !matches!(page, "blank" | "srcdoc"),
        Some(("http" | "https" | "blob" | "data" | "chrome-error" | "javascript", _)) => false,
        Some(_) => true,
    }
}

fn on_target_changed(pages: &Arc<PageController>, info: &Value) {
    let (target, url) =
        (info["targetId"].as_str().unwrap_or_default(), info["url"].as_str().unwrap_or_default());
    let known = pages.with_state(|state| {
        let tab = state.tab_by_target(target)?;
        tab.url = url.to_owned();
        tab.title = info["title"].as_str().unwrap_or_default().to_owned();
        Some(tab.session.clone())
    });
    if let Some(session) = known
        && is_forbidden_page(url)
    {
        leave_forbidden_page(pages, &session, target, url);
    }
}

/// Leaves a page of the browser itself, which a key or a link opened.
fn leave_forbidden_page(pages: &PageController, session: &str, target: &str, url: &str) {
    let is_only = pages.with_state(|state| {
        state.add_notice_once(format!("A page of the browser itself was closed: {url}."));
        state.tabs.iter().all(|tab| tab.target == target)
    });
    match is_only {
        true => {
            pages.pipe.send_without_reply(Some(session), "Page.navigate", json!({ "url": "about:blank" }))
        }
        false => pages.pipe.send_without_reply(None, "Target.closeTarget", json!({ "targetId": target })),
    };
}

/// Decides about an intercepted request: continues it or fails it.
fn on_request_paused(pages: &Arc<PageController>, session: &str, params: &Value) {
    let asked = &params["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (url, method, kind) = (text(&asked["url"]), text(&asked["method"]), text(&params["resourceType"]));
    if let Some(Err(banned)) = host_of(&url).map(|host| check_network_ban(&host)) {
        return fail_request(pages, session, params, banned.to_string());
    }
    let sites = &pages.options.allowed_sites;
    let is_visit = kind == "Document";
    let refused = match is_visit {
        true => sites.refusal_reason(&url),
        false => pages.options.third_party.refusal_reason(sites, &url, &kind, &method),
    };
    if let Some(why) = refused {
        return fail_request(pages, session, params, why);
    }
    let is_guarded =
        pages.options.private_networks == PrivateNetworkPolicy::Deny && !sites.lists_host_of(&url);
    let Some(host) = host_of(&url).filter(|_| is_guarded) else {
        return continue_request(pages, session, params);
    };
    match pages.lookups.known_network(&host) {
        HostNetwork::Public => continue_request(pages, session, params),
        HostNetwork::Private => fail_request(pages, session, params, private_reason(&host)),
        // A proxy resolves the names of hosts itself.
        HostNetwork::Unknown if pages.options.proxy.is_some() => continue_request(pages, session, params),
        HostNetwork::Unknown => {
            let (pages, session, params) = (pages.clone(), session.to_owned(), params.clone());
            tokio::spawn(async move {
                match pages.lookups.look_up(&host).await {
                    HostNetwork::Public => continue_request(&pages, &session, &params),
                    HostNetwork::Private => fail_request(&pages, &session, &params, private_reason(&host)),
                    HostNetwork::Unknown => fail_request(&pages, &session, &params, unknown_reason(&host)),
                }
                pages.state_version.send_modify(|changes| *changes += 1);
            });
        }
    }
}

fn private_reason(host: &str) -> String {
    format!("the site `{host}` is in a private network, which may not be visited")
}

fn unknown_reason(host: &str) -> String {
    format!(
        "the address of the site `{host}` could not be looked up, so it may be in a private network, which may not be \
         visited"
    )
}

fn continue_request(pages: &PageController, session: &str, params: &Value) {
    let id = &params["requestId"];
    pages.pipe.send_without_reply(Some(session), "Fetch.continueRequest", json!({ "requestId": id }));
}

fn fail_request(pages: &PageController, session: &str, params: &Value, why: String) {
    let is_visit = params["resourceType"] == "Document";
    // An aborted navigation leaves the page unchanged, so no load event remains to be awaited.
    let reason = if is_visit { "Aborted" } else { "BlockedByClient" };
    pages.pipe.send_without_reply(
        Some(session),
        "Fetch.failRequest",
        json!({ "requestId": params["requestId"], "errorReason": reason }),
    );
    let frame = params["frameId"].as_str().unwrap_or_default();
    pages.with_state(|state| {
        if !is_visit {
            return state.add_notice_once(format!(
                "A page wanted something of another site and did not get it: {why}."
            ));
        }
        state.add_notice(format!("A page was not opened: {why}."));
        if let Some(tab) = state.tab_by_target(frame) {
            (tab.blocked_reason, tab.requested_at) = (Some(why), None);
        }
    });
    if is_visit {
        close_empty_tab(pages, frame);
    }
}

/// Closes a tab whose first document was refused: it will never show anything, and has no picture.
fn close_empty_tab(pages: &PageController, target: &str) {
    let is_closed = pages.with_state(|state| {
        let is_empty = state.tab_by_target(target).is_some_and(|tab| !tab.has_document);
        if !is_empty || state.tabs.len() == 1 {
            return false;
        }
        state.tabs.retain(|tab| tab.target != target);
        state.add_notice("The new tab was closed, because it has no page.".to_owned());
        if state.current_tab().is_none() {
            state.current_target = state.tabs.last().map(|tab| tab.target.clone());
        }
        true
    });
    if is_closed {
        pages.pipe.send_without_reply(None, "Target.closeTarget", json!({ "targetId": target }));
    }
}

/// Sets up a new target. The browser keeps it paused until then, so that no request escapes interception.
fn on_target_attached(pages: &Arc<PageController>, parent_session: &str, params: &Value) {
    let info = &params["targetInfo"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (session, target) = (text(&params["sessionId"]), text(&info["targetId"]));
    let kind = info["type"].as_str().unwrap_or_default();
    let tell = |method: &str, params: Value| pages.pipe.send_without_reply(Some(&session), method, params);
    if kind == "page" {
        let context = text(&info["browserContextId"]);
        let is_ours = pages
            .with_state(|state| state.browser_context.get_or_insert_with(|| context.clone()) == &context);
        if !is_ours {
            return reject_foreign_page(pages, &session, &target);
        }
        let url = text(&info["url"]);
        if is_forbidden_page(&url) && pages.with_state(|state| !state.tabs.is_empty()) {
            tell("Runtime.runIfWaitingForDebugger", json!({}));
            return leave_forbidden_page(pages, &session, &target, &url);
        }
        add_tab(pages, &session, target.clone(), url, text(&info["title"]));
    }
    if kind == "iframe" {
        pages.with_state(|state| state.add_frame_session(&session, &target, parent_session));
    }
    let within = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
    if matches!(kind, "page" | "iframe" | "worker" | "shared_worker" | "service_worker") {
        let mut told = vec![tell("Target.setAutoAttach", within)];
        told.push(tell("Fetch.enable", fetch_settings(pages)));
        // A target whose requests cannot be intercepted stays paused.
        if told.contains(&CdpSendStatus::Dropped) {
            return;
        }
    }
    if matches!(kind, "page" | "iframe") {
        tell("Page.enable", json!({}));
        tell("Runtime.enable", json!({}));
        tell("Page.setInterceptFileChooserDialog", json!({ "enabled": true }));
        tell("Runtime.addBinding", json!({ "name": PERMISSION_BINDING }));
        tell("Page.addScriptToEvaluateOnNewDocument", json!({ "source": PERMISSION_SCRIPT }));
        tell(
            "Page.addScriptToEvaluateOnNewDocument",
            json!({ "source": WIDGET_SCRIPT, "worldName": super::frames::WORLD_NAME, "runImmediately": true }),
        );
    }
    if kind != "page" {
        tell("Runtime.runIfWaitingForDebugger", json!({}));
        return;
    }
    tell("Inspector.enable", json!({}));
    for (method, params) in pages.options.emulation_commands() {
        tell(method, params);
    }
    if let Some(script) = pages.options.storage_script() {
        tell(
            "Page.addScriptToEvaluateOnNewDocument",
            json!({ "source": script, "worldName": super::frames::WORLD_NAME }),
        );
    }
    tell("Runtime.runIfWaitingForDebugger", json!({}));
    tell("Page.bringToFront", json!({}));
    let pages = Arc::downgrade(pages);
    tokio::spawn(async move {
        let Some(pages) = pages.upgrade() else { return };
        // Responses arrive in order, so this one confirms the commands before it.
        let within = pages.options.response_timeout.max(super::START_TIMEOUT);
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

fn add_tab(pages: &PageController, session: &str, target: String, url: String, title: String) {
    pages.with_state(|state| {
        if !state.tabs.is_empty() {
            state.add_notice("A new tab was opened, and is the one that is seen.".to_owned());
        }
        state.tabs.push(TabState {
            target: target.clone(),
            session: session.to_owned(),
            url,
            title,
            is_ready: false,
            has_document: false,
            is_parsed: true,
            load: LoadState::Loaded,
            requested_at: None,
            failure: None,
            dialog: None,
            question: None,
            file_chooser: None,
            blocked_reason: None,
        });
        state.current_target = Some(target);
    });
}

/// Handles a page of another browser context: a private window that a key opened is closed; in a browser that
/// belongs to somebody else, the pages of others are left alone.
fn reject_foreign_page(pages: &PageController, session: &str, target: &str) {
    pages.pipe.send_without_reply(Some(session), "Runtime.runIfWaitingForDebugger", json!({}));
    match pages.ownership {
        super::page_controller::BrowserOwnership::Ours => {
            pages.with_state(|state| {
                state.add_notice_once("A window outside of this profile was closed.".to_owned());
            });
            pages.pipe.send_without_reply(None, "Target.closeTarget", json!({ "targetId": target }));
        }
        super::page_controller::BrowserOwnership::Shared => {
            let params = json!({ "sessionId": session });
            pages.pipe.send_without_reply(None, "Target.detachFromTarget", params);
        }
    }
}

/// Returns the parameters of `Fetch.enable`: the requests to intercept.
fn fetch_settings(pages: &PageController) -> Value {
    let options = &pages.options;
    let is_open = options.allowed_sites == AllowedSites::Any;
    let patterns = match (is_open, options.private_networks) {
        (_, PrivateNetworkPolicy::Deny) => json!([{ "urlPattern": "*" }]),
        (true, PrivateNetworkPolicy::Allow) => document_patterns(),
        (false, PrivateNetworkPolicy::Allow) => options.third_party.intercept_patterns(),
    };
    json!({ "patterns": patterns, "handleAuthRequests": true })
}

fn on_target_crashed(pages: &PageController, is_it: impl Fn(&TabState) -> bool) {
    pages.with_state(|state| {
        if let Some(tab) = state.tabs.iter_mut().find(|tab| is_it(tab)) {
            tab.failure = Some(TabFailure::Crashed);
            tab.dialog = None;
            tab.question = None;
        }
    });
}
