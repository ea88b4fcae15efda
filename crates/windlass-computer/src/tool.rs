//! The tools: one for the screen, and one for what only a browser has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::core::Effect;
use windlass::guardrail::{ToolInputGuardrail, ToolVerdict};
use windlass::model::OfferedKind;
use windlass::{Tool, ToolContext, ToolError};

use crate::action::{Action, Answer, ComputerCall, SafetyCheck};
use crate::carry::{carry_out, show};
use crate::computer::Computer;
use crate::safety::{Acknowledgement, Judged, Proposed, Safety};
use crate::secret::{Secret, Secrets};
use crate::source::{ComputerProvider, OnPause, Source};
use crate::station::Station;

/// The name of the tool, as providers have it.
const COMPUTER: &str = "computer";
/// The name of the tool for what only a browser has.
const BROWSER: &str = "browser";
/// How long one action may take, unless the tool says otherwise.
const WITHIN: Duration = Duration::from_secs(30);

/// A computer, on its way to becoming tools of an agent.
///
/// ```no_run
/// use windlass_computer::{Browser, BrowserOptions, ComputerTool, Judged};
///
/// # use windlass::Tool;
/// let computer = ComputerTool::made_by(Browser::provider(BrowserOptions::default()))
///     .limit(200)
///     .judge(|proposed| async move {
///         if proposed.last_minute > 60 { Judged::Refuse("too fast".into()) } else { Judged::Allow }
///     });
/// let (screen, browser): (Tool, Tool) = (computer.tool(), computer.browser_tool());
/// ```
#[derive(Clone)]
pub struct ComputerTool {
    source: Source,
    safety: Safety,
    approve: Option<Arc<dyn Fn(&[Action]) -> bool + Send + Sync>>,
    on_pause: OnPause,
    in_doubt: InDoubt,
    within: Duration,
    offered: Offered,
    secrets: Secrets,
    typing: Typing,
    station: std::sync::OnceLock<Arc<Station>>,
}

/// What happens to a call that a crash interrupted in the middle of acting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// A person says what happened.
    #[default]
    AskPerson,
    /// The model is shown the screen as it is now, and told that nobody knows. Nothing is done again.
    ShowModel,
}

/// Whether what is typed is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typing {
    Recorded,
    Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    AsComputer,
    AsFunction,
}

impl ComputerTool {
    /// Drives a computer that somebody else looks after. Runs that use it at the same time use the same one.
    pub fn given(computer: Arc<dyn Computer>) -> Self {
        Self::new(Source::Given(computer))
    }

