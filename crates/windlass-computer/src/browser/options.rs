//! The options of a browser.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::{AllowedSites, PrivateNetworkPolicy, StorageState, ThirdPartyPolicy};
use crate::computer::ComputerError;

/// The configuration of a browser: its size, its restrictions and its process.
#[derive(Clone, Debug)]
pub struct BrowserOptions {
    /// Width of the viewport, in pixels.
    pub width: u32,
    /// Height of the viewport, in pixels.
    pub height: u32,
    /// Headless or visible.
    pub window: BrowserWindow,
    /// Sites that the browser may visit.
    pub allowed_sites: AllowedSites,
    /// Handling of requests to private networks.
    pub private_networks: PrivateNetworkPolicy,
    /// Policy for requests from allowed pages to sites that are not allowed.
    pub third_party: ThirdPartyPolicy,
    /// Handling of JavaScript dialogs, of permission requests and of requests for passwords.
    pub dialogs: DialogPolicy,
    /// Handling of downloads.
    pub downloads: DownloadPolicy,
    /// Handling of uploads.
    pub uploads: UploadPolicy,
    /// First URL to open; `about:blank` if absent.
    pub start_url: Option<String>,
    /// Cookies and local storage to begin with.
    pub storage_state: Option<StorageState>,
    /// Language of the browser, such as `de-DE`; the system's if absent.
    pub locale: Option<String>,
    /// Time zone, such as `Europe/Berlin`; the system's if absent.
    pub time_zone: Option<String>,
    /// The device that pages see; a computer with a mouse if absent.
    pub device: Option<EmulatedDevice>,
    /// Proxy server for all requests, such as `http://proxy.example:3128`. It resolves the names of sites, so it cannot
    /// be combined with a list of sites and [`ThirdPartyPolicy::BlockAll`].
    pub proxy: Option<String>,
    /// Time for a page to respond to a command, after which the model is told that it is busy.
    pub response_timeout: Duration,
    /// Time for a site to respond to a navigation, after which the model is told that it is still loading.
    pub navigation_timeout: Duration,
    /// Maximum time that actions and screenshots wait for one load of a page; then they proceed regardless.
    pub load_timeout: Duration,
    /// Path of the browser; searched on `PATH` by its usual names if absent.
    pub program: Option<PathBuf>,
    /// Additional command-line flags for the browser.
    pub extra_flags: Vec<String>,
}

impl Default for BrowserOptions {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            window: BrowserWindow::default(),
            allowed_sites: AllowedSites::default(),
            private_networks: PrivateNetworkPolicy::default(),
            third_party: ThirdPartyPolicy::default(),
            dialogs: DialogPolicy::default(),
            downloads: DownloadPolicy::default(),
            uploads: UploadPolicy::default(),
            start_url: None,
            storage_state: None,
            locale: None,
            time_zone: None,
            device: None,
            proxy: None,
            response_timeout: Duration::from_secs(20),
            navigation_timeout: Duration::from_secs(30),
            load_timeout: Duration::from_secs(5),
            program: None,
            extra_flags: Vec::new(),
        }
    }
}

/// The visibility of the browser window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BrowserWindow {
    /// No window.
    #[default]
    Headless,
    /// A window on this X11 display, or on the `DISPLAY` of this process if absent.
    Visible {
        /// Name of the display, such as `:1`.
        display: Option<String>,
    },
}

