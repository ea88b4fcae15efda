//! The state of a browser's tabs, derived from its DevTools events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;
use tokio::time::Instant;

use super::frames::LocatedNode;
use super::page_reader::ElementReference;
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
    /// Sessions of frames that live in another process than the page, by session id.
    frame_sessions: BTreeMap<String, FrameSession>,
    /// Id of the browser context of our tabs.
    pub(super) browser_context: Option<String>,
    notices: VecDeque<String>,
    /// Notices that are given only once.
    notices_given_once: BTreeSet<String>,
    pub(super) downloads: BTreeMap<String, String>,
    pub(super) cursor: ScreenPoint,
    pub(super) pressed_button: Option<MouseButton>,
    /// Data of an intercepted drag, if the page supports drag and drop.
    pub(super) drag_data: Option<Value>,
    /// True if the intercepted drag has entered an element.
    pub(super) is_drag_inside: bool,
    pub(super) last_screenshot: Option<Screenshot>,
    pub(super) last_action_at: Option<Instant>,
    /// Origins of the documents in which scripts run, by session and id of the execution context.
    context_origins: BTreeMap<(String, i64), String>,
    /// Secrets that pages have received.
    pub(super) typed_secrets: BTreeSet<String>,
    /// Elements that were listed for the model, by reference.
    pub(super) references: BTreeMap<String, ElementReference>,
    pub(super) next_reference: u64,
}

/// A frame in a process of its own.
struct FrameSession {
    /// Id of the frame, which is also its target id.
    frame: String,
    parent_session: String,
    /// Target id of its tab.
    tab: String,
    /// True if the frame did not respond to the last query in time.
    is_unresponsive: bool,
}

/// A file chooser that waits for files.
#[derive(Clone, Debug)]
pub(super) struct OpenFileChooser {
    /// The file field that opened it.
    pub(super) field: LocatedNode,
    pub(super) takes_many: bool,
}

/// The known state of a tab.
pub(super) struct TabState {
    pub(super) target: String,
    pub(super) session: String,
    pub(super) url: String,
    pub(super) title: String,
    pub(super) is_ready: bool,
    /// True if a document was loaded into the tab.
    pub(super) has_document: bool,
    /// True if the document was parsed to its end.
    pub(super) is_parsed: bool,
    pub(super) load: LoadState,
    /// Time at which the page requested a navigation that has not begun to load.
    pub(super) requested_at: Option<Instant>,
    pub(super) failure: Option<TabFailure>,
    /// The open JavaScript dialog, which blocks the page.
    pub(super) dialog: Option<PageDialog>,
    /// The open question of the page.
    pub(super) question: Option<PageQuestion>,
    /// The last file chooser that the page or one of its frames has opened.
    pub(super) file_chooser: Option<OpenFileChooser>,
    /// Reason why its last navigation was blocked.
    pub(super) blocked_reason: Option<String>,
}

/// The progress of a tab's last navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadState {
    Loaded,
    /// The document is not complete.
    Loading {
        since: Instant,
    },
    /// The document is complete; images and other resources are missing.
    Interactive {
        since: Instant,
    },
}

/// An open JavaScript dialog.
#[derive(Clone, Debug)]
pub(super) struct PageDialog {
    /// The session that opened it.
    pub(super) session: String,
    /// The text for the model.
    pub(super) text: String,
    pub(super) origin: String,
}

/// A question of the browser on behalf of a page.
#[derive(Clone, Debug)]
pub(super) struct PageQuestion {
    pub(super) text: String,
    pub(super) origin: String,
    pub(super) kind: QuestionKind,
}

#[derive(Clone, Debug)]
pub(super) enum QuestionKind {
    /// A site asks for a user name and a password, for the document of a frame or for a resource of the page.
    Authentication {
        session: String,
        request: String,
        /// Id of the frame whose next document waits for the answer.
        document_frame: Option<String>,
    },
    /// A page asks for a permission.
    Permission(PermissionRequest),
}

