//! A server at an address.

use std::collections::HashMap;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig};

use super::OAuth;
use crate::config::HttpConfig;

/// How many redirects are followed. Only to the same place, and only those that keep what was sent.
const REDIRECTS: usize = 5;

/// How to be let in at an address.
#[derive(Clone)]
#[non_exhaustive]
pub enum Auth {
    /// A token that is sent along.
    Bearer(String),
    /// OAuth, when the address asks for it.
    OAuth(OAuth),
}

impl Auth {
    /// A token that is sent along.
    pub fn bearer(token: impl Into<String>) -> Self {
        Self::Bearer(token.into())
    }
}

/// Speaks through `client` to the address, with its headers.
pub(super) fn transport<S: StreamableHttpClient + Send + 'static>(
    config: &HttpConfig,
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
        Some(Auth::Bearer(token)) => settings.auth_header = Some(token.clone()),
        Some(Auth::OAuth(_)) | None => {}
    }
    Ok(StreamableHttpClientTransport::with_client(client, settings))
}

/// Connections are not kept for the next request: one whose last answer was not read to its end is slow to be used
/// again.
pub(super) fn client() -> Result<reqwest::Client, String> {
    // Whoever comes first chooses, and another choice is as good.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let same_place = reqwest::redirect::Policy::custom(|attempt| {
        let from = attempt.previous().last();
        let stays = from.is_some_and(|from| {
            let to = attempt.url();
            (from.scheme(), from.host_str(), from.port_or_known_default())
                == (to.scheme(), to.host_str(), to.port_or_known_default())
        });
        let keeps = matches!(attempt.status().as_u16(), 307 | 308);
        if attempt.previous().len() > REDIRECTS {
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
