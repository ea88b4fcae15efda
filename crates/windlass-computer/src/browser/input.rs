//! The pointer and the keys of a page.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::page::Pages;
use super::pipe::Pending;
use crate::action::{Button, Point};
use crate::computer::ComputerError;
use crate::key::{Chord, Key, NamedKey};

/// How many steps a drag takes between two of its points: pages that follow the pointer see it move.
const STEPS: u32 = 8;
/// How many keys are on their way before the first is waited for.
const AT_ONCE: usize = 64;

/// What must be let go, even where nobody waits for it any more.
struct Held<'a> {
    pages: &'a Pages,
    session: String,
    undo: Vec<(&'static str, Value)>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (method, params) in self.undo.drain(..).rev() {
            self.pages.pipe.tell(Some(&self.session), method, params);
        }
    }
}

impl Held<'_> {
    /// Lets the last thing go, and waits until it is.
    async fn release(&mut self) -> Result<(), ComputerError> {
        let Some((method, params)) = self.undo.last().cloned() else { return Ok(()) };
        let pending = self.pages.pipe.send(Some(&self.session), method, params).await;
        self.undo.pop();
        match pending {
            Ok(pending) => self.pages.answer(&self.session, pending).await.map(|_| ()),
            Err(_) => Err(ComputerError::Gone("the browser has ended".to_owned())),
        }
    }

    async fn release_all(mut self) -> Result<(), ComputerError> {
        while !self.undo.is_empty() {
            self.release().await?;
        }
        Ok(())
    }
}

