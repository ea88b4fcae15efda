//! The target of an action: the element at a place of the screen, with its page and its frame.

use std::fmt;

use serde::Serialize;

use crate::action::{ComputerAction, ScreenPoint};

/// A place on the screen that an action has an effect on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetPlace {
    /// The element at this point.
    At(ScreenPoint),
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
        let shown = |value: &Option<String>| value.as_deref().unwrap_or("nothing").to_owned();
        for (what, then, now) in [
            ("the page", &self.address, &now.address),
            ("the frame", &self.frame, &now.frame),
            ("the origin", &self.origin, &now.origin),
            ("the element", &self.element, &now.element),
        ] {
            if then != now {
                return Some(format!("{what} was {} and is {} now", shown(then), shown(now)));
            }
        }
        None
    }

    /// Returns true if nothing is known about the target.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
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
        Ok(())
    }
}

/// Returns the places that the actions of a call have an effect on, one per action; `None` for actions
/// without a place of their own. Typed text goes to the element that the call clicked before.
pub(crate) fn target_places(actions: &[ComputerAction]) -> Vec<Option<TargetPlace>> {
    /// The keyboard focus, as far as the actions before determine it.
    enum ExpectedFocus {
        Current,
        Clicked(ScreenPoint),
        Unknown,
    }
    let mut focus = ExpectedFocus::Current;
    let of_focus = |focus: &ExpectedFocus| match focus {
        ExpectedFocus::Current => Some(TargetPlace::Focus),
        ExpectedFocus::Clicked(at) => Some(TargetPlace::At(*at)),
        ExpectedFocus::Unknown => Some(TargetPlace::Page),
    };
    let mut places = Vec::with_capacity(actions.len());
    for action in actions {
        places.push(match action {
            ComputerAction::Click { at, .. } => {
                focus = at.map_or(ExpectedFocus::Unknown, ExpectedFocus::Clicked);
                Some(at.map_or(TargetPlace::Page, TargetPlace::At))
            }
            ComputerAction::Scroll { at, .. } => Some(at.map_or(TargetPlace::Page, TargetPlace::At)),
            ComputerAction::Move { to, .. } => Some(TargetPlace::At(*to)),
            ComputerAction::Drag { path, .. } => {
                focus = ExpectedFocus::Unknown;
                Some(path.first().map_or(TargetPlace::Page, |at| TargetPlace::At(*at)))
            }
            ComputerAction::TypeText { text } => {
                let place = of_focus(&focus);
                if text.contains(['\n', '\t']) {
                    focus = ExpectedFocus::Unknown;
                }
                place
            }
            ComputerAction::PressKeys { .. } | ComputerAction::HoldKeys { .. } => {
                let place = of_focus(&focus);
                focus = ExpectedFocus::Unknown;
                place
            }
            ComputerAction::MouseDown { .. } | ComputerAction::MouseUp { .. } => {
                focus = ExpectedFocus::Unknown;
                Some(TargetPlace::Page)
            }
            ComputerAction::AnswerDialog { .. } => Some(TargetPlace::Dialog),
            ComputerAction::SwitchTab { tab } | ComputerAction::CloseTab { tab } => {
                focus = ExpectedFocus::Unknown;
                Some(TargetPlace::Tab(*tab))
            }
            ComputerAction::FillField { field, .. } => Some(TargetPlace::Element(field.clone())),
            ComputerAction::ClickElement { element, .. } => {
                focus = ExpectedFocus::Unknown;
                Some(TargetPlace::Element(element.clone()))
            }
            ComputerAction::HoverElement { element } | ComputerAction::ScrollToElement { element } => {
                Some(TargetPlace::Element(element.clone()))
            }
            ComputerAction::UploadFiles { field: Some(field), .. } => {
                Some(TargetPlace::Element(field.clone()))
            }
            ComputerAction::Back
            | ComputerAction::Forward
            | ComputerAction::Reload
            | ComputerAction::UploadFiles { field: None, .. } => Some(TargetPlace::Page),
            // The address says what happens; the page that is open does not matter.
            ComputerAction::Navigate { .. } => None,
            ComputerAction::NewTab => {
                focus = ExpectedFocus::Unknown;
                None
            }
            ComputerAction::Screenshot
            | ComputerAction::Zoom { .. }
            | ComputerAction::CursorPosition
            | ComputerAction::Wait { .. }
            | ComputerAction::ListTabs
            | ComputerAction::ReadPage { .. }
            | ComputerAction::FindElements { .. } => None,
        });
    }
    places
}
