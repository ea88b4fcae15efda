//! A server under load, and calls that outlive their request: limits, sessions, authentication, idempotency keys, and
//! runs that wait for a person.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use common::http::{RawResponse, send_raw};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use windlass::core::decision::{Decision, DecisionScope, PersonQuestion};
use windlass::core::id::{CallPath, RunId};
use windlass::error::StoreError;
use windlass::prelude::*;
use windlass::store::{
    ApproverPolicy, ApproverSigner, DecisionReview, Lease, LeaseClaim, MemoryStore, RunQuery, Store,
    StoreFuture, StoreWrapper, StoredLease, post_decision, post_signed_decision,
};
use windlass_mcp::{
    HttpLimits, McpAuthRefusal, McpClientIdentity, McpConfig, McpConnections, McpPrompt, McpPromptArgument,
    McpPromptMessage, McpResource, McpServer, McpServerConfig, MessageAuthor, ProtocolEra,
};

#[derive(Default)]
struct TillCounters {
    name: String,
    payments: AtomicUsize,
    /// Ends a call of `await_delivery`.
    delivery: Notify,
}

/// Says it again.
#[tool(effect = pure)]
async fn echo(text: String) -> String {
    text
}

/// Pays.
#[tool(needs_approval = |args| args.cents > 100)]
async fn pay(ctx: &ToolContext<TillCounters>, cents: u32, memo: Option<String>) -> String {
    ctx.payments.fetch_add(1, Ordering::SeqCst);
    // Repetitions that arrive meanwhile attach to this run.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let _unused = memo;
    format!("{} paid {cents}", ctx.name)
}

/// Waits for the goods.
#[tool]
async fn await_delivery(ctx: &ToolContext<TillCounters>) -> String {
    ctx.payments.fetch_add(1, Ordering::SeqCst);
    ctx.delivery.notified().await;
    "delivered".to_owned()
}

/// Fails the first time.
#[tool(effect = idempotent)]
async fn retried(ctx: &ToolContext<TillCounters>) -> Result<String, String> {
    match ctx.payments.fetch_add(1, Ordering::SeqCst) {
        0 => Err("not yet".to_owned()),
        _ => Ok("done".to_owned()),
    }
}

/// Fails every time.
#[tool]
async fn unrepeatable(ctx: &ToolContext<TillCounters>) -> Result<String, String> {
    ctx.payments.fetch_add(1, Ordering::SeqCst);
    Err("the line broke".to_owned())
}

/// Fails every time, and may be repeated.
#[tool(effect = idempotent)]
async fn never(ctx: &ToolContext<TillCounters>) -> Result<String, String> {
    ctx.payments.fetch_add(1, Ordering::SeqCst);
    Err("not now".to_owned())
}

fn till_server(till: &Arc<TillCounters>) -> McpServer<TillCounters> {
    // The model has one response for each turn of one run; a run that started again would have none.
    let model = ScriptedModel::new([
        ScriptedResponse::call("inner", "pay", json!({ "cents": 500, "memo": null })),
        ScriptedResponse::text("it is paid"),
    ]);
    let cashier = Agent::new("cashier").tool(pay).model(model);
    let schema = json!({ "type": "object", "properties": { "degrees": { "type": "number" } }, "required": ["degrees"] });
    let measure = Tool::dynamic(
        "measure",
        "Measures.",
        json!({ "type": "object", "properties": {} }),
        |_, _: Value| async { Ok::<_, String>(json!({ "degrees": 21 })) },
    );
    McpServer::with_context("till", till.clone())
        .tools((echo, pay, await_delivery))
        .tool(measure.output_schema(schema))
        .agent(&cashier, "ask_cashier", "Asks the cashier.")
}

/// A server that serves until the test ends.
async fn start(server: McpServer<TillCounters>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(server.serve_http(listener, std::future::pending()));
    address
}

/// A legacy client over HTTP, without an SDK.
struct RawSession {
    address: SocketAddr,
    id: String,
    token: Option<&'static str>,
    next_id: u64,
}

impl RawSession {
    async fn open(address: SocketAddr, token: Option<&'static str>) -> Self {
        Self::open_with(address, token, json!({ "elicitation": {} })).await
    }

