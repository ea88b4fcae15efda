//! The frames of a page: the element at a point or under the focus, in whatever frame and process it is. All
//! scripts run in an isolated world, where a page cannot change what they see.

use futures_util::FutureExt;
use serde_json::{Value, json};

use super::cdp_pipe::CdpCommandError;
use super::page_controller::PageController;
use crate::action::ScreenPoint;
use crate::computer::ComputerError;
use crate::target::{ScreenTarget, TargetPlace};

/// Name of the isolated world in which our scripts run.
pub(super) const WORLD_NAME: &str = "windlass";
/// Maximum depth of nested frames.
pub(super) const MAX_FRAME_DEPTH: usize = 16;
/// Number of attempts of a query that a navigation interrupts.
const QUERY_ATTEMPTS: usize = 4;
/// Number of attempts to describe a page that is replaced by another one meanwhile.
const DESCRIPTION_ATTEMPTS: usize = 10;

/// The document of a tab: another one has another loader, also at the same address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PageDocument {
    address: String,
    loader: String,
}

/// A frame and the DevTools session of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameRef {
    pub(super) session: String,
    pub(super) frame: String,
}

/// An element in a frame.
#[derive(Clone, Debug)]
pub(super) struct LocatedNode {
    pub(super) frame: FrameRef,
    pub(super) backend_node: i64,
}

/// Returns the focused element of a document, through open shadow roots.
const FOCUSED_ELEMENT: &str = "(() => { let at = document.activeElement; while (at && at.shadowRoot && \
                               at.shadowRoot.activeElement) at = at.shadowRoot.activeElement; return at; })()";

/// Describes an element: kind, name, origin, and what is around it.
const DESCRIBE_ELEMENT: &str = r#"function () {
    let element = this.nodeType === 1 ? this : this.parentElement;
    const page = this.ownerDocument || this, view = page.defaultView;
    const clip = (text, most) => (text || '').replace(/\s+/g, ' ').trim().slice(0, most);
    const origin = view ? view.origin : 'null', url = page.URL, is_top = !!view && view.top === view;
    if (!element) return { origin, url, is_top, element: null };
    const uses = 'a[href],button,input,select,textarea,option,label,summary,[role],[onclick],[contenteditable]';
    element = element.closest(uses) || element;
    const tag = element.tagName.toLowerCase(), type = (element.getAttribute('type') || '').toLowerCase();
    const role = element.getAttribute('role') || (tag === 'input' ? type || 'text' : tag === 'a' ? 'link' : tag);
    const labelled = (element.getAttribute('aria-labelledby') || '').split(/\s+/).filter(Boolean)
        .map(id => (page.getElementById(id) || {}).textContent || '').join(' ');
    const is_button = tag === 'input' && ['submit', 'button', 'reset', 'image'].includes(type);
    const texts = [element.getAttribute('aria-label'), labelled,
        [...(element.labels || [])].map(label => label.innerText).join(' '),
        is_button ? element.value || type : '', element.getAttribute('alt'), element.getAttribute('placeholder'),
        element.getAttribute('title'), ['select', 'textarea', 'input'].includes(tag) ? '' : element.innerText,
        element.getAttribute('name')];
    const name = clip(texts.find(text => clip(text, 1)), 120);
    let shown = role + (name ? ' "' + name + '"' : '');
    if (tag === 'a') shown += ' to ' + clip(element.href, 200);
    const form = element.form || element.closest('form');
    if (form && form.action && (is_button || tag === 'button')) shown += ' of the form for ' + clip(form.action, 200);
    const near = element.closest('dialog,[role=dialog],[role=alertdialog],form,li,tr,article,fieldset')
        || (element.parentElement && element.parentElement.parentElement) || element.parentElement || element;
    let values = '';
    if (form) for (const field of form.elements) {
        values += '\u0001' + field.name + '\u0002' + (field.type === 'file' ? field.files.length : field.value)
            + (field.checked ? '*' : '');
    }
    let low = 0xdeadbeef, high = 0x41c6ce57;
    for (let at = 0; at < values.length; at++) {
        const code = values.charCodeAt(at);
        low = Math.imul(low ^ code, 2654435761); high = Math.imul(high ^ code, 1597334677);
    }
    return { origin, url, is_top, element: shown, surroundings: clip(near.innerText, 2000),
        fingerprint: form ? (low >>> 0).toString(16) + (high >>> 0).toString(16) : null };
}"#;

