//! The elements of a page by reference: reading, finding, filling, clicking and uploading, for models that
//! need no pictures.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::frames::{FrameRef, LocatedNode};
use super::page_controller::PageController;
use super::picture::PixelRectangle;
use super::state::OpenFileChooser;
use super::{AllowedSites, UploadPolicy};
use crate::action::{MouseButton, PageContent, PageReading, ScreenPoint};
use crate::computer::ComputerError;
use crate::key::KeyChord;

/// Maximum length of a reading, in bytes.
const MAX_READING_BYTES: usize = 48 * 1024;
/// Maximum number of elements that a search returns.
const MAX_FOUND_ELEMENTS: usize = 50;

/// Maximum number of remembered references.
const MAX_REFERENCES: usize = 20_000;

/// Lists the content of a document, line by line, and keeps the listed elements for later use.
const READ_DOCUMENT: &str = r#"(first => {
    const kept = globalThis.windlassElements ||= new Map(), known = globalThis.windlassNumbers ||= new WeakMap();
    const lines = [], clip = (text, most) => (text || '').replace(/\s+/g, ' ').trim().slice(0, most);
    let number = first;
    const uses = 'a[href],button,input,select,textarea,summary,[role=button],[role=link],[role=checkbox],'
        + '[role=tab],[role=menuitem],[role=option],[role=combobox],[role=textbox],[onclick],[contenteditable=true]';
    const skipped = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD']);
    const describe = element => {
        const tag = element.tagName.toLowerCase(), type = (element.getAttribute('type') || '').toLowerCase();
        const role = element.getAttribute('role') || (tag === 'input' ? type || 'text' : tag === 'a' ? 'link' : tag);
        const is_button = tag === 'input' && ['submit', 'button', 'reset', 'image'].includes(type);
        const texts = [element.getAttribute('aria-label'),
            [...(element.labels || [])].map(label => label.innerText).join(' '), is_button ? element.value || type : '',
            element.getAttribute('alt'), element.getAttribute('placeholder'), element.getAttribute('title'),
            ['select', 'textarea', 'input'].includes(tag) ? '' : element.innerText, element.getAttribute('name')];
        let line = role + ' "' + clip(texts.find(text => clip(text, 1)), 120) + '"';
        if (tag === 'a') line += ' to ' + clip(element.getAttribute('href'), 200);
        if (tag === 'select') line += ' options: ' + [...element.options].slice(0, 60)
            .map(option => (option.selected ? '*' : '') + clip(option.label, 60)).join(' | ');
        else if ('value' in element && !is_button && tag !== 'button') {
            if (type === 'checkbox' || type === 'radio') line += element.checked ? ' ticked' : ' not ticked';
            else if (type === 'password') line += element.value ? ' filled in' : ' empty';
            else line += ' value "' + clip(element.value, 200) + '"';
        }
        if (element.disabled) line += ' disabled';
        return line;
    };
    const walk = (node, depth) => {
        if (lines.length > 4000) return;
        if (node.nodeType === 3) {
            const text = clip(node.nodeValue, 1000);
            if (text) lines.push([depth, null, text]);
            return;
        }
        if (node.nodeType !== 1 && node.nodeType !== 11 && node.nodeType !== 9) return;
        if (node.nodeType === 1) {
            if (skipped.has(node.tagName)) return;
            const is_file = node.tagName === 'INPUT' && node.type === 'file';
            if (!is_file && node.checkVisibility && !node.checkVisibility({ visibilityProperty: true })) return;
            if (node.matches(uses)) {
                // An element keeps its number for as long as its document lives.
                if (!known.has(node)) {
                    known.set(node, number);
                    kept.set(number++, node);
                }
                lines.push([depth, known.get(node), describe(node)]);
                if (['SELECT', 'TEXTAREA', 'INPUT', 'BUTTON', 'A'].includes(node.tagName)) return;
                depth++;
            } else if (/^H[1-6]$/.test(node.tagName)) {
                lines.push([depth, null, '#'.repeat(+node.tagName[1]) + ' ' + clip(node.innerText, 300)]);
                if (!node.querySelector(uses)) return;
            } else if (node.tagName === 'IMG' && clip(node.alt, 1)) {
                lines.push([depth, null, 'image "' + clip(node.alt, 120) + '"']);
            }
        }
        for (const child of (node.shadowRoot || node).childNodes) walk(child, depth);
        if (node.shadowRoot) for (const child of node.childNodes) if (child.assignedSlot) walk(child, depth);
    };
    if (document.body) walk(document.body, 0);
    return { lines, next: number, title: document.title, url: document.URL };
})"#;

