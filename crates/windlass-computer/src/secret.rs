//! Secrets that the model refers to by name. The model writes `{{secret:NAME}}`; the value is substituted
//! only when the computer types it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::action::ComputerAction;
use crate::browser::AllowedSites;
use crate::computer::{Computer, ComputerError};
use crate::secret_mask::mask_secret;

const PLACEHOLDER_PREFIX: &str = "{{secret:";
const PLACEHOLDER_SUFFIX: &str = "}}";

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

    /// Restricts the secret to fields whose own frame belongs to these sites, in the syntax of
    /// [`AllowedSites::only`]. A computer without pages never types it.
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

/// A part of a text that is typed: plain, or a secret.
enum TypedPart<'a> {
    Plain(&'a str),
    Secret(&'a str, &'a ComputerSecret),
}

impl ComputerSecrets {
    pub(crate) fn add(&mut self, name: &str, secret: ComputerSecret) {
        self.0.insert(name.to_owned(), secret);
    }

    /// Returns the reason why the site list of a secret is invalid; `None` if all are valid.
    pub(crate) fn invalid_sites_reason(&self) -> Option<String> {
        self.0.iter().find_map(|(name, secret)| {
            let why = secret.allowed_sites.validate().err()?;
            Some(format!("the sites of the secret `{name}` are invalid: {why}"))
        })
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

    /// Returns true if the action types a secret.
    pub(crate) fn has_secret(&self, action: &ComputerAction) -> bool {
        typed_text(action).is_some_and(|text| text.contains(PLACEHOLDER_PREFIX))
    }

    /// Performs an action whose text contains secrets.
    ///
    /// # Errors
    ///
    /// Refuses if the frame of the field does not belong to a site that a secret is restricted to.
    pub(crate) async fn type_with_secrets(
        &self,
        action: &ComputerAction,
        computer: &dyn Computer,
    ) -> Result<(), ComputerError> {
        match action {
            ComputerAction::AnswerDialog { answer, text: Some(text) } => {
                let (filled, sites) = self.fill_in(text, computer);
                computer.answer_dialog_with_secret(*answer, &filled, &sites).await
            }
            ComputerAction::FillField { field, value } => {
                let (filled, sites) = self.fill_in(value, computer);
                computer.fill_field(field, &filled, &sites).await
            }
            ComputerAction::TypeText { text } => {
                for part in self.split_text(text) {
                    match part {
                        TypedPart::Plain(text) => computer.type_text(text).await?,
                        TypedPart::Secret(name, secret) => {
                            let typed = computer.type_secret(&secret.value, &secret.allowed_sites).await;
                            typed.map_err(|error| match error {
                                ComputerError::Refused(why) => refused_secret(name, &why),
                                other => other,
                            })?;
                        }
                    }
                }
                Ok(())
            }
            _ => Err(ComputerError::Unsupported("type a secret by this action")),
        }
    }

    /// Returns a text with the values of its secrets, and the sites that each of them is restricted to.
    fn fill_in(&self, text: &str, computer: &dyn Computer) -> (String, Vec<AllowedSites>) {
        let (mut filled, mut sites) = (String::new(), Vec::new());
        for part in self.split_text(text) {
            match part {
                TypedPart::Plain(text) => filled.push_str(text),
                TypedPart::Secret(_, secret) => {
                    sites.push(secret.allowed_sites.clone());
                    // A page may show the secret without the text around it.
                    computer.remember_secret(&secret.value);
                    filled.push_str(&secret.value);
                }
            }
        }
        (filled, sites)
    }

    fn split_text<'a>(&'a self, text: &'a str) -> Vec<TypedPart<'a>> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once(PLACEHOLDER_PREFIX) {
            let found = after
                .split_once(PLACEHOLDER_SUFFIX)
                .and_then(|(name, after)| Some((name, self.0.get(name)?, after)));
            let Some((name, secret, after)) = found else { break };
            if !before.is_empty() {
                parts.push(TypedPart::Plain(before));
            }
            parts.push(TypedPart::Secret(name, secret));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(TypedPart::Plain(rest));
        }
        parts
    }

    /// Replaces secret values in a text, also in encoded forms, because pages may echo what was typed into
    /// them.
    pub(crate) fn redact(&self, mut text: String) -> String {
        // The longest secrets first, because one may contain another.
        let mut values: Vec<&str> = self.0.values().map(|secret| &*secret.value).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for value in values {
            text = mask_secret(text, value);
        }
        text
    }
}

fn refused_secret(name: &str, why: &str) -> ComputerError {
    ComputerError::Refused(format!("the secret `{name}` is not typed here: {why}"))
}

/// Returns the text that an action types.
fn typed_text(action: &ComputerAction) -> Option<&str> {
    match action {
        ComputerAction::TypeText { text } => Some(text),
        ComputerAction::AnswerDialog { text, .. } => text.as_deref(),
        ComputerAction::FillField { value, .. } => Some(value),
        _ => None,
    }
}

/// Returns the names of the secrets that a text refers to.
fn secret_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(PLACEHOLDER_PREFIX)
        .skip(1)
        .filter_map(|rest| rest.split_once(PLACEHOLDER_SUFFIX).map(|(name, _)| name))
}
