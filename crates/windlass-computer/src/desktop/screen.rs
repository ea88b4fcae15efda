//! One connection to an X server: screenshots, and input by the XTEST extension.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use x11rb::connection::Connection;
use x11rb::protocol::xfixes::ConnectionExt as _;
use x11rb::protocol::xproto::{self, AtomEnum, ConnectionExt as _, ImageFormat, Window};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

use super::input_focus::ClickedWindow;
use super::keyboard::X11Keyboard;
use super::pixels::{PixelImage, PointerImage};
use crate::action::{MouseButton, ScreenPoint, ScreenRegion};
use crate::computer::ComputerError;
use crate::key::{KeyChord, KeyboardKey};

/// Pause between the steps of a drag, for programs that track the pointer.
const DRAG_STEP_DELAY: Duration = Duration::from_millis(4);
/// Pause between two clicks, so that programs count them separately.
const CLICK_DELAY: Duration = Duration::from_millis(25);
/// Number of pointer motions between two points of a drag.
const DRAG_STEPS: i64 = 8;
/// Pixels per notch of the mouse wheel.
const PIXELS_PER_NOTCH: u32 = 100;
/// Maximum number of notches per action.
const MAX_NOTCHES: u32 = 100;
/// Time that a program has after an action to begin to change the screen.
const EFFECT_START_DELAY: Duration = Duration::from_millis(300);
/// Pause between two looks at a screen that may still change.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time after an action that a screenshot waits for the screen to settle. A video never settles.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct X11Screen {
    pub(super) connection: RustConnection,
    pub(super) root: Window,
    size: (u32, u32),
    keyboard: Mutex<X11Keyboard>,
    has_pointer_images: bool,
    last_action_at: Mutex<Option<Instant>>,
    /// The window of the last click, until keys are pressed.
    pub(super) clicked_window: Mutex<Option<ClickedWindow>>,
}

/// An input event to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FakeInput {
    kind: u8,
    /// The keycode or the number of the button.
    detail: u8,
    at: ScreenPoint,
}

impl FakeInput {
    /// Creates the event of a key or a button.
    fn of(kind: u8, detail: u8) -> Self {
        Self { kind, detail, at: ScreenPoint::default() }
    }
}

/// Converts an error of the X server.
pub(super) fn x_server_error(error: impl std::fmt::Display) -> ComputerError {
    ComputerError::Failed(format!("the X server: {error}"))
}

impl X11Screen {
    pub(super) fn connect(display: Option<&str>) -> Result<Self, ComputerError> {
        let missing = |what: String| {
            ComputerError::Missing {
            what,
            hint: "set DISPLAY to a display that is there, or use a virtual one: `DesktopOptions::Virtual`, with \
                   Xvfb (Debian, Ubuntu: apt-get install xvfb)"
                .to_owned(),
        }
        };
        let (connection, number) =
            x11rb::connect(display).map_err(|error| missing(format!("an X11 display ({error})")))?;
        let setup = connection.setup();
        let Some(screen) = setup.roots.get(number) else {
            return Err(missing("a screen of the X11 display".to_owned()));
        };
        let (root, size) =
            (screen.root, (u32::from(screen.width_in_pixels), u32::from(screen.height_in_pixels)));
        if screen.root_depth < 24 {
            return Err(ComputerError::Failed("the display has fewer than 24 bits of colour".to_owned()));
        }
        let has_test = connection.xtest_get_version(2, 2).ok().and_then(|asked| asked.reply().ok()).is_some();
        if !has_test {
            return Err(missing("the XTEST extension of the X server".to_owned()));
        }
        let keyboard = Mutex::new(X11Keyboard::read_mapping(&connection).map_err(x_server_error)?);
        let has_pointer_images =
            connection.xfixes_query_version(4, 0).ok().and_then(|asked| asked.reply().ok()).is_some();
        let (last_action_at, clicked_window) = (Mutex::default(), Mutex::default());
        Ok(Self { connection, root, size, keyboard, has_pointer_images, last_action_at, clicked_window })
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.size
    }