impl Pages {
    fn held(&self) -> Result<Held<'_>, ComputerError> {
        Ok(Held { pages: self, session: self.session()?, undo: Vec::new() })
    }

    async fn mouse(&self, kind: &str, at: Point, more: Value) -> Result<(), ComputerError> {
        self.ask("Input.dispatchMouseEvent", mouse(kind, at, more)).await?;
        self.with(|state| state.cursor = at);
        Ok(())
    }

    pub(super) async fn move_to(&self, to: Point, held: &Chord) -> Result<(), ComputerError> {
        self.settle().await;
        let pressed = self.with(|state| state.pressed);
        let modifiers = modifiers(held);
        let more = match pressed {
            Some(button) => {
                json!({ "button": name(button), "buttons": mask(button), "modifiers": modifiers })
            }
            None => json!({ "modifiers": modifiers }),
        };
        self.mouse("mouseMoved", to, more).await
    }

    pub(super) async fn click(
        &self,
        at: Option<Point>,
        button: Button,
        times: u32,
        chord: &Chord,
    ) -> Result<(), ComputerError> {
        self.settle().await;
        let at = at.unwrap_or_else(|| self.cursor());
        let modifiers = modifiers(chord);
        // Events arrive in the order in which they are sent, so none has to wait for the one before it.
        let mut held = self.held()?;
        let (session, mut sent) = (held.session.clone(), VecDeque::new());
        let event = |params| vec![("Input.dispatchMouseEvent", params)];
        let moved = mouse("mouseMoved", at, json!({ "modifiers": modifiers }));
        self.send_all(&session, event(moved), &mut sent).await?;
        for count in 1..=times.max(1) {
            let more = |buttons: u32| {
                json!({
                    "button": name(button), "buttons": buttons, "clickCount": count, "modifiers": modifiers,
                })
            };
            let up = mouse("mouseReleased", at, more(0));
            held.undo.push(("Input.dispatchMouseEvent", up.clone()));
            self.send_all(&session, event(mouse("mousePressed", at, more(mask(button)))), &mut sent).await?;
            self.send_all(&session, event(up), &mut sent).await?;
            held.undo.pop();
        }
        for pending in sent {
            self.answer(&session, pending).await?;
        }
        self.with(|state| state.cursor = at);
        self.acted();
        Ok(())
    }

    pub(super) async fn press(&self, button: Button) -> Result<(), ComputerError> {
        self.settle().await;
        let more = json!({ "button": name(button), "buttons": mask(button), "clickCount": 1 });
        self.mouse("mousePressed", self.cursor(), more).await?;
        self.with(|state| state.pressed = Some(button));
        Ok(())
    }

    pub(super) async fn release(&self, button: Button) -> Result<(), ComputerError> {
        self.with(|state| state.pressed = None);
        let more = json!({ "button": name(button), "buttons": 0, "clickCount": 1 });
        self.mouse("mouseReleased", self.cursor(), more).await?;
        self.acted();
        Ok(())
    }

    pub(super) async fn drag(&self, path: &[Point], chord: &Chord) -> Result<(), ComputerError> {
        let [first, rest @ ..] = path else { return Ok(()) };
        self.settle().await;
        let modifiers = modifiers(chord);
        self.with(|state| state.dragged = None);
        // What a page lets be dragged would be the window system's business, and it has none here.
        self.ask("Input.setInterceptDrags", json!({ "enabled": true })).await?;
        let mut held = self.held()?;
        held.undo.push(("Input.setInterceptDrags", json!({ "enabled": false })));
        self.mouse("mouseMoved", *first, json!({ "modifiers": modifiers })).await?;
        let down = json!({ "button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers });
        let up = |at| {
            let more = json!({ "button": "left", "buttons": 0, "clickCount": 1, "modifiers": modifiers });
            ("Input.dispatchMouseEvent", mouse("mouseReleased", at, more))
        };
        held.undo.push(up(*first));
        self.mouse("mousePressed", *first, down).await?;
        let (mut from, mut is_inside) = (*first, false);
        for to in rest {
            for step in 1..=STEPS {
                let at = between(from, *to, step);
                match self.with(|state| state.dragged.clone()) {
                    Some(data) => {
                        let kind = if is_inside { "dragOver" } else { "dragEnter" };
                        is_inside = true;
                        self.drag_event(kind, at, &data, modifiers).await?;
                    }
                    None => {
                        let more = json!({ "button": "left", "buttons": 1, "modifiers": modifiers });
                        self.mouse("mouseMoved", at, more).await?;
                    }
                }
                if let Some(last) = held.undo.last_mut() {
                    *last = up(at);
                }
            }
            from = *to;
        }
        if let Some(data) = self.with(|state| state.dragged.take()) {
            self.drag_event("dragOver", from, &data, modifiers).await?;
            self.drag_event("drop", from, &data, modifiers).await?;
        }
        held.release_all().await?;
        self.acted();
        Ok(())
    }

    async fn drag_event(
        &self,
        kind: &str,
        at: Point,
        data: &Value,
        modifiers: u32,
    ) -> Result<(), ComputerError> {
        let params = json!({ "type": kind, "x": at.x, "y": at.y, "data": data, "modifiers": modifiers });
        self.ask("Input.dispatchDragEvent", params).await?;
        self.with(|state| state.cursor = at);
        Ok(())
    }

    pub(super) async fn scroll(
        &self,
        at: Option<Point>,
        right: i32,
        down: i32,
        chord: &Chord,
    ) -> Result<(), ComputerError> {
        self.settle().await;
        let at = at.unwrap_or_else(|| self.cursor());
        let more = json!({ "deltaX": right, "deltaY": down, "modifiers": modifiers(chord) });
        self.mouse("mouseWheel", at, more).await?;
        self.acted();
        Ok(())
    }

    pub(super) async fn type_text(&self, text: &str) -> Result<(), ComputerError> {
        self.settle().await;
        let session = self.session()?;
        let mut sent = VecDeque::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            // Keys that a keyboard has are pressed, so that pages that listen for keys hear them. All else is put in.
            let strokes = match next {
                '\n' => stroke(Key::Named(NamedKey::Enter), 0),
                '\t' => stroke(Key::Named(NamedKey::Tab), 0),
                ' '..='~' => stroke(Key::Char(next), if next.is_ascii_uppercase() { 8 } else { 0 }),
                _ => {
                    let end = rest.find(|char| matches!(char, '\n' | '\t' | ' '..='~')).unwrap_or(rest.len());
                    let inserted = vec![("Input.insertText", json!({ "text": &rest[..end] }))];
                    rest = &rest[end..];
                    self.send_all(&session, inserted, &mut sent).await?;
                    continue;
                }
            };
            rest = &rest[next.len_utf8()..];
            self.send_all(&session, strokes, &mut sent).await?;
        }
        while let Some(pending) = sent.pop_front() {
            self.answer(&session, pending).await?;
        }
        self.acted();
        Ok(())
    }

    async fn send_all(
        &self,
        session: &str,
        commands: Vec<(&'static str, Value)>,
        sent: &mut VecDeque<Pending>,
    ) -> Result<(), ComputerError> {
        for (method, params) in commands {
            if sent.len() >= AT_ONCE
                && let Some(first) = sent.pop_front()
            {
                self.answer(session, first).await?;
                // What a key led to may keep the rest from arriving.
                self.session()?;
            }
            let pending = self.pipe.send(Some(session), method, params).await;
            sent.push_back(pending.map_err(|_| ComputerError::Gone("the browser has ended".to_owned()))?);
        }
        Ok(())
    }

    pub(super) async fn keys(&self, chord: &Chord, lasting: Duration) -> Result<(), ComputerError> {
        self.settle().await;
        let (mut mask, mut held) = (0, self.held()?);
        for key in chord.keys() {
            if let Key::Named(named) = key {
                mask |= modifier(*named);
            }
            let [(down, pressed), (up, released)] = stroke_pair(*key, mask);
            held.undo.push((up, released));
            self.ask(down, pressed).await?;
        }
        if !lasting.is_zero() {
            tokio::time::sleep(lasting).await;
        }
        held.release_all().await?;
        self.acted();
        Ok(())
    }
}

fn mouse(kind: &str, at: Point, more: Value) -> Value {
    let mut params = json!({ "type": kind, "x": at.x, "y": at.y });
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    params
}

fn between(from: Point, to: Point, step: u32) -> Point {
    let part = |from: u32, to: u32| {
        let way = i64::from(to) - i64::from(from);
        u32::try_from(i64::from(from) + way * i64::from(step) / i64::from(STEPS)).unwrap_or(to)
    };
    Point { x: part(from.x, to.x), y: part(from.y, to.y) }
}

fn name(button: Button) -> &'static str {
    match button {
        Button::Left => "left",
        Button::Middle => "middle",
        Button::Right => "right",
        Button::Back => "back",
        Button::Forward => "forward",
    }
}

