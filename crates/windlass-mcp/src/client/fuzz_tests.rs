//! Fuzzing of the messages of servers: framing, repair, event streams, contents, and the OAuth flow.

#![cfg(target_os = "linux")]

use std::net::IpAddr;

use rmcp::model::{ElicitRequestParams, ErrorData};
use rmcp::transport::auth::AuthorizationMetadata;
use serde_json::Value;
use windlass::core::schema::CompiledSchema;
use windlass_fuzz::FuzzTarget;
use windlass_net::Bytes;
use windlass_net::http::header::{AUTHORIZATION, HeaderValue, LOCATION};
use windlass_net::http::{Method, Request, StatusCode, Uri};

use super::content::{ServerToolResult, convert_result};
use super::elicitation::{question_from_elicitation, question_from_url_error};
use super::event_stream::EventParser;
use super::framing::{MessageScanner, decode_message};
use super::list::parse_tool;
use super::oauth::challenge_scopes;
use super::oauth_client::{metadata_guard, redirected};

const SEEDS: [&str; 4] = [
    r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hi \ud83d\ude00"}],"isError":false}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a","progress":1e400}}"#,
    "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"x\",\"error\":{\"code\":-32600,\"message\":\"no\"}}\n\n",
    "id: 7\rretry: 9\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"roots/list\"}\n\n",
];
const WORDS: [&str; 8] = [
    "\"jsonrpc\":\"2.0\"",
    "\"id\":",
    "\"method\":",
    "\"result\":{",
    "data:",
    "\n\n",
    "\\ud8",
    "\"params\":",
];

#[test]
fn messages_of_a_server() {
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "mcp_messages").seeds(SEEDS).words(WORDS);
    target.run(module_path!(), "messages_of_a_server", |input| {
        let _ = decode_message(input);
        let mut scanner = MessageScanner::default();
        let mut parser = EventParser::new(None);
        for piece in input.chunks(5) {
            scanner.feed(piece);
            let _ = parser.feed(piece);
        }
        let _ = scanner.response_id();
    });
}

/// Tool results, tools of a list, and questions of a server.
#[test]
fn contents_of_a_server() {
    let seeds = [
        r#"{"content":[{"type":"text","text":"hi"},{"type":"image","data":"AAAA","mimeType":"image/png"},{"type":"audio","data":"!","mimeType":""},{"type":"resource_link","uri":"file:///x","name":"x"},{"type":"resource","resource":{"uri":"a:b","blob":"AAAA"}},{"type":"tomorrow"}],"structuredContent":{"degrees":21},"isError":true}"#,
        r#"{"content":{"type":"text"},"structuredContent":{"result":"hi"}}"#,
        r##"{"name":"t","title":"T","description":"d","inputSchema":{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}}},"outputSchema":{"type":"object","required":["degrees"]},"annotations":{"readOnlyHint":true,"title":"x"}}"##,
        r#"{"message":"Who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","enum":["a"]}}}}"#,
        r#"{"mode":"url","elicitationId":"1","message":"Log in","url":"https://x/y"}"#,
        r#"{"code":-32042,"message":"first","data":{"elicitations":[{"url":"https://x","message":"m"},{"url":7}]}}"#,
    ];
    let words = [
        "\"content\":[",
        "\"type\":\"text\"",
        "\"structuredContent\":",
        "\"$ref\":\"#",
        "\"inputSchema\":{",
        "\"data\":\"AAAA\"",
    ];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "mcp_contents").seeds(seeds).words(words);
    let expected = CompiledSchema::new(
        serde_json::json!({ "type": "object", "properties": { "degrees": { "type": "number" } }, "required": ["degrees"] })
            .into(),
    );
    target.run(module_path!(), "contents_of_a_server", |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
        for expected in [None, Some(&expected)] {
            if let Some(result) = ServerToolResult::from_value(value.clone()) {
                let _ = convert_result(result, expected);
            }
        }
        let _ = parse_tool(&"server".into(), value.clone());
        if let Ok(params) = serde_json::from_value::<ElicitRequestParams>(value.clone()) {
            let _ = question_from_elicitation(&params);
        }
        if let Ok(error) = serde_json::from_value::<ErrorData>(value) {
            let _ = question_from_url_error(&error);
        }
    });
}

/// The metadata of an authorisation server, its challenges and its redirects.
#[test]
fn metadata_of_an_authorisation_server() {
    let seeds = [
        r#"{"issuer":"https://as.test","authorization_endpoint":"https://as.test/a","token_endpoint":"http://169.254.169.254/t","registration_endpoint":"/r","scopes_supported":["a"],"code_challenge_methods_supported":["S256"],"x":1}"#,
        "Bearer resource_metadata=\"https://x/.well-known\", scope=\"a b\", error=\"insufficient_scope\"",
        "//elsewhere.test/path?a#b",
        "http://[::ffff:127.0.0.1]:9/%2e%2e/\\x",
    ];
    let words =
        ["\"issuer\":", "\"token_endpoint\":\"", "scope=\"", "http://", "[::1]", "localhost.", "@", "#"];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "mcp_oauth").seeds(seeds).words(words);
    target.run(module_path!(), "metadata_of_an_authorisation_server", |input| {
        let text = String::from_utf8_lossy(input);
        let _ = serde_json::from_str::<AuthorizationMetadata>(&text);
        let _ = challenge_scopes(&text);
        let guard = metadata_guard(&text);
        assert!(guard.admits("x", IpAddr::from([1, 1, 1, 1])), "public addresses are always allowed");
        let Ok(location) = HeaderValue::from_bytes(input) else { return };
        let mut request = Request::new(Bytes::from_static(b"secret"));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("https://as.test/token");
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Basic eDp5"));
        let headers = [(LOCATION, location)].into_iter().collect();
        if let Some(next) = redirected(&request, StatusCode::TEMPORARY_REDIRECT, &headers) {
            let is_same = next.uri().host() == Some("as.test");
            assert!(is_same || !next.headers().contains_key(AUTHORIZATION), "{}", next.uri());
        }
    });
}

#[test]
fn configurations() {
    let seeds = [
        r#"{"mcpServers":{"files":{"command":"npx","args":["-y","${HOME:-x}"],"env":{"A":"$$"},"cwd":"."}}}"#,
        r#"{"mcpServers":{"web":{"type":"http","url":"https://x/${B}","headers":{"Authorization":"Bearer ${KEY}"}}}}"#,
    ];
    let words = [
        "${",
        "}",
        ":-",
        "\"command\":",
        "\"url\":",
        "\"headers\":{",
        "\"type\":\"sse\"",
        "\"disabled\":true",
    ];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "mcp_config").seeds(seeds).words(words);
    target.run(module_path!(), "configurations", |input| {
        let text = String::from_utf8_lossy(input);
        // A variable that names another one is not expanded again, so that the text stays within its bounds.
        let _ = crate::McpConfig::from_text(&text, &|_| Some("${HOME}${HOME}".to_owned()));
    });
}
