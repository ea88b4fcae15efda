//! Secrets that expire: a cache that fetches a new one before the old one expires.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use windlass_net::BoxFuture;

use crate::signer::SignError;

/// Time before its expiry at which a secret is replaced, so that it does not expire on the way.
const RENEWAL_MARGIN: Duration = Duration::from_secs(60);

type FetchFunction<T> = Arc<dyn Fn() -> BoxFuture<'static, Result<T, SignError>> + Send + Sync>;

/// A secret that is fetched again before it expires. Concurrent requests wait for one fetch.
pub(crate) struct RenewedSecret<T> {
    fetch: FetchFunction<T>,
    cached: Arc<Mutex<Option<(T, Instant)>>>,
}

impl<T> Clone for RenewedSecret<T> {
    fn clone(&self) -> Self {
        Self { fetch: self.fetch.clone(), cached: self.cached.clone() }
    }
}

impl<T: Clone> RenewedSecret<T> {
    /// Creates the cache of the secrets that a function fetches.
    pub(crate) fn new<F>(fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<T, SignError>> + Send + 'static,
    {
        Self { fetch: Arc::new(move || Box::pin(fetch())), cached: Arc::default() }
    }

    /// Returns the secret. `valid_for` returns the time for which a new one is valid; without it, each request fetches one.
    pub(crate) async fn current(&self, valid_for: fn(&T) -> Option<Duration>) -> Result<T, SignError> {
        let mut cached = self.cached.lock().await;
        if let Some((secret, renew_at)) = &*cached
            && Instant::now() < *renew_at
        {
            return Ok(secret.clone());
        }
        let secret = (self.fetch)().await?;
        *cached = valid_for(&secret)
            .and_then(|valid| valid.checked_sub(RENEWAL_MARGIN))
            .and_then(|valid| Some((secret.clone(), Instant::now().checked_add(valid)?)));
        Ok(secret)
    }
}
