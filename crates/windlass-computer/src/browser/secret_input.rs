//! Secrets in a browser: they are typed only into a field whose own frame belongs to the secret's sites, and
//! every field and text that shows one is black in screenshots.

use serde_json::{Value, json};

use super::AllowedSites;
use super::frames::{FrameRef, LocatedNode};
use super::page_controller::PageController;
use super::picture::{PixelRectangle, paint_black};
use crate::computer::{ComputerError, Screenshot};

/// Maximum number of elements that are painted black in one frame.
const MAX_MASKED_ELEMENTS: usize = 64;

/// Returns the origin of an element's document if the element takes text.
const FIELD_ORIGIN: &str = r"function () {
    const view = this.ownerDocument.defaultView, tag = this.tagName;
    const takes_text = tag === 'TEXTAREA' || this.isContentEditable || tag === 'INPUT'
        && !['checkbox', 'radio', 'button', 'submit', 'reset', 'file', 'image', 'range', 'color'].includes(this.type);
    return { origin: view ? view.origin : 'null', takes_text };
}";

/// Inserts a text into a field. The origin and the focus are checked in the same step.
const INSERT_SECRET: &str = r"function (origin, text) {
    const page = this.ownerDocument, view = page.defaultView;
    if (!view || view.origin !== origin) return 'the page has changed';
    let at = page.activeElement;
    while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
    if (at !== this) return 'the focus has moved';
    if (page.execCommand('insertText', false, text)) return null;
    if (!('value' in this)) return 'the field takes no text';
    this.value += text;
    for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, { bubbles: true }));
    return null;
}";

/// Collects the elements of a document that show one of the secrets.
const FIND_SECRETS: &str = r"(secrets => {
    const found = [], roots = [document];
    const shows = text => !!text && secrets.some(secret => text.includes(secret)
        || text.replace(/\s+/g, '').includes(secret.replace(/\s+/g, '')));
    const cover = element => {
        const inner = [...element.children].filter(child => shows(child.textContent));
        if (inner.length) inner.forEach(cover); else found.push(element);
    };
    for (let at = 0; at < roots.length && found.length < 64; at++) {
        for (const element of roots[at].querySelectorAll('*')) {
            if (element.shadowRoot) roots.push(element.shadowRoot);
            if (typeof element.value === 'string' && shows(element.value)) found.push(element);
            else if (shows(element.getAttribute('placeholder'))) found.push(element);
        }
        const top = roots[at].body || roots[at];
        for (const element of top.children) if (shows(element.textContent)) cover(element);
    }
    globalThis.windlassMasked = found.slice(0, 64);
    return found.length;
})";

impl PageController {
    /// Types a secret into the focused field, if the frame of the field belongs to one of the sites.
    pub(super) async fn type_secret(&self, secret: &str, sites: &AllowedSites) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        self.current_session()?;
        let node = self.locate_focus().await?;
        let node = node.ok_or_else(|| ComputerError::Refused("no field has the focus".to_owned()))?;
        let field = self.call_on_node(&node, FIELD_ORIGIN, &[]).await?;
        let origin = field["origin"].as_str().unwrap_or("null");
        if let Some(why) = sites.origin_refusal_reason(origin) {
            return Err(ComputerError::Refused(why));
        }
        if field["takes_text"] != true {
            return Err(ComputerError::Refused("no field that takes text has the focus".to_owned()));
        }
        self.remember_secret(secret);
        let refused = self.call_on_node(&node, INSERT_SECRET, &[json!(origin), json!(secret)]).await?;
        if let Some(why) = refused.as_str() {
            return Err(ComputerError::Refused(why.to_owned()));
        }
        self.record_action();
        Ok(())
    }

    /// Remembers a secret that a page has received, so that it is black in screenshots.
    pub(super) fn remember_secret(&self, secret: &str) {
        self.with_state(|state| state.typed_secrets.insert(secret.to_owned()));
    }

    /// Returns the origin of an element's document.
    pub(super) async fn origin_of_node(&self, node: &LocatedNode) -> Result<String, ComputerError> {
        let field = self.call_on_node(node, FIELD_ORIGIN, &[]).await?;
        Ok(field["origin"].as_str().unwrap_or("null").to_owned())
    }

    /// Returns the rectangles of everything in the tab that shows a secret.
    pub(super) async fn secret_rectangles(&self) -> Result<Vec<PixelRectangle>, ComputerError> {
        let secrets = self.with_state(|state| {
            let secrets = state.typed_secrets.iter().filter(|secret| !secret.trim().is_empty());
            secrets.cloned().collect::<Vec<_>>()
        });
        let mut rectangles = Vec::new();
        if secrets.is_empty() {
            return Ok(rectangles);
        }
        let script = format!("{FIND_SECRETS}({})", Value::from(secrets));
        for frame in self.frames_of_tab().await? {
            let Ok(found) = self.evaluate_in(&frame, &script).await else { continue };
            let count = found.as_u64().unwrap_or(0).min(MAX_MASKED_ELEMENTS as u64);
            for index in 0..count {
                rectangles.extend(self.masked_rectangles(&frame, index).await.unwrap_or_default());
            }
        }
        Ok(rectangles)
    }

    async fn masked_rectangles(
        &self,
        frame: &FrameRef,
        index: u64,
    ) -> Result<Vec<PixelRectangle>, ComputerError> {
        let context = self.isolated_context(frame).await?;
        let params =
            json!({ "expression": format!("globalThis.windlassMasked[{index}]"), "contextId": context });
        let element = self.query(&frame.session, "Runtime.evaluate", params).await?;
        let params = json!({ "objectId": element["result"]["objectId"] });
        let quads = self.query(&frame.session, "DOM.getContentQuads", params).await?;
        let (left, top) = self.session_offset(&frame.session).await?;
        let quads = quads["quads"].as_array().cloned().unwrap_or_default();
        Ok(quads.iter().filter_map(|quad| PixelRectangle::around_quad(quad, left, top)).collect())
    }

    /// Paints everything black that shows a secret. The rectangles from before and after the screenshot are
    /// used, because the page may have moved.
    pub(super) async fn mask_screenshot(
        &self,
        screenshot: Screenshot,
        mut rectangles: Vec<PixelRectangle>,
        scale: (f64, f64, f64),
    ) -> Result<Screenshot, ComputerError> {
        rectangles.extend(self.secret_rectangles().await?);
        if rectangles.is_empty() {
            return Ok(screenshot);
        }
        let (left, top, factor) = scale;
        let placed: Vec<_> = rectangles.iter().map(|found| found.shifted(left, top, factor)).collect();
        paint_black(&screenshot, &placed)
    }
}
