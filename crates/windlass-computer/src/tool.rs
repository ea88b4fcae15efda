//! The tools for an agent: one for the screen, and one for operations that only a browser has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::core::provenance::ContentSource;
use windlass::core::tool::ToolEffect;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::model::ToolKind;
use windlass::tool::{OnFailure, Tool, ToolContext, ToolError};

use crate::action::{ComputerAction, ComputerCall, DialogAnswer, SafetyCheck};
use crate::call_executor::{execute_call, reconcile_with_screenshot};
use crate::computer::Computer;
use crate::page_tool::PageStep;
use crate::provider::{ComputerProvider, ComputerSource, PausePolicy};
use crate::registry::{ComputerRegistry, RegistrySettings};
use crate::safety::{ActionVerdict, ProposedAction, SafetyCheckDecision, SafetyPolicy};
use crate::secret::{ComputerSecret, ComputerSecrets};

/// Name of the screen tool, as defined by the providers.
const COMPUTER_TOOL_NAME: &str = "computer";
/// Name of the tool for operations that only a browser has.
const BROWSER_TOOL_NAME: &str = "browser";
/// Name of the tool for the elements of a page.
const PAGE_TOOL_NAME: &str = "page";
/// Text for the model if the computer failed for a reason that concerns the operator.
const FAILURE_TEXT: &str =
    "The computer could not be used. If this call was to act, look before you act again.";
/// Default maximum number of turns of a run on a computer: a form takes dozens.
const DEFAULT_MAX_TURNS: u32 = 100;
/// Default timeout of one action.
const DEFAULT_ACTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Default maximum time that the actions of one call may ask to wait, together.
const DEFAULT_MAX_CALL_WAIT: Duration = Duration::from_secs(300);
/// Default maximum number of computers that are kept while their runs wait for a person.
const DEFAULT_MAX_KEPT_COMPUTERS: usize = 16;

/// A builder for the tools that drive a computer.
///
/// ```no_run
/// use windlass_computer::{ActionVerdict, Browser, BrowserOptions, ComputerTool};
///
/// # use windlass::tool::Tool;
/// let computer = ComputerTool::with_provider(Browser::provider(BrowserOptions::default()))
///     .max_actions(200)
///     .review_actions(|proposed| async move {
///         if proposed.actions_last_minute > 60 {
///             ActionVerdict::Refuse("too fast".into())
///         } else {
///             ActionVerdict::Allow
///         }
///     });
/// let (screen, browser): (Tool, Tool) = (computer.screen_tool(), computer.browser_tool());
/// ```
#[derive(Clone)]
pub struct ComputerTool {
    source: ComputerSource,
    safety: SafetyPolicy,
    approval_rule: Option<Arc<dyn Fn(&[ComputerAction]) -> bool + Send + Sync>>,
    pause_policy: PausePolicy,
    max_kept_computers: usize,
    in_doubt_policy: InDoubtPolicy,
    action_timeout: Duration,
    max_call_wait: Duration,
    presentation: ToolPresentation,
    secrets: ComputerSecrets,
    typed_text: TypedTextRecording,
    registry: std::sync::OnceLock<Arc<ComputerRegistry>>,
}

/// The handling of a call that a crash interrupted while it was acting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InDoubtPolicy {
    /// A person settles the call.
    #[default]
    AskPerson,
    /// The model gets the current screen and a note that the outcome is unknown. The actions are not
    /// repeated.
    ShowScreen,
}

/// The journalling of typed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypedTextRecording {
    Recorded,
    Redacted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolPresentation {
    AsComputer,
    AsFunction,
}

impl ComputerTool {
    /// Creates tools for a computer that the application owns. Concurrent runs share it.
    pub fn with_computer(computer: Arc<dyn Computer>) -> Self {
        Self::new(ComputerSource::Shared(computer))
    }

    /// Creates tools for one computer per run: created at the run's first call, replaced if it dies, disposed
    /// of when the run ends, and kept within a bound while the run waits for a person.
    pub fn with_provider(provider: impl ComputerProvider) -> Self {
        Self::new(ComputerSource::PerRun(Arc::new(provider)))
    }

