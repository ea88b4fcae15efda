//! The evidence of a call: the screen, the address and the elements that its actions would hit. An approval
//! and a reviewer's verdict hold only while the screen still matches it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::canonical::Digest;
use windlass::tool::CallEvidence;

use crate::action::ComputerAction;
use crate::computer::{Computer, ComputerError, Screenshot};
use crate::target::{ExpectedTarget, ScreenTarget, TargetPlace, expected_targets};

/// The screen as it was when a call was judged.
#[derive(Clone, Debug)]
pub(crate) struct ScreenEvidence {
    /// The page as a whole.
    pub(crate) page: ScreenTarget,
    /// The targets of each action, in order: two for a drag.
    targets: Vec<Vec<SeenTarget>>,
    /// The picture that a person or a reviewer is shown.
    pub(crate) screenshot: Option<Screenshot>,
}

/// A target of an action as it was when the call was judged.
#[derive(Clone, Debug)]
struct SeenTarget {
    expected: ExpectedTarget,
    seen: ScreenTarget,
}

impl SeenTarget {
    /// Returns the place that was described.
    fn place(expected: &ExpectedTarget) -> TargetPlace {
        match expected {
            ExpectedTarget::Place(place) | ExpectedTarget::FocusAfterClick(place) => place.clone(),
            ExpectedTarget::Unseen => TargetPlace::Page,
        }
    }

    /// Returns true if the action does not run in a call that somebody decided about. A computer without pages knows no
    /// elements: its windows are compared instead.
    fn is_unseen(&self) -> bool {
        self.expected == ExpectedTarget::Unseen && self.seen.address.is_some()
    }

    /// Returns the element that the action would hit, if the computer can tell.
    fn known_target(&self) -> Option<&ScreenTarget> {
        Some(&self.seen).filter(|_| !self.is_unseen())
    }

    /// Returns the difference before the call runs.
    async fn difference(&self, computer: &Arc<dyn Computer>) -> Result<Option<String>, ComputerError> {
        find_difference(computer, &Self::place(&self.expected), &self.seen).await
    }

    /// Returns the difference before an action that follows others in its call.
    async fn later_difference(&self, computer: &Arc<dyn Computer>) -> Result<Option<String>, ComputerError> {
        if self.is_unseen() {
            return Ok(Some(
                "nobody has seen the element that it would hit, because what the call does before determines it; send \
                 it in a call of its own"
                    .to_owned(),
            ));
        }
        let now = computer.describe_target(Self::place(&self.expected)).await?;
        let difference = self.seen.element_difference(&now);
        if difference.is_some() || !matches!(self.expected, ExpectedTarget::FocusAfterClick(_)) {
            return Ok(difference);
        }
        let focus = computer.describe_target(TargetPlace::Focus).await?;
        let difference = self.seen.document_difference(&focus);
        Ok(difference.map(|difference| format!("the keys would go to {focus}: {difference}")))
    }
}

/// Number of times that a place is described until its content is as it was seen.
const MAX_SAMPLES: u32 = 5;
/// Time between two samples. A caret blinks about once in a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(230);

/// Returns the difference between an element and what is at its place now. A difference of the content alone is looked
/// at several times, because a caret blinks.
async fn find_difference(
    computer: &Arc<dyn Computer>,
    place: &TargetPlace,
    seen: &ScreenTarget,
) -> Result<Option<String>, ComputerError> {
    let mut sample = 1;
    loop {
        let now = computer.describe_target(place.clone()).await?;
        let difference = seen.difference(&now);
        let differs_elsewhere =
            seen.element_difference(&now).is_some() || seen.surroundings != now.surroundings;
        if difference.is_none() || differs_elsewhere || sample == MAX_SAMPLES {
            return Ok(difference);
        }
        sample += 1;
        tokio::time::sleep(SAMPLE_INTERVAL).await;
    }
}

