//! Appends, batched across runs: all that wait share one statement and one commit.
//!
//! A batch whose connection is lost is repeated append by append. The last hash of an append tells whether it was written.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use windlass::core::journal::JournalLine;
use windlass::error::StoreError;
use windlass::store::{Lease, end_of_run};

use crate::convert::{is_open, status_text, to_integer, to_time};
use crate::database::{Database, PgError, transact};
use crate::runs;
use crate::value::SqlValue;

/// Maximum number of appends in a batch.
const MAX_BATCH_APPENDS: usize = 512;
/// Maximum number of appends that wait; further callers wait for a place.
const MAX_WAITING_APPENDS: usize = 4_096;

/// An append that waits.
struct AppendRequest {
    lease: Lease,
    at: u64,
    lines: Vec<JournalLine>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// The queue of appends of this process.
#[derive(Clone, Debug)]
pub(crate) struct AppendQueue {
    requests: mpsc::Sender<AppendRequest>,
}

impl AppendQueue {
    pub(crate) fn start(database: Arc<Database>) -> Self {
        let (requests, waiting) = mpsc::channel(MAX_WAITING_APPENDS);
        tokio::spawn(write_batches(database, waiting));
        Self { requests }
    }

    pub(crate) async fn append(
        &self,
        lease: &Lease,
        at: u64,
        lines: Vec<JournalLine>,
    ) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let request = AppendRequest { lease: lease.clone(), at, lines, reply };
        let stopped = || StoreError::new("the store was closed");
        self.requests.send(request).await.map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

async fn write_batches(database: Arc<Database>, mut waiting: mpsc::Receiver<AppendRequest>) {
    let mut queued: VecDeque<AppendRequest> = VecDeque::new();
    loop {
        if queued.is_empty() {
            match waiting.recv().await {
                Some(request) => queued.push_back(request),
                None => return,
            }
        }
        while let Ok(request) = waiting.try_recv() {
            queued.push_back(request);
        }
        // A statement changes a row once: a run has one append in a batch.
        let (mut batch, mut runs, mut later) = (Vec::new(), BTreeSet::new(), VecDeque::new());
        for request in queued.drain(..) {
            match batch.len() < MAX_BATCH_APPENDS && runs.insert(request.lease.run.clone()) {
                true => batch.push(request),
                false => later.push_back(request),
            }
        }
        queued = later;
        write_batch(&database, batch).await;
    }
}

async fn write_batch(database: &Database, batch: Vec<AppendRequest>) {
    let written = append_batch(database, &batch).await;
    for request in batch {
        let AppendRequest { lease, at, lines, reply } = request;
        let (is_written, first_attempt) = match &written {
            Ok(written) => (written.contains(lease.run.as_str()), 0),
            // The statement may have been committed.
            Err(_) => (false, 1),
        };
        let result = match is_written {
            true => Ok(()),
            false => append_alone(database, &lease, at, &lines, first_attempt).await,
        };
        reply.send(result).ok();
    }
}

/// Appends the lines of one run, or returns the reason why they cannot be.
pub(crate) async fn append_alone(
    database: &Database,
    lease: &Lease,
    at: u64,
    lines: &[JournalLine],
    first_attempt: u32,
) -> Result<(), StoreError> {
    transact!(database, attempt, |db| runs::append_journal(
        db,
        lease,
        at,
        lines,
        end_of_run(lines),
        attempt + first_attempt
    ))
}

/// Appends the lines of many runs with one statement, and returns the names of the runs that have them. The others were
/// refused.
async fn append_batch(database: &Database, batch: &[AppendRequest]) -> Result<BTreeSet<String>, PgError> {
    let sql =
        "WITH want AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[],
                $6::bigint[], $11::text[]) w(name, epoch, at, count, status, ended, owner)),
        own AS (UPDATE @runs r SET records = r.records + w.count,
                status = CASE w.status WHEN '' THEN r.status ELSE w.status END,
                updated = CASE w.status WHEN '' THEN r.updated ELSE w.ended END
            FROM want w WHERE r.name = w.name AND r.epoch = w.epoch AND r.records = w.at AND (r.owner IS NULL OR r.owner = w.owner)
            RETURNING r.id, r.name, w.status AS ended_as),
        written AS (INSERT INTO @lines (run, seq, hash, body) SELECT own.id, l.seq, l.hash, l.body
            FROM unnest($7::text[], $8::bigint[], $9::bytea[], $10::bytea[]) l(name, seq, hash, body)
            JOIN own ON own.name = l.name),
        dropped AS (DELETE FROM @snapshots s USING own WHERE s.run = own.id AND own.ended_as <> ''),
        dropped_segments AS
            (DELETE FROM @snapshot_segments s USING own WHERE s.run = own.id AND own.ended_as <> '')
        SELECT name FROM own";
    let (mut names, mut epochs, mut places, mut counts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut statuses, mut ends, mut drivers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut owners, mut numbers, mut hashes, mut bodies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for AppendRequest { lease, at, lines, .. } in batch {
        names.push(lease.run.as_str().to_owned());
        epochs.push(to_integer(lease.epoch)?);
        drivers.push(lease.owner.clone());
        places.push(to_integer(*at)?);
        counts.push(to_integer(lines.len() as u64)?);
        let end = end_of_run(lines).filter(|(status, _)| !is_open(*status));
        statuses.push(end.map_or(String::new(), |(status, _)| status_text(status).to_owned()));
        ends.push(end.map_or(0, |(_, time)| to_time(time)));
        for (seq, line) in (*at..).zip(lines) {
            owners.push(lease.run.as_str().to_owned());
            numbers.push(to_integer(seq)?);
            hashes.push(line.hash.as_bytes().to_vec());
            bodies.push(line.body.as_bytes().to_vec());
        }
    }
    let values = [
        SqlValue::Texts(names),
        SqlValue::Integers(epochs),
        SqlValue::Integers(places),
        SqlValue::Integers(counts),
        SqlValue::Texts(statuses),
        SqlValue::Integers(ends),
        SqlValue::Texts(owners),
        SqlValue::Integers(numbers),
        SqlValue::ByteRows(hashes),
        SqlValue::ByteRows(bodies),
        SqlValue::Texts(drivers),
    ];
    let connection = database.connection().await?;
    let rows = connection.rows(sql, &values).await?;
    connection.give_back();
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
