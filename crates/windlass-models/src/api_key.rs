//! API keys. A key is sent to the provider and never appears in `Debug` output or in errors.

use std::fmt;

/// An API key. Its `Debug` output does not contain the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Creates a key; surrounding whitespace is removed.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into().trim().to_owned())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Replaces the key in a text with `[key]`; some servers echo the key in their errors.
    pub(crate) fn redact_from(&self, text: String) -> String {
        if self.0.len() >= 4 && text.contains(&self.0) { text.replace(&self.0, "[key]") } else { text }
    }
}

impl<T: Into<String>> From<T> for ApiKey {
    fn from(key: T) -> Self {
        Self::new(key)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}
