//! The client over HTTP against a server without an SDK: overload, broken responses, reused connections, and the older
//! HTTP+SSE transport.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::call_outputs;
use common::http::{ReceivedRequest, raw_response, raw_result, serve_raw};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::prelude::*;
use windlass_mcp::net::testing::{TestProxy, start_tls_front, test_roots};
use windlass_mcp::net::{HttpClient, ProxySettings};
use windlass_mcp::{
    McpApprovalPolicy, McpAuth, McpConfig, McpConnections, McpServerConfig, McpServerState, OAuthConfig,
    ProtocolEra,
};

/// The calls of the tool, and the connections that they came on.
#[derive(Default)]
struct CallLog(Mutex<Vec<(String, usize)>>);

impl CallLog {
    fn calls_of(&self, kind: &str) -> usize {
        self.0.lock().expect("a log").iter().filter(|(name, _)| name == kind).count()
    }

    fn connections(&self) -> usize {
        let log = self.0.lock().expect("a log");
        log.iter().map(|(_, connection)| connection).collect::<std::collections::BTreeSet<_>>().len()
    }
}

fn handshake_or_list(request: &ReceivedRequest) -> Option<String> {
    let id = &request.body["id"];
    match request.body["method"].as_str() {
        _ if request.method != "POST" => Some(raw_response("405 Method Not Allowed", "text/plain", "")),
        Some("initialize") => Some(raw_result(
            id,
            &json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                     "serverInfo": { "name": "raw", "version": "1" } }),
        )),
        Some("tools/list") => Some(raw_result(
            id,
            &json!({ "tools": [
                { "name": "act", "description": "Acts.", "inputSchema": { "type": "object",
                  "properties": { "kind": { "type": "string" } } } },
                { "name": "look", "description": "Looks.", "inputSchema": { "type": "object",
                  "properties": { "kind": { "type": "string" } } }, "annotations": { "readOnlyHint": true } },
            ] }),
        )),
        Some("tools/call") => None,
        Some(method) if method.starts_with("notifications/") => {
            Some(raw_response("202 Accepted", "text/plain", ""))
        }
        _ => Some(raw_response("400 Bad Request", "text/plain", "what?")),
    }
}

