//! A desktop: an existing X11 display or a virtual one.

mod input_focus;
mod keyboard;
mod pixels;
mod program;
mod screen;
mod virtual_display;

pub use program::DesktopProgram;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::canonical::Digest;
use windlass::core::id::RunId;
use windlass::model::ComputerDisplay;

use self::program::RunningProgram;
use self::screen::X11Screen;
use self::virtual_display::VirtualDisplay;
use crate::action::{MouseButton, ScreenPoint, ScreenRegion};
use crate::computer::{Computer, ComputerError, ComputerFuture, Screenshot};
use crate::key::KeyChord;
use crate::provider::ComputerProvider;
use crate::target::{ScreenTarget, TargetPlace, coarse_fingerprint};

/// Time for the first program to show a window.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two looks for a window.
const WINDOW_INTERVAL: Duration = Duration::from_millis(100);
/// Default length of the longer side of a screenshot, in pixels. Providers scale larger pictures themselves, and
/// coordinates in them are then wrong.
const DEFAULT_MAX_SIDE: u32 = 1568;
/// Size of the area around a point by which an element is recognised.
const FINGERPRINT_SIZE: (u32, u32) = (96, 48);
/// Number of columns and rows by which the content of a window is recognised.
const COARSE_CELLS: (usize, usize) = (24, 16);
/// Maximum magnification.
const MAX_ZOOM: f64 = 4.0;

/// The options of a desktop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesktopOptions {
    /// The display to use.
    pub display: DesktopDisplay,
    /// Programs that are started on the display and end with it.
    pub programs: Vec<DesktopProgram>,
    /// Maximum length of the longer side of a screenshot. The screenshots of a larger screen are scaled, and
    /// coordinates are mapped.
    pub max_side: u32,
}

impl DesktopOptions {
    /// Creates options for an existing X11 display; the `DISPLAY` of this process if absent.
    pub fn existing(display: Option<&str>) -> Self {
        Self::new(DesktopDisplay::Existing { name: display.map(str::to_owned) })
    }

    /// Creates options for a new virtual display of this size.
    pub fn virtual_display(width: u32, height: u32) -> Self {
        Self::new(DesktopDisplay::Virtual { width, height })
    }

    fn new(display: DesktopDisplay) -> Self {
        Self { display, programs: Vec::new(), max_side: DEFAULT_MAX_SIDE }
    }

    /// Adds a program to start on the display.
    #[must_use]
    pub fn program(mut self, program: DesktopProgram) -> Self {
        self.programs.push(program);
        self
    }
}

/// The display of a desktop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesktopDisplay {
    /// An existing X11 display; the `DISPLAY` of this process if absent.
    Existing {
        /// Name of the display, such as `:1`.
        name: Option<String>,
    },
    /// A new virtual display, by Xvfb.
    Virtual {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
}

/// An X11 display: its pointer, keyboard and pixels. A virtual display and the programs that were started on it
/// end when this value is dropped and when this process dies.
pub struct Desktop {
    screen: Arc<X11Screen>,
    scale: ScreenScale,
    display_name: String,
    programs: Mutex<Vec<RunningProgram>>,
    virtual_display: Mutex<Option<VirtualDisplay>>,
}

/// The sizes of the screen and of its screenshots.
#[derive(Clone, Copy, Debug)]
struct ScreenScale {
    screen: (u32, u32),
    shown: (u32, u32),
}

impl ScreenScale {
    fn new(screen: (u32, u32), max_side: u32) -> Self {
        let longest = screen.0.max(screen.1).max(1);
        let part = |side: u32| {
            let scaled = u64::from(side) * u64::from(max_side.max(1)) / u64::from(longest);
            u32::try_from(scaled).unwrap_or(side).max(1)
        };
        let shown = if longest > max_side { (part(screen.0), part(screen.1)) } else { screen };
        Self { screen, shown }
    }

    /// Returns the point of the screen that a point of a screenshot shows.
    fn to_screen(self, at: ScreenPoint) -> ScreenPoint {
        let map = |place: u32, from: u32, to: u32| {
            // The centre of the pixel, so that the last one does not fall off the edge.
            let mapped = (u64::from(place) * 2 + 1) * u64::from(to) / (u64::from(from.max(1)) * 2);
            u32::try_from(mapped).unwrap_or(to).min(to.saturating_sub(1))
        };
        if self.screen == self.shown {
            return at;
        }
        ScreenPoint { x: map(at.x, self.shown.0, self.screen.0), y: map(at.y, self.shown.1, self.screen.1) }
    }

