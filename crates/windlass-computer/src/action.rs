//! The actions that a model can request of a computer, as one enum for all providers.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::action_parser;
use crate::key::KeyChord;

/// A position on the screen, in pixels from the top left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScreenPoint {
    /// Distance from the left edge.
    pub x: u32,
    /// Distance from the top edge.
    pub y: u32,
}

/// A rectangle on the screen. Its right and bottom edges are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenRegion {
    /// Top left corner, inclusive.
    pub top_left: ScreenPoint,
    /// Bottom right corner, exclusive.
    pub bottom_right: ScreenPoint,
}

impl ScreenRegion {
    /// Returns the width in pixels.
    pub fn width(&self) -> u32 {
        self.bottom_right.x.saturating_sub(self.top_left.x)
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> u32 {
        self.bottom_right.y.saturating_sub(self.top_left.y)
    }
}

/// A mouse button.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MouseButton {
    /// The primary button.
    #[default]
    Left,
    /// The wheel.
    Middle,
    /// The secondary button.
    Right,
    /// The browser-back side button.
    Back,
    /// The browser-forward side button.
    Forward,
}

/// One action that a model requests of a computer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ComputerAction {
    /// Takes a screenshot.
    Screenshot,
    /// Takes a magnified screenshot of a part of the screen.
    Zoom {
        /// The part to magnify.
        region: ScreenRegion,
    },
    /// Reports the position of the pointer.
    CursorPosition,
    /// Moves the pointer.
    Move {
        /// The target position.
        to: ScreenPoint,
        /// Keys held down during the action.
        held_keys: KeyChord,
    },
    /// Clicks one or more times.
    Click {
        /// Position of the click; the current pointer position if absent.
        at: Option<ScreenPoint>,
        /// The button to click.
        button: MouseButton,
        /// Number of clicks.
        times: u32,
        /// Keys held down during the action.
        held_keys: KeyChord,
    },
    /// Presses a mouse button and keeps it down.
    MouseDown {
        /// The button to press.
        button: MouseButton,
    },
    /// Releases a mouse button.
    MouseUp {
        /// The button to release.
        button: MouseButton,
    },
    /// Drags with the left button along a path.
    Drag {
        /// The points of the path, in order.
        path: Vec<ScreenPoint>,
        /// Keys held down during the action.
        held_keys: KeyChord,
    },
    /// Scrolls by a number of pixels.
    Scroll {
        /// Position of the pointer while scrolling; its current position if absent.
        at: Option<ScreenPoint>,
        /// Pixels to the right; negative to the left.
        delta_x: i32,
        /// Pixels down; negative up.
        delta_y: i32,
        /// Keys held down during the action.
        held_keys: KeyChord,
    },
    /// Types text.
    TypeText {
        /// The text to type; it may contain `{{secret:NAME}}` placeholders.
        text: String,
    },
    /// Presses keys together and releases them.
    PressKeys {
        /// The keys to press.
        chord: KeyChord,
        /// Number of repetitions.
        times: u32,
    },
    /// Holds keys down for a duration.
    HoldKeys {
        /// The keys to hold.
        chord: KeyChord,
        /// Time until the keys are released.
        duration: Duration,
    },
    /// Waits without acting.
    Wait {
        /// Time to wait.
        duration: Duration,
    },
    /// Navigates the current tab of a browser to a URL.
    Navigate {
        /// The URL to open.
        url: String,
    },
    /// Goes back in the history of the current tab.
    Back,
    /// Goes forward in the history of the current tab.
    Forward,
    /// Reloads the current tab.
    Reload,
    /// Lists the tabs of a browser.
    ListTabs,
    /// Opens an empty tab in a browser and activates it.
    NewTab,
    /// Activates another tab of a browser.
    SwitchTab {
        /// Index of the tab in the list of tabs, from 0.
        tab: usize,
    },
    /// Closes a tab of a browser.
    CloseTab {
        /// Index of the tab in the list of tabs, from 0.
        tab: usize,
    },
    /// Answers the open JavaScript dialog of a page.
    AnswerDialog {
        /// Accept or dismiss.
        answer: DialogAnswer,
        /// Text to enter into a prompt dialog.
        text: Option<String>,
    },
    /// Chooses files for a page that asks for them.
    UploadFiles {
        /// Reference of the file field; the file chooser that the page has opened if absent.
        field: Option<String>,
        /// Names of the files in the folder for uploads.
        files: Vec<String>,
    },
    /// Reads the page as text, with references of its elements.
    ReadPage {
        /// The part of the page to read.
        reading: PageReading,
    },
    /// Finds the elements of the page that match a text.
    FindElements {
        /// The text to find in names, roles and values.
        query: String,
    },
    /// Sets the value of a form field.
    FillField {
        /// Reference of the field.
        field: String,
        /// The new value; it may contain `{{secret:NAME}}` placeholders.
        value: String,
    },
    /// Clicks an element by its reference.
    ClickElement {
        /// Reference of the element.
        element: String,
        /// The button to click.
        button: MouseButton,
        /// Number of clicks.
        times: u32,
        /// Keys held down during the action.
        held_keys: KeyChord,
    },
    /// Moves the pointer to an element by its reference.
    HoverElement {
        /// Reference of the element.
        element: String,
    },
    /// Scrolls an element into view by its reference.
    ScrollToElement {
        /// Reference of the element.
        element: String,
    },
}

