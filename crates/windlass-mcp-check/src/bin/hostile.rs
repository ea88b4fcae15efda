//! A hostile MCP server on standard input and output. A seed decides how it misbehaves in the handshake, in
//! the list of its tools and in each call.
//!
//! Usage: `hostile ERA LEDGER SEED`. ERA is `legacy` or `modern`. The server has one tool, `act`; each call of it is
//! appended to LEDGER as `called NUMBER MISCHIEF`.

use std::io::{BufRead, Write};

use serde_json::{Value, json};
use windlass_mcp_check::append_line;
use windlass_mcp_check::mischief::{Mischief, MischiefSource};

struct HostileServer {
    is_modern: bool,
    ledger: String,
    mischief: MischiefSource,
    seed: u64,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let is_modern = words.next().as_deref() == Some("modern");
    let ledger = words.next().unwrap_or_default();
    let seed = words.next().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let mut mischief = MischiefSource::new(seed);
    // A process that is started again continues the sequence.
    for _ in windlass_mcp_check::read_lines(std::path::Path::new(&ledger)) {
        mischief.draw();
    }
    let mut server = HostileServer { is_modern, ledger, mischief, seed };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            server.handle_message(&message);
        }
    }
}

impl HostileServer {
    fn handle_message(&mut self, message: &Value) {
        let id = &message["id"];
        let preface = match message["method"].as_str() {
            Some("server/discover" | "initialize") => self.seed,
            Some("tools/list") => self.seed + 2,
            _ => 0,
        };
        for line in Mischief::preface_lines(preface, id, self.is_modern) {
            send_line(&line);
        }
        match message["method"].as_str() {
            Some("server/discover") if self.is_modern => self.send_result(
                id,
                json!({
                    "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
                    "serverInfo": { "name": "hostile", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
                }),
            ),
            Some("initialize") if !self.is_modern => self.send_result(
                id,
                json!({
                    "protocolVersion": "2025-11-25", "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": "hostile", "version": "1" },
                }),
            ),
            Some("tools/list") => {
                let schema = json!({ "type": "object", "properties": { "number": { "type": "integer" } } });
                let tool = json!({ "name": "act", "description": "Acts.", "inputSchema": schema });
                let mut list = json!({ "tools": [tool], "ttlMs": 60_000, "cacheScope": "private" });
                // Broken tools around the one that is called, and a list that begins anew for ever.
                if self.seed % 2 == 1 {
                    let long = json!({ "name": "long", "description": "x".repeat(100_000), "inputSchema": { "type": "object" } });
                    let deep = json!({ "name": "deep", "inputSchema": nested_schema(30) });
                    let broken = [json!(7), json!({ "name": "no_schema" }), tool, long, deep];
                    list["tools"].as_array_mut().into_iter().for_each(|tools| tools.extend(broken.clone()));
                }
                if self.seed % 3 == 2 {
                    list["nextCursor"] = "again".into();
                }
                self.send_result(id, list);
            }
            Some("tools/call") => self.misbehave(id, &message["params"]["arguments"]["number"]),
            Some(method) if method.starts_with("notifications/") => {}
            Some(_) => send_line(
                &json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no such method" } })
                    .to_string()
                    .into_bytes(),
            ),
            None => {}
        }
    }

    fn send_result(&self, id: &Value, mut result: Value) {
        if self.is_modern {
            result["resultType"] = "complete".into();
        }
        send_line(json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string().as_bytes());
    }

    fn misbehave(&mut self, id: &Value, number: &Value) {
        let mischief = self.mischief.draw();
        append_line(&self.ledger, &format!("called {number} {mischief:?}"));
        for line in mischief.response_lines(id, self.is_modern) {
            send_line(&line);
        }
        if mischief == Mischief::Exit {
            std::process::exit(7);
        }
    }
}

/// Returns a schema of objects in objects.
fn nested_schema(depth: usize) -> Value {
    (0..depth).fold(
        json!({ "type": "object" }),
        |inner, _| json!({ "type": "object", "properties": { "inner": inner } }),
    )
}

fn send_line(line: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _gone = out.write_all(line).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
}
