//! Secrets that the model refers to by name. The model writes `{{secret:NAME}}`; the value is substituted
//! only when the computer types it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::action::ComputerAction;
use crate::browser::AllowedSites;
use crate::computer::{Computer, ComputerError};

const PLACEHOLDER_PREFIX: &str = "{{secret:";
const PLACEHOLDER_SUFFIX: &str = "}}";
/// Replacement for a secret value that a page shows.
const REDACTED_TEXT: &str = "[secret]";

/// A text that is typed but never journalled.
#[derive(Clone)]
pub struct ComputerSecret {
    value: Arc<str>,
    allowed_sites: AllowedSites,
}

impl ComputerSecret {
    /// Creates a secret that may be typed on any site.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self { value: value.into(), allowed_sites: AllowedSites::Any }
    }

    /// Restricts the secret to pages of these sites, in the syntax of [`AllowedSites::only`]. A computer
    /// without tabs never types it.
    #[must_use]
    pub fn only_on<T: Into<String>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.allowed_sites = AllowedSites::only(hosts);
        self
    }
}

impl<T: Into<Arc<str>>> From<T> for ComputerSecret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for ComputerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("sites", &self.allowed_sites).finish_non_exhaustive()
    }
}

/// The secrets of a computer, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComputerSecrets(BTreeMap<String, ComputerSecret>);

impl ComputerSecrets {
    pub(crate) fn add(&mut self, name: &str, secret: ComputerSecret) {
        self.0.insert(name.to_owned(), secret);
    }

    /// Returns the sentence of the tool description that lists the secrets; empty if there are none.
    pub(crate) fn description_sentence(&self) -> String {
        match self.placeholder_list() {
            names if names.is_empty() => names,
            names => format!(" Secrets are typed by their names: {names}."),
        }
    }

    fn placeholder_list(&self) -> String {
        self.0
            .keys()
            .map(|name| format!("{PLACEHOLDER_PREFIX}{name}{PLACEHOLDER_SUFFIX}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the reason why an action refers to an unknown secret; `None` if it does not.
    pub(crate) fn unknown_secret_reason(&self, action: &ComputerAction) -> Option<String> {
        let unknown = secret_names(typed_text(action)?).find(|name| !self.0.contains_key(*name))?;
        let there = if self.0.is_empty() { "none".to_owned() } else { self.placeholder_list() };
        Some(format!("there is no secret `{unknown}` (there are: {there})"))
    }

    /// Returns the action with its placeholders replaced by secret values.
    ///
    /// # Errors
    ///
    /// Refuses if the current page is not on a site that a secret is restricted to.
    pub(crate) async fn substitute_secrets<'a>(
        &self,
        action: &'a ComputerAction,
        computer: &dyn Computer,
    ) -> Result<Cow<'a, ComputerAction>, ComputerError> {
        let Some(text) = typed_text(action).filter(|text| text.contains(PLACEHOLDER_PREFIX)) else {
            return Ok(Cow::Borrowed(action));
        };
        let mut filled = text.to_owned();
        for name in secret_names(text) {
            let Some(secret) = self.0.get(name) else { continue };
            if secret.allowed_sites != AllowedSites::Any {
                let tabs = computer.list_tabs().await?;
                let page = tabs.iter().find(|tab| tab.is_current).map_or("", |tab| &tab.url);
                if let Some(why) = secret.allowed_sites.refusal_reason(page) {
                    return Err(ComputerError::Refused(format!(
                        "the secret `{name}` is not typed here: {why}"
                    )));
                }
            }
            filled =
                filled.replace(&format!("{PLACEHOLDER_PREFIX}{name}{PLACEHOLDER_SUFFIX}"), &secret.value);
        }
        Ok(Cow::Owned(match action {
            ComputerAction::AnswerDialog { answer, .. } => {
                ComputerAction::AnswerDialog { answer: *answer, text: Some(filled) }
            }
            _ => ComputerAction::TypeText { text: filled },
        }))
    }

    /// Replaces secret values in a text, because pages may echo what was typed into them.
    pub(crate) fn redact(&self, mut text: String) -> String {
        for secret in self.0.values().filter(|secret| !secret.value.is_empty()) {
            if text.contains(&*secret.value) {
                text = text.replace(&*secret.value, REDACTED_TEXT);
            }
        }
        text
    }
}

/// Returns the text that an action types.
fn typed_text(action: &ComputerAction) -> Option<&str> {
    match action {
        ComputerAction::TypeText { text } => Some(text),
        ComputerAction::AnswerDialog { text, .. } => text.as_deref(),
        _ => None,
    }
}

/// Returns the names of the secrets that a text refers to.
fn secret_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(PLACEHOLDER_PREFIX)
        .skip(1)
        .filter_map(|rest| rest.split_once(PLACEHOLDER_SUFFIX).map(|(name, _)| name))
}