/// Sets the value of a field. The origin is checked in the same step.
const FILL_FIELD: &str = r#"function (origin, value) {
    const view = this.ownerDocument.defaultView;
    if (origin !== null && (!view || view.origin !== origin)) return 'the page has changed';
    if (this.disabled || this.readOnly) return 'the field cannot be changed';
    const tell = () => ['input', 'change'].forEach(kind => this.dispatchEvent(new Event(kind, { bubbles: true })));
    this.scrollIntoView({ block: 'center', inline: 'nearest' });
    if (this.tagName === 'SELECT') {
        const clean = text => text.replace(/\s+/g, ' ').trim().toLowerCase();
        const wanted = clean(value), all = [...this.options];
        const option = all.find(one => one.value === value) || all.find(one => clean(one.label) === wanted);
        if (!option) return 'it has no option "' + value + '"; it has: ' + all.map(one => one.label).slice(0, 60).join(' | ');
        if (option.disabled) return 'the option is disabled';
        option.selected = true;
        tell();
        return null;
    }
    if (this.type === 'checkbox' || this.type === 'radio') {
        const wants = ['true', 'on', 'yes', 'checked', 'ticked'].includes(value.toLowerCase());
        if (this.checked !== wants) this.click();
        return this.checked === wants ? null : 'the box did not change';
    }
    this.focus();
    if (this.isContentEditable) {
        view.getSelection().selectAllChildren(this);
        return this.ownerDocument.execCommand('insertText', false, value) ? null : 'the field takes no text';
    }
    if (!('value' in this) || this.type === 'file') return 'the element is no field that takes a value';
    this.value = value;
    if (value && !this.value) return 'it does not take this value; its type is ' + this.type;
    tell();
    return null;
}"#;

/// Returns true if a click at the centre of an element would hit it.
const IS_CLICKABLE: &str = r"function () {
    this.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
    const box = this.getBoundingClientRect(), root = this.getRootNode();
    const hit = root.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    if (!box.width || !box.height) return 'it is not visible';
    if (!hit || !(this.contains(hit) || hit.contains(this) || [...(this.labels || [])].some(one => one.contains(hit))))
        return 'something else covers it';
    return null;
}";

/// Scrolls an element into view.
const SCROLL_INTO_VIEW: &str =
    r"function () { this.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' }); }";

/// A line of a page: its depth, the reference of its element, and its text.
type ReadLine = (usize, Option<String>, String);

/// A listed element: its frame, and its number in the list of its document.
#[derive(Clone, Debug)]
pub(super) struct ElementReference {
    frame: FrameRef,
    number: u64,
}

impl PageController {
    /// Returns all frames of the current tab, in all processes.
    pub(super) async fn frames_of_tab(&self) -> Result<Vec<FrameRef>, ComputerError> {
        let main = self.main_frame()?;
        let mut sessions = vec![main.session.clone()];
        sessions.extend(self.with_state(|state| state.frame_sessions_of(&main.frame)));
        let mut frames = Vec::new();
        for session in sessions {
            match self.frames_of_session(&session).await {
                Ok(found) => frames.extend(found),
                // The root frame of a process that does not respond is known.
                Err(_) if session == main.session => frames.push(main.clone()),
                Err(_) => {
                    let root = self.with_state(|state| state.frame_parent(&session));
                    frames.extend(root.map(|(_, frame)| FrameRef { session, frame }));
                }
            }
        }
        Ok(frames)
    }

    /// Returns the frames of one process.
    pub(super) async fn frames_of_session(&self, session: &str) -> Result<Vec<FrameRef>, ComputerError> {
        let tree = self.query(session, "Page.getFrameTree", json!({})).await?;
        let mut frames = Vec::new();
        collect_frames(session, &tree["frameTree"], &mut frames);
        Ok(frames)
    }

