//! The stored state of a browser: cookies and local storage, so that a later browser is signed in.

use serde_json::{Value, json};

use super::page_controller::PageController;
use crate::computer::ComputerError;

/// Cookies and local storage of a browser, in the JSON format that Playwright uses too. It contains the
/// sessions of signed-in users: keep it secret.
#[derive(Clone, PartialEq)]
pub struct StorageState(Value);

impl StorageState {
    /// Reads a state from its JSON form.
    ///
    /// # Errors
    ///
    /// Returns a message if the value has no list of cookies.
    pub fn from_json(value: Value) -> Result<Self, String> {
        match value.get("cookies").is_some_and(Value::is_array) {
            true => Ok(Self(value)),
            false => Err("the storage state has no list `cookies`".to_owned()),
        }
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> &Value {
        &self.0
    }

    /// Returns the cookies in the form of the DevTools Protocol; `None` if there are none.
    pub(super) fn cookie_list(&self) -> Option<Vec<Value>> {
        let cookies = self.0["cookies"].as_array()?.iter().map(|cookie| {
            let mut given = serde_json::Map::new();
            for name in ["name", "value", "domain", "path", "httpOnly", "secure", "sameSite"] {
                if let Some(value) = cookie.get(name).filter(|value| !value.is_null()) {
                    given.insert(name.to_owned(), value.clone());
                }
            }
            // Playwright writes -1 for a cookie that ends with the session.
            if let Some(expires) = cookie["expires"].as_f64().filter(|expires| *expires > 0.0) {
                given.insert("expires".to_owned(), expires.into());
            }
            Value::Object(given)
        });
        let cookies: Vec<Value> = cookies.collect();
        (!cookies.is_empty()).then_some(cookies)
    }

    /// Returns a script that restores the local storage of an origin when it is first opened. It contains the storage of
    /// all origins and runs in documents of any site, so it must run in a world of its own, where nothing that a
    /// page replaces is called.
    pub(super) fn restore_script(&self) -> Option<String> {
        let origins = self.0["origins"].as_array().filter(|origins| !origins.is_empty())?;
        Some(format!(
            "(origins => {{ try {{ const found = origins.find(one => one.origin === self.origin); \
             if (found && !sessionStorage.getItem('windlass-restored')) {{ \
             sessionStorage.setItem('windlass-restored', '1'); \
             for (const item of found.localStorage || []) if (localStorage.getItem(item.name) === null) \
             localStorage.setItem(item.name, item.value); }} }} catch {{ }} }})({})",
            Value::from(origins.clone())
        ))
    }
}

impl std::fmt::Debug for StorageState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cookies = self.0["cookies"].as_array().map_or(0, Vec::len);
        write!(f, "StorageState({cookies} cookies)")
    }
}

impl PageController {
    /// Reads the cookies of the browser and the local storage of the documents that are open.
    pub(super) async fn storage_state(&self) -> Result<StorageState, ComputerError> {
        let context = self.with_state(|state| state.browser_context.clone());
        let params = context.map_or(json!({}), |context| json!({ "browserContextId": context }));
        let within = self.options.response_timeout;
        let found = self.pipe.call_command(None, "Storage.getCookies", params, within).await;
        let found = found.map_err(|error| self.computer_error(error))?;
        let mut origins: Vec<Value> = Vec::new();
        for frame in self.frames_of_tab().await? {
            let script = "(() => { try { return { origin: self.origin, localStorage: Object.entries(localStorage) \
                          .map(([name, value]) => ({ name, value })) }; } catch { return null; } })()";
            let Ok(stored) = self.evaluate_in(&frame, script).await else { continue };
            let is_empty = stored["localStorage"].as_array().is_none_or(Vec::is_empty);
            let is_known = origins.iter().any(|known| known["origin"] == stored["origin"]);
            if !is_empty && !is_known {
                origins.push(stored);
            }
        }
        Ok(StorageState(json!({ "cookies": found["cookies"], "origins": origins })))
    }
}
