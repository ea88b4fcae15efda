//! OAuth credentials that are kept: a later process uses and renews them, and a person is asked only if that fails.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use std::time::Duration;

use common::http::{ReceivedRequest, raw_response, raw_result, serve_raw_async};
use common::{call_outputs, wait_until};
use serde_json::Value;
use tokio::sync::Notify;
use windlass::prelude::*;
use windlass_mcp::{
    McpApprovalPolicy, McpAuth, McpConfig, McpConnections, McpServerConfig, McpServerState, OAuthConfig,
    OAuthTokenFile, ProtocolEra,
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
    /// Calls that were refused because of their token.
    refused_calls: AtomicUsize,
    /// Calls of `wait` that have begun.
    waiting_calls: AtomicUsize,
    /// Ends a call of `wait`.
    end_wait: Notify,
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

    /// Makes the server refuse the tokens that it has given out.
    fn revoke(&self) {
        self.grants.lock().expect("a ledger").push("other".to_owned());
    }

    async fn serve_mcp(&self, request: &ReceivedRequest) -> String {
        let newest = format!("Bearer t{}", self.grants().len());
        if request.headers.get("authorization") != Some(&newest) {
            if request.body["method"] == "tools/call" {
                self.refused_calls.fetch_add(1, Ordering::SeqCst);
            }
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
                let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
                raw_result(id, &json!({ "tools": [tool("act"), tool("wait")] }))
            }
            Some("tools/call") => {
                if request.body["params"]["name"] == "wait" {
                    self.waiting_calls.fetch_add(1, Ordering::SeqCst);
                    self.end_wait.notified().await;
                }
                raw_result(id, &json!({ "content": [{ "type": "text", "text": "done so" }] }))
            }
            Some(method) if method.starts_with("notifications/") => {
                raw_response("202 Accepted", "text/plain", "")
            }
            _ => raw_response("405 Method Not Allowed", "text/plain", ""),
        }
    }

    async fn respond(&self, request: &ReceivedRequest) -> String {
        let base = format!("http://{}", request.headers["host"]);
        let json_of = |value: Value| raw_response("200 OK", "application/json", &value.to_string());
        match request.path.split('?').next().unwrap_or_default() {
            "/mcp" => self.serve_mcp(request).await,
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
    let address = serve_raw_async(move |request| {
        let serving = serving.clone();
        async move { serving.respond(&request).await }
    })
    .await;
    (ledger, address)
}

/// Returns the settings of a person who consents after `deliberate` has ended.
fn consenting<Fut>(
    ledger: &Arc<TokenLedger>,
    deliberate: impl Fn(Arc<TokenLedger>) -> Fut + Send + Sync + 'static,
) -> OAuthConfig
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let ledger = ledger.clone();
    OAuthConfig::new("http://127.0.0.1:1/callback", move |url: String| {
        ledger.visits.fetch_add(1, Ordering::SeqCst);
        let deliberated = deliberate(ledger.clone());
        async move {
            deliberated.await;
            let state = url.split(['?', '&']).find_map(|pair| pair.strip_prefix("state="));
            let state = state.ok_or_else(|| format!("no state in {url}"))?;
            Ok(format!("http://127.0.0.1:1/callback?code=abc&state={state}"))
        }
    })
}

fn guarded_server(address: SocketAddr, oauth: OAuthConfig) -> McpServerConfig {
    McpServerConfig::http("guarded", format!("http://{address}/mcp"))
        .era(ProtocolEra::Legacy)
        .auth(McpAuth::OAuth(oauth))
}

/// Connects as a process does that knows only the file.
async fn connect(ledger: &Arc<TokenLedger>, address: SocketAddr, tokens: Option<&Path>) {
    let mut oauth = consenting(ledger, |_| std::future::ready(()));
    if let Some(path) = tokens {
        oauth = oauth.token_store(OAuthTokenFile::new(path));
    }
    let server = guarded_server(address, oauth);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let report = servers.report().await;
    let ready = McpServerState::Ready { era: Some(ProtocolEra::Legacy), tools: 2 };
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

/// Returns an agent that makes these calls at the same time.
fn agent_calling(servers: &McpConnections, tools: &[&str]) -> Agent {
    let call = |at: usize, tool: &str| (format!("c{at}"), tool.to_owned());
    let mut calls = tools.iter().enumerate().map(|(at, tool)| call(at, tool));
    let (id, tool) = calls.next().expect("a call");
    let first = ScriptedResponse::call(&id, &tool, json!({}));
    let all = calls.fold(first, |response, (id, tool)| response.and_call(&id, &tool, json!({})));
    let model = ScriptedModel::new([all, ScriptedResponse::text("done")]);
    Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never))
}

/// Two calls are refused because of the same token. The person consents once, and both are made.
#[tokio::test(flavor = "multi_thread")]
async fn one_consent_is_enough_for_all_calls() {
    let (ledger, address) = start_guarded_server(3600).await;
    // At the second visit the person waits until both calls were refused.
    let oauth = consenting(&ledger, |ledger| async move {
        if ledger.visits.load(Ordering::SeqCst) > 1 {
            wait_until(|| ledger.refused_calls.load(Ordering::SeqCst) >= 2).await;
        }
    });
    let servers = McpConnections::connect(McpConfig::new().server(guarded_server(address, oauth))).await;
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 1);
    ledger.revoke();
    let outcome = agent_calling(&servers, &["act", "act"]).run("go").await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert_eq!((said["c0"].as_str(), said["c1"].as_str()), ("done so", "done so"));
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2);
}

/// A call is at work while another one needs a new authorisation.
#[tokio::test(flavor = "multi_thread")]
async fn an_authorisation_does_not_disturb_calls_in_flight() {
    let (ledger, address) = start_guarded_server(3600).await;
    let oauth = consenting(&ledger, |_| std::future::ready(()));
    let servers = McpConnections::connect(McpConfig::new().server(guarded_server(address, oauth))).await;
    let first = tokio::spawn(agent_calling(&servers, &["wait"]).run("go").into_future());
    wait_until(|| ledger.waiting_calls.load(Ordering::SeqCst) == 1).await;
    ledger.revoke();
    let outcome = agent_calling(&servers, &["act"]).run("go").await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c0"], "done so");
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2);
    ledger.end_wait.notify_one();
    let outcome = first.await.expect("the task ends").expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c0"], "done so");
}

/// The time in which a person consents is not time of the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_consent_may_take_longer_than_a_call() {
    let (ledger, address) = start_guarded_server(3600).await;
    let oauth = consenting(&ledger, |ledger| async move {
        if ledger.visits.load(Ordering::SeqCst) > 1 {
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
    });
    let server = guarded_server(address, oauth).call_timeout(Duration::from_secs(5));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    ledger.revoke();
    let outcome = agent_calling(&servers, &["act"]).run("go").await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c0"], "done so");
    assert_eq!(ledger.visits.load(Ordering::SeqCst), 2);
}
