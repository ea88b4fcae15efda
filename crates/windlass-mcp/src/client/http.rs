//! The streamable HTTP transport of the client.

use std::collections::HashMap;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig};

use super::OAuthConfig;
use crate::config::HttpTransportConfig;

/// Maximum number of redirects. Only 307 and 308 to the same origin are followed, because they keep method
/// and body.
const MAX_REDIRECTS: usize = 5;

/// The authorisation of an HTTP server.
#[derive(Clone)]
#[non_exhaustive]
pub enum McpAuth {
    /// A bearer token that is sent with every request.
    Bearer(String),
    /// OAuth, when the server requires it.
    OAuth(OAuthConfig),
}

impl McpAuth {
    /// Creates the authorisation with a bearer token.
    pub fn bearer(token: impl Into<String>) -> Self {
        Self::Bearer(token.into())
    }
}

/// Creates the transport to the configured URL over `client`, with the configured headers.
pub(super) fn build_transport<S: StreamableHttpClient + Send + 'static>(
    config: &HttpTransportConfig,
    client: S,
) -> Result<StreamableHttpClientTransport<S>, String> {
    let mut headers = HashMap::new();
    for (name, value) in &config.headers {
        let known =
            HeaderName::try_from(name).map_err(|_| format!("`{name}` is not the name of a header"))?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("the value of header `{name}` cannot be sent"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    let mut settings = StreamableHttpClientTransportConfig::with_uri(config.url.as_str());
    settings.custom_headers = headers;
    settings.allow_stateless = true;
    match &config.auth {
        Some(McpAuth::Bearer(token)) => settings.auth_header = Some(token.clone()),
        Some(McpAuth::OAuth(_)) | None => {}
    }
    Ok(StreamableHttpClientTransport::with_client(client, settings))
}

/// Creates the HTTP client.
///
/// Idle connections are not pooled, because reusing one whose last response was not read to its end is slow.
pub(super) fn build_client() -> Result<reqwest::Client, String> {
    // The call fails if the application has installed a crypto provider already, which works as well.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let same_place = reqwest::redirect::Policy::custom(|attempt| {
        let from = attempt.previous().last();
        let stays = from.is_some_and(|from| {
            let to = attempt.url();
            (from.scheme(), from.host_str(), from.port_or_known_default())
                == (to.scheme(), to.host_str(), to.port_or_known_default())
        });
        let keeps = matches!(attempt.status().as_u16(), 307 | 308);
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("there are too many redirects")
        } else if stays && keeps {
            attempt.follow()
        } else {
            attempt.stop()
        }
    });
    reqwest::Client::builder()
        .pool_max_idle_per_host(0)
        .redirect(same_place)
        .build()
        .map_err(|error| error.to_string())
}