impl BrowserOptions {
    /// Checks that the options can work.
    ///
    /// # Errors
    ///
    /// Names the option and the entry that cannot.
    pub fn validate(&self) -> Result<(), ComputerError> {
        self.allowed_sites
            .validate()
            .map_err(|why| ComputerError::Failed(format!("`BrowserOptions::allowed_sites`: {why}")))?;
        let is_closed = self.third_party == ThirdPartyPolicy::BlockAll;
        // Sockets of pages are held back by the names that the browser resolves, and a proxy resolves them itself.
        if is_closed && self.proxy.is_some() && self.allowed_sites != AllowedSites::Any {
            return Err(ComputerError::Failed(
                "`BrowserOptions::proxy`: behind a proxy `ThirdPartyPolicy::BlockAll` cannot hold back sockets; let the \
                 proxy refuse other sites, and use `ThirdPartyPolicy::AssetsOnly`"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that the options can work in a browser that another program has started.
    ///
    /// # Errors
    ///
    /// Names the option that cannot.
    pub fn validate_for_connection(&self) -> Result<(), ComputerError> {
        self.validate()?;
        // DevTools intercept no sockets, and the flags that hold them back belong to the process.
        if self.third_party == ThirdPartyPolicy::BlockAll && self.allowed_sites != AllowedSites::Any {
            return Err(ComputerError::Failed(
                "`BrowserOptions::third_party`: in a browser that runs already `ThirdPartyPolicy::BlockAll` cannot hold \
                 back sockets; let the network of that browser refuse other sites, and use \
                 `ThirdPartyPolicy::AssetsOnly`"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the number of pixels of a screenshot per pixel of the viewport.
    pub(super) fn device_scale(&self) -> f64 {
        1.0
    }

    /// Returns the DevTools commands that set the screen, the language and the device of a page.
    pub(super) fn emulation_commands(&self) -> Vec<(&'static str, Value)> {
        let is_mobile = self.device.is_some();
        let mut commands = vec![(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": self.width, "height": self.height, "deviceScaleFactor": 1, "mobile": is_mobile }),
        )];
        if is_mobile {
            commands.push(("Emulation.setTouchEmulationEnabled", json!({ "enabled": true })));
        }
        if let Some(locale) = &self.locale {
            commands.push(("Emulation.setLocaleOverride", json!({ "locale": locale })));
        }
        if let Some(zone) = &self.time_zone {
            commands.push(("Emulation.setTimezoneOverride", json!({ "timezoneId": zone })));
        }
        let agent = self.device.as_ref().map(|device| device.user_agent.as_str());
        if agent.is_some() || self.locale.is_some() {
            // An empty text keeps the user agent.
            let mut params = json!({ "userAgent": agent.unwrap_or_default() });
            if let Some(locale) = &self.locale {
                params["acceptLanguage"] = locale.as_str().into();
            }
            commands.push(("Emulation.setUserAgentOverride", params));
        }
        commands
    }

    /// Returns the script that restores local storage.
    pub(super) fn storage_script(&self) -> Option<String> {
        self.storage_state.as_ref()?.restore_script()
    }
}

/// A phone or a tablet, as pages see it. The viewport is set by the width and the height of the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedDevice {
    /// The user agent that pages and sites are told.
    pub user_agent: String,
}

impl EmulatedDevice {
    /// Creates an Android phone with Chrome.
    pub fn android_phone() -> Self {
        let user_agent = "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) \
                          Chrome/140.0.0.0 Mobile Safari/537.36";
        Self { user_agent: user_agent.to_owned() }
    }
}

/// The handling of JavaScript dialogs (`alert`, `confirm`, `prompt`, leaving a page), of permission requests and
/// of requests for a user name and a password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialogPolicy {
    /// A dialog stays open until the model answers it. The model is notified.
    #[default]
    AskModel,
    /// Dialogs are accepted at once. The model is notified.
    Accept,
    /// Dialogs are dismissed at once. The model is notified.
    Dismiss,
}

/// The handling of downloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DownloadPolicy {
    /// Downloads are denied. The model is notified.
    #[default]
    Deny,
    /// Downloads are saved in this folder under their own names, without folders and without replacing a file.
    /// The model is notified.
    SaveTo(PathBuf),
}

/// The handling of uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UploadPolicy {
    /// No file is uploaded. The model is notified if a page asks for one.
    #[default]
    Deny,
    /// The model may choose files of this folder, by their names.
    From(PathBuf),
}
