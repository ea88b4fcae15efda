//! Spending: the model requests of stored runs by run, agent, model and day, read from their journals.
//!
//! Invariant: a journal is read once for each length that it has had; the sums of a run are kept with the length. A report
//! waits for a bounded number of journals. The others are read in the background, and are in a later report.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::usage::Usage;
use windlass::error::StoreError;
use windlass::price::PriceList;
use windlass::store::{RunCursor, RunQuery, Store, StoredRun};

use crate::access::{AccessRole, PersonIdentity};
use crate::lock_unpoisoned;
use crate::served_queue::ServedQueue;

/// Number of runs whose sums are kept.
const MAX_KEPT_RUNS: usize = 300_000;
/// Number of journals that one report waits for.
const MAX_READ_RUNS: usize = 1_000;
/// Number of lines that are read at once.
const PAGE_LINES: u32 = 512;
/// Number of runs in a page of the listing.
const PAGE_RUNS: u32 = 500;
/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Name of a model that its provider has not named.
pub(crate) const UNNAMED_MODEL: &str = "unnamed";

/// The spending of one agent with one model on one day of one run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SpendingKey {
    agent: String,
    model: String,
    /// Days since 1970.
    day: u64,
}

/// The sums of one run.
#[derive(Clone, Default)]
struct RunSpending {
    record_count: u64,
    /// Number of records that the run was made with: those of its origin, if it is a fork. They are spending of the
    /// origin.
    copied_records: u64,
    /// In the order of their keys. Most runs have one.
    sums: Vec<(SpendingKey, Usage)>,
}

/// The sums of the runs that were read.
#[derive(Default)]
pub(crate) struct SpendingCache {
    runs: Mutex<HashMap<RunId, Arc<RunSpending>>>,
    /// True while a task reads the journals that no report has waited for.
    is_reading: AtomicBool,
}

/// The spending of many runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpendingReport {
    pub(crate) total: Usage,
    pub(crate) runs: BTreeMap<String, Usage>,
    pub(crate) agents: BTreeMap<String, Usage>,
    pub(crate) models: BTreeMap<String, Usage>,
    /// By days since 1970.
    pub(crate) days: BTreeMap<u64, Usage>,
    /// Number of runs that are not counted yet, because their journals are still to be read.
    pub(crate) unread_runs: usize,
}

#[derive(Deserialize)]
struct SpendingLine {
    at: Timestamp,
    run_started: Option<StartEntry>,
    #[serde(alias = "response_rejected", alias = "model_request_failed")]
    model_responded: Option<SpendingEntry>,
    history_compacted: Option<CompactionEntry>,
}

#[derive(Deserialize)]
struct StartEntry {
    origin: Option<OriginEntry>,
}

#[derive(Deserialize)]
struct OriginEntry {
    seq: u64,
}

#[derive(Deserialize)]
struct SpendingEntry {
    agent: AgentName,
    usage: Option<Usage>,
    model: Option<String>,
}

#[derive(Deserialize)]
struct CompactionEntry {
    agent: AgentName,
    summary_usage: Option<Usage>,
}

impl SpendingLine {
    fn into_sum(self, prices: &PriceList) -> Option<(SpendingKey, Usage)> {
        let (agent, usage, model) = match (self.model_responded, self.history_compacted) {
            (Some(entry), _) => {
                (entry.agent, entry.usage.unwrap_or_else(Usage::of_unknown_request), entry.model)
            }
            (None, Some(entry)) => (entry.agent, entry.summary_usage?, None),
            (None, None) => return None,
        };
        let mut usage = usage;
        prices.complete_usage(&mut usage, model.as_deref());
        let model = model.unwrap_or_else(|| UNNAMED_MODEL.to_owned());
        Some((SpendingKey { agent: agent.as_str().to_owned(), model, day: self.at.0 / DAY_MS }, usage))
    }
}

impl SpendingCache {
    /// Reports the spending of the runs that a person may see and that were changed since a time. Runs whose journals it
    /// does not wait for are counted, and read by a task until `stop`.
    pub(crate) async fn report(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        prices: &Arc<PriceList>,
        person: &PersonIdentity,
        from: Timestamp,
        stop: &CancellationToken,
    ) -> Result<SpendingReport, StoreError> {
        let mut report = SpendingReport::default();
        let mut read = 0;
        let mut query = query_since(from);
        while let Some(page) = next_page(queue, &mut query).await? {
            for stored in page.iter().filter(|stored| person.may(AccessRole::View, &stored.agent)) {
                let known = self.known_run(&stored.run, stored.record_count);
                let spending = match known {
                    Some(known) => known,
                    None if read < MAX_READ_RUNS => {
                        read += 1;
                        self.load_run(queue, prices, &stored.run, stored.record_count).await?
                    }
                    None => {
                        report.unread_runs += 1;
                        continue;
                    }
                };
                report.add_run(stored.run.as_str(), &spending, from.0 / DAY_MS);
            }
        }
        if report.unread_runs > 0 && !self.is_reading.swap(true, Ordering::AcqRel) {
            let (cache, queue, prices, stop) = (self.clone(), queue.clone(), prices.clone(), stop.clone());
            tokio::spawn(async move {
                let read = stop.run_until_cancelled(cache.read_all(&queue, &prices, from)).await;
                if let Some(Err(error)) = read {
                    tracing::warn!(%error, "the costs of runs cannot be read");
                }
                cache.is_reading.store(false, Ordering::Release);
            });
        }
        Ok(report)
    }

