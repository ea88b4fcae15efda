//! The judgement of a call before it runs: limits, safety checks, the reviewer, and the evidence that an
//! approval is bound to. A call is judged once; before it runs, the screen must still match the evidence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use windlass::core::id::{CallPath, RunId};
use windlass::core::item::{ContentPart, OutputContent};
use windlass::error::StoreError;
use windlass::tool::{CallEvidence, ToolContext};

use crate::action::{ComputerAction, SafetyCheck};
use crate::action_executor::{ActionOutcome, execute_action};
use crate::computer::ComputerError;
use crate::evidence::ScreenEvidence;
use crate::provider::PausePolicy;
use crate::registry::{ComputerRegistry, RunComputer};
use crate::safety::{ActionVerdict, ProposedAction, SafetyCheckDecision, off_screen_reason};

/// Maximum number of judged calls that are remembered.
const MAX_JUDGED_CALLS: usize = 4096;
/// Maximum number of times that a screen is described until its picture shows what was described.
const MAX_RECORDINGS: usize = 4;

/// The binding of a call to the screen that it was judged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScreenBinding {
    /// Nobody was shown the screen.
    Unbound,
    /// A person or a reviewer decided by what they saw.
    Bound,
}

/// A call that was judged in this process.
#[derive(Clone)]
pub(crate) struct JudgedCall {
    binding: ScreenBinding,
    /// Reason why the call does not run.
    refusal: Option<String>,
    /// The computer that the evidence is about.
    seat: Option<Arc<RunComputer>>,
    evidence: Option<Arc<ScreenEvidence>>,
}

impl JudgedCall {
    fn refused(why: String) -> Self {
        Self { binding: ScreenBinding::Unbound, refusal: Some(why), seat: None, evidence: None }
    }

    /// Returns the evidence that the actions must match; `None` if nobody decided by it.
    pub(crate) fn binding_evidence(&self) -> Option<&Arc<ScreenEvidence>> {
        self.evidence.as_ref().filter(|_| self.binding == ScreenBinding::Bound)
    }
}

/// The calls that were judged in this process and have not run yet.
#[derive(Default)]
pub(crate) struct JudgedCalls(Mutex<VecDeque<(RunId, CallPath, JudgedCall)>>);

impl JudgedCalls {
    fn insert(&self, run: &RunId, call: &CallPath, judged: JudgedCall) {
        let mut calls = self.lock();
        calls.retain(|(known, path, _)| known != run || path != call);
        calls.push_back((run.clone(), call.clone(), judged));
        if calls.len() > MAX_JUDGED_CALLS {
            calls.pop_front();
        }
    }

    pub(crate) fn find(&self, run: &RunId, call: &CallPath) -> Option<JudgedCall> {
        let calls = self.lock();
        calls
            .iter()
            .rev()
            .find(|(known, path, _)| known == run && path == call)
            .map(|(.., found)| found.clone())
    }

    pub(crate) fn take(&self, run: &RunId, call: &CallPath) -> Option<JudgedCall> {
        let mut calls = self.lock();
        let at = calls.iter().rposition(|(known, path, _)| known == run && path == call)?;
        calls.remove(at).map(|(.., judged)| judged)
    }

    /// Drops everything that the calls of a run hold about a computer that was disposed of: the computer and its pictures.
    /// The calls stay, and are refused if they are approved later.
    pub(crate) fn forget_computer(&self, run: &RunId, seat: &Arc<RunComputer>) {
        for (_, _, judged) in self.lock().iter_mut().filter(|(known, ..)| known == run) {
            if judged.seat.as_ref().is_some_and(|known| Arc::ptr_eq(known, seat)) {
                (judged.seat, judged.evidence) = (None, None);
            }
        }
    }

