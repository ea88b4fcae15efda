//! The [`Computer`] trait: a device with a screen, a pointer and a keyboard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::canonical::Digest;
use windlass::model::ComputerDisplay;

use crate::action::{DialogAnswer, MouseButton, PageReading, ScreenPoint, ScreenRegion};
use crate::browser::AllowedSites;
use crate::key::KeyChord;
use crate::target::{ScreenTarget, TargetPlace};

/// The future of one operation of a [`Computer`].
pub type ComputerFuture<'a, T> = BoxFuture<'a, Result<T, ComputerError>>;

/// A device with a screen, a pointer and a keyboard. The tool runs one operation at a time.
///
/// Every operation is bounded in time.
///
/// # Cancel safety
///
/// Dropping the future of an operation must not leave a key or a mouse button pressed.
pub trait Computer: Send + Sync + 'static {
    /// Returns the size and environment of the screen.
    fn display(&self) -> ComputerDisplay;

    /// Takes a screenshot.
    fn screenshot(&self) -> ComputerFuture<'_, Screenshot>;

    /// Takes a magnified screenshot of a part of the screen.
    fn zoom(&self, region: ScreenRegion) -> ComputerFuture<'_, Screenshot>;

    /// Returns the position of the pointer.
    fn cursor_position(&self) -> ComputerFuture<'_, ScreenPoint>;

    /// Moves the pointer while the given keys are held.
    fn move_to<'a>(&'a self, to: ScreenPoint, held: &'a KeyChord) -> ComputerFuture<'a, ()>;

    /// Clicks the given number of times while the given keys are held; at the current pointer position if
    /// `at` is absent.
    fn click<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        button: MouseButton,
        times: u32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()>;

    /// Presses a mouse button and keeps it down.
    fn mouse_down(&self, button: MouseButton) -> ComputerFuture<'_, ()>;

    /// Releases a mouse button.
    fn mouse_up(&self, button: MouseButton) -> ComputerFuture<'_, ()>;

    /// Drags along a path with the left button while the given keys are held.
    fn drag<'a>(&'a self, path: &'a [ScreenPoint], held: &'a KeyChord) -> ComputerFuture<'a, ()>;

    /// Scrolls by a number of pixels while the given keys are held.
    fn scroll<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        right: i32,
        down: i32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()>;

    /// Types text.
    fn type_text<'a>(&'a self, text: &'a str) -> ComputerFuture<'a, ()>;

    /// Presses keys together and releases them.
    fn press_keys<'a>(&'a self, chord: &'a KeyChord) -> ComputerFuture<'a, ()>;

    /// Holds keys down for a duration.
    fn hold_keys<'a>(&'a self, chord: &'a KeyChord, lasting: Duration) -> ComputerFuture<'a, ()>;

    /// Navigates to a URL.
    fn navigate<'a>(&'a self, _url: &'a str) -> ComputerFuture<'a, ()> {
        unsupported_operation("go to an address")
    }

    /// Goes back or forward in the history of the page, or reloads it.
    fn navigate_history(&self, _travel: HistoryNavigation) -> ComputerFuture<'_, ()> {
        unsupported_operation("go back or forward")
    }

    /// Returns the open tabs.
    fn list_tabs(&self) -> ComputerFuture<'_, Vec<BrowserTab>> {
        unsupported_operation("list tabs")
    }

    /// Activates another tab.
    fn switch_tab(&self, _tab: usize) -> ComputerFuture<'_, ()> {
        unsupported_operation("switch tabs")
    }

    /// Opens an empty tab and activates it.
    fn open_tab(&self) -> ComputerFuture<'_, ()> {
        unsupported_operation("open tabs")
    }

    /// Closes a tab.
    fn close_tab(&self, _tab: usize) -> ComputerFuture<'_, ()> {
        unsupported_operation("close tabs")
    }

    /// Answers the open JavaScript dialog.
    fn answer_dialog<'a>(&'a self, _answer: DialogAnswer, _text: Option<&'a str>) -> ComputerFuture<'a, ()> {
        unsupported_operation("answer dialogs")
    }

    /// Describes the element at a place of the screen, with its page and its frame. An approval is bound to
    /// this description, so equal descriptions must mean the same element. A computer that cannot tell
    /// returns an empty description.
    fn describe_target(&self, _place: TargetPlace) -> ComputerFuture<'_, ScreenTarget> {
        std::future::ready(Ok(ScreenTarget::default())).boxed()
    }

    /// Types a secret into the focused field, if the frame of that field belongs to one of the sites. The
    /// check and the input are one step, so that no page can move the focus between them. A computer without
    /// pages types only secrets that are allowed everywhere.
    fn type_secret<'a>(&'a self, secret: &'a str, sites: &'a AllowedSites) -> ComputerFuture<'a, ()> {
        match sites {
            AllowedSites::Any => self.type_text(secret),
            AllowedSites::Only(_) => unsupported_operation("tell which site a field belongs to"),
        }
    }

    /// Answers the open dialog or question by a text with a secret, if the origin that asks belongs to all of the site
    /// lists. The check and the answer are about the same dialog. A computer without pages enters only secrets that are
    /// allowed everywhere.
    fn answer_dialog_with_secret<'a>(
        &'a self,
        answer: DialogAnswer,
        text: &'a str,
        sites: &'a [AllowedSites],
    ) -> ComputerFuture<'a, ()> {
        match sites.iter().all(|sites| *sites == AllowedSites::Any) {
            true => self.answer_dialog(answer, Some(text)),
            false => unsupported_operation("tell which site asks"),
        }
    }

    /// Remembers a secret that is about to be entered as a part of a text, so that the computer can keep it out of its
    /// pictures. A computer that cannot does nothing.
    fn remember_secret(&self, _secret: &str) {}

    /// Reads the page as text, with references of its elements.
    fn read_page<'a>(&'a self, _reading: &'a PageReading) -> ComputerFuture<'a, String> {
        unsupported_operation("read pages")
    }

    /// Finds the elements of the page that match a text, with their references.
    fn find_elements<'a>(&'a self, _query: &'a str) -> ComputerFuture<'a, String> {
        unsupported_operation("find elements")
    }

    /// Sets the value of the form field with this reference, if the frame of the field belongs to all of the
    /// site lists.
    fn fill_field<'a>(
        &'a self,
        _field: &'a str,
        _value: &'a str,
        _sites: &'a [AllowedSites],
    ) -> ComputerFuture<'a, ()> {
        unsupported_operation("fill fields")
    }

    /// Clicks the element with this reference while the given keys are held.
    fn click_element<'a>(
        &'a self,
        _element: &'a str,
        _button: MouseButton,
        _times: u32,
        _held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        unsupported_operation("click elements by reference")
    }

    /// Moves the pointer to the element with this reference.
    fn hover_element<'a>(&'a self, _element: &'a str) -> ComputerFuture<'a, ()> {
        unsupported_operation("point at elements by reference")
    }

    /// Scrolls the element with this reference into view.
    fn scroll_to_element<'a>(&'a self, _element: &'a str) -> ComputerFuture<'a, ()> {
        unsupported_operation("scroll to elements by reference")
    }

    /// Chooses files for the open file chooser of a page, or for the file field with this reference.
    fn upload_files<'a>(&'a self, _field: Option<&'a str>, _files: &'a [String]) -> ComputerFuture<'a, ()> {
        unsupported_operation("upload files")
    }

    /// Returns true if the computer has ended and will not respond any more. The tool then replaces it.
    fn is_closed(&self) -> bool {
        false
    }

    /// Takes the notices since the last call about events that a screenshot may not show: a dialog, a
    /// download, a new tab. They are added to the tool output.
    fn take_notices(&self) -> Vec<String> {
        Vec::new()
    }
}

