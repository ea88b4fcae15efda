//! The keyboard focus after a click. A window manager gives the focus to a window after it has seen the click, while the
//! keys of an X client go at once to the window that has the focus: keys that follow a click wait for the focus that the
//! click asks for, for a bounded time.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use x11rb::protocol::xproto::{ConnectionExt as _, InputFocus, Window};

use super::screen::{X11Screen, x_server_error};
use crate::action::{ScreenPoint, ScreenRegion};
use crate::computer::ComputerError;

/// Maximum time after a click that keys wait for the focus. A panel never takes it.
const FOCUS_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two looks at the focus.
const FOCUS_INTERVAL: Duration = Duration::from_millis(10);
/// Length of a side up to which a focused window is not what the person sees.
const MIN_FOCUSED_SIDE: u32 = 16;
/// Maximum depth of nested windows.
const MAX_WINDOW_DEPTH: usize = 32;

/// A window that was clicked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClickedWindow {
    /// A child of the root: the window itself, or the frame around it.
    window: Window,
    at: Instant,
}

impl X11Screen {
    /// Records the window under the pointer, which is about to be clicked.
    pub(super) fn record_clicked_window(&self) {
        let window = self.connection.query_pointer(self.root).ok().and_then(|asked| asked.reply().ok());
        let window = window.map(|found| found.child).filter(|child| self.takes_focus(*child));
        let clicked = window.map(|window| ClickedWindow { window, at: Instant::now() });
        *self.clicked_window.lock().unwrap_or_else(PoisonError::into_inner) = clicked;
    }

    /// Returns true if a window manager may give the focus to a window: menus do without.
    fn takes_focus(&self, window: Window) -> bool {
        if window == x11rb::NONE {
            return false;
        }
        let asked = self.connection.get_window_attributes(window).ok();
        asked.and_then(|asked| asked.reply().ok()).is_some_and(|found| !found.override_redirect)
    }

    /// Waits until the window of the last click has the focus, for a limited time.
    pub(super) fn await_clicked_focus(&self) -> Result<(), ComputerError> {
        let clicked = self.clicked_window.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ClickedWindow { window, at }) = clicked else { return Ok(()) };
        while at.elapsed() < FOCUS_TIMEOUT && self.takes_focus(window) && !self.has_focus(window)? {
            std::thread::sleep(FOCUS_INTERVAL);
        }
        Ok(())
    }

    /// Returns the part of the screen that the focused window covers; the whole screen if no window has the focus.
    pub(super) fn focused_area(&self) -> Result<ScreenRegion, ComputerError> {
        let asked = self.connection.get_geometry(self.root).map_err(x_server_error)?;
        let screen = asked.reply().map_err(x_server_error)?;
        let size = (u32::from(screen.width), u32::from(screen.height));
        let whole = ScreenRegion {
            top_left: ScreenPoint::default(),
            bottom_right: ScreenPoint { x: size.0, y: size.1 },
        };
        let asked = self.connection.get_input_focus().map_err(x_server_error)?;
        let focused = asked.reply().map_err(x_server_error)?.focus;
        if focused == self.root || focused <= u32::from(InputFocus::POINTER_ROOT) {
            return Ok(whole);
        }
        let asked = self.connection.get_geometry(focused).map_err(x_server_error)?;
        // The focused window may be gone by now.
        let Ok(window) = asked.reply() else { return Ok(whole) };
        let asked =
            self.connection.translate_coordinates(focused, self.root, 0, 0).map_err(x_server_error)?;
        let Ok(place) = asked.reply() else { return Ok(whole) };
        let (left, top) = (i64::from(place.dst_x), i64::from(place.dst_y));
        let within = |edge: i64, size: u32| u32::try_from(edge.max(0)).unwrap_or(0).min(size);
        let top_left = ScreenPoint { x: within(left, size.0), y: within(top, size.1) };
        let bottom_right = ScreenPoint {
            x: within(left + i64::from(window.width), size.0),
            y: within(top + i64::from(window.height), size.1),
        };
        let area = ScreenRegion { top_left, bottom_right };
        // Some programs give the focus to a window of one pixel.
        let is_visible =
            bottom_right.x > top_left.x + MIN_FOCUSED_SIDE && bottom_right.y > top_left.y + MIN_FOCUSED_SIDE;
        Ok(if is_visible { area } else { whole })
    }

    /// Returns true if keys go to a window or to a window in it.
    fn has_focus(&self, window: Window) -> Result<bool, ComputerError> {
        let asked = self.connection.get_input_focus().map_err(x_server_error)?;
        let mut focused = asked.reply().map_err(x_server_error)?.focus;
        // The keys go to the window under the pointer.
        if focused == u32::from(InputFocus::POINTER_ROOT) {
            return Ok(true);
        }
        for _ in 0..MAX_WINDOW_DEPTH {
            if focused == window {
                return Ok(true);
            }
            if focused == x11rb::NONE || focused == self.root {
                return Ok(false);
            }
            let asked = self.connection.query_tree(focused).map_err(x_server_error)?;
            // The focused window may be gone by now.
            let Ok(found) = asked.reply() else { return Ok(false) };
            focused = found.parent;
        }
        Ok(false)
    }
}
