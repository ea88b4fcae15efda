//! Parsing of actions: OpenAI's (`type`), Anthropic's (`action`), and this crate's, which extend OpenAI's by
//! browser actions.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::action::{
    ComputerAction, ComputerCall, DialogAnswer, MouseButton, PageReading, SafetyCheck, ScreenPoint,
    ScreenRegion,
};
use crate::browser_toolset::parse_member_call;
use crate::key::KeyChord;

/// Pixels per notch of the mouse wheel; Anthropic counts in notches.
const PIXELS_PER_NOTCH: i32 = 100;
/// Length of a wait that has no duration.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);
/// Maximum length of a wait or a hold, in seconds; the longest that a provider may request.
const MAX_WAIT_SECONDS: f64 = 300.0;
/// Maximum number of points in a drag and of actions in a call.
const MAX_LIST_LEN: usize = 1000;

pub(crate) fn parse_call(value: &Value) -> Result<ComputerCall, String> {
    let object = value.as_object().ok_or("the arguments must be an object")?;
    let listed = match (object.get("actions"), object.get("action")) {
        (Some(Value::Array(actions)), _) if actions.len() > MAX_LIST_LEN => {
            return Err(format!("`actions` may have {MAX_LIST_LEN} entries at most"));
        }
        (Some(Value::Array(actions)), _) => actions.clone(),
        (Some(_), _) => return Err("`actions` must be a list".to_owned()),
        // OpenAI's preview sends one action as an object; Anthropic sends its name with the fields beside it.
        (None, Some(one @ Value::Object(_))) => vec![one.clone()],
        (None, Some(Value::String(_))) => vec![value.clone()],
        (None, _) => return Err("`actions` is missing: a list of actions".to_owned()),
    };
    if listed.is_empty() {
        return Err("`actions` is empty: ask for a screenshot to look".to_owned());
    }
    let mut actions = Vec::with_capacity(listed.len());
    for (at, one) in listed.iter().enumerate() {
        actions.extend(parse_actions(one).map_err(|why| format!("`actions[{at}]` {why}"))?);
    }
    let pending_safety_checks = match object.get("pending_safety_checks") {
        None | Some(Value::Null) => Vec::new(),
        Some(checks) => serde_json::from_value::<Vec<SafetyCheck>>(checks.clone())
            .map_err(|error| format!("`pending_safety_checks` cannot be read: {error}"))?,
    };
    Ok(ComputerCall { actions, pending_safety_checks })
}

/// Parses a single action.
pub(crate) fn parse_action(value: &Value) -> Result<ComputerAction, String> {
    let mut actions = parse_actions(value)?;
    match (actions.pop(), actions.is_empty()) {
        (Some(action), true) => Ok(action),
        _ => Err("must be one action".to_owned()),
    }
}

/// Parses an action. Some actions of a provider are several of ours.
fn parse_actions(value: &Value) -> Result<Vec<ComputerAction>, String> {
    let fields = ActionFields(value.as_object().ok_or("must be an object")?);
    match (fields.0.get("type").and_then(Value::as_str), fields.0.get("action").and_then(Value::as_str)) {
        (_, Some(name)) => parse_member_call(name, &fields),
        (Some(name), None) => Ok(vec![parse_openai_action(name, &fields)?]),
        (None, None) => Err("must have a `type`".to_owned()),
    }
}

fn parse_openai_action(name: &str, fields: &ActionFields<'_>) -> Result<ComputerAction, String> {
    let held = || fields.chord("keys");
    Ok(match name {
        "screenshot" => ComputerAction::Screenshot,
        "click" | "double_click" => ComputerAction::Click {
            at: Some(fields.point()?),
            button: fields.button()?,
            times: if name == "click" { 1 } else { 2 },
            held_keys: held()?,
        },
        "move" => ComputerAction::Move { to: fields.point()?, held_keys: held()? },
        "drag" => ComputerAction::Drag { path: fields.path()?, held_keys: held()? },
        "scroll" => ComputerAction::Scroll {
            at: Some(fields.point()?),
            delta_x: fields.integer("scroll_x")?.unwrap_or(0),
            delta_y: fields.integer("scroll_y")?.unwrap_or(0),
            held_keys: held()?,
        },
        "type" => ComputerAction::TypeText { text: fields.text("text")?.to_owned() },
        "keypress" => ComputerAction::PressKeys { chord: require_keys(held()?)?, times: 1 },
        "wait" => ComputerAction::Wait { duration: parse_duration(fields)? },
        "navigate" => ComputerAction::Navigate { url: fields.text("url")?.to_owned() },
        "back" => ComputerAction::Back,
        "forward" => ComputerAction::Forward,
        "reload" => ComputerAction::Reload,
        "tabs" => ComputerAction::ListTabs,
        "switch_tab" => ComputerAction::SwitchTab { tab: fields.index("tab")? },
        "close_tab" => ComputerAction::CloseTab { tab: fields.index("tab")? },
        "answer_dialog" => ComputerAction::AnswerDialog {
            answer: match fields.0.get("accept") {
                Some(Value::Bool(true)) => DialogAnswer::Accept,
                Some(Value::Bool(false)) => DialogAnswer::Dismiss,
                _ => return Err("`accept` must be true or false".to_owned()),
            },
            text: fields.0.get("text").and_then(Value::as_str).map(str::to_owned),
        },
        "upload" => ComputerAction::UploadFiles {
            field: fields.0.get("element").and_then(Value::as_str).map(str::to_owned),
            files: fields.text_list("files")?,
        },
        "read_page" => ComputerAction::ReadPage { reading: PageReading::default() },
        "find" => ComputerAction::FindElements { query: fields.text("query")?.to_owned() },
        "fill" => ComputerAction::FillField {
            field: fields.text("element")?.to_owned(),
            value: fields.text("value")?.to_owned(),
        },
        "click_element" => ComputerAction::ClickElement {
            element: fields.text("element")?.to_owned(),
            button: fields.button()?,
            times: 1,
            held_keys: held()?,
        },
        unknown => return Err(format!("asks for `{unknown}`, which is no action")),
    })
}

