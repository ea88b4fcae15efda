//! A desktop: an existing X11 display or a virtual one.

mod keyboard;
mod screen;
mod virtual_display;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::id::RunId;
use windlass::model::ComputerDisplay;

use self::screen::X11Screen;
use self::virtual_display::VirtualDisplay;
use crate::action::{MouseButton, ScreenPoint, ScreenRegion};
use crate::computer::{Computer, ComputerError, ComputerFuture, Screenshot};
use crate::key::KeyChord;
use crate::provider::ComputerProvider;

/// The desktop to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesktopOptions {
    /// An existing X11 display; the `DISPLAY` of this process if absent.
    Existing {
        /// Name of the display, such as `:1`.
        display: Option<String>,
    },
    /// A new virtual display, by Xvfb.
    Virtual {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
}

/// An X11 display: its pointer, keyboard and pixels. A virtual display ends when this value is dropped and
/// when this process dies.
pub struct Desktop {
    screen: Arc<X11Screen>,
    display_name: String,
    virtual_display: Mutex<Option<VirtualDisplay>>,
}

impl Desktop {
    /// Connects to an existing display or starts a virtual one.
    pub async fn start(options: DesktopOptions) -> Result<Self, ComputerError> {
        let (name, virtual_screen) = match options {
            DesktopOptions::Existing { display } => (display, None),
            DesktopOptions::Virtual { width, height } => {
                let screen = VirtualDisplay::start(width, height).await?;
                (Some(screen.display_name().to_owned()), Some(screen))
            }
        };
        let given = name.clone();
        let screen = run_blocking(move || X11Screen::connect(given.as_deref())).await?;
        let name = name.or_else(|| std::env::var("DISPLAY").ok()).unwrap_or_default();
        Ok(Self { screen: Arc::new(screen), display_name: name, virtual_display: Mutex::new(virtual_screen) })
    }

    /// Returns a provider that starts one virtual display per run.
    pub fn provider(width: u32, height: u32) -> impl ComputerProvider {
        DesktopProvider { width, height, created: Mutex::default() }
    }

    /// Returns the display name, such as `:1`, for the `DISPLAY` variable of programs that should appear on
    /// it.
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Closes a virtual display and waits until its server has exited.
    pub async fn close(&self) {
        let screen = self.virtual_display.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(screen) = screen {
            screen.stop().await;
        }
    }

    fn run_on_screen<'a, T: Send + 'static>(
        &'a self,
        act: impl FnOnce(&X11Screen) -> Result<T, ComputerError> + Send + 'static,
    ) -> ComputerFuture<'a, T> {
        let screen = self.screen.clone();
        // A blocking task runs to completion even if its future is dropped, so no key stays pressed.
        run_blocking(move || act(&screen)).boxed()
    }
}

async fn run_blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, ComputerError> + Send + 'static,
) -> Result<T, ComputerError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|error| Err(ComputerError::Failed(error.to_string())))
}

impl Computer for Desktop {
    fn display(&self) -> ComputerDisplay {
        let (width, height) = self.screen.size();
        ComputerDisplay { width, height, environment: "linux".to_owned() }
    }

    fn screenshot(&self) -> ComputerFuture<'_, Screenshot> {
        let (x, y) = self.screen.size();
        self.zoom(ScreenRegion { top_left: ScreenPoint::default(), bottom_right: ScreenPoint { x, y } })
    }

    fn zoom(&self, region: ScreenRegion) -> ComputerFuture<'_, Screenshot> {
        self.run_on_screen(move |screen| screen.capture_region(region))
    }

    fn cursor_position(&self) -> ComputerFuture<'_, ScreenPoint> {
        self.run_on_screen(X11Screen::cursor_position)
    }

    fn move_to<'a>(&'a self, to: ScreenPoint, held: &'a KeyChord) -> ComputerFuture<'a, ()> {
        let held = held.clone();
        self.run_on_screen(move |screen| screen.with_keys_held(&held, |screen| screen.move_to(to)))
    }

    fn click<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        button: MouseButton,
        times: u32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        let held = held.clone();
        self.run_on_screen(move |screen| {
            screen.with_keys_held(&held, |screen| {
                if let Some(at) = at {
                    screen.move_to(at)?;
                }
                screen.click(button, times)
            })
        })
    }

    fn mouse_down(&self, button: MouseButton) -> ComputerFuture<'_, ()> {
        self.run_on_screen(move |screen| screen.mouse_down(button))
    }

    fn mouse_up(&self, button: MouseButton) -> ComputerFuture<'_, ()> {
        self.run_on_screen(move |screen| screen.mouse_up(button))
    }

    fn drag<'a>(&'a self, path: &'a [ScreenPoint], held: &'a KeyChord) -> ComputerFuture<'a, ()> {
        let (path, held) = (path.to_vec(), held.clone());
        self.run_on_screen(move |screen| screen.with_keys_held(&held, |screen| screen.drag_along(&path)))
    }

    fn scroll<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        right: i32,
        down: i32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        let held = held.clone();
        self.run_on_screen(move |screen| {
            screen.with_keys_held(&held, |screen| {
                if let Some(at) = at {
                    screen.move_to(at)?;
                }
                screen.scroll_by(right, down)
            })
        })
    }

    fn type_text<'a>(&'a self, text: &'a str) -> ComputerFuture<'a, ()> {
        let text = text.to_owned();
        self.run_on_screen(move |screen| screen.type_text(&text))
    }

    fn press_keys<'a>(&'a self, chord: &'a KeyChord) -> ComputerFuture<'a, ()> {
        let chord = chord.clone();
        self.run_on_screen(move |screen| screen.with_keys_held(&chord, |_| Ok(())))
    }

    fn hold_keys<'a>(&'a self, chord: &'a KeyChord, lasting: Duration) -> ComputerFuture<'a, ()> {
        async move {
            let held = screen::HeldKeys::press(self.screen.clone(), chord)?;
            tokio::time::sleep(lasting).await;
            drop(held);
            Ok(())
        }
        .boxed()
    }
}

struct DesktopProvider {
    width: u32,
    height: u32,
    created: Mutex<Vec<(Arc<dyn Computer>, Arc<Desktop>)>>,
}

impl ComputerProvider for DesktopProvider {
    fn display(&self) -> ComputerDisplay {
        ComputerDisplay { width: self.width, height: self.height, environment: "linux".to_owned() }
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let options = DesktopOptions::Virtual { width: self.width, height: self.height };
            let desktop = Arc::new(Desktop::start(options).await?);
            let computer: Arc<dyn Computer> = desktop.clone();
            self.created.lock().unwrap_or_else(PoisonError::into_inner).push((computer.clone(), desktop));
            Ok(computer)
        }
        .boxed()
    }

    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        async move {
            let desktop = {
                let mut made = self.created.lock().unwrap_or_else(PoisonError::into_inner);
                let at = made.iter().position(|(known, _)| Arc::ptr_eq(known, &computer));
                at.map(|at| made.swap_remove(at).1)
            };
            if let Some(desktop) = desktop {
                desktop.close().await;
            }
        }
        .boxed()
    }
}