    async fn open_with(address: SocketAddr, token: Option<&'static str>, capabilities: Value) -> Self {
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "by hand", "version": "1" } } });
        let mut session = Self { address, id: String::new(), token, next_id: 1 };
        let mut response = session.post(&hello).await;
        assert_eq!(response.status, 200);
        session.id = response.headers["mcp-session-id"].clone();
        response.answer_to(1).await;
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(session.post(&ready).await.status, 202);
        session
    }

    async fn send(&self, method: &str, body: Option<&Value>) -> RawResponse {
        let bearer = self.token.map(|token| format!("Bearer {token}"));
        let mut headers = Vec::new();
        if !self.id.is_empty() {
            headers.push(("mcp-session-id", self.id.as_str()));
        }
        if let Some(bearer) = &bearer {
            headers.push(("authorization", bearer));
        }
        send_raw(self.address, method, &headers, body).await
    }

    async fn post(&self, body: &Value) -> RawResponse {
        self.send("POST", Some(body)).await
    }

    async fn request(&mut self, method: &str, params: Value) -> (u64, RawResponse) {
        self.next_id += 1;
        let body = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        (self.next_id, self.post(&body).await)
    }

    /// Calls a tool and returns the whole response message.
    async fn call(&mut self, tool: &str, arguments: Value, key: Option<&str>) -> Value {
        let (id, mut response) = self.start_call(tool, arguments, key).await;
        assert_eq!(response.status, 200);
        response.answer_to(id).await
    }

    async fn read_resource(&mut self, uri: &str) -> Value {
        let (id, mut response) = self.request("resources/read", json!({ "uri": uri })).await;
        response.answer_to(id).await
    }

    async fn start_call(&mut self, tool: &str, arguments: Value, key: Option<&str>) -> (u64, RawResponse) {
        let mut params = json!({ "name": tool, "arguments": arguments });
        if let Some(key) = key {
            params["_meta"] = json!({ "dev.windlass/idempotencyKey": key });
        }
        self.request("tools/call", params).await
    }

    /// Answers an elicitation.
    async fn answer(&self, question: &Value, decision: &str) {
        let result = json!({ "action": "accept", "content": { "decision": decision } });
        let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        assert_eq!(self.post(&reply).await.status, 202);
    }
}

/// Starts a call of a client of the modern protocol, on a connection of its own.
async fn start_modern_call(
    address: SocketAddr,
    tool: &str,
    mut params: Value,
    key: Option<&str>,
) -> RawResponse {
    params["name"] = tool.into();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    if let Some(key) = key {
        params["_meta"]["dev.windlass/idempotencyKey"] = key.into();
    }
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", tool)];
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    send_raw(address, "POST", &headers, Some(&body)).await
}

async fn modern_call(address: SocketAddr, tool: &str, params: Value, key: Option<&str>) -> Value {
    start_modern_call(address, tool, params, key).await.answer_to(1).await
}

async fn next_question(response: &mut RawResponse) -> Value {
    loop {
        let message = response.next_message().await.expect("the stream goes on");
        if message["method"] == "elicitation/create" {
            return message;
        }
    }
}

fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// An approver sees every byte of the arguments, because the approval covers all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_shows_all_arguments() {
    let till = Arc::new(TillCounters::default());
    let mut client = RawSession::open(start(till_server(&till)).await, None).await;
    let memo = format!("{} and all of\u{202e} my savings\u{200b}", "nothing ".repeat(4000));
    let (id, mut response) = client.start_call("pay", json!({ "cents": 500, "memo": memo }), None).await;
    let question = next_question(&mut response).await;
    let shown = question["params"]["message"].as_str().expect("a text");
    assert!(shown.contains(r"and all of\u202e my savings\u200b"), "nothing in it is invisible: {shown}");
    client.answer(&question, "approve").await;
    assert_eq!(text_of(&response.answer_to(id).await), " paid 500");
}

/// Nothing in the text of a question is invisible, because it may come from a model.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_has_no_invisible_text() {
    let till = Arc::new(TillCounters::default());
    let schema = json!({ "type": "object", "properties": {} });
    let ask = Tool::dynamic("ask", "Asks.", schema, |_: ToolContext<TillCounters>, _: Value| async {
        Err::<String, _>(ToolError::ask_person(PersonQuestion::new("Pay 1 \u{202e}001?\nReally\u{200b}?")))
    });
    let mut client = RawSession::open(start(till_server(&till).tool(ask)).await, None).await;
    let (_, mut response) = client.start_call("ask", json!({}), None).await;
    let question = next_question(&mut response).await;
    assert_eq!(question["params"]["message"], "Pay 1 \\u{202e}001?\nReally\\u{200b}?");
}

