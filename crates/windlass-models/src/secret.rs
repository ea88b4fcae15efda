//! A key: it reaches the provider, and nothing that is printed.

use std::fmt;

/// A key of a provider. Printing it shows that it is there, and not what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into().trim().to_owned())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The text without the key, should somebody have put it there: some servers repeat what they were sent.
    pub(crate) fn removed_from(&self, text: String) -> String {
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