fn redirect(status: &str, location: &str) -> String {
    format!("HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
}

fn raw_error(id: &Value, code: i32, message: &str) -> String {
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    raw_response("200 OK", "application/json", &body.to_string())
}

fn overloaded(status: &str, retry_after: Option<&str>) -> String {
    let header = retry_after.map(|value| format!("retry-after: {value}\r\n")).unwrap_or_default();
    format!("HTTP/1.1 {status}\r\n{header}content-length: 0\r\n\r\n")
}

/// Starts the server and calls its tool `act` (for the kind `look` its tool `look`) once for each kind, in turns. Returns the outputs and the log.
async fn call_kinds(kinds: &[&str]) -> (BTreeMap<String, String>, Arc<CallLog>) {
    let log = Arc::new(CallLog::default());
    let seen = log.clone();
    let address = serve_raw(move |request| {
        if let Some(response) = handshake_or_list(&request) {
            return response;
        }
        let kind = request.body["params"]["arguments"]["kind"].as_str().unwrap_or_default().to_owned();
        seen.0.lock().expect("a log").push((kind.clone(), request.connection));
        answer_call(&kind, &request.body["id"], seen.calls_of(&kind))
    })
    .await;
    let server = McpServerConfig::http("raw", format!("http://{address}/mcp"))
        .era(ProtocolEra::Legacy)
        .trusted()
        .call_timeout(Duration::from_secs(3600));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let tool = |kind: &str| if kind == "look" { "look" } else { "act" };
    let turns = kinds.iter().map(|kind| ScriptedResponse::call(kind, tool(kind), json!({ "kind": kind })));
    let model = ScriptedModel::new(turns.chain([ScriptedResponse::text("done")]));
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let running = agent.run("go").max_turns(100);
    let outcome = tokio::time::timeout(Duration::from_secs(600), running.into_future());
    let outcome = outcome.await.expect("no call waits for its timeout").expect("the run ends well");
    (call_outputs(&outcome), log)
}

fn answer_call(kind: &str, id: &Value, times: usize) -> String {
    let text = |words: &str| json!({ "content": [{ "type": "text", "text": words }] });
    let events = |data: &str| raw_response("200 OK", "text/event-stream", &format!("data: {data}\n\n"));
    match kind {
        "busy" if times < 3 => overloaded("429 Too Many Requests", Some("0")),
        "away" if times < 2 => overloaded("503 Service Unavailable", Some("0.1")),
        "always busy" => overloaded("429 Too Many Requests", Some("86400")),
        // A date that the server's clock has almost reached, and one that it passed.
        "dated" if times < 3 => overloaded(
            "503 Service Unavailable",
            Some(if times == 1 {
                "Wed, 21 Oct 2015 07:28:01 GMT\r\ndate: Wed, 21 Oct 2015 07:28:00 GMT"
            } else {
                "Wed, 21 Oct 2015 07:28:00 GMT"
            }),
        ),
        "lost" => overloaded("503 Service Unavailable", None),
        "broken" => overloaded("500 Internal Server Error", None),
        "see other" => redirect("303 See Other", "/results/7"),
        "login" => redirect("302 Found", "https://login.windlass.test/"),
        "moved" => redirect("307 Temporary Redirect", "https://elsewhere.windlass.test/mcp"),
        "given up" => overloaded("408 Request Timeout", None),
        "look" => raw_error(id, -32603, "the line broke"),
        "bad request" => {
            let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": "the line broke" } });
            raw_response("400 Bad Request", "application/json", &error.to_string())
        }
        kind if kind.starts_with('-') => raw_error(id, kind.parse().expect("a code"), "the line broke"),
        "refused" => raw_response("422 Unprocessable Content", "text/plain", "no such thing"),
        "surrogate" => raw_response(
            "200 OK",
            "application/json",
            &format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"a\ud800b"}}]}}}}"#
            ),
        ),
        "garbage" => raw_response("200 OK", "application/json", "<html>"),
        "surrogate event" => events(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"a\ud800b"}}]}}}}"#
        )),
        "deep event" => events(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{}{}}}"#,
            "[".repeat(500),
            "]".repeat(500)
        )),
        other => raw_result(id, &text(other)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_server_is_asked_again_as_it_says() {
    let (said, log) =
        call_kinds(&["busy", "away", "dated", "always busy", "lost", "broken", "refused"]).await;
    assert_eq!((said["busy"].as_str(), log.calls_of("busy")), ("busy", 3));
    assert_eq!((said["away"].as_str(), log.calls_of("away")), ("away", 2));
    assert_eq!((said["dated"].as_str(), log.calls_of("dated")), ("dated", 3));
    assert!(said["always busy"].contains("The call was not made"), "{said:?}");
    assert!(said["always busy"].contains("86400"), "{said:?}");
    assert!(said["refused"].contains("no such thing") && said["refused"].contains("not made"), "{said:?}");
    // The server does not say that it did nothing, so the call is made once and its outcome is unknown.
    for kind in ["lost", "broken"] {
        assert!(said[kind].contains("is not known"), "{said:?}");
        assert_eq!(log.calls_of(kind), 1);
    }
    assert_eq!(log.calls_of("refused"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_cannot_be_read_settles_its_call() {
    let (said, _) = call_kinds(&["surrogate", "garbage", "surrogate event", "deep event"]).await;
    assert_eq!(said["surrogate"], "a\u{fffd}b");
    assert_eq!(said["surrogate event"], "a\u{fffd}b");
    assert!(said["garbage"].contains("cannot be read") && said["garbage"].contains("<html>"), "{said:?}");
    assert!(said["deep event"].contains("recursion limit"), "{said:?}");
    assert!(!said["deep event"].contains("try again"), "{said:?}");
}

/// A status or an error proves that a call was not executed only if it says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_counts_as_not_made_only_if_the_server_says_so() {
    let unknown = ["see other", "login", "moved", "given up", "-32603", "-32000", "-1"];
    let known = ["-32700", "-32600", "-32601", "-32602", "-32002", "-32021", "bad request", "look"];
    let (said, log) = call_kinds(&[unknown.as_slice(), &known].concat()).await;
    for kind in unknown {
        assert!(said[kind].contains("not known whether it took effect"), "{kind}: {}", said[kind]);
        assert!(!said[kind].contains("try again"), "{kind}: {}", said[kind]);
        assert_eq!(log.calls_of(kind), 1, "{kind}");
    }
    for kind in known {
        assert!(said[kind].contains("the line broke"), "{kind}: {}", said[kind]);
        assert!(!said[kind].contains("not known"), "{kind}: {}", said[kind]);
    }
}

/// Responds as a server with a long description of its tool, templates on two pages and resources without an end.
fn endless_lists(request: &ReceivedRequest, refuses_templates: bool) -> String {
    let id = &request.body["id"];
    let cursor =
        request.body["params"]["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    match request.body["method"].as_str() {
        Some("initialize") => raw_result(
            id,
            &json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {}, "resources": {} },
                     "serverInfo": { "name": "raw", "version": "1" } }),
        ),
        Some("tools/list") => {
            let description = "word ".repeat(2000);
            raw_result(
                id,
                &json!({ "tools": [{ "name": "act", "description": description, "inputSchema": { "type": "object" } }] }),
            )
        }
        Some("resources/list") => {
            let mut page = json!({ "resources": [{ "uri": format!("a://{cursor}"), "name": "one" }] });
            if !refuses_templates {
                page["nextCursor"] = (cursor + 1).to_string().into();
            }
            raw_result(id, &page)
        }
        Some("resources/templates/list") if refuses_templates => raw_error(id, -32603, "the shelf is stuck"),
        Some("resources/templates/list") => {
            let mut page = json!({ "resourceTemplates": [{ "uriTemplate": format!("t://{cursor}/{{x}}"), "name": "form" }] });
            if cursor == 0 {
                page["nextCursor"] = "1".into();
            }
            raw_result(id, &page)
        }
        _ => handshake_or_list(request).unwrap_or_default(),
    }
}

