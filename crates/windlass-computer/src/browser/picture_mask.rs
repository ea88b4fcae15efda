//! Secrets in screenshots: every field and text that shows one is black. Invariant: a frame that cannot be searched for
//! them is black as a whole.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::frames::{FrameRef, MAX_FRAME_DEPTH};
use super::page_controller::PageController;
use super::picture::{PixelRectangle, paint_black};
use crate::computer::{ComputerError, Screenshot};

/// Number of elements in one frame from which on the frame is black as a whole.
const MAX_MASKED_ELEMENTS: u64 = 64;
/// Maximum number of frames that are searched again because they have moved to another process meanwhile.
const MAX_MOVED_FRAMES: u32 = 8;

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
    globalThis.windlassMasked = found;
    return found.length;
})";

/// The place of a frame that could not be searched.
enum FramePlace {
    /// The frame is not part of the page any more.
    Gone,
    /// The frame lives in another process than before.
    Moved(FrameRef),
    /// The frame is where it was.
    Unchanged,
}

impl PageController {
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
        let mut frames = VecDeque::from(self.frames_of_tab().await?);
        let mut moved = 0;
        while let Some(frame) = frames.pop_front() {
            let Err(error) = self.search_frame(&frame, &script, &mut rectangles).await else { continue };
            tracing::debug!(%error, frame = frame.frame, "a frame could not be searched for secrets");
            match self.find_frame(&frame).await {
                FramePlace::Gone => {}
                FramePlace::Moved(now) if moved < MAX_MOVED_FRAMES => {
                    moved += 1;
                    frames.push_back(now);
                }
                FramePlace::Moved(_) | FramePlace::Unchanged => {
                    rectangles.extend(self.frame_rectangles(frame).await);
                }
            }
        }
        Ok(rectangles)
    }

    /// Adds the rectangles of everything in a frame that shows a secret.
    async fn search_frame(
        &self,
        frame: &FrameRef,
        script: &str,
        rectangles: &mut Vec<PixelRectangle>,
    ) -> Result<(), ComputerError> {
        let failed = |why: &str| ComputerError::Failed(why.to_owned());
        let found = self.evaluate_in(frame, script).await?;
        let count = found.as_u64().ok_or_else(|| failed("the search gave no number"))?;
        if count >= MAX_MASKED_ELEMENTS {
            return Err(failed("too many elements show a secret"));
        }
        for index in 0..count {
            let context = self.isolated_context(frame).await?;
            let expression = format!("globalThis.windlassMasked[{index}]");
            let params = json!({ "expression": expression, "contextId": context });
            let element = self.query(&frame.session, "Runtime.evaluate", params).await?;
            let object = element["result"]["objectId"].as_str();
            let object = object.ok_or_else(|| failed("the page was replaced during the search"))?;
            let node = json!({ "objectId": object });
            rectangles.extend(self.visible_rectangles(&frame.session, node).await?);
        }
        Ok(())
    }

    /// Returns the rectangles of an element in the viewport of the tab; none if it is not displayed.
    async fn visible_rectangles(
        &self,
        session: &str,
        node: Value,
    ) -> Result<Vec<PixelRectangle>, ComputerError> {
        let quads = match self.query(session, "DOM.getContentQuads", node).await {
            Err(ComputerError::Failed(message)) if message.contains("Could not compute content quads") => {
                return Ok(Vec::new());
            }
            quads => quads?,
        };
        let (left, top) = self.session_offset(session).await?;
        let quads = quads["quads"].as_array().cloned().unwrap_or_default();
        Ok(quads.iter().filter_map(|quad| PixelRectangle::around_quad(quad, left, top)).collect())
    }

    /// Returns the present place of a frame.
    async fn find_frame(&self, frame: &FrameRef) -> FramePlace {
        match self.with_state(|state| state.frame_session(&frame.frame)) {
            Some(session) if session != frame.session => {
                return FramePlace::Moved(FrameRef { session, frame: frame.frame.clone() });
            }
            Some(_) => return FramePlace::Unchanged,
            None => {}
        }
        match self.frames_of_session(&frame.session).await {
            Ok(frames) if !frames.contains(frame) => FramePlace::Gone,
            Ok(_) | Err(_) => FramePlace::Unchanged,
        }
    }

    /// Returns the rectangles that a frame takes up. If the page around the frame does not respond either, they are those
    /// of that page.
    async fn frame_rectangles(&self, frame: FrameRef) -> Vec<PixelRectangle> {
        let mut frame = frame;
        for _ in 0..MAX_FRAME_DEPTH {
            let parent = self.with_state(|state| state.frame_parent(&frame.session));
            let (owner_session, outer) = match parent {
                // The frame is the root of its process.
                Some((session, root)) if root == frame.frame => {
                    let outer = self.root_frame(&session);
                    (session, outer)
                }
                Some((_, root)) => (frame.session.clone(), Some(FrameRef { frame: root, ..frame.clone() })),
                None => (frame.session.clone(), self.root_frame(&frame.session)),
            };
            // The root of the tab has no owner.
            let Some(outer) = outer.filter(|outer| *outer != frame) else { break };
            let params = json!({ "frameId": frame.frame });
            if let Ok(owner) = self.query(&owner_session, "DOM.getFrameOwner", params).await {
                let node = json!({ "backendNodeId": owner["backendNodeId"] });
                if let Ok(found) = self.visible_rectangles(&owner_session, node).await {
                    return found;
                }
            }
            frame = outer;
        }
        vec![PixelRectangle::EVERYTHING]
    }

    /// Returns the root frame of a session.
    fn root_frame(&self, session: &str) -> Option<FrameRef> {
        let frame = self.with_state(|state| match state.frame_parent(session) {
            Some((_, root)) => Some(root),
            None => state.tab_by_session(session).map(|tab| tab.target.clone()),
        })?;
        Some(FrameRef { session: session.to_owned(), frame })
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
