//! Secrets in a browser are typed only into a field whose own frame belongs to the secret's sites.

use serde_json::json;

use super::AllowedSites;
use super::frames::LocatedNode;
use super::page_controller::PageController;
use crate::computer::ComputerError;

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
}
