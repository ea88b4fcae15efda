//! Limits that the processes of a fleet share.

use std::time::Duration;

/// A limit on the bodies of tools that holds for all processes with the same store: see
/// [`Tool::shared_limit`](crate::tool::Tool::shared_limit).
///
/// Tools with a limit of the same name share it, whatever their agents and processes. The name must stand for one limit:
/// processes that declare it differently count different places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    name: String,
    /// Number of places.
    places: u32,
    /// Time for which a body occupies its place; as long as it runs if absent.
    period: Option<Duration>,
}

impl SharedLimit {
    /// Creates a limit on the bodies that run at the same time; at least 1.
    pub fn concurrency(name: impl Into<String>, bodies: u32) -> Self {
        Self { name: name.into(), places: bodies.max(1), period: None }
    }

    /// Creates a limit on the bodies that start within any period of this length; at least 1.
    pub fn rate(name: impl Into<String>, bodies: u32, period: Duration) -> Self {
        Self { name: name.into(), places: bodies.max(1), period: Some(period) }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of bodies that may run, or start within a period.
    pub fn bodies(&self) -> u32 {
        self.places
    }

    /// Returns the period of a rate; absent for a limit on bodies that run at the same time.
    pub fn period(&self) -> Option<Duration> {
        self.period
    }
}
