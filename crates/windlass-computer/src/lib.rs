//! Agents that use a screen: a browser, or a desktop, behind one trait, and the tool that drives it.
//!
//! The tool is a tool like any other: its calls are planned, guarded, decided about and journalled. Looking is
//! pure, acting is once: after a crash in the middle of a click the call is in doubt, and nobody clicks again
//! blindly.
#![doc = include_str!("../../../docs/guide/computer.md")]

mod action;
mod browser;
mod budget;
mod carry;
mod computer;
#[cfg(feature = "x11")]
mod desktop;
mod film;
mod key;
mod perform;
mod read;
mod safety;
mod secret;
mod source;
mod station;
mod tool;

pub use action::{Action, Answer, Button, ComputerCall, Point, Region, SafetyCheck};
pub use browser::{Browser, BrowserOptions, Dialogs, Downloads, Elsewhere, Sites, Window};
pub use budget::{drop_old_screenshots, recent_screenshots};
pub use computer::{Computer, ComputerError, Doing, Screenshot, Tab, Travel};
#[cfg(feature = "x11")]
pub use desktop::{Desktop, DesktopOptions};
pub use film::{Film, Frame};
pub use key::{Chord, Key, NamedKey};
pub use safety::{Acknowledgement, Judged, Proposed};
pub use secret::Secret;
pub use source::{ComputerProvider, OnPause};
pub use tool::{BrowserStep, ComputerTool, InDoubt, Op};
