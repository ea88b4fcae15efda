//! Mouse and keyboard input to a page, by the `Input` domain of the DevTools Protocol.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::cdp_pipe::PendingCdpCommand;
use super::page_controller::PageController;
use super::shortcuts::is_browser_shortcut;
use crate::action::{MouseButton, ScreenPoint};
use crate::computer::ComputerError;
use crate::key::{KeyChord, KeyboardKey, NamedKey};

/// Number of `mouseMoved` events between two points of a drag, so that pages that track the pointer see it
/// move.
const DRAG_STEPS: u32 = 8;
/// Maximum number of input commands in flight before the first response is awaited.
const MAX_COMMANDS_IN_FLIGHT: usize = 64;

/// Pressed buttons and keys of a page, released on drop even if the caller was cancelled.
struct HeldInput<'a> {
    controller: &'a PageController,
    session: String,
    release_commands: Vec<(&'static str, Value)>,
}

impl Drop for HeldInput<'_> {
    fn drop(&mut self) {
        for (method, params) in self.release_commands.drain(..).rev() {
            self.controller.pipe.send_without_reply(Some(&self.session), method, params);
        }
    }
}

impl HeldInput<'_> {
    /// Sends the last release command and waits for its response.
    async fn release_last(&mut self) -> Result<(), ComputerError> {
        let Some((method, params)) = self.release_commands.last().cloned() else { return Ok(()) };
        let pending = self.controller.pipe.send_command(Some(&self.session), method, params).await;
        self.release_commands.pop();
        match pending {
            Ok(pending) => self.controller.await_response(&self.session, pending).await.map(|_| ()),
            Err(_) => Err(ComputerError::Closed("the browser has ended".to_owned())),
        }
    }

    async fn release_all(mut self) -> Result<(), ComputerError> {
        while !self.release_commands.is_empty() {
            self.release_last().await?;
        }
        Ok(())
    }
}

