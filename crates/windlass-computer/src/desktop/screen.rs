//! One connection to an X server: its pixels, its pointer, and its keys by way of the test extension.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use x11rb::connection::Connection;
use x11rb::protocol::xproto::{self, ConnectionExt as _, ImageFormat, Window};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

use super::keyboard::Keyboard;
use crate::action::{Button, Point, Region};
use crate::computer::{ComputerError, Screenshot};
use crate::key::{Chord, Key};

/// How long a pointer rests between the steps of a drag, for programs that follow it.
const STEP: Duration = Duration::from_millis(4);
/// How long a button rests between two clicks: programs tell them apart by their time.
const CLICKS: Duration = Duration::from_millis(25);
/// How many steps a drag takes between two of its points.
const STEPS: i64 = 8;
/// How far a notch of the wheel scrolls, in pixels.
const NOTCH: u32 = 100;
/// The most notches of one action.
const NOTCHES: u32 = 100;

pub(super) struct Screen {
    connection: RustConnection,
    root: Window,
    size: (u32, u32),
    keyboard: Mutex<Keyboard>,
}

/// What the server refuses is a failure of the action.
fn failed(error: impl std::fmt::Display) -> ComputerError {
    ComputerError::Failed(format!("the X server: {error}"))
}

impl Screen {
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
        let keyboard = Mutex::new(Keyboard::read(&connection).map_err(failed)?);
        Ok(Self { connection, root, size, keyboard })
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.size
    }

    pub(super) fn picture(&self, region: Region) -> Result<Screenshot, ComputerError> {
        let short = |number: u32| u16::try_from(number).map_err(failed);
        let (width, height) = (short(region.width())?, short(region.height())?);
        let (x, y) = (region.from.x as i16, region.from.y as i16);
        let asked = self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, x, y, width, height, !0);
        let image = asked.map_err(failed)?.reply().map_err(failed)?;
        // Four bytes for each pixel: blue, green, red, and one that means nothing.
        let mut pixels = Vec::with_capacity(image.data.len() / 4 * 3);
        for pixel in image.data.chunks_exact(4) {
            pixels.extend_from_slice(&[pixel[2], pixel[1], pixel[0]]);
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width.into(), height.into());
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
        written.map_err(|error| ComputerError::Failed(format!("the picture: {error}")))?;
        Ok(Screenshot::of_png(&bytes))
    }

    pub(super) fn cursor(&self) -> Result<Point, ComputerError> {
        let found = self.connection.query_pointer(self.root).map_err(failed)?.reply().map_err(failed)?;
        let whole = |number: i16| u32::try_from(number).unwrap_or(0);
        Ok(Point { x: whole(found.root_x), y: whole(found.root_y) })
    }

    fn fake(&self, kind: u8, detail: u8, at: Point) -> Result<(), ComputerError> {
        let (x, y) = (at.x as i16, at.y as i16);
        let sent = self.connection.xtest_fake_input(kind, detail, x11rb::CURRENT_TIME, self.root, x, y, 0);
        sent.map_err(failed)?.check().map_err(failed)
    }

    pub(super) fn move_to(&self, to: Point) -> Result<(), ComputerError> {
        self.fake(xproto::MOTION_NOTIFY_EVENT, 0, to)
    }

    pub(super) fn press(&self, button: Button) -> Result<(), ComputerError> {
        self.fake(xproto::BUTTON_PRESS_EVENT, number(button), Point::default())
    }

    pub(super) fn release(&self, button: Button) -> Result<(), ComputerError> {
        self.fake(xproto::BUTTON_RELEASE_EVENT, number(button), Point::default())
    }

    pub(super) fn click(&self, button: Button, times: u32) -> Result<(), ComputerError> {
        for click in 0..times.max(1) {
            if click > 0 {
                std::thread::sleep(CLICKS);
            }
            self.press(button)?;
            self.release(button)?;
        }
        Ok(())
    }

    pub(super) fn drag(&self, path: &[Point]) -> Result<(), ComputerError> {
        let [first, rest @ ..] = path else { return Ok(()) };
        self.move_to(*first)?;
        self.press(Button::Left)?;
        let moved = rest.iter().try_fold(*first, |from, to| {
            for step in 1..=STEPS {
                let part = |from: u32, to: u32| {
                    let way = i64::from(to) - i64::from(from);
                    u32::try_from(i64::from(from) + way * step / STEPS).unwrap_or(to)
                };
                std::thread::sleep(STEP);
                self.move_to(Point { x: part(from.x, to.x), y: part(from.y, to.y) })?;
            }
            Ok(*to)
        });
        self.release(Button::Left)?;
        moved.map(|_| ())
    }

    pub(super) fn scroll(&self, right: i32, down: i32) -> Result<(), ComputerError> {
        let turn = |pixels: i32, back: u8, forth: u8| {
            let wheel = if pixels < 0 { back } else { forth };
            for _ in 0..pixels.unsigned_abs().div_ceil(NOTCH).min(NOTCHES) {
                self.fake(xproto::BUTTON_PRESS_EVENT, wheel, Point::default())?;
                self.fake(xproto::BUTTON_RELEASE_EVENT, wheel, Point::default())?;
            }
            Ok(())
        };
        turn(down, 4, 5)?;
        turn(right, 6, 7)
    }

    fn key(&self, kind: u8, code: u8) -> Result<(), ComputerError> {
        self.fake(kind, code, Point::default())
    }

    /// Presses keys, does something, and lets them go, whatever came of it.
    pub(super) fn holding(
        &self,
        chord: &Chord,
        act: impl FnOnce(&Self) -> Result<(), ComputerError>,
    ) -> Result<(), ComputerError> {
        let codes = self.codes(chord.keys())?;
        let pressed = codes.iter().try_for_each(|code| self.key(xproto::KEY_PRESS_EVENT, *code));
        let acted = pressed.and_then(|()| act(self));
        let released = codes.iter().rev().map(|code| self.key(xproto::KEY_RELEASE_EVENT, *code));
        released.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()?;
        acted
    }

    pub(super) fn type_text(&self, text: &str) -> Result<(), ComputerError> {
        let mut keyboard = self.keyboard();
        let text: Vec<char> = text.chars().collect();
        // Characters that no key writes are given keys, as many at once as there are keys to give.
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let ready = keyboard.make_ready(&self.connection, rest).map_err(failed)?;
            let (now, later) = rest.split_at(ready.max(1));
            for char in now {
                let Some(stroke) = keyboard.stroke_of(*char) else { continue };
                if stroke.is_shifted {
                    self.key(xproto::KEY_PRESS_EVENT, keyboard.shift())?;
                }
                let written = self
                    .key(xproto::KEY_PRESS_EVENT, stroke.code)
                    .and_then(|()| self.key(xproto::KEY_RELEASE_EVENT, stroke.code));
                if stroke.is_shifted {
                    self.key(xproto::KEY_RELEASE_EVENT, keyboard.shift())?;
                }
                written?;
            }
            rest = later;
        }
        Ok(())
    }

    fn codes(&self, keys: &[Key]) -> Result<Vec<u8>, ComputerError> {
        let mut keyboard = self.keyboard();
        keys.iter()
            .map(|key| {
                let keysym = match key {
                    Key::Named(named) => named.keysym(),
                    Key::Char(char) => super::keyboard::keysym(char.to_lowercase().next().unwrap_or(*char)),
                };
                keyboard.code_of(&self.connection, keysym).map_err(failed)
            })
            .collect()
    }

    fn keyboard(&self) -> std::sync::MutexGuard<'_, Keyboard> {
        self.keyboard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys that are held until this is dropped.
pub(super) struct Held {
    screen: Arc<Screen>,
    codes: Vec<u8>,
}

impl Held {
    pub(super) fn press(screen: Arc<Screen>, chord: &Chord) -> Result<Self, ComputerError> {
        let codes = screen.codes(chord.keys())?;
        let held = Self { screen, codes };
        held.codes.iter().try_for_each(|code| held.screen.key(xproto::KEY_PRESS_EVENT, *code))?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for code in self.codes.iter().rev() {
            if let Err(error) = self.screen.key(xproto::KEY_RELEASE_EVENT, *code) {
                tracing::warn!(%error, "a key could not be let go");
            }
        }
    }
}

fn number(button: Button) -> u8 {
    match button {
        Button::Left => 1,
        Button::Middle => 2,
        Button::Right => 3,
        Button::Back => 8,
        Button::Forward => 9,
    }
}