/// The part of a page that a reading lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageReading {
    /// The kinds of elements to list.
    pub content: PageContent,
    /// Reference of the element whose content is read; the whole page if absent.
    pub root: Option<String>,
    /// Maximum depth of the listed elements below the root; unlimited if absent.
    pub max_depth: Option<usize>,
}

/// The content of a page that a reading lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PageContent {
    /// The texts and the elements that can be used.
    #[default]
    All,
    /// The elements that can be used, without the other texts.
    Interactive,
    /// The texts only.
    Text,
}

/// The answer to a JavaScript dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialogAnswer {
    /// Accepts the dialog (OK).
    Accept,
    /// Dismisses the dialog (Cancel).
    Dismiss,
}

impl ComputerAction {
    /// Parses an action in the format of OpenAI, of Anthropic, or of this crate.
    ///
    /// # Errors
    ///
    /// Returns a message that is written for the model and names the invalid field.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        action_parser::parse_action(value)
    }

    /// Returns true if the action only observes the screen; such an action is safe to repeat.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Screenshot
            | Self::Zoom { .. }
            | Self::CursorPosition
            | Self::Wait { .. }
            | Self::ListTabs
            | Self::ReadPage { .. }
            | Self::FindElements { .. } => true,
            Self::Move { .. }
            | Self::Click { .. }
            | Self::MouseDown { .. }
            | Self::MouseUp { .. }
            | Self::Drag { .. }
            | Self::Scroll { .. }
            | Self::TypeText { .. }
            | Self::PressKeys { .. }
            | Self::HoldKeys { .. }
            | Self::Navigate { .. }
            | Self::Back
            | Self::Forward
            | Self::Reload
            | Self::SwitchTab { .. }
            | Self::CloseTab { .. }
            | Self::AnswerDialog { .. }
            | Self::UploadFiles { .. }
            | Self::NewTab
            | Self::FillField { .. }
            | Self::ClickElement { .. }
            | Self::HoverElement { .. }
            | Self::ScrollToElement { .. } => false,
        }
    }

    /// Returns the screen positions that the action names.
    pub fn screen_points(&self) -> Vec<ScreenPoint> {
        match self {
            Self::Move { to, .. } => vec![*to],
            Self::Click { at, .. } | Self::Scroll { at, .. } => at.iter().copied().collect(),
            Self::Drag { path, .. } => path.clone(),
            Self::Zoom { region } => {
                vec![
                    region.top_left,
                    ScreenPoint {
                        x: region.bottom_right.x.saturating_sub(1),
                        y: region.bottom_right.y.saturating_sub(1),
                    },
                ]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the requested duration of a wait or a hold; zero for all other actions.
    pub fn requested_duration(&self) -> Duration {
        match self {
            Self::Wait { duration: lasting } | Self::HoldKeys { duration: lasting, .. } => *lasting,
            _ => Duration::ZERO,
        }
    }

    /// Returns the name of the action's kind, as used in rules and messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Screenshot => "screenshot",
            Self::Zoom { .. } => "zoom",
            Self::CursorPosition => "cursor_position",
            Self::Move { .. } => "move",
            Self::Click { times: 2, .. } => "double_click",
            Self::Click { .. } => "click",
            Self::MouseDown { .. } => "press",
            Self::MouseUp { .. } => "release",
            Self::Drag { .. } => "drag",
            Self::Scroll { .. } => "scroll",
            Self::TypeText { .. } => "type",
            Self::PressKeys { .. } => "keypress",
            Self::HoldKeys { .. } => "hold_key",
            Self::Wait { .. } => "wait",
            Self::Navigate { .. } => "navigate",
            Self::Back => "back",
            Self::Forward => "forward",
            Self::Reload => "reload",
            Self::ListTabs => "tabs",
            Self::NewTab => "new_tab",
            Self::SwitchTab { .. } => "switch_tab",
            Self::CloseTab { .. } => "close_tab",
            Self::AnswerDialog { .. } => "answer_dialog",
            Self::UploadFiles { .. } => "upload",
            Self::ReadPage { .. } => "read_page",
            Self::FindElements { .. } => "find",
            Self::FillField { .. } => "fill",
            Self::ClickElement { .. } => "click_element",
            Self::HoverElement { .. } => "hover_element",
            Self::ScrollToElement { .. } => "scroll_to_element",
        }
    }
}

