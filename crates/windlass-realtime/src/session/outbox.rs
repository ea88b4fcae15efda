//! The queue of commands to the model: ordered, bounded, and written by its own task, so that a slow connection
//! does not block the session.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::model::{CommandSink, RealtimeCommand, RealtimeCommandKind, RealtimeConnectionError};
use crate::sync::lock;

/// Maximum number of queued commands beside the conversation that a new connection is told; above it, the connection
/// counts as lost.
const MAX_QUEUED_COMMANDS: usize = 8192;

/// The queued commands.
#[derive(Debug, Default)]
struct OutboxQueue {
    commands: VecDeque<RealtimeCommand>,
    audio_count: usize,
    is_closing: bool,
}

/// State shared with the writer task.
#[derive(Debug, Default)]
struct SharedOutbox {
    queue: Mutex<OutboxQueue>,
    queue_changed: Notify,
}

/// The sending half of the command queue. Dropping it aborts the writer task.
#[derive(Debug)]
pub(crate) struct CommandOutbox {
    shared: Arc<SharedOutbox>,
    max_queued_audio: usize,
    max_queued_commands: usize,
    writer: JoinHandle<()>,
    /// Resolves when the writer has lost the connection.
    pub(crate) connection_lost: oneshot::Receiver<RealtimeConnectionError>,
}

impl CommandOutbox {
    /// Creates the queue of a connection. `told_items` is the number of items that it is told first.
    pub(crate) fn new(commands: Box<dyn CommandSink>, max_queued_audio: usize, told_items: usize) -> Self {
        let shared = Arc::new(SharedOutbox::default());
        let (sender, connection_lost) = oneshot::channel();
        let writer = tokio::spawn(write_commands(shared.clone(), commands, sender));
        Self {
            shared,
            max_queued_audio: max_queued_audio.max(1),
            max_queued_commands: MAX_QUEUED_COMMANDS.saturating_add(told_items),
            writer,
            connection_lost,
        }
    }

    /// Queues a command. If too much audio is queued, the oldest chunk is dropped. Returns the number of
    /// dropped chunks.
    ///
    /// # Errors
    ///
    /// Returns [`RealtimeConnectionError`] if the queue is full.
    pub(crate) fn push_command(&self, command: RealtimeCommand) -> Result<u64, RealtimeConnectionError> {
        let mut queue = lock(&self.shared.queue);
        let mut dropped = 0;
        if matches!(command.kind, RealtimeCommandKind::AppendAudio(_)) {
            if queue.audio_count >= self.max_queued_audio {
                let oldest = queue
                    .commands
                    .iter()
                    .position(|old| matches!(old.kind, RealtimeCommandKind::AppendAudio(_)));
                if let Some(place) = oldest {
                    queue.commands.remove(place);
                    queue.audio_count -= 1;
                    dropped = 1;
                }
            }
            queue.audio_count += 1;
        } else if queue.commands.len() >= self.max_queued_commands {
            return Err(RealtimeConnectionError::new("the queue of outgoing commands is full"));
        }
        queue.commands.push_back(command);
        drop(queue);
        self.shared.queue_changed.notify_one();
        Ok(dropped)
    }

    /// Sends the queued commands, closes the connection, and ends the writer; aborts it after `timeout`.
    ///
    /// # Errors
    ///
    /// Returns [`RealtimeConnectionError`] if a command or the closing handshake failed or timed out.
    pub(crate) async fn close(mut self, timeout: Duration) -> Result<(), RealtimeConnectionError> {
        lock(&self.shared.queue).is_closing = true;
        self.shared.queue_changed.notify_one();
        let ended = tokio::time::timeout(timeout, &mut self.writer).await;
        self.writer.abort();
        match ended {
            Ok(_) => match self.connection_lost.try_recv() {
                Ok(lost) => Err(lost),
                Err(_) => Ok(()),
            },
            Err(_) => {
                Err(RealtimeConnectionError::new("the server did not complete the closing handshake in time"))
            }
        }
    }
}

impl Drop for CommandOutbox {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl SharedOutbox {
    /// Waits for the next command; `None` when the queue is empty and closing.
    async fn next_command(&self) -> Option<RealtimeCommand> {
        loop {
            let changed = self.queue_changed.notified();
            {
                let mut queue = lock(&self.queue);
                if let Some(command) = queue.commands.pop_front() {
                    if matches!(command.kind, RealtimeCommandKind::AppendAudio(_)) {
                        queue.audio_count -= 1;
                    }
                    return Some(command);
                }
                if queue.is_closing {
                    return None;
                }
            }
            changed.await;
        }
    }
}

async fn write_commands(
    shared: Arc<SharedOutbox>,
    mut commands: Box<dyn CommandSink>,
    lost: oneshot::Sender<RealtimeConnectionError>,
) {
    while let Some(command) = shared.next_command().await {
        if let Err(error) = commands.send(command).await {
            let _ = lost.send(error);
            return;
        }
    }
    if let Err(error) = commands.close().await {
        let _ = lost.send(error);
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