impl PageController {
    fn begin_held_input(&self) -> Result<HeldInput<'_>, ComputerError> {
        Ok(HeldInput { controller: self, session: self.current_session()?, release_commands: Vec::new() })
    }

    async fn dispatch_mouse_event(
        &self,
        kind: &str,
        at: ScreenPoint,
        more: Value,
    ) -> Result<(), ComputerError> {
        self.send_to_page("Input.dispatchMouseEvent", mouse_event_params(kind, at, more)).await?;
        self.with_state(|state| state.cursor = at);
        Ok(())
    }

    pub(super) async fn move_to(&self, to: ScreenPoint, held: &KeyChord) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        if let Some(data) = self.with_state(|state| state.drag_data.clone()) {
            return self.continue_drag(to, &data, modifier_mask(held)).await;
        }
        let pressed = self.with_state(|state| state.pressed_button);
        let modifiers = modifier_mask(held);
        let more = match pressed {
            Some(button) => {
                json!({ "button": button_name(button), "buttons": button_mask(button), "modifiers": modifiers })
            }
            None => json!({ "modifiers": modifiers }),
        };
        let from = self.cursor_position();
        self.dispatch_mouse_event("mouseMoved", to, more.clone()).await?;
        // The first motion begins a drag; the element at the end has yet to be told.
        if pressed.is_some()
            && from != to
            && let Some(data) = self.with_state(|state| state.drag_data.clone())
        {
            return self.continue_drag(to, &data, modifiers).await;
        }
        Ok(())
    }

    /// Moves the data of an intercepted drag over the element at a point.
    async fn continue_drag(
        &self,
        to: ScreenPoint,
        data: &Value,
        modifiers: u32,
    ) -> Result<(), ComputerError> {
        if !self.with_state(|state| std::mem::replace(&mut state.is_drag_inside, true)) {
            self.dispatch_drag_event("dragEnter", to, data, modifiers).await?;
        }
        self.dispatch_drag_event("dragOver", to, data, modifiers).await
    }

    pub(super) async fn click(
        &self,
        at: Option<ScreenPoint>,
        button: MouseButton,
        times: u32,
        chord: &KeyChord,
    ) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        let at = at.unwrap_or_else(|| self.cursor_position());
        self.click_in_session(self.current_session()?, at, button, times, chord).await
    }

    /// Clicks a point of the page with this session.
    pub(super) async fn click_in_session(
        &self,
        session: String,
        at: ScreenPoint,
        button: MouseButton,
        times: u32,
        chord: &KeyChord,
    ) -> Result<(), ComputerError> {
        let modifiers = modifier_mask(chord);
        // The browser processes input in the order it is sent, so no event waits for the response to the
        // previous one.
        let mut held = HeldInput { controller: self, session: session.clone(), release_commands: Vec::new() };
        let mut sent = VecDeque::new();
        let event = |params| vec![("Input.dispatchMouseEvent", params)];
        let moved = mouse_event_params("mouseMoved", at, json!({ "modifiers": modifiers }));
        self.send_commands(&session, event(moved), &mut sent).await?;
        for count in 1..=times.max(1) {
            let more = |buttons: u32| {
                json!({
                    "button": button_name(button), "buttons": buttons, "clickCount": count, "modifiers": modifiers,
                })
            };
            let up = mouse_event_params("mouseReleased", at, more(0));
            held.release_commands.push(("Input.dispatchMouseEvent", up.clone()));
            self.send_commands(
                &session,
                event(mouse_event_params("mousePressed", at, more(button_mask(button)))),
                &mut sent,
            )
            .await?;
            self.send_commands(&session, event(up), &mut sent).await?;
            held.release_commands.pop();
        }
        for pending in sent {
            self.await_response(&session, pending).await?;
        }
        self.with_state(|state| state.cursor = at);
        self.record_action();
        Ok(())
    }

    pub(super) async fn mouse_down(&self, button: MouseButton) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        if button == MouseButton::Left {
            self.with_state(|state| state.drag_data = None);
            self.send_to_page("Input.setInterceptDrags", json!({ "enabled": true })).await?;
        }
        let more = json!({ "button": button_name(button), "buttons": button_mask(button), "clickCount": 1 });
        self.dispatch_mouse_event("mousePressed", self.cursor_position(), more).await?;
        self.with_state(|state| state.pressed_button = Some(button));
        Ok(())
    }

    pub(super) async fn mouse_up(&self, button: MouseButton) -> Result<(), ComputerError> {
        let data = self.with_state(|state| {
            state.pressed_button = None;
            state.drag_data.take()
        });
        let at = self.cursor_position();
        if let Some(data) = data {
            self.dispatch_drag_event("dragOver", at, &data, 0).await?;
            self.dispatch_drag_event("drop", at, &data, 0).await?;
        }
        let more = json!({ "button": button_name(button), "buttons": 0, "clickCount": 1 });
        self.dispatch_mouse_event("mouseReleased", at, more).await?;
        if button == MouseButton::Left {
            self.send_to_page("Input.setInterceptDrags", json!({ "enabled": false })).await?;
        }
        self.record_action();
        Ok(())
    }

    pub(super) async fn drag_along(
        &self,
        path: &[ScreenPoint],
        chord: &KeyChord,
    ) -> Result<(), ComputerError> {
        let [first, rest @ ..] = path else { return Ok(()) };
        self.wait_until_loaded().await;
        let modifiers = modifier_mask(chord);
        self.with_state(|state| state.drag_data = None);
        // The window system would normally handle drag and drop, and a headless browser has none; the
        // protocol intercepts it.
        self.send_to_page("Input.setInterceptDrags", json!({ "enabled": true })).await?;
        let mut held = self.begin_held_input()?;
        held.release_commands.push(("Input.setInterceptDrags", json!({ "enabled": false })));
        self.dispatch_mouse_event("mouseMoved", *first, json!({ "modifiers": modifiers })).await?;
        let down = json!({ "button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers });
        let up = |at| {
            let more = json!({ "button": "left", "buttons": 0, "clickCount": 1, "modifiers": modifiers });
            ("Input.dispatchMouseEvent", mouse_event_params("mouseReleased", at, more))
        };
        held.release_commands.push(up(*first));
        self.dispatch_mouse_event("mousePressed", *first, down).await?;
        let (mut from, mut is_inside) = (*first, false);
        for to in rest {
            for step in 1..=DRAG_STEPS {
                let at = interpolate_point(from, *to, step);
                match self.with_state(|state| state.drag_data.clone()) {
                    Some(data) => {
                        let kind = if is_inside { "dragOver" } else { "dragEnter" };
                        is_inside = true;
                        self.dispatch_drag_event(kind, at, &data, modifiers).await?;
                    }
                    None => {
                        let more = json!({ "button": "left", "buttons": 1, "modifiers": modifiers });
                        self.dispatch_mouse_event("mouseMoved", at, more).await?;
                    }
                }
                if let Some(last) = held.release_commands.last_mut() {
                    *last = up(at);
                }
            }
            from = *to;
        }
        if let Some(data) = self.with_state(|state| state.drag_data.take()) {
            self.dispatch_drag_event("dragOver", from, &data, modifiers).await?;
            self.dispatch_drag_event("drop", from, &data, modifiers).await?;
        }
        held.release_all().await?;
        self.record_action();
        Ok(())
    }

    async fn dispatch_drag_event(
        &self,
        kind: &str,
        at: ScreenPoint,
        data: &Value,
        modifiers: u32,
    ) -> Result<(), ComputerError> {
        let params = json!({ "type": kind, "x": at.x, "y": at.y, "data": data, "modifiers": modifiers });
        self.send_to_page("Input.dispatchDragEvent", params).await?;
        self.with_state(|state| state.cursor = at);
        Ok(())
    }

    pub(super) async fn scroll_by(
        &self,
        at: Option<ScreenPoint>,
        right: i32,
        down: i32,
        chord: &KeyChord,
    ) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        let at = at.unwrap_or_else(|| self.cursor_position());
        let more = json!({ "deltaX": right, "deltaY": down, "modifiers": modifier_mask(chord) });
        self.dispatch_mouse_event("mouseWheel", at, more).await?;
        self.record_action();
        Ok(())
    }

    pub(super) async fn type_text(&self, text: &str) -> Result<(), ComputerError> {
        self.wait_until_loaded().await;
        let session = self.current_session()?;
        if is_iso_date(text) && self.fill_focused_date(text).await? {
            return Ok(());
        }
        let mut sent = VecDeque::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            // Characters on the keyboard are sent as key events for pages that listen to them; all others are
            // inserted as text.
            let strokes = match next {
                '\n' => key_stroke_commands(KeyboardKey::Named(NamedKey::Enter), 0),
                '\t' => key_stroke_commands(KeyboardKey::Named(NamedKey::Tab), 0),
                ' '..='~' => key_stroke_commands(
                    KeyboardKey::Char(next),
                    if next.is_ascii_uppercase() { 8 } else { 0 },
                ),
                _ => {
                    let end = rest.find(|char| matches!(char, '\n' | '\t' | ' '..='~')).unwrap_or(rest.len());
                    let inserted = vec![("Input.insertText", json!({ "text": &rest[..end] }))];
                    rest = &rest[end..];
                    self.send_commands(&session, inserted, &mut sent).await?;
                    continue;
                }
            };
            rest = &rest[next.len_utf8()..];
            self.send_commands(&session, strokes, &mut sent).await?;
        }
        while let Some(pending) = sent.pop_front() {
            self.await_response(&session, pending).await?;
        }
        self.record_action();
        Ok(())
    }

    /// Sets the value of the focused field if it is a field for dates or times, which takes the parts of a date
    /// in an order that depends on the language.
    async fn fill_focused_date(&self, text: &str) -> Result<bool, ComputerError> {
        let Ok(Some(node)) = self.locate_focus().await else { return Ok(false) };
        let filled = self.call_on_node(&node, FILL_DATE, &[json!(text.trim())]).await?;
        if filled == true {
            self.record_action();
        }
        Ok(filled == true)
    }

    async fn send_commands(
        &self,
        session: &str,
        commands: Vec<(&'static str, Value)>,
        sent: &mut VecDeque<PendingCdpCommand>,
    ) -> Result<(), ComputerError> {
        for (method, params) in commands {
            if sent.len() >= MAX_COMMANDS_IN_FLIGHT
                && let Some(first) = sent.pop_front()
            {
                self.await_response(session, first).await?;
                // The response may have opened a dialog or closed the page; the remaining keys would then be
                // lost.
                self.current_session()?;
            }
            let pending = self.pipe.send_command(Some(session), method, params).await;
            sent.push_back(pending.map_err(|_| ComputerError::Closed("the browser has ended".to_owned()))?);
        }
        Ok(())
    }

    pub(super) async fn press_keys(&self, chord: &KeyChord, lasting: Duration) -> Result<(), ComputerError> {
        if is_browser_shortcut(chord) {
            return Err(ComputerError::Refused(format!(
                "{chord} is a shortcut of the browser itself, not of the page; use the browser tool for addresses, \
                 history and tabs"
            )));
        }
        self.wait_until_loaded().await;
        let (mut mask, mut held) = (0, self.begin_held_input()?);
        for key in chord.keys() {
            if let KeyboardKey::Named(named) = key {
                mask |= modifier_bit(*named);
            }
            let [(down, pressed), (up, released)] = key_stroke_pair(*key, mask);
            held.release_commands.push((up, released));
            self.send_to_page(down, pressed).await?;
        }
        if !lasting.is_zero() {
            tokio::time::sleep(lasting).await;
        }
        held.release_all().await?;
        self.record_action();
        Ok(())
    }
}