    /// Reads the journals of all runs that were changed since a time.
    async fn read_all(
        &self,
        queue: &ServedQueue,
        prices: &PriceList,
        from: Timestamp,
    ) -> Result<(), StoreError> {
        let mut query = query_since(from);
        while let Some(page) = next_page(queue, &mut query).await? {
            for stored in &page {
                self.load_run(queue, prices, &stored.run, stored.record_count).await?;
            }
        }
        Ok(())
    }

    /// Returns the usage of each of a few runs.
    pub(crate) async fn usage_of_runs(
        &self,
        queue: &ServedQueue,
        prices: &PriceList,
        runs: impl Iterator<Item = (RunId, u64)>,
    ) -> Result<Vec<Usage>, StoreError> {
        let mut usages = Vec::new();
        for (run, record_count) in runs {
            let spending = self.load_run(queue, prices, &run, record_count).await?;
            let mut sum = Usage::default();
            spending.sums.iter().for_each(|(_, usage)| sum.add(usage));
            usages.push(sum);
        }
        Ok(usages)
    }

    /// Returns the sums of a run if they are known up to this number of records.
    fn known_run(&self, run: &RunId, record_count: u64) -> Option<Arc<RunSpending>> {
        lock_unpoisoned(&self.runs).get(run).filter(|known| known.record_count >= record_count).cloned()
    }

    async fn load_run(
        &self,
        queue: &ServedQueue,
        prices: &PriceList,
        run: &RunId,
        record_count: u64,
    ) -> Result<Arc<RunSpending>, StoreError> {
        let known = lock_unpoisoned(&self.runs).get(run).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.record_count >= record_count) {
            return Ok(known.clone());
        }
        let mut spending = known.map(|known| RunSpending::clone(&known)).unwrap_or_default();
        loop {
            let lines = queue.load_journal_page(run, spending.record_count, PAGE_LINES).await?;
            for line in &lines {
                if let Ok(line) = serde_json::from_str(&line.body) {
                    spending.add_line(line, prices);
                }
                spending.record_count += 1;
            }
            if lines.len() < PAGE_LINES as usize {
                break;
            }
        }
        let spending = Arc::new(spending);
        let mut runs = lock_unpoisoned(&self.runs);
        if runs.len() >= MAX_KEPT_RUNS {
            runs.clear();
        }
        runs.insert(run.clone(), spending.clone());
        Ok(spending)
    }
}

impl RunSpending {
    /// Adds the line that follows those that were read.
    fn add_line(&mut self, line: SpendingLine, prices: &PriceList) {
        let seq = self.record_count;
        let origin = line.run_started.as_ref().and_then(|started| started.origin.as_ref());
        if let Some(origin) = origin.filter(|_| seq == 0) {
            self.copied_records = origin.seq.saturating_add(1);
        }
        if let Some((key, usage)) = line.into_sum(prices).filter(|_| seq >= self.copied_records) {
            self.add(key, &usage);
        }
    }

    fn add(&mut self, key: SpendingKey, usage: &Usage) {
        match self.sums.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(place) => self.sums[place].1.add(usage),
            Err(place) => self.sums.insert(place, (key, *usage)),
        }
    }
}

fn query_since(from: Timestamp) -> RunQuery {
    RunQuery { updated_from: Some(from), limit: PAGE_RUNS, ..RunQuery::default() }
}

/// Returns the next page of runs, and moves the query behind it; `None` after the last run.
async fn next_page(queue: &ServedQueue, query: &mut RunQuery) -> Result<Option<Vec<StoredRun>>, StoreError> {
    let page = queue.list_runs(query).await?;
    let Some(last) = page.last() else { return Ok(None) };
    query.after = Some(RunCursor::from(last));
    Ok(Some(page))
}

impl SpendingReport {
    fn add_run(&mut self, run: &str, spending: &RunSpending, first_day: u64) {
        for (key, usage) in spending.sums.iter().filter(|(key, _)| key.day >= first_day) {
            self.total.add(usage);
            self.runs.entry(run.to_owned()).or_default().add(usage);
            self.agents.entry(key.agent.clone()).or_default().add(usage);
            self.models.entry(key.model.clone()).or_default().add(usage);
            self.days.entry(key.day).or_default().add(usage);
        }
    }
}

/// Returns the date of a day since 1970, as `2026-11-17`.
pub(crate) fn date_of_day(day: u64) -> String {
    // Civil date from days (Howard Hinnant), for days since 1970.
    let z = day + 719_468;
    let era = z / 146_097;
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{:02}", doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (day, date) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_774, "2026-11-17")]
        {
            assert_eq!(date_of_day(day), date);
        }
    }
}