    /// Returns the position of a session's root frame in the viewport of the tab.
    pub(super) async fn session_offset(&self, session: &str) -> Result<(f64, f64), ComputerError> {
        let (mut left, mut top) = (0.0, 0.0);
        let mut session = session.to_owned();
        for _ in 0..16 {
            let Some((parent, frame)) = self.with_state(|state| state.frame_parent(&session)) else { break };
            let owner = self.query(&parent, "DOM.getFrameOwner", json!({ "frameId": frame })).await?;
            let params = json!({ "backendNodeId": owner["backendNodeId"] });
            let model = self.query(&parent, "DOM.getBoxModel", params).await?;
            left += model["model"]["content"][0].as_f64().unwrap_or(0.0);
            top += model["model"]["content"][1].as_f64().unwrap_or(0.0);
            session = parent;
        }
        Ok((left, top))
    }

    /// Returns true if a frame lives in another process than the page of the current tab.
    fn is_other_process(&self, frame: &FrameRef) -> bool {
        self.main_frame().is_ok_and(|main| main.session != frame.session)
    }

    async fn read_lines(&self) -> Result<Vec<ReadLine>, ComputerError> {
        self.wait_until_loaded().await;
        self.current_session()?;
        self.with_state(|state| {
            if state.references.len() > MAX_REFERENCES {
                state.references.clear();
            }
        });
        let mut listed = Vec::new();
        for (index, frame) in self.frames_of_tab().await?.into_iter().enumerate() {
            let first = self.with_state(|state| state.next_reference);
            let read = match self.evaluate_in(&frame, &format!("{READ_DOCUMENT}({first})")).await {
                Ok(read) => read,
                // A frame may vanish while the page is read.
                Err(ComputerError::Failed(_)) if index > 0 => continue,
                // One frame does not keep the model from reading the others.
                Err(error @ (ComputerError::Refused(_) | ComputerError::Unresponsive { .. }))
                    if index > 0 && self.is_other_process(&frame) =>
                {
                    listed.push((0, None, format!("frame that cannot be read: {error}")));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let url = read["url"].as_str().unwrap_or_default();
            let title = read["title"].as_str().unwrap_or_default();
            listed.push((
                0,
                None,
                if index == 0 { format!("{title} ({url})") } else { format!("frame {url}") },
            ));
            let depth_of_frame = usize::from(index > 0);
            for line in read["lines"].as_array().into_iter().flatten() {
                let depth = line[0].as_u64().unwrap_or(0) as usize + depth_of_frame;
                let text = line[2].as_str().unwrap_or_default().to_owned();
                let reference = line[1].as_u64().map(|number| {
                    let element = ElementReference { frame: frame.clone(), number };
                    let name = format!("e{number}");
                    self.with_state(|state| state.references.insert(name.clone(), element));
                    name
                });
                listed.push((depth, reference, text));
            }
            let next = read["next"].as_u64().unwrap_or(first);
            self.with_state(|state| state.next_reference = next);
        }
        Ok(listed)
    }

    /// Reads the page as text.
    pub(super) async fn read_page(&self, reading: &PageReading) -> Result<String, ComputerError> {
        let mut lines = self.read_lines().await?;
        if let Some(root) = &reading.root {
            lines = content_of_element(lines, root).ok_or_else(|| missing_element(root))?;
        }
        let mut text = String::new();
        for (depth, reference, line) in lines {
            let is_listed = match reading.content {
                PageContent::All => true,
                PageContent::Interactive => reference.is_some(),
                PageContent::Text => reference.is_none(),
            };
            if !is_listed || reading.max_depth.is_some_and(|most| depth > most) {
                continue;
            }
            if text.len() > MAX_READING_BYTES {
                text.push_str("[The page is longer; find the rest by a query.]\n");
                break;
            }
            text.push_str(&"  ".repeat(depth.min(12)));
            if let Some(reference) = reference {
                text.push_str(&format!("[{reference}] "));
            }
            text.push_str(&line);
            text.push('\n');
        }
        Ok(text)
    }

    /// Finds the elements of the page whose description has the most words of a query.
    pub(super) async fn find_elements(&self, query: &str) -> Result<String, ComputerError> {
        let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
        let lines = self.read_lines().await?;
        let counts: Vec<usize> = lines
            .iter()
            .map(|(_, _, line)| {
                let lower = line.to_lowercase();
                words.iter().filter(|word| lower.contains(*word)).count()
            })
            .collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        let found = lines.into_iter().zip(counts).filter(|(_, count)| *count > 0 && *count == most);
        let found = found.map(|((_, reference, line), _)| match reference {
            Some(reference) => format!("[{reference}] {line}"),
            None => line,
        });
        let lines: Vec<String> = found.take(MAX_FOUND_ELEMENTS).collect();
        match lines.is_empty() {
            true => Ok(format!("Nothing on the page matches \"{query}\".")),
            false => Ok(lines.join("\n")),
        }
    }

    /// Returns the element of the current tab with a reference.
    ///
    /// # Errors
    ///
    /// Refuses if the element is gone, and if it is in another tab: nobody sees that tab.
    pub(super) async fn node_of_reference(&self, reference: &str) -> Result<LocatedNode, ComputerError> {
        let unknown = || missing_element(reference);
        let element =
            self.with_state(|state| state.references.get(reference).cloned()).ok_or_else(unknown)?;
        let session = &element.frame.session;
        let (is_open, is_current) = self
            .with_state(|state| (state.tab_of_session(session).is_some(), state.is_of_current_tab(session)));
        if is_open && !is_current {
            return Err(ComputerError::Refused(format!(
                "`{reference}` is an element of another tab; switch to that tab, or read the page again"
            )));
        }
        let context = self.isolated_context(&element.frame).await.map_err(|_| unknown())?;
        let script = format!(
            "(found => found && found.isConnected ? found : null)((globalThis.windlassElements || new Map()).get({}))",
            element.number
        );
        let params = json!({ "expression": script, "contextId": context });
        let found = self.query(&element.frame.session, "Runtime.evaluate", params).await?;
        let object = found["result"]["objectId"].as_str().ok_or_else(unknown)?;
        let params = json!({ "objectId": object });
        let described = self.query(&element.frame.session, "DOM.describeNode", params).await?;
        let backend_node = described["node"]["backendNodeId"].as_i64().ok_or_else(unknown)?;
        Ok(LocatedNode { frame: element.frame, backend_node })
    }

    /// Sets the value of a field. The sites are those that a secret in the value is restricted to.
    pub(super) async fn fill_field(
        &self,
        field: &str,
        value: &str,
        sites: &[AllowedSites],
    ) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        self.current_session()?;
        let node = self.node_of_reference(field).await?;
        let mut origin = Value::Null;
        if !sites.is_empty() {
            let found = self.origin_of_node(&node).await?;
            if let Some(why) = sites.iter().find_map(|sites| sites.origin_refusal_reason(&found)) {
                return Err(ComputerError::Refused(format!("the secret is not filled in here: {why}")));
            }
            origin = found.into();
        }
        let refused = self.call_on_node(&node, FILL_FIELD, &[origin, json!(value)]).await?;
        self.record_action();
        match refused.as_str() {
            Some(why) => Err(ComputerError::Refused(format!("`{field}` was not filled in: {why}"))),
            None => Ok(()),
        }
    }

    /// Clicks an element at its centre.
    pub(super) async fn click_element(
        &self,
        element: &str,
        button: MouseButton,
        times: u32,
        held: &KeyChord,
    ) -> Result<(), ComputerError> {
        let (centre, session) = self.reveal_element(element, "clicked").await?;
        // A tab that opens meanwhile is not clicked.
        self.click_in_session(session, centre, button, times, held).await
    }

    /// Moves the pointer to the centre of an element.
    pub(super) async fn hover_element(&self, element: &str) -> Result<(), ComputerError> {
        let (centre, _) = self.reveal_element(element, "pointed at").await?;
        self.move_to(centre, &KeyChord::EMPTY).await
    }

    /// Scrolls an element into view.
    pub(super) async fn scroll_to_element(&self, element: &str) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        self.current_session()?;
        let node = self.node_of_reference(element).await?;
        self.call_on_node(&node, SCROLL_INTO_VIEW, &[]).await?;
        self.record_action();
        Ok(())
    }