/// A call that waits for a person outlives the timeout of idle sessions.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_person_is_not_idleness() {
    let till = Arc::new(TillCounters::default());
    let mut limits = HttpLimits::default();
    limits.session_idle_timeout = Duration::from_secs(3);
    let address = start(till_server(&till).http_limits(limits)).await;
    let idle = RawSession::open(address, None).await;
    let mut client = RawSession::open(address, None).await;
    let (id, mut response) = client.start_call("pay", json!({ "cents": 500 }), None).await;
    let question = next_question(&mut response).await;
    // The other session is closed after a while; the one that waits is not.
    loop {
        let ping = json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" });
        if idle.post(&ping).await.status == 404 {
            break;
        }
        // Each request is a sign of life.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    client.answer(&question, "approve").await;
    assert_eq!(text_of(&response.answer_to(id).await), " paid 500");
}

/// In a store with approvers a client is not asked, and its call continues after an approver's signature.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_an_approver_and_not_for_its_client() {
    let signer = Arc::new(ApproverSigner::from_seed(&[7; 32]).expect("a seed of 32 bytes"));
    let policy = ApproverPolicy::new().approver("ann", signer.key().clone());
    let store = Arc::new(MemoryStore::default().with_approvers(policy));
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till).store(store.clone())).await;
    let mut client = RawSession::open(address, None).await;
    for _ in 0..2 {
        let waits = client.call("pay", json!({ "cents": 500 }), Some("k1")).await;
        assert!(text_of(&waits).contains("waits for an approver"), "{waits}");
    }
    let runs = store.list_runs(&RunQuery::default()).await.expect("it can be read");
    let [run] = runs.as_slice() else { panic!("one run: {runs:?}") };
    let review = DecisionReview { decided_by: "ann".to_owned(), displayed: None, attempt: None };
    let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
    post_signed_decision(&*store, &run.run, "call", decision, scope, review, &signer)
        .await
        .expect("it counts");
    let paid = client.call("pay", json!({ "cents": 500 }), Some("k1")).await;
    assert_eq!((text_of(&paid), till.payments.load(Ordering::SeqCst)), (" paid 500", 1));
}

/// The client is gone while a person decides. The run waits, and the repeated call continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_client_finds_its_call_again() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let mut lost = RawSession::open(address, None).await;
    let (_, mut response) = lost.start_call("ask_cashier", json!({ "input": "pay" }), Some("k1")).await;
    next_question(&mut response).await;
    drop(response);
    assert!(lost.send("DELETE", None).await.status < 300);
    let mut again = RawSession::open(address, None).await;
    let (id, mut response) = again.start_call("ask_cashier", json!({ "input": "pay" }), Some("k1")).await;
    let question = next_question(&mut response).await;
    again.answer(&question, "approve").await;
    assert_eq!(text_of(&response.answer_to(id).await), "it is paid");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// The client cannot ask at the moment. The same call without a key continues the run, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_could_be_asked_about_continues() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let mut client = RawSession::open(address, None).await;
    let (id, mut response) = client.start_call("ask_cashier", json!({ "input": "pay" }), None).await;
    let question = next_question(&mut response).await;
    let error = json!({ "code": -32603, "message": "the person is at lunch" });
    client.post(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": error })).await;
    let failed = response.answer_to(id).await;
    assert!(failed["result"]["isError"] == true && text_of(&failed).contains("at lunch"), "{failed}");
    let (id, mut response) = client.start_call("ask_cashier", json!({ "input": "pay" }), None).await;
    let question = next_question(&mut response).await;
    client.answer(&question, "approve").await;
    assert_eq!(text_of(&response.answer_to(id).await), "it is paid");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// A repeated call with the same key attaches to the run of the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_the_identity_of_a_call() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let mut one = RawSession::open(address, None).await;
    let mut other = RawSession::open(address, None).await;
    // At the same time, and afterwards.
    let (first, second) = tokio::join!(
        one.call("pay", json!({ "cents": 5 }), Some("k1")),
        other.call("pay", json!({ "cents": 5 }), Some("k1")),
    );
    let third = other.call("pay", json!({ "cents": 5 }), Some("k1")).await;
    assert_eq!((text_of(&first), text_of(&second), text_of(&third)), (" paid 5", " paid 5", " paid 5"));
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
    let reused = one.call("pay", json!({ "cents": 6 }), Some("k1")).await;
    assert!(reused["error"]["message"].as_str().expect("an error").contains("other arguments"), "{reused}");
    one.call("pay", json!({ "cents": 5 }), Some("k2")).await;
    one.call("pay", json!({ "cents": 5 }), None).await;
    assert_eq!(till.payments.load(Ordering::SeqCst), 3);
}