    /// Drives a computer of the run's own: made at its first call, disposed of when the run leaves.
    pub fn made_by(provider: impl ComputerProvider) -> Self {
        Self::new(Source::Made(Arc::new(provider)))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            safety: Safety::default(),
            approve: None,
            on_pause: OnPause::default(),
            in_doubt: InDoubt::default(),
            within: WITHIN,
            offered: Offered::AsComputer,
            secrets: Secrets::default(),
            typing: Typing::Recorded,
            station: std::sync::OnceLock::new(),
        }
    }

    fn edited(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        self.station = std::sync::OnceLock::new();
        edit(&mut self);
        self
    }

    /// Asked of every action before anything of its call happens. One refusal withholds the whole call. A function
    /// that panics refuses.
    #[must_use]
    pub fn judge<Fut>(self, judge: impl Fn(Proposed) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Judged> + Send + 'static,
    {
        self.edited(|tool| tool.safety.judge_with(judge))
    }

    /// Asked of every safety check of the provider's. Without this, or where it says so, a person must acknowledge
    /// it: the call waits for an approval.
    #[must_use]
    pub fn acknowledge<Fut>(self, say: impl Fn(SafetyCheck) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Acknowledgement> + Send + 'static,
    {
        self.edited(|tool| tool.safety.acknowledge_with(say))
    }

    /// A person decides before calls whose actions the rule picks.
    #[must_use]
    pub fn approve_if(self, rule: impl Fn(&[Action]) -> bool + Send + Sync + 'static) -> Self {
        self.edited(|tool| tool.approve = Some(Arc::new(rule)))
    }

    /// How many actions a run may take; looking does not count. With a store the count outlasts the process.
    #[must_use]
    pub fn limit(self, actions: u64) -> Self {
        self.edited(|tool| tool.safety.limit = Some(actions))
    }

    /// How many actions a run may take within a minute, in this process; looking does not count. What is over it is
    /// refused, and the model is told to wait.
    #[must_use]
    pub fn limit_per_minute(self, actions: usize) -> Self {
        self.edited(|tool| tool.safety.per_minute = Some(actions))
    }

    /// What becomes of the computer while the run waits for a person.
    #[must_use]
    pub fn on_pause(self, on_pause: OnPause) -> Self {
        self.edited(|tool| tool.on_pause = on_pause)
    }

    /// What happens to a call that a crash interrupted.
    #[must_use]
    pub fn in_doubt(self, in_doubt: InDoubt) -> Self {
        self.edited(|tool| tool.in_doubt = in_doubt)
    }

    /// How long one action may take, besides the time that it is meant to last.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        self.edited(|tool| tool.within = within)
    }

    /// A secret that the model types by its name, `{{secret:NAME}}`, and does not know. It is put in where the computer
    /// types it: what is judged, shown, journalled and traced has the name.
    #[must_use]
    pub fn secret(self, name: &str, secret: impl Into<Secret>) -> Self {
        self.edited(|tool| tool.secrets.add(name, secret.into()))
    }

    /// Writes down nothing of what is typed, for models that are told secrets: not in the journal, not in a session. A
    /// call that still waits for a person when its process ends then has to be made again.
    #[must_use]
    pub fn secret_typing(self) -> Self {
        self.edited(|tool| tool.typing = Typing::Secret)
    }

    /// Offers the tool as a function, for models whose provider has no computer tool.
    #[must_use]
    pub fn as_function(self) -> Self {
        self.edited(|tool| tool.offered = Offered::AsFunction)
    }

    /// The tool for the screen.
    pub fn tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let display = self.source.display();
        let description = format!(
            "Uses a screen of {} by {} pixels ({}): actions in order, then a screenshot.{}",
            display.width,
            display.height,
            display.environment,
            self.secrets.told()
        );
        let tool = self.of::<C, ComputerCall>(COMPUTER, &description).non_strict();
        match self.offered {
            Offered::AsComputer => tool.offered_as(OfferedKind::Computer(display)),
            Offered::AsFunction => tool,
        }
    }

    /// The tool for what only a browser has: addresses, history, tabs, dialogs. It is a function to every provider,
    /// and goes through the same checks.
    pub fn browser_tool<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let description = "Goes to an address, goes back or forward, reloads, lists, switches or closes tabs, and \
                           answers the dialog of a page. A screenshot follows.";
        self.of::<C, BrowserStep>(BROWSER, description)
    }

    fn of<C, A>(&self, name: &str, description: &str) -> Tool<C>
    where
        C: Send + Sync + 'static,
        A: Asks + DeserializeOwned + JsonSchema + Send + Sync + 'static,
    {
        let station = self.station.get_or_init(|| {
            let (source, safety, secrets) = (self.source.clone(), self.safety.clone(), self.secrets.clone());
            Station::new(source, safety, secrets, self.on_pause, self.within)
        });
        let (bodies, guards, rules, doubts) =
            (station.clone(), station.clone(), station.clone(), station.clone());
        let approve = self.approve.clone();
        let tool = Tool::function(name, description, move |ctx: ToolContext<C>, asked: A| {
            let station = bodies.clone();
            async move {
                let (actions, checks) = asked.asks().map_err(ToolError::tell)?;
                carry_out(&station, &ctx, &actions, &checks).await
            }
        })
        .effect_by(|asked: &A| match asked.asks() {
            Ok((actions, _)) if actions.iter().all(Action::looks) => Effect::Pure,
            Ok(_) | Err(_) => Effect::Once,
        })
        // There is one pointer: calls keep the model's order, and what it meant to follow something follows it.
        .conflict(|_: &A| COMPUTER.to_owned())
        .in_steps()
        // What a provider warns of is asked each time: a decision for good was made before anybody saw the warning.
        .approve_each_when(move |_, asked: &A| {
            let (station, asked) = (rules.clone(), asked.asks());
            async move {
                let Ok((_, checks)) = asked else { return false };
                station.safety.acknowledge(&checks).await == Acknowledgement::AskPerson
            }
        })
        .input_guardrail(ToolInputGuardrail::new("computer safety", move |ctx: ToolContext<C>| {
            let station = guards.clone();
            async move {
                let Ok(asked) = serde_json::from_str::<A>(ctx.arguments()) else {
                    // They are no arguments of this tool: the model is told so without our help.
                    return Ok(ToolVerdict::Allow);
                };
                let refused = match asked.asks() {
                    Ok((actions, checks)) => station.refuse(&ctx, &actions, &checks).await?,
                    Err(why) => Some(why),
                };
                Ok(refused.map_or(ToolVerdict::Allow, ToolVerdict::Reject))
            }
        }));
        let tool = match self.typing {
            Typing::Recorded => tool,
            // Where the forms of a call have their text.
            Typing::Secret => tool.secret_arguments(["text", "action.text", "actions.text"]),
        };
        let tool = match approve {
            None => tool,
            Some(rule) => {
                tool.approve_if(move |asked: &A| asked.asks().is_ok_and(|(actions, _)| rule(&actions)))
            }
        };
        match self.in_doubt {
            InDoubt::AskPerson => tool,
            InDoubt::ShowModel => tool.reconcile(move |ctx| {
                let station = doubts.clone();
                async move { show(&station, &ctx).await }.boxed()
            }),
        }
    }
}

