//! Tools that a provider defines and the application executes: a shell, patches of files, free text. The model was
//! trained with the provider's definition, so it uses these tools better than functions with the same task.
//!
//! Their calls take the same path as function calls: they are planned, guarded, approved, journalled and executed.
//! Only the wire format of the call and of its output differs.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_core::provenance::ContentSource;

use super::{Tool, ToolContext};
use crate::model::ToolKind;

/// The commands of a call of [`Tool::shell`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShellAction {
    /// The commands, each for a shell of its own.
    pub commands: Vec<String>,
    /// Time limit of the commands in milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Maximum number of characters of each command's output.
    #[serde(default)]
    pub max_output_length: Option<u64>,
}

/// The output of one command of a [`ShellAction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellCommandOutput {
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
    /// The end of the command.
    pub outcome: ShellOutcome,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ShellOutcome {
    /// The command ended.
    Exit {
        /// The exit code.
        exit_code: i32,
    },
    /// The command exceeded its time limit.
    Timeout,
}

/// The change of one file that a call of [`Tool::apply_patch`] requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PatchOperation {
    /// Creates a file.
    CreateFile {
        /// The path of the file.
        path: String,
        /// The content as a diff, in the provider's V4A format.
        diff: String,
    },
    /// Changes a file.
    UpdateFile {
        /// The path of the file.
        path: String,
        /// The change as a diff, in the provider's V4A format.
        diff: String,
    },
    /// Deletes a file.
    DeleteFile {
        /// The path of the file.
        path: String,
    },
}

/// The format of the text that a custom tool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CustomInputFormat<'a> {
    /// Any text.
    Text,
    /// Text of a grammar in the notation of Lark.
    Lark(&'a str),
    /// Text that matches a regular expression.
    Regex(&'a str),
}

impl CustomInputFormat<'_> {
    fn to_definition(self) -> Value {
        let grammar = |syntax: &str, definition: &str| json!({ "type": "grammar", "syntax": syntax, "definition": definition });
        match self {
            Self::Text => json!({ "type": "text" }),
            Self::Lark(definition) => grammar("lark", definition),
            Self::Regex(definition) => grammar("regex", definition),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct CustomInput {
    input: String,
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Offers the tool in a form that the provider defines, instead of as a function. `definition` is in the
    /// provider's format, with its `type`, such as `{"type": "bash_20250124", "name": "bash"}`. The tool's own
    /// schema still validates the arguments. A run does not start if its model does not support the form.
    #[must_use]
    pub fn provider_form(self, definition: Value) -> Self {
        self.non_strict().provider_kind(ToolKind::ProviderDefined(Arc::new(definition)))
    }

    /// Creates OpenAI's shell tool. The body executes the commands and returns the output of each.
    ///
    /// ```
    /// use windlass::prelude::*;
    /// use windlass::tool::{ShellAction, ShellCommandOutput, ShellOutcome};
    ///
    /// let shell: Tool = Tool::shell(|_, action: ShellAction| async move {
    ///     let refused = |command: String| ShellCommandOutput {
    ///         stdout: String::new(),
    ///         stderr: format!("{command}: not allowed"),
    ///         outcome: ShellOutcome::Exit { exit_code: 126 },
    ///     };
    ///     Ok::<_, String>(action.commands.into_iter().map(refused).collect())
    /// })
    /// .needs_approval();
    /// # let _ = Agent::new("clerk").tool(shell);
    /// ```
    pub fn shell<F, Fut, E>(body: F) -> Self
    where
        F: Fn(ToolContext<C>, ShellAction) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<ShellCommandOutput>, E>> + Send + 'static,
        E: fmt::Display + Send + Sync + 'static,
    {
        Self::function("shell", "Executes shell commands.", body)
            .provider_form(json!({ "type": "shell", "environment": { "type": "local" } }))
            .content_source(ContentSource::Command)
    }

    /// Creates OpenAI's tool for changes of files. The body applies the operation; its output is text.
    pub fn apply_patch<F, Fut, T, E>(body: F) -> Self
    where
        F: Fn(ToolContext<C>, PatchOperation) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        Self::function("apply_patch", "Creates, changes or deletes a file.", body)
            .provider_form(json!({ "type": "apply_patch" }))
            .content_source(ContentSource::File)
    }

    /// Creates a tool that takes text instead of JSON: OpenAI's custom tool, whose text may follow a grammar.
    ///
    /// ```
    /// use windlass::prelude::*;
    /// use windlass::tool::CustomInputFormat;
    ///
    /// let format = CustomInputFormat::Regex(r"[0-9+*() ]+");
    /// let sum: Tool = Tool::custom("sum", "Evaluates an expression.", format, |_, text: String| async move {
    ///     Ok::<_, String>(format!("{text} is a number"))
    /// });
    /// # let _ = Agent::new("clerk").tool(sum);
    /// ```
    pub fn custom<F, Fut, T, E>(name: &str, description: &str, format: CustomInputFormat<'_>, body: F) -> Self
    where
        F: Fn(ToolContext<C>, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let definition = json!({
            "type": "custom",
            "name": name,
            "description": description,
            "format": format.to_definition(),
        });
        Self::function(name, description, move |ctx, CustomInput { input }| body(ctx, input))
            .provider_form(definition)
    }
}