    pub(crate) fn forget_run(&self, run: &RunId) {
        self.lock().retain(|(known, ..)| known != run);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(RunId, CallPath, JudgedCall)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ComputerRegistry {
    /// Judges a call and returns true if a person must decide about it. The safety-check handler and the
    /// reviewer are asked here and nowhere else.
    pub(crate) async fn judge_call<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
        checks: &[SafetyCheck],
    ) -> bool {
        let (judged, asks) = self.find_verdict(ctx, actions, checks).await;
        self.judged_calls.insert(ctx.run_context().run_id(), ctx.call_path(), judged);
        asks
    }

    async fn find_verdict<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
        checks: &[SafetyCheck],
    ) -> (JudgedCall, bool) {
        match self.limit_reason(ctx, actions).await {
            Ok(None) => {}
            Ok(Some(why)) => return (JudgedCall::refused(why), false),
            Err(error) => return (JudgedCall::refused(format!("The store failed: {error}")), false),
        }
        let has_reviewer = self.settings.safety.has_reviewer();
        let mut judged =
            JudgedCall { binding: ScreenBinding::Unbound, refusal: None, seat: None, evidence: None };
        let acts = actions.iter().any(|action| !action.is_read_only());
        if (acts || has_reviewer)
            && let Ok(seat) = self.acquire(ctx).await
        {
            // A screen that cannot be described now is described as unknown, and the call is refused if it
            // waits for a decision.
            let evidence = match has_reviewer {
                true => self.record_with_picture(&seat, actions).await,
                false => self.record_screen(&seat, actions).await,
            };
            judged.evidence = evidence.map(Arc::new);
            judged.seat = Some(seat);
        }
        let mut asks = match self.settings.safety.decide_safety_checks(checks).await {
            SafetyCheckDecision::Acknowledged => false,
            SafetyCheckDecision::AskPerson => true,
            SafetyCheckDecision::Refused(why) => {
                judged.refusal = Some(format!(
                    "A safety check was not acknowledged: {why}. Nothing of this call was done."
                ));
                return (judged, false);
            }
        };
        if has_reviewer {
            judged.binding = ScreenBinding::Bound;
            match self.review_call(ctx, actions, judged.evidence.as_deref()).await {
                ActionVerdict::Allow => {}
                ActionVerdict::AskPerson => asks = true,
                ActionVerdict::Refuse(why) => {
                    judged.refusal = Some(why);
                    return (judged, false);
                }
            }
        }
        (judged, asks)
    }

