//! Being let in by OAuth: when an address asks for it, and once more when it asks for more.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::service::ServiceError;
use rmcp::transport::auth::{AuthClient, AuthError, AuthorizationCallback, AuthorizationRequest, OAuthState};
use rmcp::transport::streamable_http_client::{AuthRequiredError, InsufficientScopeError};

use super::http;

/// How an application is let in by OAuth. It is asked to have somebody visit an address, and says where that led.
#[derive(Clone)]
pub struct OAuth {
    redirect: String,
    client_name: String,
    metadata_url: Option<String>,
    registered: Option<(String, Option<String>)>,
    scopes: Vec<String>,
    visit: Visit,
}

type Visit = Arc<dyn Fn(String) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

impl OAuth {
    /// `redirect` is where the person's browser is sent back to; `visit` has somebody visit an address, and gives the
    /// whole address that the browser was sent back to.
    pub fn new<Fut>(
        redirect: impl Into<String>,
        visit: impl Fn(String) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        Self {
            redirect: redirect.into(),
            client_name: "Windlass".to_owned(),
            metadata_url: None,
            registered: None,
            scopes: Vec::new(),
            visit: Arc::new(move |address| visit(address).boxed()),
        }
    }

    /// The name that the person is shown.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Where what is known of this client can be read, for servers that take that in place of a registration.
    #[must_use]
    pub fn metadata_url(mut self, url: impl Into<String>) -> Self {
        self.metadata_url = Some(url.into());
        self
    }

    /// The client is registered already.
    #[must_use]
    pub fn registered(mut self, id: impl Into<String>, secret: Option<String>) -> Self {
        self.registered = Some((id.into(), secret));
        self
    }

    /// What to ask for at first, in place of what the server names.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes.extend(scopes.into_iter().map(Into::into));
        self
    }

    /// Goes the whole way, from the server's challenge to a client that is let in.
    pub(super) async fn authorise(
        &self,
        url: &str,
        challenge: &str,
        before: Option<&AuthClient<reqwest::Client>>,
    ) -> Result<AuthClient<reqwest::Client>, String> {
        let client = http::client()?;
        let failed = |error: AuthError| format!("it asks to be let in, and that failed: {error}");
        let mut state = OAuthState::new(url, None).await.map_err(failed)?;
        let mut request = AuthorizationRequest::new(&self.redirect)
            .with_client_name(&self.client_name)
            .with_challenge(challenge);
        if let Some(url) = &self.metadata_url {
            request = request.with_client_metadata_url(url);
        }
        if let Some((id, secret)) = &self.registered {
            request = request.with_preregistered_client(id);
            if let Some(secret) = secret {
                request = request.with_client_secret(secret);
            }
        }
        let mut scopes = self.scopes.clone();
        if let Some(before) = before {
            // What was granted before is asked for again, so that more is not less.
            scopes.extend(before.auth_manager.lock().await.get_current_scopes().await);
            scopes.extend(wanted(challenge));
        }
        scopes.sort();
        scopes.dedup();
        if !scopes.is_empty() {
            request = request.with_scopes(scopes);
        }
        state.start_authorization(request).await.map_err(failed)?;
        let address = state.get_authorization_url().await.map_err(failed)?;
        let back = (self.visit)(address).await?;
        let callback = AuthorizationCallback::from_redirect_url(&back).map_err(failed)?;
        state
            .handle_callback_with_issuer(&callback.code, &callback.csrf_token, callback.issuer.as_deref())
            .await
            .map_err(failed)?;
        let manager = state.into_authorization_manager().ok_or("the server let nobody in")?;
        Ok(AuthClient::new(client, manager))
    }
}

/// The scopes that a challenge names.
fn wanted(challenge: &str) -> Vec<String> {
    let named = challenge.split_once("scope=\"").and_then(|(_, rest)| rest.split_once('"'));
    named.map(|(scopes, _)| scopes.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
}

/// What a server wants to see before it takes a request, where that is why it did not.
pub(super) fn challenge(error: &ServiceError) -> Option<String> {
    let ServiceError::TransportSend(error) = error else { return None };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
    while let Some(error) = cause {
        if let Some(required) = error.downcast_ref::<AuthRequiredError>() {
            return Some(required.www_authenticate_header.clone());
        }
        if let Some(more) = error.downcast_ref::<InsufficientScopeError>() {
            return Some(more.www_authenticate_header.clone());
        }
        cause = error.source();
    }
    None
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth").field("redirect", &self.redirect).finish_non_exhaustive()
    }
}
