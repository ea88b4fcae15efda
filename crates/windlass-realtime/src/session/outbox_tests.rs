use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{CommandOutbox, MAX_QUEUED_COMMANDS};
use crate::id::CommandId;
use crate::model::{CommandSink, RealtimeCommand, RealtimeCommandKind, RealtimeConnectionError};

/// A connection that never takes a command.
struct StuckSink;

impl CommandSink for StuckSink {
    fn send(&mut self, _: RealtimeCommand) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        std::future::pending().boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, Result<(), RealtimeConnectionError>> {
        std::future::pending().boxed()
    }
}

/// Returns the number of commands that a queue takes.
fn count_taken(told_items: usize) -> usize {
    let outbox = CommandOutbox::new(Box::new(StuckSink), 1, told_items);
    let command = || RealtimeCommand { id: CommandId::from("wl_1"), kind: RealtimeCommandKind::CommitAudio };
    (0..).take_while(|_| outbox.push_command(command()).is_ok()).count()
}

#[tokio::test]
async fn a_conversation_of_any_length_fits_and_the_rest_is_bounded() {
    assert_eq!(count_taken(0), MAX_QUEUED_COMMANDS);
    assert_eq!(count_taken(3 * MAX_QUEUED_COMMANDS), 4 * MAX_QUEUED_COMMANDS);
}
