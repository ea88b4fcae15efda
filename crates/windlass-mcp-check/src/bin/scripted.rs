//! An MCP server on standard input and output that behaves badly on purpose. It knows nothing of any SDK.
//!
//! `scripted ERA LEDGER [FAULT…]`: the era is `legacy` or `modern`; calls and cancellations are noted in the ledger.

use std::io::{BufRead, Write};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_mcp_check::note;

struct Server {
    modern: bool,
    ledger: String,
    faults: Vec<String>,
    /// How often the list has grown.
    grown: usize,
    /// A call that waits for the answer to a question, in the earlier life of the protocol.
    asking: Option<Value>,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let era = words.next().unwrap_or_default();
    let ledger = words.next().unwrap_or_default();
    let mut server =
        Server { modern: era == "modern", ledger, faults: words.collect(), grown: 0, asking: None };
    if server.has("mute") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    if server.has("dead") {
        eprintln!("I was never any good");
        std::process::exit(3);
    }
    if server.has("tells") {
        note(&server.ledger, &format!("process {}", std::process::id()));
    }
    if server.has("child") {
        // A grandchild that would outlive everybody.
        let spawned = std::process::Command::new("sleep").arg("3600").spawn();
        note(&server.ledger, &format!("grandchild {}", spawned.map_or(0, |child| child.id())));
    }
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            server.take(&message);
        }
    }
    // One that does not go when it should.
    while server.has("stubborn") {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

impl Server {
    fn has(&self, fault: &str) -> bool {
        self.faults.iter().any(|one| one == fault)
    }

    fn take(&mut self, message: &Value) {
        let id = &message["id"];
        match message["method"].as_str() {
            Some("server/discover") if self.modern => self.answer(
                id,
                json!({
                    "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": "scripted", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
                }),
            ),
            Some("initialize") if !self.modern => self.answer(
                id,
                json!({
                    "protocolVersion": "2025-11-25", "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": "scripted", "version": "1" },
                }),
            ),
            Some("subscriptions/listen") if self.modern => send(&json!({
                "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "notifications": { "toolsListChanged": true }, "_meta": { "io.modelcontextprotocol/subscriptionId": id } },
            })),
            Some("tools/list") => self.list(id, &message["params"]),
            Some("tools/call") => self.call(id, &message["params"]),
            Some("notifications/cancelled") => {
                note(&self.ledger, &format!("cancelled {}", message["params"]["reason"]));
            }
            Some(method) if method.starts_with("notifications/") => {}
            Some(method) => send(&json!({
                "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": format!("no method {method}") },
            })),
            None => self.answered(message),
        }
    }

    fn answer(&self, id: &Value, mut result: Value) {
        if self.modern && result["resultType"].is_null() {
            result["resultType"] = "complete".into();
        }
        send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn text(&self, id: &Value, text: &str) {
        self.answer(id, json!({ "content": [{ "type": "text", "text": text }] }));
    }

    fn list(&self, id: &Value, params: &Value) {
        note(&self.ledger, "listed");
        if self.has("many") {
            let page: usize = params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
            let tools: Vec<Value> =
                (page * 100..page * 100 + 100).map(|at| tool(&format!("tool_{at:03}"))).collect();
            let next = (page < 4).then(|| (page + 1).to_string());
            return self.answer(id, listed(tools, next));
        }
        if self.has("circle") {
            return self.answer(id, listed(vec![tool("echo")], Some("again".to_owned())));
        }
        let mut tools: Vec<Value> = [
            "echo",
            "fail",
            "refuse",
            "slow",
            "die",
            "picture",
            "structured",
            "misfit",
            "wordless",
            "ask",
            "steps",
            "grow",
            "dangling",
        ]
        .map(tool)
        .to_vec();
        tools.extend((0..self.grown).map(|at| tool(&format!("grown_{at}"))));
        if self.has("broken") {
            tools.extend([
                json!({ "name": "no_schema" }),
                json!({ "name": "text_schema", "inputSchema": "object" }),
                json!({ "name": "list_schema", "inputSchema": { "type": "array" } }),
                json!({ "inputSchema": { "type": "object" } }),
                json!(7),
                tool("echo"),
            ]);
        }
        self.answer(id, listed(tools, None));
    }

    fn call(&mut self, id: &Value, params: &Value) {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = &params["arguments"];
        note(&self.ledger, &format!("called {name} {arguments}"));
        match name {
            "echo" | "dangling" => self.text(id, arguments["text"].as_str().unwrap_or("nothing")),
            "fail" => self.answer(
                id,
                json!({ "content": [{ "type": "text", "text": "the drawer is stuck" }], "isError": true }),
            ),
            "refuse" => send(&json!({
                "jsonrpc": "2.0", "id": id, "error": { "code": -32602, "message": "not like this" },
            })),
            "slow" => {}
            "die" => std::process::exit(9),
            "picture" => self.answer(
                id,
                json!({ "content": [
                    { "type": "text", "text": "a dot" },
                    { "type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png" },
                ] }),
            ),
            "structured" => self.answer(id, json!({ "content": [], "structuredContent": { "degrees": 21 } })),
            // Both promise a number.
            "misfit" => self.answer(
                id,
                json!({ "content": [{ "type": "text", "text": "warm" }], "structuredContent": { "degrees": "warm" } }),
            ),
            "wordless" => self.text(id, "21"),
            "ask" => self.ask(id, params),
            "steps" => {
                for step in 1..=3 {
                    send(&json!({
                        "jsonrpc": "2.0", "method": "notifications/progress",
                        "params": { "progressToken": params["_meta"]["progressToken"], "progress": step, "total": 3,
                                    "message": format!("step {step}") },
                    }));
                }
                self.text(id, "walked");
            }
            "grow" => {
                self.grown += 1;
                let mut params = json!({});
                if self.modern {
                    // The subscription is the second request of every client that is checked here.
                    params = json!({ "_meta": { "io.modelcontextprotocol/subscriptionId": 1 } });
                }
                send(
                    &json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params }),
                );
                self.text(id, "grown");
            }
            other => self.text(id, &format!("{other} is here")),
        }
    }

    fn ask(&mut self, id: &Value, params: &Value) {
        let form = json!({
            "mode": "form", "message": "Which colour?",
            "requestedSchema": { "type": "object", "properties": { "colour": { "type": "string" } }, "required": ["colour"] },
        });
        let answer = &params["inputResponses"]["colour"];
        if !self.modern {
            self.asking = Some(id.clone());
            send(
                &json!({ "jsonrpc": "2.0", "id": "question", "method": "elicitation/create", "params": form }),
            );
        } else if answer.is_null() {
            self.answer(
                id,
                json!({
                    "resultType": "input_required", "requestState": "sealed",
                    "inputRequests": { "colour": { "method": "elicitation/create", "params": form } },
                }),
            );
        } else {
            note(
                &self.ledger,
                &format!("painted {} with {}", answer["content"]["colour"], params["requestState"]),
            );
            self.text(id, "painted");
        }
    }

    /// The answer to a question that was asked while a call was open.
    fn answered(&mut self, message: &Value) {
        let Some(id) = self.asking.take() else { return };
        if message["result"]["action"] == "accept" {
            note(&self.ledger, &format!("painted {}", message["result"]["content"]["colour"]));
            self.text(&id, "painted");
        } else {
            self.text(&id, "nobody said a colour");
        }
    }
}

fn listed(tools: Vec<Value>, next: Option<String>) -> Value {
    let mut list = json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" });
    if let Some(next) = next {
        list["nextCursor"] = next.into();
    }
    list
}

fn tool(name: &str) -> Value {
    let mut schema = json!({
        "type": "object", "properties": { "text": { "type": "string", "maxLength": 1000 } },
        "$defs": { "kept": { "$anchor": "kept" } }, "if": {}, "then": {},
    });
    if name == "dangling" {
        schema["properties"]["text"] = json!({ "$ref": "#/$defs/gone" });
    }
    let promised = json!({
        "type": "object", "properties": { "degrees": { "type": "number" } }, "required": ["degrees"],
    });
    let hints = json!({ "readOnlyHint": name == "echo", "destructiveHint": name == "die" });
    let mut tool = json!({ "name": name, "description": format!("Does {name}."), "inputSchema": schema, "annotations": hints });
    if ["structured", "misfit", "wordless"].contains(&name) {
        tool["outputSchema"] = promised;
    }
    tool
}

fn send(message: &Value) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{message}").and_then(|()| out.flush());
}