fn mask(button: Button) -> u32 {
    match button {
        Button::Left => 1,
        Button::Right => 2,
        Button::Middle => 4,
        Button::Back => 8,
        Button::Forward => 16,
    }
}

fn modifier(key: NamedKey) -> u32 {
    match key {
        NamedKey::Alt => 1,
        NamedKey::Control => 2,
        NamedKey::Meta => 4,
        NamedKey::Shift => 8,
        _ => 0,
    }
}

fn modifiers(chord: &Chord) -> u32 {
    chord.modifiers().map(modifier).fold(0, |all, one| all | one)
}

fn stroke(key: Key, mask: u32) -> Vec<(&'static str, Value)> {
    stroke_pair(key, mask).to_vec()
}

/// A key pressed and let go.
fn stroke_pair(key: Key, mask: u32) -> [(&'static str, Value); 2] {
    const METHOD: &str = "Input.dispatchKeyEvent";
    let (name, code, number) = match key {
        Key::Named(named) => (named.name().to_owned(), named.code().to_owned(), named.virtual_key()),
        Key::Char(char) => {
            let upper = char.to_ascii_uppercase();
            let shown = if mask & 8 != 0 { upper } else { char };
            match upper {
                'A'..='Z' => (shown.to_string(), format!("Key{upper}"), u32::from(upper)),
                '0'..='9' => (shown.to_string(), format!("Digit{upper}"), u32::from(upper)),
                ' ' => (" ".to_owned(), "Space".to_owned(), 32),
                _ => (char.to_string(), String::new(), 0),
            }
        }
    };
    let common = json!({
        "key": name, "code": code, "windowsVirtualKeyCode": number, "nativeVirtualKeyCode": number,
        "modifiers": mask,
    });
    let text = match key {
        Key::Named(NamedKey::Enter) => Some("\r".to_owned()),
        // With Control, Alt or Meta a key is a command and writes nothing.
        Key::Char(_) if mask & 7 == 0 => Some(name),
        Key::Char(_) | Key::Named(_) => None,
    };
    let (mut down, mut up) = (common.clone(), common);
    down["type"] = if text.is_some() { "keyDown" } else { "rawKeyDown" }.into();
    up["type"] = "keyUp".into();
    if let Some(text) = text {
        down["text"] = text.clone().into();
        down["unmodifiedText"] = text.into();
    }
    // Without a window system nobody else turns these into what they are for.
    let command = match (key, mask) {
        (Key::Char('a' | 'A'), 2) => Some("selectAll"),
        (Key::Char('c' | 'C'), 2) => Some("copy"),
        (Key::Char('v' | 'V'), 2) => Some("paste"),
        (Key::Char('x' | 'X'), 2) => Some("cut"),
        (Key::Char('z' | 'Z'), 2) => Some("undo"),
        _ => None,
    };
    if let Some(command) = command {
        down["commands"] = json!([command]);
    }
    [(METHOD, down), (METHOD, up)]
}
