//! Secrets that are typed by their names. The model writes `{{secret:NAME}}`, and only the computer is told what that is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::action::Action;
use crate::browser::Sites;
use crate::computer::{Computer, ComputerError};

const BEGINS: &str = "{{secret:";
const ENDS: &str = "}}";
/// What stands in place of a secret that a page said.
const HIDDEN: &str = "[secret]";

/// A text that is typed and not written down.
#[derive(Clone)]
pub struct Secret {
    value: Arc<str>,
    sites: Sites,
}

impl Secret {
    /// A secret that may be typed anywhere.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self { value: value.into(), sites: Sites::Any }
    }

    /// It is typed on pages of these sites alone, as [`Sites::only`] names them. A computer that has no pages does not
    /// type it at all.
    #[must_use]
    pub fn only_on<T: Into<String>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.sites = Sites::only(hosts);
        self
    }
}

impl<T: Into<Arc<str>>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("sites", &self.sites).finish_non_exhaustive()
    }
}

/// The secrets of a computer, by their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(BTreeMap<String, Secret>);

impl Secrets {
    pub(crate) fn add(&mut self, name: &str, secret: Secret) {
        self.0.insert(name.to_owned(), secret);
    }

    /// What the model is told of them.
    pub(crate) fn told(&self) -> String {
        match self.names() {
            names if names.is_empty() => names,
            names => format!(" Secrets are typed by their names: {names}."),
        }
    }

    fn names(&self) -> String {
        self.0.keys().map(|name| format!("{BEGINS}{name}{ENDS}")).collect::<Vec<_>>().join(", ")
    }

    /// Why an action cannot be done; none where it can.
    pub(crate) fn refuse(&self, action: &Action) -> Option<String> {
        let unknown = named(text_of(action)?).find(|name| !self.0.contains_key(*name))?;
        let there = if self.0.is_empty() { "none".to_owned() } else { self.names() };
        Some(format!("there is no secret `{unknown}` (there are: {there})"))
    }

    /// The action with secrets in the place of their names, where the page that is seen may have them.
    pub(crate) async fn put_into<'a>(
        &self,
        action: &'a Action,
        computer: &dyn Computer,
    ) -> Result<Cow<'a, Action>, ComputerError> {
        let Some(text) = text_of(action).filter(|text| text.contains(BEGINS)) else {
            return Ok(Cow::Borrowed(action));
        };
        let mut filled = text.to_owned();
        for name in named(text) {
            let Some(secret) = self.0.get(name) else { continue };
            if secret.sites != Sites::Any {
                let tabs = computer.tabs().await?;
                let page = tabs.iter().find(|tab| tab.is_current).map_or("", |tab| &tab.url);
                if let Some(why) = secret.sites.refuses(page) {
                    return Err(ComputerError::Refused(format!(
                        "the secret `{name}` is not typed here: {why}"
                    )));
                }
            }
            filled = filled.replace(&format!("{BEGINS}{name}{ENDS}"), &secret.value);
        }
        Ok(Cow::Owned(match action {
            Action::AnswerDialog { answer, .. } => {
                Action::AnswerDialog { answer: *answer, text: Some(filled) }
            }
            _ => Action::Type { text: filled },
        }))
    }

    /// A text without the secrets: pages may say what was typed into them.
    pub(crate) fn hidden(&self, mut text: String) -> String {
        for secret in self.0.values().filter(|secret| !secret.value.is_empty()) {
            if text.contains(&*secret.value) {
                text = text.replace(&*secret.value, HIDDEN);
            }
        }
        text
    }
}

/// The text that an action types.
fn text_of(action: &Action) -> Option<&str> {
    match action {
        Action::Type { text } => Some(text),
        Action::AnswerDialog { text, .. } => text.as_deref(),
        _ => None,
    }
}

/// The names of secrets in a text.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split(BEGINS).skip(1).filter_map(|rest| rest.split_once(ENDS).map(|(name, _)| name))
}