/// With a store, the key identifies the call in every process.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_keeps_the_result_of_a_key() {
    let till = Arc::new(TillCounters::default());
    let store = Arc::new(MemoryStore::default());
    for _ in 0..2 {
        let address = start(till_server(&till).store(store.clone())).await;
        let mut client = RawSession::open(address, None).await;
        let answer = client.call("pay", json!({ "cents": 7 }), Some("k1")).await;
        assert_eq!(text_of(&answer), " paid 7");
    }
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
    let address = start(till_server(&till).store(store)).await;
    let mut client = RawSession::open(address, None).await;
    let reused = client.call("pay", json!({ "cents": 8 }), Some("k1")).await;
    assert!(reused["error"]["message"].as_str().expect("an error").contains("other arguments"), "{reused}");
}

/// A store that fails when a lease is acquired, as often as it is told to. It shows a lease as renewed at each look.
struct FlakyStore {
    memory: Arc<MemoryStore>,
    failures: AtomicUsize,
    acquisitions: AtomicUsize,
    looks: AtomicU64,
}

impl FlakyStore {
    fn new(memory: &Arc<MemoryStore>, failures: usize) -> Arc<Self> {
        let memory = memory.clone();
        let (acquisitions, looks) = Default::default();
        Arc::new(Self { memory, failures: failures.into(), acquisitions, looks })
    }
}

impl StoreWrapper for FlakyStore {
    fn inner(&self) -> &dyn Store {
        &*self.memory
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        self.acquisitions.fetch_add(1, Ordering::SeqCst);
        let fails =
            self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if fails.is_ok() {
            return Box::pin(async { Err(StoreError::new("the pool is empty")) });
        }
        self.memory.acquire_lease(run, claim, abandoned)
    }

    fn load_lease<'a>(&'a self, run: &'a RunId) -> StoreFuture<'a, Option<StoredLease>> {
        Box::pin(async move {
            let lease = self.memory.load_lease(run).await?;
            Ok(lease.map(|lease| StoredLease { beat: self.looks.fetch_add(1, Ordering::SeqCst), ..lease }))
        })
    }
}

/// An error of the store is not the result of a call: the repeated call finds the result.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_store_is_not_kept_as_a_result() {
    let till = Arc::new(TillCounters::default());
    let store = Arc::new(MemoryStore::default());
    let mut client = RawSession::open(start(till_server(&till).store(store.clone())).await, None).await;
    assert_eq!(text_of(&client.call("pay", json!({ "cents": 7 }), Some("k1")).await), " paid 7");
    let flaky = FlakyStore::new(&store, 1);
    let mut client = RawSession::open(start(till_server(&till).store(flaky)).await, None).await;
    let failed = client.call("pay", json!({ "cents": 7 }), Some("k1")).await;
    assert_eq!(failed["error"]["code"], -32603, "{failed}");
    assert_eq!(text_of(&client.call("pay", json!({ "cents": 7 }), Some("k1")).await), " paid 7");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// Another process executes the call. The repeated call has its result.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_awaits_the_result_of_another_process() {
    let till = Arc::new(TillCounters::default());
    let store = Arc::new(MemoryStore::default());
    let mut first = RawSession::open(start(till_server(&till).store(store.clone())).await, None).await;
    let (id, mut response) = first.start_call("await_delivery", json!({}), Some("k1")).await;
    common::wait_until(|| till.payments.load(Ordering::SeqCst) == 1).await;
    let observed = FlakyStore::new(&store, 0);
    let mut second = RawSession::open(start(till_server(&till).store(observed.clone())).await, None).await;
    let repeated = tokio::spawn(async move { second.call("await_delivery", json!({}), Some("k1")).await });
    // It has been told that the lease is held, and tries again.
    common::wait_until(|| observed.acquisitions.load(Ordering::SeqCst) >= 2 || repeated.is_finished()).await;
    till.delivery.notify_one();
    assert_eq!(text_of(&response.answer_to(id).await), "delivered");
    assert_eq!(text_of(&repeated.await.expect("an answer")), "delivered");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// The client cannot ask a person. After a decision in the store, the repeated call continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_in_the_store_continues_a_repeated_call() {
    let till = Arc::new(TillCounters::default());
    let store = Arc::new(MemoryStore::default());
    let address = start(till_server(&till).store(store.clone())).await;
    let mut client = RawSession::open_with(address, None, json!({})).await;
    for _ in 0..2 {
        let waits = client.call("pay", json!({ "cents": 500 }), Some("k1")).await;
        assert!(text_of(&waits).contains("this client cannot ask"), "{waits}");
    }
    let runs = store.list_runs(&RunQuery::default()).await.expect("it can be read");
    let [run] = runs.as_slice() else { panic!("one run: {runs:?}") };
    let (call, scope) = (CallPath::from("call"), DecisionScope::ThisCall);
    post_decision(&*store, &run.run, call, Decision::Approve, scope, "the owner").await.expect("it counts");
    let paid = client.call("pay", json!({ "cents": 500 }), Some("k1")).await;
    assert_eq!((text_of(&paid), till.payments.load(Ordering::SeqCst)), (" paid 500", 1));
}