/// Sets the value of a field for dates or times; returns false for other fields.
const FILL_DATE: &str = r"function (text) {
    if (this.tagName !== 'INPUT' || !['date', 'time', 'month', 'week', 'datetime-local'].includes(this.type)
        || this.disabled || this.readOnly) return false;
    const before = this.value;
    this.value = text;
    if (!this.value) { this.value = before; return false; }
    for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, { bubbles: true }));
    return true;
}";

/// Returns true if a text may be a date or a time in the form of the web, such as 2026-05-17 or 12:30.
fn is_iso_date(text: &str) -> bool {
    let text = text.trim();
    (5..=24).contains(&text.len())
        && text.starts_with(|char: char| char.is_ascii_digit())
        && text.contains(['-', ':'])
        && text.chars().all(|char| char.is_ascii_digit() || matches!(char, '-' | ':' | 'T' | 'W' | '.'))
}

fn mouse_event_params(kind: &str, at: ScreenPoint, more: Value) -> Value {
    let mut params = json!({ "type": kind, "x": at.x, "y": at.y });
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    params
}

fn interpolate_point(from: ScreenPoint, to: ScreenPoint, step: u32) -> ScreenPoint {
    let part = |from: u32, to: u32| {
        let way = i64::from(to) - i64::from(from);
        u32::try_from(i64::from(from) + way * i64::from(step) / i64::from(DRAG_STEPS)).unwrap_or(to)
    };
    ScreenPoint { x: part(from.x, to.x), y: part(from.y, to.y) }
}