/// A page's request for a permission.
#[derive(Clone, Debug)]
pub(super) struct PermissionRequest {
    pub(super) session: String,
    /// The execution context that asks.
    pub(super) context: i64,
    /// The origin of that context's document.
    pub(super) origin: String,
    /// The name of the permission in the DevTools Protocol.
    pub(super) name: &'static str,
    /// The id by which the page knows the request.
    pub(super) id: String,
}

impl TabState {
    /// Returns the text of the dialog or question that must be answered before the page responds. Chromium delivers no
    /// command to a page whose next document waits for a password.
    pub(super) fn blocking_text(&self) -> Option<&str> {
        let dialog = self.dialog.as_ref().map(|dialog| dialog.text.as_str());
        dialog.or_else(|| self.document_question(&self.target))
    }

    /// Returns the text of the question that the next document of a frame waits for.
    fn document_question(&self, frame: &str) -> Option<&str> {
        let question = self.question.as_ref()?;
        match &question.kind {
            QuestionKind::Authentication { document_frame: Some(waiting), .. } if waiting == frame => {
                Some(&question.text)
            }
            QuestionKind::Authentication { .. } | QuestionKind::Permission(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TabFailure {
    /// The page did not respond in time. It may be busy and respond later.
    Busy,
    /// The page crashed.
    Crashed,
    /// The page crashed, and the model was told.
    CrashReported,
}

impl BrowserState {
    pub(super) fn current_tab(&mut self) -> Option<&mut TabState> {
        let current = self.current_target.as_deref()?;
        self.tabs.iter_mut().find(|tab| tab.target == current)
    }

    pub(super) fn tab_by_session(&mut self, session: &str) -> Option<&mut TabState> {
        self.tabs.iter_mut().find(|tab| tab.session == session)
    }

    pub(super) fn tab_by_target(&mut self, target: &str) -> Option<&mut TabState> {
        self.tabs.iter_mut().find(|tab| tab.target == target)
    }

    /// Returns the tab that a session belongs to: its own, or the one of its frame.
    pub(super) fn tab_of_session(&mut self, session: &str) -> Option<&mut TabState> {
        let tab = self.frame_sessions.get(session).map(|found| found.tab.clone());
        match tab {
            Some(target) => self.tab_by_target(&target),
            None => self.tab_by_session(session),
        }
    }

    /// Returns true if a session belongs to the current tab.
    pub(super) fn is_of_current_tab(&mut self, session: &str) -> bool {
        let tab = self.tab_of_session(session).map(|tab| tab.target.clone());
        tab.is_some() && tab == self.current_target
    }

    /// Records the origin of the document in which an execution context runs.
    pub(super) fn add_context(&mut self, session: &str, context: i64, origin: String) {
        self.context_origins.insert((session.to_owned(), context), origin);
    }

    pub(super) fn remove_context(&mut self, session: &str, context: i64) {
        self.context_origins.remove(&(session.to_owned(), context));
    }

    pub(super) fn remove_contexts(&mut self, session: &str) {
        self.context_origins.retain(|(known, _), _| known != session);
    }

    /// Returns the origin of the document in which an execution context runs.
    pub(super) fn context_origin(&self, session: &str, context: i64) -> Option<String> {
        self.context_origins.get(&(session.to_owned(), context)).cloned()
    }

    /// Returns the text that must be answered before a session responds: that of its tab, or of its own frame.
    pub(super) fn blocking_text_of(&mut self, session: &str) -> Option<String> {
        let frame = self.frame_sessions.get(session).map(|found| found.frame.clone());
        let tab = self.tab_of_session(session)?;
        let text = tab.blocking_text().or_else(|| tab.document_question(frame.as_deref()?));
        text.map(str::to_owned)
    }

    /// Records whether a frame in a process of its own responded to a query in time.
    pub(super) fn mark_frame_responsiveness(&mut self, session: &str, is_responsive: bool) {
        if let Some(frame) = self.frame_sessions.get_mut(session) {
            frame.is_unresponsive = !is_responsive;
        }
    }

    pub(super) fn is_frame_unresponsive(&self, session: &str) -> bool {
        self.frame_sessions.get(session).is_some_and(|frame| frame.is_unresponsive)
    }

    pub(super) fn add_frame_session(&mut self, session: &str, frame: &str, parent_session: &str) {
        let Some(tab) = self.tab_of_session(parent_session).map(|tab| tab.target.clone()) else { return };
        let (frame, parent_session) = (frame.to_owned(), parent_session.to_owned());
        let found = FrameSession { frame, parent_session, tab, is_unresponsive: false };
        self.frame_sessions.insert(session.to_owned(), found);
    }

    pub(super) fn remove_session(&mut self, session: &str) {
        self.frame_sessions.remove(session);
        self.remove_contexts(session);
        self.tabs.retain(|tab| tab.session != session);
        let tabs: BTreeSet<&String> = self.tabs.iter().map(|tab| &tab.target).collect();
        self.frame_sessions.retain(|_, frame| tabs.contains(&frame.tab));
        if self.current_tab().is_none() {
            self.current_target = self.tabs.last().map(|tab| tab.target.clone());
        }
    }

    /// Returns the session of a frame that lives in a process of its own.
    pub(super) fn frame_session(&self, frame: &str) -> Option<String> {
        self.frame_sessions.iter().find(|(_, found)| found.frame == frame).map(|(session, _)| session.clone())
    }

    /// Returns the sessions of all frames of a tab that live in processes of their own.
    pub(super) fn frame_sessions_of(&self, tab: &str) -> Vec<String> {
        let found = self.frame_sessions.iter().filter(|(_, frame)| frame.tab == tab);
        found.map(|(session, _)| session.clone()).collect()
    }

    /// Returns the session of the parent of a session's root frame, and the id of that frame.
    pub(super) fn frame_parent(&self, session: &str) -> Option<(String, String)> {
        self.frame_sessions.get(session).map(|found| (found.parent_session.clone(), found.frame.clone()))
    }

    /// Returns true if the document of the current tab is being replaced: an action would wait for the new one.
    pub(super) fn is_navigating(&mut self, load_timeout: std::time::Duration) -> bool {
        let is_replaced = self
            .current_tab()
            .is_some_and(|tab| matches!(tab.load, LoadState::Loading { .. }) || tab.requested_at.is_some());
        let deadline = self.load_deadline(load_timeout, load_timeout);
        is_replaced && deadline.is_some_and(|deadline| deadline > Instant::now())
    }

    pub(super) fn add_notice(&mut self, note: String) {
        self.notices.push_back(note);
        if self.notices.len() > MAX_NOTICES {
            self.notices.pop_front();
        }
    }

    /// Adds a notice unless it was given before, because pages may cause it repeatedly.
    pub(super) fn add_notice_once(&mut self, note: String) {
        if self.notices_given_once.len() < MAX_NOTICES && self.notices_given_once.insert(note.clone()) {
            self.add_notice(note);
        }
    }

    pub(super) fn take_notices(&mut self) -> Vec<String> {
        self.notices.drain(..).collect()
    }

    /// Returns the time until which an action waits for the current tab to load; `None` if it is loaded or has
    /// been waited for. Every load is waited for once: a resource that never arrives delays one action, not
    /// all.
    pub(super) fn load_deadline(
        &mut self,
        load_timeout: std::time::Duration,
        resource_timeout: std::time::Duration,
    ) -> Option<Instant> {
        let tab = self.current_tab()?;
        if tab.dialog.is_some() || tab.question.is_some() || tab.failure.is_some() {
            return None;
        }
        match (tab.load, tab.requested_at) {
            (LoadState::Loading { since }, _) => Some(since + load_timeout),
            (_, Some(requested)) => Some(requested + load_timeout),
            (LoadState::Interactive { since }, None) => Some(since + resource_timeout),
            (LoadState::Loaded, None) => None,
        }
    }
}
