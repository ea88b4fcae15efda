//! The arguments of the tool for the elements of a page.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::action::{ComputerAction, MouseButton, PageContent, PageReading, SafetyCheck};
use crate::key::KeyChord;
use crate::tool::ActionRequest;

/// The arguments of the tool for the elements of a page.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageStep {
    /// What to do.
    pub op: PageOperation,
    /// The reference of the element, such as e12, for `fill`, `click` and `upload`.
    #[serde(default)]
    pub element: Option<String>,
    /// The text to look for, for `find`.
    #[serde(default)]
    pub query: Option<String>,
    /// The new value, for `fill`: a text, the label of an option, `true` or `false` for a box to tick, or a date
    /// such as 2026-05-17.
    #[serde(default)]
    pub value: Option<String>,
    /// The names of the files, for `upload`.
    #[serde(default)]
    pub files: Option<Vec<String>>,
    /// The part of the page to read, for `read`: all of it if absent.
    #[serde(default)]
    pub content: Option<PageContent>,
}

/// What to do with the elements of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
#[non_exhaustive]
pub enum PageOperation {
    Read,
    Find,
    Fill,
    Click,
    Upload,
}

impl ActionRequest for PageStep {
    fn actions_and_checks(&self) -> Result<(Vec<ComputerAction>, Vec<SafetyCheck>), String> {
        let element = || self.element.clone().ok_or_else(|| "`element` is missing".to_owned());
        let action = match self.op {
            PageOperation::Read => ComputerAction::ReadPage {
                reading: PageReading { content: self.content.unwrap_or_default(), ..PageReading::default() },
            },
            PageOperation::Find => {
                ComputerAction::FindElements { query: self.query.clone().ok_or("`query` is missing")? }
            }
            PageOperation::Fill => ComputerAction::FillField {
                field: element()?,
                value: self.value.clone().ok_or("`value` is missing")?,
            },
            PageOperation::Click => ComputerAction::ClickElement {
                element: element()?,
                button: MouseButton::Left,
                times: 1,
                held_keys: KeyChord::EMPTY,
            },
            PageOperation::Upload => ComputerAction::UploadFiles {
                field: Some(element()?),
                files: self.files.clone().ok_or("`files` is missing")?,
            },
        };
        Ok((vec![action], Vec::new()))
    }
}