    /// Scrolls an element into view and returns its centre, if a pointer there would hit it, and its tab's session.
    /// `purpose` completes the sentence of a refusal: the element was not …
    async fn reveal_element(
        &self,
        element: &str,
        purpose: &str,
    ) -> Result<(ScreenPoint, String), ComputerError> {
        self.wait_until_loaded().await;
        self.current_session()?;
        let refused = |why: &str| ComputerError::Refused(format!("`{element}` was not {purpose}: {why}"));
        let node = self.node_of_reference(element).await?;
        let tab =
            self.with_state(|state| state.tab_of_session(&node.frame.session).map(|tab| tab.session.clone()));
        let tab = tab.ok_or_else(|| missing_element(element))?;
        let covered = self.call_on_node(&node, IS_CLICKABLE, &[]).await?;
        if let Some(why) = covered.as_str() {
            return Err(refused(why));
        }
        let params = json!({ "backendNodeId": node.backend_node });
        let quads = self.query(&node.frame.session, "DOM.getContentQuads", params).await?;
        let (left, top) = self.session_offset(&node.frame.session).await?;
        let area = PixelRectangle::around_quad(&quads["quads"][0], left, top);
        let area = area.ok_or_else(|| refused("it is not visible"))?;
        let centre = |from: f64, until: f64| ((from + until) / 2.0).max(0.0) as u32;
        Ok((ScreenPoint { x: centre(area.left, area.right), y: centre(area.top, area.bottom) }, tab))
    }