    /// Returns the point of a screenshot that shows a point of the screen.
    fn to_shown(self, at: ScreenPoint) -> ScreenPoint {
        Self { screen: self.shown, shown: self.screen }.to_screen(at)
    }
}

impl Desktop {
    /// Connects to an existing display or starts a virtual one, and starts the programs on it.
    pub async fn start(options: DesktopOptions) -> Result<Self, ComputerError> {
        let (name, virtual_screen) = match options.display {
            DesktopDisplay::Existing { name } => (name, None),
            DesktopDisplay::Virtual { width, height } => {
                let screen = VirtualDisplay::start(width, height).await?;
                (Some(screen.display_name().to_owned()), Some(screen))
            }
        };
        let given = name.clone();
        let screen = run_blocking(move || X11Screen::connect(given.as_deref())).await?;
        let name = name.or_else(|| std::env::var("DISPLAY").ok()).unwrap_or_default();
        let desktop = Self {
            scale: ScreenScale::new(screen.size(), options.max_side),
            screen: Arc::new(screen),
            display_name: name,
            programs: Mutex::default(),
            virtual_display: Mutex::new(virtual_screen),
        };
        for program in &options.programs {
            desktop.start_program(program)?;
        }
        if !options.programs.is_empty() {
            desktop.wait_for_window().await?;
        }
        Ok(desktop)
    }

    /// Returns a provider that starts one desktop per run. It connects to an existing display to read its size, of which
    /// the model is told before a run uses it.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such display.
    pub async fn provider(options: DesktopOptions) -> Result<impl ComputerProvider, ComputerError> {
        let size = match options.display.clone() {
            DesktopDisplay::Virtual { width, height } => (width, height),
            DesktopDisplay::Existing { name } => {
                run_blocking(move || Ok(X11Screen::connect(name.as_deref())?.size())).await?
            }
        };
        let (width, height) = ScreenScale::new(size, options.max_side).shown;
        let display = ComputerDisplay { width, height, environment: "linux".to_owned() };
        Ok(DesktopProvider { options, display, created: Mutex::default() })
    }

