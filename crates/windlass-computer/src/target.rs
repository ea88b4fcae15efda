//! The target of an action: the element at a place of the screen, with its page and its frame.

use std::fmt;

use serde::Serialize;

use crate::action::{ComputerAction, ScreenPoint};
use crate::key::{KeyChord, KeyboardKey, NamedKey};

/// A place on the screen that an action has an effect on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetPlace {
    /// The element at this point.
    At(ScreenPoint),
    /// The element under the pointer.
    Pointer,
    /// The element that has the keyboard focus.
    Focus,
    /// The open dialog or question of the page.
    Dialog,
    /// The page as a whole.
    Page,
    /// The tab with this index.
    Tab(usize),
    /// The element with this reference, from a reading of the page.
    Element(String),
    /// The file field of the file chooser that the page has opened.
    FileChooser,
}

/// The description of the element at a place of the screen. Absent fields are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScreenTarget {
    /// URL of the page in the tab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// URL of the frame that contains the element, if it is not the page itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
    /// Origin of the document that contains the element. A page without a URL of its own has the origin of
    /// the page that opened it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Kind and name of the element, such as `button "Pay €40"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element: Option<String>,
    /// Text around the element: its dialog, its form, its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surroundings: Option<String>,
    /// Fingerprint of the content that the text does not show, such as the values of the form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl ScreenTarget {
    /// Returns the difference between what was seen and what is there now; `None` if they match.
    pub fn difference(&self, now: &Self) -> Option<String> {
        if let Some(difference) = self.element_difference(now) {
            return Some(difference);
        }
        let element = now.element.as_deref().unwrap_or("the element");
        if self.surroundings != now.surroundings {
            return Some(format!("the text around {element} has changed"));
        }
        if is_same_content(self.fingerprint.as_deref(), now.fingerprint.as_deref()) {
            return None;
        }
        Some(format!("the form around {element} has other values now, or its picture has changed"))
    }

    /// Returns the difference of page, frame and element; `None` if they match. The text and the values around
    /// the element may differ, as they do after the first actions of a call.
    pub(crate) fn element_difference(&self, now: &Self) -> Option<String> {
        self.document_difference(now).or_else(|| field_difference("the element", &self.element, &now.element))
    }

    /// Returns the difference of page, frame and origin; `None` if they match.
    pub(crate) fn document_difference(&self, now: &Self) -> Option<String> {
        field_difference("the page", &self.address, &now.address)
            .or_else(|| field_difference("the frame", &self.frame, &now.frame))
            .or_else(|| field_difference("the origin", &self.origin, &now.origin))
    }

    /// Returns true if nothing is known about the target.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

fn field_difference(what: &str, then: &Option<String>, now: &Option<String>) -> Option<String> {
    let shown = |value: &Option<String>| value.as_deref().unwrap_or("nothing").to_owned();
    (then != now).then(|| format!("{what} was {} and is {} now", shown(then), shown(now)))
}

/// Prefix of a fingerprint of the brightness of coarse cells.
const COARSE_PREFIX: &str = "coarse:";
/// Difference in brightness from which on a coarse cell counts as changed.
const MIN_CELL_CHANGE: u8 = 12;

/// Returns the fingerprint of a picture as the brightness of its coarse cells. Two of them are the same content while no
/// more than one cell in sixteen has changed, such as the one with the blinking caret.
#[cfg(feature = "x11")]
pub(crate) fn coarse_fingerprint(cells: &[u8]) -> String {
    format!("{COARSE_PREFIX}{}", data_encoding::HEXLOWER.encode(cells))
}

/// Returns true if two fingerprints stand for the same content.
fn is_same_content(then: Option<&str>, now: Option<&str>) -> bool {
    let cells = |fingerprint: Option<&str>| {
        let cells = fingerprint?.strip_prefix(COARSE_PREFIX)?;
        data_encoding::HEXLOWER.decode(cells.as_bytes()).ok()
    };
    match (cells(then), cells(now)) {
        (Some(then), Some(now)) if then.len() == now.len() => {
            let pairs = then.iter().zip(&now);
            let changed = pairs.filter(|(then, now)| then.abs_diff(**now) >= MIN_CELL_CHANGE).count();
            changed * 16 <= then.len()
        }
        _ => then == now,
    }
}

