//! For tests: what every store must do, as suites that any store can be put through.

mod check;
mod receipts;
mod runs;
mod sessions;

pub use sessions::session_suite;

use std::future::Future;

use crate::store::Store;

/// Puts a store through everything that every store must do. `make` makes an empty one for each check.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// windlass::testing::store_suite(async || windlass::MemoryStore::default()).await;
/// # }
/// ```
///
/// # Panics
///
/// Where the store does something else: with the name of the check, what was asked of the store, and what it did.
pub async fn store_suite<S, F, Fut>(make: F)
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = S>,
{
    runs::suite(&make).await;
    receipts::suite(&make).await;
}