/// A client of the modern protocol loses its connection over HTTP. Its call goes on, and the repeated one has its
/// result.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_key_outlives_its_connection() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let calling = tokio::spawn(start_modern_call(address, "await_delivery", json!({}), Some("k1")));
    common::wait_until(|| till.payments.load(Ordering::SeqCst) == 1).await;
    calling.abort();
    let _lost = calling.await;
    let repeated = tokio::spawn(modern_call(address, "await_delivery", json!({}), Some("k1")));
    // The server has seen that the first connection is closed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    till.delivery.notify_one();
    assert_eq!(text_of(&repeated.await.expect("an answer")), "delivered");
    assert_eq!(text_of(&modern_call(address, "await_delivery", json!({}), Some("k1")).await), "delivered");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// A repeated call is asked its question again, as long as the server can take an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_is_asked_its_question_again() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let pay = || json!({ "arguments": { "cents": 500 } });
    let asked = |answer: &Value| answer["result"]["resultType"] == "input_required";
    let first = modern_call(address, "pay", pay(), Some("k1")).await;
    assert!(asked(&first), "{first}");
    let again = modern_call(address, "pay", pay(), Some("k1")).await;
    assert!(asked(&again), "{again}");
    // The state of the first request still answers it.
    let name = first["result"]["inputRequests"].as_object().expect("a question").keys().next();
    let mut answered = pay();
    answered["requestState"] = first["result"]["requestState"].clone();
    answered["inputResponses"] = json!({
        name.expect("a name"): { "action": "accept", "content": { "decision": "approve" } }
    });
    assert_eq!(text_of(&modern_call(address, "pay", answered, Some("k1")).await), " paid 500");

    // More calls wait than the server remembers. The oldest is gone, and its question is not asked for ever.
    modern_call(address, "pay", pay(), Some("k2")).await;
    for _ in 0..256 {
        let waits = modern_call(address, "pay", pay(), None).await;
        assert!(asked(&waits), "{waits}");
    }
    let gone = modern_call(address, "pay", pay(), Some("k2")).await;
    assert_eq!(gone["error"]["code"], -32603, "{gone}");
    assert_eq!(till.payments.load(Ordering::SeqCst), 1);
}

/// A failure is no result to keep, if the effect of the tool allows another execution.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_an_idempotent_call_is_not_kept() {
    for store in [None, Some(Arc::new(MemoryStore::default()))] {
        let till = Arc::new(TillCounters::default());
        let server = till_server(&till).tools((retried, unrepeatable));
        let address = start(match store {
            Some(store) => server.store(store),
            None => server,
        })
        .await;
        let mut client = RawSession::open(address, None).await;
        let mut outputs = Vec::new();
        for _ in 0..3 {
            let answer = client.call("retried", json!({}), Some("k1")).await;
            outputs.push(answer["result"]["isError"] == true);
        }
        assert_eq!((outputs, till.payments.load(Ordering::SeqCst)), (vec![true, false, false], 2));
        for _ in 0..3 {
            let answer = client.call("unrepeatable", json!({}), Some("k1")).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
        }
        assert_eq!(till.payments.load(Ordering::SeqCst), 3);
    }
}