    fn new(source: ComputerSource) -> Self {
        Self {
            source,
            safety: SafetyPolicy::default(),
            approval_rule: None,
            pause_policy: PausePolicy::default(),
            max_kept_computers: DEFAULT_MAX_KEPT_COMPUTERS,
            in_doubt_policy: InDoubtPolicy::default(),
            action_timeout: DEFAULT_ACTION_TIMEOUT,
            max_call_wait: DEFAULT_MAX_CALL_WAIT,
            presentation: ToolPresentation::AsComputer,
            secrets: ComputerSecrets::default(),
            typed_text: TypedTextRecording::Recorded,
            registry: std::sync::OnceLock::new(),
        }
    }

    fn edit_with(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        self.registry = std::sync::OnceLock::new();
        edit(&mut self);
        self
    }

    /// Sets the reviewer, which is asked once about every action before any action of the call runs. It
    /// receives the address, the screenshot and the element that the action would hit, and the action runs
    /// only if they still match then. One refusal blocks the whole call. A reviewer that panics refuses.
    #[must_use]
    pub fn review_actions<Fut>(self, judge: impl Fn(ProposedAction) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = ActionVerdict> + Send + 'static,
    {
        self.edit_with(|tool| tool.safety.set_reviewer(judge))
    }

    /// Sets the handler of the provider's safety checks, which is asked once about each. Without a handler, or if it returns
    /// [`SafetyCheckDecision::AskPerson`], a person must acknowledge them: the call waits for approval.
    #[must_use]
    pub fn on_safety_check<Fut>(self, say: impl Fn(SafetyCheck) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = SafetyCheckDecision> + Send + 'static,
    {
        self.edit_with(|tool| tool.safety.set_safety_check_handler(say))
    }

    /// Requires approval for calls whose actions match the rule.
    #[must_use]
    pub fn approve_if(self, rule: impl Fn(&[ComputerAction]) -> bool + Send + Sync + 'static) -> Self {
        self.edit_with(|tool| tool.approval_rule = Some(Arc::new(rule)))
    }

    /// Sets the maximum number of actions per run, not counting actions that only observe. With a store, the
    /// count survives the process.
    #[must_use]
    pub fn max_actions(self, actions: u64) -> Self {
        self.edit_with(|tool| tool.safety.max_actions = Some(actions))
    }

    /// Sets the maximum number of actions per minute and run in this process, not counting actions that only
    /// observe. Calls above it are refused, and the model is told to wait.
    #[must_use]
    pub fn max_actions_per_minute(self, actions: usize) -> Self {
        self.edit_with(|tool| tool.safety.max_actions_per_minute = Some(actions))
    }

    /// Sets the handling of the computer while the run waits for a person.
    #[must_use]
    pub fn on_pause(self, on_pause: PausePolicy) -> Self {
        self.edit_with(|tool| tool.pause_policy = on_pause)
    }

    /// Sets the maximum number of computers that are kept while their runs wait for a person. Above it, the
    /// one that has waited longest is disposed of.
    #[must_use]
    pub fn max_kept_computers(self, computers: usize) -> Self {
        self.edit_with(|tool| tool.max_kept_computers = computers)
    }

    /// Sets the maximum time that the actions of one call may ask to wait, together. A call above it is
    /// refused.
    #[must_use]
    pub fn max_call_wait(self, wait: Duration) -> Self {
        self.edit_with(|tool| tool.max_call_wait = wait)
    }

    /// Sets the handling of a call that a crash interrupted.
    #[must_use]
    pub fn in_doubt_policy(self, in_doubt: InDoubtPolicy) -> Self {
        self.edit_with(|tool| tool.in_doubt_policy = in_doubt)
    }

    /// Sets the timeout of one action, excluding the duration that the action itself requests.
    #[must_use]
    pub fn action_timeout(self, within: Duration) -> Self {
        self.edit_with(|tool| tool.action_timeout = within)
    }

    /// Adds a secret that the model types by name, `{{secret:NAME}}`, without knowing its value. The value is
    /// substituted when the computer types it; reviewers, approvers, journal and traces see the name.
    #[must_use]
    pub fn secret(self, name: &str, secret: impl Into<ComputerSecret>) -> Self {
        self.edit_with(|tool| tool.secrets.add(name, secret.into()))
    }

    /// Redacts typed text in the journal and in sessions, for models that know secrets themselves. A call
    /// that still waits for approval when its process ends must then be made again by the model.
    #[must_use]
    pub fn redact_typed_text(self) -> Self {
        self.edit_with(|tool| tool.typed_text = TypedTextRecording::Redacted)
    }

    /// Offers the tool as a function, for models whose provider has no computer tool.
    #[must_use]
    pub fn as_function(self) -> Self {
        self.edit_with(|tool| tool.presentation = ToolPresentation::AsFunction)
    }

    /// Returns the tool for the screen.
    pub fn screen_tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let display = self.source.display();
        let description = format!(
            "Uses a screen of {} by {} pixels ({}): actions in order, then a screenshot.{}",
            display.width,
            display.height,
            display.environment,
            self.secrets.description_sentence()
        );
        let tool = self.build_tool::<C, ComputerCall>(COMPUTER_TOOL_NAME, &description).non_strict();
        match self.presentation {
            ToolPresentation::AsComputer => tool.provider_kind(ToolKind::Computer(display)),
            ToolPresentation::AsFunction => tool,
        }
    }

    /// Returns the tool for operations that only a browser has: navigation, history, tabs, dialogs. It is
    /// offered as a function to every provider and passes the same checks.
    pub fn browser_tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let description = "Goes to an address, goes back or forward, reloads, lists, switches or closes tabs, \
                           answers the dialog or question of a page, and uploads files to a page that asks for \
                           them. A screenshot follows.";
        self.build_tool::<C, BrowserStep>(BROWSER_TOOL_NAME, description)
    }

