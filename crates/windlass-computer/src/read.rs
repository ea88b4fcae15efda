//! Reading actions: OpenAI's (`type`), Anthropic's (`action`), and ours, which are OpenAI's with a browser's.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::action::{Action, Answer, Button, ComputerCall, Point, Region, SafetyCheck};
use crate::key::Chord;

/// How far one notch of a wheel scrolls, in pixels: Anthropic counts notches.
const NOTCH: i32 = 100;
/// How long a wait is that does not say.
const WAIT: Duration = Duration::from_secs(1);
/// The longest wait, and the longest hold: as long as a provider may ask for.
const LONGEST: f64 = 300.0;
/// The most points of a drag, and the most actions of a call.
const MOST: usize = 1000;

pub(crate) fn call(value: &Value) -> Result<ComputerCall, String> {
    let object = value.as_object().ok_or("the arguments must be an object")?;
    let listed = match (object.get("actions"), object.get("action")) {
        (Some(Value::Array(actions)), _) if actions.len() > MOST => {
            return Err(format!("`actions` may have {MOST} entries at most"));
        }
        (Some(Value::Array(actions)), _) => actions.clone(),
        (Some(_), _) => return Err("`actions` must be a list".to_owned()),
        // OpenAI's preview has one action as an object; Anthropic's names it and puts its fields beside it.
        (None, Some(one @ Value::Object(_))) => vec![one.clone()],
        (None, Some(Value::String(_))) => vec![value.clone()],
        (None, _) => return Err("`actions` is missing: a list of actions".to_owned()),
    };
    if listed.is_empty() {
        return Err("`actions` is empty: ask for a screenshot to look".to_owned());
    }
    let read = |(at, one): (usize, &Value)| action(one).map_err(|why| format!("`actions[{at}]` {why}"));
    let actions = listed.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let pending_safety_checks = match object.get("pending_safety_checks") {
        None | Some(Value::Null) => Vec::new(),
        Some(checks) => serde_json::from_value::<Vec<SafetyCheck>>(checks.clone())
            .map_err(|error| format!("`pending_safety_checks` cannot be read: {error}"))?,
    };
    Ok(ComputerCall { actions, pending_safety_checks })
}

pub(crate) fn action(value: &Value) -> Result<Action, String> {
    let fields = Fields(value.as_object().ok_or("must be an object")?);
    match (fields.0.get("type").and_then(Value::as_str), fields.0.get("action").and_then(Value::as_str)) {
        (_, Some(name)) => anthropic(name, &fields),
        (Some(name), None) => openai(name, &fields),
        (None, None) => Err("must have a `type`".to_owned()),
    }
}

fn openai(name: &str, fields: &Fields<'_>) -> Result<Action, String> {
    let held = || fields.chord("keys");
    Ok(match name {
        "screenshot" => Action::Screenshot,
        "click" | "double_click" => Action::Click {
            at: Some(fields.point()?),
            button: fields.button()?,
            times: if name == "click" { 1 } else { 2 },
            held: held()?,
        },
        "move" => Action::Move { to: fields.point()?, held: held()? },
        "drag" => Action::Drag { path: fields.path()?, held: held()? },
        "scroll" => Action::Scroll {
            at: Some(fields.point()?),
            right: fields.whole("scroll_x")?.unwrap_or(0),
            down: fields.whole("scroll_y")?.unwrap_or(0),
            held: held()?,
        },
        "type" => Action::Type { text: fields.text("text")?.to_owned() },
        "keypress" => Action::Keys { chord: some_keys(held()?)?, times: 1 },
        "wait" => Action::Wait { lasting: wait(fields)? },
        "navigate" => Action::Navigate { url: fields.text("url")?.to_owned() },
        "back" => Action::Back,
        "forward" => Action::Forward,
        "reload" => Action::Reload,
        "tabs" => Action::Tabs,
        "switch_tab" => Action::SwitchTab { tab: fields.count("tab")? },
        "close_tab" => Action::CloseTab { tab: fields.count("tab")? },
        "answer_dialog" => Action::AnswerDialog {
            answer: match fields.0.get("accept") {
                Some(Value::Bool(true)) => Answer::Accept,
                Some(Value::Bool(false)) => Answer::Dismiss,
                _ => return Err("`accept` must be true or false".to_owned()),
            },
            text: fields.0.get("text").and_then(Value::as_str).map(str::to_owned),
        },
        unknown => return Err(format!("asks for `{unknown}`, which is no action")),
    })
}