fn button_name(button: MouseButton) -> &'static str {
    match button {
        MouseButton::Left => "left",
        MouseButton::Middle => "middle",
        MouseButton::Right => "right",
        MouseButton::Back => "back",
        MouseButton::Forward => "forward",
    }
}

fn button_mask(button: MouseButton) -> u32 {
    match button {
        MouseButton::Left => 1,
        MouseButton::Right => 2,
        MouseButton::Middle => 4,
        MouseButton::Back => 8,
        MouseButton::Forward => 16,
    }
}

fn modifier_bit(key: NamedKey) -> u32 {
    match key {
        NamedKey::Alt => 1,
        NamedKey::Control => 2,
        NamedKey::Meta => 4,
        NamedKey::Shift => 8,
        _ => 0,
    }
}

pub(super) fn modifier_mask(chord: &KeyChord) -> u32 {
    chord.modifiers().map(modifier_bit).fold(0, |all, one| all | one)
}

fn key_stroke_commands(key: KeyboardKey, mask: u32) -> Vec<(&'static str, Value)> {
    key_stroke_pair(key, mask).to_vec()
}

/// Returns the DevTools commands that press and release a key.
fn key_stroke_pair(key: KeyboardKey, mask: u32) -> [(&'static str, Value); 2] {
    const METHOD: &str = "Input.dispatchKeyEvent";
    let (name, code, number) = match key {
        KeyboardKey::Named(named) => (named.name().to_owned(), named.code().to_owned(), named.virtual_key()),
        KeyboardKey::Char(char) => {
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
        KeyboardKey::Named(NamedKey::Enter) => Some("\r".to_owned()),
        // With Control, Alt or Meta a key is a shortcut and produces no text.
        KeyboardKey::Char(_) if mask & 7 == 0 => Some(name),
        KeyboardKey::Char(_) | KeyboardKey::Named(_) => None,
    };
    let (mut down, mut up) = (common.clone(), common);
    down["type"] = if text.is_some() { "keyDown" } else { "rawKeyDown" }.into();
    up["type"] = "keyUp".into();
    if let Some(text) = text {
        down["text"] = text.clone().into();
        down["unmodifiedText"] = text.into();
    }
    // A headless browser has no window system that maps shortcuts to editing commands.
    let command = match (key, mask) {
        (KeyboardKey::Char('a' | 'A'), 2) => Some("selectAll"),
        (KeyboardKey::Char('c' | 'C'), 2) => Some("copy"),
        (KeyboardKey::Char('v' | 'V'), 2) => Some("paste"),
        (KeyboardKey::Char('x' | 'X'), 2) => Some("cut"),
        (KeyboardKey::Char('z' | 'Z'), 2) => Some("undo"),
        _ => None,
    };
    if let Some(command) = command {
        down["commands"] = json!([command]);
    }
    [(METHOD, down), (METHOD, up)]
}
