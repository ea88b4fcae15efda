//! A provider that is away while a run waits for it.

use std::time::Duration;

use tokio::time::Instant;
use windlass::event::RunEventKind;

/// The outage of a run's provider: its start and its last error.
#[derive(Debug, Default)]
pub(super) struct ProviderOutage {
    current: Option<(Instant, String)>,
    /// True if the command does not wait any longer.
    pub(super) is_given_up: bool,
    /// True if the command itself was asked to leave the run.
    pub(super) is_terminated: bool,
}

impl ProviderOutage {
    /// Notes the begin and the end of an outage.
    pub(super) fn observe(&mut self, event: &RunEventKind) {
        match event {
            RunEventKind::ModelRetryScheduled { error, .. } => {
                let since = self.current.take().map_or_else(Instant::now, |(since, _)| since);
                self.current = Some((since, error.clone()));
            }
            // Text of an answer that breaks off later is a sign of life, too.
            RunEventKind::ModelResponded(_) | RunEventKind::TextDelta { .. } => self.current = None,
            _ => {}
        }
    }

    /// Waits until the outage is longer than this. It never ends without an outage, or after it was given up.
    pub(super) async fn wait_longer_than(&self, patience: Duration) {
        match &self.current {
            Some((since, _)) if !self.is_given_up => tokio::time::sleep_until(*since + patience).await,
            _ => std::future::pending().await,
        }
    }

    /// Returns the last error of the provider, if the run was left because of it: the command gave the provider up, or
    /// the driver left the run because the provider asked for a longer delay than the command waits.
    pub(super) fn error_of_left_run(&self) -> Option<&str> {
        let current = self.current.as_ref().filter(|_| self.is_given_up || !self.is_terminated);
        current.map(|(_, error)| error.as_str())
    }
}
