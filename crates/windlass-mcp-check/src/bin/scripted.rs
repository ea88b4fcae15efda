//! A fault-injecting MCP server on standard input and output, written without an SDK.
//!
//! Usage: `scripted ERA LEDGER [FAULT…]`. ERA is `legacy` or `modern`; calls and cancellations are appended
//! to LEDGER.

use std::io::{BufRead, Write};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_mcp_check::append_line;

struct ScriptedMcpServer {
    is_modern: bool,
    ledger: String,
    faults: Vec<String>,
    /// The call that waits for a response of the client's model, in the legacy protocol.
    open_sampling_call: Option<Value>,
    /// The first root of the client.
    first_root: Value,
    /// True once `visit` has asked for its URL.
    has_visited: bool,
    /// Number of tools added by `grow`.
    extra_tools: usize,
    /// The calls that wait for an elicitation result, in the legacy protocol: the id of the question and of the call.
    open_elicitation_calls: Vec<(String, Value)>,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let era = words.next().unwrap_or_default();
    let ledger = words.next().unwrap_or_default();
    let mut server = ScriptedMcpServer {
        is_modern: era == "modern",
        ledger,
        faults: words.collect(),
        open_sampling_call: None,
        first_root: Value::Null,
        has_visited: false,
        extra_tools: 0,
        open_elicitation_calls: Vec::new(),
    };
    if server.has_fault("mute") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    if server.has_fault("dead") {
        eprintln!("I was never any good");
        std::process::exit(3);
    }
    if server.has_fault("tells") {
        append_line(&server.ledger, &format!("process {}", std::process::id()));
    }
    if server.has_fault("child") {
        // A grandchild that would outlive the server if nobody killed it.
        let spawned = std::process::Command::new("sleep").arg("3600").spawn();
        append_line(&server.ledger, &format!("grandchild {}", spawned.map_or(0, |child| child.id())));
    }
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            server.handle_message(&message);
        }
    }
    // Fault `stubborn`: the server does not exit when its input is closed.
    while server.has_fault("stubborn") {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

impl ScriptedMcpServer {
    fn has_fault(&self, fault: &str) -> bool {
        self.faults.iter().any(|one| one == fault)
    }

    fn handle_message(&mut self, message: &Value) {
        let id = &message["id"];
        match message["method"].as_str() {
            Some("server/discover") if self.is_modern => self.send_result(
                id,
                json!({
                    "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": "scripted", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
                }),
            ),
            Some("initialize") if !self.is_modern => self.send_result(
                id,
                json!({
                    "protocolVersion": if self.has_fault("future") { "2099-01-01" } else { "2025-11-25" },
                    "instructions": "Be gentle.", "capabilities": { "tools": { "listChanged": true } },
                    "serverInfo": { "name": "scripted", "version": "1" },
                }),
            ),
            Some("subscriptions/listen") if self.is_modern => send_message(&json!({
                "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "notifications": { "toolsListChanged": true }, "_meta": { "io.modelcontextprotocol/subscriptionId": id } },
            })),
            Some("tools/list") => self.list_tools(id, &message["params"]),
            Some("tools/call") => self.call_tool(id, &message["params"]),
            Some("notifications/cancelled") => {
                append_line(&self.ledger, &format!("cancelled {}", message["params"]["reason"]));
            }
            Some(method) if method.starts_with("notifications/") => {}
            Some(method) => send_message(&json!({
                "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": format!("no method {method}") },
            })),
            None => self.handle_answer(message),
        }
    }

    fn send_result(&self, id: &Value, mut result: Value) {
        if self.is_modern && result["resultType"].is_null() {
            result["resultType"] = "complete".into();
        }
        send_message(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn send_text(&self, id: &Value, text: &str) {
        self.send_result(id, json!({ "content": [{ "type": "text", "text": text }] }));
    }

    fn list_tools(&self, id: &Value, params: &Value) {
        append_line(&self.ledger, "listed");
        if self.has_fault("hang_list") && self.extra_tools > 0 {
            return;
        }
        if self.has_fault("many") {
            let page: usize = params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
            let tools: Vec<Value> =
                (page * 100..page * 100 + 100).map(|at| tool_definition(&format!("tool_{at:03}"))).collect();
            let next = (page < 4).then(|| (page + 1).to_string());
            return self.send_result(id, tool_list(tools, next));
        }
        if self.has_fault("circle") {
            return self.send_result(id, tool_list(vec![tool_definition("echo")], Some("again".to_owned())));
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
            "visit",
            "sample",
        ]
        .map(tool_definition)
        .to_vec();
        tools.extend((0..self.extra_tools).map(|at| tool_definition(&format!("grown_{at}"))));
        if self.has_fault("broken") {
            tools.extend([
                json!({ "name": "no_schema" }),
                json!({ "name": "text_schema", "inputSchema": "object" }),
                json!({ "name": "list_schema", "inputSchema": { "type": "array" } }),
                json!({ "inputSchema": { "type": "object" } }),
                json!(7),
                tool_definition("echo"),
            ]);
        }
        self.send_result(id, tool_list(tools, None));
    }

    fn call_tool(&mut self, id: &Value, params: &Value) {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = &params["arguments"];
        append_line(&self.ledger, &format!("called {name} {arguments}"));
        match name {
            "echo" | "dangling" => self.send_text(id, arguments["text"].as_str().unwrap_or("nothing")),
            "fail" => self.send_result(
                id,
                json!({ "content": [{ "type": "text", "text": "the drawer is stuck" }], "isError": true }),
            ),
            "refuse" => send_message(&json!({
                "jsonrpc": "2.0", "id": id, "error": { "code": -32602, "message": "not like this" },
            })),
            // The call is refused until the person has visited a URL.
            "visit" if !self.has_visited => {
                self.has_visited = true;
                let elicitation = json!({ "mode": "url", "elicitationId": "e1", "url": "https://bank.example/allow",
                                          "message": "Allow the payment." });
                send_message(&json!({ "jsonrpc": "2.0", "id": id, "error": {
                    "code": -32042, "message": "visit first", "data": { "elicitations": [elicitation] },
                } }));
            }
            // Asks the client for its roots and for a response of its model.
            "sample" => self.request_client(id, params),
            "slow" => {}
            "die" => std::process::exit(9),
            "picture" => self.send_result(
                id,
                json!({ "content": [
                    { "type": "text", "text": "a dot" },
                    { "type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png" },
                ] }),
            ),
            "structured" => self.send_result(id, json!({ "content": [], "structuredContent": { "degrees": 21 } })),
            // The output schema of `misfit` and `wordless` requires a number.
            "misfit" => self.send_result(
                id,
                json!({ "content": [{ "type": "text", "text": "warm" }], "structuredContent": { "degrees": "warm" } }),
            ),
            "wordless" => self.send_text(id, "21"),
            "ask" => self.ask_question(id, params),
            "steps" => {
                for step in 1..=3 {
                    send_message(&json!({
                        "jsonrpc": "2.0", "method": "notifications/progress",
                        "params": { "progressToken": params["_meta"]["progressToken"], "progress": step, "total": 3,
                                    "message": format!("step {step}") },
                    }));
                }
                self.send_text(id, "walked");
            }
            "grow" => {
                self.extra_tools += 1;
                let mut params = json!({});
                if self.is_modern {
                    // The subscription is always the second request of the client under test.
                    params = json!({ "_meta": { "io.modelcontextprotocol/subscriptionId": 1 } });
                }
                send_message(
                    &json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params }),
                );
                self.send_text(id, "grown");
            }
            other => self.send_text(id, &format!("{other} is here")),
        }
    }

    fn ask_question(&mut self, id: &Value, params: &Value) {
        let form = json!({
            "mode": "form", "message": "Which colour?",
            "requestedSchema": { "type": "object", "properties": { "colour": { "type": "string" } }, "required": ["colour"] },
        });
        let answer = &params["inputResponses"]["colour"];
        if !self.is_modern {
            let question = format!("question {id}");
            self.open_elicitation_calls.push((question.clone(), id.clone()));
            let mut form = form;
            if let Some(part) = params["arguments"]["text"].as_str() {
                form["message"] = format!("Which colour for the {part}?").into();
            }
            send_message(
                &json!({ "jsonrpc": "2.0", "id": question, "method": "elicitation/create", "params": form }),
            );
        } else if answer.is_null() {
            self.send_result(
                id,
                json!({
                    "resultType": "input_required", "requestState": "sealed",
                    "inputRequests": { "colour": { "method": "elicitation/create", "params": form } },
                }),
            );
        } else {
            append_line(
                &self.ledger,
                &format!("painted {} with {}", answer["content"]["colour"], params["requestState"]),
            );
            self.send_text(id, &format!("painted {}", answer["content"]["colour"]).replace('"', ""));
        }
    }

    fn request_client(&mut self, id: &Value, params: &Value) {
        let sampling = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "2+2?" } }],
                               "systemPrompt": "Be brief.", "maxTokens": 9 });
        let responses = &params["inputResponses"];
        if !self.is_modern {
            self.open_sampling_call = Some(id.clone());
            send_message(&json!({ "jsonrpc": "2.0", "id": "roots", "method": "roots/list" }));
            send_message(
                &json!({ "jsonrpc": "2.0", "id": "sample", "method": "sampling/createMessage", "params": sampling }),
            );
        } else if responses.is_null() {
            self.send_result(
                id,
                json!({
                    "resultType": "input_required", "requestState": "sealed",
                    "inputRequests": {
                        "roots": { "method": "roots/list", "params": {} },
                        "sample": { "method": "sampling/createMessage", "params": sampling },
                    },
                }),
            );
        } else {
            let root = &responses["roots"]["roots"][0]["uri"];
            self.send_text(
                id,
                &format!("{root} {}", responses["sample"]["content"]["text"]).replace('"', ""),
            );
        }
    }

    /// Handles the result of an elicitation that was sent while a call was open.
    fn handle_answer(&mut self, message: &Value) {
        if message["id"] == "roots" {
            self.first_root = message["result"]["roots"][0]["uri"].clone();
            return;
        }
        if let ("sample", Some(id)) = (message["id"].as_str().unwrap_or_default(), &self.open_sampling_call) {
            let said = match message["error"]["message"].as_str() {
                Some(error) => format!("refused: {error}"),
                None => {
                    format!("{} {}", self.first_root, message["result"]["content"]["text"]).replace('"', "")
                }
            };
            return self.send_text(id, &said);
        }
        let asked = self.open_elicitation_calls.iter().position(|(question, _)| message["id"] == **question);
        let Some(asked) = asked else { return };
        let (_, id) = self.open_elicitation_calls.remove(asked);
        let action = message["result"]["action"].as_str().unwrap_or_default();
        append_line(&self.ledger, &format!("answered {action}"));
        if action == "accept" {
            let colour = &message["result"]["content"]["colour"];
            append_line(&self.ledger, &format!("painted {colour}"));
            self.send_text(&id, &format!("painted {colour}").replace('"', ""));
        } else {
            self.send_text(&id, "nobody said a colour");
        }
    }
}

fn tool_list(tools: Vec<Value>, next: Option<String>) -> Value {
    let mut list = json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" });
    if let Some(next) = next {
        list["nextCursor"] = next.into();
    }
    list
}

fn tool_definition(name: &str) -> Value {
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

fn send_message(message: &Value) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{message}").and_then(|()| out.flush());
}
