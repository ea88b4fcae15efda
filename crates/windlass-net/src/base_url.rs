//! Base URLs: the part that all addresses of a server's API have in common.

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

/// Returns an address as people may see it: without its user name, its password and its query, which may hold a key.
pub fn display_url(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[start..].find('/').map_or(url.len(), |path| start + path);
    let host = url[start..end].rfind('@').map_or(start, |user| start + user + 1);
    format!("{}{}", &url[..start], &url[host..])
}

/// A parsed base URL, such as `https://api.example/v1?api-version=2`.
#[derive(Clone, Debug)]
pub struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// The prefix of every request path.
    path_prefix: String,
    /// The query of every request.
    query: Option<String>,
}

impl BaseUrl {
    /// Parses a base URL such as `http://localhost:11434/v1`.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the URL is not usable.
    pub fn parse(base_url: &str) -> Result<Self, String> {
        let uri: Uri = base_url.trim().parse().map_err(|error| format!("{error}"))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => scheme.clone(),
            _ => return Err("it must begin with http:// or https://".to_owned()),
        };
        if scheme == Scheme::HTTPS && !cfg!(feature = "tls") {
            return Err("https needs the feature `tls`, which is switched off".to_owned());
        }
        let authority = uri.authority().ok_or("it names no host")?.clone();
        if authority.as_str().contains('@') {
            return Err("it must not contain a user name or a password; set the key separately".to_owned());
        }
        let path_prefix = uri.path().trim_end_matches('/').to_owned();
        let query = uri.query().filter(|query| !query.is_empty()).map(str::to_owned);
        Ok(Self { scheme, authority, path_prefix, query })
    }

    /// Returns the host name.
    pub fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the address of a path. The base URL's query follows the path's own.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the path is invalid.
    pub fn join(&self, path: &str) -> Result<Uri, String> {
        let mut target = format!("{}{path}", self.path_prefix);
        if let Some(query) = &self.query {
            target.push(if path.contains('?') { '&' } else { '?' });
            target.push_str(query);
        }
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(target.as_str()).build().map_err(|error| format!("`{target}`: {error}"))
    }
}