impl fmt::Display for ScreenPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

/// Formats the action for people, in recordings and errors. Typed text is left out because it may be secret.
impl fmt::Display for ComputerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Move { to, .. } => write!(f, " to {to}"),
            Self::Click { at: Some(at), .. } | Self::Scroll { at: Some(at), .. } => write!(f, " at {at}"),
            Self::Drag { path, .. } => match (path.first(), path.last()) {
                (Some(from), Some(to)) => write!(f, " from {from} to {to}"),
                _ => Ok(()),
            },
            Self::TypeText { text } => write!(f, " {} characters", text.chars().count()),
            Self::PressKeys { chord, .. } | Self::HoldKeys { chord, .. } => write!(f, " {chord}"),
            Self::Navigate { url } => write!(f, " to {url}"),
            Self::SwitchTab { tab } | Self::CloseTab { tab } => write!(f, " {tab}"),
            Self::UploadFiles { files, .. } => write!(f, " {}", files.join(", ")),
            Self::FindElements { query } => write!(f, " {query}"),
            Self::FillField { field, value } => {
                write!(f, " {field} with {} characters", value.chars().count())
            }
            Self::ClickElement { element, .. }
            | Self::HoverElement { element }
            | Self::ScrollToElement { element } => write!(f, " {element}"),
            Self::Zoom { region } => write!(f, " from {} to {}", region.top_left, region.bottom_right),
            _ => Ok(()),
        }
    }
}

/// A safety check that the provider requires to be acknowledged before the actions run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SafetyCheck {
    /// The provider's id of the check.
    pub id: String,
    /// The provider's code for the kind of check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The provider's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The arguments of a computer tool call: actions in order, and the provider's safety checks.
#[derive(Clone, Debug, PartialEq)]
pub struct ComputerCall {
    /// The requested actions, in order.
    pub actions: Vec<ComputerAction>,
    /// Safety checks that must be acknowledged before the actions run.
    pub pending_safety_checks: Vec<SafetyCheck>,
}

impl ComputerCall {
    /// Parses the arguments of a call: `{"actions": […], "pending_safety_checks": […]}`, or a single action,
    /// as Anthropic's tool sends it.
    ///
    /// # Errors
    ///
    /// Returns a message that is written for the model and names the invalid field.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        action_parser::parse_call(value)
    }

    /// Returns true if all actions only observe the screen.
    pub fn is_read_only(&self) -> bool {
        self.actions.iter().all(ComputerAction::is_read_only)
    }
}

impl<'de> Deserialize<'de> for ComputerCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ComputerCall {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ComputerCall".into()
    }

    /// The schema for models that are offered the tool as a function. It is deliberately loose: the parser
    /// validates the arguments, and providers' own computer tools do not follow the schema.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                "actions": {
                    "type": "array",
                    "description": "What to do, in order. A screenshot is taken afterwards in any case.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "type": {
                                "type": "string",
                                "description": "click, double_click, move, drag, scroll, type, keypress, wait, screenshot",
                            },
                            "x": { "type": "number", "description": "Pixels from the left." },
                            "y": { "type": "number", "description": "Pixels from the top." },
                            "button": { "type": "string", "description": "left, right, wheel, back, forward" },
                            "path": {
                                "type": "array",
                                "description": "The points of a drag.",
                                "items": {
                                    "type": "object",
                                    "properties": { "x": { "type": "number" }, "y": { "type": "number" } },
                                },
                            },
                            "scroll_x": { "type": "number", "description": "Pixels to the right." },
                            "scroll_y": { "type": "number", "description": "Pixels down." },
                            "text": { "type": "string", "description": "The text to type." },
                            "keys": {
                                "type": "array",
                                "description": "Keys to press together, or to hold during a mouse action.",
                                "items": { "type": "string" },
                            },
                        },
                    },
                },
            },
        })
    }
}