    /// Starts a program on the display. It ends with the desktop.
    ///
    /// # Errors
    ///
    /// Returns [`ComputerError::Missing`] if the program is not installed.
    pub fn start_program(&self, program: &DesktopProgram) -> Result<(), ComputerError> {
        let running = RunningProgram::start(program, &self.display_name)?;
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).push(running);
        Ok(())
    }

    /// Waits until a program shows a window, for a limited time.
    async fn wait_for_window(&self) -> Result<(), ComputerError> {
        let until = tokio::time::Instant::now() + WINDOW_TIMEOUT;
        while tokio::time::Instant::now() < until {
            if self.run_on_screen(X11Screen::has_window).await? {
                return Ok(());
            }
            tokio::time::sleep(WINDOW_INTERVAL).await;
        }
        Err(ComputerError::Failed("no program showed a window in time".to_owned()))
    }

    /// Returns the display name, such as `:1`, for the `DISPLAY` variable of programs that should appear on
    /// it.
    pub fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Ends the programs that were started, closes a virtual display and waits until its server has exited.
    pub async fn close(&self) {
        let programs = std::mem::take(&mut *self.programs.lock().unwrap_or_else(PoisonError::into_inner));
        for program in programs {
            program.stop().await;
        }
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
        let (width, height) = self.scale.shown;
        ComputerDisplay { width, height, environment: "linux".to_owned() }
    }

    fn screenshot(&self) -> ComputerFuture<'_, Screenshot> {
        let ScreenScale { screen: (x, y), shown } = self.scale;
        let whole = ScreenRegion { top_left: ScreenPoint::default(), bottom_right: ScreenPoint { x, y } };
        self.run_on_screen(move |screen| {
            let picture = screen.capture_settled(whole)?;
            picture.scaled(shown.0 as usize, shown.1 as usize).to_screenshot()
        })
    }

    fn zoom(&self, region: ScreenRegion) -> ComputerFuture<'_, Screenshot> {
        let ScreenScale { screen, shown } = self.scale;
        let edge = |place: u32, from: u32, to: u32| {
            u32::try_from(u64::from(place) * u64::from(to) / u64::from(from.max(1))).unwrap_or(to).min(to)
        };
        let map = |at: ScreenPoint| ScreenPoint {
            x: edge(at.x, shown.0, screen.0),
            y: edge(at.y, shown.1, screen.1),
        };
        let mut part =
            ScreenRegion { top_left: map(region.top_left), bottom_right: map(region.bottom_right) };
        part.bottom_right.x = part.bottom_right.x.max(part.top_left.x + 1);
        part.bottom_right.y = part.bottom_right.y.max(part.top_left.y + 1);
        self.run_on_screen(move |screen| {
            let picture = screen.capture_settled(part)?;
            let fit = |shown: u32, size: usize| f64::from(shown) / size.max(1) as f64;
            let factor = fit(shown.0, picture.width).min(fit(shown.1, picture.height)).min(MAX_ZOOM);
            let size = |length: usize| ((length as f64 * factor).round() as usize).max(1);
            picture.scaled(size(picture.width), size(picture.height)).to_screenshot()
        })
    }

    fn cursor_position(&self) -> ComputerFuture<'_, ScreenPoint> {
        let scale = self.scale;
        self.run_on_screen(move |screen| screen.cursor_position().map(|at| scale.to_shown(at)))
    }

    fn describe_target(&self, place: TargetPlace) -> ComputerFuture<'_, ScreenTarget> {
        let scale = self.scale;
        let (width, height) = scale.screen;
        self.run_on_screen(move |screen| {
            let at = match place {
                TargetPlace::At(at) => Some(scale.to_screen(at)),
                TargetPlace::Pointer => Some(screen.cursor_position()?),
                _ => None,
            };
            let title = screen.window_title(at)?;
            let fingerprint = match at {
                // Keys go to the focused window, whose picture is compared coarsely.
                None => {
                    let pixels = screen.capture_pixels(screen.focused_area()?)?;
                    Some(coarse_fingerprint(&pixels.brightness_cells(COARSE_CELLS.0, COARSE_CELLS.1)))
                }
                Some(at) => {
                    let (left, top) = (FINGERPRINT_SIZE.0 / 2, FINGERPRINT_SIZE.1 / 2);
                    let top_left = ScreenPoint { x: at.x.saturating_sub(left), y: at.y.saturating_sub(top) };
                    let bottom_right =
                        ScreenPoint { x: (at.x + left).min(width), y: (at.y + top).min(height) };
                    let pixels = screen.capture_pixels(ScreenRegion { top_left, bottom_right })?;
                    Some(Digest::of_text(&data_encoding::BASE64.encode(&pixels.bytes)).to_string())
                }
            };
            let element = title.map(|title| format!("window \"{title}\""));
            Ok(ScreenTarget { element, fingerprint, ..ScreenTarget::default() })
        })
    }

    fn move_to<'a>(&'a self, to: ScreenPoint, held: &'a KeyChord) -> ComputerFuture<'a, ()> {
        let (to, held) = (self.scale.to_screen(to), held.clone());
        self.run_on_screen(move |screen| screen.with_keys_held(&held, |screen| screen.move_to(to)))
    }

    fn click<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        button: MouseButton,
        times: u32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        let (at, held) = (at.map(|at| self.scale.to_screen(at)), held.clone());
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
        let path: Vec<ScreenPoint> = path.iter().map(|at| self.scale.to_screen(*at)).collect();
        let held = held.clone();
        self.run_on_screen(move |screen| screen.with_keys_held(&held, |screen| screen.drag_along(&path)))
    }

    fn scroll<'a>(
        &'a self,
        at: Option<ScreenPoint>,
        right: i32,
        down: i32,
        held: &'a KeyChord,
    ) -> ComputerFuture<'a, ()> {
        let (at, held) = (at.map(|at| self.scale.to_screen(at)), held.clone());
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
        self.run_on_screen(move |screen| screen.press_keys(&chord))
    }

    fn hold_keys<'a>(&'a self, chord: &'a KeyChord, lasting: Duration) -> ComputerFuture<'a, ()> {
        async move {
            let (screen, chord) = (self.screen.clone(), chord.clone());
            let held = run_blocking(move || screen::HeldKeys::press(screen, &chord)).await?;
            tokio::time::sleep(lasting).await;
            drop(held);
            Ok(())
        }
        .boxed()
    }
}

struct DesktopProvider {
    options: DesktopOptions,
    /// The screen that the model is told about.
    display: ComputerDisplay,
    created: Mutex<Vec<(Arc<dyn Computer>, Arc<Desktop>)>>,
}

impl ComputerProvider for DesktopProvider {
    fn display(&self) -> ComputerDisplay {
        self.display.clone()
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let desktop = Arc::new(Desktop::start(self.options.clone()).await?);
            if desktop.display() != self.display {
                desktop.close().await;
                return Err(ComputerError::Failed(
                    "the screen has another size than when the provider was made".to_owned(),
                ));
            }
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
