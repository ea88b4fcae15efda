//! OAuth authorisation: when a server first requires it, and again when it requires more scopes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::service::ServiceError;
use rmcp::transport::auth::{
    AuthClient, AuthError, AuthorizationCallback, AuthorizationManager, AuthorizationRequest, OAuthState,
};
use rmcp::transport::streamable_http_client::{AuthRequiredError, InsufficientScopeError};

use super::http::McpHttpClient;
use super::oauth_client::OAuthNetworkClient;
use super::token_store::{OAuthTokenStore, ServerCredentials};

/// Maximum time that a person has to consent.
pub(super) const CONSENT_TIMEOUT: Duration = Duration::from_secs(600);

/// The OAuth settings of an application, with a callback that opens the authorisation URL in a browser.
#[derive(Clone)]
pub struct OAuthConfig {
    redirect_url: String,
    client_name: String,
    metadata_url: Option<String>,
    registration: Option<(String, Option<String>)>,
    scopes: Vec<String>,
    visit_url: OAuthVisitFn,
    tokens: Option<Arc<dyn OAuthTokenStore>>,
}

type OAuthVisitFn = Arc<dyn Fn(String) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

impl OAuthConfig {
    /// Creates the settings. `redirect` is the redirect URL; `visit` opens the authorisation URL in the person's
    /// browser and returns the full URL that the browser was redirected to. It has ten minutes, which do not count as
    /// time of the call that needs the authorisation.
    pub fn new<Fut>(
        redirect: impl Into<String>,
        visit: impl Fn(String) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        Self {
            redirect_url: redirect.into(),
            client_name: "Windlass".to_owned(),
            metadata_url: None,
            registration: None,
            scopes: Vec::new(),
            visit_url: Arc::new(move |address| visit(address).boxed()),
            tokens: None,
        }
    }

    /// Sets the client name that the person sees on the consent page.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Sets the URL of the client metadata document, for servers that accept it instead of a registration.
    #[must_use]
    pub fn metadata_url(mut self, url: impl Into<String>) -> Self {
        self.metadata_url = Some(url.into());
        self
    }

    /// Sets the id and the secret of a client that is already registered.
    #[must_use]
    pub fn preregistered_client(mut self, id: impl Into<String>, secret: Option<String>) -> Self {
        self.registration = Some((id.into(), secret));
        self
    }

    /// Sets the initial scopes, instead of those that the server names.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes.extend(scopes.into_iter().map(Into::into));
        self
    }

    /// Sets the store of the credentials, for example an [`OAuthTokenFile`](crate::OAuthTokenFile). Without it they are
    /// kept in memory, and the next process asks the person again.
    #[must_use]
    pub fn token_store(mut self, store: impl OAuthTokenStore + 'static) -> Self {
        self.tokens = Some(Arc::new(store));
        self
    }

    async fn new_manager(
        &self,
        url: &str,
        client: &McpHttpClient,
    ) -> Result<AuthorizationManager, AuthError> {
        let client = Arc::new(OAuthNetworkClient::new(url, client.transport()));
        let mut manager = AuthorizationManager::new_with_oauth_http_client(url, client).await?;
        if let Some(store) = &self.tokens {
            manager.set_credential_store(ServerCredentials { store: store.clone(), url: url.to_owned() });
        }
        Ok(manager)
    }

    /// Returns a client with stored credentials, if there are any.
    ///
    /// # Errors
    ///
    /// Returns the reason if the stored credentials cannot be read.
    pub(super) async fn restore(
        &self,
        url: &str,
        client: &McpHttpClient,
    ) -> Result<Option<AuthClient<McpHttpClient>>, String> {
        let Some(store) = &self.tokens else { return Ok(None) };
        if store.load(url).await?.is_none() {
            return Ok(None);
        }
        let restored = async {
            let mut manager = self.new_manager(url, client).await?;
            Ok::<_, AuthError>(manager.initialize_from_store().await?.then_some(manager))
        };
        match restored.await {
            Ok(Some(manager)) => Ok(Some(AuthClient::new(client.clone(), manager))),
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "stored OAuth credentials cannot be used");
                Ok(None)
            }
        }
    }

    /// Runs the authorisation flow from the server's challenge and returns an authorised client.
    pub(super) async fn authorise(
        &self,
        url: &str,
        client: &McpHttpClient,
        challenge: &str,
        before: Option<&AuthClient<McpHttpClient>>,
    ) -> Result<AuthClient<McpHttpClient>, String> {
        let failed = |error: AuthError| {
            format!("the server requires authorisation, and the OAuth flow failed: {error}")
        };
        let mut state = OAuthState::Unauthorized(self.new_manager(url, client).await.map_err(failed)?);
        let mut request = AuthorizationRequest::new(&self.redirect_url)
            .with_client_name(&self.client_name)
            .with_challenge(challenge);
        if let Some(url) = &self.metadata_url {
            request = request.with_client_metadata_url(url);
        }
        if let Some((id, secret)) = &self.registration {
            request = request.with_preregistered_client(id);
            if let Some(secret) = secret {
                request = request.with_client_secret(secret);
            }
        }
        let mut scopes = self.scopes.clone();
        if let Some(before) = before {
            // Scopes that were granted before are requested again; otherwise the new grant would drop them.
            scopes.extend(before.auth_manager.lock().await.get_current_scopes().await);
            scopes.extend(challenge_scopes(challenge));
        }
        scopes.sort();
        scopes.dedup();
        if !scopes.is_empty() {
            request = request.with_scopes(scopes);
        }
        state.start_authorization(request).await.map_err(failed)?;
        let address = state.get_authorization_url().await.map_err(failed)?;
        let late = |_| "nobody consented in time".to_owned();
        let back = tokio::time::timeout(CONSENT_TIMEOUT, (self.visit_url)(address)).await.map_err(late)??;
        let callback = AuthorizationCallback::from_redirect_url(&back).map_err(failed)?;
        state
            .handle_callback_with_issuer(&callback.code, &callback.csrf_token, callback.issuer.as_deref())
            .await
            .map_err(failed)?;
        let manager =
            state.into_authorization_manager().ok_or("the OAuth flow ended without an authorisation")?;
        Ok(AuthClient::new(client.clone(), manager))
    }
}

/// Returns the scopes that a challenge names.
pub(super) fn challenge_scopes(challenge: &str) -> Vec<String> {
    let named = challenge.split_once("scope=\"").and_then(|(_, rest)| rest.split_once('"'));
    named.map(|(scopes, _)| scopes.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
}

/// Returns the `WWW-Authenticate` header of an error that is an authorisation challenge.
pub(super) fn auth_challenge(error: &ServiceError) -> Option<String> {
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

impl fmt::Debug for OAuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthConfig").field("redirect", &self.redirect_url).finish_non_exhaustive()
    }
}