impl PageController {
    /// Sends a query to a session and waits for its response. A query that a navigation interrupts is
    /// repeated; it changes nothing, so that a repetition is safe.
    pub(super) async fn query(
        &self,
        session: &str,
        method: &str,
        params: Value,
    ) -> Result<Value, ComputerError> {
        let mut attempt = 1;
        loop {
            let within = self.query_timeout(session);
            let asked = self.pipe.call_command(Some(session), method, params.clone(), within);
            let answer = self.until_blocked(session, asked).await?;
            let is_late = matches!(answer, Err(CdpCommandError::TimedOut(_)));
            self.with_state(|state| state.mark_frame_responsiveness(session, !is_late));
            match answer {
                Ok(answer) => return Ok(answer),
                Err(CdpCommandError::Rejected(message))
                    if attempt < QUERY_ATTEMPTS && is_navigation_race(&message) =>
                {
                    attempt += 1;
                    self.wait_until_loaded().await;
                }
                Err(error) => return Err(self.computer_error(error)),
            }
        }
    }

    /// Awaits the response of a page. A page that must be answered first does not respond: its question is the error.
    async fn until_blocked<T>(
        &self,
        session: &str,
        response: impl Future<Output = T>,
    ) -> Result<T, ComputerError> {
        let mut changed = self.state_version.subscribe();
        tokio::pin!(response);
        loop {
            let blocked = self.with_state(|state| state.blocking_text_of(session));
            if let Some(text) = blocked {
                let answered = (&mut response).now_or_never();
                return answered.ok_or(ComputerError::Refused(text));
            }
            tokio::select! {
                biased;
                answered = &mut response => return Ok(answered),
                _ = changed.changed() => {}
            }
        }
    }

    /// Returns the main frame of the current tab.
    pub(super) fn main_frame(&self) -> Result<FrameRef, ComputerError> {
        let tab = self.with_state(|state| {
            state
                .current_tab()
                .map(|tab| FrameRef { session: tab.session.clone(), frame: tab.target.clone() })
        });
        tab.ok_or_else(|| ComputerError::Refused("no tab is open; go to an address first".to_owned()))
    }

    /// Returns the frame with this id, which may live in another process than its parent.
    pub(super) fn child_frame(&self, parent: &FrameRef, frame: &str) -> FrameRef {
        let session = self.with_state(|state| state.frame_session(frame));
        FrameRef { session: session.unwrap_or_else(|| parent.session.clone()), frame: frame.to_owned() }
    }

    /// Returns the execution context of our isolated world in a frame.
    pub(super) async fn isolated_context(&self, frame: &FrameRef) -> Result<i64, ComputerError> {
        let params = json!({ "frameId": frame.frame, "worldName": WORLD_NAME });
        let made = self.query(&frame.session, "Page.createIsolatedWorld", params).await?;
        made["executionContextId"].as_i64().ok_or_else(|| ComputerError::Failed("a frame is gone".to_owned()))
    }