/// A call that fails again and again is executed a bounded number of times. From then on, the last failure is its result,
/// also in another process.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_keeps_failing_ends_in_its_last_failure() {
    let till = Arc::new(TillCounters::default());
    let store = Arc::new(MemoryStore::default());
    for _ in 0..2 {
        let address = start(till_server(&till).tool(never).store(store.clone())).await;
        let mut client = RawSession::open(address, None).await;
        for _ in 0..12 {
            let answer = client.call("never", json!({}), Some("k1")).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(text_of(&answer).contains("not now"), "{answer}");
        }
    }
    assert_eq!(till.payments.load(Ordering::SeqCst), 16);
}

/// A call that was given up while it ran is not executed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_is_not_executed_again() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let mut client = RawSession::open(address, None).await;
    let (id, response) = client.start_call("pay", json!({ "cents": 9 }), Some("k1")).await;
    common::wait_until(|| till.payments.load(Ordering::SeqCst) == 1).await;
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    client.post(&cancel).await;
    drop(response);
    let again = client.call("pay", json!({ "cents": 9 }), Some("k1")).await;
    assert_eq!(till.payments.load(Ordering::SeqCst), 1, "{again}");
}

/// The client lists and reads the prompts and resources of a server, and the model reads resources with tools.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_resources_are_fetched() {
    let till = Arc::new(TillCounters::default());
    let prompt = McpPrompt::new("greet", "Greets.", |arguments| async move {
        Ok(vec![McpPromptMessage::User(format!("Greet {}.", arguments["name"]))])
    });
    let server = till_server(&till)
        .resource(McpResource::text("till://prices", "prices", "bread 3").description("The prices."))
        .prompt(prompt.argument(McpPromptArgument::required("name", "Whom.")));
    let address = start(server).await;
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        let config = McpServerConfig::http("till", format!("http://{address}/mcp")).era(era);
        let servers = McpConnections::connect(McpConfig::new().server(config)).await;
        let prompts = servers.list_prompts().await.items;
        assert_eq!(
            (prompts[0].name.as_str(), &prompts[0].arguments),
            ("greet", &vec![("name".to_owned(), true)])
        );
        let messages = servers.get_prompt("till", "greet", [("name", "Ann")]).await.expect("it is there");
        assert_eq!((messages[0].author, messages[0].text.as_str()), (MessageAuthor::User, "Greet Ann."));
        assert!(servers.get_prompt("till", "insult", [("name", "Ann")]).await.is_err());
        assert_eq!(servers.list_resources().await.items[0].uri, "till://prices");
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "list_mcp_resources", json!({})).and_call(
                "c2",
                "read_mcp_resource",
                json!({ "server": "till", "uri": "till://prices" }),
            ),
            ScriptedResponse::text("done"),
        ]);
        let agent: Agent = Agent::new("desk").model(model).tools(servers.resource_tools());
        let said = common::call_outputs(&agent.run("go").await.expect("the run ends well"));
        assert!(said["c1"].contains("till://prices") && said["c1"].contains("The prices."), "{said:?}");
        assert!(
            said["c2"].contains("[resource till://prices]") && said["c2"].contains("bread 3"),
            "{said:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_schema_is_served_with_structured_content() {
    let till = Arc::new(TillCounters::default());
    let mut client = RawSession::open(start(till_server(&till)).await, None).await;
    let (id, mut response) = client.request("tools/list", json!({})).await;
    let listed = response.answer_to(id).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let measure = tools.iter().find(|tool| tool["name"] == "measure").expect("it is listed");
    assert_eq!(measure["outputSchema"]["required"], json!(["degrees"]));
    let answer = client.call("measure", json!({}), None).await;
    assert_eq!(answer["result"]["structuredContent"], json!({ "degrees": 21 }), "{answer}");
}

