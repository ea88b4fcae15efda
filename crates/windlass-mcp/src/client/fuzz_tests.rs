//! Fuzzing of the messages of servers: framing, repair, and event streams.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use super::event_stream::EventParser;
use super::framing::{MessageScanner, decode_message};

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