/// Whatever is left out of a list is named.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_out_of_a_list_silently() {
    let mut config = McpConfig::new();
    for (name, refuses_templates) in [("endless", false), ("stuck", true)] {
        let address = serve_raw(move |request| endless_lists(&request, refuses_templates)).await;
        let server = McpServerConfig::http(name, format!("http://{address}/mcp")).era(ProtocolEra::Legacy);
        config = config.server(server);
    }
    let config =
        config.server(McpServerConfig::http("gone", "http://127.0.0.1:1/mcp").era(ProtocolEra::Legacy));
    let servers = McpConnections::connect(config).await;
    let report = servers.report().await;
    let warnings = report.servers[0].warnings.join("\n");
    assert!(warnings.contains("tool `act` in 10000 bytes; the model sees the first 8192"), "{warnings}");
    let catalogue = servers.list_resources().await;
    let templates = catalogue.items.iter().filter(|item| item.uri.starts_with("t://"));
    assert_eq!(templates.map(|item| item.uri.as_str()).collect::<Vec<_>>(), ["t://0/{x}", "t://1/{x}"]);
    let problems = |server: &str| {
        let found = catalogue.unavailable.iter().find(|problem| problem.server == server);
        found.map(|problem| problem.reason.clone()).unwrap_or_default()
    };
    assert!(problems("endless").contains("more than 100 pages"), "{catalogue:?}");
    assert!(problems("stuck").contains("the shelf is stuck"), "{catalogue:?}");
    assert!(!problems("gone").is_empty(), "{catalogue:?}");
    assert_eq!(servers.list_prompts().await.unavailable.len(), 1, "only `gone` does not say what it has");
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "list_mcp_resources", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent: Agent = Agent::new("desk").model(model).tools(servers.resource_tools());
    let said = call_outputs(&agent.run("go").await.expect("the run ends well"));
    assert!(said["c1"].contains("\"server\":\"gone\""), "the model is told, too: {said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reused() {
    let kinds: Vec<String> = (0..20).map(|at| format!("k{at}")).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let (said, log) = call_kinds(&kinds).await;
    assert_eq!(said.len(), 20);
    assert!(log.connections() <= 2, "20 calls used {} connections", log.connections());
}