/// Each client has its own context, and cannot use what belongs to another.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_authenticated_and_kept_apart() {
    let till = Arc::new(TillCounters::default());
    let server = till_server(&till)
        .authenticate(|request| async move {
            match request.bearer_token() {
                Some(name @ ("ann" | "bob")) => Ok(McpClientIdentity::new(name)),
                Some(_) => Err(McpAuthRefusal::Forbidden),
                None => Err(McpAuthRefusal::bearer_required()),
            }
        })
        .client_context(|identity| {
            Arc::new(TillCounters { name: identity.name().to_owned(), ..TillCounters::default() })
        });
    let address = start(server).await;
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
    let refused = send_raw(address, "POST", &[], Some(&hello)).await;
    assert_eq!((refused.status, refused.headers["www-authenticate"].as_str()), (401, "Bearer"));
    let refused = send_raw(address, "POST", &[("authorization", "Bearer eve")], Some(&hello)).await;
    assert_eq!(refused.status, 403);
    let mut ann = RawSession::open(address, Some("ann")).await;
    let mut bob = RawSession::open(address, Some("bob")).await;
    assert_eq!(text_of(&ann.call("pay", json!({ "cents": 1 }), Some("k1")).await), "ann paid 1");
    assert_eq!(text_of(&bob.call("pay", json!({ "cents": 1 }), Some("k1")).await), "bob paid 1");
    let stolen = RawSession { address, id: ann.id.clone(), token: Some("bob"), next_id: 50 };
    let ping = json!({ "jsonrpc": "2.0", "id": 51, "method": "ping" });
    assert_eq!(stolen.post(&ping).await.status, 404);
    assert_eq!(ann.post(&ping).await.status, 200);
}

/// A truncated output is read in full by the client of its call, and nothing else that the store has.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_output_is_for_the_client_of_its_call() {
    let schema = json!({ "type": "object", "properties": {} });
    let recite = Tool::dynamic(
        "recite",
        "Says a lot.",
        schema,
        |ctx: ToolContext<TillCounters>, _: Value| async move {
            ctx.save_artefact("notes", "for the server alone").await?;
            Ok::<_, ToolError>("word ".repeat(1000))
        },
    );
    let recite: Tool<TillCounters> = recite.non_strict().max_output_bytes(100);
    let till = Arc::new(TillCounters::default());
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // A run of another program in the same store, with the call id and the tool of the server.
    let model = ScriptedModel::new([
        ScriptedResponse::call("call", "recite", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let other = Agent::new("other").tool(recite.clone()).model(model);
    let running = other.run_with_context("go", till.clone()).run_id("foreign").store(store.clone());
    running.await.expect("the run ends well");
    assert!(store.load_artefact(&"foreign".into(), "call").await.expect("it is read").is_some());

    let server = till_server(&till).tool(recite).store(store.clone());
    let server = server.authenticate(|request| async move {
        request.bearer_token().map(McpClientIdentity::new).ok_or_else(McpAuthRefusal::bearer_required)
    });
    let address = start(server).await;
    let mut ann = RawSession::open(address, Some("ann")).await;
    let mut bob = RawSession::open(address, Some("bob")).await;
    let answer = ann.call("recite", json!({}), None).await;
    let link = answer["result"]["content"][1]["uri"].as_str().expect("a link").to_owned();
    assert_eq!(ann.read_resource(&link).await["result"]["contents"][0]["text"], "word ".repeat(1000));
    let notes = link.replace("/call", "/notes");
    let refused = |answer: &Value| answer["error"]["code"] == -32002;
    assert!(refused(&bob.read_resource(&link).await), "it belongs to another client");
    assert!(refused(&ann.read_resource(&notes).await), "it is no output of the call");

    // A server without identities shares the store.
    let mut anyone = RawSession::open(start(till_server(&till).store(store)).await, None).await;
    let foreign = "windlass://artefact/foreign/call";
    assert!(refused(&anyone.read_resource(foreign).await), "it belongs to another program");
}

/// Many streams, connections and sessions cost the client that opens them, and others are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_starve_others() {
    let till = Arc::new(TillCounters::default());
    let mut limits = HttpLimits::default();
    limits.max_connections = 24;
    limits.max_streams_per_client = 4;
    limits.max_sessions = 8;
    let address = start(till_server(&till).http_limits(limits)).await;
    let mut client = RawSession::open(address, None).await;
    // Streams that nobody reads.
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(client.send("GET", None).await);
    }
    assert_eq!(text_of(&client.call("echo", json!({ "text": "streams" }), None).await), "streams");
    // Connections that send half a request.
    let mut halves = Vec::new();
    for _ in 0..60 {
        let mut half = TcpStream::connect(address).await.expect("it listens");
        half.write_all(b"POST /mcp HTTP/1.1\r\nhost: ").await.expect("it is sent");
        halves.push(half);
    }
    assert_eq!(text_of(&client.call("echo", json!({ "text": "halves" }), None).await), "halves");
    drop((streams, halves));
    // Sessions that nobody closes.
    for _ in 0..20 {
        RawSession::open(address, None).await;
    }
    let mut late = RawSession::open(address, None).await;
    assert_eq!(text_of(&late.call("echo", json!({ "text": "sessions" }), None).await), "sessions");
}

