//! Hints that there may be work or a decision, between the processes that share a database (`NOTIFY` and `LISTEN`).
//!
//! A hint may be missing or needless: polling is the truth. So hints are sent outside of the transactions that they tell
//! about, many at a time, and a connection that is lost is made again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Notification};
use windlass::core::id::RunId;
use windlass::store::DecisionHints;

use crate::database::{Database, PgError};
use crate::value::SqlValue;

/// Channel of the hints at work. The payload is the schema of the store.
const WORK_CHANNEL: &str = "windlass_work";
/// Channel of the hints at decisions. The payload is the schema of the store, a space and the id of the run.
const DECISION_CHANNEL: &str = "windlass_decision";
/// The most bytes of a payload. The server takes less than 8,000.
const MAX_PAYLOAD_BYTES: usize = 7_000;
/// Least time between two messages of a process: a notification takes a lock of the whole database when it commits.
const SEND_INTERVAL: Duration = Duration::from_millis(5);
/// Time until a lost connection is made again.
const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// The hints of a store.
#[derive(Debug)]
pub(crate) struct StoreHints {
    database: Arc<Database>,
    received: ReceivedHints,
    outgoing: Arc<OutgoingHints>,
    sender: JoinHandle<()>,
    /// Listens for the hints of other processes, from the first wait on.
    listener: OnceLock<JoinHandle<()>>,
}

/// The waits of this process.
#[derive(Clone, Debug, Default)]
struct ReceivedHints {
    work: Arc<Notify>,
    decisions: DecisionHints,
}

/// The hints for other processes that are not sent yet.
#[derive(Debug, Default)]
struct OutgoingHints {
    added: Notify,
    pending: Mutex<PendingHints>,
}

#[derive(Debug, Default)]
struct PendingHints {
    has_work: bool,
    decided_runs: BTreeSet<RunId>,
}

impl StoreHints {
    pub(crate) fn start(database: Arc<Database>) -> Self {
        let outgoing = Arc::new(OutgoingHints::default());
        let sender = tokio::spawn(send_hints(database.clone(), outgoing.clone()));
        Self { database, received: ReceivedHints::default(), outgoing, sender, listener: OnceLock::new() }
    }

    /// Tells the workers of all processes that there may be work.
    pub(crate) fn give_work(&self) {
        wake(&self.received.work);
        self.outgoing.add(|pending| pending.has_work = true);
    }

    /// Tells the driver of a run, in any process, that a decision was posted, and the workers that there may be work.
    pub(crate) fn give_decision(&self, run: &RunId) {
        wake(&self.received.work);
        self.received.decisions.give(run);
        self.outgoing.add(|pending| {
            pending.has_work = true;
            pending.decided_runs.insert(run.clone());
        });
    }

    /// Waits for a hint at work, of any process, that is given after this call, also before the future is polled.
    pub(crate) fn wait_for_work(&self) -> BoxFuture<'_, ()> {
        self.listen();
        self.received.work.notified().boxed()
    }

    /// Waits for a hint at a decision, of any process, that is given after this call, also before the future is polled.
    pub(crate) fn wait_for_decision(&self, run: &RunId) -> BoxFuture<'static, ()> {
        self.listen();
        self.received.decisions.wait(run)
    }

    fn listen(&self) {
        self.listener
            .get_or_init(|| tokio::spawn(listen_for_hints(self.database.clone(), self.received.clone())));
    }
}

impl Drop for StoreHints {
    fn drop(&mut self) {
        self.sender.abort();
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl OutgoingHints {
    fn add(&self, add: impl FnOnce(&mut PendingHints)) {
        add(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.added.notify_one();
    }

    fn take(&self) -> PendingHints {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ReceivedHints {
    /// Takes in a notification of the database.
    fn take_in(&self, hint: &Notification, schema: &str) {
        match hint.channel() {
            WORK_CHANNEL if hint.payload() == schema => wake(&self.work),
            DECISION_CHANNEL => {
                if let Some((of_schema, run)) = hint.payload().split_once(' ')
                    && of_schema == schema
                {
                    self.decisions.give(&run.into());
                }
            }
            _ => {}
        }
    }
}

/// Wakes all workers that wait, and the next one that does: it may have looked for work just before.
fn wake(work: &Notify) {
    work.notify_waiters();
    work.notify_one();
}

async fn send_hints(database: Arc<Database>, outgoing: Arc<OutgoingHints>) {
    loop {
        outgoing.added.notified().await;
        if let Err(error) = send_pending(&database, outgoing.take()).await {
            tracing::debug!(?error, "a hint for other processes was not sent");
        }
        tokio::time::sleep(SEND_INTERVAL).await;
    }
}

async fn send_pending(database: &Database, pending: PendingHints) -> Result<(), PgError> {
    let schema = database.schema();
    let connection = database.connection().await?;
    if !pending.decided_runs.is_empty() {
        let payloads = pending.decided_runs.iter().map(|run| format!("{schema} {run}"));
        let payloads: Vec<String> = payloads.filter(|payload| payload.len() <= MAX_PAYLOAD_BYTES).collect();
        let notify = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload";
        connection.rows(notify, &[DECISION_CHANNEL.into(), SqlValue::Texts(payloads)]).await?;
    }
    if pending.has_work {
        connection.rows("SELECT pg_notify($1, $2)", &[WORK_CHANNEL.into(), schema.into()]).await?;
    }
    connection.give_back();
    Ok(())
}

async fn listen_for_hints(database: Arc<Database>, received: ReceivedHints) {
    loop {
        if let Err(error) = listen_until_lost(&database, &received).await {
            tracing::debug!(?error, "the hints of other processes do not arrive");
        }
        tokio::time::sleep(LISTEN_RETRY).await;
        // Hints were missed meanwhile.
        wake(&received.work);
        received.decisions.give_to_all();
    }
}

async fn listen_until_lost(database: &Database, received: &ReceivedHints) -> Result<(), PgError> {
    let (client, mut connection) = database.open_connection().await?;
    let messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
    tokio::pin!(messages);
    let listen = format!("LISTEN {WORK_CHANNEL}; LISTEN {DECISION_CHANNEL}");
    let listening = client.batch_execute(&listen);
    tokio::pin!(listening);
    let mut is_listening = false;
    loop {
        tokio::select! {
            listened = &mut listening, if !is_listening => {
                listened?;
                is_listening = true;
            }
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(hint))) => received.take_in(&hint, database.schema()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
        }
    }
}
