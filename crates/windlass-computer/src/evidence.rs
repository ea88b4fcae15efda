//! The evidence of a call: the screen, the address and the elements that its actions would hit. An approval
//! and a reviewer's verdict hold only while the screen still matches it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::core::canonical::Digest;
use windlass::tool::CallEvidence;

use crate::action::ComputerAction;
use crate::computer::{Computer, ComputerError, Screenshot};
use crate::target::{ScreenTarget, TargetPlace, target_places};

/// The screen as it was when a call was judged.
#[derive(Clone, Debug)]
pub(crate) struct ScreenEvidence {
    /// The page as a whole.
    pub(crate) page: ScreenTarget,
    /// The place and the element of each action, in order.
    pub(crate) targets: Vec<Option<(TargetPlace, ScreenTarget)>>,
    /// The picture that a person or a reviewer is shown.
    pub(crate) screenshot: Option<Screenshot>,
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
        for place in target_places(actions) {
            targets.push(match place {
                None => None,
                Some(TargetPlace::Page) => Some((TargetPlace::Page, page.clone())),
                Some(place) => {
                    let target = computer.describe_target(place.clone()).await?;
                    Some((place, target))
                }
            });
        }
        Ok(Self { page, targets, screenshot: None })
    }

    /// Returns the element that an action would have hit.
    pub(crate) fn target(&self, index: usize) -> Option<&ScreenTarget> {
        self.targets.get(index)?.as_ref().map(|(_, target)| target)
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
        for (place, seen) in self.targets.iter().flatten() {
            if let Some(difference) = find_difference(computer, place, seen).await? {
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
        let Some(Some((place, seen))) = self.targets.get(index) else { return Ok(None) };
        if index == 0 {
            return find_difference(computer, place, seen).await;
        }
        let now = computer.describe_target(place.clone()).await?;
        Ok(seen.element_difference(&now))
    }

    /// Returns the evidence in the form that an approver is shown, without its picture.
    pub(crate) fn to_call_evidence(&self, actions: &[ComputerAction], lifetime: &str) -> CallEvidence {
        let mut lines = Vec::new();
        if let Some(address) = &self.page.address {
            lines.push(format!("The page is {address}."));
        }
        for (action, target) in actions.iter().zip(&self.targets) {
            match target {
                Some((_, target)) if !target.is_unknown() => lines.push(format!("{action}: {target}")),
                _ => lines.push(action.to_string()),
            }
        }
        if let Some(digest) = self.picture_digest() {
            lines.push(format!("The picture has the digest {digest}."));
        }
        lines.push(lifetime.to_owned());
        let details = json!({
            "address": self.page.address,
            "picture": self.picture_digest().map(|digest| digest.to_string()),
            "targets": self.targets.iter().map(|target| target.as_ref().map(|(_, target)| target)).collect::<Vec<_>>(),
        });
        CallEvidence::new(lines.join("\n")).with_details(details)
    }
}