    /// Evaluates an expression in our isolated world of a frame and returns its value.
    pub(super) async fn evaluate_in(&self, frame: &FrameRef, script: &str) -> Result<Value, ComputerError> {
        let context = self.isolated_context(frame).await?;
        let params = json!({
            "expression": script, "contextId": context, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.query(&frame.session, "Runtime.evaluate", params).await?;
        match answer.get("exceptionDetails") {
            Some(error) => Err(ComputerError::Failed(error["exception"]["description"].to_string())),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Calls a function with an element as `this` in our isolated world and returns its value.
    pub(super) async fn call_on_node(
        &self,
        node: &LocatedNode,
        function: &str,
        arguments: &[Value],
    ) -> Result<Value, ComputerError> {
        let context = self.isolated_context(&node.frame).await?;
        let session = &node.frame.session;
        let params = json!({ "backendNodeId": node.backend_node, "executionContextId": context });
        let resolved = self.query(session, "DOM.resolveNode", params).await?;
        let arguments: Vec<Value> = arguments.iter().map(|value| json!({ "value": value })).collect();
        let params = json!({
            "objectId": resolved["object"]["objectId"], "functionDeclaration": function, "arguments": arguments,
            "returnByValue": true, "awaitPromise": true,
        });
        // The function may have an effect, so that it is never repeated.
        let within = self.query_timeout(session);
        let called = self.pipe.call_command(Some(session), "Runtime.callFunctionOn", params, within);
        let called = self.until_blocked(session, called).await?;
        let answer = called.map_err(|error| self.computer_error(error))?;
        match answer.get("exceptionDetails") {
            Some(error) => Err(ComputerError::Failed(error["exception"]["description"].to_string())),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Returns the element at a point of the viewport.
    pub(super) async fn locate_point(&self, at: ScreenPoint) -> Result<Option<LocatedNode>, ComputerError> {
        let mut frame = self.main_frame()?;
        let (mut x, mut y) = (f64::from(at.x), f64::from(at.y));
        for _ in 0..MAX_FRAME_DEPTH {
            let scrolled = self.evaluate_in(&frame, "[scrollX, scrollY]").await?;
            let offset = |index: usize| scrolled[index].as_f64().unwrap_or(0.0);
            let params = json!({
                "x": (x + offset(0)).round() as i64, "y": (y + offset(1)).round() as i64,
                "ignorePointerEventsNone": true,
            });
            let found = match self.query(&frame.session, "DOM.getNodeForLocation", params).await {
                Ok(found) => found,
                Err(ComputerError::Failed(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Some(backend_node) = found["backendNodeId"].as_i64() else { return Ok(None) };
            let inner = found["frameId"].as_str().unwrap_or(&frame.frame).to_owned();
            let owner = LocatedNode { frame: FrameRef { frame: inner, ..frame.clone() }, backend_node };
            let params = json!({ "backendNodeId": backend_node });
            let described = self.query(&frame.session, "DOM.describeNode", params.clone()).await?;
            let child = described["node"]["frameId"].as_str().map(|id| self.child_frame(&owner.frame, id));
            // A frame of the same process has been searched already.
            let Some(child) = child.filter(|child| child.session != frame.session) else {
                return Ok(Some(owner));
            };
            let model = self.query(&frame.session, "DOM.getBoxModel", params).await?;
            let model = &model["model"];
            let corner = |index: usize| model["content"][index].as_f64().unwrap_or(0.0);
            let (left, top) = (corner(0), corner(1));
            let scale = |length: f64, name: &str| match model[name].as_f64() {
                Some(size) if size > 0.0 && length > 0.0 => length / size,
                _ => 1.0,
            };
            let (wide, high) = (scale(corner(2) - left, "width"), scale(corner(5) - top, "height"));
            (x, y) = ((x - left) / wide.max(0.01), (y - top) / high.max(0.01));
            frame = child;
        }
        Ok(None)
    }

    /// Returns the element that has the keyboard focus.
    pub(super) async fn locate_focus(&self) -> Result<Option<LocatedNode>, ComputerError> {
        let mut frame = self.main_frame()?;
        for _ in 0..MAX_FRAME_DEPTH {
            let context = self.isolated_context(&frame).await?;
            let params = json!({ "expression": FOCUSED_ELEMENT, "contextId": context });
            let focused = self.query(&frame.session, "Runtime.evaluate", params).await?;
            let Some(object) = focused["result"]["objectId"].as_str() else { return Ok(None) };
            let params = json!({ "objectId": object });
            let described = self.query(&frame.session, "DOM.describeNode", params).await?;
            let node = &described["node"];
            match node["frameId"].as_str().filter(|id| *id != frame.frame && node["nodeName"] != "BODY") {
                Some(child) => frame = self.child_frame(&frame, child),
                None => {
                    let found = node["backendNodeId"].as_i64();
                    return Ok(found.map(|backend_node| LocatedNode { frame, backend_node }));
                }
            }
        }
        Ok(None)
    }

    /// Describes the element at a place. Page, frame and element are those of one moment: if another document
    /// takes the place of the page meanwhile, the description is made anew.
    pub(super) async fn describe_target(&self, place: TargetPlace) -> Result<ScreenTarget, ComputerError> {
        for _ in 0..DESCRIPTION_ATTEMPTS {
            self.wait_until_loaded().await;
            let (address, dialog, question, is_blocked) =
                self.with_state(|state| match state.current_tab() {
                    Some(tab) => {
                        let is_blocked = tab.blocking_text().is_some();
                        (Some(tab.url.clone()), tab.dialog.clone(), tab.question.clone(), is_blocked)
                    }
                    None => (None, None, None, false),
                });
            let page = ScreenTarget { address, ..ScreenTarget::default() };
            if let Some(dialog) = dialog {
                // A page with an open dialog answers no query.
                let (origin, element) = (Some(dialog.origin), Some(dialog.text));
                return Ok(ScreenTarget { origin, element, ..page });
            }
            if place == TargetPlace::Dialog || is_blocked {
                // A page whose next document waits for the answer to a question answers none either.
                let (origin, element) = question.map(|question| (question.origin, question.text)).unzip();
                return Ok(ScreenTarget { origin, element, ..page });
            }
            let document = match (self.current_document().await, &place) {
                (Ok(document), _) => document,
                // The browser knows the address of a page that is busy.
                (Err(_), TargetPlace::Page | TargetPlace::Tab(_)) if page.address.is_some() => {
                    return Ok(page);
                }
                (Err(error), _) => return Err(error),
            };
            let page = ScreenTarget { address: Some(document.address.clone()), ..page };
            let described = match &place {
                TargetPlace::Page | TargetPlace::Dialog => Ok(page),
                TargetPlace::Tab(index) => {
                    let tab = self.list_tabs().into_iter().nth(*index);
                    Ok(ScreenTarget { element: tab.map(|tab| format!("the tab {}", tab.url)), ..page })
                }
                TargetPlace::At(_)
                | TargetPlace::Pointer
                | TargetPlace::Focus
                | TargetPlace::Element(_)
                | TargetPlace::FileChooser => self.describe_element(&place, page).await,
            };
            // The page may have requested a navigation meanwhile, or be another one.
            let is_settled = !self.with_state(|state| state.is_navigating(self.options.load_timeout));
            if is_settled && self.current_document().await.is_ok_and(|now| now == document) {
                return described;
            }
        }
        Err(ComputerError::Refused(
            "the page goes from one address to another; wait and take a screenshot".to_owned(),
        ))
    }

    async fn describe_element(
        &self,
        place: &TargetPlace,
        page: ScreenTarget,
    ) -> Result<ScreenTarget, ComputerError> {
        let node = match place {
            TargetPlace::At(at) => self.locate_point(*at).await?,
            TargetPlace::Pointer => self.locate_point(self.cursor_position()).await?,
            TargetPlace::Element(reference) => Some(self.node_of_reference(reference).await?),
            TargetPlace::FileChooser => self.file_chooser().map(|open| open.field),
            _ => self.locate_focus().await?,
        };
        let Some(node) = node else { return Ok(page) };
        let found = self.call_on_node(&node, DESCRIBE_ELEMENT, &[]).await?;
        let text = |name: &str| found[name].as_str().map(str::to_owned);
        let fingerprint = match place {
            // Fields that look the same are told apart.
            TargetPlace::FileChooser => {
                Some(format!("{} {}", text("fingerprint").unwrap_or_default(), node.backend_node))
            }
            _ => text("fingerprint"),
        };
        Ok(ScreenTarget {
            frame: text("url").filter(|_| found["is_top"] != true),
            origin: text("origin"),
            element: text("element"),
            surroundings: text("surroundings"),
            fingerprint,
            ..page
        })
    }

    /// Returns the document of the current tab, as its own process knows it.
    async fn current_document(&self) -> Result<PageDocument, ComputerError> {
        let frame = self.main_frame()?;
        let tree = self.query(&frame.session, "Page.getFrameTree", json!({})).await?;
        let frame = &tree["frameTree"]["frame"];
        let text = |name: &str| frame[name].as_str().unwrap_or_default();
        let address = match frame["unreachableUrl"].as_str() {
            Some(url) => url.to_owned(),
            None => format!("{}{}", text("url"), text("urlFragment")),
        };
        Ok(PageDocument { address, loader: text("loaderId").to_owned() })
    }
}

/// Returns true if a command failed because the page was navigating.
fn is_navigation_race(message: &str) -> bool {
    [
        "Cannot find context",
        "Execution context was destroyed",
        "Inspected target navigated",
        "No frame for given id",
        "Frame with the given id was not found",
        "Could not find node",
        "No node with given id",
        "not attached to an active page",
        "Cannot find default execution context",
    ]
    .iter()
    .any(|known| message.contains(known))
}