impl fmt::Display for ScreenTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element.as_deref().unwrap_or("the screen"))?;
        if let Some(address) = &self.address {
            write!(f, " on {address}")?;
        }
        if let Some(frame) = &self.frame {
            write!(f, ", in the frame {frame}")?;
        }
        // The URL of an empty or written document does not tell whose it is.
        let url = self.frame.as_ref().or(self.address.as_ref());
        match (&self.origin, url) {
            (Some(origin), Some(url)) if !is_url_of(url, origin) => write!(f, " (origin {origin})"),
            _ => Ok(()),
        }
    }
}

/// Returns true if a URL begins with an origin.
fn is_url_of(url: &str, origin: &str) -> bool {
    url.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']))
}

/// The target that an action will have when it runs, as far as the actions before it in the call determine it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedTarget {
    /// The element at a place.
    Place(TargetPlace),
    /// The keyboard focus, which an action before gave to the element at a place or to another one of its document.
    FocusAfterClick(TargetPlace),
    /// An element that nobody can see before the call runs, because an action before may move the focus or the pointer
    /// to any element.
    Unseen,
}

/// The keyboard focus during a call.
#[derive(Clone)]
enum ExpectedFocus {
    /// It is where it was before the call.
    Current,
    /// A click gave it to the element at this place, or to another one of its document.
    Clicked(TargetPlace),
    Unseen,
}

impl ExpectedFocus {
    fn after_click(clicked: &ExpectedTarget) -> Self {
        match clicked {
            ExpectedTarget::Place(place) => Self::Clicked(place.clone()),
            ExpectedTarget::FocusAfterClick(_) | ExpectedTarget::Unseen => Self::Unseen,
        }
    }

    fn target(&self) -> ExpectedTarget {
        match self {
            Self::Current => ExpectedTarget::Place(TargetPlace::Focus),
            Self::Clicked(place) => ExpectedTarget::FocusAfterClick(place.clone()),
            Self::Unseen => ExpectedTarget::Unseen,
        }
    }

    /// Returns the target of keys that are pressed a number of times. The Tab key moves the focus, whatever has it.
    fn target_of_keys(&self, chord: &KeyChord, times: u32) -> ExpectedTarget {
        match self.target() {
            ExpectedTarget::Unseen if is_focus_step(chord) => ExpectedTarget::Place(TargetPlace::Page),
            // The second press hits what the first one has made of the focus.
            _ if times > 1 && may_move_focus(chord) && !is_focus_step(chord) => ExpectedTarget::Unseen,
            target => target,
        }
    }
}

/// Returns true if a chord is the Tab key, alone or with Shift.
fn is_focus_step(chord: &KeyChord) -> bool {
    let is_part = |key: &KeyboardKey| matches!(key, KeyboardKey::Named(NamedKey::Tab | NamedKey::Shift));
    chord.keys().iter().all(is_part) && chord.keys().contains(&KeyboardKey::Named(NamedKey::Tab))
}

/// Returns true if keys may move the focus by themselves, or do more than edit the element that has it.
fn may_move_focus(chord: &KeyChord) -> bool {
    let edits = |key: &KeyboardKey| match key {
        // A space presses a button.
        KeyboardKey::Char(char) => *char != ' ',
        KeyboardKey::Named(named) => matches!(
            named,
            NamedKey::Control
                | NamedKey::Shift
                | NamedKey::Meta
                | NamedKey::Backspace
                | NamedKey::Delete
                | NamedKey::Insert
                | NamedKey::Home
                | NamedKey::End
                | NamedKey::PageUp
                | NamedKey::PageDown
                | NamedKey::ArrowLeft
                | NamedKey::ArrowUp
                | NamedKey::ArrowRight
                | NamedKey::ArrowDown
        ),
    };
    !chord.keys().iter().all(edits)
}