fn unsupported_operation<T: Send + 'static>(what: &'static str) -> ComputerFuture<'static, T> {
    std::future::ready(Err(ComputerError::Unsupported(what))).boxed()
}

/// A step in the history of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryNavigation {
    /// The previous page.
    Back,
    /// The next page.
    Forward,
    /// The current page again.
    Reload,
}

/// A tab of a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserTab {
    /// URL of its page.
    pub url: String,
    /// Title of its page.
    pub title: String,
    /// True if the tab is the current one.
    pub is_current: bool,
}

/// A screenshot, held as a PNG in base64.
#[derive(Clone, PartialEq, Eq)]
pub struct Screenshot(Arc<str>);

impl Screenshot {
    /// Creates a screenshot from a PNG in base64.
    pub fn from_base64(png: impl Into<Arc<str>>) -> Self {
        Self(png.into())
    }

    /// Creates a screenshot from a PNG.
    pub fn from_png(png: &[u8]) -> Self {
        Self(BASE64.encode(png).into())
    }

    /// Returns the PNG in base64.
    pub fn as_base64(&self) -> &str {
        &self.0
    }

    /// Decodes the PNG; empty if the base64 is invalid.
    pub fn to_png(&self) -> Vec<u8> {
        BASE64.decode(self.0.as_bytes()).unwrap_or_default()
    }

    /// Returns the digest of the picture.
    pub fn digest(&self) -> Digest {
        Digest::of_text(&self.0)
    }

    /// Returns the width and height; `None` if the data is not a PNG.
    pub fn size(&self) -> Option<(u32, u32)> {
        // The PNG header suffices: its 24 bytes are 32 base64 digits.
        let head = BASE64.decode(self.0.as_bytes().get(..32)?).ok()?;
        let number = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
        if head.starts_with(b"\x89PNG\r\n\x1a\n") { Some((number(16)?, number(20)?)) } else { None }
    }
}

impl fmt::Debug for Screenshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Screenshot({} bytes of base64)", self.0.len())
    }
}

/// The reason why a computer did not perform an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputerError {
    /// A program or library that must be installed was not found.
    #[error("{what} was not found; {hint}")]
    Missing {
        /// The missing dependency.
        what: String,
        /// Advice for the operator.
        hint: String,
    },
    /// The computer does not support the operation.
    #[error("this computer cannot {0}")]
    Unsupported(&'static str),
    /// The operation is not allowed, or not now. The message is shown to the model.
    #[error("{0}")]
    Refused(String),
    /// The page or the screen did not respond in time. It may be busy and respond later.
    #[error(
        "the page did not answer within {} seconds: it is busy. The input may still take effect; wait and take a screenshot before you act again, or go to another address",
        .waited.as_secs_f64()
    )]
    Unresponsive {
        /// Time waited for a response.
        waited: Duration,
        /// Last screenshot before the page stopped responding.
        last_screenshot: Option<Screenshot>,
    },
    /// The page crashed.
    #[error("the page crashed; an empty tab replaces it, so go to an address to continue")]
    PageCrashed {
        /// Last screenshot before the crash.
        last_screenshot: Option<Screenshot>,
    },
    /// The browser or the display has closed.
    #[error("the computer is gone: {0}")]
    Closed(String),
    /// The operation failed.
    #[error("{0}")]
    Failed(String),
}

impl ComputerError {
    /// Returns the last screenshot before the error, if there is one.
    pub fn last_screenshot(&self) -> Option<&Screenshot> {
        match self {
            Self::Unresponsive { last_screenshot: last, .. }
            | Self::PageCrashed { last_screenshot: last } => last.as_ref(),
            _ => None,
        }
    }
}
