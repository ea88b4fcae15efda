//! Bearer tokens that expire: Entra, Google and similar.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};

use crate::api_key::ApiKey;
use crate::renewal::RenewedSecret;
use crate::signer::{RequestSigner, SignError};
use windlass_net::BoxFuture;

/// A token, and the time for which it is valid.
#[derive(Clone, Debug)]
pub struct AccessToken {
    /// The token.
    pub token: ApiKey,
    /// The time for which it is valid from now on. Without it the token is fetched for every request.
    pub valid_for: Option<Duration>,
}

/// A signer that sends a bearer token and fetches a new one before the old one expires. Concurrent requests wait for one
/// fetch.
///
/// ```
/// use std::time::Duration;
/// use windlass_models::{AccessToken, BearerTokenSigner};
///
/// let signer = BearerTokenSigner::new(|| async {
///     let token = "from the application's identity library".into();
///     Ok(AccessToken { token, valid_for: Some(Duration::from_secs(3600)) })
/// });
/// ```
#[derive(Clone)]
pub struct BearerTokenSigner {
    token: RenewedSecret<AccessToken>,
}

impl fmt::Debug for BearerTokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerTokenSigner")
    }
}

impl BearerTokenSigner {
    /// Creates a signer from a function that fetches a token.
    pub fn new<F>(fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<AccessToken, SignError>> + Send + 'static,
    {
        Self { token: RenewedSecret::new(fetch) }
    }
}

impl RequestSigner for BearerTokenSigner {
    fn sign<'a>(&'a self, request: &'a mut Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
        Box::pin(async move {
            let AccessToken { token, .. } = self.token.current(|token| token.valid_for).await?;
            let value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()));
            // The error of the header type would show the value.
            let mut value = value.map_err(|_| "the token has characters that a header must not have")?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
            Ok(())
        })
    }
}