/// Creates a server whose clients are the names in their tokens.
fn server_of_named_clients(till: &Arc<TillCounters>, limits: HttpLimits) -> McpServer<TillCounters> {
    let server = till_server(till).http_limits(limits);
    server.authenticate(|request| async move {
        request.bearer_token().map(McpClientIdentity::new).ok_or_else(McpAuthRefusal::bearer_required)
    })
}

/// Starts calls that do not end until one of them is refused, and returns those that are open.
async fn flood_with_calls(session: &mut RawSession) -> Vec<RawResponse> {
    let mut open = Vec::new();
    loop {
        let call = session.start_call("await_delivery", json!({}), None);
        // Without a free connection, nobody would answer.
        let (_, response) =
            tokio::time::timeout(Duration::from_secs(120), call).await.expect("it is answered");
        match response.status {
            200 => open.push(response),
            429 => return open,
            other => panic!("status {other}"),
        }
    }
}

/// A client that has as many requests as it may have is refused more, and others are served.
#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_a_client_are_limited() {
    let mut limits = HttpLimits::default();
    limits.max_requests_per_client = 3;
    let address = start(server_of_named_clients(&Arc::default(), limits)).await;
    let mut ann = RawSession::open(address, Some("ann")).await;
    let mut bob = RawSession::open(address, Some("bob")).await;
    let open = flood_with_calls(&mut ann).await;
    assert_eq!(open.len(), 3);
    assert_eq!(text_of(&bob.call("echo", json!({ "text": "bob" }), None).await), "bob");
    assert_eq!(flood_with_calls(&mut bob).await.len(), 3);
}

/// Clients that take all requests that they can leave room for one more.
#[tokio::test(flavor = "multi_thread")]
async fn several_floods_leave_room_for_others() {
    let mut limits = HttpLimits::default();
    limits.max_connections = 16;
    let address = start(server_of_named_clients(&Arc::default(), limits)).await;
    let mut floods = Vec::new();
    for name in ["ann", "bob", "cy"] {
        let mut session = RawSession::open(address, Some(name)).await;
        floods.push(flood_with_calls(&mut session).await);
    }
    assert_eq!(floods.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2]);
    let mut dan = RawSession::open(address, Some("dan")).await;
    assert_eq!(text_of(&dan.call("echo", json!({ "text": "dan" }), None).await), "dan");
}

/// The sessions of a client push out its own, and nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_of_a_client_are_limited() {
    let mut limits = HttpLimits::default();
    limits.max_sessions_per_client = 2;
    let address = start(server_of_named_clients(&Arc::default(), limits)).await;
    let bob = RawSession::open(address, Some("bob")).await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(RawSession::open(address, Some("ann")).await);
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" });
    let mut statuses = Vec::new();
    for session in sessions.iter().chain([&bob]) {
        statuses.push(session.post(&ping).await.status);
    }
    assert_eq!(statuses, [404, 404, 200, 200, 200]);
}

/// A process that is out of descriptors serves again when there are some.
#[tokio::test(flavor = "multi_thread")]
async fn serving_survives_the_end_of_descriptors() {
    let mut child = tokio::process::Command::new("/bin/sh")
        .args(["-c", "ulimit -n 48; exec \"$0\"", env!("CARGO_BIN_EXE_served")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("an output")).lines();
    let address: SocketAddr =
        lines.next_line().await.expect("a line").expect("a line").parse().expect("an address");
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut half = TcpStream::connect(address).await.expect("the queue takes it");
        half.write_all(b"POST /mcp HTTP/1.1\r\n").await.expect("it is sent");
        held.push(half);
    }
    let mut client = RawSession::open(address, None).await;
    assert_eq!(text_of(&client.call("echo", json!({ "text": "hello" }), None).await), "hello");
    drop(held);
    assert_eq!(text_of(&client.call("echo", json!({ "text": "again" }), None).await), "again");
    child.kill().await.expect("it ends");
}

/// The head of a request must arrive in time; the connection is closed otherwise.
#[tokio::test(start_paused = true)]
async fn a_slow_head_ends_its_connection() {
    let till = Arc::new(TillCounters::default());
    let address = start(till_server(&till)).await;
    let mut slow = TcpStream::connect(address).await.expect("it listens");
    slow.write_all(b"POST /mcp HTTP/1.1\r\nhost: ").await.expect("it is sent");
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(3600), slow.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "it is closed before an hour has passed");
}