    /// Asks the reviewer about every action and returns the strictest verdict.
    async fn review_call<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
        evidence: Option<&ScreenEvidence>,
    ) -> ActionVerdict {
        let Ok((taken, last_minute)) = self.action_counts(ctx).await else {
            return ActionVerdict::Refuse("The store failed. Nothing of this call was done.".to_owned());
        };
        let mut strictest = ActionVerdict::Allow;
        for (place, action) in actions.iter().enumerate() {
            let proposed = ProposedAction {
                action: action.clone(),
                index: place,
                call_len: actions.len(),
                display: self.settings.source.display(),
                address: evidence.and_then(|evidence| evidence.page.address.clone()),
                target: evidence.and_then(|evidence| evidence.target(place).cloned()),
                drop_target: evidence.and_then(|evidence| evidence.drop_target(place).cloned()),
                screenshot: evidence.and_then(|evidence| evidence.screenshot.clone()),
                picture_digest: evidence.and_then(ScreenEvidence::picture_digest),
                actions_taken: taken,
                actions_last_minute: last_minute,
                run_id: ctx.run_context().run_id().clone(),
                agent: ctx.agent().clone(),
            };
            match self.settings.safety.review_action(proposed).await {
                ActionVerdict::Allow => {}
                ActionVerdict::AskPerson => strictest = ActionVerdict::AskPerson,
                ActionVerdict::Refuse(why) => {
                    return ActionVerdict::Refuse(format!(
                        "The {} was refused: {why}. Nothing of this call was done.",
                        action.kind()
                    ));
                }
            }
        }
        strictest
    }

    /// Returns true if a call was judged and does not run, whoever approves it.
    pub(crate) fn is_refused<C: Send + Sync + 'static>(&self, ctx: &ToolContext<C>) -> bool {
        let judged = self.judged_calls.find(ctx.run_context().run_id(), ctx.call_path());
        judged.is_some_and(|judged| judged.refusal.is_some())
    }

    /// Describes the screen; `None` if it cannot be described in time.
    async fn record_screen(&self, seat: &RunComputer, actions: &[ComputerAction]) -> Option<ScreenEvidence> {
        let recording = ScreenEvidence::record(&seat.computer, actions);
        tokio::time::timeout(self.settings.action_timeout, recording).await.ok()?.ok()
    }

    /// Describes the screen and takes the picture of what was described; `None` if the screen does not come to rest.
    async fn record_with_picture(
        &self,
        seat: &RunComputer,
        actions: &[ComputerAction],
    ) -> Option<ScreenEvidence> {
        for _ in 0..MAX_RECORDINGS {
            let mut evidence = self.record_screen(seat, actions).await?;
            evidence.screenshot = self.take_screenshot(seat).await;
            // The screen may have changed between the description and the picture.
            let compare = evidence.is_at_rest(&seat.computer);
            if tokio::time::timeout(self.settings.action_timeout, compare).await.ok()?.ok()? {
                return Some(evidence);
            }
        }
        None
    }

    /// Binds a call that waits for approval to the screen, and saves the evidence for the approver: the picture, and
    /// what the actions would hit. A call that no rule of this tool judged is judged here.
    pub(crate) async fn show_evidence<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
        checks: &[SafetyCheck],
    ) {
        let (run, call) = (ctx.run_context().run_id(), ctx.call_path());
        let mut judged = match self.judged_calls.find(run, call) {
            Some(judged) => judged,
            None => self.find_verdict(ctx, actions, checks).await.0,
        };
        judged.binding = ScreenBinding::Bound;
        self.judged_calls.insert(run, call, judged.clone());
        if judged.seat.is_none() && judged.refusal.is_none() {
            judged.seat = self.acquire(ctx).await.ok();
        }
        // A reviewer decided by a picture already, and the person sees the same.
        let has_picture = judged.evidence.as_ref().is_some_and(|evidence| evidence.screenshot.is_some());
        if let (Some(seat), false) = (&judged.seat, has_picture) {
            judged.evidence = self.record_with_picture(seat, actions).await.map(Arc::new);
        }
        let evidence = judged.evidence.as_deref();
        let mut shown = match evidence {
            Some(evidence) => evidence.to_call_evidence(actions, &self.lifetime_sentence()),
            None => CallEvidence::new(
                "The screen could not be described, or did not come to rest. An action is refused also if it is approved.",
            ),
        };
        if let Some(why) = &judged.refusal {
            shown.summary = format!("This call is refused also if it is approved. {why}\n{}", shown.summary);
        }
        shown.summary = self.settings.secrets.redact(shown.summary);
        let details = self.settings.secrets.redact(shown.details.to_string());
        shown.details = serde_json::from_str(&details).unwrap_or_default();
        if let Some(picture) = evidence.and_then(|evidence| evidence.screenshot.as_ref())
            && let Ok(media) = ctx.save_media("image/png", picture.as_base64()).await
        {
            shown.picture = Some(media);
        }
        if let Err(error) = ctx.save_evidence(&shown).await {
            tracing::warn!(%error, "the evidence of a call could not be saved");
        }
        self.judged_calls.insert(run, call, judged);
    }

    /// Tells the approver for how long the decision can be carried out.
    fn lifetime_sentence(&self) -> String {
        const OTHERWISE: &str = "Afterwards, and in another process, the approved call is not carried out: the \
                                 model is shown the screen instead.";
        match self.settings.pause_policy {
            PausePolicy::KeepFor(lasting) => format!(
                "The computer is kept for {} seconds while the run waits. {OTHERWISE}",
                lasting.as_secs()
            ),
            PausePolicy::Dispose => format!("The computer is not kept when the run pauses. {OTHERWISE}"),
        }
    }

    /// Returns the output of a call that may not run; `None` if it may. Nothing of the call has run by then.
    pub(crate) async fn refusal_output<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
    ) -> Result<Option<OutputContent>, StoreError> {
        let why = match self.limit_reason(ctx, actions).await? {
            Some(why) => Some(why),
            None => self.changed_screen_reason(ctx, actions).await,
        };
        match why {
            Some(why) => Ok(Some(self.refusal_with_screen(ctx, &why).await)),
            None => Ok(None),
        }
    }

    /// Returns the reason why the judgement of a call does not hold any more; `None` if it does.
    async fn changed_screen_reason<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
    ) -> Option<String> {
        let acts = actions.iter().any(|action| !action.is_read_only());
        let (run, call) = (ctx.run_context().run_id(), ctx.call_path());
        let Some(judged) = self.judged_calls.find(run, call) else {
            return acts.then(|| {
                "This call was approved for the screen of another process, which is not there any more. Nothing of \
                 it was done. This is the screen now."
                    .to_owned()
            });
        };
        if judged.refusal.is_some() {
            return judged.refusal;
        }
        if !acts {
            return None;
        }
        // A computer that cannot be created is reported by the body.
        let seat = self.acquire(ctx).await.ok()?;
        if seat.is_unseen_replacement() {
            return Some("The computer was replaced by a new one. Nothing of this call was done.".to_owned());
        }
        if judged.seat.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &seat)) {
            return Some(
                "The computer that this call was meant for is gone. Nothing of it was done. This is the screen of \
                 the new one."
                    .to_owned(),
            );
        }
        if judged.binding == ScreenBinding::Bound && judged.evidence.is_none() {
            return Some(
                "The screen could not be described when this call was decided, so nothing of it was done. This is \
                 the screen now."
                    .to_owned(),
            );
        }
        let evidence = judged.binding_evidence()?;
        let compared =
            tokio::time::timeout(self.settings.action_timeout, evidence.difference(&seat.computer)).await;
        let difference = match compared {
            Ok(Ok(difference)) => difference?,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the screen did not answer".to_owned(),
        };
        Some(format!(
            "The screen is not the one that this call was decided for: {difference}. Nothing of it was done. This \
             is the screen now."
        ))
    }

    /// Builds the output of a refused call: the reason and the screen.
    pub(crate) async fn refusal_with_screen<C: Send + Sync + 'static>(
        self: &Arc<Self>,
        ctx: &ToolContext<C>,
        why: &str,
    ) -> OutputContent {
        let mut lines = vec![why.to_owned()];
        let Ok(seat) = self.acquire(ctx).await else { return OutputContent::Text(why.to_owned()) };
        let picture = match self.take_screenshot(&seat).await {
            Some(screenshot) => {
                seat.set_last_screenshot(&screenshot);
                Some(screenshot)
            }
            None => seat.last_screenshot(),
        };
        lines.extend(seat.take_notices());
        let text = self.settings.secrets.redact(lines.join("\n"));
        let Some(picture) = picture else { return OutputContent::Text(text) };
        match ctx.save_media("image/png", picture.as_base64()).await {
            Ok(media) => OutputContent::Parts(vec![ContentPart::text(text), ContentPart::Image(media)]),
            Err(_) => OutputContent::Text(text),
        }
    }

    pub(crate) async fn take_screenshot(&self, seat: &RunComputer) -> Option<crate::computer::Screenshot> {
        let taken =
            execute_action(&seat.computer, &ComputerAction::Screenshot, self.settings.action_timeout).await;
        match taken {
            Ok(ActionOutcome::Screenshot(screenshot)) => Some(screenshot),
            Err(ComputerError::Unresponsive { last_screenshot, .. }) => last_screenshot,
            _ => None,
        }
    }

    /// Returns the reason why a call is outside of the screen or of its limits; `None` if it is not.
    async fn limit_reason<C: Send + Sync + 'static>(
        &self,
        ctx: &ToolContext<C>,
        actions: &[ComputerAction],
    ) -> Result<Option<String>, StoreError> {
        let display = self.settings.source.display();
        for (place, action) in actions.iter().enumerate() {
            if let Some(why) = off_screen_reason(action, &display) {
                return Ok(Some(format!("`actions[{place}]` cannot be done: {why}.")));
            }
            if let Some(why) = self.settings.secrets.unknown_secret_reason(action) {
                return Ok(Some(format!(
                    "`actions[{place}]` cannot be done: {why}. Nothing of this call was done."
                )));
            }
        }
        let waits: Duration = actions.iter().map(ComputerAction::requested_duration).sum();
        if waits > self.settings.max_call_wait {
            return Ok(Some(format!(
                "The actions of one call may wait for {} seconds together, and these wait for {}; nothing of this \
                 call was done.",
                self.settings.max_call_wait.as_secs(),
                waits.as_secs()
            )));
        }
        let acting = actions.iter().filter(|action| !action.is_read_only()).count() as u64;
        let (taken, last_minute) = self.action_counts(ctx).await?;
        let safety = &self.settings.safety;
        if let Some(limit) = safety.max_actions.filter(|limit| acting > 0 && taken + acting > *limit) {
            return Ok(Some(format!(
                "This run may take {limit} actions and has taken {taken}; nothing of this call was done."
            )));
        }
        let fast = |most: &usize| acting > 0 && last_minute as u64 + acting > *most as u64;
        if let Some(most) = safety.max_actions_per_minute.filter(fast) {
            return Ok(Some(format!(
                "This run may take {most} actions in a minute and has taken {last_minute} in the last; nothing of this \
                 call was done. Wait, and try again."
            )));
        }
        Ok(None)
    }
}
