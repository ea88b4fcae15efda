//! A desktop: an X11 display, real or virtual.

mod keyboard;
mod screen;
mod virtual_screen;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::RunId;
use windlass::model::Display;

use self::screen::Screen;
use self::virtual_screen::VirtualScreen;
use crate::action::{Button, Point, Region};
use crate::computer::{Computer, ComputerError, Doing, Screenshot};
use crate::key::Chord;
use crate::source::ComputerProvider;

/// Which desktop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesktopOptions {
    /// One that is there: on this display, or on that of the process.
    Existing {
        /// Such as `:1`.
        display: Option<String>,
    },
    /// One of our own, that nobody sees, by Xvfb.
    Virtual {
        /// How wide, in pixels.
        width: u32,
        /// How high, in pixels.
        height: u32,
    },
}

/// An X11 display: its pointer, its keys and its pixels. A virtual one ends when it is dropped, and with this process.
pub struct Desktop {
    screen: Arc<Screen>,
    name: String,
    virtual_screen: Mutex<Option<VirtualScreen>>,
}

impl Desktop {
    /// Connects to a display, or starts one.
    pub async fn start(options: DesktopOptions) -> Result<Self, ComputerError> {
        let (name, virtual_screen) = match options {
            DesktopOptions::Existing { display } => (display, None),
            DesktopOptions::Virtual { width, height } => {
                let screen = VirtualScreen::start(width, height).await?;
                (Some(screen.name().to_owned()), Some(screen))
            }
        };
        let given = name.clone();
        let screen = blocking(move || Screen::connect(given.as_deref())).await?;
        let name = name.or_else(|| std::env::var("DISPLAY").ok()).unwrap_or_default();
        Ok(Self { screen: Arc::new(screen), name, virtual_screen: Mutex::new(virtual_screen) })
    }

    /// A virtual desktop for each run that asks for one.
    pub fn provider(width: u32, height: u32) -> impl ComputerProvider {
        Provider { width, height, made: Mutex::default() }
    }

    /// Its name, such as `:1`: what programs that are to be seen on it find in `DISPLAY`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends a virtual desktop, and waits until it has ended.
    pub async fn close(&self) {
        let screen = self.virtual_screen.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(screen) = screen {
            screen.end().await;
        }
    }

    fn on<'a, T: Send + 'static>(
        &'a self,
        act: impl FnOnce(&Screen) -> Result<T, ComputerError> + Send + 'static,
    ) -> Doing<'a, T> {
        let screen = self.screen.clone();
        // What is begun is finished, even where nobody waits for it: so nothing stays pressed.
        blocking(move || act(&screen)).boxed()
    }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, ComputerError> + Send + 'static,
) -> Result<T, ComputerError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|error| Err(ComputerError::Failed(error.to_string())))
}

impl Computer for Desktop {
    fn display(&self) -> Display {
        let (width, height) = self.screen.size();
        Display { width, height, environment: "linux".to_owned() }
    }

    fn screenshot(&self) -> Doing<'_, Screenshot> {
        let (x, y) = self.screen.size();
        self.zoom(Region { from: Point::default(), to: Point { x, y } })
    }

    fn zoom(&self, region: Region) -> Doing<'_, Screenshot> {
        self.on(move |screen| screen.picture(region))
    }

    fn cursor(&self) -> Doing<'_, Point> {
        self.on(Screen::cursor)
    }

    fn move_to<'a>(&'a self, to: Point, held: &'a Chord) -> Doing<'a, ()> {
        let held = held.clone();
        self.on(move |screen| screen.holding(&held, |screen| screen.move_to(to)))
    }

    fn click<'a>(&'a self, at: Option<Point>, button: Button, times: u32, held: &'a Chord) -> Doing<'a, ()> {
        let held = held.clone();
        self.on(move |screen| {
            screen.holding(&held, |screen| {
                if let Some(at) = at {
                    screen.move_to(at)?;
                }
                screen.click(button, times)
            })
        })
    }

    fn press(&self, button: Button) -> Doing<'_, ()> {
        self.on(move |screen| screen.press(button))
    }

    fn release(&self, button: Button) -> Doing<'_, ()> {
        self.on(move |screen| screen.release(button))
    }

    fn drag<'a>(&'a self, path: &'a [Point], held: &'a Chord) -> Doing<'a, ()> {
        let (path, held) = (path.to_vec(), held.clone());
        self.on(move |screen| screen.holding(&held, |screen| screen.drag(&path)))
    }

    fn scroll<'a>(&'a self, at: Option<Point>, right: i32, down: i32, held: &'a Chord) -> Doing<'a, ()> {
        let held = held.clone();
        self.on(move |screen| {
            screen.holding(&held, |screen| {
                if let Some(at) = at {
                    screen.move_to(at)?;
                }
                screen.scroll(right, down)
            })
        })
    }

    fn type_text<'a>(&'a self, text: &'a str) -> Doing<'a, ()> {
        let text = text.to_owned();
        self.on(move |screen| screen.type_text(&text))
    }

    fn keys<'a>(&'a self, chord: &'a Chord) -> Doing<'a, ()> {
        let chord = chord.clone();
        self.on(move |screen| screen.holding(&chord, |_| Ok(())))
    }

    fn hold<'a>(&'a self, chord: &'a Chord, lasting: Duration) -> Doing<'a, ()> {
        async move {
            let held = screen::Held::press(self.screen.clone(), chord)?;
            tokio::time::sleep(lasting).await;
            drop(held);
            Ok(())
        }
        .boxed()
    }
}

struct Provider {
    width: u32,
    height: u32,
    made: Mutex<Vec<(Arc<dyn Computer>, Arc<Desktop>)>>,
}

impl ComputerProvider for Provider {
    fn display(&self) -> Display {
        Display { width: self.width, height: self.height, environment: "linux".to_owned() }
    }

    fn create<'a>(&'a self, _: &'a RunId) -> BoxFuture<'a, Result<Arc<dyn Computer>, ComputerError>> {
        async {
            let options = DesktopOptions::Virtual { width: self.width, height: self.height };
            let desktop = Arc::new(Desktop::start(options).await?);
            let computer: Arc<dyn Computer> = desktop.clone();
            self.made.lock().unwrap_or_else(PoisonError::into_inner).push((computer.clone(), desktop));
            Ok(computer)
        }
        .boxed()
    }

    fn dispose(&self, computer: Arc<dyn Computer>) -> BoxFuture<'_, ()> {
        async move {
            let desktop = {
                let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
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
