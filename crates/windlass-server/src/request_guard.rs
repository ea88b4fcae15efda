//! The guard in front of every route: host, origin, identity, rate, and the headers of every answer.
//!
//! Invariant: a request that a page of another site can cause changes nothing and reads nothing. Its host must be one of
//! the server's own, an unsafe method needs the origin of the server or none, and a browser that says that the request
//! comes from elsewhere is believed.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::RequestEvidence;
use windlass_text::SafeText;

use crate::api::{ApiError, ErrorCode, SHOULD_RETRY};
use crate::server::ServerState;

/// Name of the cookie of a person who is logged in.
pub(crate) const LOGIN_COOKIE: &str = "windlass_login";
/// Name of the header with the page key of a login.
const PAGE_KEY_HEADER: &str = "x-windlass-page-key";

/// Content security policy of every answer. Pages have no inline script and no inline style.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Paths that need no identity: the page that asks for the token, and its style.
fn is_public(path: &str) -> bool {
    path == "/login" || path == "/healthz" || path.starts_with("/assets/")
}

/// Checks a request and adds the identity of its person to it.
pub(crate) async fn guard_request(
    State(state): State<Arc<ServerState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = SafeText::from_line(request.uri().path()).to_string();
    let method = request.method().clone();
    let mut person = String::new();
    let mut response = match check_request(&state, peer, &request) {
        Ok(identity) => {
            if let Some(identity) = identity {
                person = SafeText::from_line(&identity.name).to_string();
                request.extensions_mut().insert(identity);
            }
            let response = next.run(request).await;
            if is_refusal(response.status()) {
                let code = response.extensions().get::<ErrorCode>().map_or("http", |code| code.0);
                let status = response.status().as_u16();
                tracing::warn!(%peer, %method, path, person, status, code, "a request is refused");
            }
            response
        }
        Err(error) => {
            let status = error.status.as_u16();
            tracing::warn!(%peer, %method, path, person, status, code = error.code, "a request is refused");
            if error.status == StatusCode::UNAUTHORIZED && wants_page(request.headers()) {
                axum::response::Redirect::to("/login").into_response()
            } else {
                error.into_response()
            }
        }
    };
    // The official clients of OpenAI would repeat it as a request whose run may have started, which is refused.
    let is_unstarted =
        matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if is_unstarted && (path.starts_with("/v1/chat/") || path.starts_with("/v1/responses")) {
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    add_security_headers(response.headers_mut());
    response
}

/// Returns true if a request was refused for its person, its form or its amount. Runs that are not there, conflicts and
/// decisions that do not fit are ordinary answers.
fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::TOO_MANY_REQUESTS
    )
}

fn check_request(
    state: &ServerState,
    peer: SocketAddr,
    request: &Request,
) -> Result<Option<crate::access::PersonIdentity>, ApiError> {
    let headers = request.headers();
    check_origin(state, request.method(), headers)?;
    let by_address = peer.ip().to_canonical().to_string();
    let proxy_header = state.access.identity_header(peer.ip());
    if proxy_header.is_some_and(|name| headers.get_all(name).iter().count() > 1) {
        // A proxy that adds its header to that of the client has not decided who the person is.
        return Err(ApiError::forbidden("identity_header", "several headers name the person"));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let proxy_name = proxy_header.and_then(text);
    let token = bearer_token(headers);
    let login =
        login_cookie(headers).filter(|_| token.is_none()).and_then(|cookie| state.logins.find(cookie));
    let identity = match login {
        Some(login) if is_safe(request.method()) => Some(login.person),
        Some(login) => {
            let key = headers.get(PAGE_KEY_HEADER).and_then(|value| value.to_str().ok());
            let has_key = key.is_some_and(|key| login.has_page_key(key));
            if !has_key && !is_public(request.uri().path()) {
                return Err(ApiError::forbidden("page_key", "this page is not logged in: log in again"));
            }
            has_key.then_some(login.person)
        }
        None => state.access.identify(RequestEvidence { token, proxy_name }),
    };
    match identity {
        Some(identity) => {
            if !state.request_limiter.admit(&identity.name) {
                return Err(ApiError::too_many_requests());
            }
            Ok(Some(identity))
        }
        None if is_public(request.uri().path()) => {
            if !state.failure_limiter.admit(&by_address) {
                return Err(ApiError::too_many_requests());
            }
            Ok(None)
        }
        None if !state.failure_limiter.admit(&by_address) => Err(ApiError::too_many_requests()),
        None => Err(ApiError::unauthorized()),
    }
}

/// Refuses requests to another host, and requests that another site has caused.
fn check_origin(state: &ServerState, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).ok_or_else(|| ApiError::forbidden("host", "the request names no host"))?;
    if headers.get_all(header::HOST).iter().count() > 1 || !state.is_own_host(host) {
        return Err(ApiError::forbidden("host", "this server does not answer for that host"));
    }
    let is_safe = is_safe(method);
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"));
    let mode = headers.get("sec-fetch-mode").map(|value| value.to_str().unwrap_or("?"));
    match site {
        None | Some("same-origin" | "none") => {}
        // A link from elsewhere may be followed. The cookie is not sent with it.
        Some(_) if is_safe && mode == Some("navigate") => {}
        Some(_) => return Err(ApiError::forbidden("cross_site", "the request comes from another site")),
    }
    if let Some(origin) = text(header::ORIGIN) {
        let of_origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if of_origin != Some(host) {
            return Err(ApiError::forbidden("cross_site", "the request comes from another site"));
        }
    }
    Ok(())
}

/// Returns true if a request with the method changes nothing.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

/// Returns the value of the cookie of a login.
pub(crate) fn login_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|line| line.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(LOGIN_COOKIE)?.strip_prefix('='))
}

/// Returns true if a browser asks for a page.
fn wants_page(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

fn add_security_headers(headers: &mut HeaderMap) {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("permissions-policy"), "camera=(), microphone=(), geolocation=()"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