fn anthropic(name: &str, fields: &Fields<'_>) -> Result<Action, String> {
    let click = |button, times| {
        Ok::<_, String>(Action::Click {
            at: fields.coordinate("coordinate")?,
            button,
            times,
            held: fields.chord_text("text")?,
        })
    };
    Ok(match name {
        "screenshot" => Action::Screenshot,
        "left_click" => click(Button::Left, 1)?,
        "right_click" => click(Button::Right, 1)?,
        "middle_click" => click(Button::Middle, 1)?,
        "double_click" => click(Button::Left, 2)?,
        "triple_click" => click(Button::Left, 3)?,
        "mouse_move" => Action::Move {
            to: fields.coordinate("coordinate")?.ok_or("needs `coordinate`")?,
            held: fields.chord_text("text")?,
        },
        "left_mouse_down" => Action::Press { button: Button::Left },
        "left_mouse_up" => Action::Release { button: Button::Left },
        "left_click_drag" => Action::Drag {
            path: vec![
                fields.coordinate("start_coordinate")?.ok_or("needs `start_coordinate`")?,
                fields.coordinate("coordinate")?.ok_or("needs `coordinate`")?,
            ],
            held: fields.chord_text("text")?,
        },
        "scroll" => {
            let amount = fields.whole("scroll_amount")?.unwrap_or(3).clamp(0, 100) * NOTCH;
            let (right, down) = match fields.text("scroll_direction")? {
                "up" => (0, -amount),
                "down" => (0, amount),
                "left" => (-amount, 0),
                "right" => (amount, 0),
                _ => return Err("`scroll_direction` must be up, down, left or right".to_owned()),
            };
            let at = fields.coordinate("coordinate")?;
            Action::Scroll { at, right, down, held: fields.chord_text("text")? }
        }
        "type" => Action::Type { text: fields.text("text")?.to_owned() },
        "key" => Action::Keys {
            chord: some_keys(Chord::parse(fields.text("text")?)?)?,
            times: fields.whole("repeat")?.unwrap_or(1).clamp(1, 100).unsigned_abs(),
        },
        "hold_key" => {
            Action::Hold { chord: some_keys(Chord::parse(fields.text("text")?)?)?, lasting: wait(fields)? }
        }
        "wait" => Action::Wait { lasting: wait(fields)? },
        "cursor_position" => Action::Cursor,
        "zoom" => {
            let corners = fields.0.get("region").and_then(Value::as_array).map(Vec::as_slice);
            let Some([left, top, right, bottom]) = corners else {
                return Err("`region` must be [x0, y0, x1, y1]".to_owned());
            };
            let from = Point { x: pixel(left, "region")?, y: pixel(top, "region")? };
            let to = Point { x: pixel(right, "region")?, y: pixel(bottom, "region")? };
            if to.x <= from.x || to.y <= from.y {
                return Err("`region` is empty".to_owned());
            }
            Action::Zoom { region: Region { from, to } }
        }
        unknown => return Err(format!("asks for `{unknown}`, which is no action")),
    })
}

fn some_keys(chord: Chord) -> Result<Chord, String> {
    if chord.keys().is_empty() { Err("names no keys".to_owned()) } else { Ok(chord) }
}

fn wait(fields: &Fields<'_>) -> Result<Duration, String> {
    let seconds = match (fields.0.get("duration"), fields.0.get("ms")) {
        (Some(seconds), _) => seconds.as_f64().ok_or("`duration` must be a number of seconds")?,
        (None, Some(ms)) => ms.as_f64().ok_or("`ms` must be a number")? / 1000.0,
        (None, None) => return Ok(WAIT),
    };
    if (0.0..=LONGEST).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("may wait for {LONGEST} seconds at most"))
    }
}

/// A number of pixels. Models write `12.0` now and then.
fn pixel(value: &Value, name: &str) -> Result<u32, String> {
    let wrong = || format!("`{name}` must hold whole numbers from 0, has {value}");
    let number = value.as_f64().ok_or_else(wrong)?.round();
    if (0.0..=f64::from(u32::MAX)).contains(&number) { Ok(number as u32) } else { Err(wrong()) }
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn point(&self) -> Result<Point, String> {
        let get = |name: &str| pixel(self.0.get(name).ok_or_else(|| format!("needs `{name}`"))?, name);
        Ok(Point { x: get("x")?, y: get("y")? })
    }

    fn path(&self) -> Result<Vec<Point>, String> {
        let path = self.0.get("path").and_then(Value::as_array).ok_or("needs `path`, a list of points")?;
        if !(2..=MOST).contains(&path.len()) {
            return Err(format!("`path` must have between 2 and {MOST} points"));
        }
        path.iter()
            .map(|point| match point {
                Value::Object(point) => Fields(point).point(),
                Value::Array(pair) if pair.len() == 2 => {
                    Ok(Point { x: pixel(&pair[0], "path")?, y: pixel(&pair[1], "path")? })
                }
                _ => Err("`path` must hold points".to_owned()),
            })
            .collect()
    }

    fn coordinate(&self, name: &str) -> Result<Option<Point>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(pair)) if pair.len() == 2 => {
                Ok(Some(Point { x: pixel(&pair[0], name)?, y: pixel(&pair[1], name)? }))
            }
            Some(_) => Err(format!("`{name}` must be [x, y]")),
        }
    }

    fn button(&self) -> Result<Button, String> {
        match self.0.get("button").and_then(Value::as_str) {
            None | Some("left") => Ok(Button::Left),
            Some("right") => Ok(Button::Right),
            Some("wheel" | "middle") => Ok(Button::Middle),
            Some("back") => Ok(Button::Back),
            Some("forward") => Ok(Button::Forward),
            Some(other) => Err(format!("has the button `{other}`, which there is not")),
        }
    }

    fn whole(&self, name: &str) -> Result<Option<i32>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number.abs() <= 1_000_000.0 => Ok(Some(number.round() as i32)),
                _ => Err(format!("`{name}` must be a number")),
            },
        }
    }

    fn count(&self, name: &str) -> Result<usize, String> {
        let number = self.0.get(name).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| format!("needs `{name}`, a whole number from 0"))
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).and_then(Value::as_str).ok_or_else(|| format!("needs `{name}`, a text"))
    }

    fn chord(&self, name: &str) -> Result<Chord, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(Chord::default()),
            Some(Value::Array(keys)) => {
                let names = keys.iter().map(|key| key.as_str().ok_or("`keys` must hold texts"));
                Chord::of_names(names.collect::<Result<Vec<_>, _>>()?)
            }
            Some(_) => Err(format!("`{name}` must be a list of keys")),
        }
    }

    fn chord_text(&self, name: &str) -> Result<Chord, String> {
        match self.0.get(name).and_then(Value::as_str) {
            None | Some("") => Ok(Chord::default()),
            Some(text) => Chord::parse(text),
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
