//! What can be asked of a computer: one enum, whichever provider asks.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::key::Chord;
use crate::read;

/// A place on the screen, in pixels from the top left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Point {
    /// From the left.
    pub x: u32,
    /// From the top.
    pub y: u32,
}

/// A part of the screen. The far edge is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its top left.
    pub from: Point,
    /// Its bottom right.
    pub to: Point,
}

impl Region {
    /// How wide it is.
    pub fn width(&self) -> u32 {
        self.to.x.saturating_sub(self.from.x)
    }

    /// How high it is.
    pub fn height(&self) -> u32 {
        self.to.y.saturating_sub(self.from.y)
    }
}

/// A button of the mouse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Button {
    /// The first.
    #[default]
    Left,
    /// The wheel.
    Middle,
    /// The second.
    Right,
    /// Back.
    Back,
    /// Forward.
    Forward,
}

/// One thing that is asked of a computer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Looks at the screen.
    Screenshot,
    /// Looks at a part of it closely.
    Zoom {
        /// Which part.
        region: Region,
    },
    /// Says where the pointer is.
    Cursor,
    /// Moves the pointer.
    Move {
        /// Where to.
        to: Point,
        /// The keys that are held meanwhile.
        held: Chord,
    },
    /// Clicks, once or more.
    Click {
        /// Where; where the pointer is, if it does not say.
        at: Option<Point>,
        /// Which button.
        button: Button,
        /// How often.
        times: u32,
        /// The keys that are held meanwhile.
        held: Chord,
    },
    /// Presses a button and keeps it down.
    Press {
        /// Which.
        button: Button,
    },
    /// Lets a button go.
    Release {
        /// Which.
        button: Button,
    },
    /// Drags along a path.
    Drag {
        /// From its first point to its last.
        path: Vec<Point>,
        /// The keys that are held meanwhile.
        held: Chord,
    },
    /// Scrolls.
    Scroll {
        /// Where; where the pointer is, if it does not say.
        at: Option<Point>,
        /// Pixels to the right.
        right: i32,
        /// Pixels down.
        down: i32,
        /// The keys that are held meanwhile.
        held: Chord,
    },
    /// Types text.
    Type {
        /// The text.
        text: String,
    },
    /// Presses keys together.
    Keys {
        /// Which.
        chord: Chord,
        /// How often.
        times: u32,
    },
    /// Holds keys down for a while.
    Hold {
        /// Which.
        chord: Chord,
        /// For how long.
        lasting: Duration,
    },
    /// Waits.
    Wait {
        /// For how long.
        lasting: Duration,
    },
    /// Goes to an address, in a browser.
    Navigate {
        /// The address.
        url: String,
    },
    /// Goes back, in a browser.
    Back,
    /// Goes forward, in a browser.
    Forward,
    /// Loads the page again, in a browser.
    Reload,
    /// Lists the tabs of a browser.
    Tabs,
    /// Shows another tab of a browser.
    SwitchTab {
        /// Its place in the list, from 0.
        tab: usize,
    },
    /// Closes a tab of a browser.
    CloseTab {
        /// Its place in the list, from 0.
        tab: usize,
    },
    /// Answers the dialog that a page shows.
    AnswerDialog {
        /// Yes or no.
        answer: Answer,
        /// What to enter.
        text: Option<String>,
    },
}

/// What a dialog is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, or all right.
    Accept,
    /// No.
    Dismiss,
}

impl Action {
    /// Reads an action as OpenAI or Anthropic puts it, or in our own words. What is wrong is said in words that a
    /// model can act on.
    pub fn read(value: &Value) -> Result<Self, String> {
        read::action(value)
    }

    /// Whether it only looks: then it may happen again.
    pub fn looks(&self) -> bool {
        match self {
            Self::Screenshot | Self::Zoom { .. } | Self::Cursor | Self::Wait { .. } | Self::Tabs => true,
            Self::Move { .. }
            | Self::Click { .. }
            | Self::Press { .. }
            | Self::Release { .. }
            | Self::Drag { .. }
            | Self::Scroll { .. }
            | Self::Type { .. }
            | Self::Keys { .. }
            | Self::Hold { .. }
            | Self::Navigate { .. }
            | Self::Back
            | Self::Forward
            | Self::Reload
            | Self::SwitchTab { .. }
            | Self::CloseTab { .. }
            | Self::AnswerDialog { .. } => false,
        }
    }