pub(crate) fn parse_anthropic_action(
    name: &str,
    fields: &ActionFields<'_>,
) -> Result<ComputerAction, String> {
    let click = |button, times| {
        Ok::<_, String>(ComputerAction::Click {
            at: fields.place()?,
            button,
            times,
            held_keys: fields.modifiers()?,
        })
    };
    Ok(match name {
        "screenshot" => ComputerAction::Screenshot,
        "left_click" => click(MouseButton::Left, 1)?,
        "right_click" => click(MouseButton::Right, 1)?,
        "middle_click" => click(MouseButton::Middle, 1)?,
        "double_click" => click(MouseButton::Left, 2)?,
        "triple_click" => click(MouseButton::Left, 3)?,
        "mouse_move" => ComputerAction::Move {
            to: fields.place()?.ok_or("needs `coordinate`")?,
            held_keys: fields.modifiers()?,
        },
        "left_mouse_down" => ComputerAction::MouseDown { button: MouseButton::Left },
        "left_mouse_up" => ComputerAction::MouseUp { button: MouseButton::Left },
        "left_click_drag" => ComputerAction::Drag {
            path: vec![
                fields.start_place()?.ok_or("needs `start_coordinate`")?,
                fields.place()?.ok_or("needs `coordinate`")?,
            ],
            held_keys: fields.modifiers()?,
        },
        "scroll" => {
            let amount = fields.integer("scroll_amount")?.unwrap_or(3).clamp(0, 100) * PIXELS_PER_NOTCH;
            let (right, down) = match fields.text("scroll_direction")? {
                "up" => (0, -amount),
                "down" => (0, amount),
                "left" => (-amount, 0),
                "right" => (amount, 0),
                _ => return Err("`scroll_direction` must be up, down, left or right".to_owned()),
            };
            let at = fields.place()?;
            ComputerAction::Scroll { at, delta_x: right, delta_y: down, held_keys: fields.modifiers()? }
        }
        "type" => ComputerAction::TypeText { text: fields.text("text")?.to_owned() },
        "key" => ComputerAction::PressKeys {
            chord: require_keys(KeyChord::parse(fields.text("text")?)?)?,
            times: fields.integer("repeat")?.unwrap_or(1).clamp(1, 100).unsigned_abs(),
        },
        "hold_key" => ComputerAction::HoldKeys {
            chord: require_keys(KeyChord::parse(fields.text("text")?)?)?,
            duration: parse_duration(fields)?,
        },
        "wait" => ComputerAction::Wait { duration: parse_duration(fields)? },
        "cursor_position" => ComputerAction::CursorPosition,
        "zoom" => {
            let corners = fields.0.get("region").and_then(Value::as_array).map(Vec::as_slice);
            let Some([left, top, right, bottom]) = corners else {
                return Err("`region` must be [x0, y0, x1, y1]".to_owned());
            };
            let from = ScreenPoint { x: parse_pixel(left, "region")?, y: parse_pixel(top, "region")? };
            let to = ScreenPoint { x: parse_pixel(right, "region")?, y: parse_pixel(bottom, "region")? };
            if to.x <= from.x || to.y <= from.y {
                return Err("`region` is empty".to_owned());
            }
            ComputerAction::Zoom { region: ScreenRegion { top_left: from, bottom_right: to } }
        }
        unknown => return Err(format!("asks for `{unknown}`, which is no action")),
    })
}

fn require_keys(chord: KeyChord) -> Result<KeyChord, String> {
    if chord.keys().is_empty() { Err("names no keys".to_owned()) } else { Ok(chord) }
}

fn parse_duration(fields: &ActionFields<'_>) -> Result<Duration, String> {
    let seconds = match (fields.0.get("duration"), fields.0.get("ms")) {
        (Some(seconds), _) => seconds.as_f64().ok_or("`duration` must be a number of seconds")?,
        (None, Some(ms)) => ms.as_f64().ok_or("`ms` must be a number")? / 1000.0,
        (None, None) => return Ok(DEFAULT_WAIT),
    };
    if (0.0..=MAX_WAIT_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("may wait for {MAX_WAIT_SECONDS} seconds at most"))
    }
}