/// The reason of a failed connection names what the server answered.
#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_a_failed_connection_is_shown() {
    let address = serve_raw(|_| raw_response("418 I'm a teapot", "text/plain", "short and stout")).await;
    let server = McpServerConfig::http("tea", format!("http://{address}/mcp"));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let missing = servers.report().await.unavailable_servers().join("\n");
    assert!(missing.contains("418") && missing.contains("short and stout"), "{missing}");
}

/// A server from before streamable HTTP: it refuses POST at its URL, and names another URL on an event stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_older_transport_is_recognised() {
    let address = serve_older_transport().await;
    let server = McpServerConfig::http("older", format!("http://{address}/sse"));
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let report = servers.report().await;
    assert_eq!(
        report.servers[0].state,
        McpServerState::Ready { era: Some(ProtocolEra::Legacy), tools: 1 },
        "{report:?}"
    );
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "act", json!({ "kind": "hello" })),
        ScriptedResponse::text("done"),
    ]);
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let outcome = agent.run("go").await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c1"], "hello");
}

async fn serve_older_transport() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (events, _) = tokio::sync::broadcast::channel::<String>(16);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let events = events.clone();
            tokio::spawn(async move {
                let mut heard = Vec::new();
                let mut piece = [0; 4096];
                loop {
                    let read = stream.read(&mut piece).await.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    heard.extend_from_slice(&piece[..read]);
                    let text = String::from_utf8_lossy(&heard).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let response = match head.split(' ').take(2).collect::<Vec<_>>().as_slice() {
                        ["GET", "/sse"] => {
                            let mut said = events.subscribe();
                            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                            let first = "event: endpoint\ndata: /messages?session=7\n\n";
                            let _gone = stream.write_all(format!("{head}{first}").as_bytes()).await;
                            while let Ok(message) = said.recv().await {
                                let event = format!("event: message\ndata: {message}\n\n");
                                if stream.write_all(event.as_bytes()).await.is_err() {
                                    return;
                                }
                            }
                            return;
                        }
                        ["POST", "/messages?session=7"] => {
                            let Ok(body) = serde_json::from_str::<Value>(body) else { continue };
                            if let Some(answer) = older_answer(&body) {
                                let _nobody = events.send(answer.to_string());
                            }
                            raw_response("202 Accepted", "text/plain", "Accepted")
                        }
                        _ => raw_response("405 Method Not Allowed", "text/plain", ""),
                    };
                    heard.clear();
                    let _gone = stream.write_all(response.as_bytes()).await;
                }
            });
        }
    });
    address
}

fn older_answer(request: &Value) -> Option<Value> {
    let result = match request["method"].as_str()? {
        "initialize" => json!({ "protocolVersion": "2024-11-05", "capabilities": { "tools": {} },
                                "serverInfo": { "name": "older", "version": "1" } }),
        "tools/list" => json!({ "tools": [{ "name": "act", "inputSchema": { "type": "object" } }] }),
        "tools/call" => {
            json!({ "content": [{ "type": "text", "text": request["params"]["arguments"]["kind"] }] })
        }
        _ => return None,
    };
    Some(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }))
}

/// A server with TLS behind a proxy that requires CONNECT, a user name and a password.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_reached_through_a_proxy_with_a_login() {
    let address = serve_raw(|request| {
        let kind = request.body["params"]["arguments"]["kind"].as_str().unwrap_or_default().to_owned();
        handshake_or_list(&request).unwrap_or_else(|| answer_call(&kind, &request.body["id"], 1))
    })
    .await;
    let front = start_tls_front(address).await.expect("a port");
    let proxy = TestProxy::start([("mcp.windlass.test", front), ("plain.windlass.test", address)]).await;
    let proxy = proxy.expect("a proxy");
    let client = |proxy: &str| {
        HttpClient::new()
            .proxies(ProxySettings::everywhere(proxy).expect("an address"))
            .trusted_roots(test_roots().expect("certificates"))
    };
    for url in ["https://mcp.windlass.test/mcp", "http://plain.windlass.test/mcp"] {
        let server =
            McpServerConfig::http("far", url).era(ProtocolEra::Legacy).http_client(client(&proxy.url()));
        let servers = McpConnections::connect(McpConfig::new().server(server)).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "act", json!({ "kind": "hello" })),
            ScriptedResponse::text("done"),
        ]);
        let agent =
            Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["c1"], "hello");
    }
    let asked = proxy.requests();
    assert!(asked.contains(&"CONNECT mcp.windlass.test:443 HTTP/1.1".to_owned()), "{asked:?}");
    assert!(asked.contains(&"POST http://plain.windlass.test/mcp HTTP/1.1".to_owned()), "{asked:?}");

    let wrong = client(&proxy.url_with_login("worker:guessed"));
    let server = McpServerConfig::http("far", "https://mcp.windlass.test/mcp").http_client(wrong);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let missing = servers.report().await.unavailable_servers().join("\n");
    assert!(missing.contains(&proxy.place()) && missing.contains("user name and password"), "{missing}");
    assert!(!missing.contains("guessed"), "{missing}");
}

