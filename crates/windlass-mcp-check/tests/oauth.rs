//! OAuth credentials that are kept: a later process uses and renews them, and a person is asked only if that fails.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::http::{ReceivedRequest, raw_response, raw_result, serve_raw};
use serde_json::{Value, json};
use windlass_mcp::{
    McpAuth, McpConfig, McpConnections, McpServerConfig, McpServerState, OAuthConfig, OAuthTokenFile,
    ProtocolEra,
};

/// A server that accepts the newest token only, with its authorisation server at the same address.
#[derive(Default)]
struct TokenLedger {
    /// The grants in order: `authorization_code` or `refresh_token`. The n-th one gives token `tn`.
    grants: Mutex<Vec<String>>,
    /// Lifetime of the tokens in seconds.
    lifetime: AtomicUsize,
    /// Visits of the person to the consent page.
    visits: AtomicUsize,
}

impl TokenLedger {
    fn grants(&self) -> Vec<String> {
        self.grants.lock().expect("a ledger").clone()
    }

    fn grant(&self, request: &ReceivedRequest) -> String {
        let kind = request.body_text.split('&').find_map(|pair| pair.strip_prefix("grant_type="));
        let kind = kind.unwrap_or("none").to_owned();
        let mut grants = self.grants.lock().expect("a ledger");
        let newest = format!("refresh_token=r{}", grants.len());
        if kind == "refresh_token" && !request.body_text.split('&').any(|pair| pair == newest) {
            return raw_response("400 Bad Request", "application/json", r#"{"error":"invalid_grant"}"#);
        }
        grants.push(kind);
        let (number, lifetime) = (grants.len(), self.lifetime.load(Ordering::SeqCst));
        let token = json!({ "access_token": format!("t{number}"), "refresh_token": format!("r{number}"),
                            "token_type": "Bearer", "expires_in": lifetime });
        raw_response("200 OK", "application/json", &token.to_string())
    }

    fn serve_mcp(&self, request: &ReceivedRequest) -> String {
        let newest = format!("Bearer t{}", self.grants().len());
        if request.headers.get("authorization") != Some(&newest) {
            let place =
                format!("http://{}/.well-known/oauth-protected-resource/mcp", request.headers["host"]);
            return format!(
                "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer resource_metadata=\"{place}\"\r\n\
                 content-length: 0\r\n\r\n"
            );
        }
        let id = &request.body["id"];
        match request.body["method"].as_str() {
            Some("initialize") => raw_result(
                id,
                &json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                         "serverInfo": { "name": "guarded", "version": "1" } }),
            ),
            Some("tools/list") => {
                raw_result(id, &json!({ "tools": [{ "name": "act", "inputSchema": { "type": "object" } }] }))
            }
            Some(method) if method.starts_with("notifications/") => {
                raw_response("202 Accepted", "text/plain", "")
            }
            _ => raw_response("405 Method Not Allowed", "text/plain", ""),
        }
    }

    fn respond(&self, request: &ReceivedRequest) -> String {
        let base = format!("http://{}", request.headers["host"]);
        let json_of = |value: Value| raw_response("200 OK", "application/json", &value.to_string());
        match request.path.split('?').next().unwrap_or_default() {
            "/mcp" => self.serve_mcp(request),
            "/.well-known/oauth-protected-resource/mcp" => {
                json_of(json!({ "resource": format!("{base}/mcp"), "authorization_servers": [base] }))
            }
            "/.well-known/oauth-authorization-server" => json_of(json!({
                "issuer": base,
                "authorization_endpoint": format!("{base}/authorize"),
                "token_endpoint": format!("{base}/token"),
                "registration_endpoint": format!("{base}/register"),
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            })),
            "/register" => json_of(json!({
                "client_id": "c1", "client_name": "desk", "redirect_uris": ["http://127.0.0.1:1/callback"],
            })),
            "/token" => self.grant(request),
            _ => raw_response("404 Not Found", "text/plain", ""),
        }
    }
}

async fn start_guarded_server(lifetime: usize) -> (Arc<TokenLedger>, SocketAddr) {
    let ledger = Arc::new(TokenLedger { lifetime: lifetime.into(), ..TokenLedger::default() });
    let serving = ledger.clone();
    let address = serve_raw(move |request| serving.respond(&request)).await;
    (ledger, address)
}

/// Connects as a process does that knows only the file.
async fn connect(ledger: &Arc<TokenLedger>, address: SocketAddr, tokens: Option<&Path>) {
    let ledger = ledger.clone();
    let mut oauth = OAuthConfig::new("http://127.0.0.1:1/callback", move |url: String| {
        ledger.visits.fetch_add(1, Ordering::SeqCst);
        async move {
            let state = url.split(['?', '&']).find_map(|pair| pair.strip_prefix("state="));
            let state = state.ok_or_else(|| format!("no state in {url}"))?;
            Ok(format!("http://127.0.0.1:1/callback?code=abc&state={state}"))
        }
    });
    if let Some(path) = tokens {
        oauth = oauth.token_store(OAuthTokenFile::new(path));
    }
    let server = McpServerConfig::http("guarded", format!("http://{address}/mcp"))
        .era(ProtocolEra::Legacy)
        .auth(McpAuth::OAuth(oauth));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let report = servers.report().await;
    let ready = McpServerState::Ready { era: Some(ProtocolEra::Legacy), tools: 1 };
    assert_eq!(report.servers[0].state, ready, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_process_uses_the_token_that_was_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.json");
    let (ledger, address) = start_guarded_server(3600).await;
    for _ in 0..2 {
        connect(&ledger, address, Some(&tokens)).await;
    }
    assert_eq!(
        (ledger.visits.load(Ordering::SeqCst), ledger.grants()),
        (1, vec!["authorization_code".to_owned()])
    );
    // Without a store every process asks.
    connect(&ledger, address, None).await;
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_expired_is_renewed_and_the_new_one_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.json");
    let (ledger, address) = start_guarded_server(0).await;
    connect(&ledger, address, Some(&tokens)).await;
    ledger.lifetime.store(3600, Ordering::SeqCst);
    connect(&ledger, address, Some(&tokens)).await;
    let renewed = ledger.grants();
    assert_eq!(renewed.first().map(String::as_str), Some("authorization_code"));
    assert!(renewed.len() > 1 && renewed[1..].iter().all(|kind| kind == "refresh_token"), "{renewed:?}");
    // The renewed token is used as it is.
    connect(&ledger, address, Some(&tokens)).await;
    assert_eq!((ledger.grants(), ledger.visits.load(Ordering::SeqCst)), (renewed, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_asked_again_if_the_kept_token_is_not_accepted_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens.json");
    let (ledger, address) = start_guarded_server(3600).await;
    connect(&ledger, address, Some(&tokens)).await;
    // The server has given out other tokens, and accepts the newest only.
    ledger.grants.lock().expect("a ledger").extend(["other".to_owned(), "other".to_owned()]);
    connect(&ledger, address, Some(&tokens)).await;
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2);
    connect(&ledger, address, Some(&tokens)).await;
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2, "the new token was kept");
}
