//! Hints that there may be work, between the processes that share a database (`NOTIFY` and `LISTEN`).
//!
//! A hint may be missing or needless: polling is the truth. So hints are sent outside of the transactions that they tell
//! about, at most one at a time, and a connection that is lost is made again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use crate::database::{Database, PgError};

/// Channel of the hints. The payload is the schema of the store.
const CHANNEL: &str = "windlass_work";
/// Least time between two hints of a process: a notification takes a lock of the whole database when it commits.
const SEND_INTERVAL: Duration = Duration::from_millis(5);
/// Time until a lost connection is made again.
const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// The hints of a store.
#[derive(Debug)]
pub(crate) struct WorkHint {
    database: Arc<Database>,
    /// Wakes the workers of this process.
    work: Arc<Notify>,
    /// Wakes the sender.
    outgoing: Arc<Notify>,
    sender: JoinHandle<()>,
    /// Listens for the hints of other processes, from the first wait on.
    listener: std::sync::OnceLock<JoinHandle<()>>,
}

impl WorkHint {
    pub(crate) fn start(database: Arc<Database>) -> Self {
        let (work, outgoing) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let sender = tokio::spawn(send_hints(database.clone(), outgoing.clone()));
        Self { database, work, outgoing, sender, listener: std::sync::OnceLock::new() }
    }

    /// Tells the workers of all processes that there may be work.
    pub(crate) fn give(&self) {
        wake(&self.work);
        self.outgoing.notify_one();
    }

    /// Waits for a hint of any process that is given after this call, also before the future is polled.
    pub(crate) fn wait(&self) -> BoxFuture<'_, ()> {
        self.listener
            .get_or_init(|| tokio::spawn(listen_for_hints(self.database.clone(), self.work.clone())));
        self.work.notified().boxed()
    }
}

impl Drop for WorkHint {
    fn drop(&mut self) {
        self.sender.abort();
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

/// Wakes all workers that wait, and the next one that does: it may have looked for work just before.
fn wake(work: &Notify) {
    work.notify_waiters();
    work.notify_one();
}

async fn send_hints(database: Arc<Database>, outgoing: Arc<Notify>) {
    loop {
        outgoing.notified().await;
        if let Err(error) = send_hint(&database).await {
            tracing::debug!(?error, "a hint for other processes was not sent");
        }
        tokio::time::sleep(SEND_INTERVAL).await;
    }
}

async fn send_hint(database: &Database) -> Result<(), PgError> {
    let connection = database.connection().await?;
    let payload = database.schema().to_owned();
    connection.rows("SELECT pg_notify($1, $2)", &[CHANNEL.into(), (&payload).into()]).await?;
    connection.give_back();
    Ok(())
}

async fn listen_for_hints(database: Arc<Database>, work: Arc<Notify>) {
    loop {
        if let Err(error) = listen_until_lost(&database, &work).await {
            tracing::debug!(?error, "the hints of other processes do not arrive");
        }
        tokio::time::sleep(LISTEN_RETRY).await;
        // Hints were missed meanwhile.
        wake(&work);
    }
}

async fn listen_until_lost(database: &Database, work: &Notify) -> Result<(), PgError> {
    let (client, mut connection) = database.open_connection().await?;
    let messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
    tokio::pin!(messages);
    let listen = format!("LISTEN {CHANNEL}");
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
                Some(Ok(AsyncMessage::Notification(hint))) if hint.payload() == database.schema() => wake(work),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
        }
    }
}
