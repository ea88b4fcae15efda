//! What is on its way to the model: in order, bounded, and written by a task of its own, so that a slow connection
//! holds nobody up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::model::{Command, CommandKind, Commands, Lost};

/// More than this on its way means that nothing is taken any more.
const MOST_COMMANDS: usize = 8192;

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Command>,
    audio: usize,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    moved: Notify,
}

/// The session's side of a connection's writer. Dropping it ends the writer.
#[derive(Debug)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    most_audio: usize,
    writer: JoinHandle<()>,
    /// Resolves when the writer has lost the connection.
    pub(crate) lost: oneshot::Receiver<Lost>,
}

impl Outbox {
    pub(crate) fn new(commands: Box<dyn Commands>, most_audio: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let (sender, lost) = oneshot::channel();
        let writer = tokio::spawn(write(shared.clone(), commands, sender));
        Self { shared, most_audio: most_audio.max(1), writer, lost }
    }

    /// Puts a command in line. Gives how many pieces of audio had to go for it.
    pub(crate) fn put(&self, command: Command) -> Result<u64, Lost> {
        let mut queue = self.shared.lock();
        let mut dropped = 0;
        if matches!(command.kind, CommandKind::Audio(_)) {
            if queue.audio >= self.most_audio {
                let oldest = queue.commands.iter().position(|old| matches!(old.kind, CommandKind::Audio(_)));
                if let Some(place) = oldest {
                    queue.commands.remove(place);
                    queue.audio -= 1;
                    dropped = 1;
                }
            }
            queue.audio += 1;
        } else if queue.commands.len() >= MOST_COMMANDS {
            return Err(Lost::new("the connection takes nothing any more"));
        }
        queue.commands.push_back(command);
        drop(queue);
        self.shared.moved.notify_one();
        Ok(dropped)
    }

    /// Sends what is in line, says goodbye, and ends: within `bound`, or without all that.
    pub(crate) async fn close(mut self, bound: Duration) -> Result<(), Lost> {
        self.shared.lock().is_closing = true;
        self.shared.moved.notify_one();
        let ended = tokio::time::timeout(bound, &mut self.writer).await;
        self.writer.abort();
        match ended {
            Ok(_) => match self.lost.try_recv() {
                Ok(lost) => Err(lost),
                Err(_) => Ok(()),
            },
            Err(_) => Err(Lost::new("the other side did not answer the goodbye in time")),
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next command; none when there is none and none will come.
    async fn next(&self) -> Option<Command> {
        loop {
            let moved = self.moved.notified();
            {
                let mut queue = self.lock();
                if let Some(command) = queue.commands.pop_front() {
                    if matches!(command.kind, CommandKind::Audio(_)) {
                        queue.audio -= 1;
                    }
                    return Some(command);
                }
                if queue.is_closing {
                    return None;
                }
            }
            moved.await;
        }
    }
}

async fn write(shared: Arc<Shared>, mut commands: Box<dyn Commands>, lost: oneshot::Sender<Lost>) {
    while let Some(command) = shared.next().await {
        if let Err(error) = commands.send(command).await {
            let _ = lost.send(error);
            return;
        }
    }
    if let Err(error) = commands.close().await {
        let _ = lost.send(error);
    }
}