impl ScreenEvidence {
    /// Records the elements that the actions would hit now.
    pub(crate) async fn record(
        computer: &Arc<dyn Computer>,
        actions: &[ComputerAction],
    ) -> Result<Self, ComputerError> {
        let page = computer.describe_target(TargetPlace::Page).await?;
        let mut targets = Vec::with_capacity(actions.len());
        for expected in expected_targets(actions) {
            let mut seen_targets = Vec::with_capacity(expected.len());
            for expected in expected {
                let seen = match SeenTarget::place(&expected) {
                    TargetPlace::Page => page.clone(),
                    place => computer.describe_target(place).await?,
                };
                seen_targets.push(SeenTarget { expected, seen });
            }
            targets.push(seen_targets);
        }
        Ok(Self { page, targets, screenshot: None })
    }

    /// Returns the element that an action would have hit: the first one for a drag.
    pub(crate) fn target(&self, index: usize) -> Option<&ScreenTarget> {
        self.targets.get(index)?.first()?.known_target()
    }

    /// Returns the element that a drag would have ended on.
    pub(crate) fn drop_target(&self, index: usize) -> Option<&ScreenTarget> {
        self.targets.get(index)?.get(1)?.known_target()
    }

    pub(crate) fn picture_digest(&self) -> Option<Digest> {
        self.screenshot.as_ref().map(Screenshot::digest)
    }

    /// Returns true if the screen is still as it was recorded, by the comparison that is made before the first action.
    pub(crate) async fn is_at_rest(&self, computer: &Arc<dyn Computer>) -> Result<bool, ComputerError> {
        let page = find_difference(computer, &TargetPlace::Page, &self.page).await?;
        Ok(page.is_none() && self.difference(computer).await?.is_none())
    }

    /// Returns the difference between the evidence and the screen before the first action; `None` if they
    /// match.
    pub(crate) async fn difference(
        &self,
        computer: &Arc<dyn Computer>,
    ) -> Result<Option<String>, ComputerError> {
        for target in self.targets.iter().flatten() {
            if let Some(difference) = target.difference(computer).await? {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    /// Returns the difference between the element that one action was judged for and the one that it would hit
    /// now; `None` if they match. The first action must find everything as it was; the later ones find what
    /// the earlier ones changed around their element.
    pub(crate) async fn action_difference(
        &self,
        computer: &Arc<dyn Computer>,
        index: usize,
    ) -> Result<Option<String>, ComputerError> {
        for target in self.targets.get(index).into_iter().flatten() {
            let difference = match index {
                0 if !target.is_unseen() => target.difference(computer).await?,
                _ => target.later_difference(computer).await?,
            };
            if difference.is_some() {
                return Ok(difference);
            }
        }
        Ok(None)
    }

    /// Returns the evidence in the form that an approver is shown, without its picture.
    pub(crate) fn to_call_evidence(&self, actions: &[ComputerAction], lifetime: &str) -> CallEvidence {
        let mut lines = Vec::new();
        if let Some(address) = &self.page.address {
            lines.push(format!("The page is {address}."));
        }
        for (index, action) in actions.iter().enumerate() {
            let is_unseen = self.targets.get(index).is_some_and(|all| all.iter().any(SeenTarget::is_unseen));
            let known = |target: Option<&ScreenTarget>| {
                target.filter(|target| !target.is_unknown()).map(ScreenTarget::to_string)
            };
            lines.push(match (known(self.target(index)), known(self.drop_target(index))) {
                _ if is_unseen => format!(
                    "{action}: not done in this call, because what is done before determines which element it hits"
                ),
                (Some(target), Some(end)) => format!("{action}: {target}, dropped on {end}"),
                (Some(target), None) => format!("{action}: {target}"),
                (None, _) => action.to_string(),
            });
        }
        if let Some(digest) = self.picture_digest() {
            lines.push(format!("The picture has the digest {digest}."));
        }
        lines.push(lifetime.to_owned());
        let details = json!({
            "address": self.page.address,
            "picture": self.picture_digest().map(|digest| digest.to_string()),
            "targets": (0..self.targets.len()).map(|index| self.target(index)).collect::<Vec<_>>(),
            "drop_targets": (0..self.targets.len()).map(|index| self.drop_target(index)).collect::<Vec<_>>(),
        });
        CallEvidence::new(lines.join("\n")).with_details(details)
    }
}
