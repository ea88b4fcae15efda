//! Compaction of the history: before a request that comes close to the context window, and after one that exceeded it.

use std::sync::Arc;

use futures_util::FutureExt;
use windlass_core::{
    item::Item,
    journal::{CompactionReason, FilteredInput, HistoryCompacted, JournalEntry, ModelRequestFailed},
    usage::Usage,
};

use super::{
    ContextGauge, ModelSummary, ShrinkLimits, ShrunkHistory, estimate_item, estimate_summary, estimate_text,
    removal_note, shrink_history, summarise, summary_item,
};
use crate::error::truncate_message;
use crate::model::{ModelError, ToolDefinition};
use crate::run::{
    DriveError, ModelRequestParts, ModelRequester, ReservedRequest, SummaryReservation, call_unless_stopped,
    jitter_fraction, known_usage,
};

/// Bytes of a transcript for each token of the summarising model's window, of which a part stays free.
const TRANSCRIPT_BYTES_PER_TOKEN: u64 = 2;
/// Longest transcript for a summarising model, if no window is known.
const DEFAULT_TRANSCRIPT_BYTES: u64 = 64 * 1024;
/// Share of the window that a summary may take.
const SUMMARY_SHARE: u64 = 10;

/// A compaction that is not recorded.
struct PlannedCompaction {
    entry: JournalEntry,
    /// The reservation of the summary, which ends when the entry is recorded.
    reserved: Option<ReservedRequest>,
}

/// The message that stands for removed items.
struct RemovedDescription {
    note: Arc<Item>,
    /// Usage of the summarising model; `None` if it was not asked.
    usage: Option<Usage>,
    reserved: Option<ReservedRequest>,
}

/// The size of the next request.
struct RequestSize {
    /// Estimate of the instructions and the tools.
    fixed: u64,
    /// Estimate of the history.
    history: u64,
}

impl RequestSize {
    fn total(&self) -> u64 {
        self.fixed.saturating_add(self.history)
    }
}

impl<C: Send + Sync + 'static> ModelRequester<'_, C> {
    /// Compacts the history if the next request would come close to the context window. Returns the estimate of the
    /// request, if the window is known.
    pub(crate) async fn compact_near_window(
        &self,
        question: &ModelRequestParts,
        gauge: &ContextGauge,
    ) -> Result<Option<u64>, DriveError> {
        let policy = &self.config.context_policy;
        if !policy.is_enabled() {
            return Ok(None);
        }
        let Some(window) = self.context_window(question) else { return Ok(None) };
        let size = self.measure_request(question);
        let limit = policy.upper_limit(window, question.model.max_output_tokens(&question.settings));
        if gauge.tokens_of(size.total()) <= limit || self.is_stored_by_provider(question) {
            return Ok(Some(size.total()));
        }
        let reason = CompactionReason::NearContextWindow;
        let target = policy.target(window).min(limit);
        let planned = self.plan_compaction(question, (reason, *gauge, None), &size, target).boxed().await?;
        if let Some(PlannedCompaction { entry, reserved: _reserved }) = planned {
            self.scope.record_entry(entry).await?;
        }
        Ok(Some(self.measure_request(question).total()))
    }

    /// Compacts the history after the provider refused a request as too long. Returns false if nothing can be removed.
    pub(crate) async fn compact_after_overflow(
        &self,
        question: &ModelRequestParts,
        error: &ModelError,
        gauge: &mut ContextGauge,
    ) -> Result<bool, DriveError> {
        let policy = &self.config.context_policy;
        if !policy.is_enabled() || self.is_stored_by_provider(question) {
            return Ok(false);
        }
        let size = self.measure_request(question);
        if let Some(counted) = gauge.take_unestimated() {
            gauge.estimate_later(counted, size.fixed + self.estimate_history(counted.history_len));
        }
        let known = self.context_window(question);
        // Without a count, the estimate may be wrong as well as the window that is known.
        let is_measured = known.is_none() || gauge.is_calibrated();
        let shown = is_measured.then(|| gauge.tokens_of(size.total()));
        let learned =
            error.context_window().or(shown).map(|shown| known.map_or(shown, |known| known.min(shown)));
        let window = learned.or(known);
        gauge.observe_overflow(size.total(), window);
        let sent = gauge.tokens_of(size.total());
        let target = window.map_or(sent / 2, |window| policy.target(window)).min(sent / 2);
        let reason = CompactionReason::ContextLengthExceeded;
        let planned =
            self.plan_compaction(question, (reason, *gauge, learned), &size, target).boxed().await?;
        let Some(PlannedCompaction { entry, reserved: _reserved }) = planned else { return Ok(false) };
        let failed = ModelRequestFailed {
            agent: self.agent.name().clone(),
            error: truncate_message(error.to_string()),
            retry_after_ms: Some(0),
            requested: question.requested_model(),
            usage: error.usage().copied(),
            active_ms: 0,
        };
        self.scope.record_entry(JournalEntry::ModelRequestFailed(failed)).await?;
        self.scope.record_entry(entry).await?;
        Ok(true)
    }