    /// Returns the tool for the elements of a page: reading, finding, filling, clicking and uploading by
    /// reference, for models that need no pictures. It is offered as a function to every provider and passes
    /// the same checks.
    pub fn page_tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let description = format!(
            "Reads the page as text with references such as e12, finds elements by their names, fills in form \
             fields, clicks elements and uploads files by reference. A screenshot follows.{}",
            self.secrets.description_sentence()
        );
        self.build_tool::<C, PageStep>(PAGE_TOOL_NAME, &description)
    }

    fn build_tool<C, A>(&self, name: &str, description: &str) -> Tool<C>
    where
        C: Send + Sync + 'static,
        A: ActionRequest + DeserializeOwned + JsonSchema + Send + Sync + 'static,
    {
        let station = self.registry.get_or_init(|| {
            ComputerRegistry::new(RegistrySettings {
                source: self.source.clone(),
                safety: self.safety.clone(),
                secrets: self.secrets.clone(),
                pause_policy: self.pause_policy,
                max_kept_computers: self.max_kept_computers,
                action_timeout: self.action_timeout,
                max_call_wait: self.max_call_wait,
            })
        });
        let (bodies, guards, rules, holds, doubts) =
            (station.clone(), station.clone(), station.clone(), station.clone(), station.clone());
        let tool = Tool::function(name, description, move |ctx: ToolContext<C>, asked: A| {
            let station = bodies.clone();
            async move {
                let (actions, checks) = asked.actions_and_checks().map_err(ToolError::visible)?;
                execute_call(&station, &ctx, &actions, &checks).await
            }
        })
        .content_source(ContentSource::Computer)
        .effect_by_arguments(|asked: &A| match asked.actions_and_checks() {
            Ok((actions, _)) if actions.iter().all(ComputerAction::is_read_only) => ToolEffect::Pure,
            Ok(_) | Err(_) => ToolEffect::Once,
        })
        // There is one pointer, so calls run in the model's order and a later call depends on the earlier
        // ones.
        .conflict_key(|_: &A| COMPUTER_TOOL_NAME.to_owned())
        .plan_steps()
        .default_max_turns(DEFAULT_MAX_TURNS)
        // The usual text invites the model to try again, which it must not after an action.
        .on_failure(OnFailure::custom_message(|_, error| {
            error.model_message().unwrap_or(FAILURE_TEXT).to_owned()
        }))
        // A standing approval was given before anybody saw this warning or this screen, so safety checks and
        // the reviewer are asked each time.
        .needs_approval_each_time_if_async(move |ctx: ToolContext<C>, asked: &A| {
            let (station, asked) = (rules.clone(), asked.actions_and_checks());
            async move {
                let Ok((actions, checks)) = asked else { return false };
                station.judge_call(&ctx, &actions, &checks).await
            }
        })
        .on_hold(move |ctx: ToolContext<C>, asked: &A| {
            let (station, asked) = (holds.clone(), asked.actions_and_checks());
            async move {
                if let Ok((actions, checks)) = asked {
                    station.show_evidence(&ctx, &actions, &checks).await;
                }
            }
        })
        .input_guardrail(ToolInputGuardrail::new("computer safety", move |ctx: ToolContext<C>| {
            let station = guards.clone();
            async move {
                let Ok(asked) = serde_json::from_str::<A>(ctx.arguments()) else {
                    // The arguments do not match this tool's schema; the driver reports that to the model.
                    return Ok(ToolGuardrailVerdict::Allow);
                };
                let refused = match asked.actions_and_checks() {
                    Ok((actions, _)) => station.refusal_output(&ctx, &actions).await?,
                    Err(why) => Some(station.refusal_with_screen(&ctx, &why).await),
                };
                Ok(refused.map_or(ToolGuardrailVerdict::Allow, ToolGuardrailVerdict::ReplaceOutput))
            }
        }));
        let tool = match self.typed_text {
            TypedTextRecording::Recorded => tool,
            // The paths of typed text in the accepted argument formats.
            TypedTextRecording::Redacted => {
                tool.secret_arguments(["text", "value", "action.text", "actions.text"])
            }
        };
        let tool = match self.approval_rule.clone() {
            None => tool,
            Some(rule) => {
                let refusals = station.clone();
                tool.needs_approval_if_async(move |ctx: ToolContext<C>, asked: &A| {
                    let asks = asked.actions_and_checks().is_ok_and(|(actions, _)| rule(&actions));
                    // A call that is refused anyway is not asked about.
                    std::future::ready(asks && !refusals.is_refused(&ctx))
                })
            }
        };
        match self.in_doubt_policy {
            InDoubtPolicy::AskPerson => tool,
            InDoubtPolicy::ShowScreen => tool.reconcile(move |ctx| {
                let station = doubts.clone();
                async move { reconcile_with_screenshot(&station, &ctx).await }.boxed()
            }),
        }
    }
}

