//! Spending: the model requests of stored runs by run, agent, model and day, read from their journals.
//!
//! Invariant: a journal is read once for each length that it has had; the sums of a run are kept with the length. A report
//! has a bounded number of runs and waits for a bounded number of journals. The others are read in the background, and are
//! in a later report.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::usage::Usage;
use windlass::error::StoreError;
use windlass::price::PriceList;
use windlass::store::{RunCursor, RunQuery, RunStatus, Store, StoredRun};

use crate::access::{AccessRole, PersonIdentity};
use crate::lock_unpoisoned;
use crate::served_queue::ServedQueue;

/// Number of runs in a report, and of runs whose sums are kept.
pub(crate) const MAX_REPORTED_RUNS: usize = 300_000;
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
pub(crate) struct SpendingCache {
    runs: Mutex<KeptRuns>,
    /// True while a task reads the journals that no report has waited for.
    is_reading: AtomicBool,
}

impl Default for SpendingCache {
    fn default() -> Self {
        Self { runs: Mutex::new(KeptRuns::new(MAX_REPORTED_RUNS)), is_reading: AtomicBool::new(false) }
    }
}

/// A bounded number of runs with their sums. Those that the last report did not have make room for others.
struct KeptRuns {
    limit: usize,
    /// Number of the last report.
    report: u64,
    /// The sums, with the number of the report that last had them.
    by_run: HashMap<RunId, (Arc<RunSpending>, u64)>,
}

impl KeptRuns {
    fn new(limit: usize) -> Self {
        Self { limit, report: 0, by_run: HashMap::new() }
    }

    fn begin_report(&mut self) {
        self.report += 1;
    }

    fn find(&mut self, run: &RunId) -> Option<Arc<RunSpending>> {
        let (spending, used) = self.by_run.get_mut(run)?;
        *used = self.report;
        Some(spending.clone())
    }

    fn keep(&mut self, run: &RunId, spending: Arc<RunSpending>) {
        if self.by_run.len() >= self.limit && !self.by_run.contains_key(run) {
            let report = self.report;
            self.by_run.retain(|_, (_, used)| *used == report);
        }
        if self.by_run.len() < self.limit || self.by_run.contains_key(run) {
            self.by_run.insert(run.clone(), (spending, self.report));
        }
    }
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
    /// Number of older runs that a report has no room for.
    pub(crate) omitted_runs: usize,
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
    /// Reports the spending since a time of the runs that a person may see. Runs whose journals it does not wait for are
    /// counted, and read by a task until `stop`.
    pub(crate) async fn report(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        prices: &Arc<PriceList>,
        person: &PersonIdentity,
        from: Timestamp,
        stop: &CancellationToken,
    ) -> Result<SpendingReport, StoreError> {
        let mut report = SpendingReport::default();
        let (mut read, mut count) = (0, 0);
        lock_unpoisoned(&self.runs).begin_report();
        let mut runs = RunsSince::new(from);
        while let Some(page) = runs.next_page(queue).await? {
            for stored in page.iter().filter(|stored| person.may(AccessRole::View, &stored.agent)) {
                count += 1;
                if count > MAX_REPORTED_RUNS {
                    report.omitted_runs += 1;
                    continue;
                }
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

    /// Reads the journals of the runs of a report.
    async fn read_all(
        &self,
        queue: &ServedQueue,
        prices: &PriceList,
        from: Timestamp,
    ) -> Result<(), StoreError> {
        let (mut runs, mut count) = (RunsSince::new(from), 0);
        while let Some(page) = runs.next_page(queue).await? {
            for stored in &page {
                count += 1;
                if count > MAX_REPORTED_RUNS {
                    return Ok(());
                }
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
        lock_unpoisoned(&self.runs).find(run).filter(|known| known.record_count >= record_count)
    }

    async fn load_run(
        &self,
        queue: &ServedQueue,
        prices: &PriceList,
        run: &RunId,
        record_count: u64,
    ) -> Result<Arc<RunSpending>, StoreError> {
        let known = lock_unpoisoned(&self.runs).find(run);
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
        lock_unpoisoned(&self.runs).keep(run, spending.clone());
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

/// The runs that may have asked a model since a time, page by page.
///
/// A run that is driven may have asked at any time since its status last changed: the runs that run since an earlier time
/// come first, and then those whose status has changed since. A run that ends between the two listings is in one of them.
struct RunsSince {
    query: RunQuery,
    /// Time from which the second listing begins; `None` in the second listing.
    from: Option<Timestamp>,
    /// The runs of the first listing.
    running: HashSet<RunId>,
}

impl RunsSince {
    fn new(from: Timestamp) -> Self {
        let query = RunQuery {
            statuses: vec![RunStatus::Running],
            updated_before: Some(from),
            limit: PAGE_RUNS,
            ..RunQuery::default()
        };
        Self { query, from: Some(from), running: HashSet::new() }
    }

    /// Returns the next page, which may be empty; `None` after the last run.
    async fn next_page(&mut self, queue: &ServedQueue) -> Result<Option<Vec<StoredRun>>, StoreError> {
        let mut page = queue.list_runs(&self.query).await?;
        if let Some(last) = page.last() {
            self.query.after = Some(RunCursor::from(last));
            match self.from {
                Some(_) => self.running.extend(page.iter().map(|stored| stored.run.clone())),
                None => page.retain(|stored| !self.running.contains(&stored.run)),
            }
            return Ok(Some(page));
        }
        let Some(from) = self.from.take() else { return Ok(None) };
        self.query = RunQuery { updated_from: Some(from), limit: PAGE_RUNS, ..RunQuery::default() };
        Ok(Some(Vec::new()))
    }
}

/// Returns the weight of a usage in charts and orders: its cost, and tokens where no cost is known.
pub(crate) fn weight(usage: &Usage) -> (u64, u64) {
    (usage.cost_nanos, usage.total_tokens())
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
    fn kept_sums_make_room_for_those_of_the_current_report_only() {
        let mut kept = KeptRuns::new(3);
        let run = |name: &str| RunId::from(name);
        kept.begin_report();
        for name in ["a", "b", "c"] {
            kept.keep(&run(name), Arc::default());
        }
        kept.begin_report();
        assert!(kept.find(&run("b")).is_some());
        kept.keep(&run("d"), Arc::default());
        kept.keep(&run("e"), Arc::default());
        // The report has three runs: a fourth is not kept, and drops none of them.
        kept.keep(&run("f"), Arc::default());
        let found: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|name| kept.find(&run(name)).is_some()).into();
        assert_eq!(found, [false, true, false, true, true, false]);
    }

    #[test]
    fn days_have_their_dates() {
        for (day, date) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_774, "2026-11-17")]
        {
            assert_eq!(date_of_day(day), date);
        }
    }
}