/// Returns the targets of each action of a call: none for an action without an effect on an element, and two for a
/// drag, the second of which is where it ends. Keys go to the element that the call clicked before.
pub(crate) fn expected_targets(actions: &[ComputerAction]) -> Vec<Vec<ExpectedTarget>> {
    let at = ExpectedTarget::Place;
    let mut focus = ExpectedFocus::Current;
    // The element under the pointer.
    let mut pointer = at(TargetPlace::Pointer);
    let mut targets = Vec::with_capacity(actions.len());
    for action in actions {
        targets.push(match action {
            ComputerAction::Click { at: point, .. } => {
                pointer = point.map_or(pointer, |point| at(TargetPlace::At(point)));
                focus = ExpectedFocus::after_click(&pointer);
                vec![pointer.clone()]
            }
            ComputerAction::Scroll { at: point, .. } => {
                pointer = point.map_or(pointer, |point| at(TargetPlace::At(point)));
                vec![pointer.clone()]
            }
            ComputerAction::Move { to, .. } => {
                pointer = at(TargetPlace::At(*to));
                vec![pointer.clone()]
            }
            ComputerAction::Drag { path, .. } => {
                let ends = path.first().into_iter().chain(path.last().filter(|_| path.len() > 1));
                let ends: Vec<_> = ends.map(|point| at(TargetPlace::At(*point))).collect();
                focus = ends.first().map_or(focus, ExpectedFocus::after_click);
                pointer = ends.last().cloned().unwrap_or(pointer);
                ends
            }
            ComputerAction::MouseDown { .. } => {
                focus = ExpectedFocus::after_click(&pointer);
                vec![pointer.clone()]
            }
            ComputerAction::MouseUp { .. } => vec![pointer.clone()],
            ComputerAction::TypeText { text } => {
                let target = focus.target();
                if text.contains(['\n', '\t']) {
                    focus = ExpectedFocus::Unseen;
                }
                vec![target]
            }
            ComputerAction::PressKeys { chord, times } => {
                let target = focus.target_of_keys(chord, *times);
                if may_move_focus(chord) {
                    focus = ExpectedFocus::Unseen;
                }
                vec![target]
            }
            ComputerAction::HoldKeys { chord, .. } => {
                let target = focus.target_of_keys(chord, 1);
                if may_move_focus(chord) {
                    focus = ExpectedFocus::Unseen;
                }
                vec![target]
            }
            ComputerAction::AnswerDialog { .. } => vec![at(TargetPlace::Dialog)],
            // What was seen in one tab is compared with what is in the other.
            ComputerAction::SwitchTab { tab } | ComputerAction::CloseTab { tab } => {
                vec![at(TargetPlace::Tab(*tab))]
            }
            ComputerAction::FillField { field, .. } => {
                focus = ExpectedFocus::Unseen;
                vec![at(TargetPlace::Element(field.clone()))]
            }
            ComputerAction::ClickElement { element, .. } => {
                let target = at(TargetPlace::Element(element.clone()));
                focus = ExpectedFocus::after_click(&target);
                pointer = ExpectedTarget::Unseen;
                vec![target]
            }
            ComputerAction::HoverElement { element } => {
                pointer = ExpectedTarget::Unseen;
                vec![at(TargetPlace::Element(element.clone()))]
            }
            ComputerAction::ScrollToElement { element } => {
                vec![at(TargetPlace::Element(element.clone()))]
            }
            ComputerAction::UploadFiles { field, .. } => {
                let field = field.clone().map_or(TargetPlace::FileChooser, TargetPlace::Element);
                vec![at(field)]
            }
            ComputerAction::Back | ComputerAction::Forward | ComputerAction::Reload => {
                vec![at(TargetPlace::Page)]
            }
            // The address says what happens; the page that is open does not matter.
            ComputerAction::Navigate { .. } => Vec::new(),
            ComputerAction::NewTab
            | ComputerAction::Screenshot
            | ComputerAction::Zoom { .. }
            | ComputerAction::CursorPosition
            | ComputerAction::Wait { .. }
            | ComputerAction::ListTabs
            | ComputerAction::ReadPage { .. }
            | ComputerAction::FindElements { .. } => Vec::new(),
        });
    }
    targets
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
