//! Lists of runs, in pages that cost the same whatever the number of runs.
//!
//! Every query reads an index in the order of the page: the runs of a session, of an agent and a status, of a status, or
//! all runs. A page of several statuses is made of one page of each.

use rusqlite::{Connection, ToSql, params_from_iter};

use super::file::SqliteError;
use super::runs::{read_stored_run, status_text};
use super::{queue, to_sql_time};
use crate::store::{RunQuery, RunStatus, StoredRun};

/// Column and indexes that schema version 4 adds. Runs of one millisecond are sorted by their names when they are read.
pub(super) const SCHEMA_V4: &str = "
    ALTER TABLE runs ADD COLUMN session TEXT;
    UPDATE runs SET session = (SELECT json_extract(body, '$.run_started.session') FROM lines
        WHERE run = runs.id AND seq = 0);
    CREATE INDEX runs_by_creation ON runs (created);
    CREATE INDEX runs_by_status ON runs (status, created);
    CREATE INDEX runs_by_agent ON runs (agent, status, created);
    CREATE INDEX runs_by_session ON runs (session, created) WHERE session IS NOT NULL;
    CREATE INDEX queue_open ON queue (run) WHERE state != 'ended';
";

/// All statuses, for an index that has the status before the time.
const ALL_STATUSES: [RunStatus; 5] =
    [RunStatus::Running, RunStatus::Paused, RunStatus::Finished, RunStatus::Failed, RunStatus::Cancelled];

pub(super) fn list_runs(db: &Connection, query: &RunQuery) -> Result<Vec<StoredRun>, SqliteError> {
    let (select, values) = select_runs(query);
    let mut select = db.prepare_cached(&select)?;
    let mut rows = select.query(params_from_iter(values))?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        let mut stored = read_stored_run(row)?;
        stored.lease = queue::current_lease(db, stored.lease.take())?;
        runs.push(stored);
    }
    Ok(runs)
}

/// Writes the statement of a query, with its values.
fn select_runs(query: &RunQuery) -> (String, Vec<Box<dyn ToSql>>) {
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut filters = String::new();
    let mut add_filter = |condition: &str, value: Box<dyn ToSql>| {
        values.push(value);
        filters.push_str(&condition.replace('?', &format!("?{}", values.len())));
    };
    if let Some(session) = &query.session {
        add_filter(" AND session = ?", Box::new(session.as_str().to_owned()));
    }
    if let Some(agent) = &query.agent {
        // A column with a sign is not looked up in an index: the session has fewer runs.
        let condition = if query.session.is_some() { " AND +agent = ?" } else { " AND agent = ?" };
        add_filter(condition, Box::new(agent.as_str().to_owned()));
    }
    if let Some(from) = query.updated_from {
        add_filter(" AND updated >= ?", Box::new(to_sql_time(from)));
    }
    if let Some(before) = query.updated_before {
        add_filter(" AND updated < ?", Box::new(to_sql_time(before)));
    }
    if let Some(after) = &query.after {
        let created = to_sql_time(after.created_at);
        add_filter(" AND created <= ?", Box::new(created));
        add_filter(" AND (created < ? OR", Box::new(created));
        add_filter(" name < ?)", Box::new(after.run.as_str().to_owned()));
    }
    values.push(Box::new(query.limit));
    let limit = format!("?{}", values.len());
    let page = |condition: String| {
        format!(
            "SELECT * FROM (SELECT name, agent, status, created, updated, records, epoch, owner, beat, lease_ms, renewed
             FROM runs WHERE TRUE{condition}{filters} ORDER BY created DESC, name DESC LIMIT {limit})"
        )
    };
    let statuses: &[RunStatus] = match (query.statuses.is_empty(), &query.agent) {
        (true, Some(_)) => &ALL_STATUSES,
        _ => &query.statuses,
    };
    let pages: Vec<String> = match (&query.session, statuses) {
        (_, []) => vec![page(String::new())],
        (Some(_), several) => {
            let names: Vec<String> = several.iter().map(|one| format!("'{}'", status_text(*one))).collect();
            vec![page(format!(" AND +status IN ({})", names.join(", ")))]
        }
        (None, several) => {
            several.iter().map(|one| page(format!(" AND status = '{}'", status_text(*one)))).collect()
        }
    };
    let select = match &pages[..] {
        [only] => only.clone(),
        several => {
            let all = several.join(" UNION ALL ");
            format!("SELECT * FROM ({all}) ORDER BY created DESC, name DESC LIMIT {limit}")
        }
    };
    (select, values)
}

#[cfg(test)]
#[path = "run_list_tests.rs"]
mod tests;