    /// Returns the open file chooser of the current tab.
    pub(super) fn file_chooser(&self) -> Option<OpenFileChooser> {
        self.with_state(|state| state.current_tab()?.file_chooser.clone())
    }

    /// Chooses files for the open file chooser, or for a file field.
    pub(super) async fn upload_files(
        &self,
        field: Option<&str>,
        files: &[String],
    ) -> Result<(), ComputerError> {
        let paths = resolve_uploads(&self.options.uploads, files)?;
        self.current_session()?;
        let node = match field {
            Some(field) => self.node_of_reference(field).await?,
            None => {
                let open = self.file_chooser().ok_or_else(|| {
                    ComputerError::Refused("no page asks for a file; click its button first".to_owned())
                })?;
                if files.len() > 1 && !open.takes_many {
                    return Err(ComputerError::Refused("the page asks for one file only".to_owned()));
                }
                open.field
            }
        };
        let params = json!({ "files": paths, "backendNodeId": node.backend_node });
        let (session, within) = (&node.frame.session, self.options.response_timeout);
        let set = self.pipe.call_command(Some(session), "DOM.setFileInputFiles", params, within).await;
        set.map_err(|error| self.computer_error(error))?;
        self.with_state(|state| state.tab_of_session(session).map(|tab| tab.file_chooser = None));
        self.record_action();
        Ok(())
    }
}

/// Returns the lines of an element and of the elements in it.
fn content_of_element(lines: Vec<ReadLine>, root: &str) -> Option<Vec<ReadLine>> {
    let start = lines.iter().position(|(_, reference, _)| reference.as_deref() == Some(root))?;
    let top = lines[start].0;
    let inner = lines.into_iter().skip(start).enumerate();
    let inner = inner.take_while(|(place, (depth, ..))| *place == 0 || *depth > top);
    Some(inner.map(|(_, (depth, reference, line))| (depth - top, reference, line)).collect())
}

fn missing_element(reference: &str) -> ComputerError {
    ComputerError::Refused(format!(
        "there is no element `{reference}` on the page any more; read the page again"
    ))
}

fn collect_frames(session: &str, tree: &Value, frames: &mut Vec<FrameRef>) {
    if let Some(frame) = tree["frame"]["id"].as_str() {
        frames.push(FrameRef { session: session.to_owned(), frame: frame.to_owned() });
    }
    for child in tree["childFrames"].as_array().into_iter().flatten() {
        collect_frames(session, child, frames);
    }
}

/// Returns the paths of files in the folder for uploads. No name leads out of the folder.
fn resolve_uploads(policy: &UploadPolicy, files: &[String]) -> Result<Vec<PathBuf>, ComputerError> {
    let UploadPolicy::From(folder) = policy else {
        return Err(ComputerError::Refused("files may not be uploaded from here".to_owned()));
    };
    let refused = |name: &str, why: &str| ComputerError::Refused(format!("`{name}` is not uploaded: {why}"));
    let root = folder
        .canonicalize()
        .map_err(|error| ComputerError::Failed(format!("the folder for uploads: {error}")))?;
    if files.is_empty() {
        return Err(ComputerError::Refused("no file is named".to_owned()));
    }
    files
        .iter()
        .map(|name| {
            let path = root.join(Path::new(name));
            let path = path.canonicalize().map_err(|_| refused(name, "there is no such file"))?;
            match path.starts_with(&root) && path.is_file() {
                true => Ok(path),
                false => Err(refused(name, "it is not in the folder for uploads")),
            }
        })
        .collect()
}