/// An OAuth flow behind the same proxy: the challenge, the metadata, the registration and the token.
#[tokio::test(flavor = "multi_thread")]
async fn an_oauth_flow_goes_through_the_proxy() {
    let has_token = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let granted = has_token.clone();
    let address = serve_raw(move |request| {
        let json_of = |value: Value| raw_response("200 OK", "application/json", &value.to_string());
        let path = request.path.split('?').next().unwrap_or_default().to_owned();
        match path.as_str() {
            "/mcp" if !granted.load(std::sync::atomic::Ordering::SeqCst) => {
                let place = "https://mcp.windlass.test/.well-known/oauth-protected-resource/mcp";
                format!(
                    "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer resource_metadata=\"{place}\"\r\n\
                     content-length: 0\r\n\r\n"
                )
            }
            "/mcp" => {
                let kind =
                    request.body["params"]["arguments"]["kind"].as_str().unwrap_or_default().to_owned();
                handshake_or_list(&request).unwrap_or_else(|| answer_call(&kind, &request.body["id"], 1))
            }
            "/.well-known/oauth-protected-resource/mcp" => json_of(json!({
                "resource": "https://mcp.windlass.test/mcp",
                "authorization_servers": ["https://mcp.windlass.test"],
            })),
            "/.well-known/oauth-authorization-server" => json_of(json!({
                "issuer": "https://mcp.windlass.test",
                "authorization_endpoint": "https://mcp.windlass.test/authorize",
                "token_endpoint": "https://mcp.windlass.test/token",
                "registration_endpoint": "https://mcp.windlass.test/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            })),
            "/register" => json_of(json!({
                "client_id": "c1", "client_name": "desk", "redirect_uris": ["http://127.0.0.1:1/callback"],
            })),
            "/token" => {
                granted.store(true, std::sync::atomic::Ordering::SeqCst);
                json_of(json!({ "access_token": "t1", "token_type": "Bearer", "expires_in": 3600 }))
            }
            _ => raw_response("404 Not Found", "text/plain", ""),
        }
    })
    .await;
    let front = start_tls_front(address).await.expect("a port");
    let proxy = TestProxy::start([("mcp.windlass.test", front)]).await.expect("a proxy");
    let client = HttpClient::new()
        .proxies(ProxySettings::everywhere(&proxy.url()).expect("an address"))
        .trusted_roots(test_roots().expect("certificates"));
    let oauth = OAuthConfig::new("http://127.0.0.1:1/callback", |address: String| async move {
        let state = address.split(['?', '&']).find_map(|pair| pair.strip_prefix("state="));
        let state = state.ok_or_else(|| format!("no state in {address}"))?;
        Ok(format!("http://127.0.0.1:1/callback?code=abc&state={state}"))
    });
    let server = McpServerConfig::http("far", "https://mcp.windlass.test/mcp")
        .era(ProtocolEra::Legacy)
        .auth(McpAuth::OAuth(oauth))
        .http_client(client);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let report = servers.report().await;
    assert_eq!(
        report.servers[0].state,
        McpServerState::Ready { era: Some(ProtocolEra::Legacy), tools: 2 },
        "{report:?}"
    );
    assert!(has_token.load(std::sync::atomic::Ordering::SeqCst));
    assert!(proxy.requests().iter().all(|asked| asked == "CONNECT mcp.windlass.test:443 HTTP/1.1"));
}