/// Parses a number of pixels. Models occasionally write `12.0`.
fn parse_pixel(value: &Value, name: &str) -> Result<u32, String> {
    let wrong = || format!("`{name}` must hold whole numbers from 0, has {value}");
    let number = value.as_f64().ok_or_else(wrong)?.round();
    if (0.0..=f64::from(u32::MAX)).contains(&number) { Ok(number as u32) } else { Err(wrong()) }
}

pub(crate) struct ActionFields<'a>(pub(crate) &'a Map<String, Value>);

impl ActionFields<'_> {
    /// Returns the place of a mouse action: `coordinate`, or `target` in the browser toolset.
    fn place(&self) -> Result<Option<ScreenPoint>, String> {
        self.place_in("coordinate", "target")
    }

    /// Returns the place at which a drag starts.
    fn start_place(&self) -> Result<Option<ScreenPoint>, String> {
        self.place_in("start_coordinate", "from")
    }

    fn place_in(&self, pair: &str, target: &str) -> Result<Option<ScreenPoint>, String> {
        match self.0.get(target) {
            None | Some(Value::Null) => self.coordinate(pair),
            Some(Value::Object(point)) => ActionFields(point).point().map(Some),
            Some(_) => Err(format!("`{target}` must be a coordinate or a reference")),
        }
    }

    /// Returns the keys that are held during a mouse action.
    pub(crate) fn modifiers(&self) -> Result<KeyChord, String> {
        self.chord_text(if self.0.contains_key("modifiers") { "modifiers" } else { "text" })
    }

    fn point(&self) -> Result<ScreenPoint, String> {
        let get = |name: &str| parse_pixel(self.0.get(name).ok_or_else(|| format!("needs `{name}`"))?, name);
        Ok(ScreenPoint { x: get("x")?, y: get("y")? })
    }

    fn path(&self) -> Result<Vec<ScreenPoint>, String> {
        let path = self.0.get("path").and_then(Value::as_array).ok_or("needs `path`, a list of points")?;
        if !(2..=MAX_LIST_LEN).contains(&path.len()) {
            return Err(format!("`path` must have between 2 and {MAX_LIST_LEN} points"));
        }
        path.iter()
            .map(|point| match point {
                Value::Object(point) => ActionFields(point).point(),
                Value::Array(pair) if pair.len() == 2 => {
                    Ok(ScreenPoint { x: parse_pixel(&pair[0], "path")?, y: parse_pixel(&pair[1], "path")? })
                }
                _ => Err("`path` must hold points".to_owned()),
            })
            .collect()
    }

    fn coordinate(&self, name: &str) -> Result<Option<ScreenPoint>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(pair)) if pair.len() == 2 => {
                Ok(Some(ScreenPoint { x: parse_pixel(&pair[0], name)?, y: parse_pixel(&pair[1], name)? }))
            }
            Some(_) => Err(format!("`{name}` must be [x, y]")),
        }
    }

    fn button(&self) -> Result<MouseButton, String> {
        match self.0.get("button").and_then(Value::as_str) {
            None | Some("left") => Ok(MouseButton::Left),
            Some("right") => Ok(MouseButton::Right),
            Some("wheel" | "middle") => Ok(MouseButton::Middle),
            Some("back") => Ok(MouseButton::Back),
            Some("forward") => Ok(MouseButton::Forward),
            Some(other) => Err(format!("has the button `{other}`, which there is not")),
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i32>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number.abs() <= 1_000_000.0 => Ok(Some(number.round() as i32)),
                _ => Err(format!("`{name}` must be a number")),
            },
        }
    }

    fn index(&self, name: &str) -> Result<usize, String> {
        let number = self.0.get(name).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| format!("needs `{name}`, a whole number from 0"))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).and_then(Value::as_str).ok_or_else(|| format!("needs `{name}`, a text"))
    }

    pub(crate) fn text_list(&self, name: &str) -> Result<Vec<String>, String> {
        let wrong = || format!("needs `{name}`, a list of texts");
        let list = self.0.get(name).and_then(Value::as_array).ok_or_else(wrong)?;
        list.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
    }

    fn chord(&self, name: &str) -> Result<KeyChord, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(KeyChord::default()),
            Some(Value::Array(keys)) => {
                let names = keys.iter().map(|key| key.as_str().ok_or("`keys` must hold texts"));
                KeyChord::from_names(names.collect::<Result<Vec<_>, _>>()?)
            }
            Some(_) => Err(format!("`{name}` must be a list of keys")),
        }
    }

    fn chord_text(&self, name: &str) -> Result<KeyChord, String> {
        match self.0.get(name).and_then(Value::as_str) {
            None | Some("") => Ok(KeyChord::default()),
            Some(text) => KeyChord::parse(text),
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