/// What a call asks for: its actions, and the provider's checks.
trait Asks {
    fn asks(&self) -> Result<(Vec<Action>, Vec<SafetyCheck>), String>;
}

impl Asks for ComputerCall {
    fn asks(&self) -> Result<(Vec<Action>, Vec<SafetyCheck>), String> {
        Ok((self.actions.clone(), self.pending_safety_checks.clone()))
    }
}

/// The arguments of the tool for what only a browser has.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BrowserStep {
    /// What to do.
    pub op: Op,
    /// The address, for `navigate`.
    #[serde(default)]
    pub url: Option<String>,
    /// The place of the tab in the list, from 0, for `switch_tab` and `close_tab`.
    #[serde(default)]
    pub tab: Option<u32>,
    /// Yes or no, for `answer_dialog`.
    #[serde(default)]
    pub accept: Option<bool>,
    /// What to enter, for `answer_dialog`.
    #[serde(default)]
    pub text: Option<String>,
}

/// What to do in a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say what they are")]
pub enum Op {
    Navigate,
    Back,
    Forward,
    Reload,
    Tabs,
    SwitchTab,
    CloseTab,
    AnswerDialog,
}

impl Asks for BrowserStep {
    fn asks(&self) -> Result<(Vec<Action>, Vec<SafetyCheck>), String> {
        let tab = || Ok::<_, String>(self.tab.ok_or("`tab` is missing")? as usize);
        let action = match self.op {
            Op::Navigate => Action::Navigate { url: self.url.clone().ok_or("`url` is missing")? },
            Op::Back => Action::Back,
            Op::Forward => Action::Forward,
            Op::Reload => Action::Reload,
            Op::Tabs => Action::Tabs,
            Op::SwitchTab => Action::SwitchTab { tab: tab()? },
            Op::CloseTab => Action::CloseTab { tab: tab()? },
            Op::AnswerDialog => Action::AnswerDialog {
                answer: match self.accept {
                    Some(true) => Answer::Accept,
                    Some(false) => Answer::Dismiss,
                    None => return Err("`accept` is missing".to_owned()),
                },
                text: self.text.clone(),
            },
        };
        Ok((vec![action], Vec::new()))
    }
}