/// Tool arguments that translate to actions and safety checks.
pub(crate) trait ActionRequest {
    fn actions_and_checks(&self) -> Result<(Vec<ComputerAction>, Vec<SafetyCheck>), String>;
}

impl ActionRequest for ComputerCall {
    fn actions_and_checks(&self) -> Result<(Vec<ComputerAction>, Vec<SafetyCheck>), String> {
        Ok((self.actions.clone(), self.pending_safety_checks.clone()))
    }
}

/// The arguments of the tool for what only a browser has.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BrowserStep {
    /// What to do.
    pub op: BrowserOperation,
    /// The address, for `navigate`.
    #[serde(default)]
    pub url: Option<String>,
    /// The place of the tab in the list, from 0, for `switch_tab` and `close_tab`.
    #[serde(default)]
    pub tab: Option<u32>,
    /// Yes or no, for `answer_dialog`.
    #[serde(default)]
    pub accept: Option<bool>,
    /// What to enter, for `answer_dialog`; `user:password` if a site asks for a password.
    #[serde(default)]
    pub text: Option<String>,
    /// The names of the files, for `upload`.
    #[serde(default)]
    pub files: Option<Vec<String>>,
}

/// What to do in a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Op")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
#[non_exhaustive]
pub enum BrowserOperation {
    Navigate,
    Back,
    Forward,
    Reload,
    Tabs,
    SwitchTab,
    CloseTab,
    AnswerDialog,
    Upload,
}

impl ActionRequest for BrowserStep {
    fn actions_and_checks(&self) -> Result<(Vec<ComputerAction>, Vec<SafetyCheck>), String> {
        let tab = || Ok::<_, String>(self.tab.ok_or("`tab` is missing")? as usize);
        let action = match self.op {
            BrowserOperation::Navigate => {
                ComputerAction::Navigate { url: self.url.clone().ok_or("`url` is missing")? }
            }
            BrowserOperation::Back => ComputerAction::Back,
            BrowserOperation::Forward => ComputerAction::Forward,
            BrowserOperation::Reload => ComputerAction::Reload,
            BrowserOperation::Tabs => ComputerAction::ListTabs,
            BrowserOperation::SwitchTab => ComputerAction::SwitchTab { tab: tab()? },
            BrowserOperation::CloseTab => ComputerAction::CloseTab { tab: tab()? },
            BrowserOperation::AnswerDialog => ComputerAction::AnswerDialog {
                answer: match self.accept {
                    Some(true) => DialogAnswer::Accept,
                    Some(false) => DialogAnswer::Dismiss,
                    None => return Err("`accept` is missing".to_owned()),
                },
                text: self.text.clone(),
            },
            BrowserOperation::Upload => ComputerAction::UploadFiles {
                field: None,
                files: self.files.clone().ok_or("`files` is missing")?,
            },
        };
        Ok((vec![action], Vec::new()))
    }
}
