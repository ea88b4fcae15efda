//! A computer: something with a screen, a pointer and keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::model::Display;

use crate::action::{Answer, Button, Point, Region};
use crate::key::Chord;

/// What a computer does, as it does it.
pub type Doing<'a, T> = BoxFuture<'a, Result<T, ComputerError>>;

/// Something with a screen, a pointer and keys. The tool asks it for one thing at a time.
///
/// Whatever it does is bounded in time. A future that is dropped leaves no key and no button down.
pub trait Computer: Send + Sync + 'static {
    /// Its screen.
    fn display(&self) -> Display;

    /// A picture of the screen.
    fn screenshot(&self) -> Doing<'_, Screenshot>;

    /// A picture of a part of the screen.
    fn zoom(&self, region: Region) -> Doing<'_, Screenshot>;

    /// Where the pointer is.
    fn cursor(&self) -> Doing<'_, Point>;

    /// Moves the pointer, with these keys held.
    fn move_to<'a>(&'a self, to: Point, held: &'a Chord) -> Doing<'a, ()>;

    /// Clicks so often, with these keys held.
    fn click<'a>(&'a self, at: Option<Point>, button: Button, times: u32, held: &'a Chord) -> Doing<'a, ()>;

    /// Presses a button and keeps it down.
    fn press(&self, button: Button) -> Doing<'_, ()>;

    /// Lets a button go.
    fn release(&self, button: Button) -> Doing<'_, ()>;

    /// Drags with the first button, with these keys held.
    fn drag<'a>(&'a self, path: &'a [Point], held: &'a Chord) -> Doing<'a, ()>;

    /// Scrolls by so many pixels, with these keys held.
    fn scroll<'a>(&'a self, at: Option<Point>, right: i32, down: i32, held: &'a Chord) -> Doing<'a, ()>;

    /// Types text.
    fn type_text<'a>(&'a self, text: &'a str) -> Doing<'a, ()>;

    /// Presses keys together.
    fn keys<'a>(&'a self, chord: &'a Chord) -> Doing<'a, ()>;

    /// Holds keys for a while.
    fn hold<'a>(&'a self, chord: &'a Chord, lasting: Duration) -> Doing<'a, ()>;

    /// Goes to an address.
    fn navigate<'a>(&'a self, _url: &'a str) -> Doing<'a, ()> {
        unsupported("go to an address")
    }

    /// Goes through the history of the page, or loads it again.
    fn travel(&self, _travel: Travel) -> Doing<'_, ()> {
        unsupported("go back or forward")
    }

    /// The tabs, the current one marked.
    fn tabs(&self) -> Doing<'_, Vec<Tab>> {
        unsupported("list tabs")
    }

    /// Shows another tab.
    fn switch_tab(&self, _tab: usize) -> Doing<'_, ()> {
        unsupported("switch tabs")
    }

    /// Closes a tab.
    fn close_tab(&self, _tab: usize) -> Doing<'_, ()> {
        unsupported("close tabs")
    }

    /// Answers the dialog that the page shows.
    fn answer_dialog<'a>(&'a self, _answer: Answer, _text: Option<&'a str>) -> Doing<'a, ()> {
        unsupported("answer dialogs")
    }

    /// What happened since it was last asked that a picture may not show: a dialog, a download, a new tab. The model
    /// is told.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

fn unsupported<T: Send + 'static>(what: &'static str) -> Doing<'static, T> {
    std::future::ready(Err(ComputerError::Unsupported(what))).boxed()
}

/// Through the history of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Travel {
    /// To the page before.
    Back,
    /// To the page after.
    Forward,
    /// Here again.
    Reload,
}

/// A tab of a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tab {
    /// Its address.
    pub url: String,
    /// Its title.
    pub title: String,
    /// Whether it is the one that is seen.
    pub is_current: bool,
}

/// A picture of a screen: a PNG.
#[derive(Clone, PartialEq, Eq)]
pub struct Screenshot(Arc<str>);

impl Screenshot {
    /// A PNG that is in base64 already.
    pub fn of_base64(png: impl Into<Arc<str>>) -> Self {
        Self(png.into())
    }

    /// A PNG.
    pub fn of_png(png: &[u8]) -> Self {
        Self(BASE64.encode(png).into())
    }

    /// The PNG in base64.
    pub fn base64(&self) -> &str {
        &self.0
    }

    /// The PNG.
    pub fn png(&self) -> Vec<u8> {
        BASE64.decode(self.0.as_bytes()).unwrap_or_default()
    }

    /// How wide and how high it is; none where it is no PNG.
    pub fn size(&self) -> Option<(u32, u32)> {
        // The head of a PNG is all that is looked at: 24 bytes are 32 digits.
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

/// Why a computer did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputerError {
    /// Something that has to be installed is not there.
    #[error("{what} is not here; {hint}")]
    Missing {
        /// What.
        what: String,
        /// What to do.
        hint: String,
    },
    /// This computer cannot do that.
    #[error("this computer cannot {0}")]
    Unsupported(&'static str),
    /// It may not be done, or not now. The words are for the model.
    #[error("{0}")]
    Refused(String),
    /// The page, or the screen, does not answer.
    #[error("the page did not answer within {} seconds", .waited.as_secs_f64())]
    Hung {
        /// How long it was waited for.
        waited: Duration,
        /// The last picture of it.
        last: Option<Screenshot>,
    },
    /// The page crashed.
    #[error("the page crashed")]
    Crashed {
        /// The last picture of it.
        last: Option<Screenshot>,
    },
    /// The computer is gone.
    #[error("the computer is gone: {0}")]
    Gone(String),
    /// It did not work.
    #[error("{0}")]
    Failed(String),
}

impl ComputerError {
    /// The last picture, where there is one.
    pub fn last(&self) -> Option<&Screenshot> {
        match self {
            Self::Hung { last, .. } | Self::Crashed { last } => last.as_ref(),
            _ => None,
        }
    }
}
