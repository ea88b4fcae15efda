//! Computer use for agents: a browser or a desktop behind one trait, and the tool that drives it.
//!
//! The tool behaves like any other: its calls are planned, checked by guardrails, approved and journalled. A
//! call that only observes has the effect `Pure`; a call that acts has the effect `Once`. After a crash in
//! the middle of a click the call is in doubt, and it is never repeated without a decision.
//!
//! The guide page `docs/guide/computer.md` shows how to use it.

mod action;
mod action_executor;
mod action_parser;
mod browser;
mod browser_toolset;
mod call_admission;
mod call_executor;
mod computer;
#[cfg(feature = "x11")]
mod desktop;
mod evidence;
mod key;
mod page_tool;
mod provider;
mod recording;
mod registry;
mod safety;
mod screenshot_filter;
mod secret;
mod secret_mask;
mod target;
mod tool;

#[cfg(test)]
mod fuzz_tests;

pub use action::{
    ComputerAction, ComputerCall, DialogAnswer, MouseButton, PageContent, PageReading, SafetyCheck,
    ScreenPoint, ScreenRegion,
};
pub use browser::{
    AllowedSites, Browser, BrowserOptions, BrowserWindow, DialogPolicy, DownloadPolicy, EmulatedDevice,
    PrivateNetworkPolicy, StorageState, ThirdPartyPolicy, UploadPolicy,
};
pub use computer::{BrowserTab, Computer, ComputerError, ComputerFuture, HistoryNavigation, Screenshot};
#[cfg(feature = "x11")]
pub use desktop::{Desktop, DesktopDisplay, DesktopOptions, DesktopProgram};
pub use key::{KeyChord, KeyboardKey, NamedKey};
pub use page_tool::{PageOperation, PageStep};
pub use provider::{ComputerProvider, PausePolicy};
pub use recording::{RecordingFrame, ScreenRecording};
pub use safety::{ActionVerdict, ProposedAction, SafetyCheckDecision};
pub use screenshot_filter::{drop_old_screenshots, keep_recent_screenshots};
pub use secret::ComputerSecret;
pub use target::{ScreenTarget, TargetPlace};
pub use tool::{BrowserOperation, BrowserStep, ComputerTool, InDoubtPolicy};