    /// Returns a compaction that aims for `target` tokens, or `None` if nothing can be removed.
    async fn plan_compaction(
        &self,
        question: &ModelRequestParts,
        (reason, gauge, learned_window): (CompactionReason, ContextGauge, Option<u64>),
        size: &RequestSize,
        target: u64,
    ) -> Result<Option<PlannedCompaction>, DriveError> {
        let policy = &self.config.context_policy;
        let (history, input) = self.scope.with_run(|run| (run.shared_history(), run.input().to_vec()));
        let input = find_input(&history, &input);
        let loaders = self.scope.with_run(|run| self.tools.earlier_loader_calls(run));
        let has_summariser = policy.summariser().is_some();
        let shrunk = shrink_history(
            &history,
            &ShrinkLimits {
                keep_newest: policy.newest_kept(),
                note_estimate: if has_summariser {
                    target / SUMMARY_SHARE
                } else {
                    estimate_item(&removal_note())
                },
                fits: &|estimate| gauge.tokens_of(size.fixed.saturating_add(estimate)) <= target,
                is_pinned: &|item: &Arc<Item>| {
                    policy.is_pinned(item)
                        || input.iter().any(|own| Arc::ptr_eq(own, item))
                        // A recovered run reads from them which tools an earlier run of the session has loaded.
                        || loaders.iter().any(|loader| Arc::ptr_eq(loader, item))
                },
            },
        );
        if shrunk.estimate >= size.history {
            return Ok(None);
        }
        let ShrunkHistory { mut items, removed, removed_at, mut estimate } = shrunk;
        let (mut summary_usage, mut reserved) = (None, None);
        if !removed.is_empty() {
            let RemovedDescription { note, usage, reserved: of_summary } =
                self.describe_removed(question, &removed, target).await?;
            estimate = estimate.saturating_add(estimate_item(&note));
            items.insert(removed_at.min(items.len()), note);
            (summary_usage, reserved) = (usage, of_summary);
        }
        let entry = JournalEntry::HistoryCompacted(HistoryCompacted {
            agent: self.agent.name().clone(),
            reason,
            history: FilteredInput::from_items(&history, &items),
            tokens_before: gauge.tokens_of(size.total()),
            tokens_after: gauge.tokens_of(size.fixed.saturating_add(estimate)),
            summary_usage,
            learned_window,
        });
        Ok(Some(PlannedCompaction { entry, reserved }))
    }