    /// The places on the screen that it names.
    pub fn points(&self) -> Vec<Point> {
        match self {
            Self::Move { to, .. } => vec![*to],
            Self::Click { at, .. } | Self::Scroll { at, .. } => at.iter().copied().collect(),
            Self::Drag { path, .. } => path.clone(),
            Self::Zoom { region } => {
                vec![
                    region.from,
                    Point { x: region.to.x.saturating_sub(1), y: region.to.y.saturating_sub(1) },
                ]
            }
            _ => Vec::new(),
        }
    }

    /// How long it is meant to take.
    pub fn lasting(&self) -> Duration {
        match self {
            Self::Wait { lasting } | Self::Hold { lasting, .. } => *lasting,
            _ => Duration::ZERO,
        }
    }

    /// Its kind in a word, as rules and counts use it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Screenshot => "screenshot",
            Self::Zoom { .. } => "zoom",
            Self::Cursor => "cursor_position",
            Self::Move { .. } => "move",
            Self::Click { times: 2, .. } => "double_click",
            Self::Click { .. } => "click",
            Self::Press { .. } => "press",
            Self::Release { .. } => "release",
            Self::Drag { .. } => "drag",
            Self::Scroll { .. } => "scroll",
            Self::Type { .. } => "type",
            Self::Keys { .. } => "keypress",
            Self::Hold { .. } => "hold_key",
            Self::Wait { .. } => "wait",
            Self::Navigate { .. } => "navigate",
            Self::Back => "back",
            Self::Forward => "forward",
            Self::Reload => "reload",
            Self::Tabs => "tabs",
            Self::SwitchTab { .. } => "switch_tab",
            Self::CloseTab { .. } => "close_tab",
            Self::AnswerDialog { .. } => "answer_dialog",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

/// What it is, for people: the film and the errors say it so. What was typed is not in it, for it may be secret.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Move { to, .. } => write!(f, " to {to}"),
            Self::Click { at: Some(at), .. } | Self::Scroll { at: Some(at), .. } => write!(f, " at {at}"),
            Self::Drag { path, .. } => match (path.first(), path.last()) {
                (Some(from), Some(to)) => write!(f, " from {from} to {to}"),
                _ => Ok(()),
            },
            Self::Type { text } => write!(f, " {} characters", text.chars().count()),
            Self::Keys { chord, .. } | Self::Hold { chord, .. } => write!(f, " {chord}"),
            Self::Navigate { url } => write!(f, " to {url}"),
            Self::SwitchTab { tab } | Self::CloseTab { tab } => write!(f, " {tab}"),
            Self::Zoom { region } => write!(f, " from {} to {}", region.from, region.to),
            _ => Ok(()),
        }
    }
}

/// A check that the provider wants somebody to acknowledge before the actions happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SafetyCheck {
    /// The provider's id of it.
    pub id: String,
    /// Its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The arguments of a call of the computer tool: actions in order, and the provider's checks.
#[derive(Clone, Debug, PartialEq)]
pub struct ComputerCall {
    /// What is asked, in order.
    pub actions: Vec<Action>,
    /// What the provider wants acknowledged first.
    pub pending_safety_checks: Vec<SafetyCheck>,
}

impl ComputerCall {
    /// Reads the arguments of a call: `{"actions": […], "pending_safety_checks": […]}`, or one action alone, as
    /// Anthropic's tool has it.
    pub fn read(value: &Value) -> Result<Self, String> {
        read::call(value)
    }

    /// Whether it only looks.
    pub fn looks(&self) -> bool {
        self.actions.iter().all(Action::looks)
    }
}

impl<'de> Deserialize<'de> for ComputerCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ComputerCall {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ComputerCall".into()
    }

    /// For models that are offered the tool as a function. It says what is needed and leaves the rest to the reader,
    /// for providers' own computer tools do not follow it.
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
