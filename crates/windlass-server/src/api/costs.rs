//! Costs: tokens and money by run, agent, model and day.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::id::Timestamp;
use windlass::core::usage::Usage;

use super::runs::page_size;
use super::{ApiError, RequestPerson, UrlQuery};
use crate::access::PersonIdentity;
use crate::server::{ServerState, wall_clock_now};
use crate::spending::{SpendingReport, date_of_day, weight};

/// Number of days of a report, unless it is told otherwise.
const DEFAULT_DAYS: u32 = 30;
/// Largest number of days of a report.
const MAX_DAYS: u32 = 3_660;
/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// The time of a report.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostQuery {
    /// Number of days up to today.
    #[schemars(range(min = 1, max = 3660))]
    pub(crate) days: Option<u32>,
    /// Maximum number of runs that the answer names.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// Tokens and money.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct CostSum {
    /// Model requests.
    pub(crate) requests: u64,
    /// Input tokens.
    pub(crate) input_tokens: u64,
    /// Input tokens from a cache.
    pub(crate) cached_tokens: u64,
    /// Output tokens.
    pub(crate) output_tokens: u64,
    /// Output tokens of reasoning.
    pub(crate) reasoning_tokens: u64,
    /// Tokens of audio, input plus output.
    pub(crate) audio_tokens: u64,
    /// Cost in the currency of the price list, of the requests whose cost is known; absent if it is known of none.
    pub(crate) cost: Option<f64>,
    /// Requests whose cost is unknown.
    pub(crate) unpriced_requests: u64,
}

impl From<&Usage> for CostSum {
    fn from(usage: &Usage) -> Self {
        Self {
            requests: usage.requests,
            input_tokens: usage.input_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            audio_tokens: usage.audio_input_tokens.saturating_add(usage.audio_output_tokens),
            cost: (usage.priced_requests > 0).then(|| usage.cost()),
            unpriced_requests: usage.unpriced_requests(),
        }
    }
}

/// The costs of runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CostReport {
    /// Currency of the price list.
    pub(crate) currency: String,
    /// Date of the price list.
    pub(crate) prices_as_of: String,
    /// Source of the price list.
    pub(crate) prices_source: String,
    /// Everything together.
    pub(crate) total: CostSum,
    /// By run: those that have cost most.
    pub(crate) runs: BTreeMap<String, CostSum>,
    /// Number of other runs in the sums, which `runs` leaves out.
    pub(crate) more_runs: u64,
    /// By agent.
    pub(crate) agents: BTreeMap<String, CostSum>,
    /// By model.
    pub(crate) models: BTreeMap<String, CostSum>,
    /// By day, as `2026-11-17`.
    pub(crate) days: BTreeMap<String, CostSum>,
    /// Number of runs that are not counted yet: their journals are read now, and a later report has them.
    pub(crate) unread_runs: u64,
    /// Number of older runs that are left out, because a report has a limited number of runs.
    pub(crate) omitted_runs: u64,
}

pub(super) async fn show_costs(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<CostQuery>,
) -> Result<Json<CostReport>, ApiError> {
    let limit = page_size(asked.limit, 50)? as usize;
    let report = state.cost_report(&person, asked.days).await?;
    let sums = |sums: &BTreeMap<String, Usage>| {
        sums.iter().map(|(name, usage)| (name.clone(), CostSum::from(usage))).collect()
    };
    let prices = &state.prices;
    Ok(Json(CostReport {
        currency: prices.currency.clone(),
        prices_as_of: prices.as_of.clone(),
        prices_source: prices.source.clone(),
        total: CostSum::from(&report.total),
        runs: sums(&costliest_runs(&report.runs, limit)),
        more_runs: report.runs.len().saturating_sub(limit) as u64,
        agents: sums(&report.agents),
        models: sums(&report.models),
        days: report.days.iter().map(|(day, usage)| (date_of_day(*day), usage.into())).collect(),
        unread_runs: report.unread_runs as u64,
        omitted_runs: report.omitted_runs as u64,
    }))
}

/// Returns the runs that have cost most.
fn costliest_runs(runs: &BTreeMap<String, Usage>, limit: usize) -> BTreeMap<String, Usage> {
    let mut runs: Vec<_> = runs.iter().collect();
    runs.sort_by_key(|(_, usage)| Reverse(weight(usage)));
    runs.into_iter().take(limit).map(|(run, usage)| (run.clone(), *usage)).collect()
}

impl ServerState {
    /// Reports the costs of the last days.
    pub(crate) async fn cost_report(
        &self,
        person: &PersonIdentity,
        days: Option<u32>,
    ) -> Result<SpendingReport, ApiError> {
        let days = days.unwrap_or(DEFAULT_DAYS);
        if !(1..=MAX_DAYS).contains(&days) {
            return Err(ApiError::invalid(format!("`days` is from 1 to {MAX_DAYS}")));
        }
        let today = wall_clock_now().0 / DAY_MS;
        let first = today.saturating_sub(u64::from(days) - 1);
        let from = Timestamp(first * DAY_MS);
        Ok(self.spending.report(&self.queue, &self.prices, person, from, &self.stop).await?)
    }
}
