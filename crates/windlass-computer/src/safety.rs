//! Safety: what is asked before anything happens. Whoever cannot say yes says no.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass::core::{AgentName, RunId};
use windlass::model::Display;

use crate::action::{Action, SafetyCheck};

/// An action that is about to happen.
#[derive(Clone, Debug)]
pub struct Proposed {
    /// The action.
    pub action: Action,
    /// Its place in its call, from 0.
    pub place: usize,
    /// How many actions its call has.
    pub of: usize,
    /// The screen. Its coordinates lie on it.
    pub display: Display,
    /// How many actions the run has taken so far; looking does not count.
    pub taken: u64,
    /// How many of them within the last minute, in this process.
    pub last_minute: usize,
    /// The run.
    pub run: RunId,
    /// The agent that asks.
    pub agent: AgentName,
}

/// What the application says of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It may happen.
    Allow,
    /// It may not, and nor may the rest of its call. The model is told why.
    Refuse(String),
}

/// What the application says of a provider's safety check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// It is acknowledged.
    Acknowledged,
    /// A person must say.
    AskPerson,
    /// It is not. Nothing of the call happens, and the model is told why.
    Refused(String),
}

type Judge = Arc<dyn Fn(Proposed) -> BoxFuture<'static, Judged> + Send + Sync>;
type Acknowledge = Arc<dyn Fn(SafetyCheck) -> BoxFuture<'static, Acknowledgement> + Send + Sync>;

/// What is asked before anything happens.
#[derive(Clone, Default)]
pub(crate) struct Safety {
    judge: Option<Judge>,
    acknowledge: Option<Acknowledge>,
    pub(crate) limit: Option<u64>,
    pub(crate) per_minute: Option<usize>,
}

impl Safety {
    pub(crate) fn judge_with<Fut>(&mut self, judge: impl Fn(Proposed) -> Fut + Send + Sync + 'static)
    where
        Fut: Future<Output = Judged> + Send + 'static,
    {
        self.judge = Some(Arc::new(move |proposed| judge(proposed).boxed()));
    }

    pub(crate) fn acknowledge_with<Fut>(&mut self, say: impl Fn(SafetyCheck) -> Fut + Send + Sync + 'static)
    where
        Fut: Future<Output = Acknowledgement> + Send + 'static,
    {
        self.acknowledge = Some(Arc::new(move |check| say(check).boxed()));
    }

    /// Asks the application of one action.
    pub(crate) async fn judge(&self, proposed: Proposed) -> Judged {
        match &self.judge {
            Some(judge) => judge(proposed).await,
            None => Judged::Allow,
        }
    }

    /// What the provider's checks mean: the sternest answer counts. With nobody to say, a person must.
    pub(crate) async fn acknowledge(&self, checks: &[SafetyCheck]) -> Acknowledgement {
        let mut sternest = Acknowledgement::Acknowledged;
        for check in checks {
            let said = match &self.acknowledge {
                Some(say) => say(check.clone()).await,
                None => Acknowledgement::AskPerson,
            };
            match said {
                Acknowledgement::Refused(_) => return said,
                Acknowledgement::AskPerson => sternest = Acknowledgement::AskPerson,
                Acknowledgement::Acknowledged => {}
            }
        }
        sternest
    }
}

/// Why an action does not fit a screen; none where it does.
pub(crate) fn off_screen(action: &Action, display: &Display) -> Option<String> {
    let outside = action.points().into_iter().find(|at| at.x >= display.width || at.y >= display.height)?;
    Some(format!(
        "{outside} is outside of the display, which is {} by {} pixels; nothing of this call was done",
        display.width, display.height
    ))
}
