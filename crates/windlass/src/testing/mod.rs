//! Test suites for implementations of stores.

mod artefacts;
mod check;
mod decisions;
mod deltas;
mod leases;
mod migration;
mod queue;
mod receipts;
mod run_lists;
mod run_sessions;
mod runs;
mod schedules;
mod sessions;

pub use queue::run_queue_suite;
pub use sessions::run_session_suite;

use std::future::Future;

use crate::store::Store;

/// Checks the contract of a store. `make` creates an empty store for each check.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// windlass::testing::run_store_suite(async || windlass::store::MemoryStore::default()).await;
/// # }
/// ```
///
/// # Panics
///
/// Panics if the store violates the contract, with the name of the check, the operation and its result.
pub async fn run_store_suite<S, F, Fut>(make: F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    leases::check_leases(&make).await;
    runs::check_runs(&make).await;
    decisions::check_decisions(&make).await;
    artefacts::check_artefacts(&make).await;
    run_lists::check_run_lists(&make).await;
    receipts::check_receipts(&make).await;
    migration::check_migration(&make).await;
    run_sessions::check_run_sessions(&make).await;
    deltas::check_deltas(&make).await;
}