    /// Captures a part of the screen with the pointer, after the effect of the last action has settled.
    pub(super) fn capture_settled(&self, region: ScreenRegion) -> Result<PixelImage, ComputerError> {
        let acted = self.last_action_at.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut picture = self.capture_pixels(region)?;
        if let Some(acted) = acted {
            let until = acted + SETTLE_TIMEOUT;
            std::thread::sleep(EFFECT_START_DELAY.saturating_sub(acted.elapsed()));
            picture = self.capture_pixels(region)?;
            loop {
                std::thread::sleep(SETTLE_INTERVAL);
                let next = self.capture_pixels(region)?;
                let is_settled = next == picture;
                picture = next;
                if is_settled || Instant::now() >= until {
                    break;
                }
            }
        }
        if let Some(pointer) = self.pointer_image(region)? {
            picture.paint_pointer(&pointer);
        }
        Ok(picture)
    }

    /// Captures a part of the screen as it is now, without the pointer.
    pub(super) fn capture_pixels(&self, region: ScreenRegion) -> Result<PixelImage, ComputerError> {
        let short = |number: u32| u16::try_from(number).map_err(x_server_error);
        let (width, height) = (short(region.width())?, short(region.height())?);
        let (x, y) = (region.top_left.x as i16, region.top_left.y as i16);
        let asked = self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, x, y, width, height, !0);
        let image = asked.map_err(x_server_error)?.reply().map_err(x_server_error)?;
        // Each pixel has four bytes: blue, green, red and padding.
        let mut bytes = Vec::with_capacity(image.data.len() / 4 * 3);
        for pixel in image.data.chunks_exact(4) {
            bytes.extend_from_slice(&[pixel[2], pixel[1], pixel[0]]);
        }
        Ok(PixelImage { width: width.into(), height: height.into(), bytes })
    }

    fn pointer_image(&self, region: ScreenRegion) -> Result<Option<PointerImage>, ComputerError> {
        if !self.has_pointer_images {
            return Ok(None);
        }
        let asked = self.connection.xfixes_get_cursor_image().map_err(x_server_error)?;
        let found = asked.reply().map_err(x_server_error)?;
        let left = i64::from(found.x) - i64::from(found.xhot) - i64::from(region.top_left.x);
        let top = i64::from(found.y) - i64::from(found.yhot) - i64::from(region.top_left.y);
        Ok(Some(PointerImage { left, top, width: found.width.into(), pixels: found.cursor_image }))
    }

    /// Returns the title of the window at a point, or of the focused window.
    pub(super) fn window_title(&self, at: Option<ScreenPoint>) -> Result<Option<String>, ComputerError> {
        let mut title = None;
        let mut window = match at {
            Some(_) => self.root,
            None => {
                let asked = self.connection.get_input_focus().map_err(x_server_error)?;
                asked.reply().map_err(x_server_error)?.focus
            }
        };
        // With a window manager, a window is inside of its frame; its title is at some depth.
        for _ in 0..32 {
            if window > 1 && window != self.root {
                title = title.or(self.title_of(window));
            }
            let next = match at {
                Some(at) => {
                    let (x, y) = (at.x as i16, at.y as i16);
                    let asked = self.connection.translate_coordinates(self.root, window, x, y);
                    asked.map_err(x_server_error)?.reply().map_err(x_server_error)?.child
                }
                None if window > 1 && window != self.root && title.is_none() => {
                    let asked = self.connection.query_tree(window).map_err(x_server_error)?;
                    asked.reply().map_err(x_server_error)?.parent
                }
                None => break,
            };
            if next == x11rb::NONE {
                break;
            }
            window = next;
        }
        Ok(title)
    }

    fn title_of(&self, window: Window) -> Option<String> {
        let atom = self.connection.intern_atom(false, b"_NET_WM_NAME").ok()?.reply().ok()?.atom;
        [atom, AtomEnum::WM_NAME.into()].into_iter().find_map(|property| {
            let asked = self.connection.get_property(false, window, property, AtomEnum::ANY, 0, 256);
            let found = asked.ok()?.reply().ok()?;
            (!found.value.is_empty()).then(|| String::from_utf8_lossy(&found.value).into_owned())
        })
    }

    /// Returns true if a window is shown.
    pub(super) fn has_window(&self) -> Result<bool, ComputerError> {
        let asked = self.connection.query_tree(self.root).map_err(x_server_error)?;
        let children = asked.reply().map_err(x_server_error)?.children;
        Ok(children.into_iter().any(|window| {
            let asked = self.connection.get_window_attributes(window).ok();
            let found = asked.and_then(|asked| asked.reply().ok());
            found.is_some_and(|found| found.map_state == xproto::MapState::VIEWABLE)
        }))
    }

    pub(super) fn cursor_position(&self) -> Result<ScreenPoint, ComputerError> {
        let found = self
            .connection
            .query_pointer(self.root)
            .map_err(x_server_error)?
            .reply()
            .map_err(x_server_error)?;
        let whole = |number: i16| u32::try_from(number).unwrap_or(0);
        Ok(ScreenPoint { x: whole(found.root_x), y: whole(found.root_y) })
    }

    /// Sends input events together. The server handles them without a pause, however busy this process is: a pause between
    /// the press and the release of a key would make the server repeat the key.
    fn send_fake_inputs(&self, inputs: &[FakeInput]) -> Result<(), ComputerError> {
        *self.last_action_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let mut sent = Vec::with_capacity(inputs.len());
        for FakeInput { kind, detail, at } in inputs {
            let (x, y) = (at.x as i16, at.y as i16);
            let input =
                self.connection.xtest_fake_input(*kind, *detail, x11rb::CURRENT_TIME, self.root, x, y, 0);
            sent.push(input.map_err(x_server_error)?);
        }
        // The first check writes all events that are buffered.
        sent.into_iter().try_for_each(|input| input.check().map_err(x_server_error))
    }

    pub(super) fn move_to(&self, to: ScreenPoint) -> Result<(), ComputerError> {
        self.send_fake_inputs(&[FakeInput { kind: xproto::MOTION_NOTIFY_EVENT, detail: 0, at: to }])
    }

    pub(super) fn mouse_down(&self, button: MouseButton) -> Result<(), ComputerError> {
        self.record_clicked_window();
        self.send_fake_inputs(&[FakeInput::of(xproto::BUTTON_PRESS_EVENT, button_number(button))])
    }

    pub(super) fn mouse_up(&self, button: MouseButton) -> Result<(), ComputerError> {
        self.send_fake_inputs(&[FakeInput::of(xproto::BUTTON_RELEASE_EVENT, button_number(button))])
    }

    pub(super) fn click(&self, button: MouseButton, times: u32) -> Result<(), ComputerError> {
        self.record_clicked_window();
        let number = button_number(button);
        let click = [xproto::BUTTON_PRESS_EVENT, xproto::BUTTON_RELEASE_EVENT];
        for count in 0..times.max(1) {
            if count > 0 {
                std::thread::sleep(CLICK_DELAY);
            }
            self.send_fake_inputs(&click.map(|kind| FakeInput::of(kind, number)))?;
        }
        Ok(())
    }

    pub(super) fn drag_along(&self, path: &[ScreenPoint]) -> Result<(), ComputerError> {
        let [first, rest @ ..] = path else { return Ok(()) };
        self.move_to(*first)?;
        self.mouse_down(MouseButton::Left)?;
        let moved = rest.iter().try_fold(*first, |from, to| {
            for step in 1..=DRAG_STEPS {
                let part = |from: u32, to: u32| {
                    let way = i64::from(to) - i64::from(from);
                    u32::try_from(i64::from(from) + way * step / DRAG_STEPS).unwrap_or(to)
                };
                std::thread::sleep(DRAG_STEP_DELAY);
                self.move_to(ScreenPoint { x: part(from.x, to.x), y: part(from.y, to.y) })?;
            }
            Ok(*to)
        });
        self.mouse_up(MouseButton::Left)?;
        moved.map(|_| ())
    }

    pub(super) fn scroll_by(&self, right: i32, down: i32) -> Result<(), ComputerError> {
        let turn = |pixels: i32, back: u8, forth: u8| {
            let wheel = if pixels < 0 { back } else { forth };
            for _ in 0..pixels.unsigned_abs().div_ceil(PIXELS_PER_NOTCH).min(MAX_NOTCHES) {
                let notch = [xproto::BUTTON_PRESS_EVENT, xproto::BUTTON_RELEASE_EVENT];
                self.send_fake_inputs(&notch.map(|kind| FakeInput::of(kind, wheel)))?;
            }
            Ok(())
        };
        turn(down, 4, 5)?;
        turn(right, 6, 7)
    }

    fn send_key_event(&self, kind: u8, code: u8) -> Result<(), ComputerError> {
        self.send_fake_inputs(&[FakeInput::of(kind, code)])
    }

    /// Presses keys, runs `act`, and releases the keys regardless of its result.
    pub(super) fn with_keys_held(
        &self,
        chord: &KeyChord,
        act: impl FnOnce(&Self) -> Result<(), ComputerError>,
    ) -> Result<(), ComputerError> {
        let codes = self.keycodes_of(chord.keys())?;
        let pressed = codes.iter().try_for_each(|code| self.send_key_event(xproto::KEY_PRESS_EVENT, *code));
        let acted = pressed.and_then(|()| act(self));
        let released = codes.iter().rev().map(|code| self.send_key_event(xproto::KEY_RELEASE_EVENT, *code));
        released.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()?;
        acted
    }

    /// Presses keys together and releases them.
    pub(super) fn press_keys(&self, chord: &KeyChord) -> Result<(), ComputerError> {
        self.await_clicked_focus()?;
        self.stroke_keys(&self.keycodes_of(chord.keys())?)
    }

    /// Presses keys one after another and releases them in the opposite order.
    fn stroke_keys(&self, codes: &[u8]) -> Result<(), ComputerError> {
        let pressed = codes.iter().map(|code| FakeInput::of(xproto::KEY_PRESS_EVENT, *code));
        let released = codes.iter().rev().map(|code| FakeInput::of(xproto::KEY_RELEASE_EVENT, *code));
        self.send_fake_inputs(&pressed.chain(released).collect::<Vec<_>>())
    }

    pub(super) fn type_text(&self, text: &str) -> Result<(), ComputerError> {
        self.await_clicked_focus()?;
        let mut keyboard = self.lock_keyboard();
        let text: Vec<char> = text.chars().collect();
        // Characters without a key are assigned unused keycodes, as many at a time as are available.
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let ready = keyboard.assign_keycodes(&self.connection, rest).map_err(x_server_error)?;
            let (now, later) = rest.split_at(ready.max(1));
            for char in now {
                let Some(stroke) = keyboard.stroke_of(*char) else { continue };
                let shift = stroke.is_shifted.then(|| keyboard.shift_keycode());
                let codes: Vec<u8> = shift.into_iter().chain([stroke.keycode]).collect();
                self.stroke_keys(&codes)?;
            }
            rest = later;
        }
        Ok(())
    }

    fn keycodes_of(&self, keys: &[KeyboardKey]) -> Result<Vec<u8>, ComputerError> {
        let mut keyboard = self.lock_keyboard();
        keys.iter()
            .map(|key| {
                let keysym = match key {
                    KeyboardKey::Named(named) => named.keysym(),
                    KeyboardKey::Char(char) => {
                        super::keyboard::keysym_of(char.to_lowercase().next().unwrap_or(*char))
                    }
                };
                keyboard.ensure_keycode(&self.connection, keysym).map_err(x_server_error)
            })
            .collect()
    }

    fn lock_keyboard(&self) -> std::sync::MutexGuard<'_, X11Keyboard> {
        self.keyboard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pressed keys, released on drop.
pub(super) struct HeldKeys {
    screen: Arc<X11Screen>,
    keycodes: Vec<u8>,
}

impl HeldKeys {
    pub(super) fn press(screen: Arc<X11Screen>, chord: &KeyChord) -> Result<Self, ComputerError> {
        screen.await_clicked_focus()?;
        let codes = screen.keycodes_of(chord.keys())?;
        let held = Self { screen, keycodes: codes };
        held.keycodes
            .iter()
            .try_for_each(|code| held.screen.send_key_event(xproto::KEY_PRESS_EVENT, *code))?;
        Ok(held)
    }
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        for code in self.keycodes.iter().rev() {
            if let Err(error) = self.screen.send_key_event(xproto::KEY_RELEASE_EVENT, *code) {
                tracing::warn!(%error, "a key could not be released");
            }
        }
    }
}

fn button_number(button: MouseButton) -> u8 {
    match button {
        MouseButton::Left => 1,
        MouseButton::Middle => 2,
        MouseButton::Right => 3,
        MouseButton::Back => 8,
        MouseButton::Forward => 9,
    }
}
