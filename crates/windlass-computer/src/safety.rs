//! Checks that run before any action of a call. A check that cannot decide refuses.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::canonical::Digest;
use windlass::core::id::{AgentName, RunId};
use windlass::model::ComputerDisplay;

use crate::action::{ComputerAction, SafetyCheck};
use crate::computer::Screenshot;
use crate::target::ScreenTarget;

/// An action that is about to run, as shown to the application's reviewer. The action runs only if the screen
/// still matches the target when it begins.
#[derive(Clone, Debug)]
pub struct ProposedAction {
    /// The action.
    pub action: ComputerAction,
    /// Index of the action in its call, from 0.
    pub index: usize,
    /// Number of actions in the call.
    pub call_len: usize,
    /// The screen that the coordinates refer to.
    pub display: ComputerDisplay,
    /// URL of the page, if the computer has pages.
    pub address: Option<String>,
    /// The element that the action would hit, if the computer can tell.
    pub target: Option<ScreenTarget>,
    /// The element that a drag would end on, if the computer can tell.
    pub drop_target: Option<ScreenTarget>,
    /// The screen before the call.
    pub screenshot: Option<Screenshot>,
    /// Digest of the screenshot.
    pub picture_digest: Option<Digest>,
    /// Number of actions that the run has taken so far, not counting actions that only observe.
    pub actions_taken: u64,
    /// Number of those actions within the last minute, in this process.
    pub actions_last_minute: usize,
    /// Id of the run.
    pub run_id: RunId,
    /// The agent that requests the action.
    pub agent: AgentName,
}

/// The application's verdict about one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionVerdict {
    /// The action may run.
    Allow,
    /// A person decides: the call waits for approval.
    AskPerson,
    /// No action of the call runs. The reason is shown to the model.
    Refuse(String),
}

/// The application's decision about a provider's safety check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SafetyCheckDecision {
    /// The check is acknowledged.
    Acknowledged,
    /// A person must acknowledge the check: the call waits for approval.
    AskPerson,
    /// The check is refused. No action of the call runs, and the reason is shown to the model.
    Refused(String),
}

type ActionReviewer = Arc<dyn Fn(ProposedAction) -> BoxFuture<'static, ActionVerdict> + Send + Sync>;
type SafetyCheckHandler = Arc<dyn Fn(SafetyCheck) -> BoxFuture<'static, SafetyCheckDecision> + Send + Sync>;

/// The checks and limits that apply before a call runs.
#[derive(Clone, Default)]
pub(crate) struct SafetyPolicy {
    reviewer: Option<ActionReviewer>,
    safety_check_handler: Option<SafetyCheckHandler>,
    pub(crate) max_actions: Option<u64>,
    pub(crate) max_actions_per_minute: Option<usize>,
}

impl SafetyPolicy {
    pub(crate) fn set_reviewer<Fut>(&mut self, judge: impl Fn(ProposedAction) -> Fut + Send + Sync + 'static)
    where
        Fut: Future<Output = ActionVerdict> + Send + 'static,
    {
        self.reviewer = Some(Arc::new(move |proposed| judge(proposed).boxed()));
    }

    pub(crate) fn set_safety_check_handler<Fut>(
        &mut self,
        say: impl Fn(SafetyCheck) -> Fut + Send + Sync + 'static,
    ) where
        Fut: Future<Output = SafetyCheckDecision> + Send + 'static,
    {
        self.safety_check_handler = Some(Arc::new(move |check| say(check).boxed()));
    }

    /// Returns true if the application has a reviewer.
    pub(crate) fn has_reviewer(&self) -> bool {
        self.reviewer.is_some()
    }

    /// Returns the verdict of the application's reviewer; without a reviewer, the action is allowed. A
    /// reviewer that panics refuses.
    pub(crate) async fn review_action(&self, proposed: ProposedAction) -> ActionVerdict {
        let Some(judge) = &self.reviewer else { return ActionVerdict::Allow };
        let judged = AssertUnwindSafe(async { judge(proposed).await }).catch_unwind().await;
        judged.unwrap_or_else(|_| ActionVerdict::Refuse("the check could not be completed".to_owned()))
    }

    /// Returns the strictest decision about the checks. Without a handler, a person must acknowledge them.
    pub(crate) async fn decide_safety_checks(&self, checks: &[SafetyCheck]) -> SafetyCheckDecision {
        let mut sternest = SafetyCheckDecision::Acknowledged;
        for check in checks {
            let said = match &self.safety_check_handler {
                Some(say) => AssertUnwindSafe(async { say(check.clone()).await })
                    .catch_unwind()
                    .await
                    .unwrap_or(SafetyCheckDecision::AskPerson),
                None => SafetyCheckDecision::AskPerson,
            };
            match said {
                SafetyCheckDecision::Refused(_) => return said,
                SafetyCheckDecision::AskPerson => sternest = SafetyCheckDecision::AskPerson,
                SafetyCheckDecision::Acknowledged => {}
            }
        }
        sternest
    }
}

/// Returns the reason why an action lies outside the screen; `None` if it does not.
pub(crate) fn off_screen_reason(action: &ComputerAction, display: &ComputerDisplay) -> Option<String> {
    let outside =
        action.screen_points().into_iter().find(|at| at.x >= display.width || at.y >= display.height)?;
    Some(format!(
        "{outside} is outside of the display, which is {} by {} pixels; nothing of this call was done",
        display.width, display.height
    ))
}