    /// Returns the message that stands for removed items: a summary if a model can make one within the budgets, else a note.
    async fn describe_removed(
        &self,
        question: &ModelRequestParts,
        removed: &[Arc<Item>],
        target: u64,
    ) -> Result<RemovedDescription, DriveError> {
        let policy = &self.config.context_policy;
        let without_summary = || RemovedDescription { note: removal_note(), usage: None, reserved: None };
        let Some(summariser) = policy.summariser() else { return Ok(without_summary()) };
        let window = policy.window_of_model(summariser).or_else(|| self.context_window(question));
        let bytes = window
            .map_or(DEFAULT_TRANSCRIPT_BYTES, |tokens| tokens.saturating_mul(TRANSCRIPT_BYTES_PER_TOKEN));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (input, output) = (estimate_summary(removed, bytes), target / SUMMARY_SHARE);
        let reserved = match self.reserve_summary(summariser, input, output).await? {
            SummaryReservation::NotNeeded => None,
            SummaryReservation::Reserved(reserved) => Some(reserved),
            SummaryReservation::Refused => return Ok(without_summary()),
        };
        let mut failed_usage: Option<Usage> = None;
        let mut attempts = 1;
        let (note, mut usage) = loop {
            let asking = summarise(summariser, removed, bytes);
            let error = match call_unless_stopped(&self.scope.stop, asking).await? {
                Ok(ModelSummary { text, mut usage, model }) => {
                    self.budget.note_summariser(model.as_deref());
                    self.config.prices.complete_usage(&mut usage, model.as_deref());
                    break (summary_item(&shorten_summary(text, target), removed), usage);
                }
                Err(error) => error,
            };
            let usage = known_usage(&error).unwrap_or_else(Usage::of_unknown_request);
            let chance = jitter_fraction(self.scope.run_id.as_str(), self.turn, attempts);
            let delay = self.config.model_retry.delay_after(attempts, error.retry_advice(), chance);
            // A reservation covers one request.
            let Some(delay) = delay.filter(|_| reserved.is_none()) else {
                let message = format!("the removed part of the history has no summary: {error}");
                self.scope.emit_warning(truncate_message(message)).await;
                break (removal_note(), usage);
            };
            failed_usage.get_or_insert_default().add(&usage);
            attempts += 1;
            self.scope.unless_stopped(tokio::time::sleep(delay)).await?;
        };
        if let Some(failed) = &failed_usage {
            usage.add(failed);
        }
        Ok(RemovedDescription { note, usage: Some(usage), reserved })
    }

    /// Returns the window of the request's model: the smaller one of that which is known and of that which refused requests
    /// have shown.
    fn context_window(&self, question: &ModelRequestParts) -> Option<u64> {
        let known = self.config.context_policy.window_for(&question.model);
        let learned = self.scope.with_run(|run| run.learned_window());
        known.into_iter().chain(learned).min()
    }

    /// True if the provider stores the conversation, so that a shorter history changes nothing there.
    fn is_stored_by_provider(&self, question: &ModelRequestParts) -> bool {
        question.settings.conversation.is_some()
            || question.settings.previous_response_id.is_some()
            || self.scope.with_run(|run| {
                run.previous_response_id().is_some()
                    || question.model.has_stored_conversation(run.last_response_id())
            })
    }

    /// Estimates the tokens of the next request.
    pub(crate) fn estimate_request(&self, question: &ModelRequestParts) -> u64 {
        self.measure_request(question).total()
    }

    /// Estimates the next request.
    fn measure_request(&self, question: &ModelRequestParts) -> RequestSize {
        let definitions = self.offered.iter().chain(&self.tools.handoff_definitions);
        let fixed = question.instructions.as_deref().map_or(0, estimate_text)
            + definitions.map(estimate_definition).sum::<u64>();
        RequestSize { fixed, history: self.estimate_history(usize::MAX) }
    }

    /// Estimates the oldest items of the history.
    fn estimate_history(&self, items: usize) -> u64 {
        self.scope.with_run(|run| run.history().iter().take(items).map(|item| estimate_item(item)).sum())
    }
}

/// Returns the items of the history that are the input of the run. A run that was opened from a snapshot has copies of
/// them: then the newest item that is equal stands for each.
fn find_input<'h>(history: &'h [Arc<Item>], input: &[Arc<Item>]) -> Vec<&'h Arc<Item>> {
    let mut found: Vec<&Arc<Item>> = Vec::with_capacity(input.len());
    for given in input.iter().rev() {
        let is_free = |item: &Arc<Item>| !found.iter().any(|known| Arc::ptr_eq(known, item));
        let own = history.iter().rfind(|item| Arc::ptr_eq(given, item));
        found.extend(own.or_else(|| history.iter().rfind(|item| *item == given && is_free(item))));
    }
    found
}

fn estimate_definition(tool: &ToolDefinition) -> u64 {
    let schema = tool.parameters.to_string();
    estimate_text(&tool.name) + estimate_text(&tool.description) + estimate_text(&schema)
}

/// Shortens a summary that exceeds its share of the window.
fn shorten_summary(mut text: String, target: u64) -> String {
    let longest = usize::try_from(target / SUMMARY_SHARE * 2).unwrap_or(usize::MAX);
    if text.len() > longest {
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
